"""Explains the verdicts of policies on one request as text: conditions, variables and messages."""

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from conversion.findings.named_templates import names_in
from kubecel.budget import POLICY_LIMITS, Budget, Clock
from kubecel.errors import CelError
from kubecel.values import kind_of
from neuron.api.fields import mapping
from neuron.findings import short
from policies.judging import matching
from policies.judging.conditions import CompiledCondition, Variables, all_hold
from policies.judging.evaluate import evaluate
from policies.judging.matching import name_of
from policies.judging.mutations import Mutating, MutationOutcome
from policies.judging.rules import (
    AnyPodRule,
    HintRule,
    MutatingRule,
    PodRule,
    PolicySet,
    TemplateRule,
    ValidatingRule,
)
from policies.judging.subjects import RequestSubject
from policies.judging.verdicts import PolicyOutcome, Verdict
from policies.patching.json_patch import difference
from policies.schema.base import in_force

_ELSEWHERE: Final = "its selectors, or those of its bindings, select something else"
OUTCOME_WORDS: Final = {
    PolicyOutcome.ALLOW: "allows it",
    PolicyOutcome.DENY: "denies it",
    PolicyOutcome.WARN: "warns of it",
    PolicyOutcome.AUDIT: "notes it in the audit log",
    PolicyOutcome.EXCEPT: "is violated, and an exception admits it",
}
CHANGE_WORDS: Final = {
    MutationOutcome.NO_MATCH: "does not match: a condition is false",
    MutationOutcome.UNCHANGED: "changes nothing",
    MutationOutcome.CHANGED: "changes it",
    MutationOutcome.FAILED: "fails",
}


def explain(policies: PolicySet, subject: RequestSubject, now: dt.datetime, clock: Clock) -> Iterator[str]:
    """Lines about one request.

    Args:
        policies: all policies.
        now: the time of day, which decides whether exceptions have expired.
        clock: bounds evaluation.
    """
    if policies.mutating and subject.operation != "DELETE":
        yield from _mutating(policies.mutating, subject, clock)
    for rule in policies.validating:
        yield from _validating(rule, subject, now, clock)
    if subject.kind == "Pod" and subject.group == "":
        yield from _conversion(policies.conversions, subject, clock)
        yield from _hinting(policies.hints, subject, clock)
        yield from _naming(policies.templates, subject, clock)


def _mutating(rules: Sequence[MutatingRule], subject: RequestSubject, clock: Clock) -> Iterator[str]:
    """Lines for each policy: the operations on the object, which the policies after it see."""
    mutating = Mutating(rules, subject, clock)
    mutating.first()
    seen = {each.rule.name for each in mutating.results}
    yield from (_of_other(rule, subject) for rule in rules if rule.name not in seen)
    for each in mutating.results:
        name = each.rule.name
        if each.params is not None:
            name += f" with {each.params.get('kind')} '{name_of(each.params)}'"
        yield f"{name}: {CHANGE_WORDS[each.outcome]}{'' if not each.denies else ', and the object is denied'}"
        yield from (f"    {failure}" for failure in each.failures)
        for operation in difference(each.before, each.after):
            value = f": {short(json.dumps(operation['value']), 200)}" if "value" in operation else ""
            yield f"    {operation['op']} {operation['path']}{value}"


def _of_other(rule: MutatingRule, subject: RequestSubject) -> str:
    if matching.rules_match(rule.match, subject) is None:
        return f"{rule.name}: is not about {subject.operation} of {subject.resource}"
    return f"{rule.name}: does not match: {_ELSEWHERE}"


def _conversion(rules: Sequence[PodRule], subject: RequestSubject, clock: Clock) -> Iterator[str]:
    """A line for each policy: the settings that it decides, or why it decides none."""
    decided: set[str] = set()
    for rule in rules:
        further = rule.further(decided)
        if not further:
            yield f"{rule.name}: sets nothing: earlier policies do"
            continue
        why, refuses = _unmet_by_pod(rule, subject, clock)
        if refuses:
            yield _refuses(rule, why)
            return
        if why:
            yield f"{rule.name}: sets nothing: {why}"
        else:
            decided.update(further)
            yield f"{rule.name}: sets {', '.join(further)}"


def _hinting(rules: Sequence[HintRule], subject: RequestSubject, clock: Clock) -> Iterator[str]:
    """A line for each policy. The first one that matches gives its hints."""
    chosen = False
    for rule in rules:
        why, refuses = _unmet_by_pod(rule, subject, clock)
        if refuses and not chosen:
            chosen = True
            yield _refuses(rule, why)
        elif why:
            yield f"{rule.name}: gives no scheduling hints: {why}"
        elif chosen:
            yield f"{rule.name}: gives no scheduling hints: an earlier policy does"
        else:
            chosen = True
            yield f"{rule.name}: gives scheduling hints"
            yield from (f"    {each}" for each in _hints(rule))


