"""What is kept of the driver's ResourceSlices: the instance types of a pool, what their nodes publish, and the distinct
shapes of their devices, counted slice by slice.

The number of devices of a type only grows. What its nodes publish (whole nodes, shares of cores, windows, counters)
follows the slices: if a driver no longer shares cores, claims for shares would never be allocated.
"""

import dataclasses
import enum
import functools
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, TypeAlias, TypeVar

from checks.claims.connections import group_size
from neuron import names, quantities
from neuron.api.slices import PublishedDevice, Slice, read_slice
from neuron.hardware.device_shapes import DeviceShape, Value, Varying, qualified
from neuron.hardware.instances import Observation

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
    return SliceShapes(_one_copy(frozenset(devices)), frozenset(values))


@functools.lru_cache(maxsize=256)
def _one_copy(devices: frozenset[SliceDevice]) -> frozenset[SliceDevice]:
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


class Trait(enum.StrEnum):
    """Something that a ResourceSlice publishes of one instance type."""

    SINGLE = "single"
    """Single devices."""
    WHOLE = "whole"
    """The whole UltraServer node as a device."""
    SHARES = "shares"
    """Single devices whose cores claims can share."""
    WINDOWS = "windows"
    """Single devices with attributes of windows or groups, or with the capacity that drivers with windows publish for
    devices that are alone on their node. Without windows, consecutive devices are requested by device id."""
    UNCOUNTED = "uncounted"
    """Devices without the capacity that says how many cores they have: those of another driver, or of unknown types."""
    LNC_1 = "lnc-1"
    """Single devices of nodes whose file of defaults sets logical NeuronCores of one physical core."""
    COUNTERS = "counters"
    """Single devices that consume shared counters. Device groups are requested by device id."""


TypeTraits: TypeAlias = tuple[tuple[str, Trait], ...]
"""The traits of one slice with their instance types, each pair once."""


def traits_of(device: PublishedDevice) -> Iterator[Trait]:
    """The traits of a single device. A driver publishes all devices of a node alike."""
    yield Trait.SINGLE
    cores = device.cores is not None
    if cores and device.shared:
        yield Trait.SHARES
    if cores or any(map(group_size, device.attributes)):
        yield Trait.WINDOWS
    if not cores:
        yield Trait.UNCOUNTED
    if device.counters:
        yield Trait.COUNTERS
    if device.attribute(names.ATTRIBUTE_DEFAULT_LNC) == 1:
        yield Trait.LNC_1


