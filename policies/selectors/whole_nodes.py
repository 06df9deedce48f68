"""What a device selector evaluates to on a whole UltraServer node, found in its syntax tree without evaluating it.

The driver publishes such a node as one device of resourceType `neuron_node` beside its single devices. The answer
holds for every such device, so each value that differs between nodes, and each expression that is not handled here,
can be anything. Sources of the attributes: `kubeletplugin/publish/slices.py`; AWS Neuron
documentation, "Attributes Reference".
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Final

from kubecel.syntax import nodes as syntax
from kubecel.syntax.nodes import Node
from kubecel.syntax.references import bound_names
from neuron import names

Outcomes = frozenset[bool | None]
"""The results that a condition can have; None: it fails, which aborts the scheduling attempt."""

_TRUE: Final[Outcomes] = frozenset({True})
_FALSE: Final[Outcomes] = frozenset({False})
_FAILURE: Final[Outcomes] = frozenset({None})
_ALL: Final[Outcomes] = frozenset({True, False, None})

_ALIKE: Final = frozenset(
    {names.ATTRIBUTE_INSTANCE_TYPE, "neuronDriverVersion", "draDriverVersion", "capacityBlockId"}
    | {f"networkNodeLayer{layer}" for layer in (1, 2, 3)}
)
"""Attributes that are equal for a whole node and for its single devices."""
_PRESENT: Final = frozenset({names.ATTRIBUTE_RESOURCE_TYPE, names.ATTRIBUTE_INSTANCE_TYPE, names.ATTRIBUTE_DEVICE_ID})
"""Attributes that every device has."""
_GROUPS_DOMAIN: Final = "resource.aws.com"
_MOST_PAIRS: Final = 256


@dataclasses.dataclass(frozen=True, slots=True)
class WholeNodeFindings:
    """What a selector can do with whole nodes.

    Attributes:
        matches: whether it can be true on one.
        tells_apart: whether its result on a whole node can differ from its result on the node's single devices.
    """

    matches: bool
    tells_apart: bool


@dataclasses.dataclass(frozen=True, slots=True)
class NodeDevice:
    """What is known about all whole nodes.

    Attributes:
        types: instance types that publish them; empty: any type.
        least_id: the smallest `deviceId` that one can have; None: not known.
    """

    types: frozenset[str]
    least_id: int | None


def judge(tree: Node, device: NodeDevice) -> WholeNodeFindings:
    """Judge the syntax tree of a selector."""
    judge_ = _Judge(device)
    outcomes = judge_.condition(tree, {})
    return WholeNodeFindings(True in outcomes, judge_.tells_apart)


# --- values ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _OneOf:
    """One of some constants."""

    values: frozenset[object]


@dataclasses.dataclass(frozen=True, slots=True)
class _AtLeast:
    """An integer that is not smaller."""

    least: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Condition:
    """A bool with its possible outcomes."""

    outcomes: Outcomes


@dataclasses.dataclass(frozen=True, slots=True)
class _DevicePart:
    """`device`, or a part of it that has other parts, by the path from `device`."""

    path: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class _Optional:
    """An optional; `value` is None for `optional.none()`."""

    value: "_Value | None"


@dataclasses.dataclass(frozen=True, slots=True)
class _Any:
    """Any value, or a failure."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Fails:
    """The expression fails."""


_Value = _OneOf | _AtLeast | _Condition | _DevicePart | _Optional | _Any | _Fails
_Scope = Mapping[str, _Value]

_ANY: Final = _Any()
_FAILS: Final = _Fails()
_DEVICE: Final = _DevicePart(())
_ATTRIBUTES: Final = ("attributes", names.DRIVER)

_ON_TEXTS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": str.__contains__,
}


def _outcomes(value: _Value) -> Outcomes:
    match value:
        case _Condition():
            return value.outcomes
        case _OneOf(values=values) if all(isinstance(each, bool) for each in values):
            return frozenset(each for each in values if isinstance(each, bool))
        case _Fails():
            return _FAILURE
        case _:
            return _ALL


