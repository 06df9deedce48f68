"""Facts beside an object that counting its devices needs. `policies.applying.requests` gathers them."""

import dataclasses
import functools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Final, TypeAlias

from checks.claims.device_index import CompiledSelector, DeviceIndex, SelectorError, SelectorTimeError
from checks.claims.selectors import ExpressionMemory
from conversion.claims import selectors
from conversion.claims.containers import are_devices_of
from neuron import names, quantities
from neuron.api.claim_specs import ClaimSpec
from neuron.hardware import capacities
from neuron.hardware.device_shapes import DeviceShape, catalogue_shapes, qualified
from neuron.hardware.instances import Catalogue
from policies.judging.selectors import DeviceSelectors

_MOST: Final = 8
"""Selectors of one request that are evaluated."""
_ALIKE: Final = frozenset(
    map(
        qualified,
        (
            *(names.ATTRIBUTE_INSTANCE_TYPE, "neuronDriverVersion", "draDriverVersion", "capacityBlockId"),
            *(f"networkNodeLayer{layer}" for layer in (1, 2, 3)),
        ),
    )
)
"""Attributes that are equal for a whole node and for its single devices."""

_Answer: TypeAlias = tuple[int, bool]
"""The whole nodes that a selector matches, as a mask, and whether it can tell them from their single devices."""


class WholeNodes:
    """The whole nodes that a request may get. Threads may share it."""

    def __init__(self, catalogue: Catalogue, published: Iterable[DeviceShape] = ()) -> None:
        """`published`: the whole nodes that slices show."""
        self._catalogue = catalogue
        self._shapes = tuple(published)
        self.published: Final = bool(self._shapes)
        """Whether the cluster has whole nodes. If not, selectors that cannot tell a whole node from a single device
        make no request for one."""
        self._known = ExpressionMemory[_Answer](most=1024 * 1024, bytes_per_character=4)

    @functools.cached_property
    def _index(self) -> DeviceIndex:
        known = Catalogue(entry for entry in self._catalogue if entry.ultraserver_nodes)
        nodes = [each for each in catalogue_shapes(known) if each.resource_type == names.RESOURCE_TYPE_NODE]
        # A node may lack each attribute that varies: a selector can count them.
        bare = [dataclasses.replace(each, varying={}) for each in nodes]
        return DeviceIndex([*nodes, *bare, *self._shapes])

    def can_match(self, expressions: Sequence[str], within: DeviceSelectors | None = None) -> bool:
        """Whether a device that satisfies all these selectors can be a whole node; True in doubt.

        Args:
            expressions: CEL selectors of one request and of its DeviceClass.
            within: bounds the time; None: not bounded.

        Raises:
            SelectorTimeError: the time was over before the answer was known.
        """
        if not expressions:
            return self.published
        tells_apart = self.published or len(expressions) > _MOST
        alive = self._index.everything
        for expression in expressions[:_MOST]:
            matched, tells = self._answer(expression, within)
            alive &= matched
            tells_apart = tells_apart or tells
        return bool(alive) and tells_apart

    def _answer(self, expression: str, within: DeviceSelectors | None) -> _Answer:
        if selectors.selects_single_devices(expression):
            return 0, True
        if len(expression) > 1024:  # exclusions are short
            return self._index.everything, True
        known = self._known.get(expression)
        if known is None:
            within = within or DeviceSelectors(deadline=math.inf)
            try:
                compiled = within.compile(expression)
                known = self._index.match(compiled).matched, _tells_apart(compiled)
            except SelectorTimeError:
                within.exceeded = True
                raise  # The answer is not remembered: the next evaluation may have more time.
            except SelectorError:
                known = self._index.everything, True
            self._known.put(expression, known)
        return known


def _tells_apart(selector: CompiledSelector) -> bool:
    """Whether the result on a whole node can differ from that on its single devices."""
    read = selector.attributes
    return read is None or not read <= _ALIKE or bool(selector.capacities) or selector.reads_sharing


@functools.lru_cache(maxsize=4)
def of_catalogue(catalogue: Catalogue) -> WholeNodes:
    """The whole nodes of a catalogue, in a cluster that publishes none."""
    return WholeNodes(catalogue)


_BUILT_IN: Final = Catalogue()
"""One for all, because figures and whole nodes are remembered by the catalogue."""
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

    catalogue: Catalogue = _BUILT_IN
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
    entries = tuple(catalogue)
    known = [(entry, entry.cores_per_device) for entry in entries if entry.cores_per_device]
    cores = {
        (max(1, physical // max(entry.logical_neuron_cores or (1,))), () if entry.consecutive else entry.counts)
        for entry, physical in known
        if entry.groups_known
    }
    most: dict[str, Decimal] = {}
    for name, text in {each for entry in entries for each in capacities.quantities(entry).items()}:
        most[name] = max(most.get(name, Decimal(0)), quantities.parse_amount(text))
    return Figures(
        max((entry.devices or UNKNOWN_NODE for entry in entries), default=UNKNOWN_NODE),
        most,
        tuple(sorted(cores)),
        frozenset((physical, entry.logical_neuron_cores or (1,)) for entry, physical in known),
    )
