"""Builds the syntax tree from Lark's callbacks: one method per rule of the grammar.

Lark calls them while it parses, bottom up and without recursion, so deep nesting is no problem. Children are nodes (or
other results of these methods) and all tokens, which have the positions.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from kubecel.budget import Deadline
from kubecel.errors import CelSyntaxError
from kubecel.syntax import literals, nodes
from kubecel.syntax import nodes as syntax
from kubecel.syntax.nodes import Element, FieldInit, MapEntry, Node, path_of

if TYPE_CHECKING:
    from lark import Token

RESERVED: Final = frozenset(
    {
        *("as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let"),
        *("loop", "package", "namespace", "null", "return", "true", "var", "void", "while"),
    }
)
_NEVER_FIELDS: Final = frozenset({"in", "true", "false", "null"})


Children = list[Any]


def _name(token: "Token") -> str:
    if token in RESERVED:
        raise CelSyntaxError(f"'{token}' is a reserved word", token.start_pos)
    return str(token)


def _field(token: "Token") -> str:
    if token in _NEVER_FIELDS:
        raise CelSyntaxError(f"'{token}' is a reserved word: write ['{token}']", token.start_pos)
    return str(token)


def _nodes(children: Children) -> list[Any]:
    return [child for child in children if not isinstance(child, str)]


def _depth(nodes: Iterable[Node]) -> int:
    return 1 + max((node.depth for node in nodes), default=0)


def _is_plain_name(node: Node) -> bool:
    """Is it a chain of identifiers, such as `Object.spec`?"""
    while isinstance(node, syntax.Select):
        if node.optional or node.test:
            return False
        node = node.operand
    return isinstance(node, syntax.Ident)


def _only_or(build: Callable[["TreeBuilder", Children], Node]) -> Callable[["TreeBuilder", Children], object]:
    """For rules of operators: returns the child if there is only one."""

    def method(self: "TreeBuilder", children: Children) -> object:
        return children[0] if len(children) == 1 else build(self, children)

    return method


class TreeBuilder:
    """Builds `kubecel.syntax.nodes`. The names of the methods are those of the rules."""

    def __init__(self) -> None:
        # Threads share the parser and its builder.
        self._reading = threading.local()

    @contextlib.contextmanager
    def until(self, deadline: Deadline) -> Iterator[None]:
        """A context in which parsing in this thread raises a `CelTimeExceededError` at the deadline."""
        self._reading.deadline = deadline
        try:
            yield
        finally:
            del self._reading.deadline

    def _through(self, children: Children) -> object:
        return children[0]

    element = entry = member = _through

    def _looked(self, children: Children) -> object:
        self._reading.deadline.look()
        return children[0]

    primary = unary_not = unary_neg = _looked

    # --- operators ----------------------------------------------------------------------------------------

    @_only_or
    def expr(self, children: Children) -> Node:
        """`condition ? then : otherwise`."""
        condition, mark, then, _, otherwise = children
        parts = (condition, then, otherwise)
        return syntax.Conditional(
            *parts, offset=mark.start_pos, start=condition.start, end=otherwise.end, depth=_depth(parts)
        )

    @_only_or
    def conditionalor(self, children: Children) -> Node:
        """`a || b`, `a && b`; a chain becomes one node."""
        left, mark, right = children
        operator = str(mark)
        terms: tuple[Node, ...] = ()
        depth = 1
        for child in (left, right):
            same = isinstance(child, syntax.Logic) and child.operator == operator
            terms += child.terms if same else (child,)
            # The first part has the depth of the chain already: it is not computed again for every term.
            depth = max(depth, child.depth if same else child.depth + 1)
        return syntax.Logic(operator, terms, offset=mark.start_pos, start=left.start, end=right.end, depth=depth)

    conditionaland = conditionalor

    @_only_or
    def relation(self, children: Children) -> Node:
        """`a < b` and the other binary operators."""
        (left, mark), right = children
        return syntax.Binary(
            str(mark),
            left,
            right,
            offset=mark.start_pos,
            start=left.start,
            end=right.end,
            depth=_depth((left, right)),
        )

    addition = multiplication = relation

    def _left_side(self, children: Children) -> Children:
        return children

    relation_lt = relation_le = relation_gt = relation_ge = relation_eq = relation_ne = relation_in = _left_side
    addition_add = addition_sub = _left_side
    multiplication_mul = multiplication_div = multiplication_mod = _left_side

    @_only_or
    def unary(self, children: Children) -> Node:
        """`!a`, `-a`."""
        mark, operand = children
        return syntax.Unary(
            str(mark),
            operand,
            offset=mark.start_pos,
            start=mark.start_pos,
            end=operand.end,
            depth=_depth((operand,)),
        )

    # --- lookups and calls --------------------------------------------------------------------------------

    def member_dot(self, children: Children) -> Node:
        """`a.b`, `a.?b`."""
        operand, token = children[0], children[-1]
        return syntax.Select(
            operand,
            _field(token),
            optional=len(children) > 3,
            offset=token.start_pos,
            start=operand.start,
            end=token.end_pos,
            depth=_depth((operand,)),
        )

    member_optional_dot = member_dot

    def member_index(self, children: Children) -> Node:
        """`a[b]`, `a[?b]`."""
        operand, opening, closing = children[0], children[1], children[-1]
        key = children[-2]
        return syntax.Index(
            operand,
            key,
            optional=len(children) > 4,
            offset=opening.start_pos,
            start=operand.start,
            end=closing.end_pos,
            depth=_depth((operand, key)),
        )

    member_optional_index = member_index

    def member_dot_arg(self, children: Children) -> Node:
        """`a.f(b)`."""
        target, token, arguments = children[0], children[2], self._arguments(children)
        call = syntax.Call(
            _field(token),
            target,
            arguments,
            offset=token.start_pos,
            start=target.start,
            end=children[-1].end_pos,
            depth=_depth((target, *arguments)),
        )
        return nodes.expand(call)

    def ident_arg(self, children: Children) -> Node:
        """`f(a)`."""
        token, arguments = children[0], self._arguments(children)
        call = syntax.Call(
            _name(token),
            None,
            arguments,
            offset=token.start_pos,
            start=token.start_pos,
            end=children[-1].end_pos,
            depth=_depth(arguments),
        )
        return nodes.expand(call)

    def _arguments(self, children: Children) -> tuple[Node, ...]:
        last = children[-2]
        return tuple(last) if isinstance(last, list) else ()

    def exprlist(self, children: Children) -> list[Node]:
        """`a, b`."""
        return _nodes(children)

    def dot_ident_arg(self, children: Children) -> Node:
        """`.f(a)`: the same as `f(a)`, because functions are in the root namespace."""
        return self.ident_arg(children[1:])

    def dot_ident(self, children: Children) -> Node:
        """`.a`: a variable of the expression; variables of macros do not hide it."""
        return dataclasses.replace(self.ident(children[1:]), rooted=True)

    def ident(self, children: Children) -> syntax.Ident:
        """`a`."""
        (token,) = children
        return syntax.Ident(_name(token), offset=token.start_pos, start=token.start_pos, end=token.end_pos)

    def member_object(self, children: Children) -> Node:
        """`Type.name{field: value}`.

        Raises:
            CelSyntaxError: a value that is no name stands before the brace.
        """
        named, opening, closing = children[0], children[1], children[-1]
        path = path_of(named)
        if path is None or not _is_plain_name(named):
            raise CelSyntaxError("the name of a type must stand before '{'", opening.start_pos)
        fields = tuple(children[2]) if isinstance(children[2], list) else ()
        return syntax.ObjectLiteral(
            ".".join(path),
            fields,
            offset=opening.start_pos,
            start=named.start,
            end=closing.end_pos,
            depth=_depth(field.value for field in fields),
        )

    def fieldinits(self, children: Children) -> list[FieldInit]:
        known: list[FieldInit] = children[0] if len(children) > 1 else []
        known.append(children[-1])
        return known

    def fieldinit(self, children: Children) -> FieldInit:
        """`field: value` or `?field: value` of an object."""
        token, _, value = children[-3:]
        return FieldInit(_field(token), value, optional=len(children) > 3)

    # --- literals -----------------------------------------------------------------------------------------

    def paren_expr(self, children: Children) -> Node:
        """`(a)`."""
        node: Node = children[1]
        return node

    def literal(self, children: Children) -> Node:
        (token,) = children
        return syntax.Literal(
            literals.value(token.type, token, token.start_pos),
            offset=token.start_pos,
            start=token.start_pos,
            end=token.end_pos,
        )

    def optional_element(self, children: Children) -> Element:
        """`?a` in a list."""
        return Element(children[1], optional=True)

    def elements(self, children: Children) -> list[Element]:
        known: list[Element] = children[0] if len(children) > 1 else []
        last = children[-1]
        known.append(last if isinstance(last, Element) else Element(last))
        return known

    def list_lit(self, children: Children) -> Node:
        """`[a, ?b]`."""
        elements = tuple(children[1]) if isinstance(children[1], list) else ()
        return syntax.ListLiteral(
            elements,
            offset=children[0].start_pos,
            start=children[0].start_pos,
            end=children[-1].end_pos,
            depth=_depth(element.value for element in elements),
        )

    def plain_entry(self, children: Children) -> MapEntry:
        """`k: v` in a map."""
        return MapEntry(children[0], children[2])

    def optional_entry(self, children: Children) -> MapEntry:
        """`?k: v` in a map."""
        return MapEntry(children[1], children[3], optional=True)

    def entries(self, children: Children) -> list[MapEntry]:
        known: list[MapEntry] = children[0] if len(children) > 1 else []
        known.append(children[-1])
        return known

    def map_lit(self, children: Children) -> Node:
        """`{k: v, ?k: v}`."""
        entries = tuple(children[1]) if isinstance(children[1], list) else ()
        return syntax.MapLiteral(
            entries,
            offset=children[0].start_pos,
            start=children[0].start_pos,
            end=children[-1].end_pos,
            depth=_depth(part for entry in entries for part in (entry.key, entry.value)),
        )
