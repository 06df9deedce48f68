"""Runs beside each other: two requests whose devices together are consecutive, and each of them alone, too.

A container that uses two requests needs this, and a share of cores beside whole devices. Every request picks its
alternative alone, and a constraint holds for a request whatever the other one picked. So only the first request has
alternatives; the second is the rest of the window that a constraint over both keeps.

A run with more starts than a request has alternatives can be two requests, too, neither of them consecutive: `split`.
"""

import dataclasses
import functools
from collections.abc import Mapping
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
class SplitRun:
    """A run in two requests, each with alternatives by device ids.

    Whatever each of the requests picks, both are a run together, or one of them has taken devices of the other, or a
    constraint keeps them apart.

    Attributes:
        size: devices of the first request.
        first: device ids of its alternatives.
        second: device ids of the alternatives of the second request.
        ties: for each attribute, the alternatives of the first and of the second request whose devices must match.
        places: devices of the first and of the second request, by alternative of the first, for every run.
    """

    size: int
    first: tuple[tuple[int, ...], ...]
    second: tuple[tuple[int, ...], ...]
    ties: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
    places: tuple[tuple[_Pieces, ...], ...]


_SIX: Final = 6
_BY_IDS: Final[Mapping[tuple[Line, int], tuple[str, str]]] = {
    (Line(12, wraps=True), 8): (
        "127 167 567 | 468 9ab 5ab 56b 123",
        "01234 | 089ab 23579 3579a 45678",
    ),
    (Line(16, wraps=False), 8): (
        "89d 256 | 34a 4ab 7bc",
        "abcef 01347 89ade | 34789 13478 5689a 67abc 56789",
    ),
    (Line(12, wraps=True), 9): (
        "0123 1239 6789 3456 239a 0156",
        "45678 0148b 012ab 0127b 045ab 789ab",
    ),
    (Line(16, wraps=False), 9): (
        "0128 4567 1289 567d 289a 67de 89ab 7def",
        "34567 89abc",
    ),
    (Line(12, wraps=True), 10): (
        "01234 23456 45678 6789a 89ab0 ab012",
        "56789 789ab 9ab01 b0123 12345 34567",
    ),
    (Line(16, wraps=False), 10): (
        "01289 4567d 1289a 567de 289ab 67def 89abc",
        "34567 89abc",
    ),
}
"""Alternatives of the first and of the second request, found by a search; a test tries all pairs. The digits are
device ids. What is before a bar is tied to the halves of the node, 0 to 7 and 8 to 15, by the attribute of windows of
eight."""


@functools.lru_cache(maxsize=64)
def split(line: Line, size: int, published: bool = True) -> SplitRun | None:
    """The alternatives that allow a run at every start, where one request has too few: 7 to 10 of 12 or 16 devices.

    Seven devices are six with one value of a window attribute and the device at one of their ends.

    Args:
        published: whether nodes publish window attributes. Without them there are 9 and 10 devices only.
    """
    lists = _BY_IDS.get((line, size))
    if lists is None:
        seven = published and size == _SIX + 1 and any(line == each for each, _ in _BY_IDS)
        return _six_and_one(line) if seven else None
    (tied, first), (also_tied, second) = map(_read, lists)
    if tied and not published:
        return None
    group = names.device_group_attribute(size)
    ties = ((group, tuple(range(len(tied))), tuple(range(len(also_tied)))),) if tied else ()
    return _split(line, size, (*tied, *first), (*also_tied, *second), ties)


def _read(text: str) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    tied, _, others = text.rpartition("|")
    one, other = (tuple(tuple(int(each, 16) for each in ids) for ids in part.split()) for part in (tied, others))
    return one, other


def _six_and_one(line: Line) -> SplitRun:
    """Five shifts of a window of six; the constraint of each excludes the devices that are beside other windows."""
    shifts = range(_SIX - 1)
    beside = [
        tuple(sorted({(shift + each) % line.devices for each in ((-1, 0, 5, 6) if line.wraps else (5, 6))}))
        for shift in shifts
    ]
    ties = tuple((attribute(_SIX, each), (each,), tuple(other for other in shifts if other != each)) for each in shifts)
    return _split(line, _SIX + 1, ((),) * len(shifts), tuple(beside), ties)


def _split(
    line: Line,
    size: int,
    first: tuple[tuple[int, ...], ...],
    second: tuple[tuple[int, ...], ...],
    ties: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...],
) -> SplitRun:
    runs = [frozenset(line.window(size, start)) for start in line.starts(size)]
    found: list[tuple[_Pieces, ...]] = []
    for place, ids in enumerate(first):
        windows = line.windows_at(_SIX, place) if not ids else (ids,)
        excluded = {each for _, firsts, seconds in ties if not ids and place in firsts for each in seconds}
        found.append(
            tuple(
                (frozenset(window), run - frozenset(window))
                for window in windows
                for run in runs
                if run.issuperset(window)
                and any(run.difference(window) <= set(b) for number, b in enumerate(second) if number not in excluded)
            )
        )
    return SplitRun(len(first[0]) or _SIX, first, second, ties, tuple(found))
