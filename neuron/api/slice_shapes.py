"""The devices of a cluster's ResourceSlices as distinct shapes, counted slice by slice."""

import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Mapping
from typing import Final, TypeVar

from neuron import names, quantities
from neuron.api.slices import PublishedDevice, Slice
from neuron.hardware.device_shapes import DeviceShape, Value, Varying, qualified

T = TypeVar("T")

_FIXED: Final = re.compile(
    rf"{re.escape(names.DRIVER)}/(deviceId|instanceType|resourceType|topology.*|window[0-9]+_[0-9]+)"
    r"|resource\.aws\.com/devicegroup[0-9]+_id",
    re.ASCII,
)
"""Attributes that instance type and device index determine. All others differ between nodes."""


@dataclasses.dataclass(frozen=True, slots=True)
class SliceDevice:
    """The part of a device that is equal on many nodes.

    Attributes:
        fixed: attributes that its type and index determine, sorted.
        others: names of its other attributes, sorted.
        capacity: quantities by qualified name, sorted.
        shares: as of `DeviceShape`.
        counted: as of `DeviceShape`.
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
        devices: the distinct devices.
        values: instance type, attribute and value of their other attributes.
    """

    devices: frozenset[SliceDevice]
    values: frozenset[tuple[str, str, Value]]


def slice_shapes(slice_: Slice) -> SliceShapes | None:
    """The distinct devices of a ResourceSlice; None for another driver's slice, and for one without devices."""
    if slice_.driver != names.DRIVER or not slice_.devices:
        return None
    devices: set[SliceDevice] = set()
    values: set[tuple[str, str, Value]] = set()
    for device in slice_.devices:
        fixed = tuple(sorted(each for each in device.attributes.items() if _FIXED.fullmatch(each[0])))
        instance_type = str(device.attribute(names.ATTRIBUTE_INSTANCE_TYPE) or "")
        others = {name: value for name, value in device.attributes.items() if not _FIXED.fullmatch(name)}
        shares = _shares(device) if device.shared else None
        capacity = tuple(sorted((qualified(name), each.value) for name, each in device.capacity.items()))
        devices.add(SliceDevice(fixed, tuple(sorted(others)), capacity, shares, bool(device.counters)))
        values.update((instance_type, name, value) for name, value in others.items())
    return SliceShapes(_shared(frozenset(devices)), frozenset(values))


@functools.lru_cache(maxsize=256)
def _shared(devices: frozenset[SliceDevice]) -> frozenset[SliceDevice]:
    """One copy in memory for all nodes with equal devices."""
    return devices


def _shares(device: PublishedDevice) -> tuple[int, ...]:
    """The valid amounts of cores in a request policy; empty if there is none that can be read."""
    cores = device.cores
    try:
        return tuple(int(quantities.parse_amount(each)) for each in (cores.valid if cores is not None else ()))
    except quantities.NotAQuantityError:
        return ()


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
            if len(counts) > 4096:  # the values are not kept
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

    def shapes(self) -> tuple[DeviceShape, ...]:
        """All distinct devices of the cluster."""
        values = {key: Varying(None if counts is None else frozenset(counts)) for key, counts in self._values.items()}
        return tuple(_shape(device, values) for device in self._devices)


def _take(counts: Counter[T], key: T) -> bool:
    counts[key] -= 1
    if counts[key] > 0:
        return False
    del counts[key]
    return True


def _shape(device: SliceDevice, values: Mapping[tuple[str, str], Varying]) -> DeviceShape:
    attributes = dict(device.fixed)
    instance_type = str(attributes.get(qualified(names.ATTRIBUTE_INSTANCE_TYPE), ""))
    # A device without `resourceType` is a single device: drivers before UltraServers did not publish it.
    resource_type = str(attributes.get(qualified(names.ATTRIBUTE_RESOURCE_TYPE), names.RESOURCE_TYPE_DEVICE))
    varying = {name: values[instance_type, name] for name in device.others}
    capacity = dict(device.capacity)
    return DeviceShape(instance_type, resource_type, attributes, varying, True, capacity, device.shares, device.counted)
