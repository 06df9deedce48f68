"""A node's devices as ResourceSlices (`resource.k8s.io/v1`): which fields a control plane gets, and the writes from the
slices that exist to those.

Pure: the same node gives the same bytes.

Attributes: the Neuron DRA driver's documentation ("Attributes Reference"). Limits and pool rules: `types.go` and
the validation of `resource.k8s.io/v1`. Known faults of control planes: `neuron.known_faults`.
"""

import dataclasses
import hashlib
import importlib.metadata
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import structs

from kubeletplugin.discover.devices import (
    CORDONED_TAINT,
    HELD_TAINT,
    NODE_DEVICE,
    device_index,
    device_name,
    physical_cores,
    share,
)
from kubeletplugin.discover.health import NETWORK_LAYERS, NodeFacts
from kubeletplugin.discover.sysfs import NodeHardware, Place
from kubeletplugin.ports import JsonObject
from neuron import names
from neuron.api.taints import Taint
from neuron.hardware import capacities, connections
from neuron.hardware.connections import TORUS_WIDTH
from neuron.hardware.instances import InstanceType, Topology
from neuron.known_faults import Withheld, parse, sentence, withheld

MAX_DEVICES: Final = 128
MAX_DEVICES_WITH_EXTRAS: Final = 64
"""Devices of one slice, where any of them has taints or consumes counters."""
MAX_COUNTERS: Final = 32
MAX_STRING: Final = 64
MAX_NAME: Final = 253


_COUNTER_SET: Final = "neuron-devices"
_COMMON_COUNTER: Final = "devices"
PARTITION_TYPE: Final = "partitionTypeAttribute"
"""Field of a slice: the attribute that names the kind of its devices (KEP-5677, alpha in 1.37)."""


_DISTRIBUTION: Final = "neuron-dra"
_SEMVER: Final = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?(?:(a|b|rc|\.dev)(\d+))?")
_PRE_RELEASES: Final = {"a": "alpha", "b": "beta", "rc": "rc", ".dev": "dev"}
_COUNTERS_APART_SINCE: Final = (1, 35, 0)
_PARTITION_TYPES_SINCE: Final = (1, 37, 0)


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterFeatures:
    """Fields of slices that the cluster supports.

    Attributes:
        counters: shared counters (KEP-4815); a whole node and its devices exclude each other by them.
        separate_counters: whether they need a separate slice (1.35 and later).
        shares: capacity that several claims consume (KEP-5075).
        partition_types: whether slices can name the kinds of their devices (1.37 and later). Devices of one kind must
            cost the same then, so all consume one counter. Elsewhere each has a counter of its own: a scheduler that
            loses count (kubernetes/kubernetes#140436) hides only the device that it tried.
    """

    counters: bool = True
    separate_counters: bool = True
    shares: bool = True
    partition_types: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class DesiredSlice:
    """A slice to publish.

    Attributes:
        name: of the ResourceSlice; stable, and in the order of the slices.
        content: the spec without `pool`.
        note: value of the annotation about the node's checks; empty for none.
    """

    name: str
    content: JsonObject
    note: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class NodeDevices:
    """The devices to publish.

    Attributes:
        instance: the node's type; None if it is not known, and then no device is published.
        vanished: indices of devices that are gone but stay published, so that their taint is seen.
        taints: by device name.
        common_taints: of every device.
        whole_node_alone: publish the whole node and no single device, if counters cannot keep them apart.
        shares_cores: whether claims can share a device, if the cluster supports it.
        held: devices that are or may be in use without a claim, by index: new claims must not get them.
        cordoned: devices that an administrator has cordoned, by index.
        whole_cordoned: whether the device that stands for the whole node is cordoned.
        withhold: leave out what is held or cordoned, where the cluster keeps no taints; else it is tainted.
    """

    hardware: NodeHardware
    instance: InstanceType | None
    vanished: Collection[int] = ()
    taints: Mapping[str, Taint] = dataclasses.field(default_factory=dict)
    common_taints: tuple[Taint, ...] = ()
    whole_node_alone: bool = False
    shares_cores: bool = False
    held: Collection[int] = ()
    cordoned: Collection[int] = ()
    whole_cordoned: bool = False
    withhold: bool = False

    @property
    def indices(self) -> list[int]:
        """Indices of the devices to publish, ascending."""
        if self.instance is None:
            return []
        return sorted({device.index for device in self.hardware.devices} | set(self.vanished))

    @property
    def left_out(self) -> Collection[int]:
        """Devices that are not published, by index."""
        return {*self.held, *self.cordoned} if self.withhold else ()

    def closing_taints(self, indices: Collection[int], *, whole: bool = False) -> tuple[Taint, ...]:
        """The taints of a device that consists of these indices, if one of them is held or cordoned."""
        if self.withhold:
            return ()
        held = not set(self.held).isdisjoint(indices)
        cordoned = not set(self.cordoned).isdisjoint(indices) or (whole and self.whole_cordoned)
        return (*[HELD_TAINT] * held, *[CORDONED_TAINT] * cordoned)

    @property
    def is_ultraserver(self) -> bool:
        """Whether there are devices of an UltraServer node to publish."""
        return self.instance is not None and bool(self.instance.ultraserver_nodes) and bool(self.indices)


