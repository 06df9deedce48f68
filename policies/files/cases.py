"""Runs the cases that are embedded in policy files."""

import dataclasses
import datetime as dt
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kubecel.budget import Clock
from neuron import names, scheduling
from neuron.claim_reader import read_claim, read_class
from neuron.claim_specs import ClaimSpec
from policies.judging import holdings, matching
from policies.judging.evaluate import UndecidedError, Verdict, evaluate, first_match
from policies.judging.knowledge import DeviceKnowledge
from policies.judging.rules import HintRule, PodRule, ValidatingRule
from policies.judging.subjects import Subject, of_object
from policies.schema import kinds as schema
from policies.schema.documents import Path, Problem
from policies.schema.hints import Gets

_GENERATED: Final = (names.POD_CLAIM, names.POD_CLAIM_FALLBACK)
_WORDS: Final = {"allow": "Allow", "deny": "Deny", "warn": "Warn", "audit": "Audit", "except": "Except"}


@dataclasses.dataclass(frozen=True, slots=True)
class CaseResult:
    """What came of one case.

    Attributes:
        policy: name of its policy.
        case: its name.
        failure: what is wrong, with file and line; None where it passed.
        seconds: time that it took.
    """

    policy: str
    case: str
    failure: Problem | None
    seconds: float


def run_cases(rule: ValidatingRule | PodRule | HintRule, clock: Clock) -> Iterator[CaseResult]:
    """Run every case of one policy."""
    tests: tuple[schema.Case | schema.PodCase, ...] = (
        rule.tests if isinstance(rule, ValidatingRule) else rule.spec.tests
    )
    for at, case in enumerate(tests):
        started = clock()
        if isinstance(rule, ValidatingRule):
            wrong = _validating(rule, case, clock) if isinstance(case, schema.Case) else ""
        else:
            wrong = _pod(rule, case, clock) if isinstance(case, schema.PodCase) else ""
            if isinstance(rule, HintRule) and isinstance(case, schema.HintCase) and not wrong and case.gets is not None:
                wrong = _gets(rule, case.object, case.gets)
        path: Path = ("spec", "tests", at, "expect")
        message = f"test '{case.name}' of {rule.name}: {wrong}"
        failure = rule.document.problem(path, message) if wrong else None
        yield CaseResult(rule.name, case.name, failure, clock() - started)


def subject_of(case: schema.Case) -> Subject:
    """The request that a case describes."""
    deleted = case.operation == "DELETE"
    data: dict[str, Any] = (case.old_object if deleted else case.object) or {}
    return of_object(
        data,
        operation=case.operation,
        resource=case.resource,
        old_object=case.old_object,
        namespace_object=case.namespace_object,
        user_info=case.user_info,
        quotas=case.quotas,
        knowledge=_knowledge(case, data),
    )


def _knowledge(case: schema.Case, data: Mapping[str, Any]) -> DeviceKnowledge:
    """What a server would know of the objects of a case, and of its pod's record."""
    specs: dict[str, dict[str, ClaimSpec]] = {"ResourceClaim": {}, "ResourceClaimTemplate": {}}
    classes: dict[str, bool | None] = {}
    lncs: dict[str, tuple[int, ...]] = {}
    for each in case.objects:
        kind, version = str(each.get("kind", "")), str(each.get("apiVersion", ""))
        name = str(_mapping(each.get("metadata")).get("name", ""))
        if kind in specs:
            specs[kind][name] = read_claim(kind, version, each.get("spec"))[0]
        elif kind == "DeviceClass":
            spec, _ = read_class(version, each.get("spec"))
            classes[name] = any(names.DRIVER in selector.expression for selector in spec.selectors)
            lncs[name] = holdings.lncs_of(spec.configs)
    record = holdings.read_record(data) if case.converted else None
    claims = _mappings(_mapping(data.get("spec")).get("resourceClaims"))
    generated = [str(each.get("name")) for each in claims if each.get("name") in _GENERATED]
    return DeviceKnowledge(
        classes=classes or None,
        class_lncs=lncs,
        templates=specs["ResourceClaimTemplate"],
        claims=specs["ResourceClaim"],
        record=record,
        recorded_claim=generated[0] if generated else "",
    )


def _validating(rule: ValidatingRule, case: schema.Case, clock: Clock) -> str:
    """What is wrong, or nothing."""
    verdicts = evaluate((rule,), subject_of(case), case.at.astimezone(dt.UTC), clock)
    verdict = verdicts[0] if verdicts else None
    came = _WORDS.get(verdict.outcome.value, "NoMatch") if verdict else "NoMatch"
    said = [violation.message for violation in verdict.violations] if verdict else []
    if came != case.expect:
        return f"expected {case.expect}, came {came}.{_details(verdict)}"
    if case.message and not any(case.message in message for message in said):
        return f"no message contains {case.message!r}; the messages are {said}."
    return ""


def _details(verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    said = [violation.message for violation in verdict.violations] + list(verdict.errors)
    return f" {'; '.join(dict.fromkeys(said))}" if said else ""


def _pod(rule: PodRule | HintRule, case: schema.PodCase, clock: Clock) -> str:
    subject = of_object(case.object, namespace_object=case.namespace_object)
    found: PodRule | HintRule | None
    try:
        if isinstance(rule, HintRule):
            found, errors = first_match((rule,), subject, clock)
        else:
            found, errors = first_match((rule,), subject, clock)
    except UndecidedError as error:
        return f"expected {case.expect}, came a refusal (failurePolicy Fail): {error}."
    came = "NoMatch" if found is None else "Match"
    if came == case.expect:
        return ""
    return f"expected {case.expect}, came {came}.{f' {errors[0]}' if errors else ''}"


def _gets(rule: HintRule, pod: Mapping[str, Any], wanted: Gets) -> str:
    """What a pod gets, against what it has to get; the built-in hints are as the policy says, and else on."""
    spec, hints = _mapping(pod.get("spec")), rule.hints
    affinity = _mapping(_mapping(spec.get("affinity")).get("nodeAffinity"))
    required = _mapping(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
    term = next(iter(_mappings(required.get("nodeSelectorTerms"))), {})
    own = str(spec.get("schedulerName") or names.DEFAULT_SCHEDULER)
    came: dict[str, tuple[object, object]] = {
        "tolerations": (
            None if wanted.tolerations is None else list(wanted.tolerations),
            scheduling.missing_tolerations(_mappings(spec.get("tolerations")), hints, neuron=True),
        ),
        "schedulerName": (
            wanted.scheduler_name,
            scheduling.scheduler_for(own, hints, legacy=True) or own,
        ),
        "labels": (wanted.labels, dict(scheduling.missing_labels(matching.labels_of(pod), hints))),
        "required": (
            None if wanted.required is None else list(wanted.required),
            scheduling.missing_requirements(term, hints.required),
        ),
    }
    for field, (expected, actual) in came.items():
        if expected is not None and expected != actual:
            return f"expected {field} {json.dumps(expected)}, came {json.dumps(actual)}."
    return ""


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []
