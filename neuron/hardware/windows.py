"""Windows: sets of consecutive devices on types whose devices form a ring or a chain (Inf1, Inf2).

The structured allocator has no rule for "consecutive". A window attribute gives it one: for a size N and a shift s,
the N consecutive devices of one window publish the same value, and a device that is in no window publishes a value of
its own. `count: N` with `matchAttribute` on that attribute then allocates one whole window.

A device has at most 32 attributes and capacities (KEP-4381), so a node does not publish every shift of every size.
The rule of `published_shifts` and the order of alternatives in `placements` are those that lost the fewest devices to
fragmentation in `benchmarks/packing.py`. Windows that no attribute describes are requested by device id.
"""

import dataclasses
import functools
import itertools
from collections.abc import Collection, Mapping
from typing import Final

from neuron import names

MOST_ATTRIBUTES: Final = 16
"""Window attributes of one device. Other attributes and capacities are up to 13, and 32 is the limit for all."""
_WINDOW: Final = "window{size}_{shift}"


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """The devices of one node in their order.

    Attributes:
        devices: how many; their ids are 0 to `devices - 1`.
        wraps: whether the last device is connected with the first (a ring; otherwise a chain).
    """

    devices: int
    wraps: bool

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


def attribute(size: int, shift: int, devices: int) -> str:
    """Qualified name of a window attribute.

    A size that divides the number of devices has, at shift 0, the name that Trainium uses for its groups.
    """
    if shift == 0 and devices % size == 0:
        return names.device_group_attribute(size)
    return f"{names.DRIVER}/{_WINDOW.format(size=size, shift=shift)}"


@functools.lru_cache(maxsize=64)
def published_shifts(line: Line) -> Mapping[int, tuple[int, ...]]:
    """The shifts that a node publishes, by window size, best first.

    First shift 0 of the sizes that divide the node, which are the groups by another name. Then, from the smallest
    size, the shift that adds the most windows, while it adds at least two; then those that add one.
    """
    sizes = range(2, line.devices)
    chosen: dict[int, list[int]] = {size: [0] for size in sizes if line.devices % size == 0}
    for least_gain in (2, 1):
        for size in sizes:
            _add_shifts(line, size, chosen, least_gain)
    return {size: tuple(shifts) for size, shifts in sorted(chosen.items())}


def _add_shifts(line: Line, size: int, chosen: dict[int, list[int]], least_gain: int) -> None:
    covered = {start for shift in chosen.get(size, ()) for start in line.starts_at(size, shift)}
    limit = line.devices if line.wraps and line.devices % size else size
    while sum(map(len, chosen.values())) < MOST_ATTRIBUTES:
        gains = {shift: len(set(line.starts_at(size, shift)) - covered) for shift in range(limit)}
        best = max(gains, key=lambda shift: (gains[shift], -shift))
        if gains[best] < least_gain:
            return
        chosen.setdefault(size, []).append(best)
        covered.update(line.starts_at(size, best))


def attributes(line: Line, device_id: int, links: Collection[tuple[int, int]] | None = None) -> dict[str, str]:
    """The window attributes of one device, by qualified name.

    Args:
        links: pairs of ids that are connected, in either order; None where the node does not tell. A window that
            crosses a missing link is no window, and a chain whose ends are linked has the windows of a ring. The
            names do not depend on the links, so claims can be written without them.
    """
    ends_linked = links is not None and _is_linked((line.devices - 1, 0), links)
    real = Line(line.devices, wraps=line.wraps or ends_linked)
    return {
        attribute(size, shift, line.devices): _value(real, size, shift, device_id, links)
        for size, shifts in published_shifts(line).items()
        for shift in shifts
    }


def _value(line: Line, size: int, shift: int, device_id: int, links: Collection[tuple[int, int]] | None) -> str:
    for start in line.starts_at(size, shift):
        window = line.window(size, start)
        if device_id in window:
            return f"window-{start}" if _is_linked(window, links) else f"device-{device_id}"
    return f"device-{device_id}"


def _is_linked(window: tuple[int, ...], links: Collection[tuple[int, int]] | None) -> bool:
    if links is None:
        return True
    return all((a, b) in links or (b, a) in links for a, b in itertools.pairwise(window))


@functools.lru_cache(maxsize=1024)
def placements(line: Line, size: int, published: bool = True) -> tuple[Placement, ...]:
    """Alternatives for `size` consecutive devices, in the order in which a claim lists them.

    Args:
        size: 2 to one fewer than all devices.
        published: whether nodes publish window attributes; if not, every window is selected by device ids.

    Returns:
        At most 8, the limit of `firstAvailable`. If there are more windows, those at the ends of the line come first:
        they leave the longest run free. `neuron.demand.planning` leaves out those that cost the scheduler too much.
    """
    shifts = published_shifts(line).get(size, ()) if published else ()
    covered = {start for shift in shifts for start in line.starts_at(size, shift)}
    found = [Placement(attribute(size, shift, line.devices)) for shift in shifts]
    others = [start for start in line.starts(size) if start not in covered]
    others.sort(key=lambda start: _rank(line, size, start))
    found += [Placement(ids=line.window(size, start)) for start in others]
    return tuple(found[: names.MAX_FIRST_AVAILABLE])


def adjacent(line: Line, size: int) -> tuple[Placement, ...]:
    """The first windows of a size, one after the other, by device ids: at most 8, and of more than half of a chain all.

    They have devices in common, which a claim can request alone (`neuron.demand.pieces`). A window attribute has one
    window of more than half of the devices only, so nothing is lost without it.
    """
    return tuple(Placement(ids=line.window(size, start)) for start in line.starts(size)[: names.MAX_FIRST_AVAILABLE])


def allowed(line: Line, size: int, placement: Placement) -> tuple[tuple[int, ...], ...]:
    """Device ids of the windows that an alternative for `size` devices allows."""
    if placement.ids:
        return (placement.ids,)
    shifts = published_shifts(line)[size]
    shift = next(shift for shift in shifts if attribute(size, shift, line.devices) == placement.attribute)
    return line.windows_at(size, shift)


def _rank(line: Line, size: int, start: int) -> tuple[bool, int, int]:
    """Windows at the ends first; those that wrap around last."""
    last = line.devices - size
    return (start > last, min(start, abs(last - start)), start)
