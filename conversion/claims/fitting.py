"""Whether the requests of a claim fit an empty node together.

Each request alone does. But a request lists at most 8 alternatives, and not every set of runs can be beside the others.
"""

import functools
from collections.abc import Iterable
from typing import Final, TypeAlias

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
