"""Finds what a DRA device selector looks up and compares, in its syntax tree, without evaluating it.

The validators of claims and classes use the result to report unknown attributes, wrong types and unguarded lookups.
Semantics: k8s.io/dynamic-resource-allocation/cel/compile.go. A missing attribute is a run-time error that aborts the
scheduling attempt, unless `&&` or `||` absorb it: they ignore the error of one side if the other side decides the
result, in either order.
"""

import dataclasses
import enum
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from kubecel.syntax import nodes as syntax
from kubecel.syntax.nodes import Node, bound_names
from neuron.hardware.device_shapes import Version

Path = tuple[str, ...]

_DEVICE: Final = "device"
_FLIPPED: Final = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_UNWRAPPING: Final = frozenset({"orValue", "or", "value"})
_CONSTRUCTORS: Final[Mapping[str, Callable[[str], object]]] = {"semver": Version, "quantity": str}


class DeviceField(enum.StrEnum):
    """The fields of `device`."""

    DRIVER = "driver"
    ATTRIBUTES = "attributes"
    CAPACITY = "capacity"
    MULTIPLE = "allowMultipleAllocations"


@dataclasses.dataclass(frozen=True, slots=True)
class SelectorSubject:
    """A field, attribute or capacity of a device that a selector reads.

    Attributes:
        field: which field of `device`.
        domain: of an attribute or capacity; empty otherwise.
        name: the identifier within the domain; empty otherwise.
    """

    field: DeviceField
    domain: str = ""
    name: str = ""

    @property
    def qualified(self) -> str:
        """`domain/name`, as in ResourceSlices; the name of the field if there is no domain."""
        return f"{self.domain}/{self.name}" if self.name else self.field.value


@dataclasses.dataclass(frozen=True, slots=True)
class AttributeRead:
    """One place that reads an attribute or a capacity.

    Attributes:
        offset: in characters from the start of the source.
        tests: it only tests presence: `"id" in device.attributes["d"]`, `has(…)`, `.?id`.
        guarded: it cannot fail because of a missing attribute.
    """

    subject: SelectorSubject
    offset: int
    tests: bool
    guarded: bool

    @property
    def attribute(self) -> str:
        """Its qualified name."""
        return self.subject.qualified

    @property
    def is_capacity(self) -> bool:
        return self.subject.field is DeviceField.CAPACITY


@dataclasses.dataclass(frozen=True, slots=True)
class SubjectUse:
    """One operation on a subject.

    Attributes:
        subject: the left operand.
        operator: `==`, `<`, `in`, …; the name of a function or method; or `bool` if the value itself is the condition.
        operands: the constants on the other side, several for `in [a, b]`; None if they are not constants. A quantity
            is its text.
        offset: in characters from the start of the source.
    """

    subject: SelectorSubject
    operator: str
    operands: tuple[object, ...] | None
    offset: int

    @property
    def attribute(self) -> str:
        """The qualified name of the subject."""
        return self.subject.qualified


@dataclasses.dataclass(frozen=True, slots=True)
class Analysis:
    """Lookups and uses, in the order of the source."""

    lookups: tuple[AttributeRead, ...]
    uses: tuple[SubjectUse, ...]


def analyse(tree: Node) -> Analysis:
    """Analyse the syntax tree of a selector (`Program.syntax`)."""
    walker = _Walker()
    walker.condition(tree, frozenset(), {})
    return Analysis(
        tuple(sorted(walker.lookups, key=lambda lookup: lookup.offset)),
        tuple(sorted(walker.uses, key=lambda use: use.offset)),
    )


# --- paths ------------------------------------------------------------------------------------------------

Scope = Mapping[str, Path | None]
"""Bound variables -> the path of their value, or None."""


def _path(node: Node, scope: Scope) -> Path | None:
    """The path of a chain of lookups that starts at `device`, with variables of `cel.bind` resolved."""
    match node:
        case syntax.Ident():
            if node.name in scope and not node.rooted:
                return scope[node.name]
            return (node.name,) if node.name == _DEVICE else None
        case (
            syntax.Select(operand=operand, field=key)
            | syntax.Index(operand=operand, key=syntax.Literal(value=str(key)))
        ):
            base = _path(operand, scope)
            return None if base is None else (*base, key)
        case syntax.Call(function=function, target=target) if target is not None and function in _UNWRAPPING:
            return _path(target, scope)
        case _:
            return None


