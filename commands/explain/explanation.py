"""Everything that `neuron-dra explain` says of one pod and of each node for it, and what a diagnosis depends on."""

import dataclasses
import enum
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from commands.cluster.reader import Object
from commands.explain.admission_preview import AdmissionPreview
from neuron.allocator.search import AllocatorResult
from neuron.api.nodes import Node
from neuron.api.slices import Slice
from neuron.api.stored_claims import StoredClaim
from neuron.findings import Severity
from runtime.text import cited, named


class Block(enum.StrEnum):
    """Why a node cannot take a pod. The order is that in which people should read them."""

    NOT_TRIED = "not-tried"
    NOT_CONNECTED = "not-connected"
    HELD = "held"
    RESOURCES = "node-resources"
    LNC = "lnc-conflict"
    TAINTED = "device-tainted"
    COUNTERS = "counters"
    PLUGIN = "device-plugin"
    NO_PLUGIN = "no-device-plugin"
    NO_DRIVER = "no-driver"
    INCOMPLETE = "incomplete-pool"
    NOT_READY = "node-not-ready"
    CORDONED = "cordoned"
    NODE_TAINT = "node-taint"
    SELECTION = "node-selection"
    ELSEWHERE = "claim-allocated-elsewhere"
    WRONG_TYPE = "wrong-type"
    TOO_FEW = "too-few-devices"
    SELECTOR_FAILS = "selector-fails"
    TOO_LONG = "search-too-long"
    NOT_NEURON = "no-neuron-devices"


@dataclasses.dataclass(frozen=True, slots=True)
class NodeVerdict:
    """The answer for one node.

    Attributes:
        instance_type: of the node; empty if unknown.
        devices: that the pod would get, by request; empty if it cannot run there.
        texts: the same for people: each device once, with the part of it that the pod would get.
        block: the reason; None if it can run there.
        free: devices that are free, if some are missing.
        reason: equal for all nodes with the same reason; they are shown together.
    """

    node: str
    instance_type: str
    devices: tuple[AllocatorResult, ...] = ()
    texts: tuple[str, ...] = ()
    block: Block | None = None
    reason: str = ""
    detail: str = ""
    free: int = 0

    @property
    def fits(self) -> bool:
        return self.block is None


@dataclasses.dataclass(frozen=True, slots=True)
class Blocked:
    """Why a node cannot take a pod; as in `NodeVerdict`."""

    block: Block
    reason: str
    detail: str = ""
    free: int = 0

    def verdict(self, node: str, instance_type: str) -> NodeVerdict:
        return NodeVerdict(
            node, instance_type, block=self.block, reason=self.reason, detail=self.detail, free=self.free
        )


@dataclasses.dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes with one reason.

    Attributes:
        nodes: their verdicts, by name.
    """

    block: Block
    reason: str
    nodes: tuple[NodeVerdict, ...]


_ORDER: Final[Mapping[Block, int]] = {block: place for place, block in enumerate(Block)}


def grouped(verdicts: Iterable[NodeVerdict]) -> tuple[NodeGroup, ...]:
    """The nodes that cannot take the pod, by reason: the closest to a solution first.

    Of one kind of reason, those with the most free devices, then the largest group.
    """
    found: defaultdict[tuple[Block, str], list[NodeVerdict]] = defaultdict(list)
    for each in verdicts:
        if each.block is not None:
            found[each.block, each.reason].append(each)
    groups = [NodeGroup(block, reason, tuple(nodes)) for (block, reason), nodes in found.items()]

    def distance(group: NodeGroup) -> tuple[int, int, int, str]:
        free = max(node.free for node in group.nodes)
        return _ORDER[group.block], -free, -len(group.nodes), group.reason

    return tuple(sorted(groups, key=distance))


class PodState(enum.StrEnum):
    """How a pod of the cluster is."""

    WELL = "well"
    WAITS = "waits"
    STUCK = "stuck"


@dataclasses.dataclass(frozen=True, slots=True)
class Quote:
    """A text of the cluster. Only `str` of it is shown: it names the source, and puts the text between quotes.

    Users who may write the object can write any text, also one that looks like advice of this program: no part of it is
    repeated in `Diagnosis.text` or `Diagnosis.fix`.

    Attributes:
        source: where it is from: kind and name of the object, and who reports it.
    """

    source: str
    text: str

    def __str__(self) -> str:
        return f"{self.source}: {cited(self.text)}"


@dataclasses.dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a pod of the cluster does not run, and what to do. `text` and `fix` are words of this program.

    Attributes:
        case: a stable word for programs, e.g. `template-missing`.
        text: one or two sentences.
        fix: what to do; empty if nothing.
        evidence: the condition, Event or field that this is from, as a quote; None if it is from none.
    """

    case: str
    state: PodState
    text: str
    fix: str = ""
    evidence: Quote | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of one pod.

    Attributes:
        preview: what admission makes of it.
        nodes: one verdict per Node; None without a cluster.
        notes: what could not be read or judged, one sentence each.
        diagnosis: of a pod of the cluster; None for a file.
    """

    preview: AdmissionPreview
    nodes: tuple[NodeVerdict, ...] | None = None
    notes: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None

    @property
    def blocked(self) -> bool:
        """Whether the pod or its claim is refused, or the pod does not run."""
        if self.diagnosis is not None:
            return self.diagnosis.state is not PodState.WELL
        preview = self.preview
        wrong = any(each.severity is Severity.ERROR for claim in preview.claims for each in claim.findings)
        return wrong or any(effect.exceeded for effect in preview.quotas) or preview.refused


# --- what a diagnosis depends on --------------------------------------------------------------------------------------


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
