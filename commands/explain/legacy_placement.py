"""Which nodes could take a pod that keeps the limits of the device plugin. Pure.

The scheduler counts extended resources: the node's allocatable amount, less what its pods request.
"""

from collections import Counter, defaultdict
from typing import Final

from commands.cluster.listing import Object
from commands.devices.cluster_devices import ClusterDevices
from commands.explain.placement import load_block, node_block
from commands.explain.verdicts import Block, Blocked, NodeVerdict
from conversion.claims.containers import scheduled
from neuron.api.nodes import Node

_ENDED: Final = ("Succeeded", "Failed")


def place_legacy(pod: Object, cluster: ClusterDevices) -> tuple[NodeVerdict, ...]:
    """The verdict for each node, by name."""
    wanted = scheduled(pod.get("spec"))
    used: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for each in cluster.pods:
        node = (each.get("spec") or {}).get("nodeName")
        if node and (each.get("status") or {}).get("phase") not in _ENDED:
            used[node].update(scheduled(each.get("spec")))
    verdicts = (_verdict(pod, node, wanted, used[node.name], cluster) for node in cluster.nodes)
    return tuple(sorted(verdicts, key=lambda each: each.node))


def _verdict(pod: Object, node: Node, wanted: Counter[str], used: Counter[str], cluster: ClusterDevices) -> NodeVerdict:
    name = node.name
    instance_type = cluster.instance_type(node)
    if cluster.map_of(name) is None and instance_type not in cluster.catalogue:
        return NodeVerdict(name, instance_type, block=Block.NOT_NEURON, reason="no Neuron devices")
    found = node_block(pod, node, instance_type) or _missing(node, wanted, used) or load_block(pod, node, cluster)
    return NodeVerdict(name, instance_type) if found is None else found.verdict(name, instance_type)


def _missing(node: Node, wanted: Counter[str], used: Counter[str]) -> Blocked | None:
    for resource, amount in wanted.items():
        offered = node.offered(resource)
        if not offered:
            return Blocked(Block.NO_PLUGIN, f"no device plugin offers {resource} there")
        if offered - used[resource] < amount:
            free = max(0, offered - used[resource])
            return Blocked(Block.HELD, f"{free} of {offered} {resource} free, the pod needs {amount}")
    return None
