"""What is kept of the driver's ResourceSlices, and the instance types that the slices of a pool show."""

import dataclasses
import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from cluster.kinds.device_traits import Trait, TypeTraits, traits_of
from neuron import names
from neuron.api.slice_shapes import SliceShapes, slice_shapes
from neuron.api.slices import Slice, read_slice
from neuron.hardware.instances import Observation

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