class TraitCounts:
    """Counts the slices with each trait, by instance type."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, Trait]] = Counter()

    def replace(self, before: TypeTraits, after: TypeTraits) -> Collection[str]:
        """Replace the traits of one slice; empty before a creation and after a deletion. Returns its types."""
        self._counts.subtract(before)
        self._counts.update(after)
        for each in before:
            if not self._counts[each]:
                del self._counts[each]
        return {name for name, _ in (*before, *after)}

    def observed(self, observations: Mapping[str, Observation], types: Iterable[str]) -> Mapping[str, Observation]:
        """The observations with the present traits of some types: what any of their slices has.

        During an upgrade, pods wait for the nodes that have a trait. Without slices of a type the last traits stay.
        """
        seen = dict(observations)
        for name in types:
            has = {trait for trait in Trait if (name, trait) in self._counts}
            single, whole = Trait.SINGLE in has, Trait.WHOLE in has
            known = observations.get(name, Observation(0))
            # Single devices of a type of which none were observed are in an old generation of their pool.
            if whole or (single and known.devices):
                seen[name] = dataclasses.replace(known, single_devices=single, whole_node=whole)
            if single and name in seen:
                seen[name] = dataclasses.replace(
                    seen[name],
                    shares_cores=Trait.SHARES in has,
                    windows=Trait.WINDOWS in has,
                    counters=Trait.COUNTERS in has,
                    counts_cores=Trait.UNCOUNTED not in has,
                    # Where only some nodes have it, no setting is right for all of them.
                    default_lnc=1 if self._counts[name, Trait.LNC_1] == self._counts[name, Trait.SINGLE] else None,
                )
        return seen


_DEVICE_GROUP: Final = re.compile(r"resource\.aws\.com/devicegroup([0-9]{1,3})_id", re.ASCII)

_Devices: TypeAlias = tuple[tuple[str, frozenset[str]], ...]
_Groups: TypeAlias = tuple[tuple[str, frozenset[int]], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class SliceFacts:
    """What is kept of one ResourceSlice of the driver.

    Attributes:
        pool: name of its pool; by the driver's convention, the node's name.
        devices: names of its devices, by instance type.
        groups: sizes above 1 of the device groups of its devices, by instance type.
        traits: what else it publishes, by instance type.
        shapes: the attributes that selectors can distinguish.
    """

    pool: str
    generation: int
    devices: _Devices
    groups: _Groups
    traits: TypeTraits
    shapes: SliceShapes | None


def project_slice(item: Mapping[str, object]) -> SliceFacts | None:
    """What is kept of a ResourceSlice as the API server returns it; None if it has no devices of the driver."""
    return slice_facts(read_slice(item))


def slice_facts(slice_: Slice) -> SliceFacts | None:
    """Devices of a ResourceSlice by instance type; None if it has no devices of the driver."""
    if slice_.driver != names.DRIVER:
        return None
    devices: defaultdict[str, set[str]] = defaultdict(set)
    groups: defaultdict[str, set[int]] = defaultdict(set)
    traits: set[tuple[str, Trait]] = set()
    for device in slice_.devices:
        instance_type = device.text(names.ATTRIBUTE_INSTANCE_TYPE)
        if not instance_type:
            continue
        if device.is_single:
            if instance_type not in devices:
                traits.update((instance_type, trait) for trait in traits_of(device))
            devices[instance_type].add(device.name)
            groups[instance_type].update(_group_sizes(device.attributes))
        elif device.is_whole_node:
            traits.add((instance_type, Trait.WHOLE))
    if not traits:
        return None
    shared = _shared(
        tuple((name, frozenset(devices[name])) for name in sorted(devices)),
        tuple((name, frozenset(groups[name])) for name in sorted(groups)),
        tuple(sorted(traits)),
    )
    return SliceFacts(slice_.pool, slice_.generation, *shared, slice_shapes(slice_))


# Thousands of nodes of one type have equal values: one copy is kept.
@functools.lru_cache(maxsize=256)
def _shared(devices: _Devices, groups: _Groups, traits: TypeTraits) -> tuple[_Devices, _Groups, TypeTraits]:
    return devices, groups, traits


def _group_sizes(attributes: Iterable[str]) -> Iterator[int]:
    for attribute in attributes:
        match = _DEVICE_GROUP.fullmatch(attribute)
        if match and int(match[1]) > 1:
            yield int(match[1])


def with_pool(observations: Mapping[str, Observation], pool: Iterable[SliceFacts]) -> Mapping[str, Observation]:
    """The observations with the devices and groups of the slices of one pool, of its newest generation."""
    facts = tuple(pool)
    newest = max(each.generation for each in facts)
    devices: defaultdict[str, set[str]] = defaultdict(set)
    groups: defaultdict[str, set[int]] = defaultdict(set)
    for each in facts:
        if each.generation == newest:
            for instance_type, device_names in each.devices:
                devices[instance_type] |= device_names
            for instance_type, group_sizes in each.groups:
                groups[instance_type] |= group_sizes
    seen = dict(observations)
    for instance_type, together in devices.items():
        known = observations.get(instance_type, Observation(0))
        sizes = groups[instance_type].union(known.groups)
        most = max(known.devices, len(together))
        seen[instance_type] = dataclasses.replace(known, devices=most, groups=tuple(sorted(sizes)))
    return seen
