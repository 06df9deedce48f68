"""Whether the requests of a claim fit an empty node together.

Each request alone does. But a request lists at most 8 alternatives, and not every set of runs can be beside the others.
"""

import functools
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from neuron import windows
from neuron.neighbours import beside
from neuron.windows import Line

MOST_STEPS: Final = 1000
"""Placements tried before the answer is no."""

Run: TypeAlias = tuple[int, int, int]
"""A request for consecutive devices: how many, and devices and cores (0: whole devices) of the request beside it."""

_Place: TypeAlias = tuple[int, int]
"""Devices of a run, and of the request beside it, as bit masks."""


@functools.lru_cache(maxsize=1024)
def fits(line: Line, published: bool, per_device: int, runs: tuple[Run, ...], shares: tuple[int, ...]) -> bool:
    """Whether an empty node has place for all requests.

    Args:
        line: the node's devices.
        published: whether nodes publish window attributes.
        per_device: cores of a device.
        runs: the requests for whole devices, single ones included.
        shares: cores of the requests for a part of one device.
    """
    singles = sum(1 for run in runs if run == (1, 0, 0))
    places = [list(_places(line, published, run)) for run in runs if run != (1, 0, 0)]
    cores = [run[2] for run in runs if run != (1, 0, 0)]
    steps = iter(range(MOST_STEPS))

    def search(place: int, free: tuple[int, ...]) -> bool:
        if place == len(places):
            return _rest_fits(free, per_device, singles, shares)
        for run, neighbour in places[place]:
            if next(steps, None) is None:
                return False
            left = _take(free, per_device, run, neighbour, cores[place])
            if left is not None and search(place + 1, left):
                return True
        return False

    return search(0, (per_device,) * line.devices)


def _places(line: Line, published: bool, run: Run) -> Iterator[_Place]:
    size, second, _ = run
    if second:
        yield from ((_mask(one), _mask(other)) for one, other in beside(line, size, second).places)
    else:
        yield from ((_mask(ids), 0) for ids in _windows(line, published, size))


def _windows(line: Line, published: bool, size: int) -> Iterator[tuple[int, ...]]:
    if size == line.devices:
        yield tuple(range(size))
        return
    shifts = {
        windows.attribute(size, shift, line.devices): shift for shift in windows.published_shifts(line).get(size, ())
    }
    for placement in windows.placements(line, size, published):
        if placement.ids:
            yield placement.ids
        else:
            yield from (line.window(size, start) for start in line.starts_at(size, shifts[placement.attribute]))


def _mask(ids: Iterable[int]) -> int:
    return sum(1 << device for device in ids)


def _take(free: tuple[int, ...], per_device: int, run: int, neighbour: int, cores: int) -> tuple[int, ...] | None:
    """The cores that are left of each device; None if there are not enough."""
    left = list(free)
    for device in range(len(left)):
        needed = per_device if run >> device & 1 else (cores or per_device) if neighbour >> device & 1 else 0
        if needed > left[device]:
            return None
        left[device] -= needed
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
