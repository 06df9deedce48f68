"""Evaluates one policy on one request, after its constraints and bindings have matched."""

import dataclasses
import datetime as dt
from collections.abc import Mapping
from typing import Final

from kubecel.budget import MATCH_CONDITION_LIMITS, POLICY_LIMITS, Budget, Clock, Limits
from kubecel.engine import Program
from kubecel.errors import CelBudgetExceededError, CelError
from kubecel.values import kind_of
from policies.judging import sharing
from policies.judging.conditions import Failure, Variables, all_hold
from policies.judging.rules import Binding, Check, Exemption, ValidatingRule
from policies.judging.sharing import Memo
from policies.judging.verdicts import PolicyOutcome, Verdict, Violation, strongest
from policies.schema.schedule import in_force

_LONGEST_MESSAGE: Final = 5 * 1024
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
    """Evaluates one policy on one request. `shared` are the variables, with empty `params` and `variables`."""

    def __init__(
        self,
        rule: ValidatingRule,
        shared: Mapping[str, object],
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
        self.activation = shared
        if rule.variables or params is None or params:
            self.activation = own = {**shared, "params": params}
            own["variables"] = Variables(rule.variables, own, budget, rule.shared, memo)
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
                holds = sharing.evaluate(check.program, shared, self.activation, self._budget, self._memo)
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
