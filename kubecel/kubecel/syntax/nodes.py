"""The syntax tree, with expanded macros, and the variables and fields that it reads. Immutable.

`syntax.tree` builds it; the compiler and analyses read it. A macro is a call with a certain name, form and number of
arguments, as in cel-go. Source: cel-go parser/macro.go, ext/comprehensions.go (two variables), ext/lists.go (sortBy),
ext/bindings.go and cel/library.go (optMap, optFlatMap).
"""

import dataclasses
import enum
from collections.abc import Callable, Container, Iterator
from typing import Any, Final, TypeAlias

from kubecel.errors import CelSyntaxError


class Macro(enum.Enum):
    """The macros that loop, with their names in expressions."""

    ALL = "all"
    EXISTS = "exists"
    EXISTS_ONE = "exists_one"
    MAP = "map"
    FILTER = "filter"
    TRANSFORM_LIST = "transformList"
    TRANSFORM_MAP = "transformMap"
    TRANSFORM_MAP_ENTRY = "transformMapEntry"
    SORT_BY = "sortBy"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Base:
    """The position of a node.

    Attributes:
        offset: the character that errors point at: the operator, the dot or the opening bracket, as in cel-go.
        start: first character of the node's text.
        end: one past the last.
        depth: levels of nodes, 1 for a leaf.
    """

    offset: int
    start: int
    end: int
    depth: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Literal(_Base):
    """A constant: None, bool, int, `values.UInt`, float, str or bytes."""

    value: object