def slice_name(node: str, number: int) -> str:
    """The name of a node's slice: stable, so that a deleted slice gets the same name again."""
    ending = f"-{names.DRIVER}-{number:03d}"
    if len(node) + len(ending) > MAX_NAME:
        digest = hashlib.sha256(node.encode()).hexdigest()[:8]
        node = f"{node[: MAX_NAME - len(ending) - len(digest) - 1].rstrip('-.')}-{digest}"
    return node + ending


def is_slice_name(node: str, name: str) -> bool:
    """Whether `slice_name` makes this name for a slice of the node."""
    number = name[-3:]
    return number.isdecimal() and name == slice_name(node, int(number))


def desired_slices(
    facts: NodeFacts,
    found: NodeDevices,
    driver_version: str,
    features: ClusterFeatures = ClusterFeatures(),
    note: str = "",
) -> tuple[DesiredSlice, ...]:
    """The slices of a node's pool.

    Args:
        driver_version: of this driver, a semantic version.
        note: of the first slice.

    Returns:
        At least one slice: an empty slice means "no devices", no slice would mean "no driver".
    """
    hardware, instance, taints = found.hardware, found.instance, found.taints
    indices = found.indices
    counters: list[JsonObject] = []
    devices: list[JsonObject] = []
    if instance is not None:
        common = _common_attributes(facts, hardware, instance, driver_version)
        whole_node = publishes_whole_node(found, features)
        alone = whole_node and not features.counters
        left_out, links = found.left_out, hardware.links
        for index in () if alone else (each for each in indices if each not in left_out):
            device: JsonObject = {
                "name": device_name(index),
                "attributes": common | _own_attributes(hardware, instance, index, len(indices), links),
            }
            if found.shares_cores and features.shares:
                share(device, physical_cores(hardware, instance, index))
            capacities.add(device, instance)
            if whole_node:
                device["consumesCounters"] = [_consumption([index], features)]
            devices.append(device)
        if whole_node:
            # Last: the scheduler takes the first match, and a request without selectors means a device, not the node.
            # It has the capacities of all devices: a selector that reads one without a guard does not fail on it.
            devices.append(_node_device(common, indices, None if alone else features))
            capacities.add(devices[-1], instance, len(indices))
            counters = [] if alone else [{"name": _COUNTER_SET, "counters": _counters(indices, features)}]
    for entry in devices:
        number = device_index(entry["name"])
        own = (taints[entry["name"]],) if entry["name"] in taints else ()
        closing = found.closing_taints(indices if number is None else (number,), whole=number is None)
        if all_taints := (*own, *closing, *found.common_taints):
            entry["taints"] = [structs.asdict(taint) for taint in all_taints]
    scope = {"driver": names.DRIVER, "nodeName": facts.name}
    return tuple(
        DesiredSlice(slice_name(facts.name, number), scope | content, "" if number else note)
        for number, content in enumerate(_contents(devices, counters, features))
    )


def published_attributes(
    facts: NodeFacts, hardware: NodeHardware, instance: InstanceType, driver_version: str, name: str
) -> JsonObject:
    """The attributes of one device, as `desired_slices` publishes them."""
    common = _common_attributes(facts, hardware, instance, driver_version)
    indices = [device.index for device in hardware.devices]
    index = device_index(name)
    if index is None:
        whole: JsonObject = _node_device(common, indices or [0], None)["attributes"]
        return whole
    return common | _own_attributes(hardware, instance, index, len(indices), hardware.links)


