"""Compares policies with the requests that the shipped ValidatingWebhookConfiguration sends to the webhook.

A policy for other requests is valid but never evaluated. This is not a fault of the file, so it becomes a note.
"""

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Final, TypeAlias

from conversion.objects.kinds import KINDS
from kubecel.budget import POLICY_LIMITS, Budget
from kubecel.compile import Program
from kubecel.errors import CelError, CelRuntimeError
from kubecel.library.authorization import Authorizer, Question
from neuron.findings import few
from policies.judging.conditions import Variables
from policies.judging.matching import ANY, matches_nothing, names_notes
from policies.judging.rules import MutatingRule, ValidatingRule
from policies.judging.subjects import ask_nobody
from policies.schema.base import ResourceRule

_NONE: Final[Set[str]] = frozenset()
_WRITES: Final = frozenset({"CREATE", "UPDATE"})
_DEVICES: Final = "resource.k8s.io"
_CLAIMS: Final = ("resourceclaims", "resourceclaimtemplates", "deviceclasses")
SENT: Final[Mapping[tuple[str, str], Set[str]]] = {
    **{(_DEVICES, each): _WRITES for each in _CLAIMS},
    **{(each.group, each.plural): _WRITES for each in KINDS.values()},
    ("", "pods"): frozenset({"CREATE"}),
}
"""Operations by group and resource, as in `deploy/manifests/validating.yaml`; a test compares them. For claims,
templates, classes and pods, matchConditions there select only objects that name Neuron. Updates that change neither
spec nor labels nor annotations are left out."""
SENT_FOR_CHANGES: Final = (
    ("", "pods"),
    ("leaderworkerset.x-k8s.io", "leaderworkersets"),
    ("resource.k8s.io", "resourceclaims"),
    ("resource.k8s.io", "resourceclaimtemplates"),
)
"""Groups and resources of the MutatingWebhookConfiguration, each with matchConditions for objects that name Neuron."""
_LEFT_OUT: Final = ("finalizers", "ownerReferences")
"""Fields of `metadata` that updates change without being sent."""

OPERATIONS: Final = ("CREATE", "UPDATE", "DELETE", "CONNECT")
"""All operations, in the order in which rules list them."""
RequestKey: TypeAlias = tuple[str, tuple[str, ...], str, str]
"""(group, sorted versions, scope, resource)."""
_OF_PODS: Final = (
    "the shipped ValidatingWebhookConfiguration sends only pods that request Neuron's extended resources, were "
    "converted, or have claims and name Neuron"
)


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


@dataclasses.dataclass(frozen=True, slots=True)
class Unsent:
    """Requests that a policy denies and that the shipped configuration does not send.

    Attributes:
        resource: plural name, with the subresource.
        operation: CREATE, UPDATE, DELETE or CONNECT.
        condition: CEL that is true for the objects; empty: all.
    """

    policy: str
    group: str
    resource: str
    operation: str
    condition: str = ""


