"""What all nodes have together, by instance type: how full and how fragmented they are."""

import dataclasses
from collections import Counter
from collections.abc import Iterable

from commands.devices.devices import DeviceState, NodeMap


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
