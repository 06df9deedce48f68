"""The verdict of one policy on one request, and its findings, with the same words from the server and offline."""

import dataclasses
import datetime as dt
import enum
from collections.abc import Iterable, Mapping
from typing import Final

from neuron.findings import Finding, Severity, warning
from policies.judging.conditions import Failure
from policies.judging.rules import Binding, Exemption, ValidatingRule


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
        reason: `metav1.StatusReason`.
        failed: the policy could not be evaluated, and its failurePolicy is Fail.
    """

    message: str
    reason: str = "Invalid"
    failed: bool = False


@dataclasses.dataclass(slots=True)
class Verdict:
    """The result of one policy for one request. Not frozen, because each policy on each request makes one.

    Attributes:
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
    params: Mapping[str, object] | None = None


def strongest(bindings: Iterable[Binding]) -> PolicyOutcome:
    """The strongest action of these bindings."""
    actions = {action for binding in bindings for action in binding.actions}
    return PolicyOutcome.DENY if "Deny" in actions else PolicyOutcome.WARN if "Warn" in actions else PolicyOutcome.AUDIT


NEAR_EXPIRY: Final = dt.timedelta(days=14)
_ACTIONS: Final = {
    PolicyOutcome.DENY: ("NEU801", Severity.ERROR),
    PolicyOutcome.WARN: ("NEU802", Severity.WARNING),
    PolicyOutcome.AUDIT: ("NEU805", Severity.NOTE),
}


def objections(verdict: Verdict, action: PolicyOutcome = PolicyOutcome.DENY) -> list[Finding]:
    """One finding per violation, with code and severity of the action; no path, because a policy judges the object."""
    return [_objection(verdict, violation, action) for violation in verdict.violations]


def findings(verdict: Verdict, now: dt.datetime) -> list[Finding]:
    """All findings of a verdict; each violation once, by its strongest action."""
    if verdict.exemption is not None:
        return near_expiry(verdict, now)
    return objections(verdict, verdict.outcome) if verdict.outcome in _ACTIONS else []


def near_expiry(verdict: Verdict, now: dt.datetime) -> list[Finding]:
    """A warning if the exception that admits the object ends soon."""
    exemption = verdict.exemption
    if exemption is None or verdict.outcome is not PolicyOutcome.EXCEPT or exemption.expires - now > NEAR_EXPIRY:
        return []
    message = (
        f"policy '{verdict.rule.name}': exception '{exemption.name}' of {exemption.owner} ends on "
        f"{exemption.expires.date()}."
    )
    return [warning("NEU804", "", message)]


def _objection(verdict: Verdict, violation: Violation, action: PolicyOutcome) -> Finding:
    message = f"policy '{verdict.rule.name}': {violation.message}"
    expired = verdict.expired
    fix = f"Exception '{expired.name}' of {expired.owner} ended on {expired.expires.date()}." if expired else ""
    if fix and not message.endswith((".", "!", "?")):
        message += "."
    code, severity = _ACTIONS[action]
    code = "NEU803" if violation.failed and action is PolicyOutcome.DENY else code
    return dataclasses.replace(Finding(code, "", message, fix), severity=severity)
