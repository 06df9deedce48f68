"""The devices that exist as a small number of distinct shapes, from the catalogue and from ResourceSlices.

5,000 nodes publish 80,000 devices, but nodes of one instance type differ only in attributes of the node's location or
software. A shape has the fixed attributes with their values, and for the others the set of values that occur. So the
cost of evaluating a selector does not grow with the cluster.

Source of the attributes: the Neuron DRA driver's documentation ("Attributes Reference").
"""

import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from neuron import names, quantities
from neuron.hardware import capacities, connections, device_groups, pci_addresses
from neuron.hardware.instances import Catalogue, InstanceType, Topology
from neuron.hardware.links import TORUS_WIDTH


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
    **{
        f"{names.DRIVER}/{name}": kind
        for kind, attributes in (
            (int, (names.ATTRIBUTE_DEVICE_ID, "topology_x", "topology_y", "topology4_id", "topology8_id")),
            (str, (names.ATTRIBUTE_INSTANCE_TYPE, names.ATTRIBUTE_RESOURCE_TYPE, NEURON_DRIVER_VERSION)),
            (str, (*_NETWORK_LAYERS, _CAPACITY_BLOCK, "ultraserverId", "workloadId")),
            (Version, (DRA_DRIVER_VERSION,)),
        )
        for name in attributes
    },
    names.ATTRIBUTE_PCIE_ROOT: str,
    names.ATTRIBUTE_NUMA_NODE: int,
    **{names.device_group_attribute(size): str for size in (1, *device_groups.GROUP_SIZES)},
}
"""All documented attributes of the driver, by qualified name, with the type of their values."""

_FIXED: Final = re.compile(
    rf"{re.escape(names.DRIVER)}/(deviceId|instanceType|resourceType|topology.*|window[0-9]+_[0-9]+)"
    r"|resource\.aws\.com/devicegroup[0-9]+_id",
    re.ASCII,
)
"""Attributes that instance type and device index determine. All others differ between nodes."""

_UNKNOWN_DEVICES: Final = 16
"""Devices of a node if their number is not published: the largest number of any known type."""
_MOST_VALUES: Final = 4096
"""If an attribute has more values, the values are not kept."""


@dataclasses.dataclass(frozen=True, slots=True)
class Varying:
    """An attribute that all devices of a shape have, with values that differ between nodes.

    Attributes:
        values: the values that occur; None if any value is possible.
    """

    values: frozenset[Value] | None = None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """Devices that differ only in their node.

    Attributes:
        resource_type: `neuron_device` or `neuron_node`.
        fixed: attributes by qualified name.
        varying: attributes whose value depends on the node.
        published: whether ResourceSlices have it, or only the catalogue.
        capacity: quantities by qualified name.
        shares: if several claims can share it, the amounts of cores that a claim can consume (empty: any); else None.
        counted: whether it consumes shared counters; only ResourceSlices tell.
    """

    instance_type: str
    resource_type: str
    fixed: Mapping[str, Value]
    varying: Mapping[str, Varying]
    published: bool = False
    capacity: Mapping[str, str] = dataclasses.field(default_factory=dict)
    shares: tuple[int, ...] | None = None
    counted: bool = False

    @property
    def shared(self) -> bool:
        """Whether several claims can share it (`allowMultipleAllocations`)."""
        return self.shares is not None


def qualified(name: str) -> str:
    """An attribute's name with its domain; the driver's domain is the default."""
    return name if "/" in name else f"{names.DRIVER}/{name}"


DEVICE_ID: Final = qualified(names.ATTRIBUTE_DEVICE_ID)


# --- from the catalogue -------------------------------------------------------------------------------------


