"""Evaluates policies on one request and returns their verdicts. Pure: the caller passes clock and time of day.

The order is that of ValidatingAdmissionPolicy: constraints, bindings, match conditions, then validations. A false
condition skips the policy, even if another condition fails; any other failure follows the policy's failurePolicy.
"""

import dataclasses
import datetime as dt
import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from kubecel.budget import MATCH_CONDITION_LIMITS, POLICY_LIMITS, Budget, Clock, Limits
from kubecel.engine import Program
from kubecel.errors import CelBudgetExceededError, CelError
from kubecel.values import kind_of
from policies.judging import matching, parameters
from policies.judging.conditions import Variables, all_hold
from policies.judging.failures import Failure
from policies.judging.rules import Binding, Check, Exemption, HintRule, PodRule, ValidatingRule
from policies.judging.subjects import Subject
from policies.judging.whole_nodes import ParsingTime

REVIEW_SECONDS: Final = 1.0
"""Time-out of all policies together for one request; the API server waits 10 s by default."""
OUT_OF_TIME: Final = "not evaluated: the policies before it used all the time of one request"
NEAR_EXPIRY: Final = dt.timedelta(days=14)

_LONGEST_MESSAGE: Final = 5 * 1024
_MOST_ERRORS: Final = 16


@dataclasses.dataclass(frozen=True, slots=True)
class TimeLimit:
    """How long all policies together may take for one request, and what happens then.

    Attributes:
        seconds: the time-out.
        raises: whether the evaluation then ends with `TakesLongError`. Else the policies that are left fail.
    """

    seconds: float = REVIEW_SECONDS
    raises: bool = False


REVIEW_LIMIT: Final = TimeLimit()


class TakesLongError(Exception):
    """The evaluation reached its time limit. It is pure, so it can be repeated in another thread."""


class UndecidedError(Exception):
    """A policy on pods with failurePolicy Fail could not be evaluated; the message names the condition and the error.

    Attributes:
        rule: the policy.
    """

    def __init__(self, rule: PodRule | HintRule, message: str) -> None:
        super().__init__(message)
        self.rule = rule


class PolicyOutcome(enum.StrEnum):
    """The result of one policy for one request; a label of metrics."""

    NO_MATCH = "no-match"
    """The resource rules match, but a condition or selector does not."""
    ALLOW = "allow"
    DENY = "deny"
    WARN = "warn"
    AUDIT = "audit"
    EXCEPT = "except"
    """The request violates the policy, and an exception admits it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Violation:
    """One validation that a request violates.

    Attributes:
        message: the policy's message.
        reason: `metav1.StatusReason`.
        failed: the policy could not be evaluated, and its failurePolicy is Fail.
    """

    message: str
    reason: str = "Invalid"
    failed: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one policy for one request.

    Attributes:
        rule: the policy.
        outcome: the strongest action.
        violations: also present if an exception admits the request.
        bindings: those that apply.
        audit: audit annotations by key.
        exemption: the exception that admits the request.
        expired: an expired exception that would have admitted it.
        errors: what could not be evaluated, also if the failurePolicy is Ignore.
        unfinished: why the policy was not evaluated; empty if it was.
        seconds: duration of the evaluation.
        params: the value of `params`.
    """

    rule: ValidatingRule
    outcome: PolicyOutcome
    violations: tuple[Violation, ...] = ()
    bindings: tuple[Binding, ...] = ()
    audit: Mapping[str, str] = dataclasses.field(default_factory=dict)
    exemption: Exemption | None = None
    expired: Exemption | None = None
    errors: tuple[Failure, ...] = ()
    unfinished: str = ""
    seconds: float = 0.0
    params: Mapping[str, Any] | None = None