def _compared(operator: str, left: _Value, right: _Value) -> Outcomes:
    if _FAILS in (left, right):
        return _FAILURE
    match left, right:
        case _OneOf(values=these), _OneOf(values=others) if len(these) * len(others) <= _MOST_PAIRS:
            pairs = list(itertools.product(these, others))
            if operator in ("==", "!=") and all(type(one) is type(other) for one, other in pairs):
                return frozenset((one == other) is (operator == "==") for one, other in pairs)
        case _AtLeast(least=least), _OneOf(values=others) if all(type(other) is int for other in others):
            most = max(other for other in others if isinstance(other, int))
            if (operator in ("==", "<=") and most < least) or (operator == "<" and most <= least):
                return _FALSE
        case _OneOf(), _AtLeast() if operator in ("==", ">", ">="):
            return _compared({"==": "==", ">": "<", ">=": "<="}[operator], right, left)
    return _ALL


# --- the walk -------------------------------------------------------------------------------------------------


class _Judge:
    """Evaluates a tree on what is known about whole nodes. Visits every node of the tree once."""

    def __init__(self, device: NodeDevice) -> None:
        self.tells_apart = False
        self._device = device

    def condition(self, node: Node, scope: _Scope) -> Outcomes:
        return _outcomes(self._used(node, scope))

    def _used(self, node: Node, scope: _Scope) -> _Value:
        """The value of an operand. A part of the device as an operand of something else can tell it apart."""
        value = self.value(node, scope)
        held = value.value if isinstance(value, _Optional) else value
        if isinstance(held, _DevicePart):
            self.tells_apart = True
            return _ANY
        return value

    def value(self, node: Node, scope: _Scope) -> _Value:
        match node:
            case syntax.Literal():
                return _OneOf(frozenset({node.value})) if isinstance(node.value, bool | int | str) else _ANY
            case syntax.Ident():
                if node.name in scope and not node.rooted:
                    return scope[node.name]
                return _DEVICE if node.name == "device" else _ANY
            case syntax.Select():
                holder = self.value(node.operand, scope)
                found = self._part(holder, node.field, optional=node.optional)
                return self._member(node.field, holder, found) if node.test else found
            case syntax.Index():
                return self._index(node, scope)
            case syntax.Logic():
                return _Condition(self._logic(node, scope))
            case syntax.Unary(operator="!"):
                swapped = {True: False, False: True, None: None}
                return _Condition(frozenset(swapped[each] for each in self.condition(node.operand, scope)))
            case syntax.Binary():
                return self._binary(node, scope)
            case syntax.Conditional():
                return self._conditional(node, scope)
            case syntax.Call():
                return self._call(node, scope)
            case syntax.Bind():
                return self.value(node.body, {**scope, node.variable: self.value(node.value, scope)})
            case _:
                self._visit(node, scope)
                return _ANY

    def _visit(self, node: Node, scope: _Scope) -> None:
        """Look for reads in an expression whose value is not computed."""
        variables, bodies = bound_names(node)
        inner = {**scope, **dict.fromkeys(variables, _ANY)}
        for child in syntax.children(node):
            self._used(child, inner if any(child is body for body in bodies) else scope)

    def _part(self, operand: _Value, name: str, *, optional: bool) -> _Value:
        """`operand.name` or `operand["name"]`."""
        if isinstance(operand, _Optional):
            if operand.value is None:
                return operand
            operand, optional = operand.value, True
        if not isinstance(operand, _DevicePart):
            return operand if operand == _FAILS else _ANY
        found = self._read((*operand.path, name))
        if not optional:
            return found
        return _Optional(None) if found == _FAILS else _ANY if found == _ANY else _Optional(found)

    def _read(self, path: tuple[str, ...]) -> _Value:
        match path:
            case ("driver",):
                return _OneOf(frozenset({names.DRIVER}))
            case ("attributes",) | ("attributes", _):
                return _DevicePart(path)
        same = path[:2] == _ATTRIBUTES and path[-1] in _ALIKE
        self.tells_apart = self.tells_apart or not same
        if path == (*_ATTRIBUTES, names.ATTRIBUTE_RESOURCE_TYPE):
            return _OneOf(frozenset({names.RESOURCE_TYPE_NODE}))
        if path == (*_ATTRIBUTES, names.ATTRIBUTE_INSTANCE_TYPE) and self._device.types:
            return _OneOf(frozenset(self._device.types))
        if path == (*_ATTRIBUTES, names.ATTRIBUTE_DEVICE_ID) and self._device.least_id is not None:
            return _AtLeast(self._device.least_id)
        if path[:2] == ("attributes", _GROUPS_DOMAIN) and path[-1].startswith("devicegroup"):
            return _FAILS  # A whole node is in no group.
        return _ANY

    @staticmethod
    def _member(name: str, holder: _Value, found: _Value) -> _Value:
        """`has(holder.name)` or `"name" in holder`; `found` is what reading it gives."""
        if isinstance(holder, _DevicePart) and holder.path == _ATTRIBUTES and name in _PRESENT:
            return _Condition(_TRUE)
        return _Condition(_FALSE) if found == _FAILS and isinstance(holder, _DevicePart) else _ANY

    def _index(self, node: syntax.Index, scope: _Scope) -> _Value:
        operand, key = self.value(node.operand, scope), self._used(node.key, scope)
        held = operand.value if isinstance(operand, _Optional) else operand
        match key:
            case _OneOf(values=values) if len(values) == 1 and isinstance(name := next(iter(values)), str):
                return self._part(operand, name, optional=node.optional)
        if isinstance(held, _DevicePart):
            self.tells_apart = True
        return _FAILS if _FAILS in (operand, key) else _ANY

    def _logic(self, node: syntax.Logic, scope: _Scope) -> Outcomes:
        terms = [self.condition(each, scope) for each in node.terms]
        decisive = node.operator == "||"
        found: set[bool | None] = set()
        if any(decisive in each for each in terms):
            found.add(decisive)
        if all((not decisive) in each for each in terms):
            found.add(not decisive)
        if any(None in each for each in terms):
            found.add(None)
        return frozenset(found)

    def _binary(self, node: syntax.Binary, scope: _Scope) -> _Value:
        if node.operator == "in":
            return self._contained(node, scope)
        left, right = self._used(node.left, scope), self._used(node.right, scope)
        return _Condition(_compared(node.operator, left, right)) if node.operator in _COMPARISONS else _ANY

    def _contained(self, node: syntax.Binary, scope: _Scope) -> _Value:
        left = self._used(node.left, scope)
        if isinstance(node.right, syntax.ListLiteral):
            elements = [self._used(each.value, scope) for each in node.right.elements]
            if any(each.optional for each in node.right.elements) or _FAILS in (left, *elements):
                return _FAILS if left == _FAILS else _ANY
            return _Condition(_any_of([_compared("==", left, each) for each in elements]))
        holder = self.value(node.right, scope)
        match left, holder:
            case _OneOf(values=values), _DevicePart() if len(values) == 1 and isinstance(
                name := next(iter(values)), str
            ):
                return self._member(name, holder, self._read((*holder.path, name)))
        if isinstance(holder, _DevicePart):
            self.tells_apart = True
        return _ANY

    def _conditional(self, node: syntax.Conditional, scope: _Scope) -> _Value:
        outcomes = self.condition(node.condition, scope)
        then, otherwise = self._used(node.then, scope), self._used(node.otherwise, scope)
        found: Outcomes = outcomes & _FAILURE
        for outcome, value in ((True, then), (False, otherwise)):
            if outcome in outcomes:
                found |= _outcomes(value)
        return _Condition(found)

    def _call(self, node: syntax.Call, scope: _Scope) -> _Value:
        if node.target is not None and node.function in ("orValue", "value"):
            target = self.value(node.target, scope)
            arguments = [self._used(each, scope) for each in node.arguments]
            if not isinstance(target, _Optional):
                return _FAILS if target == _FAILS else _ANY
            if target.value is not None:
                return target.value
            return arguments[0] if arguments else _FAILS
        if node.target is None or node.function not in _ON_TEXTS or len(node.arguments) != 1:
            self._visit(node, scope)
            return _ANY
        return _Condition(
            _on_texts(node.function, self._used(node.target, scope), self._used(node.arguments[0], scope))
        )


_COMPARISONS: Final = frozenset({"==", "!=", "<", "<=", ">", ">="})


def _any_of(found: list[Outcomes]) -> Outcomes:
    """The outcomes of `in` by those of the comparison with each element."""
    if any(each == _TRUE for each in found):
        return _TRUE
    return _FALSE if all(each == _FALSE for each in found) else _ALL


def _on_texts(function: str, target: _Value, argument: _Value) -> Outcomes:
    if _FAILS in (target, argument):
        return _FAILURE
    match target, argument:
        case _OneOf(values=these), _OneOf(values=others) if len(these) * len(others) <= _MOST_PAIRS:
            texts = [pair for pair in itertools.product(these, others) if all(isinstance(each, str) for each in pair)]
            if len(texts) == len(these) * len(others):
                return frozenset(_ON_TEXTS[function](str(one), str(other)) for one, other in texts)
    return _ALL
