"""The values of a rehearsal: what it starts from, its steps and its result. Frozen, without behaviour beyond sums.

Structs are printed as JSON by the names that they are renamed to: these are stable.
"""

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from commands.cluster.reader import Object
from commands.report.model import NO_DEVICES, Devices, Heading, Reference, Topic
from neuron.allocator.search import AllocatorClaim
from neuron.findings import Finding
from runtime.text import counted

_SPREAD: Final = frozenset(
    {"Deployment", "ReplicaSet", "ReplicationController", "StatefulSet", "LeaderWorkerSet", "Rollout"}
)
"""Kinds whose pods a ReplicaSet, ReplicationController or StatefulSet creates."""


class WaitCause(enum.StrEnum):
    """Why a pod waits, or is not created."""

    COUNT = "count"
    """No node has as many free devices."""
    RUN = "run not free"
    """As many are free, and they are not connected."""
    TAINT = "taint"
    SELECTION = "node selection"
    RESOURCES = "cpu or memory"
    NO_DRIVER = "no driver node yet"
    """Nodes that it may run on have no driver."""
    NO_PLUGIN = "no plugin node left"
    QUOTA = "quota"
    QUEUE = "queue"
    POOL = "pool"
    """The nodes of an autoscaler's pool cannot serve it."""
    DENIED = "denied"
    UNKNOWN = "cannot know"


@dataclasses.dataclass(frozen=True, slots=True)
class Reason:
    """Why a pod does not run; `fix` is empty if there is nothing to do but wait."""

    cause: WaitCause
    text: str
    fix: str = ""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Form:
    """What a pod needs of a node, as it is or after conversion. Compared by identity.

    Attributes:
        pod: its node selection and tolerations.
        plugin: amounts by legacy resource; empty after conversion.
        claim: all its claims as one; None before conversion.
        amounts: CPU in thousandths, memory and storage in bytes, and 1 of `pods`.
        devices: whole devices that it holds, for sums.
        charge: devices that a quota of the DeviceClass counts.
    """

    pod: Object
    plugin: Mapping[str, int]
    claim: AllocatorClaim | None
    amounts: Mapping[str, int]
    devices: int
    charge: int = 0


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class PodKind:
    """What pods of equal templates have in common.

    Attributes:
        before: devices of one pod with the plugin.
        after: its devices with claims, as far as its node does not decide; None if it is not converted.
        plugin: as the pods are written.
        claims: after conversion; None if they are not converted.
        decided: whether conversion does not depend on the namespace's annotation that the migration sets.
        refused: the finding for which a converted pod is not created, or None.
        waits: why it waits whatever is free (a queue, a pool), or None.
        why: why it is not converted; empty if it is.
    """

    workload: Reference
    plugin: Form
    before: Devices = NO_DEVICES
    after: Devices | None = None
    claims: Form | None = None
    decided: bool = False
    refused: Finding | None = None
    waits: Reason | None = None
    why: str = ""

    @property
    def namespace(self) -> str:
        return self.workload.namespace

    @property
    def spread(self) -> Reference | None:
        """The workload whose pods the scheduler spreads over nodes; None if it does not."""
        return self.workload if self.workload.kind in _SPREAD else None


class Maker(enum.StrEnum):
    """What creates a pod again."""

    CONTROLLER = "controller"
    NOBODY = "nobody"
    """A drain stops at it: it is deleted, and created again from its manifest, by hand."""
    DAEMON_SET = "DaemonSet"
    """A drain leaves it; it is deleted by hand once the driver runs."""
    KUBELET = "kubelet"
    """A static pod."""


