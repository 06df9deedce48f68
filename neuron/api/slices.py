"""ResourceSlices of every API version: the pool, its devices with attributes and capacities, shared counters.

`v1` and `v1beta2` have the fields of a device in the device, `v1beta1` under `basic`. An attribute or a capacity of a
form that is not known here is left out: newer API versions add forms. Source: `k8s.io/api/resource/v1` of 1.37.
"""

import dataclasses
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct, structs

from neuron import names
from neuron.api.fields import Fields, ObjectMeta, WrongFormError, mapping, read, sequence
from neuron.api.taints import Taint
from neuron.hardware.device_shapes import Scalar, Value, Version, qualified
from neuron.quantities import NotAQuantityError, parse_amount


class Capacity(Struct, frozen=True):
    """A capacity of a device, with its request policy.

    Attributes:
        value: a quantity.
        default: what a claim consumes that requests none; None if the policy does not say.
        valid: amounts that a claim can consume; empty: the policy lists none.
    """

    value: str
    default: object = None
    valid: tuple[object, ...] = ()


class PublishedDevice(Struct, frozen=True):
    """A device of a ResourceSlice.

    Attributes:
        name: in its pool.
        attributes: by qualified name.
        capacity: by name as published.
        shared: whether several claims can have it (`allowMultipleAllocations`).
        taints: its taints.
        counters: amounts of shared counters that it consumes, by set and name in one string.
    """

    name: str
    attributes: Mapping[str, Value] = {}
    capacity: Mapping[str, Capacity] = {}
    shared: bool = False
    taints: tuple[Taint, ...] = ()
    counters: Mapping[str, int] = {}

    def attribute(self, name: str) -> Value | None:
        """An attribute of the driver; None without it."""
        return self.attributes.get(qualified(name))

    def text(self, name: str) -> str:
        """A string or version attribute of the driver; empty without it."""
        value = self.attribute(name)
        return value.text if isinstance(value, Version) else value if isinstance(value, str) else ""

    @property
    def cores(self) -> Capacity | None:
        """The capacity of NeuronCores; None without it."""
        return next((self.capacity[name] for name in names.CORES_SPELLINGS if name in self.capacity), None)

    @property
    def is_single(self) -> bool:
        """Whether it is one device. Drivers before UltraServers published no `resourceType`."""
        return self.text(names.ATTRIBUTE_RESOURCE_TYPE) in ("", names.RESOURCE_TYPE_DEVICE)

    @property
    def is_whole_node(self) -> bool:
        """Whether it stands for the whole node."""
        return self.text(names.ATTRIBUTE_RESOURCE_TYPE) == names.RESOURCE_TYPE_NODE


class Slice(Struct, frozen=True):
    """A ResourceSlice.

    Attributes:
        driver: that publishes it.
        pool: name of its pool.
        generation: of the pool.
        parts: slices of the pool in this generation.
        node: whose devices it has; by the driver's convention, the pool's name is the node's.
        devices: in their order.
        counters: values of the shared counters, by set and name in one string.
    """

    driver: str
    pool: str
    generation: int
    parts: int
    node: str
    devices: tuple[PublishedDevice, ...] = ()
    counters: Mapping[str, int] = {}


def read_slice(item: object) -> Slice:
    """A ResourceSlice as the API server or a file has it.

    Raises:
        neuron.api.fields.WrongFormError: it has another form.
    """
    spec = read(item, _Slice).spec
    pool = spec.pool
    return Slice(
        spec.driver,
        pool.name,
        pool.generation or 0,
        pool.resource_slice_count or 0,
        spec.node_name or pool.name,
        tuple([_device(each) for each in spec.devices or ()]),
        _counters(spec.shared_counters),
    )


def newest(slices: Iterable[Slice]) -> list[Slice]:
    """The slices in the newest generation of each pool."""
    items = list(slices)
    generations: dict[str, int] = {}
    for item in items:
        generations[item.pool] = max(generations.get(item.pool, 0), item.generation)
    return [item for item in items if item.generation == generations[item.pool]]


def incomplete(slices: Iterable[Slice]) -> dict[str, tuple[int, int]]:
    """Slices found and expected, of pools with missing slices: the scheduler does not allocate from them (KEP-4381).

    Args:
        slices: as of `newest`.
    """
    pools: defaultdict[str, list[int]] = defaultdict(list)
    for each in slices:
        pools[each.pool].append(each.parts)
    return {name: (len(each), max(each)) for name, each in pools.items() if len(each) < max(each)}


def _device(device: "_Device") -> PublishedDevice:
    fields = device.basic or device
    attributes = {
        sys.intern(qualified(name)): value
        for name, box in (fields.attributes or {}).items()
        if (value := _unboxed(box)) is not None
    }
    return PublishedDevice(
        device.name,
        attributes,
        {name: capacity for name, box in (fields.capacity or {}).items() if (capacity := _capacity(box)) is not None},
        fields.allow_multiple_allocations is True,
        tuple([Taint.read(each) for each in fields.taints or ()]),
        _counters(fields.consumes_counters),
    )


