"""Policies and a request, to what they say about it. Pure: clock and time of day are given.

The order is that of ValidatingAdmissionPolicy: constraints, bindings, match conditions, then validations. A condition
that is false skips the policy, even where another one fails; what fails otherwise follows the policy's failurePolicy.
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
from policies.judging import matching
from policies.judging.conditions import Variables, all_hold, said
from policies.judging.rules import Binding, Check, Exemption, HintRule, PodRule, ValidatingRule
from policies.judging.subjects import Subject

REVIEW_SECONDS: Final = 1.0
"""What all policies together may take for one request; the API server waits 10 s by default."""
OUT_OF_TIME: Final = "not evaluated: the policies before it took all the time that one request may take"
NEAR_EXPIRY: Final = dt.timedelta(days=14)

_LONGEST_MESSAGE: Final = 5 * 1024
_MOST_ERRORS: Final = 16


class TakesLongError(Exception):
    """An impatient evaluation used up its time. Evaluation is pure, so it can be started again elsewhere."""


class UndecidedError(Exception):
    """A policy on pods that fails closed could not be evaluated; the message says which condition failed, and how.

    Attributes:
        rule: the policy.
    """

    def __init__(self, rule: PodRule | HintRule, message: str) -> None:
        super().__init__(message)
        self.rule = rule


class PolicyOutcome(enum.StrEnum):
    """What one policy makes of one request; a label of metrics."""

    NO_MATCH = "no-match"
    """It is about the kind of request, but a condition or selector says no."""
    ALLOW = "allow"
    DENY = "deny"
    WARN = "warn"
    AUDIT = "audit"
    EXCEPT = "except"
    """It would have objected; an exception lets the request pass."""


@dataclasses.dataclass(frozen=True, slots=True)
class Violation:
    """One objection.

    Attributes:
        message: what the policy says.
        reason: `metav1.StatusReason`.
        failed: it could not be evaluated, and fails closed.
    """

    message: str
    reason: str = "Invalid"
    failed: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What one policy says.

    Attributes:
        rule: the policy.
        outcome: the strongest thing that happens.
        violations: its objections, also where an exception lets the request pass.
        bindings: those that apply.
        audit: its audit annotations by key.
        exemption: the exception that lets the request pass.
        expired: an exception that would have, had it not expired.
        errors: what could not be evaluated, also where that is ignored.
        unfinished: why it was not evaluated at all; empty where it was.
        seconds: time that it took.
    """

    rule: ValidatingRule
    outcome: PolicyOutcome
    violations: tuple[Violation, ...] = ()
    bindings: tuple[Binding, ...] = ()
    audit: Mapping[str, str] = dataclasses.field(default_factory=dict)
    exemption: Exemption | None = None
    expired: Exemption | None = None
    errors: tuple[str, ...] = ()
    unfinished: str = ""
    seconds: float = 0.0


def evaluate(
    rules: Iterable[ValidatingRule],
    subject: Subject,
    now: dt.datetime,
    clock: Clock,
    limits: Limits = POLICY_LIMITS,
    *,
    seconds: float = REVIEW_SECONDS,
    impatient: bool = False,
) -> tuple[Verdict, ...]:
    """What policies say about a request.

    Args:
        rules: the policies.
        subject: the request.
        now: by which exceptions expire.
        clock: monotonic, in seconds; bounds and measures evaluation.
        limits: for every policy.
        seconds: for all policies together.
        impatient: whether to give up as a whole once `seconds` are over, rather than to let the policies that are left
            fail.

    Returns:
        One verdict for each policy whose resource rules match. Nothing that an expression does raises.

    Raises:
        TakesLongError: an impatient evaluation used up its time.
    """
    verdicts = []
    deadline = clock() + seconds
    activation: dict[str, Any] | None = None
    budgets = _Budgets(clock, limits, seconds)
    for rule in rules:
        if not matching.rules_match(rule.match, subject):
            continue
        started = clock()
        bindings = tuple(each for each in rule.bindings if matching.matches(each.match, subject))
        if not bindings or not matching.selectors_match(rule.match, subject):
            verdicts.append(Verdict(rule, PolicyOutcome.NO_MATCH))
            continue
        if activation is None:
            activation = subject.activation({})
        run = _Run(rule, activation, budgets, clock, started)
        if started <= deadline:
            verdicts.append(run.judge(bindings, now))
        elif not impatient:
            verdicts.append(run.unfinished(OUT_OF_TIME, bindings, now))
        if impatient and clock() > deadline and (run.exceeded or started > deadline):
            raise TakesLongError
    return tuple(verdicts)