def _subject(path: Path | None) -> SelectorSubject | None:
    match path:
        case (_, "driver" | "allowMultipleAllocations" as field):
            return SelectorSubject(DeviceField(field))
        case (_, "attributes" | "capacity" as field, domain, name):
            return SelectorSubject(DeviceField(field), domain, name)
        case _:
            return None


def _is_optional(node: Node) -> bool:
    """Whether the result of a chain of lookups is an optional."""
    match node:
        case syntax.Select() | syntax.Index():
            return node.optional or _is_optional(node.operand)
        case syntax.Call(function="or", target=target) if target is not None:
            return _is_optional(target)
        case _:
            return False


# --- facts ------------------------------------------------------------------------------------------------

Facts = frozenset[SelectorSubject]
"""Attributes that are present, as far as earlier conditions imply them."""

_NOTHING: Final[Facts] = frozenset()


def _facts(node: Node, outcome: bool, scope: Scope) -> Facts:
    """The facts about the device that follow if `node` evaluates to `outcome`."""
    match node:
        case syntax.Logic():
            parts = [_facts(term, outcome, scope) for term in node.terms]
            all_hold = (node.operator == "&&") is outcome
            return frozenset().union(*parts) if all_hold else frozenset.intersection(*parts)
        case syntax.Unary(operator="!"):
            return _facts(node.operand, not outcome, scope)
        case syntax.Binary(operator="==" | "!="):
            return _facts_of_equality(node, (node.operator == "==") is outcome, scope)
        case syntax.Binary(operator="in", left=syntax.Literal(value=str(name))) if outcome:
            path = _path(node.right, scope)
            return _only(None if path is None else _subject((*path, name)))
        case syntax.Select(test=True) if outcome:
            return _only(_subject(_path(node, scope)))
        case syntax.Call(function="hasValue", target=target) if outcome and target is not None:
            return _only(_subject(_path(target, scope)))
        case syntax.Bind():
            return _facts(node.body, outcome, {**scope, node.variable: _path(node.value, scope)})
        case _:
            return _NOTHING


def _only(subject: SelectorSubject | None) -> Facts:
    return _NOTHING if subject is None else frozenset({subject})


def _facts_of_equality(node: syntax.Binary, holds: bool, scope: Scope) -> Facts:
    for side, other in ((node.left, node.right), (node.right, node.left)):
        if isinstance(other, syntax.Literal) and isinstance(other.value, bool):
            return _facts(side, other.value is holds, scope)
    return _NOTHING


# --- the walk ---------------------------------------------------------------------------------------------


def _constant(node: Node) -> tuple[object, ...]:
    """The constant; nothing for any other node."""
    match node:
        case syntax.Literal():
            return (node.value,)
        case syntax.Unary(operator="-", operand=syntax.Literal(value=int() | float() as value)):
            return (-value,)
        case syntax.Call(function=function, target=None, arguments=(syntax.Literal(value=str(text)), *_)):
            return (_CONSTRUCTORS[function](text),) if function in _CONSTRUCTORS else ()
    return ()


def _operands(nodes: Iterable[Node]) -> tuple[object, ...] | None:
    found = [_constant(node) for node in nodes]
    return tuple(itertools.chain.from_iterable(found)) if all(found) else None


