"""The devices that exist, as few distinct shapes: what catalogue types publish, and what ResourceSlices say.

Five thousand nodes publish eighty thousand devices, but all nodes of one instance type publish the same sixteen, but
for attributes that name the node's place or software. A shape keeps the former as they are and says of the latter
only which values occur, so that judging a selector costs the same on any cluster.

Attributes: the Neuron DRA driver's documentation ("Attributes Reference").
"""

import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from neuron import device_groups, names
from neuron.instances import Catalogue, InstanceType, Topology


@dataclasses.dataclass(frozen=True, slots=True)
class Version:
    """A value of DRA type `version`: semantic version 2.0.0."""

    text: str


Value: TypeAlias = bool | int | str | Version

DRA_DRIVER_VERSION: Final = "draDriverVersion"
NEURON_DRIVER_VERSION: Final = "neuronDriverVersion"
_NETWORK_LAYERS: Final = tuple(f"networkNodeLayer{layer}" for layer in (1, 2, 3))
_CAPACITY_BLOCK: Final = "capacityBlockId"

ATTRIBUTE_TYPES: Final[Mapping[str, type]] = {
    f"{names.DRIVER}/{name}": kind
    for kind, attributes in (
        (int, ("deviceId", "topology_x", "topology_y", "topology4_id", "topology8_id")),
        (str, (names.ATTRIBUTE_INSTANCE_TYPE, names.ATTRIBUTE_RESOURCE_TYPE, NEURON_DRIVER_VERSION)),
        (str, (*_NETWORK_LAYERS, _CAPACITY_BLOCK, "ultraserverId", "workloadId")),
        (Version, (DRA_DRIVER_VERSION,)),
    )
    for name in attributes
} | {names.device_group_attribute(size): str for size in (1, *device_groups.GROUP_SIZES)}
"""Every attribute that the driver documents, by qualified name, with the type of its values."""

_FIXED: Final = re.compile(
    rf"{re.escape(names.DRIVER)}/(deviceId|instanceType|resourceType|topology.*)|resource\.aws\.com/devicegroup[0-9]+_id",
    re.ASCII,
)
"""Attributes that an instance type and a device index determine; all others vary from node to node."""

_TORUS_WIDTH: Final = 4
_UNKNOWN_DEVICES: Final = 16
"""Devices of a node whose number is not published: the most that any known node has."""
_MOST_VALUES: Final = 4096
"""Beyond this many values of one attribute, the values are not kept."""


@dataclasses.dataclass(frozen=True, slots=True)
class Varying:
    """An attribute that every such device has, with a value that differs from node to node.

    Attributes:
        values: those that occur; None where any may.
    """

    values: frozenset[Value] | None = None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """Devices that nothing but their node tells apart.

    Attributes:
        instance_type: of the node.
        resource_type: `neuron_device` or `neuron_node`.
        fixed: attributes by qualified name.
        varying: attributes whose value depends on the node.
        published: whether slices of the cluster have it, rather than the catalogue alone.
    """

    instance_type: str
    resource_type: str
    fixed: Mapping[str, Value]
    varying: Mapping[str, Varying]
    published: bool = False


def qualified(name: str) -> str:
    """An attribute's name with its domain: the driver's, where it is written without one."""
    return name if "/" in name else f"{names.DRIVER}/{name}"


# --- from the catalogue -------------------------------------------------------------------------------------


def catalogue_shapes(catalogue: Catalogue) -> Iterator[Shape]:
    """What nodes of every type in the catalogue publish."""
    for entry in catalogue:
        varying = {qualified(name): Varying() for name in (NEURON_DRIVER_VERSION, DRA_DRIVER_VERSION, *_NETWORK_LAYERS)}
        if entry.ultraserver_nodes:
            varying[qualified(_CAPACITY_BLOCK)] = Varying()
        count = entry.devices or _UNKNOWN_DEVICES
        for device_id in range(count):
            fixed = device_attributes(entry, device_id, count)
            yield Shape(entry.name, names.RESOURCE_TYPE_DEVICE, fixed, varying)
        if entry.ultraserver_nodes:
            yield Shape(entry.name, names.RESOURCE_TYPE_NODE, _node_attributes(entry, count), varying)


def device_attributes(entry: InstanceType, device_id: int, devices: int) -> dict[str, Value]:
    """The attributes of one device that its type and index determine, by qualified name.

    Args:
        entry: the node's instance type.
        device_id: from 0.
        devices: how many the node has.
    """
    attributes: dict[str, Value] = {
        "deviceId": device_id,
        names.ATTRIBUTE_INSTANCE_TYPE: entry.name,
        names.ATTRIBUTE_RESOURCE_TYPE: names.RESOURCE_TYPE_DEVICE,
    }
    # UltraServer nodes are part of a larger torus, in which a place on the node says nothing.
    if entry.topology is Topology.TORUS and not entry.ultraserver_nodes and devices > 1:
        attributes["topology_x"], attributes["topology_y"] = divmod(device_id, _TORUS_WIDTH)
        attributes["topology4_id"] = device_id // 4
        if devices >= 8:
            attributes["topology8_id"] = device_id // 8
    return {qualified(name): value for name, value in attributes.items()} | _groups(entry, device_id)


def _groups(entry: InstanceType, device_id: int) -> dict[str, Value]:
    published: dict[str, Value] = dict(device_groups.group_attributes(entry.name, device_id))
    if not published:
        # A type from a file: which devices share a group is known, and its ids are not needed.
        for size in entry.groups:
            published[names.device_group_attribute(size)] = f"{entry.name}-{size}-{device_id // size}"
    return published