def evaluate(
    rules: Iterable[ValidatingRule],
    subject: Subject,
    now: dt.datetime,
    clock: Clock,
    limits: Limits = POLICY_LIMITS,
    time_limit: TimeLimit = REVIEW_LIMIT,
) -> tuple[Verdict, ...]:
    """Evaluate policies on a request.

    Args:
        rules: the policies.
        subject: the request.
        now: the time of day, which decides whether exceptions have expired.
        clock: monotonic, in seconds; bounds and measures evaluation.
        limits: for every policy.
        time_limit: for all policies together.

    Returns:
        One verdict for each policy whose resource rules match; of a policy whose bindings have parameters, one for
        each parameter object. No expression makes this function raise.

    Raises:
        TakesLongError: the time limit is over, and it raises.
    """
    verdicts = []
    deadline = clock() + time_limit.seconds
    activation: dict[str, Any] | None = None
    budgets = _Budgets(clock, limits, time_limit.seconds)
    for rule in rules:
        if not matching.rules_match(rule.match, subject):
            continue
        started = clock()
        bindings = tuple(each for each in rule.bindings if matching.matches(each.match, subject))
        if not bindings or not matching.selectors_match(rule.match, subject):
            verdicts.append(Verdict(rule, PolicyOutcome.NO_MATCH))
            continue
        if activation is None:
            activation = _activation(subject, clock, deadline, time_limit)
        for params, fault, bound in _with_parameters(rule, bindings, subject):
            run = _Run(rule, activation, budgets, clock, started, params)
            if fault:
                verdicts.append(run.misconfigured(fault, bound, now))
            elif started <= deadline:
                verdicts.append(run.judge(bound, now))
            elif not time_limit.raises:
                verdicts.append(run.unfinished(OUT_OF_TIME, bound, now))
            if time_limit.raises and clock() > deadline and (run.exceeded or started > deadline):
                raise TakesLongError
    return tuple(verdicts)


def _with_parameters(
    rule: ValidatingRule, bindings: tuple[Binding, ...], subject: Subject
) -> Iterable[tuple[Mapping[str, Any] | None, str, tuple[Binding, ...]]]:
    """The values of `params` with which a policy is evaluated, with a fault or "", and the bindings that have them.

    Bindings without parameters are evaluated together. A binding with parameters is evaluated once for each object.
    """
    plain = tuple(each for each in bindings if each.parameters is None)
    if plain:
        yield rule.params, "", plain
    if len(plain) == len(bindings):
        return
    for each in bindings:
        if each.parameters is None:
            continue
        objects = parameters.found(each.parameters, subject)
        yield from ((found, "", (each,)) for found in objects)
        if not objects and each.parameters.ref.parameter_not_found_action == "Deny":
            yield None, parameters.NOT_FOUND, (each,)


def _activation(subject: Subject, clock: Clock, deadline: float, time_limit: TimeLimit) -> dict[str, Any]:
    """The variables of a request.

    Raises:
        TakesLongError: the time limit is over before all selectors are parsed, and it raises.
    """
    time = ParsingTime(clock, deadline)
    activation = subject.activation({}, time)
    if time_limit.raises and time.exceeded:
        raise TakesLongError
    return activation


def unjudged(
    rules: Iterable[ValidatingRule], subject: Subject, why: str, now: dt.datetime, clock: Clock
) -> tuple[Verdict, ...]:
    """The verdicts on a request that could not be evaluated: each policy's failurePolicy decides.

    Args:
        rules: the policies.
        subject: the request without its objects; every object selector counts as a match.
        why: the message.
        now: the time of day. No exception applies, because its conditions cannot be evaluated either.
        clock: monotonic, in seconds.
    """
    verdicts = []
    for rule in rules:
        if not matching.rules_match(rule.match, subject) or not matching.namespace_matches(rule.match, subject):
            continue
        bindings = tuple(each for each in rule.bindings if _may_apply(each, subject))
        if bindings:
            run = _Run(rule, {}, _Budgets(clock, POLICY_LIMITS, 0), clock, clock())
            verdicts.append(run.unfinished(why, bindings, now, exempts=False))
    return tuple(verdicts)


