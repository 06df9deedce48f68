"""Chooses the cores of a device for a share. The scheduler decides how many; which ones is the driver's decision.

Cores are numbered from 0 on their device. The choice keeps free cores together, so that later shares are contiguous.
"""

import enum
from collections.abc import Collection


class Side(enum.Enum):
    """The end of a device at which a share continues the whole devices of the same container."""

    LOW = "low"
    """The whole devices precede the shared one."""
    HIGH = "high"
    """The whole devices follow the shared one."""


def assign(
    device_cores: int, amount: int, logical: int, taken: Collection[int], side: Side | None = None
) -> tuple[int, ...] | None:
    """Choose physical cores of a device.

    In this order: the cores at the wanted side; an aligned block of a power of two, in the smallest free block that
    holds it; consecutive cores; any cores.

    Args:
        device_cores: physical cores of the device.
        amount: physical cores of the share, a multiple of `logical`.
        logical: physical cores of one logical core; they are not separated.
        taken: physical cores of other shares.
        side: where the share should be, if it matters.

    Returns:
        The cores, ascending; None if there are not enough.
    """
    total, wanted = device_cores // logical, amount // logical
    free = [unit for unit in range(total) if not any(core in taken for core in _physical(unit, logical))]
    if wanted > len(free):
        return None
    units = _at_side(total, wanted, free, side) or _block(total, wanted, free) or _run(wanted, free) or free[:wanted]
    return tuple(core for unit in units for core in _physical(unit, logical))


def side_of(index: int, whole: Collection[int], devices: int, wraps: bool) -> Side | None:
    """The side at which a shared device continues whole devices; None if it is not next to them.

    Args:
        whole: indices of the whole devices that the same containers use.
        wraps: whether the last device is connected with the first.
    """
    before, after = index - 1, index + 1
    if wraps:
        before, after = before % devices, after % devices
    if before in whole:
        return Side.LOW
    return Side.HIGH if after in whole else None


def _physical(unit: int, logical: int) -> range:
    return range(unit * logical, (unit + 1) * logical)


def _at_side(total: int, wanted: int, free: Collection[int], side: Side | None) -> range | None:
    if side is None:
        return None
    units = range(wanted) if side is Side.LOW else range(total - wanted, total)
    return units if all(unit in free for unit in units) else None


def _block(total: int, wanted: int, free: Collection[int]) -> range | None:
    size = 1 << (wanted - 1).bit_length()
    best: tuple[int, int] | None = None
    for start in range(0, total - wanted + 1, size):
        if all(unit in free for unit in range(start, start + wanted)):
            found = (_free_around(start, size, total, free), start)
            best = min(best or found, found)
    return None if best is None else range(best[1], best[1] + wanted)


def _free_around(start: int, size: int, total: int, free: Collection[int]) -> int:
    """Size of the largest aligned block around a block of which all cores are free."""
    while size * 2 <= total:
        first = start // (size * 2) * size * 2
        if not all(unit in free for unit in range(first, first + size * 2)):
            break
        start, size = first, size * 2
    return size


def _run(wanted: int, free: list[int]) -> range | None:
    return next((range(unit, unit + wanted) for unit in free if set(range(unit, unit + wanted)) <= set(free)), None)