def _own_attributes(
    hardware: NodeHardware, instance: InstanceType, index: int, devices: int, links: frozenset[tuple[int, int]] | None
) -> JsonObject:
    return (
        _device_attributes(instance, index, devices)
        | _place_attributes(hardware.places.get(index, Place()))
        | _strings(connections.attributes(instance, index, devices, links))
    )


def publishes_whole_node(found: NodeDevices, features: ClusterFeatures) -> bool:
    """Whether the device that stands for the whole node is published."""
    apart = features.counters or found.whole_node_alone
    if found.left_out or (found.withhold and found.whole_cordoned):
        return False
    return found.is_ultraserver and apart and len(found.indices) <= MAX_COUNTERS


def _contents(devices: list[JsonObject], counters: list[JsonObject], features: ClusterFeatures) -> Iterator[JsonObject]:
    extras = any("taints" in device or "consumesCounters" in device for device in devices)
    size = MAX_DEVICES_WITH_EXTRAS if extras else MAX_DEVICES
    chunks = [devices[start : start + size] for start in range(0, len(devices), size)] or [[]]
    if counters and features.separate_counters:
        yield {"sharedCounters": counters}
        counters = []
    counted = any("consumesCounters" in device for device in devices)
    kinds = {PARTITION_TYPE: f"{names.DRIVER}/{names.ATTRIBUTE_RESOURCE_TYPE}"}
    for chunk in chunks:
        content: JsonObject = {"sharedCounters": counters} if counters else {}
        yield content | {"devices": chunk} | (kinds if counted and features.partition_types else {})


def _common_attributes(
    facts: NodeFacts, hardware: NodeHardware, instance: InstanceType, driver_version: str
) -> JsonObject:
    strings = {names.ATTRIBUTE_INSTANCE_TYPE: instance.name, "neuronDriverVersion": hardware.driver_version}
    for layer in NETWORK_LAYERS:
        strings[f"networkNodeLayer{layer}"] = facts.network_nodes.get(layer)
    if instance.ultraserver_nodes:
        strings["capacityBlockId"] = facts.capacity_block
    # The API server denies a slice with longer strings; it counts bytes.
    attributes: JsonObject = {
        name: {"string": value} for name, value in strings.items() if value and len(value.encode()) <= MAX_STRING
    }
    if instance.configures_logical_neuron_core and hardware.logical_nc in instance.logical_neuron_cores:
        attributes[names.ATTRIBUTE_DEFAULT_LNC] = {"int": hardware.logical_nc}
    return attributes | {"draDriverVersion": {"version": driver_version}}


def _device_attributes(instance: InstanceType, index: int, devices: int) -> JsonObject:
    numbers = {"deviceId": index}
    # UltraServer nodes are part of a larger torus, so the position on the node has no meaning.
    if instance.topology is Topology.TORUS and not instance.ultraserver_nodes and devices > 1:
        numbers["topology_x"], numbers["topology_y"] = divmod(index, TORUS_WIDTH)
        numbers["topology4_id"] = index // 4
        if devices >= 8:
            numbers["topology8_id"] = index // 8
    attributes: JsonObject = {name: {"int": value} for name, value in numbers.items()}
    return attributes | _strings({names.ATTRIBUTE_RESOURCE_TYPE: names.RESOURCE_TYPE_DEVICE})


def _strings(values: Mapping[str, str]) -> JsonObject:
    return {name: {"string": value} for name, value in values.items()}


def _place_attributes(place: Place) -> JsonObject:
    """Kubernetes' standard attributes, with which a claim can ask for a device and a network interface side by side."""
    attributes: JsonObject = {}
    if place.root is not None:
        attributes[names.ATTRIBUTE_PCIE_ROOT] = {"string": place.root}
    if place.numa_node is not None:
        attributes[names.ATTRIBUTE_NUMA_NODE] = {"int": place.numa_node}
    return attributes


def _node_device(common: JsonObject, indices: list[int], counted: ClusterFeatures | None) -> JsonObject:
    """The whole node as one device; with counters, it and the single devices exclude each other. None: without.

    Its `deviceId` is one above those of the devices: a selector that reads it without a guard does not fail, and a
    selector for a device does not match. It has no group ids.
    """
    attributes = common | {
        "deviceId": {"int": max(indices) + 1},
        names.ATTRIBUTE_RESOURCE_TYPE: {"string": names.RESOURCE_TYPE_NODE},
    }
    consumption: JsonObject = {"consumesCounters": [_consumption(indices, counted)]} if counted else {}
    return {"name": NODE_DEVICE, "attributes": attributes} | consumption


