"""Evaluates policies on one request and returns their verdicts. Pure: the caller passes clock and time of day.

The order is that of ValidatingAdmissionPolicy: constraints, bindings, match conditions, then validations. A false
condition skips the policy, even if another condition fails; any other failure follows the policy's failurePolicy.
"""

import dataclasses
import datetime as dt
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeVar

from kubecel.budget import MATCH_CONDITION_LIMITS, POLICY_LIMITS, Budget, Clock, Limits
from kubecel.compile import Program
from kubecel.errors import CelBudgetExceededError, CelError
from kubecel.values import kind_of
from policies.judging import matching
from policies.judging.conditions import Failure, Memo, Variables, all_hold, shared_value
from policies.judging.rules import AnyPodRule, Binding, Check, Exemption, ValidatingRule
from policies.judging.selectors import DeviceSelectors
from policies.judging.subjects import Api, RequestSubject
from policies.judging.verdicts import PolicyOutcome, Verdict, Violation, strongest
from policies.schema.base import MatchResources, in_force

OUT_OF_TIME: Final = "not evaluated: the policies before it used all the time of one request"


@dataclasses.dataclass(frozen=True, slots=True)
class TimeLimit:
    """How long all policies together may take for one request, and what happens then.

    Attributes:
        raises: whether the evaluation then ends with `TakesLongError`. Else the policies that are left fail.
        selectors: of claims that may be evaluated for the first time.
    """

    seconds: float = 1.0  # the API server waits 10 s by default
    raises: bool = False
    selectors: float = math.inf


REVIEW_LIMIT: Final = TimeLimit()


class TakesLongError(Exception):
    """The evaluation reached its time limit. It is pure, so it can be repeated in another thread."""


class UndecidedError(Exception):
    """A policy on pods with failurePolicy Fail could not be evaluated. The message has the condition and the error."""

    def __init__(self, rule: AnyPodRule, message: str) -> None:
        super().__init__(message)
        self.rule = rule