class _Walker:
    """Collects lookups and uses."""

    def __init__(self) -> None:
        self.lookups: list[AttributeRead] = []
        self.uses: list[SubjectUse] = []

    def condition(self, node: Node, facts: Facts, scope: Scope) -> None:
        """Visit an expression that must be a bool."""
        if not isinstance(node, syntax.Select) or not node.test:
            self._use(node, "bool", (), node.offset, scope)
        self.visit(node, facts, scope)

    def visit(self, node: Node, facts: Facts, scope: Scope) -> None:
        match node:
            case syntax.Logic():
                self._logic(node, facts, scope)
            case syntax.Conditional():
                self.condition(node.condition, facts, scope)
                self.visit(node.then, facts | _facts(node.condition, True, scope), scope)
                self.visit(node.otherwise, facts | _facts(node.condition, False, scope), scope)
            case syntax.Unary(operator="!"):
                self.condition(node.operand, facts, scope)
            case syntax.Binary():
                self._binary(node, facts, scope)
            case syntax.Select() | syntax.Index():
                self._lookup(node, facts, scope)
            case syntax.Call():
                self._call(node, facts, scope)
            case syntax.Bind():
                self.visit(node.value, facts, scope)
                self.visit(node.body, facts, {**scope, node.variable: _path(node.value, scope)})
            case syntax.OptionalMap():
                self.visit(node.operand, facts, scope)
                self.visit(node.body, facts, {**scope, node.variable: _path(node.operand, scope)})
            case _:
                names, bodies = bound_names(node)
                inner = {**scope, **dict.fromkeys(names)}
                for child in syntax.children(node):
                    self.visit(child, facts, inner if any(child is body for body in bodies) else scope)

    def _logic(self, node: syntax.Logic, facts: Facts, scope: Scope) -> None:
        decided_otherwise = node.operator == "&&"
        known = [_facts(term, decided_otherwise, scope) for term in node.terms]
        for position, term in enumerate(node.terms):
            others = (*known[:position], *known[position + 1 :])
            self.condition(term, facts.union(*others), scope)

    def _binary(self, node: syntax.Binary, facts: Facts, scope: Scope) -> None:
        if node.operator == "in":
            elements = node.right.elements if isinstance(node.right, syntax.ListLiteral) else None
            operands = None if elements is None else _operands(element.value for element in elements)
            self._use(node.left, "in", operands, node.offset, scope)
            self._use(node.right, "includes", _operands((node.left,)), node.offset, scope)
            if isinstance(node.left, syntax.Literal) and isinstance(node.left.value, str):
                self._test_of_membership(node, node.left.value, scope)
        else:
            self._use(node.left, node.operator, _operands((node.right,)), node.offset, scope)
            flipped = _FLIPPED.get(node.operator, node.operator)
            self._use(node.right, flipped, _operands((node.left,)), node.offset, scope)
        self.visit(node.left, facts, scope)
        self.visit(node.right, facts, scope)

    def _test_of_membership(self, node: syntax.Binary, name: str, scope: Scope) -> None:
        path = _path(node.right, scope)
        subject = None if path is None else _subject((*path, name))
        if subject is not None:
            self.lookups.append(AttributeRead(subject, node.left.offset, tests=True, guarded=True))

    def _lookup(self, node: syntax.Select | syntax.Index, facts: Facts, scope: Scope) -> None:
        subject = _subject(_path(node, scope))
        if subject is None or not subject.name:
            self._children(node, facts, scope)
            return
        tests = _is_optional(node) or (isinstance(node, syntax.Select) and node.test)
        self.lookups.append(AttributeRead(subject, node.offset, tests, tests or subject in facts))

    def _call(self, node: syntax.Call, facts: Facts, scope: Scope) -> None:
        if node.function in _UNWRAPPING and node.target is not None:
            self._unwrap(node, node.target, facts, scope)
            return
        first, *others = (node.target, *node.arguments) if node.target else (*node.arguments, None)
        if first is not None:
            self._use(first, node.function, _operands(other for other in others if other), node.offset, scope)
        self._children(node, facts, scope)

    def _unwrap(self, node: syntax.Call, target: Node, facts: Facts, scope: Scope) -> None:
        """`.?id.value()` fails for a missing attribute, as `.id` does; `.orValue(…)` and `.or(…)` do not."""
        before = len(self.lookups)
        self._children(node, facts, scope)
        subject = _subject(_path(target, scope))
        if node.function == "value" and subject is not None and subject not in facts:
            self.lookups[before:] = [
                dataclasses.replace(lookup, tests=False, guarded=False) if lookup.subject == subject else lookup
                for lookup in self.lookups[before:]
            ]

    def _children(self, node: Node, facts: Facts, scope: Scope) -> None:
        for child in syntax.children(node):
            self.visit(child, facts, scope)

    def _use(self, node: Node, operator: str, operands: tuple[object, ...] | None, offset: int, scope: Scope) -> None:
        subject = _subject(_path(node, scope))
        if subject is not None:
            self.uses.append(SubjectUse(subject, operator, operands, offset))


def drivers(analysis: Analysis) -> Iterator[str]:
    """Every name that `device.driver` is compared with."""
    for use in analysis.uses:
        if use.subject.field is DeviceField.DRIVER and use.operator in {"==", "in"}:
            yield from (each for each in use.operands or () if isinstance(each, str))