@dataclasses.dataclass(frozen=True, slots=True)
class PlayedPod:
    """A pod of the cluster that uses Neuron devices.

    Attributes:
        node: where it runs at first; empty: it waits.
        budgets: indices of the PodDisruptionBudgets that count it.
        together: pods with the same text are created again together (a group of a LeaderWorkerSet); empty: alone.
        keeps: why it must not be evicted; empty if it may be.
        converted: whether it has claims already.
        devices: indices that its annotation names; None: not known.
    """

    namespace: str
    name: str
    kind: PodKind
    node: str
    budgets: tuple[int, ...] = ()
    maker: Maker = Maker.CONTROLLER
    together: str = ""
    keeps: str = ""
    converted: bool = False
    devices: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Group(Struct, frozen=True, rename={"types": "instanceTypes"}):
    """Nodes that move together.

    Attributes:
        name: their label, `key=value`.
        nodes: their names, sorted.
        types: their instance types.
    """

    name: str
    nodes: tuple[str, ...]
    types: tuple[str, ...]


class Move(Struct, frozen=True, rename={"origin": "from", "paused": "waited"}):
    """A pod that is created again; `to` is empty if it does not run at the end of the step.

    Attributes:
        paused: whether it waited until the group had the driver.
        converted: whether it has claims now.
        wave: of the drain, from 1; 0: by hand, after it.
    """

    pod: int
    origin: str
    to: str
    paused: bool
    converted: bool
    wave: int


class FreePlace(Struct, frozen=True):
    """What is free with the driver, of one instance type.

    Attributes:
        devices: that a claim can get.
        connected: the largest connected set of them on one node.
        node: that has it.
    """

    devices: int
    connected: int
    node: str


class DeviceFigures(Struct, frozen=True, rename="camel"):
    """Devices of the cluster at one time: offered and used by plugin and driver, and of pods that do not run."""

    plugin: int
    plugin_used: int
    driver: int
    driver_used: int
    waiting: int


@dataclasses.dataclass(frozen=True, slots=True)
class NodeShot:
    """A node after a step.

    Attributes:
        side: `plugin` or `driver`.
        held: pods on its devices by index: numbers of pods; -1: another holder.
    """

    name: str
    group: str
    instance_type: str
    side: str
    devices: int
    held: Mapping[int, tuple[int, ...]]


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """The move of one group.

    Attributes:
        group: its name.
        converts: namespaces that are set to convert before the drain.
        waves: of the drain; more than one if PodDisruptionBudgets bound it.
        moves: pods that were created again.
        waiting: pods that ran at first and do not run after the step: number and reason.
        ended: pods that must not be evicted: the step waits until they end.
        by_hand: pods that are deleted by hand.
        stalled: why the drain does not end; empty if it does. Then the group keeps the plugin.
        back: why the step cannot be undone; empty if it can.
        figures: after the step.
        free: after the step, by instance type.
        shots: the nodes after the step; empty if they were not asked for.
    """

    group: str
    converts: tuple[str, ...]
    waves: int
    moves: tuple[Move, ...]
    waiting: tuple[tuple[int, Reason], ...]
    ended: tuple[int, ...]
    by_hand: tuple[int, ...]
    stalled: str
    back: str
    figures: DeviceFigures
    free: Mapping[str, FreePlace]
    shots: tuple[NodeShot, ...] = ()

    @property
    def paused(self) -> int:
        """Pods that waited during the step, and run after it."""
        return sum(each.paused and bool(each.to) for each in self.moves)

    @property
    def denied(self) -> int:
        return sum(reason.cause is WaitCause.DENIED for _, reason in self.waiting)


_COSTS: Final = {"stalled": "notDrained", "waiting": "notRunning", "paused": "waited", "moved": "moves"}


class Cost(Struct, frozen=True, order=True, rename=_COSTS):
    """What an order costs, the worst first: groups that do not move, pods that do not run at the end, pods that wait
    for a while, pods that are created again.
    """

    stalled: int
    waiting: int
    paused: int
    moved: int