def notes(rules: Iterable[ValidatingRule]) -> Iterator[str]:
    """Notes on policies that match requests which the shipped configuration does not send: one for each reason.

    Pods and claims have notes of their own, because the configuration sends only a part of them.
    """
    about_pods: list[str] = []
    about_claims: list[str] = []
    counting: list[str] = []
    missing: dict[str, dict[str, None]] = {}
    unmatched: dict[str, None] = {}
    rules = list(rules)
    needs = {each.policy: each for each in pod_conditions(rules)}
    for rule in rules:
        metadata = _reads_left_out(rule)
        for text in (text for each in rule.match.resource_rules for text in _missing(each, metadata)):
            missing.setdefault(text, {})[rule.name] = None
        unmatched |= dict.fromkeys(names_notes(rule.name, rule.match.resource_rules))
        reads = any(True for _ in rule.read("neuron"))  # Then it is not for other drivers.
        if rule.name not in needs and any(_is_about(each, "", ("pods",)) for each in rule.match.resource_rules):
            (counting if reads else about_pods).append(f"'{rule.name}'")
        if not reads and any(_is_about(each, _DEVICES, _CLAIMS) for each in rule.match.resource_rules):
            about_claims.append(f"'{rule.name}'")
    yield from unmatched
    if missing:
        names = list(dict.fromkeys(f"'{name}'" for found in missing.values() for name in found))
        yield (
            f"{policies_match(names)} {listed(list(missing))}, which the shipped"
            " ValidatingWebhookConfiguration does not send: `neuron-dra policy rules` prints the rules to add."
        )
    yield from _of_conditions(needs.values())
    if counting:
        readers = f"{listed(counting)} {'read' if len(counting) > 1 else 'reads'} 'neuron'"
        yield (
            f"{readers}, and the plain manifests do not send pods whose claims do not name Neuron: install with Helm"
            " and policies, or add them (docs/policies.md, In a cluster)."
        )
    if about_pods:
        yield f"{_OF_PODS}; widen its matchCondition 'claims' where {listed(about_pods)} must match others."
    if about_claims:
        yield (
            "the shipped ValidatingWebhookConfiguration sends only claims, templates and DeviceClasses that name"
            f" Neuron; widen its matchCondition 'neuron' where {listed(about_claims)} must match those of other"
            " drivers."
        )


def changing_notes(rules: Iterable[MutatingRule]) -> Iterator[str]:
    """Notes on policies that change objects which the shipped MutatingWebhookConfiguration does not send."""
    pods: list[str] = []
    others: dict[str, dict[str, None]] = {}
    for rule in rules:
        yield from names_notes(rule.name, rule.match.resource_rules)
        for each in rule.match.resource_rules:
            if _is_about(each, "", ("pods",)) and rule.name not in pods:
                pods.append(rule.name)
            for group, resource in itertools.product(each.api_groups, each.resources):
                if matches_nothing(each, group, resource) or (group, resource) in SENT_FOR_CHANGES:
                    continue
                shown = f"{resource} of {group}" if group else resource
                others.setdefault(shown, {})[f"'{rule.name}'"] = None
    if pods:
        yield (
            "the shipped MutatingWebhookConfiguration sends only pods that request Neuron's extended resources or were"
            f" converted, and {listed([repr(name) for name in pods])} can change no others there: add the pods to the"
            " chart's mutation.extraRules, or leave the policy to the API server (Kubernetes 1.36)."
        )
    if others:
        names = list(dict.fromkeys(name for found in others.values() for name in found))
        yield (
            f"{listed(names)} {'change' if len(names) > 1 else 'changes'} {listed(list(others))}, which the shipped"
            " MutatingWebhookConfiguration does not send: add them to the chart's mutation.extraRules, or leave the"
            " policy to the API server (Kubernetes 1.36)."
        )


def _of_conditions(needs: Iterable[PodCondition]) -> Iterator[str]:
    """Notes on policies that need pods without claims."""
    for denied in (True, False):
        names = [f"'{each.policy}'" for each in needs if each.denies is denied]
        if names:
            yield (
                f"{policies_match(names)} pods without claims, which the shipped"
                " ValidatingWebhookConfiguration does not send"
                + (": such pods are not denied. " if denied else ". ")
                + "`neuron-dra policy rules -o values` prints the validation.podConditions to set."
            )


def needed_rules(rules: Iterable[ValidatingRule]) -> list[dict[str, object]]:
    """The `rules` of a ValidatingWebhookConfiguration for `needed_requests`."""
    return rules_of(needed_requests(rules))


def needed_requests(rules: Iterable[ValidatingRule]) -> dict[RequestKey, set[str]]:
    """The operations, by requests, that policies match and the shipped ValidatingWebhookConfiguration lacks."""
    wanted: dict[RequestKey, set[str]] = {}
    for rule in rules:
        unsent = {"UPDATE"} if _reads_left_out(rule) else set()
        for each in rule.match.resource_rules:
            operations = OPERATIONS if ANY in each.operations else each.operations
            for group in each.api_groups:
                for resource in (name for name in each.resources if not matches_nothing(each, group, name)):
                    missing = set(operations) - (SENT.get((group, resource), _NONE) - unsent)
                    if missing:
                        key = (group, tuple(sorted(each.api_versions)), each.scope, resource)
                        wanted.setdefault(key, set()).update(missing)
    return wanted


