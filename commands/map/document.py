"""The device map as JSON for programs, and its counts by instance type. Fields are only added, not changed."""

import dataclasses
from collections import Counter
from collections.abc import Iterable

from commands.devices.devices import Device, DeviceMap, DeviceState, HeldDevice, NodeMap
from commands.devices.snapshot import ClusterSnapshot
from runtime.console import json_text


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


Json = dict[str, object]


def as_json(found: DeviceMap, seen: ClusterSnapshot) -> str:
    """One document with all nodes."""
    document = {
        "cluster": seen.address,
        "time": seen.taken.isoformat(timespec="seconds"),
        "types": [type_summary(each) for each in summarise(found.nodes)],
        "nodes": [_node(node) for node in found.nodes],
        "strayClaims": [
            {**_holding(stray.holding), "pool": stray.pool, "device": stray.device} for stray in found.strays
        ],
        "problems": list(found.problems),
    }
    return json_text(document)


def type_summary(each: TypeSummary) -> Json:
    return {
        "instanceType": each.instance_type,
        "nodes": each.nodes,
        "closedNodes": each.closed,
        "devicePluginNodes": each.on_plugin,
        "devices": each.devices,
        "devicesByState": {state.value: count for state, count in each.states.items()},
        "faults": each.faults,
        "largestFree": each.largest,
        "largestFreeNode": each.where,
        "places": {str(size): count for size, count in each.places.items()},
        "nodesByLargestFree": {str(size): count for size, count in each.spread.items()},
    }


def _node(node: NodeMap) -> Json:
    place, plugin = node.ultraserver, node.plugin
    return {
        "name": node.name,
        "instanceType": node.instance_type,
        "topology": node.topology.value if node.topology else None,
        "closed": node.closed,
        "free": len(node.free),
        "wholeNodeFree": node.whole_free,
        "largestFree": list(node.largest_free),
        "places": {str(size): count for size, count in node.places.items()},
        "ultraServer": dataclasses.asdict(place) if place else None,
        "devicePlugin": {"devices": plugin.devices, "used": plugin.used, "pods": list(plugin.pods)} if plugin else None,
        "devices": [_device(device) for device in node.devices],
        "links": [list(pair) for pair in node.links],
        "groups": [{"attribute": group.attribute, "devices": list(group.members)} for group in node.groups],
    }


def _device(device: Device) -> Json:
    return {
        "index": device.index,
        "name": device.name,
        "state": device.state.value,
        "fault": device.fault,
        "taints": [str(taint) for taint in device.taints],
        "cores": device.cores,
        "freeCores": device.free_cores if device.shared else None,
        "holders": [_holding(each) for each in device.holders],
        "lookers": [_holding(each) for each in device.lookers],
    }


def _holding(holding: HeldDevice) -> Json:
    return {
        "namespace": holding.namespace,
        "claim": holding.claim,
        "request": holding.request,
        "pods": list(holding.pods),
        "podGroups": list(holding.groups),
        "cores": holding.cores,
        "wholeNode": holding.whole_node,
    }
