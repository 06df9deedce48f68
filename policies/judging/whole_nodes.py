"""Whether a request's selectors keep it from whole UltraServer nodes.

The driver publishes such a node as one device of resourceType `neuron_node` beside its single devices, so a request
for one "device" can be granted all that a node has. Only what is plain to see counts as an exclusion.
"""

import functools
from collections.abc import Iterable
from typing import Final

from kubecel.compile import parse
from kubecel.errors import CelError
from kubecel.syntax import nodes as syntax
from kubecel.syntax.nodes import Node
from neuron import names

_LONGEST: Final = 1024
"""Characters of a selector that is looked at: exclusions are short."""
_MOST: Final = 8
"""Selectors of one request that are looked at."""
_ALWAYS: Final = (names.ATTRIBUTE_RESOURCE_TYPE, names.ATTRIBUTE_INSTANCE_TYPE)
"""Attributes that every device has."""


def excludes_whole_nodes(expressions: Iterable[str], ultraservers: frozenset[str]) -> bool:
    """Whether no whole node satisfies all these selectors; False where in doubt.

    Args:
        expressions: CEL selectors of one request.
        ultraservers: instance types of which a whole node is a device.
    """
    return any(_excludes(each, ultraservers) for each in list(expressions)[:_MOST] if len(each) <= _LONGEST)


@functools.lru_cache(maxsize=256)
def _excludes(expression: str, ultraservers: frozenset[str]) -> bool:
    try:
        return _false_on_nodes(parse(expression), ultraservers)
    except CelError:
        return False


def _false_on_nodes(node: Node, ultraservers: frozenset[str]) -> bool:
    """Whether an expression is plainly false on every whole node, which always has a resourceType and a type."""
    match node:
        case syntax.Logic(operator="&&"):
            return any(_false_on_nodes(each, ultraservers) for each in node.terms)
        case syntax.Logic(operator="||"):
            return all(_false_on_nodes(each, ultraservers) for each in node.terms)
        case syntax.Unary(operator="!", operand=syntax.Binary(operator="in", left=syntax.Literal(value=key), right=on)):
            return key in _ALWAYS and _is_attributes(on)
        case syntax.Unary(operator="!", operand=syntax.Select(test=True, operand=on, field=field)):
            return field in _ALWAYS and _is_attributes(on)
        case syntax.Binary(operator="==" | "!=" | "in"):
            return _comparison(node, ultraservers)
    return False


def _comparison(node: syntax.Binary, ultraservers: frozenset[str]) -> bool:
    left, right = node.left, node.right
    if isinstance(left, syntax.Literal):
        left, right = right, left
    attribute = _attribute(left)
    values = _literals(right, one=node.operator != "in")
    if values is None:
        return False
    if attribute == names.ATTRIBUTE_RESOURCE_TYPE:
        return (names.RESOURCE_TYPE_NODE in values) == (node.operator == "!=")
    if attribute == names.ATTRIBUTE_INSTANCE_TYPE and node.operator != "!=":
        return not ultraservers.intersection(values)
    return False


def _literals(node: Node, *, one: bool) -> list[str] | None:
    """Texts that something is compared with; None where it is anything else."""
    if one:
        return [node.value] if isinstance(node, syntax.Literal) and isinstance(node.value, str) else None
    if not isinstance(node, syntax.ListLiteral):
        return None
    values = [each.value.value for each in node.elements if isinstance(each.value, syntax.Literal)]
    texts = [value for value in values if isinstance(value, str)]
    return texts if len(texts) == len(node.elements) else None


def _attribute(node: Node) -> str:
    """The name in `device.attributes["neuron.aws.com"].name`; empty for anything else."""
    match node:
        case syntax.Select(operand=on, field=name, optional=False, test=False) if _is_attributes(on):
            return name
        case syntax.Index(operand=on, key=syntax.Literal(value=str(name)), optional=False) if _is_attributes(on):
            return name
    return ""


def _is_attributes(node: Node) -> bool:
    """Whether it is `device.attributes["neuron.aws.com"]`."""
    match node:
        case syntax.Index(
            operand=syntax.Select(operand=syntax.Ident(name="device"), field="attributes", optional=False, test=False),
            key=syntax.Literal(value=names.DRIVER),
            optional=False,
        ):
            return True
    return False
