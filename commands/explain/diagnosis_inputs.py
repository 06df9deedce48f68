"""What a diagnosis of a pod of the cluster depends on."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

from commands.cluster.reader import Object
from commands.explain.admission_preview import AdmissionPreview
from commands.explain.explanation import NodeVerdict, Quote
from neuron.api.nodes import Node
from neuron.api.slices import Slice
from neuron.api.stored_claims import StoredClaim
from runtime.text import named

_LONGEST_VERSION: Final = 19
"""Digits of a `resourceVersion`, a number of 64 bits."""


@dataclasses.dataclass(frozen=True, slots=True)
class DiagnosisInputs:
    """What a diagnosis depends on.

    Attributes:
        events: its Events, the oldest first.
        preview: what admission would make of it now.
        claims: the claim of each entry of `spec.resourceClaims`; None if it does not exist.
        templates: whether the templates that it names exist; None if that is not known.
        nodes: verdicts; None if nodes cannot be judged.
        node: the Node that it is bound to; None if it is not bound, or the Node does not exist.
        all_nodes: all Nodes.
        slices: the driver's ResourceSlices.
        not_called: why the API server does not call the webhook for its namespace; empty if it does.
        unknown_class: a DeviceClass that a claim names and that does not exist; empty if there is none.
        in_tree: whether DeviceClasses serve the limits that it has (KEP-5004).
        group: its PodGroup; None if it has none, or the PodGroup does not exist or is not known.
        group_missing: whether its PodGroup does not exist.
        workload: the NeuronUltraServerWorkload whose template it uses; None if there is none.
        queued: the Workload that Kueue made of it, while its scheduling gate is set; None if there is none.
    """

    pod: Object
    events: Sequence[Object]
    preview: AdmissionPreview
    claims: Mapping[str, StoredClaim | None] = dataclasses.field(default_factory=dict)
    templates: Mapping[str, bool | None] = dataclasses.field(default_factory=dict)
    nodes: Sequence[NodeVerdict] | None = None
    node: Node | None = None
    all_nodes: Sequence[Node] = ()
    slices: Sequence[Slice] = ()
    not_called: str = ""
    unknown_class: str = ""
    in_tree: bool = False
    group: Object | None = None
    group_missing: bool = False
    workload: Object | None = None
    queued: Object | None = None

    @property
    def gates(self) -> list[str]:
        """Names of its scheduling gates."""
        return gates_of(self.pod)

    @property
    def spec(self) -> Object:
        spec: Object = self.pod.get("spec") or {}
        return spec

    @property
    def status(self) -> Object:
        status: Object = self.pod.get("status") or {}
        return status

    @property
    def node_name(self) -> str:
        return str(self.spec.get("nodeName") or "")

    @property
    def name(self) -> str:
        return str(self.pod["metadata"].get("name") or "")

    @property
    def namespace(self) -> str:
        return str(self.pod["metadata"].get("namespace") or "")

    def event(self, *reasons: str) -> Object | None:
        """The newest Event with one of these reasons."""
        found = [each for each in self.events if each.get("reason") in reasons]
        return max(found, key=event_order, default=None)


def gates_of(pod: Object) -> list[str]:
    """Names of the scheduling gates of a pod."""
    return [str(each.get("name")) for each in (pod.get("spec") or {}).get("schedulingGates") or ()]


def evidence_of(event: Object | None) -> Quote | None:
    """The message of an Event, with what the Event states about itself.

    Everything in it, also who reports it, was chosen by its author: anybody who may create Events in the namespace.
    """
    if event is None:
        return None
    metadata = event.get("metadata") or {}
    source = event.get("source") or {}
    reporter = event.get("reportingComponent") or source.get("component") or ""
    place = event.get("reportingInstance") or source.get("host") or ""
    count = (event.get("series") or {}).get("count") or event.get("count") or 1
    seen = event_time(event)
    told = [
        f"of Event {named(metadata.get('name') or '')}",
        f"reported as {named(reporter)}" if reporter else "without a reporter",
        f"at {named(place)}" if place and place != reporter else "",
        f"{count} times" if isinstance(count, int) and count > 1 else "",
        f"last at {named(seen)}" if seen else "",
    ]
    return Quote(f"Event {named(event.get('reason') or '')} ({', '.join(filter(None, told))})", message_of(event))


def message_of(event: Object) -> str:
    return str(event.get("message") or "")


def condition_quote(found: Object, owner: str = "the pod") -> Quote | None:
    """The message of a condition; None without one."""
    message = str(found.get("message") or "")
    reason = f" {named(found['reason'])}" if found.get("reason") else ""
    return Quote(f"condition {named(found.get('type') or '')}{reason} of {owner}", message) if message else None


def condition(found: Object, kind: str) -> Object:
    """A condition of an object; empty without it."""
    conditions = (found.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == kind), {})


def event_time(event: Object) -> str:
    """When an Event was seen last, RFC 3339 in UTC, so that text order is time order."""
    series = event.get("series") or {}
    times: Sequence[object] = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return str(next(filter(None, times), ""))


def event_order(event: Object) -> tuple[str, int]:
    """Sorts Events by when they were seen last. Of the same second, the one that was written last is the newest.

    A `resourceVersion` is a decimal number (KEP-5504).
    """
    version = str((event.get("metadata") or {}).get("resourceVersion") or "")
    comparable = version.isascii() and version.isdecimal() and len(version) <= _LONGEST_VERSION
    return event_time(event), int(version) if comparable else 0
