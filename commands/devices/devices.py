"""The device map: nodes, their devices, who holds them, and which are connected. `device_map` makes it."""

import dataclasses
import enum
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from checks.claims.connections import group_size
from neuron import names
from neuron.api.nodes import Node
from neuron.api.slices import PublishedDevice
from neuron.api.taints import Taint
from neuron.hardware.connections import links
from neuron.hardware.device_shapes import Value
from neuron.hardware.instances import InstanceType, Topology
from runtime.text import named

UNHEALTHY = f"{names.DRIVER}/unhealthy"
"""Key of the taint that the driver sets on a faulty device."""


def fault_text(node: Node) -> str:
    """What an agent of AWS reports about a node's Neuron devices: type and reason of the condition, or nothing."""
    found = node.reported_fault
    return f"{named(found.type)}: {named(found.reason or 'no reason')}" if found is not None else ""


@dataclasses.dataclass(frozen=True, slots=True)
class HeldDevice:
    """One result of a claim's allocation: a claim holds a device, or looks at it.

    Attributes:
        pods: names of the pods that have reserved the claim, sorted; also those that share it as pods of a PodGroup.
        request: of the claim, `req` or `req/sub`.
        cores: physical cores that it consumes of a shared device; None for a device that is not shared.
        whole_node: the claim has the device that stands for the whole node.
        groups: names of the PodGroups that have reserved it for their pods, sorted.
    """

    namespace: str
    claim: str
    uid: str
    pods: tuple[str, ...]
    request: str
    cores: int | None = None
    whole_node: bool = False
    groups: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """`namespace/claim`."""
        return f"{self.namespace}/{self.claim}"


