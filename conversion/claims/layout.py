"""Distributes the devices of a pod's containers over the requests of one claim.

Long-lived containers (apps and sidecars) get one request each. An ordinary init container runs before them and releases
its devices, so it uses the requests of later containers. Devices that these do not cover become one extra request,
which all init containers share. Sources: the pod resource formula of `k8s.io/component-helpers/resource`, and KEP-5004.

The requests have to fit an empty node together: each alone does, but it lists at most 8 alternatives, and not every set
of runs can be beside the others.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import Struct

from conversion.claims.containers import Ask, Role

EXTRA = -1
"""Id of the request that only init containers use; others have the index of their container's ask, or
`share_of` it."""


def share_of(index: int) -> int:
    """Id of the request for what a container gets beside its first one: cores, or the rest of a run."""
    return EXTRA - 1 - index


@dataclasses.dataclass(frozen=True, slots=True)
class Grant:
    """What one container gets.

    Attributes:
        cores: physical cores of one more device, which other claims may use, too.
    """

    devices: int
    cores: int = 0


class Layout(Struct, frozen=True):
    """The requests of a claim, on one instance type.

    Attributes:
        counts: whole devices by request id; ids are indexes of asks, or `EXTRA`.
        uses: for each ask, the ids of the requests that it uses; empty if it requests no devices.
        shares: physical cores by request id, each of one device. The id is `share_of` a container's ask if it has whole
            devices, too.
        lncs: the logical NeuronCore that the claim sets for each request id, if it is not one for all: None for a
            request that keeps the variable of each of its containers.
    """

    counts: dict[int, int]
    uses: tuple[tuple[int, ...], ...]
    shares: dict[int, int] = {}
    lncs: Mapping[int, int | None] | None = None

    @property
    def total(self) -> int:
        """Devices of the pod, shared ones included."""
        return sum(self.counts.values()) + len(self.shares)

    def has_rest(self, identity: int) -> bool:
        """Whether the devices of a container are in two requests: this one, and `share_of` it."""
        return identity >= 0 and share_of(identity) in self.counts

    def lnc(self, identity: int) -> int | None:
        """The entry of `lncs` for a request, or for the rest of one."""
        found = self.lncs or {}
        return found.get(identity if identity in found else share_of(identity))

    def size(self, use: Sequence[int]) -> int:
        """Devices in a set of requests, shared ones included."""
        return sum(self.counts.get(identity, 1) for identity in use)

    def cores(self, use: Sequence[int], per_device: int) -> int:
        """Physical cores in a set of requests."""
        whole = sum(self.counts[identity] for identity in use if identity in self.counts)
        return whole * per_device + sum(self.shares.get(identity, 0) for identity in use)


def lay_out_shares(asks: Sequence[Ask], grants: Sequence[Grant], per_device: int) -> Layout | None:
    """Distribute whole devices and shares over requests: an init container uses what one later container has.

    Args:
        asks: the pod's containers; init containers first, each list in the pod's order.
        grants: what each of them gets; for an init container, what it needs.
        per_device: physical cores of a device.

    Returns:
        None if an init container needs more than one later container has.
    """
    counts: dict[int, int] = {}
    shares: dict[int, int] = {}
    own: dict[int, tuple[int, ...]] = {}
    for index, (ask, grant) in enumerate(zip(asks, grants, strict=True)):
        if ask.role is Role.INIT or grant == Grant(0):
            continue
        own[index] = (index,)
        if grant.devices == 0:
            shares[index] = grant.cores
            continue
        counts[index] = grant.devices
        if grant.cores:
            shares[share_of(index)] = grant.cores
            own[index] = (index, share_of(index))
    uses: list[tuple[int, ...]] = []
    # A pod may have a thousand equal init containers, so the smallest that is large enough is found once for each need.
    by_size = sorted(own, key=lambda index: (grants[index].devices * per_device + grants[index].cores, index))
    found: dict[tuple[Grant, int], int | None] = {}
    for index, (ask, grant) in enumerate(zip(asks, grants, strict=True)):
        if ask.role is not Role.INIT or grant == Grant(0):
            uses.append(own.get(index, ()))
            continue
        after = sum(1 for other in own if other < index)  # sidecars that started before do not count
        question = (grant, after)
        if question not in found:
            later = (other for other in by_size if asks[other].role is Role.APP or other > index)
            found[question] = next((other for other in later if _covers(grants[other], grant, per_device)), None)
        chosen = found[question]
        if chosen is None:
            return None
        uses.append(own[chosen])
    return Layout(counts, tuple(uses), shares)


def _covers(has: Grant, needs: Grant, per_device: int) -> bool:
    """Whether one grant is enough for another. Whole devices are enough for cores; cores for no whole device."""
    if needs.cores == 0:
        return has.devices >= needs.devices
    return has.devices * per_device + has.cores >= needs.devices * per_device + needs.cores


def most_devices(asks: Sequence[Ask], devices: Sequence[int]) -> int:
    """Devices of a pod in all. An init container uses those of apps, and of sidecars after it, before more of its own.

    Args:
        devices: for each ask, 0 for none.
    """
    later = sum(count for ask, count in zip(asks, devices, strict=True) if ask.role is Role.APP)
    extra = 0
    for ask, count in zip(reversed(asks), reversed(devices), strict=True):
        if ask.role is Role.SIDECAR:
            later += count
        elif ask.role is Role.INIT:
            extra = max(extra, count - later)
    return later + extra


def lay_out(
    asks: Sequence[Ask],
    devices: Sequence[int],
    connectable: Sequence[int],
    *,
    alone: bool = False,
    apart: bool = False,
) -> Layout:
    """Distribute devices over requests.

    Args:
        asks: the pod's containers; init containers first, each list in the pod's order.
        devices: devices for each ask, 0 for none.
        connectable: counts that are always connected; init containers prefer sets of such a size.
        alone: whether an init container prefers one request to several. On a ring or chain, several leave fewer places.
        apart: whether an init container prefers a request of its own logical NeuronCore (`Ask.lnc`).
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
    if apart:
        reusable = {index: _of_one_lnc(asks, devices[index], index, found, counts) for index, found in reusable.items()}
    extra = most_devices(asks, devices) - sum(counts.values())
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
            found[question] = use = _choose(devices[index], available, counts, connectable, chosen, alone=alone)
            chosen[use] = sum(counts[identity] for identity in use)
    uses = tuple(
        found[count, (*reusable[index], *shared)] if index in reusable else (index,) if count else ()
        for index, count in enumerate(devices)
    )
    return Layout(counts, uses)


