"""Reads ResourceSlices, DeviceClasses and claims of the API into the allocator's model (`neuron.allocator.search`).

Selectors are evaluated as CEL. Answers are kept for devices with equal attributes, of which a cluster has thousands.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from checks.claims.device_index import CompiledSelector
from neuron import names
from neuron.allocator.search import (
    AllocatorAlternative,
    AllocatorCapacity,
    AllocatorClaim,
    AllocatorConstraint,
    AllocatorDevice,
    AllocatorNode,
    AllocatorRequest,
    AllocatorResult,
)
from neuron.api import slices, stored_claims
from neuron.api.claim_specs import ClaimSpec, ClassSpec, DeviceRequest, entries_of
from neuron.api.configs import ConfigEntry, ConfigSource
from neuron.api.slices import PublishedDevice, Slice
from neuron.hardware.device_shapes import Value, catalogue_shapes, qualified
from neuron.hardware.instances import Catalogue
from neuron.names import DRIVER
from neuron.quantities import parse_amount
from policies.judging.selectors import DeviceSelectors

_STANDS_STILL: Final = 0.0
JOINT: Final = ":"
"""Between claim and request, where a pod has several claims; no name contains it."""
_MOST_REMEMBERED: Final = 200_000
_COUNTED: Final = "device/"


class UnknownClassError(Exception):
    """A request names a DeviceClass that does not exist; the message is its name."""


@dataclasses.dataclass(frozen=True, slots=True)
class Hardware:
    """The devices of one node as its slices publish them.

    Attributes:
        devices: in the order of the slices.
        counters: values of shared counters, by set and name in one string.
    """

    devices: tuple[AllocatorDevice, ...]
    counters: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def node(self, held: Iterable[AllocatorResult] = (), *, counters_leak: bool = False) -> AllocatorNode:
        """The node as the allocator sees it, with what claims hold."""
        node = AllocatorNode(self.devices, self.counters, counters_leak=counters_leak, hurry=True)
        for result in held:
            node.take(result)
        return node

    @property
    def names(self) -> frozenset[str]:
        return frozenset(device.name for device in self.devices)

    def text(self, result: AllocatorResult) -> str:
        """A device for people, with the part of it that is consumed: `neuron-device-3 (2 of 8 neuroncores)`."""
        whole = next((device.capacity for device in self.devices if device.name == result.device), {})
        parts = [
            f"{amount} of {whole[name].value} {name}"
            for name, amount in result.consumed.items()
            if amount and name in whole and amount < whole[name].value
        ]
        return f"{result.device} ({', '.join(parts)})" if parts else result.device


def hardware_of(published: Iterable[Slice]) -> Hardware:
    """The devices of a node.

    Args:
        published: slices in the newest generation of the node's pool, in the order of their names.
    """
    found = tuple(published)
    devices = tuple(device_of(device) for each in found for device in each.devices)
    return Hardware(devices, {name: value for each in found for name, value in each.counters.items()})


def device_of(published: PublishedDevice) -> AllocatorDevice:
    """One device of a slice."""
    return AllocatorDevice(
        published.name,
        published.attributes,
        published.shared,
        {name: _capacity(each) for name, each in published.capacity.items()},
        published.counters,
        published.taints,
    )


def _capacity(published: slices.Capacity) -> AllocatorCapacity:
    default = None if published.default is None else _amount(published.default)
    return AllocatorCapacity(_amount(published.value), tuple(map(_amount, published.valid)), default)


def _amount(quantity: object) -> int:
    return int(parse_amount(quantity))


def result_of(entry: stored_claims.Result) -> AllocatorResult:
    """One device that a claim has."""
    consumed = {name: _amount(value) for name, value in (entry.consumed_capacity or {}).items()}
    return AllocatorResult(entry.request, entry.device, consumed, bool(entry.admin_access))


def catalogue_hardware(catalogue: Catalogue) -> Iterator[tuple[str, Hardware]]:
    """The devices that the driver will publish on a node, by instance type."""
    found: dict[str, list[AllocatorDevice]] = {entry.name: [] for entry in catalogue}
    shapes = list(catalogue_shapes(catalogue))
    # Only a device that stands for the whole node shares counters with others.
    whole = {shape.instance_type for shape in shapes if shape.resource_type != names.RESOURCE_TYPE_DEVICE}
    for shape in shapes:
        devices = found[shape.instance_type]
        single = shape.resource_type == names.RESOURCE_TYPE_DEVICE
        # The device that stands for the whole node comes last, and consumes all others.
        used = [len(devices)] if single else range(len(devices))
        counters = {f"{_COUNTED}{each}": 1 for each in used} if shape.instance_type in whole else {}
        capacity = dict(_shape_capacities(shape.capacity, shape.shares))
        name = f"neuron-device-{len(devices)}" if single else "neuron-node"
        devices.append(AllocatorDevice(name, shape.fixed, shape.shared, capacity, counters))
    for instance_type, devices in found.items():
        numbers = range(len(devices)) if instance_type in whole else ()
        yield instance_type, Hardware(tuple(devices), {f"{_COUNTED}{each}": 1 for each in numbers})


def _shape_capacities(
    quantities: Mapping[str, str], shares: Iterable[int] | None
) -> Iterator[tuple[str, AllocatorCapacity]]:
    for name, quantity in quantities.items():
        short, value = name.removeprefix(f"{names.DRIVER}/"), int(parse_amount(quantity))
        if shares is None:
            yield short, AllocatorCapacity(value)
        elif short == names.CAPACITY_CORES:
            yield short, AllocatorCapacity(value, tuple(shares))
        else:
            yield short, AllocatorCapacity(value, default=0)


# --- claims -----------------------------------------------------------------------------------------------------


class Selects:
    """Evaluates selectors on devices."""

    def __init__(self) -> None:
        self._compiled: dict[str, CompiledSelector] = {}
        self._answers: dict[tuple[object, ...], bool] = {}
        self._same: dict[tuple[str, int], tuple[AllocatorDevice, bool]] = {}
        """Cached results by expression and identity of the device, which the value keeps alive."""

    def all_of(self, expressions: Sequence[str]) -> Callable[[AllocatorDevice], bool]:
        """A function that says whether all expressions admit a device."""
        compiled = [(each, self._read_by(each)) for each in map(self.compiled, expressions)]
        return lambda device: all(self._remembered(selector, read, device) for selector, read in compiled)

    def compiled(self, expression: str) -> CompiledSelector:
        """The compiled expression. Raises `checks.claims.device_index.SelectorError`."""
        if expression not in self._compiled:
            self._compiled[expression] = _compile(expression)
        return self._compiled[expression]

    @staticmethod
    def _read_by(selector: CompiledSelector) -> tuple[str, ...] | None:
        return None if selector.attributes is None else tuple(sorted(selector.attributes))

    def _remembered(self, selector: CompiledSelector, read: tuple[str, ...] | None, device: AllocatorDevice) -> bool:
        key = (selector.source, id(device))
        found = self._same.get(key)
        if found is None:
            if len(self._same) >= _MOST_REMEMBERED:
                self._same.clear()
            found = self._same[key] = device, self._selects(selector, read, device)
        return found[1]

    def _selects(self, selector: CompiledSelector, read: tuple[str, ...] | None, device: AllocatorDevice) -> bool:
        found = [(name, device.attributes.get(name)) for name in (sorted(device.attributes) if read is None else read)]
        # With types: 1 and True are equal.
        values = tuple([(name, type(value), value) for name, value in found])
        sizes = tuple([(name, each.value) for name, each in device.capacity.items()])
        key = (selector.source, device.shared, values, sizes)
        answer = self._answers.get(key)
        if answer is None:
            capacity = {qualified(name): str(each.value) for name, each in device.capacity.items()}
            attributes: dict[str, Value | None] = dict(device.attributes)
            # A compiled selector has one budget for all its evaluations.
            answer = _compile(selector.source).evaluate(DRIVER, attributes, capacity, shared=device.shared)
            self._answers[key] = answer
        return answer


def _compile(expression: str) -> CompiledSelector:
    # The time-out is for reviews of tenants' objects; here the user waits for the answer.
    return DeviceSelectors(lambda: _STANDS_STILL).compile(expression)


@dataclasses.dataclass(frozen=True, slots=True)
class PodClaim:
    """A claim of a pod that is not allocated yet.

    Attributes:
        name: its entry in `spec.resourceClaims`.
        spec: of the claim.
    """

    name: str
    spec: ClaimSpec


@dataclasses.dataclass(frozen=True, slots=True)
class ClaimDemand:
    """All claims of a pod as one claim of the model, which the scheduler allocates in one search.

    Attributes:
        claim: the requests for our driver's devices.
        elsewhere: requests for devices of other drivers, which are not judged.
        configs: of each claim for our driver, by its entry in `spec.resourceClaims`.
    """

    claim: AllocatorClaim
    elsewhere: tuple[str, ...] = ()
    configs: Mapping[str, Sequence[ConfigEntry]] = dataclasses.field(default_factory=dict)

    def configs_of(self, request: str) -> tuple[Sequence[ConfigEntry], str]:
        """The configs of the claim that has a request of `claim`, and the request's name in it."""
        name, prefixed, bare = request.partition(JOINT)
        if prefixed:
            return self.configs.get(name, ()), bare
        return next(iter(self.configs.values()), ()), request