class DeviceState(enum.StrEnum):
    """What a new claim for a device would find."""

    FREE = "free"
    HELD = "held"
    PARTLY = "partly"
    """Some of its cores are held; claims for cores can get the others."""
    UNHEALTHY = "unhealthy"
    """Not held, and the driver keeps claims away because of a fault."""
    TAINTED = "tainted"
    """Not held, and another taint keeps claims away."""
    PLUGIN = "plugin"
    """A device plugin has it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """A device of a node.

    Attributes:
        index: `deviceId`, or its position if it publishes none.
        holders: claims that hold it, or cores of it, or the whole node.
        lookers: claims with adminAccess to it: they look at it, and it stays free.
        cores: physical cores; None if unknown.
        shared: whether several claims can share it.
        published: as in the ResourceSlice; None for a device that is only part of a published whole node.
        offered: whether a claim can get it alone.
    """

    name: str
    index: int
    taints: tuple[Taint, ...] = ()
    holders: tuple[HeldDevice, ...] = ()
    lookers: tuple[HeldDevice, ...] = ()
    cores: int | None = None
    shared: bool = False
    published: PublishedDevice | None = dataclasses.field(default=None, compare=False, repr=False)
    offered: bool = True

    @property
    def with_plugin(self) -> bool:
        """Whether the driver holds it back because a device plugin offers it."""
        return any(taint.key == names.TAINT_DEVICE_PLUGIN for taint in self.taints)

    @property
    def fault(self) -> str:
        """The reason why it is unhealthy, e.g. `hbm-ecc`; empty if it is healthy."""
        return next((taint.value or "unhealthy" for taint in self.taints if taint.key == UNHEALTHY), "")

    @property
    def blocked(self) -> bool:
        """Whether a taint keeps new claims away."""
        return any(taint.prevents for taint in self.taints)

    @property
    def free(self) -> bool:
        """Whether a claim for the whole device can get it."""
        return not self.holders and not self.blocked

    @property
    def state(self) -> DeviceState:
        """What a new claim would find. A held device can have a fault, too."""
        if self.holders:
            return DeviceState.PARTLY if self.free_cores else DeviceState.HELD
        if self.with_plugin:
            return DeviceState.PLUGIN
        if self.blocked:
            return DeviceState.UNHEALTHY if self.fault else DeviceState.TAINTED
        return DeviceState.FREE

    @property
    def free_cores(self) -> int:
        """Cores that claims for shares can still get; 0 if the device is not shared or its cores are not known."""
        if not self.shared or self.cores is None or self.blocked:
            return 0
        return max(0, self.cores - sum(self.cores if each.cores is None else each.cores for each in self.holders))


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceGroup:
    """A set of connected devices that claims can request by an attribute.

    Attributes:
        attribute: qualified name; all members have the same value of it.
        members: device indices, ascending.
    """

    attribute: str
    members: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class UltraServerPlace:
    """A node's place in an UltraServer.

    Attributes:
        server: id that all its nodes share.
        size: nodes of the set, 2 or 4; 0 if only AWS's UltraServer operator says that the node is in an UltraServer.
        position: of the node in the set, from 0; None if the label is missing.
        workload: the NeuronUltraServerWorkload to which the operator has allocated the node; empty if there is none.
    """

    server: str
    size: int
    position: int | None
    workload: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class PluginUse:
    """What a device plugin offers on a node, and pods that use it.

    Attributes:
        devices: devices that it offers; 0 if it offers only cores.
        used: devices that pods request.
        pods: `namespace/name` of these pods, sorted.
    """

    devices: int
    used: int
    pods: tuple[str, ...]


ONLY_PLUGIN: Final = "device plugin only"
PLUGIN_FIRST: Final = "a device plugin offers its devices"
"""Values of `NodeMap.closed`."""


@dataclasses.dataclass(frozen=True, slots=True)
class NodeMap:
    """A node with Neuron devices.

    Attributes:
        name: of the node, and of its pool.
        instance_type: e.g. `trn2.48xlarge`; empty if unknown.
        topology: how its devices are connected; None if unknown.
        devices: single devices, by index.
        whole: the device that stands for the whole node, if the node publishes it.
        groups: connected sets that claims can request, the largest first.
        links: pairs of indices of connected devices.
        largest_free: the largest connected set of free devices, ascending; empty if no device is free. On a node that
            publishes only itself as a whole, all devices or none.
        places: how many connected sets of a size are free at the same time, by size.
        closed: why no new pod can get devices here, e.g. `cordoned`; empty if pods can.
        plugin: of a device plugin on the node; None without one.
        taints: keys of the node's taints that pods with Neuron devices do not tolerate by themselves.
    """

    name: str
    instance_type: str
    topology: Topology | None
    devices: tuple[Device, ...]
    whole: Device | None = None
    groups: tuple[DeviceGroup, ...] = ()
    links: tuple[tuple[int, int], ...] = ()
    largest_free: tuple[int, ...] = ()
    places: Mapping[int, int] = dataclasses.field(default_factory=dict)
    closed: str = ""
    ultraserver: UltraServerPlace | None = None
    plugin: PluginUse | None = None
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    taints: tuple[str, ...] = ()

    @property
    def free(self) -> tuple[Device, ...]:
        """Devices that a claim can get whole."""
        return tuple(device for device in self.devices if device.free)

    @property
    def holdings(self) -> tuple[HeldDevice, ...]:
        """One holding of each claim that holds devices here, by claim."""
        found = {each.uid: each for device in self.devices for each in device.holders}
        return tuple(sorted(found.values(), key=lambda each: each.name))

    @property
    def whole_free(self) -> bool:
        """Whether a claim can get the device that stands for the whole node: it and all devices are free."""
        return self.whole is not None and self.whole.free and all(device.free for device in self.devices)

    @property
    def open(self) -> bool:
        """Whether new pods can get devices here."""
        return not self.closed

    @property
    def on_plugin(self) -> bool:
        """Whether a device plugin has all its devices, as before it moves to the driver. That is no fault."""
        return self.closed in (ONLY_PLUGIN, PLUGIN_FIRST)


@dataclasses.dataclass(frozen=True, slots=True)
class Stray:
    """A claim that is allocated a device that no node publishes now, e.g. of a node that is gone."""

    holding: HeldDevice
    pool: str
    device: str


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceMap:
    """All nodes with Neuron devices.

    Attributes:
        nodes: by name.
        strays: claims for devices that are not published.
        problems: sentences about what could not be read, each with its fix.
        left_out: number of nodes that a filter does not admit.
    """

    nodes: tuple[NodeMap, ...]
    strays: tuple[Stray, ...] = ()
    problems: tuple[str, ...] = ()
    left_out: int = 0

    @property
    def nothing(self) -> str:
        """Why there is no node, as a sentence."""
        if not self.left_out:
            return "No node with Neuron devices."
        what = (
            "1 node with Neuron devices does" if self.left_out == 1 else f"{self.left_out} nodes with Neuron devices do"
        )
        return f"No node matches the filter: {what} not."

    def node(self, name: str) -> NodeMap | None:
        """The node of that name, or None."""
        return next((node for node in self.nodes if node.name == name), None)

    @property
    def largest_free(self) -> NodeMap | None:
        """The open node with the largest connected set of free devices; None if none is free."""
        best = max((node for node in self.nodes if node.open), key=lambda node: len(node.largest_free), default=None)
        return best if best is not None and best.largest_free else None


# --- counts by instance type ------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class TypeSummary:
    """The nodes of one instance type.

    Attributes:
        instance_type: empty if unknown.
        nodes: how many.
        closed: how many of them take no new pods, apart from those with the device plugin.
        on_plugin: how many have the device plugin: they take pods with its limits.
        states: devices by state.
        faults: devices with a fault, also held ones.
        largest: devices in the largest free connected set on an open node.
        where: the first node that has it; empty if no device is free.
        places: connected sets of a size that are free at the same time on open nodes, by size, ascending.
        spread: open nodes by the size of their largest free connected set, the largest first.
    """

    instance_type: str
    nodes: int
    closed: int
    on_plugin: int
    states: dict[DeviceState, int]
    faults: int
    largest: int
    where: str
    places: dict[int, int]
    spread: dict[int, int]

    @property
    def devices(self) -> int:
        return sum(self.states.values())


def summarise(nodes: Iterable[NodeMap]) -> tuple[TypeSummary, ...]:
    """One summary per instance type, by name."""
    by_type: dict[str, list[NodeMap]] = {}
    for node in nodes:
        by_type.setdefault(node.instance_type, []).append(node)
    return tuple(_summary(name, group) for name, group in sorted(by_type.items()))


def _summary(name: str, group: list[NodeMap]) -> TypeSummary:
    opened = [node for node in group if node.open]
    best = max(opened, key=lambda node: len(node.largest_free), default=None)
    largest = len(best.largest_free) if best is not None else 0
    places: Counter[int] = Counter()
    for node in opened:
        places.update(node.places)
    spread = Counter(len(node.largest_free) for node in opened)
    return TypeSummary(
        name,
        len(group),
        sum(not (node.open or node.on_plugin) for node in group),
        sum(node.on_plugin for node in group),
        dict(Counter(device.state for node in group for device in node.devices)),
        sum(bool(device.fault) for node in group for device in node.devices),
        largest,
        best.name if best is not None and largest else "",
        dict(sorted(places.items())),
        dict(sorted(spread.items(), reverse=True)),
    )


# --- connected sets: those that claims can request by attributes, and the largest one that is free --------------------


_RUNS: Final = (2, 4, 8)


def connected_groups(devices: Mapping[int, Mapping[str, Value]]) -> tuple[DeviceGroup, ...]:
    """The connected sets that claims can request by an attribute, the largest first.

    Args:
        devices: attributes by qualified name, by index.
    """
    found: defaultdict[tuple[int, str, str], list[int]] = defaultdict(list)
    for index, attributes in devices.items():
        for name, value in attributes.items():
            size = group_size(name)
            if size and isinstance(value, str):
                found[size, name, value].append(index)
    # Devices that no window contains have a value of their own.
    whole = [(size, name, members) for (size, name, _), members in found.items() if len(members) == size > 1]
    whole.sort(key=lambda each: (-each[0], each[1], sorted(each[2])))
    return tuple(DeviceGroup(name, tuple(sorted(members))) for _, name, members in whole)


def existing_links(
    entry: InstanceType | None, indices: Sequence[int], sets: Iterable[DeviceGroup]
) -> tuple[tuple[int, int], ...]:
    """Pairs of connected devices.

    On rings and chains the driver publishes windows only across links that exist, and across the link that closes a
    chain; without windows, as on nodes of AWS's driver, the links of the catalogue are used.

    Args:
        entry: the node's type; None if unknown.
        indices: of the devices that the node has.
        sets: as of `connected_groups`.
    """
    if entry is None:
        return ()
    count = entry.devices or len(indices)
    present = set(indices)
    known = [pair for pair in links(entry.topology, count) if present.issuperset(pair)]
    windows = [set(group.members) for group in sets]
    if not entry.consecutive or not windows:
        return tuple(known)
    candidates = {*known, (0, count - 1)} if count > 2 and {0, count - 1} <= present else set(known)
    return tuple(sorted(pair for pair in candidates if any(window.issuperset(pair) for window in windows)))


def largest_connected(
    entry: InstanceType | None,
    indices: Sequence[int],
    free: Collection[int],
    sets: Sequence[DeviceGroup],
    pairs: Sequence[tuple[int, int]],
) -> tuple[int, ...]:
    """The largest connected set of free devices that one claim can get, ascending; empty if none is free.

    Any run on a ring or chain; elsewhere a published group, the whole node or one device.

    Args:
        entry: the node's type; None if unknown.
        indices: of all devices.
        free: of the free ones.
        sets: as of `connected_groups`.
        pairs: as of `existing_links`.
    """
    available = set(free)
    if not available:
        return ()
    if len(available) == len(indices) and (entry is None or entry.devices in (None, len(indices))):
        return tuple(sorted(available))
    if entry is not None and entry.consecutive:
        return max(_runs(available, pairs), key=len, default=())
    fitting = (group.members for group in sets if available.issuperset(group.members))
    return max(fitting, key=len, default=(min(available),))


def connected_places(
    entry: InstanceType | None,
    indices: Sequence[int],
    free: Collection[int],
    sets: Sequence[DeviceGroup],
    pairs: Sequence[tuple[int, int]],
) -> dict[int, int]:
    """How many connected sets of a size are free at the same time, by size.

    The sizes are 1, those of groups and the whole node; on rings and chains 1, 2, 4, 8 and the whole node. Arguments as
    of `largest_connected`.
    """
    available, count = set(free), len(indices)
    everything = int(bool(count) and len(available) == count)
    found = {1: len(available)}
    if entry is not None and entry.consecutive:
        runs = [len(run) for run in _runs(available, pairs)]
        found |= {size: sum(run // size for run in runs) for size in _RUNS if size < count}
    else:
        for group in sets:
            size = len(group.members)
            found[size] = found.get(size, 0) + available.issuperset(group.members)
    return found | ({count: everything} if count > 1 else {})


def connected_sets(node: NodeMap, size: int) -> tuple[tuple[int, ...], ...]:
    """The sets of devices of a node from which a claim for `size` connected devices can get them.

    On a ring or chain these are the runs of that size, by the device at which they start; elsewhere the smallest groups
    that have so many devices, or the whole node. Free or not.
    """
    indices = tuple(device.index for device in node.devices)
    if size == 1:
        return tuple((index,) for index in indices)
    if node.topology in (Topology.RING, Topology.CHAIN):
        return _runs_of(size, indices, node.links)
    sizes = {len(group.members) for group in node.groups if len(group.members) >= size}
    found = {group.members for group in node.groups if len(group.members) == min(sizes)}
    whole = {indices} if len(indices) >= size and node.topology is not None else set[tuple[int, ...]]()
    return tuple(sorted(found or whole))


def _runs_of(size: int, indices: Sequence[int], pairs: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    around = _neighbours(set(indices), pairs)
    found: set[tuple[int, ...]] = set()
    for start in indices:
        for second in around[start]:
            run = [start, second]
            while len(run) < size and (more := [each for each in around[run[-1]] if each not in run]):
                run.append(more[0])
            if len(run) == size:
                found.add(tuple(sorted(run)))
    before = dict(zip(indices, (*indices[-1:], *indices[:-1]), strict=True))

    def first(run: tuple[int, ...]) -> int:
        return next((index for index in run if before[index] not in run), run[0])

    return tuple(sorted(found, key=first))


def _runs(available: set[int], pairs: Sequence[tuple[int, int]]) -> list[tuple[int, ...]]:
    """The runs of a line or ring: each component of connected devices is one."""
    around = _neighbours(available, pairs)
    found: list[tuple[int, ...]] = []
    seen: set[int] = set()
    for start in sorted(available):
        if start in seen:
            continue
        run, waiting = {start}, [start]
        while waiting:
            for other in around[waiting.pop()]:
                if other not in run:
                    run.add(other)
                    waiting.append(other)
        seen |= run
        found.append(tuple(sorted(run)))
    return found


def _neighbours(among: Collection[int], pairs: Sequence[tuple[int, int]]) -> Mapping[int, list[int]]:
    around: defaultdict[int, list[int]] = defaultdict(list)
    for a, b in pairs:
        if a in among and b in among:
            around[a].append(b)
            around[b].append(a)
    return around


def topology_of(entry: InstanceType | None, devices: int) -> Topology | None:
    """How the devices are connected; None if unknown."""
    if entry is not None:
        return entry.topology
    return Topology.SINGLE if devices == 1 else None
