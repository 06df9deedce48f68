"""Why policies say what they say about one request: conditions, variables and messages, as text."""

import datetime as dt
import json
from collections.abc import Iterator
from typing import Final

from policies import matching
from policies.engine import Budget, CelError, Clock
from policies.evaluate import POLICY_LIMITS, Outcome, Variables, all_hold, evaluate
from policies.evaluator.values import kind_of
from policies.loader import PolicySet
from policies.programs import Condition, PodRule, ValidatingRule
from policies.subjects import Subject

_LONGEST_VALUE: Final = 200
_ELSEWHERE: Final = "its selectors, or those of its bindings, select something else"
_WORDS: Final = {
    Outcome.ALLOW: "allows it",
    Outcome.DENY: "denies it",
    Outcome.WARN: "warns of it",
    Outcome.AUDIT: "notes it in the audit log",
    Outcome.EXCEPT: "would object, and an exception lets it pass",
}


def explain(policies: PolicySet, subject: Subject, now: dt.datetime, clock: Clock) -> Iterator[str]:
    """Lines about one request.

    Args:
        policies: all of them.
        subject: the request.
        now: by which exceptions expire.
        clock: bounds evaluation.
    """
    for rule in policies.validating:
        yield from _validating(rule, subject, now, clock)
    if subject.kind == "Pod" and subject.group == "":
        chosen = False
        for pod_rule in policies.conversions:
            why = _unmet_by_pod(pod_rule, subject, clock)
            if why:
                yield f"{pod_rule.name}: does not steer its conversion: {why}"
            elif chosen:
                yield f"{pod_rule.name}: does not steer its conversion: an earlier policy does"
            else:
                chosen = True
                yield f"{pod_rule.name}: steers its conversion"


def _validating(rule: ValidatingRule, subject: Subject, now: dt.datetime, clock: Clock) -> Iterator[str]:
    verdicts = evaluate((rule,), subject, now, clock)
    if not verdicts:
        yield f"{rule.name}: is not about {subject.operation} of {subject.resource}"
        return
    (verdict,) = verdicts
    budget = Budget(clock, POLICY_LIMITS)
    activation = subject.activation(rule.params)
    variables = Variables(rule.variables, activation, budget)
    activation["variables"] = variables
    if verdict.outcome is Outcome.NO_MATCH:
        unmet = _unmet(rule.conditions, activation, clock)
        yield f"{rule.name}: does not match: {unmet or _ELSEWHERE}"
        return
    yield f"{rule.name}: {_WORDS[verdict.outcome]}"
    yield from (f"    {violation.message}" for violation in verdict.violations)
    if verdict.exemption is not None:
        yield f"    exception '{verdict.exemption.name}' of {verdict.exemption.owner} until {verdict.exemption.expires}"
    if verdict.expired is not None:
        yield f"    exception '{verdict.expired.name}' of {verdict.expired.owner} ended {verdict.expired.expires}"
    for name in rule.variables:
        yield f"    variables.{name} = {_value(variables, name)}"


def _unmet(conditions: tuple[Condition, ...], activation: dict[str, object], clock: Clock) -> str:
    """The first condition that is false, or else the first that fails; empty where all hold."""
    failure = ""
    for condition in conditions:
        holds, failures = all_hold((condition,), activation, Budget(clock, POLICY_LIMITS))
        if holds is False:
            return f"condition '{condition.name}' is false: {condition.program.source.strip()}"
        failure = failure or (failures[0] if failures else "")
    return failure


def _unmet_by_pod(rule: PodRule, subject: Subject, clock: Clock) -> str:
    if not matching.pod_matches(rule.spec.match, subject):
        return "its namespaces or selectors select something else"
    return _unmet(rule.conditions, {**subject.activation({}), "variables": {}}, clock)


def _value(variables: Variables, name: str) -> str:
    try:
        value = variables[name]
    except CelError as error:
        return f"error: {error}"
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = f"a {kind_of(value)}"
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
