"""Compiling literals of lists, maps and objects; sorting of lists."""

import contextlib
import functools
from collections.abc import Sequence
from typing import Final

from kubecel import types
from kubecel.budget import Budget
from kubecel.closures.access import key_in_words, located
from kubecel.closures.compiler import Code, Compiler, Frame, Run, compiles, fold
from kubecel.errors import CelRuntimeError, CelTypeError, CelUnsupportedError
from kubecel.sizes import size_of
from kubecel.syntax import nodes as syntax
from kubecel.types import DYN, Type
from kubecel.values import ObjectValue, Optional, key_of, kind_of, less, name_of

LIST_COST: Final = 10
"""cel-go common/cost.go, ListCreateBaseCost."""
MAP_COST: Final = 30
"""MapCreateBaseCost."""
OBJECT_COST: Final = 40
"""StructCreateBaseCost."""


def _check_optional(code: Code, optional: bool, offset: int) -> Type:
    """The type of an element; the inner type for an optional element."""
    if not optional:
        return code.type
    if code.type == DYN:
        return DYN
    if code.type.name != "optional_type":
        raise CelTypeError(f"'?' requires an optional value, not {code.type}", offset)
    return code.type.parameters[0]


class _Joined:
    """The type of all elements, keys or values of one literal."""

    def __init__(self, compiler: Compiler, what: str) -> None:
        self._compiler = compiler
        self._what = what
        self._first: Type | None = None
        self._type: Type | None = None

    def add(self, found: Type, offset: int) -> None:
        """Add the type of a part. The API server refuses mixed types, and `dyn` together with another type."""
        if self._first is None or self._type is None:
            self._first = self._type = found
            return
        self._compiler.require_uniform(self._what, self._first, found, offset)
        self._type = self._compiler.types.join(self._type, found) or DYN

    @property
    def type(self) -> Type:
        """The type; for an empty literal, a variable that its use binds."""
        return self._compiler.types.fresh() if self._type is None else self._type


@compiles(syntax.ListLiteral)
def _list(compiler: Compiler, node: syntax.ListLiteral) -> Code:
    described = _Joined(compiler, "elements")
    parts: list[tuple[Run, bool]] = []
    fixed, literal, cost = True, True, LIST_COST
    for element in node.elements:
        code = compiler.compile(element.value)
        fixed, literal = fixed and code.is_constant, literal and code.literal
        found = _check_optional(code, element.optional, element.value.offset)
        described.add(found, element.value.offset)
        parts.append((code.run, element.optional))
        cost += code.cost
    result = types.list_of(described.type)
    limit_free = [run for run, _ in parts]

    def build(frame: Frame) -> list[object]:
        return [run(frame) for run in limit_free]

    def build_optional(frame: Frame) -> list[object]:
        items = []
        for run, optional in parts:
            value = run(frame)
            if not optional:
                items.append(value)
            elif not isinstance(value, Optional):
                raise CelRuntimeError(f"'?' requires an optional value, not {name_of(value)}", node.offset)
            elif value.present:
                items.append(value.value)
        return items

    run = build_optional if any(optional for _, optional in parts) else build
    code = Code(run, result, cost=0 if literal else cost, literal=literal)
    return fold(code, compiler) if fixed else code


@compiles(syntax.MapLiteral)
def _map(compiler: Compiler, node: syntax.MapLiteral) -> Code:
    keys, values = _Joined(compiler, "keys"), _Joined(compiler, "values")
    parts: list[tuple[Run, Run, bool, int]] = []
    fixed, literal, cost = True, True, MAP_COST
    for entry in node.entries:
        key, value = compiler.compile(entry.key), compiler.compile(entry.value)
        fixed = fixed and key.is_constant and value.is_constant
        literal = literal and key.literal and value.literal
        keys.add(key.type, entry.key.offset)
        found = _check_optional(value, entry.optional, entry.value.offset)
        values.add(found, entry.value.offset)
        parts.append((key.run, value.run, entry.optional, entry.key.offset))
        cost += key.cost + value.cost
    key_type = keys.type

    def build(frame: Frame) -> dict[object, object]:
        made: dict[object, object] = {}
        for key_run, value_run, optional, offset in parts:
            key, value = key_run(frame), value_run(frame)
            if optional:
                if not isinstance(value, Optional):
                    raise CelRuntimeError(f"'?' requires an optional value, not {name_of(value)}", offset)
                if not value.present:
                    # cel-go removes an entry with the same key.
                    with contextlib.suppress(CelRuntimeError):
                        made.pop(key_of(key), None)
                    continue
                value = value.value
            insert(made, key, value, offset)
        return made

    code = Code(build, types.map_of(key_type, values.type), cost=0 if literal else cost, literal=literal)
    return fold(code, compiler) if fixed else code


