"""Finds policies on pods that the shipped webhook configuration does not send, and the conditions that send their pods.

Of pods, the configuration sends those with claims, those that request an extended resource of Neuron, and converted
ones. A policy is evaluated on what is known about all others: they hold no device and have no claim. If a match
condition is false then, or all validations are true, the policy needs no other pod. What is not known can be anything.
"""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from kubecel.budget import POLICY_LIMITS, Budget
from kubecel.engine import Program
from kubecel.errors import CelError, CelRuntimeError
from kubecel.library.authorization import Authorizer, Question
from policies.judging.conditions import Variables
from policies.judging.rules import ValidatingRule
from policies.judging.subjects import ask_nobody
from policies.schema.constraints import ResourceRule

EVERY_POD: Final = "true"


class _Partly(Mapping[str, object]):
    """An object of which some fields are known. Whatever asks for another one fails: `&&` and `||` absorb it where the
    known ones decide."""

    def __init__(self, known: Mapping[str, object] = MappingProxyType({}), absent: Collection[str] = ()) -> None:
        """`absent`: fields that it does not have."""
        self._known = known
        self._absent = absent

    def __getitem__(self, name: str) -> object:
        if name in self._known:
            return self._known[name]
        raise KeyError(name) if name in self._absent else CelRuntimeError("it is not known")

    def __iter__(self) -> Iterator[str]:
        raise CelRuntimeError("it is not known")

    def __len__(self) -> int:
        raise CelRuntimeError("it is not known")


_POD: Final[Mapping[str, object]] = {
    "object": _Partly({"kind": "Pod", "spec": _Partly(absent=("resourceClaims",))}),
    "oldObject": None,
    "request": _Partly(
        {
            "kind": _Partly({"kind": "Pod", "group": ""}),
            "resource": _Partly({"resource": "pods"}),
            "operation": "CREATE",
        }
    ),
    "namespaceObject": _Partly(),
    "authorizer": Authorizer(ask_nobody, Question()),
    "neuron": _Partly(
        {
            **dict.fromkeys(("devices", "cores", "namedClaims", "namedDevices"), 0),
            "devicesKnown": True,
            "unknown": "",
            "requests": [],
            "classes": [],
            "converted": False,
        }
    ),
    "claim": None,
    "template": None,
}
"""What is known of the creation of a pod that is not sent."""
_LIMITS: Final = dataclasses.replace(POLICY_LIMITS, steps=20_000, call=20_000)
"""A variable that is not known is evaluated again by each expression that reads it."""
_IN_WEBHOOKS: Final = frozenset({"object", "oldObject", "request"})
"""Variables of a webhook's matchConditions."""


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
    budget = Budget(lambda: 0.0, _LIMITS)
    variables: dict[str, object] = {**_POD, "params": _Partly() if rule.params is None else rule.params}
    variables["variables"] = Variables(rule.variables, variables, budget)

    def value(program: Program) -> object:
        try:
            return program.evaluate(variables, budget)
        except CelError:
            return None

    if any(value(each.program) is False for each in rule.conditions):
        return True
    return all(value(each.program) is True for each in rule.checks)