def _may_apply(binding: Binding, subject: Subject) -> bool:
    match = binding.match
    return match is None or (matching.rules_match(match, subject) and matching.namespace_matches(match, subject))


AnyPodRule = TypeVar("AnyPodRule", PodRule, HintRule)


def first_match(
    rules: Sequence[AnyPodRule],
    subject: Subject,
    clock: Clock,
    time_limit: TimeLimit = REVIEW_LIMIT,
) -> tuple[AnyPodRule | None, tuple[Failure, ...]]:
    """The first policy that matches a pod.

    Args:
        rules: the policies, in their order.
        subject: the pod's creation.
        clock: monotonic, in seconds; bounds evaluation.
        time_limit: for all policies together.

    Returns:
        The policy, and the failures of earlier policies with failurePolicy Ignore, which do not match if they fail.

    Raises:
        UndecidedError: a condition of a policy with failurePolicy Fail cannot be evaluated.
        TakesLongError: the time limit is over, and it raises.
    """
    errors: list[Failure] = []
    activation: dict[str, Any] | None = None
    deadline = clock() + time_limit.seconds
    for rule in rules:
        if not matching.pod_matches(rule.spec.match, subject):
            continue
        if rule.conditions and activation is None:
            activation = {**_activation(subject, clock, deadline, time_limit), "variables": {}}
        budget = Budget(clock, _within(MATCH_CONDITION_LIMITS, deadline - clock()))
        holds, failures = all_hold(rule.conditions, activation or {}, budget)
        if holds:
            return rule, tuple(errors)
        if holds is None:
            if time_limit.raises and clock() > deadline:
                raise TakesLongError
            if rule.fails_closed:
                raise UndecidedError(rule, str(failures[0]))
            errors += [failure.within(rule.name) for failure in failures[: _MOST_ERRORS - len(errors)]]
    return None, tuple(errors)


class _Budgets:
    """The CEL budgets of the policies on one request: each policy has one for match conditions and one for the rest."""

    def __init__(self, clock: Clock, limits: Limits, seconds: float) -> None:
        self._clock = clock
        conditions = MATCH_CONDITION_LIMITS if limits is POLICY_LIMITS else limits
        self._limits, self._conditions = _within(limits, seconds), _within(conditions, seconds)

    def conditions(self) -> Budget:
        return Budget(self._clock, self._conditions)

    def rest(self) -> Budget:
        return Budget(self._clock, self._limits)


def _within(limits: Limits, seconds: float) -> Limits:
    return limits if seconds >= limits.seconds else dataclasses.replace(limits, seconds=max(0.0, seconds))


