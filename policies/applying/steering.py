"""Finds the policies that match a pod, and combines their settings for conversion."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from msgspec import structs

from conversion.asks.steering import NO_STEERING, Mode, Steering
from conversion.claims.scheduling import missing_labels
from conversion.findings.named_templates import names_in
from conversion.objects import pods
from conversion.objects.queues import KUEUE_LABEL
from kubecel.budget import Clock
from neuron import names
from neuron.api.fields import mapping
from neuron.findings import Finding
from policies.judging import matching
from policies.judging.conditions import Failure
from policies.judging.evaluate import REVIEW_LIMIT, Matched, TimeLimit, UndecidedError, matching_rules
from policies.judging.rules import PodRule, PolicySet
from policies.judging.subjects import RequestSubject
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
