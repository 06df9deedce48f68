"""The devices of nodes, and what claims hold of them: what one more claim gets there, and what is free. Pure.

A report's plan and a rehearsal place pods with it. `explain` asks the allocator itself: it needs the reason of a no.
"""

import functools
from collections.abc import Iterator
from typing import Final, TypeAlias

from checks.claims.device_index import SelectorError
from commands.devices import connected
from commands.devices.allocator_inputs import Hardware
from commands.devices.devices import DeviceGroup
from neuron import names
from neuron.allocator.search import AllocatorClaim, AllocatorNode, AllocatorResult, SearchTooLongError
from neuron.hardware.device_shapes import DEVICE_ID, qualified
from neuron.hardware.instances import InstanceType

Results: TypeAlias = tuple[AllocatorResult, ...]

_RESOURCE_TYPE: Final = qualified(names.ATTRIBUTE_RESOURCE_TYPE)
_ALTERNATIVES: Final = {34: 0.0, 35: 1.0}
"""Weight of the scheduler's score for alternatives, by minor version of Kubernetes; 2 in all others."""


class Held:
    """What claims hold of the devices of one node.

    Attributes:
        fixed: what holders have that are no pods of the caller.
        pods: what its pods have, by their number.
    """

    __slots__ = ("_key", "fixed", "pods")

    def __init__(self, fixed: Results = (), pods: dict[int, Results] | None = None) -> None:
        self.fixed = fixed
        self.pods = pods or {}
        self._key: object = None

    def copy(self) -> "Held":
        """An independent copy."""
        return Held(self.fixed, dict(self.pods))

    def __iter__(self) -> Iterator[AllocatorResult]:
        yield from self.fixed
        for results in self.pods.values():
            yield from results

    @property
    def key(self) -> object:
        """Equal for equal devices that are held."""
        if self._key is None:
            found = [(each.device, *sorted(each.consumed.items())) for each in self if not each.admin_access]
            self._key = tuple(sorted(found))
        return self._key

    def fix(self, results: Results) -> None:
        """Set what holders have that are no pods of the caller."""
        self.fixed, self._key = results, None

    def add(self, pod: int, results: Results) -> None:
        self.pods[pod], self._key = results, None

    def remove(self, pod: int) -> None:
        self.pods.pop(pod, None)
        self._key = None


class DeviceModel:
    """The devices of nodes with equal hardware. Answers are remembered by what is held."""

    def __init__(self, hardware: Hardware, entry: InstanceType | None, *, counters_leak: bool, minor: int = 0) -> None:
        """Prepare. `entry`: the instance type; None if the catalogue lacks it. `minor`: version of Kubernetes."""
        self.hardware: Final = hardware
        self._entry = entry
        self._leak = counters_leak
        self._weight: Final = _ALTERNATIVES.get(minor, 2.0)
        self._answers: dict[object, tuple[AllocatorClaim, Results | None]] = {}
        self._free: dict[object, tuple[int, ...]] = {}
        self._largest: dict[tuple[int, ...], int] = {}
        self._last: tuple[object, AllocatorNode] | None = None
        singles = [each for each in hardware.devices if each.attributes.get(_RESOURCE_TYPE) != names.RESOURCE_TYPE_NODE]
        ids = [each.attributes.get(DEVICE_ID) for each in singles]
        self.index: Final = {
            each.name: number if isinstance(number, int) else at
            for at, (each, number) in enumerate(zip(singles, ids, strict=True))
        }
        self.whole: Final = tuple(each.name for each in hardware.devices if each.name not in self.index)
        self.single: Final = bool(singles)
        self.count: Final = len(singles) or (entry.devices if entry is not None and entry.devices else len(self.whole))

    def allocate(self, held: Held, claim: AllocatorClaim) -> Results | None:
        """The devices of a claim beside those that are held; None if it gets none."""
        key = (held.key, id(claim))
        if key not in self._answers:
            node = self._node(held)
            try:
                found = node.allocate(claim)
            except (SearchTooLongError, SelectorError):
                found = None
            node.release(found or ())
            self._answers[key] = claim, found
        return self._answers[key][1]

    def later(self, claim: AllocatorClaim, results: Results) -> float:
        """What a node's score loses because a claim gets later alternatives of its requests there."""
        got = {each.request for each in results}
        ranks = [
            rank
            for request in claim.requests
            for rank, each in enumerate(request.alternatives)
            if each.name and f"{request.name}/{each.name}" in got
        ]
        return self._weight * sum(ranks) / (names.MAX_FIRST_AVAILABLE * len(ranks)) if ranks else 0.0

    def free(self, held: Held) -> tuple[int, ...]:
        """Indices of the devices that a claim can get whole.

        A node that publishes only itself as a whole has all of its devices free, or none.
        """
        if held.key not in self._free:
            if self.single:
                self._free[held.key] = tuple(sorted(self._whole_devices(self._node(held))))
            else:
                self._free[held.key] = () if any(True for _ in held) else tuple(range(self.count))
        return self._free[held.key]

    def largest(self, held: Held) -> int:
        """The size of the largest connected set of devices that a claim can get whole."""
        free = self.free(held)
        if not self.single:
            return len(free)
        if free not in self._largest:
            indices, (sets, pairs) = tuple(sorted(self.index.values())), self._links
            self._largest[free] = len(connected.largest(self._entry, indices, free, sets, pairs))
        return self._largest[free]

    @functools.cached_property
    def _links(self) -> tuple[tuple[DeviceGroup, ...], tuple[tuple[int, int], ...]]:
        """The connected sets that claims can request, and the pairs of connected devices."""
        published = {each.name: each.attributes for each in self.hardware.devices}
        sets = connected.groups({index: published[name] for name, index in self.index.items()})
        return sets, connected.existing_links(self._entry, tuple(sorted(self.index.values())), sets)

    def _whole_devices(self, node: AllocatorNode) -> Iterator[int]:
        """Indices of the single devices that a claim can get whole."""
        for device in self.hardware.devices:
            taken = device.name not in self.index or node.in_use(device) or node.consumed(device)
            if taken or any(taint.prevents for taint in device.taints):
                continue
            if all(node.left(name) >= amount for name, amount in device.counters.items()):
                yield self.index[device.name]

    def _node(self, held: Held) -> AllocatorNode:
        """The node of the allocator. It is kept: one question about what is held mostly follows another."""
        if self._last is None or self._last[0] != held.key:
            self._last = held.key, self.hardware.node(held, counters_leak=self._leak)
        return self._last[1]
