"""Facts beside an object that counting its devices needs. `policies.applying.knowledge` gathers them."""

import dataclasses
import functools
from collections.abc import Collection, Mapping
from decimal import Decimal
from typing import Final

from conversion.claims.containers import are_devices_of
from neuron import names, quantities
from neuron.api.claim_specs import ClaimSpec
from neuron.hardware import capacities
from neuron.hardware.instances import Catalogue
from policies.judging.whole_nodes import WholeNodes

UNKNOWN_NODE: Final = 16
"""Assumed for a node type whose number of devices is not published: the most of any known type."""


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceKnowledge:
    """Facts beside the object. Immutable, because an evaluation may run in another thread.

    Attributes:
        classes: by name, whether a DeviceClass has Neuron devices (None: not known). None instead of a mapping if no
            class is known. A class that is missing is judged by its name.
        class_lncs: logical NeuronCore settings in the configs of DeviceClasses, by class name.
        class_selectors: CEL selectors of DeviceClasses that may have Neuron devices, by class name.
        extended: extended resource -> DeviceClass that serves it (KEP-5004).
        templates: the known ResourceClaimTemplates of the object's namespace by name.
        claims: the known ResourceClaims of the object's namespace by name.
        whole_nodes: those that a request may get; None: those of the catalogue, and slices publish none.
        record: what the pod's containers requested before conversion, `{"containers": {"main": {resource: amount}}}`;
            None unless the record was verified.
        recorded_claim: entry of `spec.resourceClaims` that conversion added.
        strips_limits: conversion removes the limits of recorded containers before the pod is stored, so they count
            only if they are more than the record.
    """

    catalogue: Catalogue = dataclasses.field(default_factory=Catalogue)
    classes: Mapping[str, bool | None] | None = None
    class_lncs: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    class_selectors: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    extended: Mapping[str, str] = dataclasses.field(default_factory=dict)
    templates: Mapping[str, ClaimSpec] = dataclasses.field(default_factory=dict)
    claims: Mapping[str, ClaimSpec] = dataclasses.field(default_factory=dict)
    whole_nodes: WholeNodes | None = None
    record: Mapping[str, object] | None = None
    recorded_claim: str = ""
    strips_limits: bool = False

    def has_devices(self, device_class: str) -> bool | None:
        """Whether a DeviceClass has Neuron devices; None if it is not known."""
        if self.classes is not None and device_class in self.classes:
            return self.classes[device_class]
        named = device_class == names.DEVICE_CLASS or device_class.startswith(f"{names.DEVICE_CLASS}.")
        return True if named else None


NOTHING_KNOWN: Final = DeviceKnowledge()


@dataclasses.dataclass(frozen=True, slots=True)
class Figures:
    """Figures of all instance types in a catalogue.

    Attributes:
        node: devices of the largest node.
        most: by capacity, the most that one device has.
        cores: for every type with known cores, the fewest cores of a device and the counts that one request can have;
            no counts for a ring, which allows any number of consecutive devices.
        sizes: for every type with known cores, the physical cores of a device and the logical NeuronCore settings.
    """

    node: int
    most: Mapping[str, Decimal]
    cores: tuple[tuple[int, tuple[int, ...]], ...]
    sizes: frozenset[tuple[int, tuple[int, ...]]]

    def are_one_request(self, devices: Collection[int], cores: int) -> bool:
        """Whether a container's amounts of devices, and of cores (0: none), mean the same devices on some type."""
        count, *others = {*devices}
        if others:
            return False
        return not cores or any(are_devices_of(cores, count, *size) for size in self.sizes)

    def devices_for(self, cores: int) -> int:
        """The most devices that a container gets for this many cores, on any type that can serve it."""
        found = []
        for per_device, counts in self.cores:
            exact = -(-cores // per_device)
            found += [count for count in counts or (exact,) if count >= exact][:1]
        return max(found, default=-(-cores // min((each for each, _ in self.cores), default=1)))


@functools.lru_cache(maxsize=4)
def figures(catalogue: Catalogue) -> Figures:
    node = max((entry.devices or UNKNOWN_NODE for entry in catalogue), default=UNKNOWN_NODE)
    cores = {
        (
            max(1, entry.cores_per_device // max(entry.logical_neuron_cores or (1,))),
            () if entry.consecutive else entry.counts,
        )
        for entry in catalogue
        if entry.cores_per_device and entry.groups_known
    }
    return Figures(
        node,
        _most_capacities(catalogue),
        tuple(sorted(cores)),
        frozenset(
            (entry.cores_per_device, entry.logical_neuron_cores or (1,))
            for entry in catalogue
            if entry.cores_per_device
        ),
    )


def _most_capacities(catalogue: Catalogue) -> Mapping[str, Decimal]:
    most: dict[str, Decimal] = {}
    for name, text in {each for entry in catalogue for each in capacities.quantities(entry).items()}:
        most[name] = max(most.get(name, Decimal(0)), quantities.parse_amount(text))
    return most
