"""The device map as JSON for programs. Fields are only added, not changed."""

import dataclasses

from commands.devices.devices import Device, DeviceMap, HeldDevice, NodeMap
from commands.devices.snapshot import ClusterSnapshot
from commands.map.summary import TypeSummary, summarise
from runtime.console import json_text

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
