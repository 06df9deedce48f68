"""Macros: calls with a certain name, form and number of arguments, as in cel-go.

Source: cel-go parser/macro.go, ext/comprehensions.go (two variables), ext/lists.go (sortBy), ext/bindings.go and
cel/library.go (optMap, optFlatMap).
"""

from typing import Final

from kubecel.errors import CelSyntaxError
from kubecel.syntax import nodes as syntax
from kubecel.syntax.nodes import Call, Macro, Node

_LOOPS: Final[dict[tuple[str, int], tuple[Macro, int, bool]]] = {
    ("all", 2): (Macro.ALL, 1, False),
    ("all", 3): (Macro.ALL, 2, False),
    ("exists", 2): (Macro.EXISTS, 1, False),
    ("exists", 3): (Macro.EXISTS, 2, False),
    ("exists_one", 2): (Macro.EXISTS_ONE, 1, False),
    ("exists_one", 3): (Macro.EXISTS_ONE, 2, False),
    ("existsOne", 2): (Macro.EXISTS_ONE, 1, False),
    ("existsOne", 3): (Macro.EXISTS_ONE, 2, False),
    ("filter", 2): (Macro.FILTER, 1, False),
    ("map", 2): (Macro.MAP, 1, False),
    ("map", 3): (Macro.MAP, 1, True),
    ("transformList", 3): (Macro.TRANSFORM_LIST, 2, False),
    ("transformList", 4): (Macro.TRANSFORM_LIST, 2, True),
    ("transformMap", 3): (Macro.TRANSFORM_MAP, 2, False),
    ("transformMap", 4): (Macro.TRANSFORM_MAP, 2, True),
    ("transformMapEntry", 3): (Macro.TRANSFORM_MAP_ENTRY, 2, False),
    ("transformMapEntry", 4): (Macro.TRANSFORM_MAP_ENTRY, 2, True),
    ("sortBy", 2): (Macro.SORT_BY, 1, False),
}
"""Name and number of arguments -> macro, number of variables, whether a filter follows them."""


def expand(call: Call) -> Node:
    """Expand a call if it is a macro; else return it.

    Raises:
        CelSyntaxError: it is a macro with invalid arguments.
    """
    if call.target is None:
        return _has(call) if (call.function, len(call.arguments)) == ("has", 1) else call
    if (call.function, len(call.arguments)) == ("bind", 3) and _is_namespace(call.target, "cel"):
        variable, value, body = call.arguments
        return syntax.Bind(_variable(call, variable), value, body, **_place(call))
    if call.function in {"optMap", "optFlatMap"} and len(call.arguments) == 2:
        variable, body = call.arguments
        flat = call.function == "optFlatMap"
        return syntax.OptionalMap(call.target, _variable(call, variable), body, flat, **_place(call))
    loop = _LOOPS.get((call.function, len(call.arguments)))
    return call if loop is None else _loop(call, call.target, *loop)


def _is_namespace(node: Node, name: str) -> bool:
    return isinstance(node, syntax.Ident) and node.name == name and not node.rooted


def _place(call: Call) -> dict[str, int]:
    return {"offset": call.offset, "start": call.start, "end": call.end, "depth": call.depth}


def _variable(call: Call, node: Node) -> str:
    if isinstance(node, syntax.Ident):
        return node.name
    raise CelSyntaxError(f"'{call.function}' requires the name of a variable here", node.offset)


def _has(call: Call) -> Node:
    (argument,) = call.arguments
    if isinstance(argument, syntax.Select) and not argument.optional and not argument.test:
        place = _place(call) | {"offset": argument.offset}
        return syntax.Select(argument.operand, argument.field, False, True, **place)
    raise CelSyntaxError("'has' requires a field, such as has(object.metadata)", argument.offset)


def _loop(call: Call, target: Node, macro: Macro, count: int, filters: bool) -> Node:
    variables = tuple(_variable(call, node) for node in call.arguments[:count])
    if len(set(variables)) < count:
        raise CelSyntaxError(f"'{call.function}' has two variables named '{variables[0]}'", call.arguments[1].offset)
    condition = call.arguments[count] if filters else None
    return syntax.Comprehension(macro, target, variables, condition, call.arguments[-1], **_place(call))