def _naming(rules: Sequence[TemplateRule], subject: RequestSubject, clock: Clock) -> Iterator[str]:
    """A line for each ClaimTemplate."""
    wanted = names_in(mapping(subject.object))
    for rule in rules:
        name = f"ResourceClaimTemplate {rule.template.name}, version {rule.template.version}"
        if rule.template.name not in wanted:
            yield f"{rule.name}: makes no template: the pod does not name {rule.template.name}"
            continue
        why, refuses = _unmet_by_pod(rule, subject, clock)
        if refuses:
            yield _refuses(rule, why)
        elif why:
            yield f"{rule.name}: makes no template: {why}"
        else:
            yield f"{rule.name}: makes {name}, if the namespace has none of this name"


def _refuses(rule: AnyPodRule, why: str) -> str:
    return f"{rule.name}: refuses the pod, since its failurePolicy is Fail: {why}"


def _hints(rule: HintRule) -> Iterator[str]:
    """One line for each hint that a policy sets."""
    spec, hints = rule.spec, rule.hints
    if spec.tolerations is not None:
        yield f"tolerations: {_entries(hints.toleration, 'that of the Neuron taint', hints.tolerations)}"
    if spec.node_affinity is not None:
        yield f"required node affinity: {_entries(hints.affinity, 'the instance types', hints.required)}"
        if hints.preferred:
            yield f"preferred node affinity: {json.dumps(hints.preferred)}"
    if spec.scheduler_name is not None:
        yield f"scheduler name: {hints.scheduler_name if hints.scheduler else 'as the pod sets it'}"
    if spec.priority_class_name is not None:
        whose = "instead of the pod's own" if hints.replaces_priority_class else "where the pod has none"
        yield f"priority class, {whose}: {hints.priority_class}"
    if spec.labels is not None:
        whose = "before the pod's own" if hints.replaces_labels else "where the pod has none"
        yield f"labels, {whose}: {json.dumps(dict(hints.labels))}"
    if spec.leader_worker_set is not None:
        yield f"exclusive topology of LeaderWorkerSets: {spec.leader_worker_set.exclusive_topology.lower()}"


def _entries(built_in: bool | None, words: str, entries: Sequence[Mapping[str, object]]) -> str:
    parts = [words] if built_in else []
    parts += [json.dumps(entry) for entry in entries]
    return ", ".join(parts) or "none"


def _validating(rule: ValidatingRule, subject: RequestSubject, now: dt.datetime, clock: Clock) -> Iterator[str]:
    verdicts = evaluate((rule,), subject, now, clock)
    if not verdicts:
        yield f"{rule.name}: is not about {subject.operation} of {subject.resource}"
        return
    for verdict in verdicts:
        yield from _verdict(verdict, subject, now, clock)


def _verdict(verdict: Verdict, subject: RequestSubject, now: dt.datetime, clock: Clock) -> Iterator[str]:
    rule, budget = verdict.rule, Budget(clock, POLICY_LIMITS)
    name = rule.name
    if rule.params is None and verdict.params is not None:
        name += f" with {verdict.params.get('kind')} '{name_of(verdict.params)}'"
    known = subject.activation(verdict.params)
    variables = Variables(rule.variables, known, budget)
    activation = {**known, "variables": variables}
    if verdict.outcome is PolicyOutcome.NO_MATCH:
        if not in_force(rule.schedule, now):
            yield f"{name}: does not match: its schedule is not in force at {now.isoformat(timespec='minutes')}"
            return
        unmet, _ = _unmet(rule.conditions, activation, clock)
        yield f"{name}: does not match: {unmet or _ELSEWHERE}"
        return
    yield f"{name}: {OUTCOME_WORDS[verdict.outcome]}"
    yield from (f"    {violation.message}" for violation in verdict.violations)
    if verdict.exemption is not None:
        yield f"    exception '{verdict.exemption.name}' of {verdict.exemption.owner} until {verdict.exemption.expires}"
    if verdict.expired is not None:
        yield f"    exception '{verdict.expired.name}' of {verdict.expired.owner} ended {verdict.expired.expires}"
    for each in rule.variables:
        yield f"    variables.{each} = {_value(variables, each)}"


def _unmet(conditions: tuple[CompiledCondition, ...], activation: dict[str, object], clock: Clock) -> tuple[str, bool]:
    """The first condition that is false, or else the first that fails, and whether it fails; empty if all are true."""
    failure = ""
    for condition in conditions:
        holds, failures = all_hold((condition,), activation, Budget(clock, POLICY_LIMITS))
        if holds is False:
            return f"condition '{condition.name}' is false: {condition.program.source.strip()}", False
        failure = failure or (str(failures[0]) if failures else "")
    return failure, bool(failure)


def _unmet_by_pod(rule: AnyPodRule, subject: RequestSubject, clock: Clock) -> tuple[str, bool]:
    """Why a policy does not match a pod, empty if it does; and whether it therefore refuses the pod."""
    if not matching.pod_matches(rule.spec.match, subject):
        return "its namespaces or selectors select something else", False
    why, fails = _unmet(rule.conditions, {**subject.activation({}), "variables": {}}, clock)
    return why, fails and rule.fails_closed


def _value(variables: Variables, name: str) -> str:
    try:
        value = variables[name]
    except CelError as error:
        # The line names the variable already.
        return f"error: {error.__cause__ or error}"
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = f"a {kind_of(value)}"
    return short(text, 200)
