"""Verdicts of policies as findings, with the same words from the server and offline."""

import dataclasses
import datetime as dt
from typing import Final

from neuron.findings import Finding, Severity, warning
from policies.judging.evaluate import NEAR_EXPIRY
from policies.judging.verdicts import PolicyOutcome, Verdict, Violation

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