def catalogue_shapes(catalogue: Catalogue) -> Iterator[Shape]:
    """The shapes of nodes of all types in the catalogue."""
    for entry in catalogue:
        varying = {qualified(name): Varying() for name in (NEURON_DRIVER_VERSION, DRA_DRIVER_VERSION, *_NETWORK_LAYERS)}
        if entry.ultraserver_nodes:
            varying[qualified(_CAPACITY_BLOCK)] = Varying()
        if pci_addresses.tells(entry):
            varying |= {names.ATTRIBUTE_PCIE_ROOT: Varying(), names.ATTRIBUTE_NUMA_NODE: Varying()}
        count = entry.devices or _UNKNOWN_DEVICES
        capacity, shares = _capacity(entry, 1), _shares(entry)
        for device_id in range(count):
            fixed = device_attributes(entry, device_id, count)
            yield Shape(entry.name, names.RESOURCE_TYPE_DEVICE, fixed, varying, capacity=capacity, shares=shares)
        if entry.ultraserver_nodes:
            fixed, capacity = _node_attributes(entry, count), _capacity(entry, count)
            yield Shape(entry.name, names.RESOURCE_TYPE_NODE, fixed, varying, capacity=capacity)


def _capacity(entry: InstanceType, devices: int) -> dict[str, str]:
    return {qualified(name): value for name, value in capacities.quantities(entry, devices).items()}


@functools.lru_cache(maxsize=2048)
def device_attributes(entry: InstanceType, device_id: int, devices: int) -> Mapping[str, Value]:
    """The attributes of one device that its type and index determine, by qualified name.

    Args:
        device_id: from 0.
        devices: number of devices of the node.
    """
    attributes: dict[str, Value] = {
        names.ATTRIBUTE_DEVICE_ID: device_id,
        names.ATTRIBUTE_INSTANCE_TYPE: entry.name,
        names.ATTRIBUTE_RESOURCE_TYPE: names.RESOURCE_TYPE_DEVICE,
    }
    # UltraServer nodes are part of a larger torus, so coordinates on one node have no meaning.
    if entry.topology is Topology.TORUS and not entry.ultraserver_nodes and devices > 1:
        attributes["topology_x"], attributes["topology_y"] = divmod(device_id, TORUS_WIDTH)
        attributes["topology4_id"] = device_id // 4
        if devices >= 8:
            attributes["topology8_id"] = device_id // 8
    named = {qualified(name): value for name, value in attributes.items()}
    return MappingProxyType(named | connections.attributes(entry, device_id, devices))


def _shares(entry: InstanceType) -> tuple[int, ...] | None:
    """The shares that the driver publishes unless its settings say otherwise."""
    if not entry.cores_per_device or entry.grouped:
        return None
    return capacities.share_sizes(entry.cores_per_device)


def _node_attributes(entry: InstanceType, devices: int) -> dict[str, Value]:
    attributes: dict[str, Value] = {
        names.ATTRIBUTE_DEVICE_ID: devices,
        names.ATTRIBUTE_INSTANCE_TYPE: entry.name,
        names.ATTRIBUTE_RESOURCE_TYPE: names.RESOURCE_TYPE_NODE,
    }
    return {qualified(name): value for name, value in attributes.items()}


# --- from ResourceSlices --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class SliceDevice:
    """The part of a device that is equal on many nodes.

    Attributes:
        fixed: attributes that its type and index determine, sorted.
        others: names of its other attributes, sorted.
        capacity: quantities by qualified name, sorted.
        shares: as of `Shape`.
        counted: as of `Shape`.
    """

    fixed: tuple[tuple[str, Value], ...]
    others: tuple[str, ...]
    capacity: tuple[tuple[str, str], ...] = ()
    shares: tuple[int, ...] | None = None
    counted: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class SliceShapes:
    """The distinct devices and values of one ResourceSlice.

    Attributes:
        values: instance type, attribute and value of their other attributes.
    """

    devices: frozenset[SliceDevice]
    values: frozenset[tuple[str, str, Value]]