def _unboxed(box: object) -> Value | None:
    """The value of a `DeviceAttribute`; None for types of newer API versions."""
    held = mapping(box)
    for key, read_one in _SCALARS.items():
        if (value := read_one(held.get(key))) is not None:
            return value
    for key, read_one in _SCALARS.items():
        values = [read_one(each) for each in sequence(held.get(f"{key}s"))]
        found = tuple([each for each in values if each is not None])
        if found and len(found) == len(values):
            return found
    return None


def _text(value: object) -> str | None:
    # Thousands of devices have the same texts: one copy of each is kept.
    return sys.intern(value) if isinstance(value, str) else None


_SCALARS: Final[Mapping[str, Callable[[object], Scalar | None]]] = {
    "string": _text,
    "int": lambda value: value if isinstance(value, int) and not isinstance(value, bool) else None,
    "bool": lambda value: value if isinstance(value, bool) else None,
    "version": lambda value: Version(value) if isinstance(value, str) else None,
}
"""Field of one value; the field of a list has an "s" more."""


def _capacity(box: object) -> Capacity | None:
    """A `DeviceCapacity`; None for another form."""
    held = mapping(box)
    value, policy = held.get("value"), mapping(held.get("requestPolicy"))
    if not isinstance(value, str):
        return None
    return Capacity(value, policy.get("default"), tuple(sequence(policy.get("validValues"))))


def _counters(sets: "list[_CounterSet] | None") -> dict[str, int]:
    try:
        return {
            f"{each.name or each.counter_set}/{name}": int(parse_amount(counter.value))
            for each in sets or ()
            for name, counter in each.counters.items()
        }
    except NotAQuantityError as error:
        raise WrongFormError(f"the value of a counter {error}") from error


# --- as the API writes it -----------------------------------------------------------------------------------


class _Counter(Fields, frozen=True):
    value: str | int


class _CounterSet(Fields, frozen=True):
    """`CounterSet` of a slice has a name, `DeviceCounterConsumption` of a device the name of a set."""

    counters: dict[str, _Counter]
    name: str = ""
    counter_set: str = ""


class _Basic(Fields, frozen=True):
    attributes: dict[str, object] | None = None
    capacity: dict[str, object] | None = None
    allow_multiple_allocations: bool | None = None
    consumes_counters: list[_CounterSet] | None = None
    taints: list[dict[str, object]] | None = None


class _Device(_Basic, frozen=True, kw_only=True):
    name: str
    basic: _Basic | None = None


class _Pool(Fields, frozen=True):
    name: str
    generation: int | None = None
    resource_slice_count: int | None = None


class _SliceSpec(Fields, frozen=True):
    driver: str
    pool: _Pool
    node_name: str | None = None
    devices: list[_Device] | None = None
    shared_counters: list[_CounterSet] | None = None


class _Slice(Fields, frozen=True):
    spec: _SliceSpec


TAINT_RULE: Final = "DeviceTaintRule"
TAINT_RULE_VERSIONS: Final = ("v1", "v1beta2", "v1alpha3")
"""Newest first: 1.37 and later; 1.36; 1.33. They have the same fields (`k8s.io/api/resource`, KEP-5055)."""
NARROWING: Final = ("deviceClassName", "selectors")
"""Fields of a selector that versions up to 1.34 have beside the three names."""


@dataclasses.dataclass(frozen=True, slots=True)
class TaintRule:
    """A DeviceTaintRule: a taint that an administrator gives devices.

    A rule without a selector taints nothing; an empty selector taints every device of every driver. Up to Kubernetes
    1.34, v1alpha3 also has a class and CEL selectors (`NARROWING`); rules with them are not judged here.

    Attributes:
        driver: only devices of this driver; None: of all.
        pool: only devices of this pool; None: of all.
        device: only devices of this name; None: all.
    """

    name: str
    driver: str | None
    pool: str | None
    device: str | None
    taint: Taint

    def selects(self, driver: str, pool: str, device: str) -> bool:
        """Whether it taints a device."""
        wanted = ((self.driver, driver), (self.pool, pool), (self.device, device))
        return all(asked is None or asked == found for asked, found in wanted)


def read_rule(item: object) -> TaintRule | None:
    """Read a rule; None for one that taints nothing, or whose devices are not known here.

    Raises:
        neuron.api.fields.WrongFormError: it has another form.
    """
    rule = read(item, _Rule)
    selector = rule.spec.device_selector
    if selector is None or selector.device_class_name or selector.selectors:
        return None
    taint = Taint.read(rule.spec.taint)
    return TaintRule(rule.metadata.name, selector.driver, selector.pool, selector.device, taint)


def tainted(slice_: Slice, rules: Sequence[TaintRule]) -> Slice:
    """A slice with the taints of the rules, as the scheduler sees it."""
    devices = []
    for device in slice_.devices:
        taints = [rule.taint for rule in rules if rule.selects(slice_.driver, slice_.pool, device.name)]
        devices.append(structs.replace(device, taints=(*device.taints, *taints)) if taints else device)
    return structs.replace(slice_, devices=tuple(devices))


class _Selector(Fields, frozen=True):
    driver: str | None = None
    pool: str | None = None
    device: str | None = None
    device_class_name: str | None = None
    selectors: list[object] | None = None


class _RuleSpec(Fields, frozen=True):
    taint: dict[str, object]
    device_selector: _Selector | None = None


class _Rule(Fields, frozen=True):
    metadata: ObjectMeta
    spec: _RuleSpec