@compiles(syntax.ObjectLiteral)
def _object(compiler: Compiler, node: syntax.ObjectLiteral) -> Code:
    described = compiler.objects(node.type_name)
    if described is None or described.fields is None:
        raise CelUnsupportedError(
            f"there is no type '{node.type_name}' of which an object can be made here: write a map", node.offset
        )
    parts: list[tuple[str, Run, bool]] = []
    cost = OBJECT_COST
    for field in node.fields:
        code = compiler.compile(field.value)
        wanted = described.fields.get(field.name)
        if wanted is None:
            hint = compiler.hint(field.name, described.fields)
            known = hint or f" It has {', '.join(described.fields)}."
            raise CelTypeError(f"'{described}' has no field '{field.name}'.{known}", field.value.offset)
        found = _check_optional(code, field.optional, field.value.offset)
        if not compiler.types.assignable(found, wanted):
            raise CelTypeError(f"field '{field.name}' of {described} is a {wanted}, not {found}", field.value.offset)
        parts.append((field.name, code.run, field.optional))
        cost += code.cost

    def build(frame: Frame) -> ObjectValue:
        made: dict[str, object] = {}
        for name, run, optional in parts:
            value = run(frame)
            if optional:
                if not isinstance(value, Optional):
                    raise CelRuntimeError(f"'?' requires an optional value, not {name_of(value)}", node.offset)
                if not value.present:
                    continue
                value = value.value
            wanted = described.fields[name] if described.fields is not None else DYN
            if wanted != DYN and kind_of(value) != wanted:
                raise CelRuntimeError(f"field '{name}' of {described} is a {wanted}, not {name_of(value)}", node.offset)
            made[name] = value
        return ObjectValue(described, made)

    return Code(build, described, cost=cost)


def insert(made: dict[object, object], key: object, value: object, offset: int) -> None:
    """Add an entry to a new map.

    Raises:
        CelRuntimeError: the map has the key already, or the type is not allowed for keys.
    """
    if isinstance(key, float):
        raise CelRuntimeError("a double cannot be the key of a map: keys are bool, int, uint or string", offset)
    try:
        name = key_of(key)
    except CelRuntimeError as error:
        raise located(error, offset) from None
    if name in made:
        raise CelRuntimeError(f"the map has the key {key_in_words(key)} twice", offset)
    made[name] = value


_WORK_OF_A_COMPARISON: Final = 10


def charge_self_comparison(budget: Budget, items: Sequence[object]) -> None:
    """Charge the comparison of every item with every other item, without the 1 of the call.

    Source: cel-go ext/lists.go, trackListSelfCompare.
    """
    is_text = bool(items) and isinstance(items[0], str | bytes)
    budget.spend(LIST_COST + len(items) ** 2 * (21 if is_text else 20) // 10)


def sort(budget: Budget, items: list[object], keys: list[object]) -> list[object]:
    """The items in the order of their keys; equal keys keep their order.

    Raises:
        CelRuntimeError: the keys have different types, or a type without order.
    """
    budget.items(len(items))
    charge_self_comparison(budget, keys)
    for key in keys:
        if type(key) is not type(keys[0]) and kind_of(key) != kind_of(keys[0]):
            raise CelRuntimeError(f"cannot sort: {name_of(keys[0])} and {name_of(key)} have no common order")
        less(key, key, "sort")

    def compare(a: tuple[object, object], b: tuple[object, object]) -> int:
        budget.work(_WORK_OF_A_COMPARISON + min(size_of(a[0]), size_of(b[0])) // 1024)
        return -1 if less(a[0], b[0]) else int(less(b[0], a[0]))

    pairs = sorted(zip(keys, items, strict=True), key=functools.cmp_to_key(compare))
    return [item for _, item in pairs]