def _counters(indices: list[int], features: ClusterFeatures) -> JsonObject:
    if features.partition_types:
        return {_COMMON_COUNTER: {"value": str(len(indices))}}
    return {device_name(index): {"value": "1"} for index in indices}


def _consumption(indices: list[int], features: ClusterFeatures) -> JsonObject:
    return {"counterSet": _COUNTER_SET, "counters": _counters(indices, features)}


def driver_version(python_version: str | None = None) -> str:
    """This driver's version as a semantic version: the API server denies an attribute with another one.

    Args:
        python_version: the version by PEP 440; None: that of the installed distribution.
    """
    if python_version is None:
        python_version = importlib.metadata.version(_DISTRIBUTION)
    match = _SEMVER.match(python_version)
    if match is None:
        return "0.0.0"
    major, minor, patch, stage, number = match.groups()
    release = f"{int(major)}.{int(minor)}.{int(patch or 0)}"
    return f"{release}-{_PRE_RELEASES[stage]}.{int(number)}" if stage else release


@dataclasses.dataclass(frozen=True, slots=True)
class Withholding:
    """What the driver does with a control plane of one version.

    Attributes:
        version: `gitVersion` of the API server; empty before it was read. Of a version that cannot be parsed, no fault
            is known.
        gates: by name of a field of `ClusterFeatures`, what an administrator decided; then neither the version nor a
            known fault decides. What the API server drops stays off.
    """

    version: str = ""
    gates: Mapping[str, bool] = dataclasses.field(default_factory=dict)

    def features(self, kept: ClusterFeatures) -> ClusterFeatures:
        """The features to use, of those that the API server keeps."""
        number, gates = parse(self.version), self.gates
        return dataclasses.replace(
            kept,
            counters=kept.counters and gates.get("counters", Withheld.COUNTERS not in withheld(self.version)),
            shares=kept.shares and gates.get("shares", True),
            separate_counters=gates.get("separate_counters", number is None or number >= _COUNTERS_APART_SINCE),
            partition_types=gates.get("partition_types", number is not None and number >= _PARTITION_TYPES_SINCE),
        )

    def shares(self, found: NodeDevices, features: ClusterFeatures) -> bool:
        """Whether the devices may be shared; `features` as of `features`."""
        if "shares" in self.gates:
            return self.gates["shares"]
        counted = features.counters and publishes_whole_node(found, features)
        return not (counted and Withheld.SHARES in withheld(self.version))

    def reasons(self, found: NodeDevices, kept: ClusterFeatures) -> tuple[str, ...]:
        """What is withheld from this node, and why: sentences for the log."""
        said = []
        for what, fault in withheld(self.version).items():
            if what.value in self.gates:
                continue
            counters = what is Withheld.COUNTERS and kept.counters and found.is_ultraserver
            shares = what is Withheld.SHARES and found.shares_cores and not self.shares(found, self.features(kept))
            if counters or shares:
                said.append(f"{sentence(fault, self.version)} {fault.remedy}")
        return tuple(said)


API_VERSION: Final = "resource.k8s.io/v1"


@dataclasses.dataclass(frozen=True, slots=True)
class Writes:
    """The writes, in this order: deletions, updates, creations. Bodies are complete ResourceSlices."""

    delete: tuple[str, ...] = ()
    update: tuple[JsonObject, ...] = ()
    create: tuple[JsonObject, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.delete or self.update or self.create)


