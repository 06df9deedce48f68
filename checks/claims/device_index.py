"""Finds the devices that selectors match by evaluating them on each distinct shape of device.

The caller provides the CEL engine (two Protocols). The rules are those of the allocator,
`k8s.io/dynamic-resource-allocation/structured`: selectors of the class first, then those of the request, ANDed; an
error on one device ends the scheduling of the pod.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final, Protocol

from neuron import names
from neuron.hardware.device_shapes import ATTRIBUTE_TYPES, DEVICE_ID, DeviceShape, Scalar, Value, each_value

if TYPE_CHECKING:
    # Types only: a program without the extra that has CEL loads this module before it says that the extra is missing.
    from checks.claims.analysis import AttributeRead, SubjectUse

Attributes = Mapping[str, Value | None]
"""Attributes by qualified name. None is an unknown value: each operation on it fails."""

_FEW_VALUES: Final = 8
_MOST_TRIES: Final = 64


class SelectorError(Exception):
    """An error of an expression; the message is one sentence.

    Attributes:
        position: ` (line 1, column 8)`, or empty if there is no single place.
    """

    def __init__(self, message: str, position: str = "") -> None:
        super().__init__(message)
        self.position = position


class SelectorSyntaxError(SelectorError):
    """It is not CEL."""


class SelectorTypeError(SelectorError):
    """It uses an unknown name, or operands of types that never fit."""


class SelectorUnsupportedError(SelectorError):
    """It is CEL that this engine does not support."""


class SelectorTimeError(SelectorUnsupportedError):
    """The time-out for all selectors of one object has passed. This selector may be valid."""


class SelectorTooCostlyError(SelectorError):
    """It costs more than Kubernetes allows."""


class SelectorRuntimeError(SelectorError):
    """It cannot be evaluated on this device."""


class CompiledSelector(Protocol):
    """An expression that can be evaluated on devices."""

    @property
    def source(self) -> str:
        """The expression."""

    @property
    def lookups(self) -> "Sequence[AttributeRead]":
        """All places that read an attribute or a capacity and do not only test for it, in order."""

    @property
    def uses(self) -> "Sequence[SubjectUse]":
        """All operations on attributes, in order."""

    @property
    def attributes(self) -> frozenset[str] | None:
        """All attributes that it reads or tests for; None if it iterates over attributes or computes their names."""

    @property
    def capacities(self) -> frozenset[str]:
        """All capacities that it reads or tests for, unless `attributes` is None."""

    @property
    def drivers(self) -> Sequence[str]:
        """Constants to which it compares `device.driver`."""

    @property
    def reads_sharing(self) -> bool:
        """Whether it reads `allowMultipleAllocations`."""

    def evaluate(
        self, driver: str, attributes: Attributes, capacity: Mapping[str, str] | None = None, *, shared: bool = False
    ) -> bool:
        """Whether a device satisfies it.

        Args:
            capacity: of the device: quantities by qualified name; None: it has none.
            shared: whether several claims can share it.

        Raises:
            SelectorRuntimeError: it fails on this device.
            SelectorTooCostlyError: it costs more on this device than Kubernetes allows.
            SelectorUnsupportedError: it was stopped: it may be valid, but is too slow to evaluate on all devices, or
                builds a value that is too large.
            SelectorTimeError: the time-out for all selectors of its object has passed.
        """


class SelectorEngine(Protocol):
    """Compiles expressions."""

    def for_one_object(self, clock: Callable[[], float] | None) -> "SelectorEngine":
        """An engine whose time limit begins again, by `clock`; None: wall-clock time."""

    def compile(self, expression: str) -> CompiledSelector:
        """Compile one expression.

        Raises:
            SelectorError: any subclass but `SelectorRuntimeError`, with the position of the error.
        """


@dataclasses.dataclass(frozen=True, slots=True)
class Match:
    """Result of one selector on the shapes of an index; sets of shapes are bit masks.

    Attributes:
        matched: shapes that match, or may match, depending on a value that differs between nodes.
        failing: shapes on which it fails.
        failure: message of the first failure.
    """

    matched: int
    failing: int = 0
    failure: str = ""


class DeviceIndex:
    """Shapes of devices, and the shapes that a selector matches. Immutable; threads may share it.

    A selector is evaluated once for each distinct combination of the attributes that it reads: one that reads only
    `instanceType` takes one evaluation per instance type, for any number of devices and nodes.
    """

    def __init__(self, shapes: Iterable[DeviceShape], present: Iterable[str] = ()) -> None:
        """`present`: instance types that the cluster has, besides those of published shapes."""
        self.shapes = tuple(shapes)
        self.everything = (1 << len(self.shapes)) - 1
        self.published = self._mask(lambda shape: shape.published)
        self.whole_nodes = self._mask(lambda shape: shape.resource_type == names.RESOURCE_TYPE_NODE)
        self.shared = self._mask(lambda shape: shape.shared)
        self.counted = self._mask(lambda shape: shape.counted)
        self._types: dict[str, int] = {}
        self._having: dict[str, int] = {}
        self._with_capacity: dict[str, int] = {}
        for position, shape in enumerate(self.shapes):
            self._types[shape.instance_type] = self._types.get(shape.instance_type, 0) | 1 << position
            for attribute in (*shape.fixed, *shape.varying):
                self._having[attribute] = self._having.get(attribute, 0) | 1 << position
            for capacity in shape.capacity:
                self._with_capacity[capacity] = self._with_capacity.get(capacity, 0) | 1 << position
        self._doubled = frozenset(name for name in self._types if self._is_doubled(name))
        self._values: dict[tuple[str, int], tuple[Value, ...]] = {}
        # Claims with equal selectors have equal masks, and ask the same again.
        self.types: Final[Callable[[int], tuple[str, ...]]] = functools.lru_cache(maxsize=128)(self._types_of)
        """Instance types in a mask, those of the catalogue first and in its order."""
        self._remembered_devices = functools.lru_cache(maxsize=512)(self._devices_of)
        self.types_with: Final[Callable[[int, int], tuple[str, ...]]] = functools.lru_cache(maxsize=256)(
            lambda mask, count: tuple([name for name in self.types(mask) if self.devices(mask, name) >= count])
        )
        """The instance types of which a node has so many devices in a mask, in the order of `types`."""
        self._remembered_groups = functools.lru_cache(maxsize=256)(self._groups_of)
        seen = {shape.instance_type for shape in self.members(self.published)}
        self.present = frozenset(self._types.keys() & seen.union(present))
        """Instance types that the cluster has; empty if they are not known."""
        self.most_devices = max((self.devices(self.everything, name) for name in self._types), default=0)
        """The largest number of devices of any node."""
        self.superseded = self._mask(lambda shape: not shape.published and shape.instance_type in seen)
        """Catalogue shapes of types that the cluster has: published shapes show the real attributes."""

    def _mask(self, test: Callable[[DeviceShape], bool]) -> int:
        return sum(1 << position for position, shape in enumerate(self.shapes) if test(shape))

    def members(self, mask: int) -> Iterator[DeviceShape]:
        """The shapes of a mask."""
        while mask:
            lowest = mask & -mask
            yield self.shapes[lowest.bit_length() - 1]
            mask ^= lowest

    def of_type(self, instance_type: str) -> int:
        """All shapes of an instance type."""
        return self._types.get(instance_type, 0)

    def existing(self, mask: int) -> int:
        """The shapes of a mask whose instance type the cluster has; all of them if its types are not known."""
        return mask & sum(map(self.of_type, self.present)) if self.present else mask

    def _types_of(self, mask: int) -> tuple[str, ...]:
        return tuple(name for name, shapes in self._types.items() if shapes & mask)

    def devices(self, mask: int, instance_type: str) -> int:
        """The largest number of devices of one node in a mask.

        Catalogue and slices describe the same node, so the larger number counts. A whole node and its single devices
        exclude each other.
        """
        return self._remembered_devices(mask & self.of_type(instance_type), instance_type)

    def _devices_of(self, mine: int, instance_type: str) -> int:
        count = self._distinct if instance_type in self._doubled else int.bit_count
        return max(
            count(mine & origin & kind)
            for origin in (self.published, ~self.published)
            for kind in (self.whole_nodes, ~self.whole_nodes)
        )

    def ids(self, mask: int, instance_type: str) -> frozenset[int]:
        """The device ids of a type's devices in a mask."""
        shapes = self.members(mask & self.of_type(instance_type))
        return frozenset(each for shape in shapes if isinstance(each := shape.fixed.get(DEVICE_ID), int))

    def _distinct(self, mask: int) -> int:
        """The number of devices of a node: shapes with one device id are the same device of different nodes."""
        return len({shape.fixed.get(DEVICE_ID, place) for place, shape in enumerate(self.members(mask))})

    def _is_doubled(self, instance_type: str) -> bool:
        """Whether nodes of a type publish a device differently, such as before and after an upgrade of the driver."""
        mine = self.of_type(instance_type) & self.published & ~self.whole_nodes
        return self._distinct(mine) < mine.bit_count()

    def with_attribute(self, attribute: str) -> int:
        """Shapes that have an attribute."""
        return self._having.get(attribute, 0)

    def with_capacity(self, capacity: str) -> int:
        """Shapes that have a capacity."""
        return self._with_capacity.get(capacity, 0)

    def capacities(self) -> AbstractSet[str]:
        """Names of all capacities."""
        return self._with_capacity.keys()

    def groups(self, mask: int, attribute: str, instance_type: str) -> int:
        """The largest number of devices of one node in a mask with an equal value of an attribute."""
        return self._remembered_groups(mask & self.of_type(instance_type), attribute)

    def _groups_of(self, mine: int, attribute: str) -> int:
        best = 0
        for published in (True, False):
            sizes: dict[Scalar, set[object]] = {}
            varying = 0
            for shape in self.members(mine):
                if shape.published is not published:
                    continue
                value = shape.fixed.get(attribute)
                if value is not None:
                    for each in each_value(value):
                        sizes.setdefault(each, set()).add(shape.fixed.get(DEVICE_ID, id(shape)))
                elif attribute in shape.varying:
                    varying += 1
            best = max(best, varying, *map(len, sizes.values()), 0)
        return best

    def values(self, attribute: str, among: int = -1) -> tuple[Value, ...]:
        """Known values of an attribute, sorted by their text; of all shapes, or of those in a mask."""
        shapes = self.with_attribute(attribute) & among
        if not shapes:
            return ()
        known = self._values.get((attribute, shapes))
        if known is None:
            # Bounded by the number of attributes: callers use all shapes or the published ones.
            known = self._values[attribute, shapes] = self._values_of(attribute, shapes)
        return known

    def _values_of(self, attribute: str, shapes: int) -> tuple[Value, ...]:
        found: set[Value] = set()
        for shape in self.members(shapes):
            value = shape.fixed.get(attribute)
            if value is not None:
                found.add(value)
            elif attribute in shape.varying:
                found |= shape.varying[attribute].values or frozenset()
        return tuple(sorted(found, key=str))

    def attributes(self) -> AbstractSet[str]:
        """Names of all attributes."""
        return self._having.keys()

    def match(self, selector: CompiledSelector) -> Match:
        """Evaluate a selector on all shapes.

        Raises:
            SelectorTooCostlyError: see `CompiledSelector.evaluate`.
            SelectorUnsupportedError: see there.
        """
        read = None if selector.attributes is None else tuple(sorted(selector.attributes))
        capacities = tuple(sorted(selector.capacities))
        answers: dict[object, tuple[bool, str]] = {}
        matched = failing = 0
        failure = ""
        for position, shape in enumerate(self.shapes):
            key = _projection(shape, read, capacities, sharing=selector.reads_sharing)
            answer = answers.get(key)
            if answer is None:
                answer = answers[key] = _judge(selector, shape, read)
            matches, error = answer
            if matches:
                matched |= 1 << position
            elif error:
                failing |= 1 << position
                failure = failure or error
        return Match(matched, failing, failure)