def unjudged(
    rules: Iterable[ValidatingRule], subject: Subject, why: str, now: dt.datetime, clock: Clock
) -> tuple[Verdict, ...]:
    """The verdicts on a request that could not be evaluated at all: each policy's failurePolicy decides.

    Args:
        rules: the policies.
        subject: the request as far as it is known, without its objects: selectors of objects are taken to match.
        why: what to tell.
        now: by which exceptions expire. None applies: its conditions cannot be evaluated either.
        clock: measures.
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
    limits: Limits = MATCH_CONDITION_LIMITS,
    *,
    seconds: float = REVIEW_SECONDS,
    impatient: bool = False,
) -> tuple[AnyPodRule | None, tuple[str, ...]]:
    """The first policy on pods that means this one.

    Args:
        rules: the policies, in their order.
        subject: the pod's creation.
        clock: monotonic, in seconds; bounds evaluation.
        limits: for the conditions of every policy.
        seconds: for all policies together.
        impatient: whether to give up as a whole once `seconds` are over, rather than to let conditions fail.

    Returns:
        The policy, and what went wrong on the way: a policy that fails open does not match where its conditions fail.

    Raises:
        UndecidedError: a policy that fails closed may be the one, and its conditions fail.
        TakesLongError: an impatient evaluation used up its time.
    """
    errors: list[str] = []
    activation: dict[str, Any] | None = None
    deadline = clock() + seconds
    for rule in rules:
        if not matching.pod_matches(rule.spec.match, subject):
            continue
        if rule.conditions and activation is None:
            activation = {**subject.activation({}), "variables": {}}
        budget = Budget(clock, _within(limits, deadline - clock()))
        holds, failures = all_hold(rule.conditions, activation or {}, budget)
        if holds:
            return rule, tuple(errors)
        if holds is None:
            if impatient and clock() > deadline:
                raise TakesLongError
            if rule.fails_closed:
                raise UndecidedError(rule, failures[0])
            errors += [f"{rule.name}: {failure}" for failure in failures[: _MOST_ERRORS - len(errors)]]
    return None, tuple(errors)


class _Budgets:
    """What the policies on one request may spend: each on its match conditions, and on everything else."""

    def __init__(self, clock: Clock, limits: Limits, seconds: float) -> None:
        self._clock = clock
        conditions = MATCH_CONDITION_LIMITS if limits is POLICY_LIMITS else limits
        self._limits, self._conditions = _within(limits, seconds), _within(conditions, seconds)

    def conditions(self) -> Budget:
        """For the match conditions of one policy."""
        return Budget(self._clock, self._conditions)

    def rest(self) -> Budget:
        """For everything else of one policy."""
        return Budget(self._clock, self._limits)


def _within(limits: Limits, seconds: float) -> Limits:
    return limits if seconds >= limits.seconds else dataclasses.replace(limits, seconds=max(0.0, seconds))


class _Run:
    """One policy on one request."""

    def __init__(
        self, rule: ValidatingRule, shared: Mapping[str, Any], budgets: _Budgets, clock: Clock, started: float
    ) -> None:
        self._rule = rule
        self._budgets = budgets
        self._budget = budget = budgets.rest()
        self._clock = clock
        self._started = started
        self.activation = {**shared, "params": rule.params}
        self.activation["variables"] = Variables(rule.variables, self.activation, budget)
        self._violations: list[Violation] = []
        self._errors: list[str] = []
        self._audit: dict[str, str] = {}
        self.exceeded = False

    def judge(self, bindings: tuple[Binding, ...], now: dt.datetime) -> Verdict:
        conditions = self._rule.conditions
        budget = self._budgets.conditions() if conditions else self._budget
        holds, failures = all_hold(conditions, self.activation, budget)
        if holds is False:
            return Verdict(self._rule, PolicyOutcome.NO_MATCH, seconds=self._clock() - self._started)
        for failure in failures:
            self.fail(failure)
        self.exceeded = bool(failures)
        if holds:
            for check in self._rule.checks:
                self._check(check)
            for key, program in self._rule.audit.items():
                self._annotate(key, program)
        return self.verdict(bindings, now)

    def fail(self, message: str) -> None:
        """Something could not be evaluated."""
        self._errors.append(message)
        if self._rule.fails_closed:
            self._violations.append(Violation(message, failed=True))

    def unfinished(self, why: str, bindings: tuple[Binding, ...], now: dt.datetime, *, exempts: bool = True) -> Verdict:
        """The policy was not evaluated."""
        self.fail(why)
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
        )

    def _stopped(self, error: CelError) -> None:
        self.exceeded = self.exceeded or isinstance(error, CelBudgetExceededError)

    def _check(self, check: Check) -> None:
        try:
            if check.program.evaluate(self.activation, self._budget) is True:
                return
        except CelError as error:
            self._stopped(error)
            self.fail(f"expression '{check.program.source.strip()}' resulted in error: {said(error)}")
            return
        self._violations.append(Violation(self._message(check), check.reason))

    def _message(self, check: Check) -> str:
        """What messageExpression gives; where that fails, is blank or has several lines, the message (KEP-3488)."""
        if check.message_program is None:
            return check.message
        try:
            text = check.message_program.evaluate(self.activation, self._budget)
        except CelError as error:
            self._stopped(error)
            self._errors.append(f"messageExpression failed: {said(error)}")
            return check.message
        usable = isinstance(text, str) and text.strip() and "\n" not in text and len(text) <= _LONGEST_MESSAGE
        return str(text).strip() if usable else check.message

    def _annotate(self, key: str, program: Program) -> None:
        try:
            value = program.evaluate(self.activation, self._budget)
        except CelError as error:
            self._stopped(error)
            self.fail(f"audit annotation '{key}' failed: {said(error)}")
            return
        if isinstance(value, str):
            if value.strip():
                self._audit[key] = value
        elif value is not None:
            self.fail(f"audit annotation '{key}' is of type {kind_of(value)}, and has to be a string or null")

    def _exemption(self, now: dt.datetime) -> tuple[Exemption | None, Exemption | None]:
        """The exception that applies, and one that would, had it not expired."""
        expired = None
        for exemption in self._rule.exemptions:
            holds, failures = all_hold(exemption.conditions, self.activation, self._budget)
            self.exceeded = self.exceeded or holds is None
            self._errors += [f"exception '{exemption.name}': {failure}" for failure in failures if holds is None]
            if holds and now <= exemption.expires:
                return exemption, None
            if holds:
                expired = expired or exemption
        return None, expired


def strongest(bindings: Iterable[Binding]) -> PolicyOutcome:
    """What happens to a request that violates a policy with these bindings."""
    actions = {action for binding in bindings for action in binding.actions}
    return PolicyOutcome.DENY if "Deny" in actions else PolicyOutcome.WARN if "Warn" in actions else PolicyOutcome.AUDIT
