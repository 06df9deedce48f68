"""The variables and fields that an expression reads."""

from collections.abc import Container, Iterator

from kubecel.syntax import nodes as syntax
from kubecel.syntax.nodes import Node


def path_of(node: Node) -> tuple[str, ...] | None:
    """The path of a chain of fields and string keys, e.g. `("object", "spec")`; None for any other node."""
    fields: list[str] = []
    while True:
        match node:
            case syntax.Select():
                fields.append(node.field)
                node = node.operand
            case syntax.Index(key=syntax.Literal(value=str(key))):
                fields.append(key)
                node = node.operand
            case syntax.Ident():
                return (node.name, *reversed(fields))
            case _:
                return None


def is_rooted(node: Node) -> bool:
    """Does a chain of lookups start with a leading dot?"""
    while isinstance(node, syntax.Select | syntax.Index):
        node = node.operand
    return isinstance(node, syntax.Ident) and node.rooted


def bound_names(node: Node) -> tuple[tuple[str, ...], tuple[Node, ...]]:
    """Variables that a macro declares, and the child nodes in which they are in scope."""
    match node:
        case syntax.Comprehension():
            bodies = (node.body,) if node.condition is None else (node.condition, node.body)
            return node.variables, bodies
        case syntax.Bind() | syntax.OptionalMap():
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
        for child in syntax.children(node):
            inner = hidden.union(names) if any(child is body for body in bodies) else hidden
            waiting.append((child, inner))
