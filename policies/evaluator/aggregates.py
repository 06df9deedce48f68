"""Compiling literals of lists and maps."""

from typing import Any, Final

from policies.engine import CelRuntimeError, CelTypeError
from policies.evaluator import syntax, types
from policies.evaluator.access import located, shown
from policies.evaluator.compiler import Code, Compiler, Frame, Run, compiles, fold
from policies.evaluator.types import DYN, Type
from policies.evaluator.values import Optional, key_of, name_of

LIST_COST: Final = 10
"""cel-go common/cost.go, ListCreateBaseCost."""
MAP_COST: Final = 30
"""MapCreateBaseCost."""


def _check_optional(code: Code, optional: bool, offset: int) -> Type:
    """The type of an element: what an optional one holds."""
    if not optional:
        return code.type
    if code.type.name == "dyn":
        return DYN
    if code.type.name != "optional_type":
        raise CelTypeError(f"'?' wants an optional value here, not a {code.type}", offset)
    return code.type.parameters[0]


def _same_type(
    compiler: Compiler, known: Type | None, found: Type, what: str, offset: int, optional: bool = False
) -> Type:
    """The type of all elements so far. The API server refuses mixed literals, and `dyn` beside another type."""
    if known is None:
        return found
    merged = types.join(known, found)
    if merged is not None and (optional or known.name == found.name):
        return merged
    if compiler.mixes_types:
        return DYN
    raise CelTypeError(
        f"{what} of one literal have one type: expected {known}, found {found}; dyn() around each lets them differ",
        offset,
    )


@compiles(syntax.ListLiteral)
def _list(compiler: Compiler, node: syntax.ListLiteral) -> Code:
    described: Type | None = None
    parts: list[tuple[Run, bool]] = []
    fixed, cost = True, LIST_COST
    for element in node.elements:
        code = compiler.compile(element.value)
        fixed = fixed and code.is_constant
        found = _check_optional(code, element.optional, element.value.offset)
        described = _same_type(compiler, described, found, "elements", element.value.offset, element.optional)
        parts.append((code.run, element.optional))
        cost += code.cost
    result = types.list_of(described or DYN)
    limit_free = [run for run, _ in parts]

    def build(frame: Frame) -> list[Any]:
        return [run(frame) for run in limit_free]

    def build_optional(frame: Frame) -> list[Any]:
        items = []
        for run, optional in parts:
            value = run(frame)
            if not optional:
                items.append(value)
            elif not isinstance(value, Optional):
                raise CelRuntimeError(f"'?' wants an optional value here, not a {name_of(value)}", node.offset)
            elif value.present:
                items.append(value.value)
        return items

    code = Code(build_optional if any(optional for _, optional in parts) else build, result, cost=cost)
    return fold(code, compiler) if fixed else code


@compiles(syntax.MapLiteral)
def _map(compiler: Compiler, node: syntax.MapLiteral) -> Code:
    key_type: Type | None = None
    value_type: Type | None = None
    parts: list[tuple[Run, Run, bool, int]] = []
    fixed, cost = True, MAP_COST
    for entry in node.entries:
        key, value = compiler.compile(entry.key), compiler.compile(entry.value)
        fixed = fixed and key.is_constant and value.is_constant
        key_type = _same_type(compiler, key_type, key.type, "keys", entry.key.offset)
        found = _check_optional(value, entry.optional, entry.value.offset)
        value_type = _same_type(compiler, value_type, found, "values", entry.value.offset, entry.optional)
        parts.append((key.run, value.run, entry.optional, entry.key.offset))
        cost += key.cost + value.cost
    if key_type is not None and key_type.name not in {"dyn", "bool", "int", "uint", "string"}:
        raise CelTypeError(f"keys of a map are bool, int, uint or string, not {key_type}", node.offset)

    def build(frame: Frame) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        for key_run, value_run, optional, offset in parts:
            value = value_run(frame)
            if optional:
                if not isinstance(value, Optional):
                    raise CelRuntimeError(f"'?' wants an optional value here, not a {name_of(value)}", offset)
                if not value.present:
                    continue
                value = value.value
            insert(made, key_run(frame), value, offset)
        return made

    code = Code(build, types.map_of(key_type or DYN, value_type or DYN), cost=cost)
    return fold(code, compiler) if fixed else code


def insert(made: dict[Any, Any], key: object, value: object, offset: int) -> None:
    """Add an entry to a map that is being built.

    Raises:
        CelRuntimeError: the key is taken, or is none that a map can have.
    """
    if isinstance(key, float):
        raise CelRuntimeError("a double cannot be the key of a map: keys are bool, int, uint or string", offset)
    try:
        name = key_of(key)
    except CelRuntimeError as error:
        raise located(error, offset) from None
    if name in made:
        raise CelRuntimeError(f"the key {shown(key)} stands twice in one map", offset)
    made[name] = value
