"""Do the CEL selectors of a device request exclude whole UltraServer nodes?

The driver publishes such a node as one device of resourceType `neuron_node` beside its single devices, so a request
for one "device" can get all devices of a node. Only exclusions that the syntax tree shows directly are recognised.
"""

import threading
from collections.abc import Iterable
from typing import Final

from kubecel.budget import Clock
from kubecel.compile import parse
from kubecel.deadlines import Deadline
from kubecel.errors import CelError, CelTimeExceededError
from kubecel.syntax import nodes as syntax
from kubecel.syntax.nodes import Node
from neuron import names
from runtime.remembered import Remembered

_LONGEST: Final = 1024
"""Longest selector that is parsed, in characters: exclusions are short."""
_MOST: Final = 8
"""Selectors of one request that are parsed."""
_ALWAYS: Final = (names.ATTRIBUTE_RESOURCE_TYPE, names.ATTRIBUTE_INSTANCE_TYPE)
"""Attributes that every device has."""
_REMEMBERED: Final = 1024 * 1024
"""Bytes of remembered answers."""
_BYTES_PER_CHARACTER: Final = 4


class ParsingTime(Deadline):
    """The time in which the selectors of one object are parsed.

    Attributes:
        exceeded: whether a selector was not parsed because the time was over.
    """

    __slots__ = ("exceeded",)

    def __init__(self, clock: Clock, end: float) -> None:
        super().__init__(clock, end)
        self.exceeded = False


class _Answers:
    """Answers by selector, counted in bytes. The event loop and the lane share them, so they have a lock."""

    def __init__(self) -> None:
        self._known: Remembered[tuple[str, frozenset[str]], bool] = Remembered(_REMEMBERED)
        self._lock = threading.Lock()

    def get(self, key: tuple[str, frozenset[str]]) -> bool | None:
        with self._lock:
            return self._known.get(key)

    def put(self, key: tuple[str, frozenset[str]], *, excludes: bool) -> None:
        with self._lock:
            self._known.put(key, excludes, _BYTES_PER_CHARACTER * len(key[0]))


_answers: Final = _Answers()


def excludes_whole_nodes(
    expressions: Iterable[str], ultraservers: frozenset[str], time: ParsingTime | None = None
) -> bool:
    """Whether no whole node satisfies all these selectors; False in doubt.

    Args:
        expressions: CEL selectors of one request.
        ultraservers: instance types whose whole nodes are devices.
        time: bounds the parsing; None: not bounded.

    Raises:
        CelTimeExceededError: the time was over before the answer was known.
    """
    return any(_excludes(each, ultraservers, time) for each in list(expressions)[:_MOST] if len(each) <= _LONGEST)


def _excludes(expression: str, ultraservers: frozenset[str], time: ParsingTime | None) -> bool:
    key = (expression, ultraservers)
    known = _answers.get(key)
    if known is None:
        tree = _parse(expression, time)
        known = tree is not None and _false_on_nodes(tree, ultraservers)
        _answers.put(key, excludes=known)
    return known


def _parse(expression: str, time: ParsingTime | None) -> Node | None:
    """The syntax tree of a selector; None if it is not CEL."""
    if time is not None and not time.left:
        time.exceeded = True
        raise CelTimeExceededError("reading the selectors takes too long")
    try:
        return parse(expression, deadline=time)
    except CelTimeExceededError:
        if time is not None:
            time.exceeded = True
        raise  # The answer is not remembered: the next evaluation may have more time.
    except CelError:
        return None


def _false_on_nodes(node: Node, ultraservers: frozenset[str]) -> bool:
    """Whether an expression is false on every whole node, which always has a resourceType and an instanceType."""
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
    """The strings on the other side of a comparison; None for anything but literals."""
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
    """Whether the node is `device.attributes["neuron.aws.com"]`."""
    match node:
        case syntax.Index(
            operand=syntax.Select(operand=syntax.Ident(name="device"), field="attributes", optional=False, test=False),
            key=syntax.Literal(value=names.DRIVER),
            optional=False,
        ):
            return True
    return False
