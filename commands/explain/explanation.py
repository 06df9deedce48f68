"""Everything that `neuron-dra explain` says of one pod, and of each node for it."""

import dataclasses
import enum
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from commands.explain.admission_preview import AdmissionPreview
from neuron.allocator.search import AllocatorResult
from neuron.findings import Severity
from runtime.text import cited


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
    return tuple(sorted(groups, key=_distance))


def _distance(group: NodeGroup) -> tuple[int, int, int, str]:
    free = max(node.free for node in group.nodes)
    return _ORDER[group.block], -free, -len(group.nodes), group.reason


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
        return preview.refused or wrong or any(effect.exceeded for effect in preview.quotas)
