"""The capacities of devices in ResourceSlices: memory and NeuronCores, from the catalogue.

Sources: the AWS Neuron documentation (memory and cores per device), DeviceCapacity in `resource.k8s.io/v1`. A capacity
that no source states is not published. Names have no domain: a claim's `capacity.requests` must use the published name.
"""

from collections.abc import Mapping
from typing import Any, Final

from neuron import names
from neuron.hardware.instances import InstanceType

MEMORY: Final = "memory"
"""Device memory; a binary quantity such as `96Gi`."""

NAMES: Final = (MEMORY, names.CAPACITY_CORES)
"""All capacities that the driver publishes."""

UNCOUNTED: Final[Mapping[str, object]] = {"default": "0", "validRange": {"min": "0"}}
"""Request policy of memory on a device that several claims share: memory is counted for claims that request it.

Without a policy each claim would consume all of it, and no second claim could use the device (KEP-5075).
"""


def quantities(entry: InstanceType, devices: int = 1) -> dict[str, str]:
    """The capacities of some devices together, as quantities by name.

    Args:
        devices: how many; more than one for the device that represents a whole node.
    """
    found = {}
    if entry.memory_gib is not None:
        found[MEMORY] = f"{entry.memory_gib * devices}Gi"
    if entry.cores_per_device is not None:
        found[names.CAPACITY_CORES] = str(entry.cores_per_device * devices)
    return found


def share_sizes(cores: int) -> tuple[int, ...]:
    """The numbers of cores that a claim can consume of a shared device: 0, the powers of two, and all of them.

    0 lets a monitoring claim with adminAccess look at a device that is used up.
    """
    return tuple(sorted({0, cores, *(1 << power for power in range(cores.bit_length()))}))


def add(device: dict[str, Any], entry: InstanceType, devices: int = 1) -> None:
    """Add the capacities to a device of a ResourceSlice; those that it has stay as they are.

    Args:
        device: its entry in `spec.devices`, changed in place. `allowMultipleAllocations` must be set before.
        devices: how many devices it represents.
    """
    capacity: dict[str, Any] = {name: {"value": value} for name, value in quantities(entry, devices).items()}
    if MEMORY in capacity and device.get("allowMultipleAllocations"):
        capacity[MEMORY]["requestPolicy"] = dict(UNCOUNTED)
    capacity |= device.get("capacity", {})
    if capacity:
        device["capacity"] = capacity
