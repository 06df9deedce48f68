"""What is kept of the driver's ResourceSlices, and the instance types that the slices of a pool show."""

import dataclasses
import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from neuron import names
from neuron.hardware.device_shapes import SliceShapes, read_slice
from neuron.hardware.instances import Observation
from webhook.cluster.device_traits import Trait, TypeTraits, read_traits

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


def project_slice(item: Mapping[str, Any]) -> SliceFacts | None:
    """Devices of a ResourceSlice by instance type; None if it has no devices of the driver."""
    spec = item["spec"]
    if spec.get("driver") != names.DRIVER:
        return None
    devices: defaultdict[str, set[str]] = defaultdict(set)
    groups: defaultdict[str, set[int]] = defaultdict(set)
    traits: set[tuple[str, Trait]] = set()
    for device in spec.get("devices") or ():
        attributes = device.get("attributes") or {}
        instance_type = _text(attributes, names.ATTRIBUTE_INSTANCE_TYPE)
        if not instance_type:
            continue
        kind = _text(attributes, names.ATTRIBUTE_RESOURCE_TYPE)
        if kind in ("", names.RESOURCE_TYPE_DEVICE):
            if instance_type not in devices:
                traits.update((instance_type, trait) for trait in read_traits(device))
            devices[instance_type].add(device["name"])
            groups[instance_type].update(_group_sizes(attributes))
        elif kind == names.RESOURCE_TYPE_NODE:
            traits.add((instance_type, Trait.WHOLE))
    if not traits:
        return None
    pool = spec["pool"]
    shared = _shared(
        tuple((name, frozenset(devices[name])) for name in sorted(devices)),
        tuple((name, frozenset(groups[name])) for name in sorted(groups)),
        tuple(sorted(traits)),
    )
    return SliceFacts(pool["name"], int(pool.get("generation") or 0), *shared, read_slice(spec))


# Thousands of nodes of one type have equal values: one copy is kept.
@functools.lru_cache(maxsize=256)
def _shared(devices: _Devices, groups: _Groups, traits: TypeTraits) -> tuple[_Devices, _Groups, TypeTraits]:
    return devices, groups, traits


def _text(attributes: Mapping[str, Any], name: str) -> str:
    """A string attribute of the driver; its name may have the driver's domain as prefix."""
    value = attributes.get(f"{names.DRIVER}/{name}") or attributes.get(name) or {}
    return str(value.get("string") or "")


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