def _projection(shape: DeviceShape, read: Sequence[str] | None, capacities: Sequence[str], *, sharing: bool) -> object:
    """The part of a shape that a selector reads."""
    if read is None:
        return id(shape)
    attributes = tuple([(shape.fixed.get(attribute), shape.varying.get(attribute)) for attribute in read])
    return attributes, tuple([shape.capacity.get(name) for name in capacities]), sharing and shape.shared


def _judge(selector: CompiledSelector, shape: DeviceShape, read: Sequence[str] | None) -> tuple[bool, str]:
    """Whether a selector matches a shape, and otherwise the message of its failure, if it fails.

    If an attribute varies, the shape matches if one of its values does. An unknown value is left out: an expression
    that fails because of it may match.
    """
    uncertain = False
    failure = ""
    for varying in _assignments(selector, shape, read):
        try:
            if selector.evaluate(names.DRIVER, {**shape.fixed, **varying}, shape.capacity, shared=shape.shared):
                return True, ""
        except SelectorRuntimeError as error:
            if None in varying.values():
                uncertain = True
            else:
                failure = failure or f"{error}{error.position}"
    return uncertain, failure


def _assignments(
    selector: CompiledSelector, shape: DeviceShape, read: Sequence[str] | None
) -> Iterator[Mapping[str, Value | None]]:
    """Combinations of values of varying attributes to evaluate, at most `_MOST_TRIES` and one with unknown values."""
    attributes = [name for name in shape.varying if read is None or name in read]
    choices = [_choices(selector, name, shape.varying[name].values) for name in attributes]
    for values in itertools.islice(itertools.product(*choices), _MOST_TRIES):
        yield dict(zip(attributes, values, strict=True))
    if math.prod(map(len, choices)) > _MOST_TRIES:
        yield dict.fromkeys(attributes)


def _choices(selector: CompiledSelector, attribute: str, values: frozenset[Value] | None) -> list[Value | None]:
    if values is not None and len(values) <= _FEW_VALUES:
        return sorted(values, key=str)
    literals = [
        value
        for use in selector.uses
        if use.attribute == attribute
        for value in use.operands or ()
        if isinstance(value, str | int) and (value in values if values is not None else _fits(attribute, value))
    ]
    return [*dict.fromkeys(literals), None]


def _fits(attribute: str, value: object) -> bool:
    """Whether a constant has the documented type of an attribute."""
    return type(value) is ATTRIBUTE_TYPES.get(attribute, str)
