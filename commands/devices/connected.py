"""Connected sets of a node's devices: those that claims can request by attributes, and the largest one that is free."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from commands.devices.devices import DeviceGroup, NodeMap
from neuron.hardware.connections import links
from neuron.hardware.device_shapes import Value
from neuron.hardware.instances import InstanceType, Topology

_SET: Final = re.compile(
    r"resource\.aws\.com/devicegroup([0-9]{1,3})_id|neuron\.aws\.com/window([0-9]{1,3})_[0-9]{1,3}", re.ASCII
)

_RUNS: Final = (2, 4, 8)


def connects(attribute: str) -> bool:
    """Whether the devices that have one value of an attribute are connected."""
    return _SET.fullmatch(attribute) is not None


def groups(devices: Mapping[int, Mapping[str, Value]]) -> tuple[DeviceGroup, ...]:
    """The connected sets that claims can request by an attribute, the largest first.

    Args:
        devices: attributes by qualified name, by index.
    """
    found: defaultdict[tuple[int, str, str], list[int]] = defaultdict(list)
    for index, attributes in devices.items():
        for name, value in attributes.items():
            match = _SET.fullmatch(name)
            if match is not None and isinstance(value, str):
                found[int(match[1] or match[2]), name, value].append(index)
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
        sets: as of `groups`.
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


def largest(
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
        sets: as of `groups`.
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


def places(
    entry: InstanceType | None,
    indices: Sequence[int],
    free: Collection[int],
    sets: Sequence[DeviceGroup],
    pairs: Sequence[tuple[int, int]],
) -> dict[int, int]:
    """How many connected sets of a size are free at the same time, by size.

    The sizes are 1, those of groups and the whole node; on rings and chains 1, 2, 4, 8 and the whole node. Arguments as
    of `largest`.
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


def sets_for(node: NodeMap, size: int) -> tuple[tuple[int, ...], ...]:
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
