"""The node's devices in ResourceSlices: their names and taints, and shares of their cores (KEP-5075).

A shared device publishes its cores as capacity that several claims can consume. A claim that requests no capacity
consumes all cores, so it gets a whole device, as if nothing were shared. The scheduler decides how many cores a share
has; which ones is the driver's decision. Cores are numbered from 0 on their device.
"""

import enum
import re
from collections.abc import Collection
from typing import Final, Literal

from kubeletplugin.discover.sysfs import MOST_CORES, NodeHardware
from kubeletplugin.ports import JsonObject
from neuron import names
from neuron.api.taints import Taint
from neuron.hardware import capacities
from neuron.hardware.instances import InstanceType

NODE_DEVICE: Final = names.NODE_DEVICE
"""Name of the device that stands for a whole UltraServer node."""

_DEVICE_NAME: Final = re.compile(r"neuron-?device-?([0-9]{1,3})", re.ASCII)


HELD_TAINT: Final = Taint(names.TAINT_HELD, "kept", "NoSchedule")
"""Taint of a device that is or may be in use, although no claim has it."""

CORDONED_TAINT: Final = Taint(names.TAINT_CORDONED, "admin", "NoSchedule")
"""Taint of a device that an administrator has cordoned."""


ShareSetting = Literal["auto", "on", "off"]
"""auto: devices of rings and chains, and devices that are alone on their node."""
SHARE_FIELDS: Final = ("allowMultipleAllocations", "requestPolicy")
"""Fields of a device that the API server drops if the feature is disabled."""


def device_name(index: int) -> str:
    """A device's name in the pool."""
    return f"neuron-device-{index}"


def device_index(name: str) -> int | None:
    """The index in a device's name, in both spellings of AWS; None for other names."""
    match = _DEVICE_NAME.fullmatch(name)
    return int(match[1]) if match else None


def share_setting(configured: ShareSetting, label: str | None) -> ShareSetting:
    """The setting in force on a node: that of its label, if it is `on` or `off`."""
    return "on" if label == "on" else "off" if label == "off" else configured


def shares_cores(setting: ShareSetting, instance: InstanceType | None) -> bool:
    """Whether the devices of a type are published as shared.

    Pods for parts of a device are frequent on Inferentia: where nothing is shared, four of ten that ran with the device
    plugin are refused at a load of 0.9 (docs/benchmarks.md). `allocationMode: All` leaves out shared devices that are
    used up, so nodes whose pods request `All` are not shared: AWS documents that mode for Trainium nodes with several
    devices.
    """
    return setting == "on" or (setting == "auto" and instance is not None and not instance.grouped)


def physical_cores(hardware: NodeHardware, instance: InstanceType | None, index: int) -> int | None:
    """Physical cores of a device: from sysfs, else from the catalogue; None if neither says it."""
    device = hardware.device(index)
    found = device.cores if device is not None else None
    return found or (instance.cores_per_device if instance is not None else None)


def share(device: JsonObject, cores: int | None) -> None:
    """Let several claims share the cores of a device of a ResourceSlice, which is changed in place.

    A device whose number of cores is not known, or too large for a request policy, is not shared.
    """
    if cores is None or not 0 < cores <= MOST_CORES:
        return
    policy = {"default": str(cores), "validValues": [str(value) for value in capacities.share_sizes(cores)]}
    device["allowMultipleAllocations"] = True
    device.setdefault("capacity", {})[names.CAPACITY_CORES] = {"value": str(cores), "requestPolicy": policy}


class Side(enum.Enum):
    """The end of a device at which a share continues the whole devices of the same container."""

    LOW = "low"
    """The whole devices precede the shared one."""
    HIGH = "high"
    """The whole devices follow the shared one."""


def assign_cores(
    device_cores: int, amount: int, logical: int, taken: Collection[int], side: Side | None = None
) -> tuple[int, ...] | None:
    """Choose physical cores of a device.

    In this order: the cores at the wanted side; an aligned block of a power of two, in the smallest free block that
    holds it; consecutive cores; any cores.

    Args:
        device_cores: physical cores of the device.
        amount: physical cores of the share, a multiple of `logical`.
        logical: physical cores of one logical core; they are not separated.
        taken: physical cores of other shares.
        side: where the share should be, if it matters.

    Returns:
        The cores, ascending; None if there are not enough.
    """
    total, wanted = device_cores // logical, amount // logical
    free = [unit for unit in range(total) if not any(core in taken for core in _physical(unit, logical))]
    if wanted > len(free):
        return None
    runs = (range(unit, unit + wanted) for unit in free)
    run = next((each for each in runs if set(each) <= set(free)), None)
    units = _at_side(total, wanted, free, side) or _block(total, wanted, free) or run or free[:wanted]
    return tuple(core for unit in units for core in _physical(unit, logical))


def side_of(index: int, whole: Collection[int], devices: int, wraps: bool) -> Side | None:
    """The side at which a shared device continues whole devices; None if it is not next to them.

    Args:
        whole: indices of the whole devices that the same containers use.
        wraps: whether the last device is connected with the first.
    """
    before, after = index - 1, index + 1
    if wraps:
        before, after = before % devices, after % devices
    if before in whole:
        return Side.LOW
    return Side.HIGH if after in whole else None


def _physical(unit: int, logical: int) -> range:
    return range(unit * logical, (unit + 1) * logical)


def _at_side(total: int, wanted: int, free: Collection[int], side: Side | None) -> range | None:
    if side is None:
        return None
    units = range(wanted) if side is Side.LOW else range(total - wanted, total)
    return units if all(unit in free for unit in units) else None


def _block(total: int, wanted: int, free: Collection[int]) -> range | None:
    size = 1 << (wanted - 1).bit_length()
    best: tuple[int, int] | None = None
    for start in range(0, total - wanted + 1, size):
        if all(unit in free for unit in range(start, start + wanted)):
            found = (_free_around(start, size, total, free), start)
            best = min(best or found, found)
    return None if best is None else range(best[1], best[1] + wanted)


def _free_around(start: int, size: int, total: int, free: Collection[int]) -> int:
    """Size of the largest aligned block around a block of which all cores are free."""
    while size * 2 <= total:
        first = start // (size * 2) * size * 2
        if not all(unit in free for unit in range(first, first + size * 2)):
            break
        start, size = first, size * 2
    return size