@dataclasses.dataclass(frozen=True, slots=True)
class Play:
    """One order, played to its end."""

    order: tuple[str, ...]
    steps: tuple[Step, ...]

    @property
    def cost(self) -> Cost:
        stalled = {each.group for each in self.steps if each.stalled} - {
            each.group for each in self.steps if not each.stalled
        }
        last = self.steps[-1].waiting if self.steps else ()
        moved = sum(len(each.moves) for each in self.steps)
        # A pod that waited through several steps is counted in each of them.
        paused = sum(each.paused for each in self.steps) + sum(len(each.waiting) for each in self.steps[:-1])
        return Cost(len(stalled), len(last), paused, moved)

    @property
    def calm(self) -> bool:
        """Whether no pod ever waits, and none is denied."""
        return not (self.cost.stalled or self.cost.waiting or self.cost.paused)


class Spares(Struct, frozen=True):
    """Spare nodes.

    Attributes:
        given: number by instance type that was asked for with the rehearsal.
        needed: the smallest numbers with which nothing waits; None: no number helps, or it was not found.
        why: why there is none.
    """

    given: Mapping[str, int]
    needed: Mapping[str, int] | None
    why: str = ""


class AssumedPool(Struct, frozen=True, rename="camel"):
    """A Karpenter pool that is played with another number of nodes than it has.

    Attributes:
        pool: its kind and name.
        nodes: the number that was asked for.
        added: names of those that do not exist.
        instance_type: of the added nodes.
        driver: whether they have the driver from the start; else they join with the device plugin.
        was_dynamic: whether its autoscaler makes nodes when pods wait. It is played as a static pool.
        open_labels: of which it allows several values: the added nodes have none of them.
    """

    pool: str
    nodes: int
    added: tuple[str, ...]
    instance_type: str
    driver: bool
    was_dynamic: bool
    open_labels: tuple[str, ...]

    def __str__(self) -> str:
        """The assumption, as a sentence."""
        new = f", {len(self.added)} more than it has, with the {'driver' if self.driver else 'device plugin'}"
        static = ", and is a static pool (`replicas`)" if self.was_dynamic else ""
        nodes = f"{counted(self.nodes, 'node')} of {self.instance_type}"
        return f"Assumed (--pool): {self.pool} has {nodes}{new if self.added else ''}{static}."


@dataclasses.dataclass(frozen=True, slots=True)
class Rehearsal(Heading):
    """A whole rehearsal.

    Attributes:
        start: figures before the first step.
        pods: all pods; steps have their numbers.
        best: the order that costs least of those that were tried, or the one that was given.
        others: other orders, with what they cost.
        all_orders: whether all orders were tried.
        changes: what is different for converted pods, and is no obstacle.
        sizes: by workload: devices of all pods before, and on the nodes that they have at the end, where they differ.
        unknown: what cannot be known, each with its reason.
        problems: what could not be read.
        shots: the nodes before the first step; empty if they were not asked for.
        today: pods that wait before the first step: number, reason, and that at the end; None if they run then.
        assumed: pools with another number of nodes than they have.
    """

    groups: tuple[Group, ...]
    pods: Sequence[PlayedPod]
    start: DeviceFigures
    best: Play
    others: tuple[tuple[tuple[str, ...], Cost], ...]
    all_orders: bool
    spares: Spares
    changes: tuple[Topic, ...] = ()
    sizes: tuple[tuple[Reference, str, str], ...] = ()
    unknown: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    shots: tuple[NodeShot, ...] = ()
    today: tuple[tuple[int, Reason, Reason | None], ...] = ()
    assumed: tuple[AssumedPool, ...] = ()

    @property
    def well(self) -> bool:
        """Whether no pod that runs today waits, and none is denied, also of those that wait today, as in a report."""
        return self.best.calm and not self.denied_today

    @property
    def denied_today(self) -> tuple[tuple[int, Reason], ...]:
        """Pods that wait before the first step and are denied at the end: number and reason."""
        return tuple((number, end) for number, _, end in self.today if end and end.cause is WaitCause.DENIED)
