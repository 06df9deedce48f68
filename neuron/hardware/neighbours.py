"""Runs beside each other: two requests whose devices together are consecutive, and each of them alone, too.

A container that uses two requests needs this, and a share of cores beside whole devices. Every request picks its
alternative alone, and a constraint holds for a request whatever the other one picked. So only the first request has
alternatives; the second is the rest of the window that a constraint over both keeps.

One run of more than half of a ring can be two requests, too, where the second need not be consecutive: `halves`.
"""

import dataclasses
import functools
from typing import Final, TypeAlias

from neuron import names
from neuron.hardware.windows import Line, Placement, attribute, published_shifts

_Pieces: TypeAlias = tuple[frozenset[int], frozenset[int]]
"""Devices of the first and of the second request."""

ANY: Final = Placement()
"""One device, which needs neither attribute nor ids."""


@dataclasses.dataclass(frozen=True, slots=True)
class Beside:
    """One alternative of the first request.

    Attributes:
        union: attribute that all devices of both requests must match.
        places: devices of the first and of the second request, for each placement that it allows.
    """

    own: Placement
    union: str
    places: frozenset[_Pieces]


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """The alternatives of the first request, at most 8.

    Attributes:
        alternatives: in the order in which a claim lists them.
        covered: share of all placements that they allow.
    """

    alternatives: tuple[Beside, ...]
    covered: float


@functools.lru_cache(maxsize=256)
def beside(line: Line, first: int, second: int) -> Pair:
    """Alternatives for a run of `first` devices and one of `second` at either end of it.

    Args:
        line: the node's devices, which publish window attributes.
        first: devices of the first request.
        second: devices of the second request, at most `first`. Together fewer than the node has: of a whole node,
            what one run leaves needs no constraint.
    """
    everything = _placements(line, first, second)
    options = {
        shift: _options(line, first, second, shift, everything)
        for shift in published_shifts(line).get(first + second, ())
    }
    if second == 1:
        chosen, found = _cover([option for each in options.values() for option in each])
    else:
        # The second request has to match every window attribute that is in any alternative. Two shifts together
        # would leave it only the devices that are in one window of both.
        chosen, found = max(map(_cover, options.values()), key=lambda each: len(each[1]), default=((), frozenset()))
    return Pair(chosen, len(found) / len(everything))


def _placements(line: Line, first: int, second: int) -> frozenset[_Pieces]:
    size = first + second
    windows = [line.window(size, start) for start in line.starts(size)]
    return frozenset(
        pieces
        for window in windows
        for pieces in (
            (frozenset(window[:first]), frozenset(window[first:])),
            (frozenset(window[second:]), frozenset(window[:second])),
        )
    )


def _options(line: Line, first: int, second: int, shift: int, everything: frozenset[_Pieces]) -> list[Beside]:
    """The alternatives under one window attribute of both requests: by attribute, then by device ids."""
    size = first + second
    union = attribute(size, shift)
    windows = line.windows_at(size, shift)
    if first == 1:
        whole = frozenset(
            pieces for pieces in everything if any(pieces[0] | pieces[1] == frozenset(window) for window in windows)
        )
        return [Beside(ANY, union, whole)]
    found: list[Beside] = []
    for own in published_shifts(line).get(first, ()):
        runs = [frozenset(run) for run in line.windows_at(first, own)]
        inside = frozenset((run, frozenset(window) - run) for window in windows for run in runs if run <= set(window))
        # A run in the middle of a window would leave devices that are not consecutive.
        if inside <= everything:
            found.append(Beside(Placement(attribute(first, own)), union, inside))
    for window in windows:
        for ids in (window[:first], window[second:]):
            pieces = (frozenset(ids), frozenset(window) - frozenset(ids))
            found.append(Beside(Placement(ids=ids), union, frozenset((pieces,))))
    return found


def _cover(options: list[Beside]) -> tuple[tuple[Beside, ...], frozenset[_Pieces]]:
    """The alternatives that add the most placements, one by one, and what they cover."""
    chosen: list[Beside] = []
    covered: frozenset[_Pieces] = frozenset()
    while len(chosen) < names.MAX_FIRST_AVAILABLE and options:
        best = max(options, key=lambda option: len(option.places - covered))
        if best.places <= covered:
            break
        chosen.append(best)
        covered |= best.places
    return tuple(chosen), covered


@dataclasses.dataclass(frozen=True, slots=True)
class Half:
    """One alternative of the first request for a run in two parts.

    Attributes:
        attribute: what all its devices must match: it has one value for each half of the ring.
        places: devices of the first and of the second request, for the runs that it is needed for.
        apart: the alternatives of the second request that would not continue it. A constraint on the attribute that
            covers both excludes them, as none of their devices is in the same half.
    """

    attribute: str
    places: frozenset[_Pieces]
    apart: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Halves:
    """A run of more than half of a ring in two requests: one half, and the rest at one end of it or at both.

    Attributes:
        rests: for each alternative of the second request, its devices beside either half. It selects both: the first
            request has taken as many of them as are too many.
    """

    size: int
    halves: tuple[Half, ...]
    rests: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


@functools.lru_cache(maxsize=64)
def halves(line: Line, size: int) -> Halves | None:
    """The alternatives that allow a run at every start, where two such runs always overlap.

    Two runs whose starts are half a ring apart share the alternatives, so half as many allow all starts. A half can be
    the end or the beginning of a run, so fewer shifts of it are needed than there are starts in a half.

    Returns:
        None if one request has all starts, or if nodes do not publish the shifts that are needed.
    """
    half = line.devices // 2
    rest = size - half
    if not line.wraps or line.devices % 2 or half > names.MAX_FIRST_AVAILABLE or rest < 1 or line.connects_any(size):
        return None
    chosen: list[Half] = []
    covered: set[int] = set()
    while len(covered) < half:
        shifts = {
            shift: {shift % half: 0, (shift - rest) % half: rest} for shift in published_shifts(line).get(half, ())
        }
        shift = max(shifts, key=lambda each: (len(shifts[each].keys() - covered), -each), default=0)
        starts = shifts.get(shift, {})
        if starts.keys() <= covered:
            return None
        covered.update(starts)
        places = frozenset(
            (taken, frozenset(line.window(size, start)) - taken)
            for low, before in starts.items()
            for start in (low, low + half)
            for taken in (frozenset(line.window(half, start + before)),)
        )
        apart = tuple(start for start in range(half) if (shift - start) % half > rest)
        chosen.append(Half(attribute(half, shift), places, apart))
    rests = tuple((line.window(rest, start), line.window(rest, start + half)) for start in range(half))
    return Halves(half, tuple(chosen), rests)