def read_slice(spec: Mapping[str, Any]) -> SliceShapes | None:
    """Read `spec` of a ResourceSlice (`resource.k8s.io/v1`, and v1beta1 with its `basic`).

    Returns:
        None for another driver's slice, and for one without devices.
    """
    if spec.get("driver") != names.DRIVER:
        return None
    devices: set[SliceDevice] = set()
    values: set[tuple[str, str, Value]] = set()
    for device in spec.get("devices") or ():
        fields = device.get("basic") or device
        raw, sizes = fields.get("attributes") or {}, fields.get("capacity") or {}
        attributes = {qualified(name): value for name, box in raw.items() if (value := unboxed(box)) is not None}
        fixed = tuple(sorted((name, value) for name, value in attributes.items() if _FIXED.fullmatch(name)))
        instance_type = str(attributes.get(qualified(names.ATTRIBUTE_INSTANCE_TYPE), ""))
        others = {name: value for name, value in attributes.items() if not _FIXED.fullmatch(name)}
        shares = _read_shares(sizes) if fields.get("allowMultipleAllocations") is True else None
        capacity = tuple(sorted(dict(_quantities(sizes)).items()))
        counted = bool(fields.get("consumesCounters"))
        devices.add(SliceDevice(fixed, tuple(sorted(others)), capacity, shares, counted))
        values.update((instance_type, name, value) for name, value in others.items())
    return SliceShapes(_shared(frozenset(devices)), frozenset(values)) if devices else None


@functools.lru_cache(maxsize=256)
def _shared(devices: frozenset[SliceDevice]) -> frozenset[SliceDevice]:
    """One copy in memory for all nodes with equal devices."""
    return devices


def _quantities(raw: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Capacities by qualified name; other structures than the API's are left out."""
    for name, box in raw.items():
        if isinstance(box, Mapping) and isinstance(box.get("value"), str):
            yield qualified(name), box["value"]


def _read_shares(raw: Mapping[str, Any]) -> tuple[int, ...]:
    """The valid amounts of cores in a request policy; empty if there is none that can be read."""
    box = next((raw[name] for name in names.CORES_SPELLINGS if name in raw), None)
    policy = box.get("requestPolicy") if isinstance(box, Mapping) else None
    values = policy.get("validValues") if isinstance(policy, Mapping) else None
    try:
        return tuple(int(quantities.parse_amount(each)) for each in values or ())
    except quantities.NotAQuantityError:
        return ()


def unboxed(box: object) -> Value | None:
    """The value of a `DeviceAttribute`; None for lists and types of newer API versions."""
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
    """Counts the distinct devices and values of all ResourceSlices, updated slice by slice."""

    def __init__(self) -> None:
        self._devices: Counter[SliceDevice] = Counter()
        self._values: dict[tuple[str, str], Counter[Value] | None] = {}

    def replace(self, before: SliceShapes | None, after: SliceShapes | None) -> bool:
        """Replace the shapes of one slice; None: the slice did not exist, or exists no more.

        Returns:
            Whether `shapes` changed.
        """
        if before == after:
            return False
        # Add before remove, so that the counts of unchanged devices do not reach 0.
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
        """All distinct devices of the cluster."""
        values = {key: Varying(None if counts is None else frozenset(counts)) for key, counts in self._values.items()}
        return tuple(_shape(device, values) for device in self._devices)


def _take(counts: Counter[Any], key: Any) -> bool:
    counts[key] -= 1
    if counts[key] > 0:
        return False
    del counts[key]
    return True


def _shape(device: SliceDevice, values: Mapping[tuple[str, str], Varying]) -> Shape:
    attributes = dict(device.fixed)
    instance_type = str(attributes.get(qualified(names.ATTRIBUTE_INSTANCE_TYPE), ""))
    # A device without `resourceType` is a single device: drivers before UltraServers did not publish it.
    resource_type = str(attributes.get(qualified(names.ATTRIBUTE_RESOURCE_TYPE), names.RESOURCE_TYPE_DEVICE))
    varying = {name: values[instance_type, name] for name in device.others}
    capacity = dict(device.capacity)
    return Shape(instance_type, resource_type, attributes, varying, True, capacity, device.shares, device.counted)