@dataclasses.dataclass(frozen=True, slots=True)
class Ident(_Base):
    """A variable or the name of a type.

    Attributes:
        rooted: it has a leading dot (`.x`): variables of macros do not hide it.
    """

    name: str
    rooted: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Select(_Base):
    """`operand.field`, `operand.?field`, or `has(operand.field)` if `test`."""

    operand: "Node"
    field: str
    optional: bool = False
    test: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Index(_Base):
    """`operand[key]` or `operand[?key]`."""

    operand: "Node"
    key: "Node"
    optional: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Call(_Base):
    """`function(…)` or `target.function(…)`."""

    function: str
    target: "Node | None"
    arguments: tuple["Node", ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Unary(_Base):
    """`!operand` or `-operand`."""

    operator: str
    operand: "Node"


@dataclasses.dataclass(frozen=True, slots=True)
class Binary(_Base):
    """Arithmetic, comparison or `in`."""

    operator: str
    left: "Node"
    right: "Node"


@dataclasses.dataclass(frozen=True, slots=True)
class Logic(_Base):
    """`a && b && …` or `a || b || …`: one node for a chain, because chains can be long."""

    operator: str
    terms: tuple["Node", ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Conditional(_Base):
    """`condition ? then : otherwise`."""

    condition: "Node"
    then: "Node"
    otherwise: "Node"


@dataclasses.dataclass(frozen=True, slots=True)
class Element:
    """An element of a list literal; `optional` for `?value`."""

    value: "Node"
    optional: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class ListLiteral(_Base):
    """`[a, ?b]`."""

    elements: tuple[Element, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class MapEntry:
    """An entry of a map literal; `optional` for `?key: value`."""

    key: "Node"
    value: "Node"
    optional: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class MapLiteral(_Base):
    """`{k: v, ?k: v}`."""

    entries: tuple[MapEntry, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class FieldInit:
    """A field of an object literal; `optional` for `?field: value`."""

    name: str
    value: "Node"
    optional: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class ObjectLiteral(_Base):
    """`Type.name{field: value, ?field: value}`."""

    type_name: str
    fields: tuple[FieldInit, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Comprehension(_Base):
    """A macro that loops.

    Attributes:
        variables: one name (element, or key of a map), or two (index or key, then value).
        condition: the filter that is evaluated before `body`; None if the macro has none.
    """

    macro: Macro
    operand: "Node"
    variables: tuple[str, ...]
    condition: "Node | None"
    body: "Node"


@dataclasses.dataclass(frozen=True, slots=True)
class Bind(_Base):
    """`cel.bind(variable, value, body)`."""

    variable: str
    value: "Node"
    body: "Node"


@dataclasses.dataclass(frozen=True, slots=True)
class OptionalMap(_Base):
    """`operand.optMap(variable, body)`, or `optFlatMap` if `flat`."""

    operand: "Node"
    variable: str
    body: "Node"
    flat: bool


Node: TypeAlias = (
    Literal
    | Ident
    | Select
    | Index
    | Call
    | Unary
    | Binary
    | Logic
    | Conditional
    | ListLiteral
    | MapLiteral
    | ObjectLiteral
    | Comprehension
    | Bind
    | OptionalMap
)


_CHILDREN: Final[dict[type, Callable[[Any], tuple[Node, ...]]]] = {
    Literal: lambda _: (),
    Ident: lambda _: (),
    Select: lambda node: (node.operand,),
    Index: lambda node: (node.operand, node.key),
    Call: lambda node: node.arguments if node.target is None else (node.target, *node.arguments),
    Unary: lambda node: (node.operand,),
    Binary: lambda node: (node.left, node.right),
    Logic: lambda node: node.terms,
    Conditional: lambda node: (node.condition, node.then, node.otherwise),
    ListLiteral: lambda node: tuple(element.value for element in node.elements),
    MapLiteral: lambda node: tuple(part for entry in node.entries for part in (entry.key, entry.value)),
    ObjectLiteral: lambda node: tuple(field.value for field in node.fields),
    Comprehension: lambda node: (node.operand, *(() if node.condition is None else (node.condition,)), node.body),
    Bind: lambda node: (node.value, node.body),
    OptionalMap: lambda node: (node.operand, node.body),
}


def children(node: Node) -> tuple[Node, ...]:
    """The direct children, in the order of the source."""
    return _CHILDREN[type(node)](node)


def walk(node: Node) -> Iterator[Node]:
    """The node and all nodes below it, top down."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(reversed(children(current)))


def path_of(node: Node) -> tuple[str, ...] | None:
    """The path of a chain of fields and string keys, e.g. `("object", "spec")`; None for any other node."""
    fields: list[str] = []
    while True:
        match node:
            case Select():
                fields.append(node.field)
                node = node.operand
            case Index(key=Literal(value=str(key))):
                fields.append(key)
                node = node.operand
            case Ident():
                return (node.name, *reversed(fields))
            case _:
                return None


def is_rooted(node: Node) -> bool:
    """Does a chain of lookups start with a leading dot?"""
    while isinstance(node, Select | Index):
        node = node.operand
    return isinstance(node, Ident) and node.rooted


def bound_names(node: Node) -> tuple[tuple[str, ...], tuple[Node, ...]]:
    """Variables that a macro declares, and the child nodes in which they are in scope."""
    match node:
        case Comprehension():
            bodies = (node.body,) if node.condition is None else (node.condition, node.body)
            return node.variables, bodies
        case Bind() | OptionalMap():
            return (node.variable,), (node.body,)
        case _:
            return (), ()


def references(tree: Node, roots: Container[str]) -> frozenset[tuple[str, ...]]:
    """The longest paths that start at one of the variables `roots`."""
    return frozenset(_paths(tree, roots))


def _paths(tree: Node, roots: Container[str]) -> Iterator[tuple[str, ...]]:
    waiting: list[tuple[Node, frozenset[str]]] = [(tree, frozenset())]
    while waiting:
        node, hidden = waiting.pop()
        path = path_of(node)
        if path is not None:
            if path[0] in roots and (path[0] not in hidden or is_rooted(node)):
                yield path
            continue
        names, bodies = bound_names(node)
        for child in children(node):
            inner = hidden.union(names) if any(child is body for body in bodies) else hidden
            waiting.append((child, inner))


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
        return Bind(_variable(call, variable), value, body, **_place(call))
    if call.function in {"optMap", "optFlatMap"} and len(call.arguments) == 2:
        variable, body = call.arguments
        flat = call.function == "optFlatMap"
        return OptionalMap(call.target, _variable(call, variable), body, flat, **_place(call))
    loop = _LOOPS.get((call.function, len(call.arguments)))
    return call if loop is None else _loop(call, call.target, *loop)


def _is_namespace(node: Node, name: str) -> bool:
    return isinstance(node, Ident) and node.name == name and not node.rooted


def _place(call: Call) -> dict[str, int]:
    return {"offset": call.offset, "start": call.start, "end": call.end, "depth": call.depth}


def _variable(call: Call, node: Node) -> str:
    if isinstance(node, Ident):
        return node.name
    raise CelSyntaxError(f"'{call.function}' requires the name of a variable here", node.offset)


def _has(call: Call) -> Node:
    (argument,) = call.arguments
    if isinstance(argument, Select) and not argument.optional and not argument.test:
        place = _place(call) | {"offset": argument.offset}
        return Select(argument.operand, argument.field, False, True, **place)
    raise CelSyntaxError("'has' requires a field, such as has(object.metadata)", argument.offset)


def _loop(call: Call, target: Node, macro: Macro, count: int, filters: bool) -> Node:
    variables = tuple(_variable(call, node) for node in call.arguments[:count])
    if len(set(variables)) < count:
        raise CelSyntaxError(f"'{call.function}' has two variables named '{variables[0]}'", call.arguments[1].offset)
    condition = call.arguments[count] if filters else None
    return Comprehension(macro, target, variables, condition, call.arguments[-1], **_place(call))
