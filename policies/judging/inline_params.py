"""Finds fields of `params` that an expression reads and that the policy's own `params` do not have.

`params` of a ValidatingPolicy are in its file, so a name that is not there is a mistake, unless the expression asks
whether it is there.
"""

from collections.abc import Iterator, Mapping

from kubecel.syntax import nodes as syntax
from kubecel.syntax.nodes import Node
from kubecel.syntax.references import path_of
from neuron.findings import did_you_mean

_ROOT = "params"
_Path = tuple[str, ...]


def unknown_fields(tree: Node, params: Mapping[str, object]) -> Iterator[tuple[int, str]]:
    """The offsets of fields that `params` does not have, with what is wrong; only literal names are compared."""
    read: dict[_Path, int] = {}
    asked: set[_Path] = set()
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        waiting += syntax.children(node)
        path = path_of(node) if isinstance(node, syntax.Select | syntax.Index) else None
        if path is not None and path[0] == _ROOT:
            if _is_asked(node):
                asked.add(path)
            else:
                read.setdefault(path, node.offset)
        elif isinstance(node, syntax.Binary) and node.operator == "in" and isinstance(node.left, syntax.Literal):
            owner = path_of(node.right)
            if owner is not None and owner[0] == _ROOT:
                asked.add((*owner, str(node.left.value)))
    for path, offset in sorted(read.items()):
        if any(path[: len(each)] == each for each in asked):
            continue
        owner_value = _owner(params, path)
        if owner_value is not None and path[-1] not in owner_value:
            place = ".".join(path[:-1])
            hint = did_you_mean(path[-1], list(owner_value)) or " Add it to spec.params."
            yield offset, f"'{place}' has no field '{path[-1]}'.{hint}"


def _is_asked(node: Node) -> bool:
    """Whether a chain of lookups has an optional one, or is the argument of `has`."""
    while isinstance(node, syntax.Select | syntax.Index):
        if node.optional or (isinstance(node, syntax.Select) and node.test):
            return True
        node = node.operand
    return False


def _owner(params: Mapping[str, object], path: _Path) -> Mapping[str, object] | None:
    """The mapping that should have the last step of a path; None if a step before is missing, or no mapping."""
    value: object = params
    for step in path[1:-1]:
        value = value.get(step) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else None
