"""The answer to one review, before anybody acts on it. Frozen, and free of the review it answers."""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, Final, TypedDict

from neuron.findings import Finding
from neuron.templates import Template

_MOST_FINDINGS: Final = 64
_LONGEST_QUOTED: Final = 100

SEVERAL: Final = "several"
"""In place of a legacy resource's name where a pod asks for more than one."""


class Outcome(enum.StrEnum):
    """What happens to the object; a label of metrics and a field of every log line."""

    CONVERTED = "converted"
    """Legacy limits became a claim."""
    RESTORED = "restored"
    """A converted pod lost something on its way here and gets it back."""
    HINTED = "hinted"
    """A workload got a scheduling hint."""
    SHADOWED = "shadowed"
    """It would have been converted or refused, and was left alone."""
    UNCHANGED = "unchanged"
    """Nothing to do."""
    DENIED = "denied"


class Operation(TypedDict, total=False):
    """One JSON patch operation (RFC 6902)."""

    op: str
    path: str
    value: Any


@dataclasses.dataclass(frozen=True)
class Decision:
    """What to answer, and which templates have to exist before the answer may leave.

    Attributes:
        outcome: what happens to the object.
        reason: one word for logs and metrics that says why, e.g. `legacy-resources` or `mode-off`.
        patch: JSON patch operations against the object exactly as it was sent.
        templates: ResourceClaimTemplates that must exist in the object's namespace first.
        warnings: shown to the user.
        errors: if any, the object is refused.
        status_code: HTTP-like code of the refusal's `status`.
        status_reason: machine-readable `status.reason` of the refusal.
        audit: audit annotations (keys without the webhook's prefix).
        resource: the legacy resource that the decision is about, or `SEVERAL`; empty where it is about none.
        rendered: whatever the edge derives from this decision alone, kept by the edge so that a decision that is
            used again is rendered once. No part of the decision: neither compared nor copied.
    """

    outcome: Outcome
    reason: str
    patch: tuple[Operation, ...] = ()
    templates: tuple[Template, ...] = ()
    warnings: tuple[Finding, ...] = ()
    errors: tuple[Finding, ...] = ()
    status_code: int = 422
    status_reason: str = "Invalid"
    audit: Mapping[str, str] = dataclasses.field(default_factory=dict)
    resource: str = ""
    rendered: Any = dataclasses.field(default=None, init=False, repr=False, compare=False)

    @property
    def allowed(self) -> bool:
        """Whether the object may be stored."""
        return not self.errors


def cut(text: str) -> str:
    """A value as messages quote it: at most 100 characters."""
    return text if len(text) <= _LONGEST_QUOTED else f"{text[: _LONGEST_QUOTED - 1]}…"


def unchanged(reason: str, *warnings: Finding) -> Decision:
    """Leave the object alone."""
    return Decision(Outcome.UNCHANGED, reason, warnings=warnings)


def denied(reason: str, *errors: Finding, warnings: tuple[Finding, ...] = ()) -> Decision:
    """Refuse the object, with every finding at once, as far as anybody would read."""
    if len(errors) > _MOST_FINDINGS:
        left_out = len(errors) - _MOST_FINDINGS
        message = f"{left_out} more findings are left out."
        errors = (*errors[:_MOST_FINDINGS], dataclasses.replace(errors[-1], message=message, fix=""))
    return Decision(Outcome.DENIED, reason, errors=errors, warnings=warnings)
