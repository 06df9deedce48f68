"""How policies steer the conversion of one object, and change the object. Pure; for the server and for commands.

The policies that match a pod are found, and their settings combined. Mutating policies and conversion make of an object
together, in these steps:

1. The policies, by name, on the object as it was sent.
2. Conversion of the object that they made.
3. The policies with `reinvocationPolicy: IfNeeded`, on the converted object, if a policy or conversion changed it.
4. Conversion again, if step 3 changed something.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from msgspec import structs

from conversion.asks.steering import NO_STEERING, Mode, Steering
from conversion.claims.scheduling import missing_labels
from conversion.findings.named_templates import names_in
from conversion.objects import pods
from conversion.objects.queues import KUEUE_LABEL
from conversion.patches.decision import MOST_BYTES, Decision, Operation, Outcome, denied, size_of
from kubecel.budget import Clock
from neuron import names
from neuron.api.fields import mapping
from neuron.findings import Finding
from policies.judging import matching
from policies.judging.conditions import Failure
from policies.judging.evaluate import REVIEW_LIMIT, Matched, TimeLimit, UndecidedError, matching_rules
from policies.judging.mutations import Mutated, Mutating
from policies.judging.rules import PodRule, PolicySet
from policies.judging.subjects import RequestSubject
from policies.patching.json_patch import difference, patched, same
from policies.schema.kinds import ConversionPolicySpec

_DEFAULTS: Final = ConversionPolicySpec(order=0)


class SteeringRefusedError(Exception):
    """A policy with failurePolicy Fail could not be evaluated on a pod."""

    def __init__(self, error: UndecidedError) -> None:
        super().__init__(str(error))
        locked = isinstance(error.rule, PodRule) and error.rule.spec.locked
        why = "is locked" if locked else "has failurePolicy Fail"
        self.finding = Finding(
            "NEU803",
            "",
            f"policy '{error.rule.name}' {why}, and it is not known whether it matches this pod: {error}.",
            "Change the pod so that the condition can be evaluated, or ask the cluster's admins to change the condition"
            " so that it can be evaluated for every pod, or to set failurePolicy: Ignore.",
        )


def find_steering(
    policies: PolicySet,
    subject: RequestSubject,
    clock: Clock,
    time_limit: TimeLimit = REVIEW_LIMIT,
) -> tuple[Steering, tuple[Failure, ...]]:
    """The settings of the policies that match one pod.

    Args:
        policies: all policies.
        subject: the pod's creation.
        clock: monotonic, in seconds; bounds evaluation.
        time_limit: for all policies together.

    Returns:
        The settings of the ConversionPolicies and of the first SchedulingHintPolicy that match, the templates of the
        ClaimTemplates that match and that the pod names, and the failures of policies that do not match because they
        fail.

    Raises:
        SteeringRefusedError: a policy with failurePolicy Fail cannot be evaluated.
        TakesLongError: the time limit is over, and it raises.
    """
    deadline = clock() + time_limit.seconds
    errors: list[Failure] = []

    def matched(rules: Iterable[Matched]) -> Iterator[Matched]:
        left = TimeLimit(max(0.0, deadline - clock()), time_limit.raises)
        return matching_rules(rules, subject, clock, errors, left)

    try:
        # Each setting is that of the first policy that matches and has it. Policies without a further one are skipped.
        deciding: dict[str, PodRule] = {}
        for rule in matched(rule for rule in policies.conversions if not rule.settings <= deciding.keys()):
            deciding |= dict.fromkeys(rule.further(deciding), rule)
        steering = _steering_of(deciding, subject) if deciding else NO_STEERING
        hinting = next(matched(policies.hints), None)
        if policies.templates:
            # No condition of a policy whose template the pod does not name is evaluated.
            wanted = names_in(mapping(subject.object))
            named = tuple(rule.template for rule in matched(r for r in policies.templates if r.template.name in wanted))
            steering = structs.replace(steering, named=named) if named else steering
    except UndecidedError as error:
        raise SteeringRefusedError(error) from error
    if hinting is not None:
        labels = missing_labels(matching.labels_of(subject.object), hinting.hints)
        steering = structs.replace(steering, hints=hinting.hints, labels=labels)
    return steering, tuple(errors)


def finder(policies: PolicySet) -> Callable[[bytes], object] | None:
    """Finds the annotation, or the name of a template of a ClaimTemplate policy, in JSON; None: no such policies."""
    if not policies.templates:
        return None
    words = (names.ANNOTATION_TEMPLATE, *(rule.template.name for rule in policies.templates))
    find = re.compile(b"|".join(b'[="]%b"' % re.escape(each).encode() for each in words)).search
    return lambda raw: find(raw) or pods.has_escapes(raw)


def _steering_of(deciding: Mapping[str, PodRule], subject: RequestSubject) -> Steering:
    """The settings for one pod. `deciding`: the policy of each setting."""

    def spec(setting: str) -> ConversionPolicySpec:
        return deciding[setting].spec if setting in deciding else _DEFAULTS

    first = spec("mode")
    queued = first.queued if KUEUE_LABEL in matching.labels_of(subject.object) else None
    mode = first.mode if queued is None else queued.mode
    efa, lnc = spec("efa").efa, spec("logicalNeuronCore")
    return Steering(
        policies=tuple((setting, rule.name) for setting, rule in deciding.items()),
        mode=Mode(mode) if mode else None,
        locked=first.locked,
        lnc_locked=lnc.locked,
        families=spec("families").families,
        device_class=spec("deviceClass").device_class,
        lnc=lnc.logical_neuron_core,
        unconnected=spec("unconnected").unconnected == "Allow",
        rounds_cores=bool(spec("roundsCores").rounds_cores),
        templates=deciding["templates"].templates if "templates" in deciding else (),
        binds_claims=first.binds_claims,
        enriches_claims=spec("enrichesClaims").enriches_claims,
        queued=queued is not None,
        efa=None if efa is None else efa.device_class,
    )


_AUDIT: Final = "changed-by"
_FIX: Final = (
    "Change the object so that the policy can be applied, or ask the cluster's admins to mend the policy, or to set"
    " failurePolicy: Ignore."
)


@dataclasses.dataclass(frozen=True, slots=True)
class ApplyPolicies:
    """The policies are to be applied: the answer is what `work` returns."""

    work: Callable[[TimeLimit], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Convert:
    """The object is to be converted: the answer is the decision. `changed`: whether policies have changed it."""

    data: Any
    changed: bool


Steps: TypeAlias = Generator[ApplyPolicies | Convert, Any, Decision]
"""The steps of one object; each gets its answer, and the last returns the decision about the object as it was sent."""


def steps(mutating: Mutating) -> Steps:
    """The steps for one request."""
    sent = mutating.subject.object
    data = yield ApplyPolicies(mutating.first)
    refused = _refusal(mutating.results)
    if refused is not None:
        return refused
    patch = difference(sent, data)
    decision: Decision = yield Convert(data, bool(patch))
    if decision.errors:
        return decision
    if mutating.asks_again:
        converted = patched(data, decision.patch)
        again = yield ApplyPolicies(functools.partial(mutating.again, converted, changed=bool(decision.patch)))
        refused = _refusal(mutating.results)
        if refused is not None:
            return refused
        more = difference(converted, again)
        if more:
            decision = _joined(decision, more, (yield Convert(again, changed=True)))
    return _changed(decision, patch, mutating.results)


def moved(part: Any, sent: Any, patch: Sequence[Operation]) -> tuple[Operation, ...]:
    """The patch of a sent object, for the part of a manifest from which the object was made.

    What the maker added to the object, such as owners, is added to the part only where the patch changes it.
    """
    return difference(part, _carried(part, sent, patched(sent, patch)))


def _carried(part: Any, sent: Any, wanted: Any) -> Any:
    if isinstance(sent, dict) and isinstance(wanted, dict) and isinstance(part, dict):
        made = {key: value for key, value in part.items() if key in wanted or key not in sent}
        for key, value in wanted.items():
            if key not in sent or not same(sent[key], value):
                made[key] = _carried(part.get(key, {}), sent.get(key), value)
        return made
    return wanted


def _refusal(results: Iterable[Mutated]) -> Decision | None:
    """The denial by policies that fail and have failurePolicy Fail; None if there is none."""
    findings = [
        Finding("NEU806", "", f"policy '{each.rule.name}' cannot change the object: {failure}.", _FIX)
        for each in results
        if each.denies
        for failure in each.failures
    ]
    return denied("policy", *findings) if findings else None


def _joined(first: Decision, between: tuple[Operation, ...], second: Decision) -> Decision:
    """Two decisions of conversion, with the operations of policies between them."""
    if second.errors:
        return second
    warnings = tuple(dict.fromkeys((*first.warnings, *second.warnings)))
    templates = tuple({each.name: each for each in (*first.templates, *second.templates)}.values())
    patch = (*first.patch, *between, *second.patch)
    return dataclasses.replace(first, patch=patch, templates=templates, warnings=warnings, patch_size=0)


def _changed(decision: Decision, patch: tuple[Operation, ...], results: Iterable[Mutated]) -> Decision:
    """The decision with the operations of policies before its own, and their names for the audit log."""
    names = dict.fromkeys(each.rule.name for each in results if each.after is not each.before)
    if decision.errors or not names:
        return decision
    whole = (*patch, *decision.patch)
    size = size_of(whole)
    if size > MOST_BYTES:
        message = f"policies {', '.join(names)} change too much: with conversion, the patch has {size} bytes"
        fix = f"The API server takes {MOST_BYTES} bytes. Ask the cluster's admins to change less, or in several fields."
        return denied("policy", Finding("NEU806", "", f"{message}.", fix))
    unchanged = decision.outcome is Outcome.UNCHANGED
    return dataclasses.replace(
        decision,
        outcome=Outcome.MUTATED if unchanged else decision.outcome,
        reason="policy" if unchanged else decision.reason,
        patch=whole,
        patch_size=0,
        audit={**decision.audit, _AUDIT: ",".join(names)[:1024]},
    )