def unsent_by_deny(rules: Iterable[ValidatingRule]) -> Iterator[Unsent]:
    """What policies with the action Deny do not see unless the configuration is changed."""
    for rule in (each for each in rules if denies(each)):
        for (group, _, _, resource), operations in sorted(needed_requests([rule]).items()):
            yield from (Unsent(rule.name, group, resource, each) for each in OPERATIONS if each in operations)
        for each in pod_conditions([rule]):
            yield Unsent(rule.name, "", "pods", "CREATE", each.expression)


def rules_of(requests: Mapping[RequestKey, Set[str]]) -> list[dict[str, object]]:
    """Rules for requests, by key with their operations; resources with equal operations are merged."""
    merged: dict[tuple[str, tuple[str, ...], str, tuple[str, ...]], list[str]] = {}
    for (group, versions, scope, resource), operations in sorted(requests.items()):
        listed = tuple(each for each in OPERATIONS if each in operations)
        merged.setdefault((group, versions, scope, listed), []).append(resource)
    return [
        {
            "apiGroups": [group],
            "apiVersions": list(versions),
            "operations": list(operations),
            "resources": resources,
            "scope": scope,
        }
        for (group, versions, scope, operations), resources in merged.items()
    ]


def policies_match(names: Sequence[str]) -> str:
    """Such as `policies 'a', 'b' match`."""
    return f"policies {listed(names)} match" if len(names) > 1 else f"policy {listed(names)} matches"


def listed(items: Sequence[str]) -> str:
    """Policies, or resources, that one note names."""
    return few(items, 8)


def _missing(rule: ResourceRule, metadata: bool) -> Iterator[str]:
    """Kinds that a rule matches and the configuration does not send; rules with wildcards are skipped.

    `metadata`: whether the policy reads fields of metadata whose updates are left out.
    """
    for group in rule.api_groups:
        for resource in rule.resources:
            if ANY in (group, resource.partition("/")[0]) or matches_nothing(rule, group, resource):
                continue
            shown = f"{resource} of {group}" if group else resource
            sent = SENT.get((group, resource), _NONE)
            if not sent:
                yield shown
            elif ANY not in rule.operations:
                yield from (f"{operation} of {shown}" for operation in rule.operations if operation not in sent)
            if metadata and "UPDATE" in sent and {"UPDATE", ANY} & set(rule.operations):
                yield f"UPDATE of only finalizers or ownerReferences of {shown}"


def _is_about(rule: ResourceRule, group: str, resources: Iterable[str]) -> bool:
    return bool({group, ANY} & set(rule.api_groups)) and bool({*resources, ANY} & set(rule.resources))


def _reads_left_out(rule: ValidatingRule) -> bool:
    """Whether a policy reads a field of an object's metadata whose updates are left out."""
    paths = itertools.chain(rule.read("object"), rule.read("oldObject"))
    return any(path[:2] == ("metadata", field) for path in paths for field in _LEFT_OUT)


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


# --- pods that are not sent -----------------------------------------------------------------------------------------
#
# Of pods, the configuration sends those with claims, those that request an extended resource of Neuron, and converted
# ones. A policy is evaluated on what is known about all others: they hold no device and have no claim. If a match
# condition is false then, or all validations are true, the policy needs no other pod. What is not known can be
# anything.


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
    known: dict[str, object] = {**_POD, "params": _Partly() if rule.params is None else rule.params}
    activation = {**known, "variables": Variables(rule.variables, known, budget)}

    def value(program: Program) -> object:
        try:
            return program.evaluate(activation, budget)
        except CelError:
            return None

    if any(value(each.program) is False for each in rule.conditions):
        return True
    return all(value(each.program) is True for each in rule.checks)
