"""The devices that exist as a small number of distinct shapes, and those of the catalogue.

5,000 nodes publish 80,000 devices, but nodes of one instance type differ only in attributes of the node's location or
software. A shape has the fixed attributes with their values, and for the others the set of values that occur. So the
cost of evaluating a selector does not grow with the cluster. `cluster.kinds.resource_slices` makes those of a cluster.

Source of the attributes: the Neuron DRA driver's documentation ("Attributes Reference").
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from neuron import names
from neuron.hardware import capacities, connections, device_groups, pci_addresses
from neuron.hardware.connections import TORUS_WIDTH
from neuron.hardware.instances import Catalogue, InstanceType, Topology


@dataclasses.dataclass(frozen=True, slots=True)
class Version:
    """A value of DRA type `version`: semantic version 2.0.0."""

    text: str


Scalar: TypeAlias = bool | int | str | Version
Value: TypeAlias = Scalar | tuple[Scalar, ...]
"""A tuple is a list-type attribute (KEP-5491): all of its values have one type."""


def each_value(value: Value | None) -> tuple[Scalar, ...]:
    """The values of an attribute: several of a list, none if the device does not have it."""
    return value if isinstance(value, tuple) else () if value is None else (value,)


DRA_DRIVER_VERSION: Final = "draDriverVersion"
NEURON_DRIVER_VERSION: Final = "neuronDriverVersion"
_NETWORK_LAYERS: Final = tuple(f"networkNodeLayer{layer}" for layer in (1, 2, 3))
_CAPACITY_BLOCK: Final = "capacityBlockId"
OPERATOR_ATTRIBUTES: Final = (names.ATTRIBUTE_ULTRASERVER, names.ATTRIBUTE_WORKLOAD)
"""Of devices that AWS's UltraServer operator manages; the second one while a workload has the node."""

ATTRIBUTE_TYPES: Final[Mapping[str, type]] = {
    **{
        f"{names.DRIVER}/{name}": kind
        for kind, attributes in (
            (int, (names.ATTRIBUTE_DEVICE_ID, "topology_x", "topology_y", "topology4_id", "topology8_id")),
            (str, (names.ATTRIBUTE_INSTANCE_TYPE, names.ATTRIBUTE_RESOURCE_TYPE, NEURON_DRIVER_VERSION)),
            (str, (*_NETWORK_LAYERS, _CAPACITY_BLOCK, *OPERATOR_ATTRIBUTES)),
            (Version, (DRA_DRIVER_VERSION,)),
        )
        for name in attributes
    },
    names.ATTRIBUTE_PCIE_ROOT: str,
    names.ATTRIBUTE_NUMA_NODE: int,
    **{names.device_group_attribute(size): str for size in (1, *device_groups.GROUP_SIZES)},
}
"""All documented attributes of the driver, by qualified name, with the type of their values."""

_UNKNOWN_DEVICES: Final = 16
"""Devices of a node if their number is not published: the largest number of any known type."""


@dataclasses.dataclass(frozen=True, slots=True)
class Varying:
    """An attribute that all devices of a shape have, with values that differ between nodes.

    Attributes:
        values: the values that occur; None if any value is possible.
    """

    values: frozenset[Value] | None = None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class DeviceShape:
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


def catalogue_shapes(catalogue: Catalogue) -> Iterator[DeviceShape]:
    """The shapes of nodes of all types in the catalogue."""
    for entry in catalogue:
        varying = {qualified(name): Varying() for name in (NEURON_DRIVER_VERSION, DRA_DRIVER_VERSION, *_NETWORK_LAYERS)}
        if entry.ultraserver_nodes:
            varying[qualified(_CAPACITY_BLOCK)] = Varying()
        if entry.ultraserver_nodes is None or entry.ultraserver_nodes:  # None: not known.
            varying |= {qualified(name): Varying() for name in OPERATOR_ATTRIBUTES}
        if pci_addresses.tells(entry):
            varying |= {names.ATTRIBUTE_PCIE_ROOT: Varying(), names.ATTRIBUTE_NUMA_NODE: Varying()}
        count = entry.devices or _UNKNOWN_DEVICES
        capacity, shares = _capacity(entry, 1), _shares(entry)
        for device_id in range(count):
            fixed = device_attributes(entry, device_id, count)
            yield DeviceShape(entry.name, names.RESOURCE_TYPE_DEVICE, fixed, varying, capacity=capacity, shares=shares)
        if entry.ultraserver_nodes != ():
            fixed, capacity = _node_attributes(entry, count), _capacity(entry, count)
            yield DeviceShape(entry.name, names.RESOURCE_TYPE_NODE, fixed, varying, capacity=capacity)


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
    """The shares that the driver publishes unless its settings say otherwise, or that the cluster's slices show."""
    if not entry.cores_per_device or (entry.grouped and not entry.shares_cores):
        return None
    return capacities.share_sizes(entry.cores_per_device)


def _node_attributes(entry: InstanceType, devices: int) -> dict[str, Value]:
    attributes: dict[str, Value] = {
        names.ATTRIBUTE_DEVICE_ID: devices,
        names.ATTRIBUTE_INSTANCE_TYPE: entry.name,
        names.ATTRIBUTE_RESOURCE_TYPE: names.RESOURCE_TYPE_NODE,
    }
    return {qualified(name): value for name, value in attributes.items()}