def plan_writes(
    facts: NodeFacts, desired: Iterable[DesiredSlice], existing: Mapping[str, JsonObject], last_generation: int = 0
) -> Writes:
    """The writes that turn the existing slices into the desired ones; none if they are equal.

    All slices of a pool have the same generation and the number of slices. A change of more than one slice increases
    the generation, so that the scheduler does not mix old and new slices.

    Args:
        existing: the driver's slices of this node, by name.
        last_generation: the highest one that was written, also if its slices have been deleted.
    """
    wanted = {piece.name: piece for piece in desired}
    generations = {body["spec"]["pool"]["generation"] for body in existing.values()}
    changed = [name for name, piece in wanted.items() if not _is_current(facts, piece, existing.get(name), len(wanted))]
    same_names = wanted.keys() == existing.keys()
    in_place = same_names and len(generations) == 1 and len(changed) <= 1
    if in_place and not changed:
        return Writes()
    generation = max(generations, default=0) if in_place else max((last_generation, *generations)) + 1
    pool = {"name": facts.name, "generation": generation, "resourceSliceCount": len(wanted)}
    touched = changed if in_place else list(wanted)
    update = [_body(facts, wanted[name], pool, existing[name]) for name in touched if name in existing]
    create = [_body(facts, wanted[name], pool, None) for name in touched if name not in existing]
    return Writes(tuple(sorted(existing.keys() - wanted.keys())), tuple(update), tuple(create))


def _is_current(facts: NodeFacts, piece: DesiredSlice, body: JsonObject | None, count: int) -> bool:
    if body is None or body["spec"]["pool"]["resourceSliceCount"] != count:
        return False
    owners = [owner["uid"] for owner in body["metadata"].get("ownerReferences") or ()]
    content = {key: value for key, value in body["spec"].items() if key != "pool"}
    noted = (body["metadata"].get("annotations") or {}).get(names.ANNOTATION_NODE_CHECKS, "") == piece.note
    return noted and owners == [facts.uid] and without_times(content) == piece.content


def without_times(content: Mapping[str, object]) -> JsonObject:
    """A slice's content without the times at which taints were added."""
    return _with_taints(content, lambda _, taint: {key: taint[key] for key in taint if key != "timeAdded"})


def _with_taints(content: Mapping[str, Any], edit: Callable[[str, JsonObject], JsonObject]) -> JsonObject:
    if not any("taints" in device for device in content.get("devices") or ()):
        return dict(content)
    devices = [
        device | {"taints": [edit(device["name"], taint) for taint in device["taints"]]}
        if "taints" in device
        else device
        for device in content["devices"]
    ]
    return dict(content) | {"devices": devices}


def _body(facts: NodeFacts, piece: DesiredSlice, pool: JsonObject, existing: JsonObject | None) -> JsonObject:
    metadata: JsonObject = {"name": piece.name}
    if existing is not None:
        metadata["resourceVersion"] = existing["metadata"]["resourceVersion"]
    kept = (existing or {}).get("metadata", {}).get("annotations") or {}
    annotations = {key: value for key, value in kept.items() if key != names.ANNOTATION_NODE_CHECKS}
    if annotations := annotations | ({names.ANNOTATION_NODE_CHECKS: piece.note} if piece.note else {}):
        metadata["annotations"] = annotations
    owner = {"apiVersion": "v1", "kind": "Node", "name": facts.name, "uid": facts.uid, "controller": True}
    metadata["ownerReferences"] = [owner]
    # `tolerationSeconds` of NoExecute begin at the time at which the taint was added.
    times = {
        (device["name"], *_identity(taint)): {"timeAdded": taint["timeAdded"]}
        for device in (existing or {}).get("spec", {}).get("devices") or ()
        for taint in device.get("taints") or ()
        if "timeAdded" in taint
    }
    content = _with_taints(piece.content, lambda device, taint: taint | times.get((device, *_identity(taint)), {}))
    return {"apiVersion": API_VERSION, "kind": "ResourceSlice", "metadata": metadata, "spec": {"pool": pool} | content}


def _identity(taint: Mapping[str, str]) -> tuple[str, str, str]:
    return taint["key"], taint.get("value", ""), taint["effect"]


def dropped_fields(sent: object, stored: object, path: str = "spec") -> tuple[str, ...]:
    """Paths that were sent and not stored: the API server drops fields of disabled features without an error."""
    if isinstance(sent, Mapping) and isinstance(stored, Mapping):
        lost = []
        for key, value in sent.items():
            below = f"{path}.{key}"
            lost += [below] if key not in stored and value else list(dropped_fields(value, stored.get(key), below))
        return tuple(lost)
    if isinstance(sent, list) and isinstance(stored, list):
        pairs = enumerate(zip(sent, stored, strict=False))
        return tuple(item for index, (a, b) in pairs for item in dropped_fields(a, b, f"{path}[{index}]"))
    return ()
