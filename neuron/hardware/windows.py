"""Windows: sets of consecutive devices on types whose devices form a ring or a chain (Inf1, Inf2).

The structured allocator has no rule for "consecutive". A window attribute gives it one: for a size N and a shift s,
the N consecutive devices of one window publish the same value, and a device that is in no window publishes a value of
its own. `count: N` with `matchAttribute` on that attribute then allocates one whole window.

A device has at most 32 attributes and capacities (KEP-4381), so a node does not publish every shift of every size.
Windows that no attribute describes are requested by device id, so `published_shifts` has those without which a claim
does not reach all windows. The order of alternatives in `placements` is the one that lost the fewest devices to
fragmentation in `benchmarks/packing.py`.
"""

import dataclasses
import functools
import itertools
from collections.abc import Collection, Mapping
from typing import Final

from neuron import names

MOST_ATTRIBUTES: Final = 20
"""Window attributes of one device. On Inferentia, other attributes and capacities are up to 12; 32 is the limit for
all."""
_WINDOW: Final = "window{size}_{shift}"
_LARGEST_SHARED: Final = 6
"""Devices of the largest runs of which inf2.48xlarge has two beside each other. Other types share its attributes for
them: these, too, need one more where that type takes an alternative."""
_GROUP_SIZES: Final = (4, 8)
"""Sizes of Trainium's groups that a ring or chain of the catalogue has runs of."""


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """The devices of one node in their order.

    Attributes:
        devices: how many; their ids are 0 to `devices - 1`.
        wraps: whether the last device is connected with the first (a ring; otherwise a chain).
    """

    devices: int
    wraps: bool

    def connects_any(self, size: int) -> bool:
        """Whether any so many devices are consecutive: all, or all of a ring but one."""
        return self.devices - self.wraps <= size <= self.devices

    def starts(self, size: int) -> tuple[int, ...]:
        """First devices of all windows of a size."""
        return tuple(range(self.devices if self.wraps else self.devices - size + 1))

    def starts_at(self, size: int, shift: int) -> tuple[int, ...]:
        """First devices of the windows of a size and shift. They do not overlap."""
        if not self.wraps:
            return tuple(range(shift, self.devices - size + 1, size))
        return tuple((shift + number * size) % self.devices for number in range(self.devices // size))

    def window(self, size: int, start: int) -> tuple[int, ...]:
        """Device ids of one window, in the order of the line."""
        return tuple((start + offset) % self.devices for offset in range(size))

    def windows_at(self, size: int, shift: int) -> tuple[tuple[int, ...], ...]:
        """Device ids of the windows of a size and shift."""
        return tuple(self.window(size, start) for start in self.starts_at(size, shift))


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """One alternative of a request for consecutive devices: either an attribute to match, or device ids.

    Attributes:
        attribute: qualified name for `matchAttribute`; "" where `ids` select the window.
        ids: the devices of the one window; empty where `attribute` is set.
    """

    attribute: str = ""
    ids: tuple[int, ...] = ()


def attribute(size: int, shift: int) -> str:
    """Qualified name of a window attribute. Shift 0 has the name that Trainium uses for its groups of that size."""
    return f"{names.DRIVER}/{_WINDOW.format(size=size, shift=shift)}" if shift else names.device_group_attribute(size)


@functools.lru_cache(maxsize=64)
def published_shifts(line: Line) -> Mapping[int, tuple[int, ...]]:
    """The shifts that a node publishes, by window size, best first.

    First shift 0 of the sizes that Trainium's groups have, so that one alternative serves these types, too. Then, from
    the smallest size, those without which a claim would leave windows out; those without which it would with one of its
    alternatives for another type; then those that add at least two windows, and those that add one.
    """
    chosen: dict[int, list[int]] = {size: [0] for size in _GROUP_SIZES if size < line.devices}
    most = names.MAX_FIRST_AVAILABLE
    for least_gain, most_alternatives, largest in (
        (2, most, line.devices),
        (2, most - 1, _LARGEST_SHARED),
        (2, 0, line.devices),
        (1, 0, line.devices),
    ):
        for size in range(2, min(line.devices, largest + 1)):
            _add_shifts(line, size, chosen, least_gain, most_alternatives)
    if not line.wraps:
        # Seven devices of a chain are six and the one beside them: `conversion` needs all pairs of windows of six.
        _add_shifts(line, _LARGEST_SHARED, chosen, 2, 0, MOST_ATTRIBUTES)
    return {size: tuple(shifts) for size, shifts in sorted(chosen.items())}


def named(line: Line, size: int) -> Mapping[str, int]:
    """The attributes that a node publishes for windows of a size, with their shifts."""
    return {attribute(size, shift): shift for shift in published_shifts(line).get(size, ())}


def _add_shifts(
    line: Line,
    size: int,
    chosen: dict[int, list[int]],
    least_gain: int,
    most_alternatives: int,
    most: int = MOST_ATTRIBUTES - 1,
) -> None:
    """Add shifts of a size, each with at least so many windows more, until so few alternatives allow all windows.

    `most`: attributes of all sizes.
    """
    windows = len(line.starts(size))
    covered = {start for shift in chosen.get(size, ()) for start in line.starts_at(size, shift)}
    limit = line.devices if line.wraps and line.devices % size else size
    while sum(map(len, chosen.values())) < most:
        if len(chosen.get(size, ())) + windows - len(covered) <= most_alternatives:
            return
        gains = {shift: len(set(line.starts_at(size, shift)) - covered) for shift in range(limit)}
        best = max(gains, key=lambda shift: (gains[shift], -shift))
        if gains[best] < least_gain:
            return
        chosen.setdefault(size, []).append(best)
        covered.update(line.starts_at(size, best))


def attributes(line: Line, device_id: int, links: frozenset[tuple[int, int]] | None = None) -> dict[str, str]:
    """The window attributes of one device, by qualified name.

    Args:
        links: pairs of ids that are connected, in either order; None where the node does not tell. A window that
            crosses a missing link is no window, and a chain whose ends are linked has the windows of a ring. The
            names do not depend on the links, so claims can be written without them.
    """
    alone = f"device-{device_id}"
    return {name: values.get(device_id, alone) for name, values in _windows(line, links).items()}


@functools.lru_cache(maxsize=64)
def _windows(line: Line, links: frozenset[tuple[int, int]] | None) -> Mapping[str, Mapping[int, str]]:
    """By attribute, the value of each device that is in a window."""
    ends_linked = links is not None and _is_linked((line.devices - 1, 0), links)
    real = Line(line.devices, wraps=line.wraps or ends_linked)
    return {
        name: {
            device_id: f"window-{window[0]}"
            for window in real.windows_at(size, shift)
            if _is_linked(window, links)
            for device_id in window
        }
        for size in range(2, line.devices)
        for name, shift in named(line, size).items()
    }


def _is_linked(window: tuple[int, ...], links: Collection[tuple[int, int]] | None) -> bool:
    if links is None:
        return True
    return all((a, b) in links or (b, a) in links for a, b in itertools.pairwise(window))


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceChoice:
    """All sets of devices that a request can get, and the attributes that allow some of them.

    Attributes:
        sets: device ids of each, in the order in which a claim lists them.
        named: for each attribute, the places of its sets in `sets`.
        groups: the same for attributes that other types have for their groups. They are worth no alternative of their
            own: one of those that the other types need serves this type, too.
    """

    sets: tuple[tuple[int, ...], ...]
    named: tuple[tuple[str, frozenset[int]], ...] = ()
    groups: tuple[tuple[str, frozenset[int]], ...] = ()


@functools.lru_cache(maxsize=1024)
def choice(line: Line, size: int, published: bool = True) -> DeviceChoice:
    """All windows of a size: those at the ends of the line first, because they leave the longest run free.

    Args:
        size: 2 to one fewer than all devices.
        published: whether nodes publish window attributes.
    """
    starts = sorted(line.starts(size), key=lambda start: _rank(line, size, start))
    places = {start: place for place, start in enumerate(starts)}
    shifts = named(line, size) if published else {}
    return DeviceChoice(
        tuple(line.window(size, start) for start in starts),
        tuple(
            (name, frozenset(places[start] for start in line.starts_at(size, shift))) for name, shift in shifts.items()
        ),
    )


def select(found: DeviceChoice, attributes_: Collection[str], most: int) -> tuple[Placement, ...]:
    """These attributes, as far as each adds a set, and then sets by device ids, up to `most` alternatives in all."""
    chosen: list[Placement] = []
    covered: frozenset[int] = frozenset()
    for name, places in found.named:
        if name in attributes_ and not places <= covered:
            chosen.append(Placement(name))
            covered |= places
    others = (ids for place, ids in enumerate(found.sets) if place not in covered)
    return (*chosen, *(Placement(ids=ids) for ids in itertools.islice(others, max(0, most - len(chosen)))))


def placements(line: Line, size: int, published: bool = True) -> tuple[Placement, ...]:
    """Alternatives for `size` consecutive devices of one type, in the order in which a claim lists them.

    Returns:
        At most 8, the limit of `firstAvailable`: the attributes, and the windows at the ends of the line.
        `conversion.claims.planning` leaves out those that cost the scheduler too much.
    """
    found = choice(line, size, published)
    return select(found, [name for name, _ in found.named], names.MAX_FIRST_AVAILABLE)


def adjacent(line: Line, size: int, published: bool = True) -> DeviceChoice:
    """The windows of a size one after the other, by device ids: of more than half of a chain, each has devices of all.

    They have devices in common, which a claim can request alone (`conversion.claims.pieces`). A window attribute has
    one window of more than half of the devices only, so nothing is lost without it. A window that is a group by the
    name that Trainium uses is the first one: the others have devices in common with it.
    """
    group = names.device_group_attribute(size)
    grouped = published and named(line, size).get(group) == 0
    found = tuple(line.window(size, start) for start in line.starts(size))
    return DeviceChoice(found, groups=((group, frozenset([0])),) if grouped else ())


def allowed(line: Line, size: int, placement: Placement) -> tuple[tuple[int, ...], ...]:
    """Device ids of the windows that an alternative for `size` devices allows."""
    return (placement.ids,) if placement.ids else line.windows_at(size, named(line, size)[placement.attribute])


def _rank(line: Line, size: int, start: int) -> tuple[bool, int, int]:
    """Windows at the ends first; those that wrap around last."""
    last = line.devices - size
    return (start > last, min(start, abs(last - start)), start)
