"""Runs the cases that are embedded in policy files."""

import dataclasses
import datetime as dt
from collections.abc import Iterator
from typing import Any, Final

from policies import schema
from policies.documents import Path, Problem
from policies.engine import Clock
from policies.evaluate import Verdict, evaluate, first_match
from policies.programs import PodRule, ValidatingRule
from policies.subjects import Subject, of_object

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


def run_cases(rule: ValidatingRule | PodRule, clock: Clock) -> Iterator[CaseResult]:
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


def _pod(rule: PodRule, case: schema.PodCase, clock: Clock) -> str:
    subject = of_object(case.object, namespace_object=case.namespace_object)
    found, errors = first_match((rule,), subject, clock)
    came = "NoMatch" if found is None else "Match"
    if came == case.expect:
        return ""
    return f"expected {case.expect}, came {came}.{f' {errors[0]}' if errors else ''}"
