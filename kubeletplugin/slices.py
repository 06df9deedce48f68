"""A node's devices as ResourceSlices (`resource.k8s.io/v1`). Pure: the same node gives the same bytes.

Attributes: the Neuron DRA driver's documentation ("Attributes Reference"). Limits and pool rules: `types.go` and
the validation of `resource.k8s.io/v1`.
"""

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from kubeletplugin.ports import JsonObject
from kubeletplugin.sysfs import NodeHardware
from neuron import device_groups, names
from neuron.instances import Catalogue, InstanceType, Topology

NODE_DEVICE: Final = "neuron-node"
"""Name of the device that stands for a whole UltraServer node."""

MAX_DEVICES: Final = 128
MAX_DEVICES_WITH_EXTRAS: Final = 64
"""Devices of one slice, where any of them has taints or consumes counters."""
MAX_COUNTERS: Final = 32
MAX_STRING: Final = 64
MAX_NAME: Final = 253

LABEL_NETWORK_NODE: Final = "topology.k8s.aws/network-node-layer-{}"
LABEL_CAPACITY_BLOCK: Final = "topology.k8s.aws/capacity-block-id"
NETWORK_LAYERS: Final = (1, 2, 3)

_TORUS_WIDTH: Final = 4
_COUNTER_SET: Final = "neuron-devices"
_DEVICE_NAME: Final = re.compile(r"neuron-?device-?([0-9]{1,3})", re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class NodeFacts:
    """What the Node object contributes.

    Attributes:
        name: of the node, and so of the pool.
        uid: of the Node object, which owns the slices.
        instance_type: by the well-known label, for nodes whose DMI does not tell; None without the label.
        network_nodes: EC2 network node by layer, where labelled.
        capacity_block: EC2 capacity block, where labelled.
    """

    name: str
    uid: str
    instance_type: str | None = None
    network_nodes: Mapping[int, str] = dataclasses.field(default_factory=dict)
    capacity_block: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Taint:
    """A device taint (KEP-5055), without the time at which it was added: the API server fills that in."""

    key: str
    value: str
    effect: str


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterFeatures:
    """What the cluster can store.

    Attributes:
        counters: shared counters (KEP-4815), without which a whole node and its devices cannot exclude each other.
        separate_counters: whether they need a slice of their own (1.35 and later).
    """

    counters: bool = True
    separate_counters: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class DesiredSlice:
    """One slice as it should be.

    Attributes:
        name: of the ResourceSlice; stable, and sorted like the slices.
        content: the spec without `pool`.
    """

    name: str
    content: JsonObject


def node_facts(node: Mapping[str, Any]) -> NodeFacts:
    """Read a Node object."""
    metadata = node["metadata"]
    labels = metadata.get("labels") or {}
    layers = {layer: labels.get(LABEL_NETWORK_NODE.format(layer)) for layer in NETWORK_LAYERS}
    labelled = labels.get(names.LABEL_INSTANCE_TYPE) or labels.get(names.LABEL_INSTANCE_TYPE_BETA)
    return NodeFacts(
        name=metadata["name"],
        uid=metadata["uid"],
        # SageMaker HyperPod writes ml.trn2.48xlarge.
        instance_type=labelled.removeprefix("ml.") if labelled else None,
        network_nodes={layer: value for layer, value in layers.items() if value},
        capacity_block=labels.get(LABEL_CAPACITY_BLOCK),
    )


def instance_type(hardware: NodeHardware, facts: NodeFacts | None, catalogue: Catalogue) -> InstanceType | None:
    """The node's instance type; one that the catalogue does not list has what the node shows and no more.

    Returns:
        None if neither DMI nor the node's label names a type.
    """
    name = hardware.instance_type or (facts.instance_type if facts else None)
    if name is None:
        return None
    known = catalogue.get(name)
    if known is not None:
        return known
    topology = Topology.SINGLE if len(hardware.devices) == 1 else Topology.SWITCH
    return InstanceType(name, name.partition(".")[0], None, None, (), 1, None, topology)


def device_name(index: int) -> str:
    """A device's name in the pool."""
    return f"neuron-device-{index}"


def device_index(name: str) -> int | None:
    """The index in a device's name, in either spelling that AWS has used; None for other names."""
    match = _DEVICE_NAME.fullmatch(name)
    return int(match[1]) if match else None


def slice_name(node: str, number: int) -> str:
    """The name of a node's slice: stable, so that a slice that was wiped comes back as itself."""
    ending = f"-{names.DRIVER}-{number:03d}"
    if len(node) + len(ending) > MAX_NAME:
        digest = hashlib.sha256(node.encode()).hexdigest()[:8]
        node = f"{node[: MAX_NAME - len(ending) - len(digest) - 1].rstrip('-.')}-{digest}"
    return node + ending


def desired_slices(
    facts: NodeFacts,
    hardware: NodeHardware,
    instance: InstanceType | None,
    driver_version: str,
    *,
    vanished: Iterable[int] = (),
    taints: Mapping[str, Taint] | None = None,
    features: ClusterFeatures = ClusterFeatures(),
) -> tuple[DesiredSlice, ...]:
    """The slices of a node's pool.

    Args:
        facts: of the node.
        hardware: as discovered.
        instance: the node's type; None if it is not known, and then nothing can be published of its devices.
        driver_version: of this driver, a semantic version.
        vanished: indices of devices that are gone but stay listed, so that their taint is seen.
        taints: by device name.
        features: what the cluster can store.

    Returns:
        At least one slice: an empty one says "no devices", none at all would say "no driver".
    """
    taints = taints or {}
    indices = sorted({device.index for device in hardware.devices} | set(vanished)) if instance else []
    counters: list[JsonObject] = []
    devices: list[JsonObject] = []
    if instance is not None:
        common = _common_attributes(facts, hardware, instance, driver_version)
        whole_node = bool(instance.ultraserver_nodes) and features.counters and 0 < len(indices) <= MAX_COUNTERS
        for index in indices:
            device: JsonObject = {
                "name": device_name(index),
                "attributes": common | _device_attributes(instance, index, len(indices)),
            }
            if whole_node:
                device["consumesCounters"] = [_consumption([index])]
            devices.append(device)
        if whole_node:
            # Last: the scheduler takes the first fit, and an unselective request means a device, not the node.
            devices.append(_node_device(common, indices))
            counters = [{"name": _COUNTER_SET, "counters": _counters(indices)}]
    for entry in devices:
        if entry["name"] in taints:
            entry["taints"] = [dataclasses.asdict(taints[entry["name"]])]
    scope = {"driver": names.DRIVER, "nodeName": facts.name}
    return tuple(
        DesiredSlice(slice_name(facts.name, number), scope | content)
        for number, content in enumerate(_contents(devices, counters, features))
    )


def _contents(devices: list[JsonObject], counters: list[JsonObject], features: ClusterFeatures) -> Iterator[JsonObject]:
    extras = any("taints" in device or "consumesCounters" in device for device in devices)
    size = MAX_DEVICES_WITH_EXTRAS if extras else MAX_DEVICES
    chunks = [devices[start : start + size] for start in range(0, len(devices), size)] or [[]]
    if counters and features.separate_counters:
        yield {"sharedCounters": counters}
        counters = []
    for chunk in chunks:
        yield ({"sharedCounters": counters} if counters else {}) | {"devices": chunk}


def _common_attributes(
    facts: NodeFacts, hardware: NodeHardware, instance: InstanceType, driver_version: str
) -> JsonObject:
    strings = {names.ATTRIBUTE_INSTANCE_TYPE: instance.name, "neuronDriverVersion": hardware.driver_version}
    for layer in NETWORK_LAYERS:
        strings[f"networkNodeLayer{layer}"] = facts.network_nodes.get(layer)
    if instance.ultraserver_nodes:
        strings["capacityBlockId"] = facts.capacity_block
    # Longer strings make the API server refuse the whole slice.
    attributes: JsonObject = {
        name: {"string": value} for name, value in strings.items() if value and len(value) <= MAX_STRING
    }
    return attributes | {"draDriverVersion": {"version": driver_version}}


def _device_attributes(instance: InstanceType, index: int, devices: int) -> JsonObject:
    numbers = {"deviceId": index}
    # UltraServer nodes are part of a larger torus, in which a place on the node says nothing.
    if instance.topology is Topology.TORUS and not instance.ultraserver_nodes and devices > 1:
        numbers["topology_x"], numbers["topology_y"] = divmod(index, _TORUS_WIDTH)
        numbers["topology4_id"] = index // 4
        if devices >= 8:
            numbers["topology8_id"] = index // 8
    attributes: JsonObject = {name: {"int": value} for name, value in numbers.items()}
    attributes[names.ATTRIBUTE_RESOURCE_TYPE] = {"string": names.RESOURCE_TYPE_DEVICE}
    for name, value in device_groups.group_attributes(instance.name, index).items():
        attributes[name] = {"string": value}
    return attributes


def _node_device(common: JsonObject, indices: list[int]) -> JsonObject:
    """The whole node as one device, which excludes its single devices and they it.

    It has a `deviceId` past those of the devices: selectors that read one without a guard must not fail on this
    node, and none that means a device may match. It has no group ids: a group of it makes no sense.
    """
    attributes = common | {
        "deviceId": {"int": max(indices) + 1},
        names.ATTRIBUTE_RESOURCE_TYPE: {"string": names.RESOURCE_TYPE_NODE},
    }
    return {"name": NODE_DEVICE, "attributes": attributes, "consumesCounters": [_consumption(indices)]}


def _counters(indices: list[int]) -> JsonObject:
    return {device_name(index): {"value": "1"} for index in indices}


def _consumption(indices: list[int]) -> JsonObject:
    return {"counterSet": _COUNTER_SET, "counters": _counters(indices)}