def read_demand(claims: Sequence[PodClaim], classes: Mapping[str, ClassSpec] | None, selects: Selects) -> ClaimDemand:
    """Read the claims of a pod.

    Args:
        claims: in the order of the pod.
        classes: all DeviceClasses; None: not known, their selectors are left out.

    Raises:
        UnknownClassError: a DeviceClass does not exist.
        checks.claims.device_index.SelectorError: a selector cannot be compiled.
    """
    reader = _ClaimReader(classes, selects)
    requests: list[AllocatorRequest] = []
    constraints: list[AllocatorConstraint] = []
    for claim in claims:
        prefix = f"{claim.name}{JOINT}" if len(claims) > 1 else ""
        read = reader.claim(claim.spec, prefix)
        requests += read.requests
        constraints += read.constraints
    configs = {claim.name: tuple(entries_of(claim.spec.configs, ConfigSource.FROM_CLAIM)) for claim in claims}
    return ClaimDemand(AllocatorClaim(tuple(requests), tuple(constraints)), tuple(reader.elsewhere), configs)


class _ClaimReader:
    def __init__(self, classes: Mapping[str, ClassSpec] | None, selects: Selects) -> None:
        self._classes = classes
        self._selects = selects
        self.elsewhere: list[str] = []

    def claim(self, spec: ClaimSpec, prefix: str) -> AllocatorClaim:
        requests = tuple(self._requests(spec, prefix))
        # Without names a constraint covers the requests of its own claim.
        own = frozenset(request.name for request in requests)
        constraints = tuple(
            AllocatorConstraint(
                each.match_attribute or each.distinct_attribute,
                frozenset(f"{prefix}{name}" for name in each.requests) or own,
                distinct=not each.match_attribute,
            )
            for each in spec.constraints
            if each.match_attribute or each.distinct_attribute
        )
        return AllocatorClaim(requests, constraints)

    def _requests(self, spec: ClaimSpec, prefix: str) -> Iterator[AllocatorRequest]:
        for request in spec.requests:
            if any(self._is_foreign(part) for part in request.alternatives):
                self.elsewhere.append(f"{prefix}{request.name}")
                continue
            yield AllocatorRequest(f"{prefix}{request.name}", tuple(map(self._alternative, request.alternatives)))

    def _class(self, part: DeviceRequest) -> ClassSpec:
        if self._classes is None:
            return ClassSpec()
        if part.device_class not in self._classes:
            raise UnknownClassError(part.device_class)
        return self._classes[part.device_class]

    def _is_foreign(self, part: DeviceRequest) -> bool:
        """Whether the class is for another driver: its selectors compare `device.driver`, and not with ours."""
        compiled = [self._selects.compiled(each.expression) for each in self._class(part).selectors]
        drivers = {driver for each in compiled for driver in each.drivers}
        return bool(drivers) and DRIVER not in drivers

    def _alternative(self, part: DeviceRequest) -> AllocatorAlternative:
        selectors = (*self._class(part).selectors, *part.selectors)
        return AllocatorAlternative(
            part.reference.partition("/")[2],
            selects=self._selects.all_of([each.expression for each in selectors]),
            count=None if part.everything else part.count,
            capacity={name: _amount(value) for name, value in part.capacity},
            admin_access=part.admin_access,
            tolerations=part.tolerations,
        )
