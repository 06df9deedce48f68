"""Compiling constants, variables and lookups."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Final

from kubecel import types
from kubecel.closures.compiler import (
    BUDGET,
    Code,
    Compiler,
    Failed,
    Frame,
    Pending,
    Run,
    compiles,
    constant,
    undeclared,
)
from kubecel.errors import CelRuntimeError, CelTypeError, quoted
from kubecel.syntax import nodes as syntax
from kubecel.types import BOOL, DYN, INT, JSON_PATCH, A, B, Type
from kubecel.values import NONE, ObjectValue, Optional, is_list, key_of, kind_of, name_of, some

_MISSED: Final = (KeyError, TypeError)


@compiles(syntax.Literal)
def _literal(_: Compiler, node: syntax.Literal) -> Code:
    return constant(node.value, kind_of(node.value), literal=True)


@compiles(syntax.Ident)
def _ident(compiler: Compiler, node: syntax.Ident) -> Code:
    slot = compiler.lookup(node)
    if slot is not None:
        index = slot.index
        described = compiler.types.resolve(slot.type)
        if types.is_variable(described) or described.name == "type":
            compiler.at_end.append(functools.partial(_check_no_type, compiler, node, described))
        read = _read_bound(index) if slot.pending else lambda frame: frame[index]
        path = None if slot.pending or described.name == "optional_type" else (index, ())
        return Code(flattening(read, described), slot.type, path=path, cost=1, lookup=True, saved=1)
    named = types.NAMED.get(node.name)
    if named is None:
        raise undeclared(compiler, node)
    return constant(named, types.type_of(named), literal=True)


def _check_no_type(compiler: Compiler, node: syntax.Ident, described: Type) -> None:
    """Refuse a variable that holds a type: cel-go takes its name for that of a type (planner.go, planCheckedIdent)."""
    if compiler.types.final(described).name == "type":
        raise CelTypeError(
            f"the variable '{node.name}' is a type, which the API server does not take: write the name of the type",
            node.offset,
        )


def flattening(run: Run, described: Type) -> Run:
    """The code; an optional whose value is an optional becomes an optional of the innermost value.

    cel-go does this to every variable and every branch of `? :` (interpreter/attributes.go, applyQualifiers).
    """
    if described.name != "optional_type":
        return run

    return lambda frame: innermost(run(frame))


def innermost(value: object) -> object:
    """The value; an optional of optionals becomes an optional of the innermost value."""
    while type(value) is Optional and type(value.value) is Optional:
        value = some(value.value.value)
    return value


def _read_bound(index: int) -> Run:
    def read(frame: Frame) -> object:
        value = frame[index]
        if type(value) is Pending:
            value = frame[index] = value.computed(frame)
        if type(value) is Failed:
            raise value.error
        return value

    return read


# --- lookups at run time ----------------------------------------------------------------------------------


def get(value: Any, key: object) -> object:
    """CEL's `value[key]`; on an optional, the optional of it.

    Raises:
        CelRuntimeError: there is no such key or index, or the value is no list and no map.
    """
    if isinstance(value, Mapping):
        try:
            return value[key_of(key)]
        except KeyError:
            raise CelRuntimeError(f"no such key: {key_in_words(key)}") from None
    if is_list(value):
        return value[_position(key, len(value))]
    if isinstance(value, Optional):
        return find(value, key)
    if isinstance(value, ObjectValue) and value.type == JSON_PATCH and key in value.fields:
        return value.fields[str(key)]
    raise CelRuntimeError(f"no such key: {key_in_words(key)}: a {name_of(value)} has no keys")


def find(value: Any, key: Any) -> Optional:
    """CEL's `value[?key]`. A value that is no list and no map has no key.

    Raises:
        CelRuntimeError: the value is a list and the key is no int, or the key is of a type that no value has as keys.
    """
    if isinstance(value, Optional):
        if not value.present:
            return NONE
        value = value.value
    if isinstance(value, Mapping):
        try:
            return some(value[key_of(key)])
        except KeyError:
            return NONE
    if isinstance(value, ObjectValue) and value.type == JSON_PATCH:
        return some(value.fields[key]) if value.fields.get(key) else NONE
    if is_list(value):
        position = _integer(key)
        return some(value[position]) if 0 <= position < len(value) else NONE
    key_of(key)
    return NONE


def _position(key: object, size: int) -> int:
    position = _integer(key)
    if not 0 <= position < size:
        raise CelRuntimeError(f"index out of bounds: {position} in a list of {size}")
    return position


def _integer(key: object) -> int:
    if isinstance(key, float) and key.is_integer():
        return int(key)
    if isinstance(key, bool) or not isinstance(key, int):
        raise CelRuntimeError(f"a list is indexed by int, not by {name_of(key)}")
    return key


def key_in_words(key: object) -> str:
    if isinstance(key, str):
        return quoted(key)
    # A list or map as a key is always an error, and its text may be very long.
    return str(key) if isinstance(key, int | float) else f"a {name_of(key)}"


def has(value: object, field: str) -> bool:
    """CEL's `has(value.field)`.

    Raises:
        CelRuntimeError: the value is a list.
    """
    return find(value, field).present


# --- compiled lookups -------------------------------------------------------------------------------------


def located(error: CelRuntimeError, offset: int) -> CelRuntimeError:
    """The error; sets its offset if it has none."""
    if error.offset is None:
        error.offset = offset
    return error


def _select_type(compiler: Compiler, node: syntax.Select | syntax.Index, operand: Type, field: str | None) -> Type:
    """The type of a lookup; `field` is None for an index other than a string constant."""
    if operand.fields is not None:
        if field is None:
            return DYN
        found = operand.fields.get(field)
        if found is None:
            known = ", ".join(sorted(operand.fields)[:16])
            known += ", …" if len(operand.fields) > 16 else ""
            hint = compiler.hint(field, operand.fields) or (f" It has {known}." if known else " It has none.")
            raise CelTypeError(f"'{operand.name}' has no field '{field}'.{hint}", node.offset)
        return found
    match operand.name:
        case "dyn":
            return DYN
        case "map":
            return operand.parameters[1]
        case "optional_type":
            (inner,) = operand.parameters
            if inner.name != "optional_type":
                return types.optional_of(_select_type(compiler, node, inner, field))
            raise CelTypeError(f"a value of type {operand} cannot have fields", node.offset)
        case _:
            raise CelTypeError(f"a value of type {operand} cannot have fields", node.offset)


def _lookup_by_name(operand: Code, field: str, result: Type, offset: int) -> Code:
    """`operand.field`; one closure for the whole chain if the chain starts at a variable."""
    if operand.path is not None:
        slot, fields = operand.path
        path = (*fields, field)
        return _looked_up(operand, Code(_walk(operand.run, slot, path, offset), result, path=(slot, path)))
    base = operand.run

    def select(frame: Frame) -> object:
        value = base(frame)
        try:
            return value[field]
        except _MISSED:
            return _get(value, field, offset)

    return _looked_up(operand, Code(select, result))


def _looked_up(operand: Code, code: Code, key: Code | None = None) -> Code:
    """The code with the cost of a lookup: 1 for the key, and 1 for an operand that is no lookup."""
    extended = operand.lookup
    cost = operand.cost + (1 if extended else 2) + (key.cost - key.saved if key is not None else 0)
    return dataclasses.replace(code, cost=cost, lookup=True, saved=operand.saved if extended else 1)


def _get(value: object, key: object, offset: int) -> object:
    try:
        return get(value, key)
    except CelRuntimeError as error:
        raise located(error, offset) from None


def _walk(base: Run, slot: int, path: tuple[str, ...], offset: int) -> Run:
    """Lookups that start at a variable. After a Python exception, `slowly` repeats them and finds the error."""

    def slowly(frame: Frame) -> object:
        return _get(base(frame), path[-1], offset)

    return _STRIDES.get(len(path), _long_walk)(slot, path, slowly)


def _one_step(slot: int, path: tuple[str, ...], slowly: Run) -> Run:
    (first,) = path

    def walk(frame: Frame) -> object:
        try:
            return frame[slot][first]
        except _MISSED:
            return slowly(frame)

    return walk


def _two_steps(slot: int, path: tuple[str, ...], slowly: Run) -> Run:
    first, second = path

    def walk(frame: Frame) -> object:
        try:
            return frame[slot][first][second]
        except _MISSED:
            return slowly(frame)

    return walk


def _three_steps(slot: int, path: tuple[str, ...], slowly: Run) -> Run:
    first, second, third = path

    def walk(frame: Frame) -> object:
        try:
            return frame[slot][first][second][third]
        except _MISSED:
            return slowly(frame)

    return walk


def _long_walk(slot: int, path: tuple[str, ...], slowly: Run) -> Run:
    def walk(frame: Frame) -> object:
        try:
            value = frame[slot]
            for field in path:
                value = value[field]
        except _MISSED:
            return slowly(frame)
        return value

    return walk


_STRIDES: Final = {1: _one_step, 2: _two_steps, 3: _three_steps}


@compiles(syntax.Select)
def _select(compiler: Compiler, node: syntax.Select) -> Code:
    named = _type_name(compiler, node)
    if named is not None:
        return constant(named, types.type_of(named), literal=True)
    operand = compiler.compile(node.operand)
    field, offset, base = node.field, node.offset, operand.run
    described = compiler.settled(operand.type)
    result = _select_type(compiler, node, described, field)
    if node.test:
        return Code(_presence(operand, field, offset), BOOL, cost=operand.cost + (0 if operand.lookup else 1))
    if node.optional:
        return _found(operand, _finding(base, lambda _: field, offset), _optional(described, result))
    if described.name == "optional_type":
        return _found(operand, _finding(base, lambda _: field, offset), result)
    return _lookup_by_name(operand, field, result, offset)


def _presence(operand: Code, field: str, offset: int) -> Run:
    base = operand.run
    slot = operand.path[0] if operand.path is not None and not operand.path[1] else 0

    def test_variable(frame: Frame) -> bool:
        value = frame[slot]
        return field in value if type(value) is dict else test(frame)

    def test(frame: Frame) -> bool:
        value = base(frame)
        if type(value) is dict:
            return field in value
        try:
            return has(value, field)
        except CelRuntimeError as error:
            raise located(error, offset) from None

    return test_variable if slot else test


def _found(operand: Code, run: Run, result: Type) -> Code:
    """The code of a lookup that gives an optional; `run` charges the lookup itself."""
    code = _looked_up(operand, Code(run, result))
    return dataclasses.replace(code, cost=code.cost - 1)


def _finding(base: Run, key: Run, offset: int, cost: int = 0) -> Run:
    """A lookup that gives an optional; `cost` is that of the key.

    As in cel-go, only a key that is there costs 1, and an optional without value does not compute the key
    (interpreter/attributes.go, applyQualifiers).
    """

    def lookup(frame: Frame) -> Optional:
        value = base(frame)
        if type(value) is Optional:
            if not value.present:
                return NONE
            value = value.value
        budget = frame[BUDGET]
        budget.left -= cost
        try:
            found = find(value, key(frame))
        except CelRuntimeError as error:
            raise located(error, offset) from None
        if found.present:
            budget.left -= 1
        return found

    return lookup


def _optional(operand: Type, result: Type) -> Type:
    """The type of an optional lookup: that of a lookup in an optional is optional already."""
    return result if operand.name == "optional_type" else types.optional_of(result)


def _type_name(compiler: Compiler, node: syntax.Select) -> Type | None:
    """The type with a dotted name such as `google.protobuf.Timestamp`."""
    parts = [node.field]
    inner = node.operand
    while isinstance(inner, syntax.Select) and not inner.optional:
        parts.append(inner.field)
        inner = inner.operand
    if not isinstance(inner, syntax.Ident) or node.optional or node.test or compiler.lookup(inner):
        return None
    return types.NAMED.get(".".join((inner.name, *reversed(parts))))


_KEYS: Final = frozenset({"bool", "int", "uint", "double", "string"})
"""Types of literals that cel-go takes as an index (interpreter/attributes.go, newQualifier)."""
INDEX: Final = (
    (types.list_of(A), INT, A),
    (types.map_of(A, B), A, B),
    (types.optional_of(types.list_of(A)), INT, types.optional_of(A)),
    (types.optional_of(types.map_of(A, B)), A, types.optional_of(B)),
)
"""Signatures of `value[key]`, in the order of cel-go's checker."""
OPTIONAL_INDEX: Final = (
    (types.list_of(A), INT, types.optional_of(A)),
    (types.optional_of(types.list_of(A)), INT, types.optional_of(A)),
    (types.map_of(A, B), A, types.optional_of(B)),
    (types.optional_of(types.map_of(A, B)), A, types.optional_of(B)),
)
"""Signatures of `value[?key]`."""