def _of_one_lnc(
    asks: Sequence[Ask], need: int, index: int, available: list[int], counts: Mapping[int, int]
) -> list[int]:
    """The smallest request that is enough and has the logical NeuronCore of this ask; without one, all requests."""
    enough = [each for each in available if asks[each].lnc == asks[index].lnc and counts[each] >= need]
    return [min(enough, key=lambda each: (counts[each], each))] if enough else available


def _choose(
    need: int,
    available: Sequence[int],
    counts: Mapping[int, int],
    connectable: Sequence[int],
    chosen: Mapping[tuple[int, ...], int],
    *,
    alone: bool,
) -> tuple[int, ...]:
    """The best set of requests with at least `need` devices: connectable, then few devices, then few requests."""

    def badness(size: int) -> tuple[bool, int]:
        return (size not in connectable, size)

    if alone and (large := [identity for identity in available if counts[identity] >= need]):
        return (min(large, key=lambda identity: (counts[identity], identity)),)
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


MOST_STEPS: Final = 1000
"""Placements tried before the answer is no."""

Place: TypeAlias = tuple[int, int]
"""Devices of a request, and of the request beside it (0: none), as bit masks."""

Run: TypeAlias = tuple[tuple[Place, ...], int]
"""The places of a request for whole devices, and the cores that the request beside it takes of each device (0: all)."""


@functools.lru_cache(maxsize=1024)
def fits(devices: int, per_device: int, runs: tuple[Run, ...], singles: int, shares: tuple[int, ...]) -> bool:
    """Whether an empty node has place for all requests.

    Args:
        devices: devices of the node.
        per_device: cores of a device.
        runs: the requests for several whole devices, or for one beside others.
        singles: requests for one whole device.
        shares: cores of the requests for a part of one device.
    """
    steps = iter(range(MOST_STEPS))

    def search(number: int, free: tuple[int, ...]) -> bool:
        if number == len(runs):
            return _rest_fits(free, per_device, singles, shares)
        places, cores = runs[number]
        for place in places:
            if next(steps, None) is None:
                return False
            left = _take(free, per_device, place, cores or per_device)
            if left is not None and search(number + 1, left):
                return True
        return False

    return search(0, (per_device,) * devices)


def mask(ids: Iterable[int]) -> int:
    """Devices as a bit mask."""
    return sum(1 << device for device in ids)


def masks(sets: Sequence[Iterable[int]]) -> list[int]:
    """Sets of devices as bit masks."""
    return [mask(ids) for ids in sets]


def _take(free: tuple[int, ...], per_device: int, place: Place, cores: int) -> tuple[int, ...] | None:
    """The cores that are left of each device; None if there are not enough."""
    run, beside = place
    left = list(free)
    for device in range(len(left)):
        left[device] -= per_device if run >> device & 1 else cores if beside >> device & 1 else 0
        if left[device] < 0:
            return None
    return tuple(left)


def _rest_fits(free: tuple[int, ...], per_device: int, singles: int, shares: tuple[int, ...]) -> bool:
    """Whether single devices and shares fit. Every share divides every larger one, so the first place is as good."""
    left = sorted(free)
    for _ in range(singles):
        if not left or left.pop() < per_device:
            return False
    for share in sorted(shares, reverse=True):
        place = next((index for index, cores in enumerate(left) if cores >= share), None)
        if place is None:
            return False
        left[place] -= share
    return True
