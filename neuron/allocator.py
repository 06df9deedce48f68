"""Model of the scheduler's structured allocator on one node: which devices a claim gets, or that it gets none.

It follows `k8s.io/dynamic-resource-allocation/structured`: claims, requests and devices in order, alternatives in
order, depth first, the first solution. Modelled are counts, `All`, `firstAvailable`, `matchAttribute`, taints, shared
counters (KEP-4815), capacity of devices that many claims share (KEP-5075) and admin access. Not modelled are
`distinctAttribute`, binding conditions, list attributes and devices that no single node owns.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from neuron import names

Value = bool | int | str
MOST_STEPS: Final = 200_000
"""Devices tried before the search is given up. The scheduler stops after a time-out instead."""


class SearchTooLongError(Exception):
    """The search took more than `MOST_STEPS` steps."""


@dataclasses.dataclass(frozen=True, slots=True)
class Capacity:
    """One capacity of a device.

    Attributes:
        value: all of it.
        valid: amounts that a claim can consume, ascending; empty: any.
        default: consumed by a request that does not name it; None: all.
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
class Device:
    """A device as its ResourceSlice describes it.

    Attributes:
        name: unique on the node.
        attributes: by qualified name.
        shared: `allowMultipleAllocations`.
        capacity: by name.
        counters: shared counters that it consumes, by set and name in one string.
        tainted: whether it has a taint that stops allocation without a toleration.
    """

    name: str
    attributes: Mapping[str, Value]
    shared: bool = False
    capacity: Mapping[str, Capacity] = dataclasses.field(default_factory=dict)
    counters: Mapping[str, int] = dataclasses.field(default_factory=dict)
    tainted: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Alternative:
    """A request, or one of its `firstAvailable` alternatives.

    Attributes:
        name: of the alternative; "" for a request without alternatives.
        selects: whether the class's and the request's selectors admit a device.
        count: devices to allocate; None for `allocationMode: All`.
        capacity: amounts to consume of every device, by name.
        admin_access: whether devices in use are taken as well, and stay free.
        tolerates: whether taints do not matter.
    """

    name: str
    selects: Callable[[Device], bool]
    count: int | None = 1
    capacity: Mapping[str, int] = dataclasses.field(default_factory=dict)
    admin_access: bool = False
    tolerates: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """One request of a claim: its alternatives in order."""

    name: str
    alternatives: tuple[Alternative, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Constraint:
    """`matchAttribute` over requests, named `request` or `request/alternative`; over all if none is named."""

    attribute: str
    requests: frozenset[str] = frozenset()

    def covers(self, request: str, alternative: str) -> bool:
        """Whether a device of this request and alternative has to match."""
        return not self.requests or request in self.requests or f"{request}/{alternative}" in self.requests


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """The requests and constraints of one claim."""

    requests: tuple[Request, ...]
    constraints: tuple[Constraint, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """One allocated device.

    Attributes:
        request: `request` or `request/alternative`.
        device: name of the device.
        consumed: capacity by name, of a shared device.
        admin_access: whether the device stays free for others.
    """

    request: str
    device: str
    consumed: Mapping[str, int] = dataclasses.field(default_factory=dict)
    admin_access: bool = False


class Node:
    """The devices of one node, and what claims hold of them."""

    def __init__(self, devices: Iterable[Device], counters: Mapping[str, int] | None = None) -> None:
        """Args: `counters` are the values of shared counters, named as in `Device.counters`."""
        self.devices: Final = tuple(devices)
        self._by_name = {device.name: device for device in self.devices}
        self._counters = dict(counters or {})
        self._taken: set[str] = set()
        self._consumed: dict[str, dict[str, int]] = {}

    def allocate(self, claim: Claim) -> tuple[Result, ...] | None:
        """Allocate a claim and keep it; None if it does not fit. Raises SearchTooLongError."""
        found = _Search(self, claim).run()
        if found is not None:
            for result in found:
                self.take(result)
        return found

    def release(self, results: Iterable[Result]) -> None:
        """Give back what a claim holds."""
        for result in results:
            if result.admin_access:
                continue
            device = self._by_name[result.device]
            if not device.shared:
                self._taken.discard(device.name)
            self._count(device, result.consumed, -1)

    def in_use(self, device: Device) -> bool:
        """Whether a device that is not shared is allocated."""
        return device.name in self._taken

    def consumption(self, device: Device, alternative: Alternative) -> dict[str, int] | None:
        """Capacity that a request would consume of a device; None if there is not enough left.

        Admin access makes no difference: of a shared device that is used up, only a request for 0 is served.
        """
        if not alternative.capacity.keys() <= device.capacity.keys():
            return None
        wanted = {name: each.consumed(alternative.capacity.get(name)) for name, each in device.capacity.items()}
        amounts = {name: amount for name, amount in wanted.items() if amount is not None}
        if len(amounts) < len(wanted):
            return None
        if not device.shared:
            return {}
        used = self._consumed.get(device.name, {})
        fits = all(used.get(name, 0) + amount <= device.capacity[name].value for name, amount in amounts.items())
        return amounts if fits else None

    def has_counters(self, device: Device) -> bool:
        """Whether the shared counters have what a device consumes; one that is in use has consumed it already."""
        if device.shared and self._consumed.get(device.name):
            return True
        return all(self._counters.get(name, 0) >= amount for name, amount in device.counters.items())

    def take(self, result: Result) -> None:
        """Mark a device as allocated."""
        if result.admin_access:
            return
        device = self._by_name[result.device]
        if not device.shared:
            self._taken.add(device.name)
        self._count(device, result.consumed, 1)

    def _count(self, device: Device, consumed: Mapping[str, int], sign: int) -> None:
        before = bool(self._consumed.get(device.name)) if device.shared else sign < 0
        if device.shared:
            used = self._consumed.setdefault(device.name, {})
            for name, amount in consumed.items():
                used[name] = used.get(name, 0) + sign * amount
            if not any(used.values()):
                del self._consumed[device.name]
        after = bool(self._consumed.get(device.name)) if device.shared else sign > 0
        if before != after:
            for name, amount in device.counters.items():
                self._counters[name] = self._counters.get(name, 0) + (amount if before else -amount)


class _Search:
    """One depth-first search. Devices are taken on the way down and given back on the way up."""

    def __init__(self, node: Node, claim: Claim) -> None:
        self._node = node
        self._claim = claim
        self._results: list[Result] = []
        self._in_claim: set[str] = set()
        self._values: list[list[Value]] = [[] for _ in claim.constraints]
        self._steps = 0

    def run(self) -> tuple[Result, ...] | None:
        found = self._requests(0)
        results = tuple(self._results)
        self._node.release(results)
        return results if found else None

    def _requests(self, number: int) -> bool:
        if number == len(self._claim.requests):
            return True
        request = self._claim.requests[number]
        return any(self._alternative(number, request, each) for each in request.alternatives)

    def _alternative(self, number: int, request: Request, alternative: Alternative) -> bool:
        if alternative.count is None:
            # A shared device that is used up is not among "all"; any other one in use makes the request fail.
            matching = [
                device
                for device in self._node.devices
                if alternative.selects(device) and self._node.consumption(device, alternative) is not None
            ]
            return bool(matching) and self._all(number, request, alternative, matching, 0)
        if len(self._results) + alternative.count > names.MAX_DEVICES_PER_CLAIM:
            return False
        devices = [device for device in self._node.devices if alternative.selects(device)]
        return self._some(number, request, alternative, devices, 0, alternative.count)

    def _all(
        self, number: int, request: Request, alternative: Alternative, devices: Sequence[Device], start: int
    ) -> bool:
        if start == len(devices):
            return self._requests(number + 1)
        if not self._take(request, alternative, devices[start]):
            return False
        if self._all(number, request, alternative, devices, start + 1):
            return True
        self._give_back(request, alternative)
        return False

    def _some(
        self,
        number: int,
        request: Request,
        alternative: Alternative,
        devices: Sequence[Device],
        start: int,
        left: int,
    ) -> bool:
        if left == 0:
            return self._requests(number + 1)
        for place in range(start, len(devices)):
            if not self._take(request, alternative, devices[place]):
                continue
            if self._some(number, request, alternative, devices, place + 1, left - 1):
                return True
            self._give_back(request, alternative)
        return False

    def _take(self, request: Request, alternative: Alternative, device: Device) -> bool:
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise SearchTooLongError(f"The search was given up after {MOST_STEPS} devices.")
        if device.tainted and not alternative.tolerates:
            return False
        held = device.name in self._in_claim if alternative.admin_access else self._node.in_use(device)
        if not device.shared and held:
            return False
        consumed = self._node.consumption(device, alternative)
        if consumed is None or not self._node.has_counters(device):
            return False
        if not self._matches(request, alternative, device):
            return False
        name = f"{request.name}/{alternative.name}" if alternative.name else request.name
        result = Result(name, device.name, consumed, alternative.admin_access)
        self._results.append(result)
        self._in_claim.add(device.name)
        self._node.take(result)
        return True

    def _matches(self, request: Request, alternative: Alternative, device: Device) -> bool:
        """Add the device to the constraints that cover it; changes nothing if one of them is not met."""
        covering = [
            place
            for place, constraint in enumerate(self._claim.constraints)
            if constraint.covers(request.name, alternative.name)
        ]
        for place in covering:
            value = device.attributes.get(self._claim.constraints[place].attribute)
            chosen = self._values[place]
            if value is None or (chosen and (chosen[0] != value or type(chosen[0]) is not type(value))):
                return False
        for place in covering:
            self._values[place].append(device.attributes[self._claim.constraints[place].attribute])
        return True

    def _give_back(self, request: Request, alternative: Alternative) -> None:
        result = self._results.pop()
        self._in_claim.discard(result.device)
        self._node.release((result,))
        for place, constraint in enumerate(self._claim.constraints):
            if constraint.covers(request.name, alternative.name):
                self._values[place].pop()
