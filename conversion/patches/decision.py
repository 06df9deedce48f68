"""The decision about one object, and the operations of its JSON patch (RFC 6902).

A decision is frozen, and independent of the review that it answers, so that it can be cached. A patch is of the object
exactly as it was sent: no list is rebuilt from decoded fields, so unknown fields of any API version survive.
"""

import dataclasses
import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypedDict

import orjson

from conversion.claims.mapped_templates import Need
from conversion.claims.templates import Template
from conversion.objects.nesting import key_of
from conversion.objects.pod_places import pointer
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


MOST_BYTES: Final = 44 * 1024
"""Largest size of a patch as JSON. In base64 it has 59 KiB, and an answer has at most 64 KiB."""


def size_of(value: object) -> int:
    """Bytes of JSON-like data as JSON."""
    try:
        return len(orjson.dumps(value))
    except TypeError:  # an integer of more than 64 bits, or a single surrogate
        return len(key_of(value).encode(errors="surrogatepass"))


def add(path: str, value: object) -> Operation:
    """Add a member, or insert an item."""
    return {"op": "add", "path": path, "value": value}


def remove(path: str) -> Operation:
    """Remove a member or an item."""
    return {"op": "remove", "path": path}


def replace(path: str, value: object) -> Operation:
    """Replace a member or an item."""
    return {"op": "replace", "path": path, "value": value}


def set_value(path: str, current: object, value: object) -> Operation:
    """Set a member that may be absent."""
    return add(path, value) if current is None else replace(path, value)


def append(path: str, current: Sequence[object] | None, values: Sequence[object]) -> list[Operation]:
    """Append to a list that may be absent."""
    if not values:
        return []
    if current is None:
        return [add(path, list(values))]
    return [add(f"{path}/-", value) for value in values]


def set_members(path: str, current: Mapping[str, object] | None, members: Mapping[str, object]) -> list[Operation]:
    """Set members of an object that may be absent. Members that have the value already need no operation."""
    if current is None:
        return [add(path, dict(members))] if members else []
    return [add(path + pointer(key), value) for key, value in members.items() if current.get(key) != value]


def remove_members(path: str, current: Mapping[str, object] | None, keys: Iterable[str]) -> list[Operation]:
    """Remove members that exist. An object that would become empty is removed."""
    present = [key for key in keys if key in (current or {})]
    if not present:
        return []
    if len(present) == len(current or {}):
        return [remove(path)]
    return [remove(path + pointer(key)) for key in present]