def _node_attributes(entry: InstanceType, devices: int) -> dict[str, Value]:
    attributes: dict[str, Value] = {
        "deviceId": devices,
        names.ATTRIBUTE_INSTANCE_TYPE: entry.name,
        names.ATTRIBUTE_RESOURCE_TYPE: names.RESOURCE_TYPE_NODE,
    }
    return {qualified(name): value for name, value in attributes.items()}


# --- from ResourceSlices --------------------------------------------------------------------------------------

_Fixed: TypeAlias = tuple[tuple[tuple[str, Value], ...], tuple[str, ...]]
"""A device's fixed attributes, sorted, and the names of its others."""


@dataclasses.dataclass(frozen=True, slots=True)
class SliceShapes:
    """What one ResourceSlice adds to the devices of a cluster; equal for nodes that differ in nothing.

    Attributes:
        devices: fixed attributes, and names of the others, of each distinct device.
        values: instance type, attribute and value of what varies.
    """

    devices: frozenset[_Fixed]
    values: frozenset[tuple[str, str, Value]]


def read_slice(spec: Mapping[str, Any]) -> SliceShapes | None:
    """Read `spec` of a ResourceSlice (`resource.k8s.io/v1`, and v1beta1 with its `basic`).

    Returns:
        None for another driver's slice, and for one without devices.
    """
    if spec.get("driver") != names.DRIVER:
        return None
    devices: set[_Fixed] = set()
    values: set[tuple[str, str, Value]] = set()
    for device in spec.get("devices") or ():
        raw = (device.get("basic") or device).get("attributes") or {}
        attributes = {qualified(name): value for name, box in raw.items() if (value := _unboxed(box)) is not None}
        fixed = tuple(sorted((name, value) for name, value in attributes.items() if _FIXED.fullmatch(name)))
        instance_type = str(attributes.get(qualified(names.ATTRIBUTE_INSTANCE_TYPE), ""))
        others = {name: value for name, value in attributes.items() if not _FIXED.fullmatch(name)}
        devices.add((fixed, tuple(sorted(others))))
        values.update((instance_type, name, value) for name, value in others.items())
    return SliceShapes(_shared(frozenset(devices)), frozenset(values)) if devices else None


@functools.lru_cache(maxsize=256)
def _shared(devices: frozenset[_Fixed]) -> frozenset[_Fixed]:
    """One copy for all the nodes that say the same."""
    return devices


def _unboxed(box: object) -> Value | None:
    """A `DeviceAttribute`; None for lists and for what a newer API may hold."""
    if not isinstance(box, Mapping):
        return None
    if isinstance(box.get("version"), str):
        return Version(box["version"])
    for key, kind in (("string", str), ("bool", bool), ("int", int)):
        value = box.get(key)
        if isinstance(value, kind):
            found: Value = value
            return found
    return None


class Census:
    """The shapes of a cluster's devices, kept by what each slice adds and takes away."""

    def __init__(self) -> None:
        self._devices: Counter[_Fixed] = Counter()
        self._values: dict[tuple[str, str], Counter[Value] | None] = {}

    def replace(self, before: SliceShapes | None, after: SliceShapes | None) -> bool:
        """Take in that a slice changed; None where there was or is none.

        Returns:
            Whether `shapes` changed.
        """
        if before == after:
            return False
        # First in, then out: what a slice keeps does not vanish in between.
        added = after is not None and self._add(after)
        gone = before is not None and self._remove(before)
        return added or gone

    def _add(self, slice_shapes: SliceShapes) -> bool:
        changed = False
        for device in slice_shapes.devices:
            changed |= device not in self._devices
            self._devices[device] += 1
        for instance_type, name, value in slice_shapes.values:
            counts = self._values.setdefault((instance_type, name), Counter())
            if counts is None:
                continue
            changed |= value not in counts
            counts[value] += 1
            if len(counts) > _MOST_VALUES:
                self._values[instance_type, name] = None
        return changed

    def _remove(self, slice_shapes: SliceShapes) -> bool:
        changed = False
        for device in slice_shapes.devices:
            changed |= _take(self._devices, device)
        for instance_type, name, value in slice_shapes.values:
            counts = self._values.get((instance_type, name))
            if counts is not None:
                changed |= _take(counts, value)
        return changed

    def shapes(self) -> tuple[Shape, ...]:
        """Every distinct device of the cluster."""
        values = {key: Varying(None if counts is None else frozenset(counts)) for key, counts in self._values.items()}
        return tuple(_shape(fixed, others, values) for fixed, others in self._devices)


def _take(counts: Counter[Any], key: Any) -> bool:
    counts[key] -= 1
    if counts[key] > 0:
        return False
    del counts[key]
    return True


def _shape(
    fixed: Iterable[tuple[str, Value]], others: Iterable[str], values: Mapping[tuple[str, str], Varying]
) -> Shape:
    attributes = dict(fixed)
    instance_type = str(attributes.get(qualified(names.ATTRIBUTE_INSTANCE_TYPE), ""))
    # A device that does not say what it is is a device: drivers before UltraServers did not publish it.
    resource_type = str(attributes.get(qualified(names.ATTRIBUTE_RESOURCE_TYPE), names.RESOURCE_TYPE_DEVICE))
    varying = {name: values[instance_type, name] for name in others}
    return Shape(instance_type, resource_type, attributes, varying, published=True)
