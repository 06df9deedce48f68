"""Model of the scheduler's structured allocator on one node: which devices a claim gets, or that it gets none.

It follows `k8s.io/dynamic-resource-allocation/structured`: claims, requests and devices in order, alternatives in
order, depth first, the first solution. Modelled are counts, `All`, `firstAvailable`, `matchAttribute` and
`distinctAttribute`, also of list-type attributes (KEP-5491), taints, shared counters (KEP-4815), capacity of devices
that many claims share (KEP-5075) and admin access. Not modelled are binding conditions, ranges of request policies and
devices that no single node owns.

`tests/cluster/test_allocator_model.py` compares it with a real scheduler, and `tests/conformance/test_allocator.py`
with the allocator of a later version alone.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from neuron import names
from neuron.api.taints import Taint, TolerationSpec, prevents_allocation
from neuron.hardware.device_shapes import Scalar, Value, each_value

MOST_STEPS: Final = 200_000
"""Devices tried before the search is given up. The scheduler stops after a time-out instead."""


class SearchTooLongError(Exception):
    """The search took more than `MOST_STEPS` steps."""


@dataclasses.dataclass(frozen=True, slots=True)
class AllocatorCapacity:
    """One capacity of a device.

    Attributes:
        value: all of it.
        valid: amounts that a claim can consume, ascending; empty: any.
        default: what a request consumes that does not name the capacity; None: all of it.
    """

    value: int
    valid: tuple[int, ...] = ()
    default: int | None = None

    def consumed(self, requested: int | None) -> int | None:
        """What a request consumes, by the request policy; None if the device cannot give it."""
        if requested is None:
            return self.value if self.default is None else self.default
        rounded = next((valid for valid in self.valid if valid >= requested), None) if self.valid else requested
        return rounded if rounded is not None and rounded <= self.value else None


@dataclasses.dataclass(frozen=True, slots=True)
class AllocatorDevice:
    """A device as its ResourceSlice describes it.

    Attributes:
        name: unique on the node.
        attributes: by qualified name.
        shared: `allowMultipleAllocations`.
        capacity: by name.
        counters: shared counters that it consumes, by set and name in one string.
        taints: keep requests without a toleration off it.
    """

    name: str
    attributes: Mapping[str, Value]
    shared: bool = False
    capacity: Mapping[str, AllocatorCapacity] = dataclasses.field(default_factory=dict)
    counters: Mapping[str, int] = dataclasses.field(default_factory=dict)
    taints: tuple[Taint, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class AllocatorAlternative:
    """A request, or one of its `firstAvailable` alternatives.

    Attributes:
        name: of the alternative; "" for a request without alternatives.
        selects: whether the class's and the request's selectors admit a device.
        count: devices to allocate; None for `allocationMode: All`.
        capacity: amounts to consume of every device, by name.
        admin_access: whether devices in use are taken as well, and stay free.
    """

    name: str
    selects: Callable[[AllocatorDevice], bool]
    count: int | None = 1
    capacity: Mapping[str, int] = dataclasses.field(default_factory=dict)
    admin_access: bool = False
    tolerations: tuple[TolerationSpec, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class AllocatorRequest:
    """One request of a claim: its alternatives in order."""

    name: str
    alternatives: tuple[AllocatorAlternative, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class AllocatorConstraint:
    """`matchAttribute` over requests, named `request` or `request/alternative`; over all if none is named.

    Attributes:
        distinct: `distinctAttribute` instead. Before 1.37, the allocator compares a device with the last one of each
            request only (kubernetes/kubernetes#140600).
    """

    attribute: str
    requests: frozenset[str] = frozenset()
    distinct: bool = False

    def covers(self, request: str, alternative: str) -> bool:
        """Whether a device of this request and alternative has to match."""
        return not self.requests or request in self.requests or f"{request}/{alternative}" in self.requests


@dataclasses.dataclass(frozen=True, slots=True)
class AllocatorClaim:
    """The requests and constraints of one claim."""

    requests: tuple[AllocatorRequest, ...]
    constraints: tuple[AllocatorConstraint, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class AllocatorResult:
    """One allocated device.

    Attributes:
        request: `request` or `request/alternative`.
        consumed: capacity by name, of a shared device.
        admin_access: whether the device stays free for others.
    """

    request: str
    device: str
    consumed: Mapping[str, int] = dataclasses.field(default_factory=dict)
    admin_access: bool = False


class AllocatorNode:
    """The devices of one node, and what claims hold of them."""

    def __init__(
        self,
        devices: Iterable[AllocatorDevice],
        counters: Mapping[str, int] | None = None,
        *,
        counters_leak: bool = False,
        hurry: bool = False,
    ) -> None:
        """Set up a node with nothing allocated.

        Args:
            devices: in the order of the slices.
            counters: values of shared counters, named as in `AllocatorDevice.counters`.
            counters_leak: as Kubernetes 1.36.2 and older: a device that was tried and not taken keeps its counters for
                the rest of the search (kubernetes/kubernetes#140436).
            hurry: leave out branches in which too few devices are left. The scheduler searches them; they find nothing.
                Ignored with `counters_leak`: there, a branch that finds nothing changes what later ones find.
        """
        self.devices: Final = tuple(devices)
        self.counters_leak: Final = counters_leak
        self.hurry: Final = hurry and not counters_leak
        self._by_name = {device.name: device for device in self.devices}
        self._counters = dict(counters or {})
        self._taken: set[str] = set()
        self._consumed: dict[str, dict[str, int]] = {}

    def allocate(self, claim: AllocatorClaim) -> tuple[AllocatorResult, ...] | None:
        """Allocate a claim and keep it; None if it does not fit. Raises SearchTooLongError."""
        found = _Search(self, claim).run()
        if found is not None:
            for result in found:
                self.take(result)
        return found

    def release(self, results: Iterable[AllocatorResult]) -> None:
        """Give back what a claim holds."""
        for result in results:
            self._count(result, -1)

    def take(self, result: AllocatorResult) -> None:
        """Mark a device as allocated. Admin access leaves it free."""
        self._count(result, 1)

    def in_use(self, device: AllocatorDevice) -> bool:
        """Whether a device that is not shared is allocated."""
        return device.name in self._taken

    def consumed(self, device: AllocatorDevice) -> Mapping[str, int]:
        """Capacity that claims consume of a shared device; empty if it is free."""
        return self._consumed.get(device.name, {})

    def left(self, counter: str) -> int:
        """What allocated devices leave of a shared counter."""
        return self._counters.get(counter, 0)

    def _count(self, result: AllocatorResult, sign: int) -> None:
        if result.admin_access:
            return
        device = self._by_name[result.device]
        before = self._holds(device)
        if device.shared:
            used = self._consumed.setdefault(device.name, {})
            for name, amount in result.consumed.items():
                used[name] = used.get(name, 0) + sign * amount
            if not any(used.values()):
                del self._consumed[device.name]
        elif sign > 0:
            self._taken.add(device.name)
        else:
            self._taken.discard(device.name)
        # The first share of a device consumes its counters, and the last one gives them back.
        change = int(before) - int(self._holds(device))
        for name, amount in device.counters.items():
            self._counters[name] = self._counters.get(name, 0) + change * amount

    def _holds(self, device: AllocatorDevice) -> bool:
        return bool(self._consumed.get(device.name)) if device.shared else device.name in self._taken


_Values: TypeAlias = frozenset[tuple[type, Scalar]]
"""For `matchAttribute` those that all chosen devices have, for `distinctAttribute` those of one device."""


class _AllTiedError(Exception):
    """A constraint is not met by a device of an `All` request: the allocator then tries no other alternative."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Candidate:
    """A device that a request can have, and the capacity that it would consume."""

    device: AllocatorDevice
    amounts: Mapping[str, int]


class _Search:
    """One depth-first search. Devices are taken on the way down and given back on the way up."""

    def __init__(self, node: AllocatorNode, claim: AllocatorClaim) -> None:
        self._node = node
        self._claim = claim
        self._results: list[AllocatorResult] = []
        self._taken: set[str] = set()
        self._consumed: Counter[tuple[str, str]] = Counter()
        self._shares: Counter[str] = Counter()
        self._counters: Counter[str] = Counter()
        self._values: list[list[_Values]] = [[] for _ in claim.constraints]
        self._known: dict[tuple[str, str], _Values] = {}
        self._steps = 0

    def run(self) -> tuple[AllocatorResult, ...] | None:
        try:
            return tuple(self._results) if self._requests(0) else None
        except _AllTiedError:
            return None

    def _requests(self, number: int) -> bool:
        if number == len(self._claim.requests):
            return True
        request = self._claim.requests[number]
        return any(self._alternative(number, request, each) for each in request.alternatives)

    def _alternative(self, number: int, request: AllocatorRequest, alternative: AllocatorAlternative) -> bool:
        matching = (device for device in self._node.devices if alternative.selects(device))
        wanted = ((device, self._consumption(device, alternative)) for device in matching)
        # A shared device that is used up is not among "all"; any other one in use makes the request fail.
        found = [_Candidate(device, amounts) for device, amounts in wanted if amounts is not None]
        count = len(found) if alternative.count is None else alternative.count
        if len(self._results) + count > names.MAX_DEVICES_PER_CLAIM:
            return False
        if alternative.count is None:
            return bool(found) and self._all(number, request, alternative, found, 0)
        free = [each for each in found if alternative.admin_access or not self._node.in_use(each.device)]
        return self._some(number, request, alternative, free, 0, alternative.count)

    def _all(
        self,
        number: int,
        request: AllocatorRequest,
        alternative: AllocatorAlternative,
        devices: Sequence["_Candidate"],
        start: int,
    ) -> bool:
        if start == len(devices):
            return self._requests(number + 1)
        if not self._take(request, alternative, devices[start]):
            return False
        if self._all(number, request, alternative, devices, start + 1):
            return True
        self._give_back(request, alternative, devices[start].device)
        return False

    def _some(
        self,
        number: int,
        request: AllocatorRequest,
        alternative: AllocatorAlternative,
        devices: Sequence["_Candidate"],
        start: int,
        left: int,
    ) -> bool:
        if left == 0:
            return self._requests(number + 1)
        end = len(devices) - left + 1 if self._node.hurry else len(devices)
        for place in range(start, end):
            if not self._take(request, alternative, devices[place]):
                continue
            if self._some(number, request, alternative, devices, place + 1, left - 1):
                return True
            self._give_back(request, alternative, devices[place].device)
        return False

    def _take(self, request: AllocatorRequest, alternative: AllocatorAlternative, candidate: "_Candidate") -> bool:
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise SearchTooLongError(f"The search was given up after {MOST_STEPS} devices.")
        device, consumed = candidate.device, candidate.amounts
        if device.shared:
            used = self._node.consumed(device)
            for name, amount in consumed.items():
                if used.get(name, 0) + self._consumed[device.name, name] + amount > device.capacity[name].value:
                    return False
        elif device.name in self._taken or (self._node.in_use(device) and not alternative.admin_access):
            return False
        if not self._count(device):
            return False
        tainted = prevents_allocation(device.taints, alternative.tolerations)
        if tainted or not self._matches(request, alternative, device):
            if not self._node.counters_leak:
                self._discount(device)
            if alternative.count is None and not tainted:
                raise _AllTiedError
            return False
        name = f"{request.name}/{alternative.name}" if alternative.name else request.name
        self._results.append(AllocatorResult(name, device.name, consumed, alternative.admin_access))
        if device.shared:
            self._shares[device.name] += 1
        else:
            self._taken.add(device.name)
        for key, amount in consumed.items():
            self._consumed[device.name, key] += amount
        return True

    def _consumption(self, device: AllocatorDevice, alternative: AllocatorAlternative) -> dict[str, int] | None:
        """Capacity that a request would consume of a device; None if allocated claims do not leave enough.

        Admin access makes no difference: of a shared device that is used up, only a request for 0 is served.
        """
        if not alternative.capacity and not device.shared:
            return {}  # the whole device, by default
        if not alternative.capacity.keys() <= device.capacity.keys():
            return None
        wanted = {name: each.consumed(alternative.capacity.get(name)) for name, each in device.capacity.items()}
        amounts = {name: amount for name, amount in wanted.items() if amount is not None}
        if len(amounts) < len(wanted):
            return None
        if not device.shared:
            return {}
        used = self._node.consumed(device)
        fits = all(used.get(name, 0) + amount <= device.capacity[name].value for name, amount in amounts.items())
        return amounts if fits else None

    def _count(self, device: AllocatorDevice) -> bool:
        """Consume shared counters; False if there is not enough. A shared device in use has consumed its own already.

        Admin access consumes them, too (kubernetes/kubernetes#140729).
        """
        if not device.counters or self._is_shared_out(device):
            return True
        if any(self._counters[name] + amount > self._node.left(name) for name, amount in device.counters.items()):
            return False
        self._counters.update(device.counters)
        return True

    def _discount(self, device: AllocatorDevice) -> None:
        if device.counters and not self._is_shared_out(device):
            self._counters.subtract(device.counters)

    def _is_shared_out(self, device: AllocatorDevice) -> bool:
        return device.shared and (bool(self._node.consumed(device)) or self._shares[device.name] > 0)

    def _matches(self, request: AllocatorRequest, alternative: AllocatorAlternative, device: AllocatorDevice) -> bool:
        """Add the device to the constraints that cover it; changes nothing if one of them is not met.

        A list-type attribute is the set of its values, any other one a set of one value.
        """
        covering = [
            place
            for place, constraint in enumerate(self._claim.constraints)
            if constraint.covers(request.name, alternative.name)
        ]
        kept = []
        for place in covering:
            constraint, chosen = self._claim.constraints[place], self._values[place]
            values = self._values_of(device, constraint.attribute)
            if constraint.distinct:
                if not values or not all(map(values.isdisjoint, chosen)):
                    return False
            else:
                values = values & chosen[-1] if chosen else values
                if not values:
                    return False
            kept.append(values)
        for place, values in zip(covering, kept, strict=True):
            self._values[place].append(values)
        return True

    def _values_of(self, device: AllocatorDevice, attribute: str) -> "_Values":
        """The values of an attribute with their types: 1 and True are equal."""
        key = (attribute, device.name)
        if key not in self._known:
            self._known[key] = frozenset([(type(each), each) for each in each_value(device.attributes.get(attribute))])
        return self._known[key]

    def _give_back(self, request: AllocatorRequest, alternative: AllocatorAlternative, device: AllocatorDevice) -> None:
        result = self._results.pop()
        if device.shared:
            self._shares[device.name] -= 1
        else:
            self._taken.discard(device.name)
        for name, amount in result.consumed.items():
            self._consumed[device.name, name] -= amount
        if not (device.shared and self._node.counters_leak):
            self._discount(device)
        for place, constraint in enumerate(self._claim.constraints):
            if constraint.covers(request.name, alternative.name):
                self._values[place].pop()