class _Run:
    """Evaluates one policy on one request."""

    def __init__(
        self,
        rule: ValidatingRule,
        shared: Mapping[str, Any],
        budgets: _Budgets,
        clock: Clock,
        started: float,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        self._rule = rule
        self._budgets = budgets
        self._budget = budget = budgets.rest()
        self._clock = clock
        self._started = started
        self.activation = {**shared, "params": params}
        self.activation["variables"] = Variables(rule.variables, self.activation, budget)
        self._violations: list[Violation] = []
        self._errors: list[Failure] = []
        self._audit: dict[str, str] = {}
        self.exceeded = False

    def judge(self, bindings: tuple[Binding, ...], now: dt.datetime) -> Verdict:
        conditions = self._rule.conditions
        budget = self._budgets.conditions() if conditions else self._budget
        holds, failures = all_hold(conditions, self.activation, budget)
        if holds is False:
            seconds = self._clock() - self._started
            return Verdict(self._rule, PolicyOutcome.NO_MATCH, seconds=seconds, params=self.activation["params"])
        for failure in failures:
            self.fail(failure)
        self.exceeded = bool(failures)
        if holds:
            for check in self._rule.checks:
                self._check(check)
            for key, program in self._rule.audit.items():
                self._annotate(key, program)
        return self.verdict(bindings, now)

    def fail(self, failure: Failure) -> None:
        self._errors.append(failure)
        if self._rule.fails_closed:
            self._violations.append(Violation(str(failure), failed=True))

    def misconfigured(self, why: str, bindings: tuple[Binding, ...], now: dt.datetime) -> Verdict:
        """The verdict of a policy whose binding has no parameter object."""
        self.fail(Failure(why))
        return self.verdict(bindings, now)

    def unfinished(self, why: str, bindings: tuple[Binding, ...], now: dt.datetime, *, exempts: bool = True) -> Verdict:
        """The verdict of a policy that was not evaluated."""
        self.fail(Failure(why))
        return dataclasses.replace(self.verdict(bindings, now, exempts=exempts), unfinished=why)

    def verdict(self, bindings: tuple[Binding, ...], now: dt.datetime, *, exempts: bool = True) -> Verdict:
        exemption = expired = None
        outcome = PolicyOutcome.ALLOW
        if self._violations:
            if exempts:
                exemption, expired = self._exemption(now)
            outcome = PolicyOutcome.EXCEPT if exemption else strongest(bindings)
        return Verdict(
            self._rule,
            outcome,
            tuple(self._violations),
            bindings,
            self._audit,
            exemption,
            None if exemption else expired,
            tuple(self._errors[:_MOST_ERRORS]),
            seconds=self._clock() - self._started,
            params=self.activation["params"],
        )

    def _stopped(self, error: CelError) -> None:
        self.exceeded = self.exceeded or isinstance(error, CelBudgetExceededError)

    def _check(self, check: Check) -> None:
        try:
            if check.program.evaluate(self.activation, self._budget) is True:
                return
        except CelError as error:
            self._stopped(error)
            self.fail(Failure.of(f"expression '{check.program.source.strip()}' resulted in error", error))
            return
        self._violations.append(Violation(self._message(check), check.reason))

    def _message(self, check: Check) -> str:
        """The result of messageExpression, or `message` if that fails, is blank or has several lines (KEP-3488)."""
        if check.message_program is None:
            return check.message
        try:
            text = check.message_program.evaluate(self.activation, self._budget)
        except CelError as error:
            self._stopped(error)
            self._errors.append(Failure.of("messageExpression failed", error))
            return check.message
        usable = isinstance(text, str) and text.strip() and "\n" not in text and len(text) <= _LONGEST_MESSAGE
        return str(text).strip() if usable else check.message

    def _annotate(self, key: str, program: Program) -> None:
        try:
            value = program.evaluate(self.activation, self._budget)
        except CelError as error:
            self._stopped(error)
            self.fail(Failure.of(f"audit annotation '{key}' failed", error))
            return
        if isinstance(value, str):
            if value.strip():
                self._audit[key] = value
        elif value is not None:
            self.fail(Failure(f"audit annotation '{key}' is of type {kind_of(value)}, and has to be a string or null"))

    def _exemption(self, now: dt.datetime) -> tuple[Exemption | None, Exemption | None]:
        """The exception that applies, and an expired one that would have applied."""
        expired = None
        for exemption in self._rule.exemptions:
            holds, failures = all_hold(exemption.conditions, self.activation, self._budget)
            self.exceeded = self.exceeded or holds is None
            self._errors += [failure.within(f"exception '{exemption.name}'") for failure in failures if holds is None]
            if holds and now <= exemption.expires:
                return exemption, None
            if holds:
                expired = expired or exemption
        return None, expired


def strongest(bindings: Iterable[Binding]) -> PolicyOutcome:
    """The strongest action of these bindings."""
    actions = {action for binding in bindings for action in binding.actions}
    return PolicyOutcome.DENY if "Deny" in actions else PolicyOutcome.WARN if "Warn" in actions else PolicyOutcome.AUDIT