def evaluate(
    rules: Iterable[ValidatingRule],
    subject: RequestSubject,
    now: dt.datetime,
    clock: Clock,
    limits: Limits = POLICY_LIMITS,
    time_limit: TimeLimit = REVIEW_LIMIT,
) -> tuple[Verdict, ...]:
    """Evaluate policies on a request.

    Args:
        now: the time of day, which decides whether exceptions have expired, and which schedules are in force.
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
    views = _Views(subject, clock, deadline, time_limit)
    budgets = Budgets(clock, limits, time_limit.seconds)
    matched: dict[int, tuple[Api | None, bool]] = {}
    for rule in rules:
        # Equal constraints are one object (`conditions.Sharing.match`).
        found = matched.get(id(rule.match))
        if found is None:
            seen_in = matching.rules_match(rule.match, subject)
            selected = seen_in is not None and matching.selectors_match(rule.match, subject)
            found = matched[id(rule.match)] = (seen_in, selected)
        seen_in, selected = found
        if seen_in is None:
            continue
        started = clock()
        bindings = rule.bindings
        if rule.narrows:
            bindings = tuple(each for each in bindings if matching.matches(each.match, subject))
        if not bindings or not selected or not in_force(rule.schedule, now):
            verdicts.append(Verdict(rule, PolicyOutcome.NO_MATCH))
            continue
        view = views.of(seen_in)
        unknown = unconverted(subject, seen_in) if view is None else rule.reads_namespace and subject.namespace_unknown
        if view is None or unknown:
            run = Run(rule, {}, budgets, started)
            verdicts.append(run.unfinished(unknown or "", bindings, now, exempts=False))
            continue
        activation, memo = view
        cases = _with_parameters(rule, bindings, subject) if rule.parametrised else ((rule.params, "", bindings),)
        for params, fault, bound in cases:
            run = Run(rule, activation, budgets, started, params, memo)
            if fault:
                run.fail(Failure(fault))
                verdicts.append(run.verdict(bound, now))
            elif started <= deadline:
                verdicts.append(run.judge(bound, now))
            elif not time_limit.raises:
                verdicts.append(run.unfinished(OUT_OF_TIME, bound, now))
            if time_limit.raises and clock() > deadline and (run.exceeded or started > deadline):
                raise TakesLongError
    return tuple(verdicts)


class _Views:
    """The variables of a request, for each API version in which policies see it."""

    def __init__(self, subject: RequestSubject, clock: Clock, deadline: float, time_limit: TimeLimit) -> None:
        self._subject = subject
        self._clock = clock
        self._deadline = deadline
        self._limit = time_limit
        self._first: dict[str, object] | None = None
        self._found: dict[Api, tuple[dict[str, object], Memo] | None] = {}

    def of(self, api: Api) -> tuple[dict[str, object], Memo] | None:
        """Variables, and the results of shared expressions; None if the object cannot be converted.

        Raises:
            TakesLongError: the time limit is over before all selectors are parsed, and it raises.
        """
        if api not in self._found:
            subject = self._subject.in_api(api)
            if subject is None:
                self._found[api] = None
                return None
            if self._first is None:
                self._first = _activation(self._subject, self._clock, self._deadline, self._limit)
            same = subject is self._subject
            self._found[api] = (self._first if same else {**self._first, **subject.versioned()}), Memo()
        return self._found[api]


def unconverted(subject: RequestSubject, api: Api) -> str:
    """Why a policy cannot be evaluated on an object of another API version."""
    has, wants = (f"{group}/{version}" if group else version for group, version in (subject.api, api))
    return (
        f"not evaluated: its rules list {subject.resource} of {wants}, and this object of {has} cannot be converted:"
        f" add {subject.api[1]!r} to apiVersions"
        f"{'' if subject.api[0] == api[0] else f' and {subject.api[0]!r} to apiGroups'}, or set matchPolicy: Exact"
    )


def _with_parameters(
    rule: ValidatingRule, bindings: tuple[Binding, ...], subject: RequestSubject
) -> Iterable[tuple[Mapping[str, object] | None, str, tuple[Binding, ...]]]:
    """The values of `params` with which a policy is evaluated, with a fault or "", and the bindings that have them.

    Bindings without parameters are evaluated together. A binding with parameters is evaluated once for each object.
    """
    plain = tuple(each for each in bindings if each.parameters is None)
    if plain:
        yield rule.params, "", plain
    for each in (each for each in bindings if each.parameters is not None):
        yield from ((params, fault, (each,)) for params, fault in matching.parameters_of(each, subject))


def _activation(subject: RequestSubject, clock: Clock, deadline: float, time_limit: TimeLimit) -> dict[str, object]:
    """The variables of a request.

    Raises:
        TakesLongError: the time limit is over before all selectors are parsed, and it raises.
    """
    time = DeviceSelectors(clock, deadline, time_limit.selectors)
    activation = {**subject.activation({}, time), "variables": {}}
    if time_limit.raises and time.exceeded:
        raise TakesLongError
    return activation


def unjudged(
    rules: Iterable[ValidatingRule], subject: RequestSubject, why: str, now: dt.datetime, clock: Clock
) -> tuple[Verdict, ...]:
    """The verdicts on a request that could not be evaluated: each policy's failurePolicy decides.

    Args:
        subject: the request without its objects; every object selector counts as a match.
        now: the time of day. No exception applies, because its conditions cannot be evaluated either.
        clock: monotonic, in seconds.
    """
    verdicts = []
    for rule in rules:
        if not _may_apply(rule.match, subject):
            continue
        bindings = tuple(each for each in rule.bindings if _may_apply(each.match, subject))
        if bindings and in_force(rule.schedule, now):
            run = Run(rule, {}, Budgets(clock, POLICY_LIMITS, 0), clock())
            verdicts.append(run.unfinished(why, bindings, now, exempts=False))
    return tuple(verdicts)


def _may_apply(match: MatchResources | None, subject: RequestSubject) -> bool:
    """Whether rules and namespace match; the object is not known."""
    if match is None:
        return True
    return matching.rules_match(match, subject) is not None and matching.namespace_matches(match, subject)


Matched = TypeVar("Matched", bound=AnyPodRule)


def matching_rules(
    rules: Iterable[Matched],
    subject: RequestSubject,
    clock: Clock,
    errors: list[Failure],
    time_limit: TimeLimit = REVIEW_LIMIT,
) -> Iterator[Matched]:
    """The policies that match a pod, each evaluated when it is wanted.

    Args:
        rules: the policies, in their order.
        subject: the pod's creation.
        clock: monotonic, in seconds; bounds evaluation.
        errors: failures of policies with failurePolicy Ignore, which do not match if they fail, are added here.
        time_limit: for all policies together.

    Raises:
        UndecidedError: a condition of a policy with failurePolicy Fail cannot be evaluated.
        TakesLongError: the time limit is over, and it raises.
    """
    activation: dict[str, object] | None = None
    deadline = clock() + time_limit.seconds
    for rule in rules:
        if not matching.pod_matches(rule.spec.match, subject):
            continue
        if rule.conditions and activation is None:
            activation = _activation(subject, clock, deadline, time_limit)
        budget = Budget(clock, within(MATCH_CONDITION_LIMITS, deadline - clock()))
        holds: bool | None
        if subject.namespace_unknown and rule.reads_namespace:
            holds, failures = None, [Failure(subject.namespace_unknown)]
        else:
            holds, failures = all_hold(rule.conditions, activation or {}, budget)
        if holds:
            yield rule
        elif holds is None:
            if time_limit.raises and clock() > deadline:
                raise TakesLongError
            if rule.fails_closed:
                raise UndecidedError(rule, str(failures[0]))
            errors += [failure.within(rule.name) for failure in failures[: MOST_ERRORS - len(errors)]]


MOST_ERRORS: Final = 16


class Budgets:
    """The CEL budgets of the policies on one request: each policy has one for match conditions and one for the rest."""

    def __init__(self, clock: Clock, limits: Limits, seconds: float) -> None:
        self.clock = clock
        conditions = MATCH_CONDITION_LIMITS if limits is POLICY_LIMITS else limits
        self._limits, self._conditions = within(limits, seconds), within(conditions, seconds)
        self._results: dict[str, tuple[bool, int]] = {}

    def conditions(self) -> Budget:
        return Budget(self.clock, self._conditions, self._results)

    def rest(self) -> Budget:
        return Budget(self.clock, self._limits, self._results)


def within(limits: Limits, seconds: float) -> Limits:
    return limits if seconds >= limits.seconds else dataclasses.replace(limits, seconds=max(0.0, seconds))


class Run:
    """Evaluates one policy on one request. `known` are the variables, with empty `params` and `variables`."""

    def __init__(
        self,
        rule: ValidatingRule,
        known: Mapping[str, object],
        budgets: Budgets,
        started: float,
        params: Mapping[str, object] | None = None,
        memo: Memo | None = None,
    ) -> None:
        self._rule = rule
        self._budgets = budgets
        self._budget = budget = budgets.rest()
        self._clock = budgets.clock
        self._memo = memo
        self._started = started
        self._params = params
        if params is None or params:
            known = {**known, "params": params}
        if rule.variables:
            known = {**known, "variables": Variables(rule.variables, known, budget, rule.shared, memo)}
        self.activation = known
        self._violations: list[Violation] = []
        self._errors: list[Failure] = []
        self._audit: dict[str, str] = {}
        self.exceeded = False

    def judge(self, bindings: tuple[Binding, ...], now: dt.datetime) -> Verdict:
        conditions = self._rule.conditions
        holds: bool | None = True
        if conditions:
            holds, failures = all_hold(conditions, self.activation, self._budgets.conditions(), self._memo)
            if holds is False:
                seconds = self._clock() - self._started
                return Verdict(self._rule, PolicyOutcome.NO_MATCH, seconds=seconds, params=self._params)
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
            tuple(self._errors[:MOST_ERRORS]),
            seconds=self._clock() - self._started,
            params=self._params,
        )

    def _stopped(self, error: CelError) -> None:
        self.exceeded = self.exceeded or isinstance(error, CelBudgetExceededError)

    def _check(self, check: Check) -> None:
        shared = check.shared
        try:
            if shared is None or shared.uses < 2:
                holds = check.program.evaluate(self.activation, self._budget)
            else:
                holds = shared_value(check.program, shared, self.activation, self._budget, self._memo)
            if holds is True:
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
        usable = isinstance(text, str) and text.strip() and "\n" not in text and len(text) <= 5 * 1024
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
            if not in_force(exemption.schedule, now):
                continue
            holds, failures = all_hold(exemption.conditions, self.activation, self._budget)
            self.exceeded = self.exceeded or holds is None
            self._errors += [failure.within(f"exception '{exemption.name}'") for failure in failures if holds is None]
            if holds and now <= exemption.expires:
                return exemption, None
            if holds:
                expired = expired or exemption
        return None, expired
