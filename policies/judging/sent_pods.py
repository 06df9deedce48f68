"""Finds policies on pods that the shipped webhook configuration does not send, and the conditions that send their pods.

Of pods, the configuration sends those with claims, those that request an extended resource of Neuron, and converted
ones. A policy is evaluated on what is known about all others: they hold no device and have no claim. If a match
condition is false then, or all validations are true, the policy needs no other pod. What is not known can be anything.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from kubecel.engine import Program
from kubecel.syntax import nodes as syntax
from kubecel.syntax.nodes import Macro, Node
from kubecel.syntax.references import path_of
from policies.judging.rules import ValidatingRule
from policies.schema.constraints import ResourceRule

EVERY_POD: Final = "true"

_ANY: Final = object()
_ABSENT: Final = object()
"""A field that such a pod does not have: reading it fails."""
_KNOWN: Final[Mapping[tuple[str, ...], object]] = {
    ("neuron", "devices"): 0,
    ("neuron", "cores"): 0,
    ("neuron", "devicesKnown"): True,
    ("neuron", "unknown"): "",
    ("neuron", "requests"): [],
    ("neuron", "classes"): [],
    ("neuron", "converted"): False,
    ("neuron", "namedClaims"): 0,
    ("neuron", "namedDevices"): 0,
    ("claim",): None,
    ("template",): None,
    ("object", "kind"): "Pod",
    ("object", "spec", "resourceClaims"): _ABSENT,
    ("request", "kind", "kind"): "Pod",
    ("request", "kind", "group"): "",
    ("request", "resource", "resource"): "pods",
    ("request", "operation"): "CREATE",
}
_IN_WEBHOOKS: Final = frozenset({"object", "oldObject", "request"})
"""Variables of a webhook's matchConditions."""
_MOST_STEPS: Final = 20_000
_COMPARED: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}


@dataclasses.dataclass(frozen=True, slots=True)
class PodCondition:
    """A policy that needs pods that are not sent.

    Attributes:
        expression: CEL for a webhook's matchConditions that is true for the pods that the policy needs.
        denies: whether it denies, and not only warns or audits.
    """

    policy: str
    expression: str
    denies: bool


def pod_conditions(rules: Iterable[ValidatingRule]) -> Iterator[PodCondition]:
    """One for every policy that needs pods that are not sent."""
    for rule in rules:
        listed = rule.match.resource_rules
        if (not listed or any(map(_is_about_new_pods, listed))) and not _needs_no_other(rule):
            yield PodCondition(rule.name, _expression(rule), denies(rule))


def denies(rule: ValidatingRule) -> bool:
    """Whether a violation of the policy denies the object."""
    return any("Deny" in binding.actions for binding in rule.bindings)


def plain(expression: str) -> str:
    """The expression with one space instead of each run of white space, for comparisons."""
    return " ".join(expression.split())


def _is_about_new_pods(rule: ResourceRule) -> bool:
    return (
        bool({"", "*"} & set(rule.api_groups))
        and bool({"pods", "*", "*/*"} & set(rule.resources))
        and bool({"CREATE", "*"} & set(rule.operations))
    )


def _expression(rule: ValidatingRule) -> str:
    """The match conditions that the API server can evaluate. They are true for all pods that the policy matches."""
    portable = [each.program for each in rule.conditions if _is_portable(each.program)]
    texts = [plain(program.source) for program in portable]
    return " && ".join(f"({text})" for text in texts) if len(texts) > 1 else "".join(texts) or EVERY_POD


def _is_portable(program: Program) -> bool:
    return bool(program.references) and all(path[0] in _IN_WEBHOOKS for path in program.references)


def _needs_no_other(rule: ValidatingRule) -> bool:
    evaluation = _Evaluation(rule.variables)
    if any(evaluation.value(each.program.syntax) is False for each in rule.conditions):
        return True
    return all(evaluation.value(each.program.syntax) is True for each in rule.checks)


class _Evaluation:
    """Evaluates expressions on what is known; `_ANY` for anything else."""

    def __init__(self, variables: Mapping[str, Program]) -> None:
        self._variables = variables
        self._computed: dict[str, object] = {}
        self._steps = _MOST_STEPS

    def value(self, node: Node) -> object:
        self._steps -= 1
        if self._steps < 0:
            return _ANY
        match node:
            case syntax.Literal():
                return node.value
            case syntax.Select() | syntax.Index() | syntax.Ident():
                return self._read(node)
            case syntax.Logic():
                return self._logic(node)
            case syntax.Unary(operator="!"):
                operand = self.value(node.operand)
                return not operand if isinstance(operand, bool) else _ANY
            case syntax.Binary():
                return self._binary(node)
            case syntax.Conditional():
                condition = self.value(node.condition)
                if isinstance(condition, bool):
                    return self.value(node.then if condition else node.otherwise)
                return _ANY
            case syntax.Call():
                return self._call(node)
            case syntax.ListLiteral(elements=()):
                return []
            case syntax.Comprehension():
                return self._empty(node)
            case _:
                return _ANY

    def _read(self, node: syntax.Select | syntax.Index | syntax.Ident) -> object:
        path = path_of(node)
        if path is None:
            return _ANY
        tests = isinstance(node, syntax.Select) and node.test
        if path[0] == "variables" and len(path) == 2 and not tests:
            return self._variable(path[1])
        found = _KNOWN.get(path, _ANY)
        if tests:
            return False if found is _ABSENT else _ANY
        if found is _ABSENT:
            # An optional without a value, if the access is optional; else a failure.
            return _ABSENT if isinstance(node, syntax.Select | syntax.Index) and node.optional else _ANY
        return found

    def _variable(self, name: str) -> object:
        if name not in self._computed:
            self._computed[name] = _ANY  # If it reads itself.
            program = self._variables.get(name)
            self._computed[name] = _ANY if program is None else self.value(program.syntax)
        return self._computed[name]

    def _logic(self, node: syntax.Logic) -> object:
        terms = [self.value(each) for each in node.terms]
        decisive = node.operator == "||"
        if any(each is decisive for each in terms):
            return decisive
        return not decisive if all(each is (not decisive) for each in terms) else _ANY

    def _binary(self, node: syntax.Binary) -> object:
        left, right = self.value(node.left), self.value(node.right)
        if node.operator == "in":
            return False if right == [] else _ANY
        compare = _COMPARED.get(node.operator)
        if compare is None or left is _ANY or right is _ANY or type(left) is not type(right):
            return _ANY
        return compare(left, right) if isinstance(left, bool | int | str) else _ANY

    def _call(self, node: syntax.Call) -> object:
        target = None if node.target is None else self.value(node.target)
        arguments = [self.value(each) for each in node.arguments]
        match node.function:
            case "orValue" if target is _ABSENT:
                return arguments[0]
            case "hasValue" if target is _ABSENT:
                return False
            case "size":
                held = arguments[0] if node.target is None else target
                return len(held) if isinstance(held, list) else _ANY
        return _ANY

    def _empty(self, node: syntax.Comprehension) -> object:
        """The value of a macro over an empty list."""
        if self.value(node.operand) != []:
            return _ANY
        match node.macro:
            case Macro.ALL:
                return True
            case Macro.EXISTS | Macro.EXISTS_ONE:
                return False
            case Macro.MAP | Macro.FILTER:
                return []
        return _ANY
