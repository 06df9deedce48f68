"""The verdict of one policy on one request."""

import dataclasses
import enum
from collections.abc import Iterable, Mapping

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
