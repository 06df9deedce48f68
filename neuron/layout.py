"""Distributes the devices of a pod's containers over the requests of one claim.

Long-lived containers (apps and sidecars) get one request each. An ordinary init container runs before them and releases
its devices, so it uses the requests of later containers. Devices that these do not cover become one extra request,
which all init containers share. Sources: the pod resource formula of `k8s.io/component-helpers/resource`, and KEP-5004.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from neuron.demand import Ask, Role

EXTRA = -1
"""Id of the request that only init containers use; others have the index of their container's ask."""


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """The requests of a claim, on one instance type.

    Attributes:
        counts: devices by request id; ids are indexes of asks, or `EXTRA`.
        uses: for each ask, the ids of the requests that it uses; empty if it requests no devices.
    """

    counts: dict[int, int]
    uses: tuple[tuple[int, ...], ...]

    @property
    def total(self) -> int:
        """Devices of the pod."""
        return sum(self.counts.values())

    def size(self, use: Sequence[int]) -> int:
        """Devices in a set of requests."""
        return sum(self.counts[identity] for identity in use)


def lay_out(asks: Sequence[Ask], devices: Sequence[int], connectable: Sequence[int]) -> Layout:
    """Distribute devices over requests.

    Args:
        asks: the pod's containers; init containers first, each list in the pod's order.
        devices: devices for each ask, 0 for none.
        connectable: counts that are always connected; init containers prefer sets of such a size.
    """
    counts = {
        index: count
        for index, (ask, count) in enumerate(zip(asks, devices, strict=True))
        if count and ask.role is not Role.INIT
    }
    if not any(count and ask.role is Role.INIT for ask, count in zip(asks, devices, strict=True)):
        return Layout(counts, tuple((index,) if count else () for index, count in enumerate(devices)))
    reusable = {
        index: [later for later in counts if asks[later].role is Role.APP or later > index]
        for index, (ask, count) in enumerate(zip(asks, devices, strict=True))
        if count and ask.role is Role.INIT
    }
    extra = max(
        (devices[index] - sum(counts[later] for later in later_ones) for index, later_ones in reusable.items()),
        default=0,
    )
    if extra > 0:
        counts[EXTRA] = extra
    shared = (EXTRA,) if extra > 0 else ()
    # Later init containers have fewer requests to choose from, so they choose first. Earlier ones reuse a chosen set if
    # it is as good: sets that only overlap could not all be connected.
    chosen: dict[tuple[int, ...], int] = {}
    found: dict[tuple[int, tuple[int, ...]], tuple[int, ...]] = {}
    for index in reversed(reusable):
        available = (*reusable[index], *shared)
        question = (devices[index], available)
        if question not in found:  # a pod may have a thousand equal init containers
            found[question] = use = _choose(devices[index], available, counts, connectable, chosen)
            chosen[use] = sum(counts[identity] for identity in use)
    uses = tuple(
        found[count, (*reusable[index], *shared)] if index in reusable else (index,) if count else ()
        for index, count in enumerate(devices)
    )
    return Layout(counts, uses)


def _choose(
    need: int,
    available: Sequence[int],
    counts: Mapping[int, int],
    connectable: Sequence[int],
    chosen: Mapping[tuple[int, ...], int],
) -> tuple[int, ...]:
    """The best set of requests with at least `need` devices: connectable, then few devices, then few requests."""

    def badness(size: int) -> tuple[bool, int]:
        return (size not in connectable, size)

    # One set per sum is enough: of two sets of equal size, keep the one with fewer requests.
    best: dict[int, tuple[int, ...]] = {0: ()}
    for identity in available:
        for size, members in list(best.items()):
            grown = size + counts[identity]
            if grown not in best or len(members) + 1 < len(best[grown]):
                best[grown] = (*members, identity)
    size = min((size for size in best if size >= need), key=badness)
    single = len(best[size]) == 1
    for use, used in chosen.items():
        if not single and used >= need and badness(used) <= badness(size) and set(use) <= set(available):
            return use
    return best[size]