@compiles(syntax.Index)
def _index(compiler: Compiler, node: syntax.Index) -> Code:
    operand, key = compiler.compile(node.operand), compiler.compile(node.key)
    name = key.constant if isinstance(key.constant, str) else None
    described = compiler.types.resolve(operand.type)
    result = _index_type(compiler, node, described, key, name)
    base, index, offset = operand.run, key.run, node.offset
    if key.literal and name_of(key.constant) not in _KEYS:
        raise CelTypeError(f"a value cannot be indexed by {name_of(key.constant)}", node.key.offset)
    if node.optional or described.name == "optional_type":
        return _found(operand, _finding(base, index, offset, key.cost - key.saved), result)
    if name is not None:
        found = _lookup_by_name(operand, name, result, offset)
        return found if key.cost == 0 else dataclasses.replace(found, cost=found.cost + key.cost)

    def subscript(frame: Frame) -> object:
        value, position = base(frame), index(frame)
        if type(position) is str and type(value) is dict and position in value:
            return value[position]
        return _get(value, position, offset)

    return _looked_up(operand, Code(subscript, result), key)


def _index_type(compiler: Compiler, node: syntax.Index, operand: Type, key: Code, name: str | None) -> Type:
    """The type of a lookup by index.

    Raises:
        CelTypeError: the operand does not have such an index, or cannot be indexed.
    """
    inner = operand.parameters[0] if operand.name == "optional_type" else operand
    if inner.fields is not None:
        result = _select_type(compiler, node, operand, name)
        return _optional(operand, result) if node.optional else result
    found, result = compiler.types.result(OPTIONAL_INDEX if node.optional else INDEX, (operand, key.type))
    if found:
        return result
    if inner.name not in {"list", "map"}:
        raise CelTypeError(f"a value of type {operand} cannot be indexed", node.offset)
    wanted = INT if inner.name == "list" else inner.parameters[0]
    raise CelTypeError(f"a {operand} is indexed by {wanted}, not by {key.type}", node.key.offset)
