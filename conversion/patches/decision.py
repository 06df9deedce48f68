"""The decision about one object. Frozen, and independent of the review that it answers, so that it can be cached."""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any, Final, TypedDict

from conversion.claims.mapped_templates import Need
from conversion.claims.templates import Template
from neuron.findings import Finding

_MOST_FINDINGS: Final = 64


class Outcome(enum.StrEnum):
    """What happens to the object: a label of metrics and a field of log lines."""

    CONVERTED = "converted"
    """Legacy limits became a claim."""
    RESTORED = "restored"
    """A converted pod lost fields and gets them back."""
    ENRICHED = "enriched"
    """A claim or template with class and count only got what a pod of that count gets."""
    HINTED = "hinted"
    """A workload got a scheduling hint."""
    MUTATED = "mutated"
    """Policies changed the object, and conversion did not."""
    SHADOWED = "shadowed"
    """Shadow mode: it would have been converted or refused, and is not changed."""
    UNCHANGED = "unchanged"
    """The object is admitted unchanged."""
    DENIED = "denied"


class Operation(TypedDict, total=False):
    """One JSON patch operation (RFC 6902)."""

    op: str
    path: str
    value: Any


@dataclasses.dataclass(frozen=True)
class Decision:
    """The answer, and the templates that must exist before it is sent.

    Attributes:
        reason: reason for logs and metrics, e.g. `legacy-resources` or `mode-off-by-pod`.
        patch: JSON patch operations (RFC 6902) on the object exactly as it was sent.
        templates: ResourceClaimTemplates that must exist in the object's namespace first.
        needs: what templates of operators must serve; the reviewer checks them after the decision.
        warnings: shown to the user.
        errors: if not empty, the object is refused.
        status_code: `status.code` of the refusal.
        status_reason: `status.reason` of the refusal.
        audit: audit annotations, keys without the webhook's prefix.
        resource: the legacy resource that the pod requests, or `SEVERAL`; empty if there is none.
        shadowed: the outcome that shadow mode prevented; None in other modes.
        claimed_class: DeviceClass of the claim of a converted pod whose queue may not count it; empty if the pod is not
            converted now, or if a policy sets the mode of queued pods and the claim has no alternatives.
        alternatives: whether the claim of a converted pod has some (`firstAvailable`).
        shows_queue: whether the pod, or what is added to it, shows a queue.
        locked: whether the policy of a converted pod is locked: the pod is never admitted without its template.
        patch_size: bytes of the patch as JSON; 0: not counted.
        rendered: cache of the edge: the bytes made of this decision. Neither compared nor copied.
    """

    outcome: Outcome
    reason: str
    patch: tuple[Operation, ...] = ()
    templates: tuple[Template, ...] = ()
    needs: tuple[Need, ...] = ()
    warnings: tuple[Finding, ...] = ()
    errors: tuple[Finding, ...] = ()
    status_code: int = 422
    status_reason: str = "Invalid"
    audit: Mapping[str, str] = dataclasses.field(default_factory=dict)
    resource: str = ""
    shadowed: Outcome | None = None
    claimed_class: str = ""
    alternatives: bool = False
    shows_queue: bool = False
    locked: bool = False
    patch_size: int = dataclasses.field(default=0, compare=False)
    rendered: Any = dataclasses.field(default=None, init=False, repr=False, compare=False)

    @property
    def allowed(self) -> bool:
        """Whether the object is admitted."""
        return not self.errors


def unchanged(reason: str, *warnings: Finding) -> Decision:
    """Admit the object without a change."""
    return Decision(Outcome.UNCHANGED, reason, warnings=warnings)


def denied(reason: str, *errors: Finding, warnings: tuple[Finding, ...] = ()) -> Decision:
    """Refuse the object with all findings, at most `_MOST_FINDINGS`."""
    if len(errors) > _MOST_FINDINGS:
        left_out = len(errors) - _MOST_FINDINGS
        message = f"{left_out} more findings are left out."
        errors = (*errors[:_MOST_FINDINGS], dataclasses.replace(errors[-1], message=message, fix=""))
    return Decision(Outcome.DENIED, reason, errors=errors, warnings=warnings)
