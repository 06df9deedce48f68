"""Where the devices of a node are drawn, and the lines between connected ones."""

import dataclasses
import enum
from collections.abc import Iterator

from commands.devices.devices import NodeMap
from neuron.hardware.connections import TORUS_WIDTH
from neuron.hardware.instances import Topology

_LONGEST_ROW = 8
_MOST_SLOTS = 64
"""A kubelet plugin chooses the indices of its devices: larger ones are drawn in their order, without gaps."""


class Wrap(enum.StrEnum):
    """How a line between two devices is drawn."""

    NONE = ""
    """From one to the other, which is beside it."""
    ROW = "row"
    """Out of both ends of a row."""
    COLUMN = "column"
    """Out of both ends of a column."""


@dataclasses.dataclass(frozen=True, slots=True)
class DrawnLink:
    """A connection of two devices, by their indices."""

    first: int
    second: int
    wrap: Wrap


@dataclasses.dataclass(frozen=True, slots=True)
class Geometry:
    """A drawing in rows and columns.

    Attributes:
        cells: column and row of each device, by index.
    """

    cells: dict[int, tuple[int, int]]
    columns: int
    rows: int
    lines: tuple[DrawnLink, ...]


def geometry(node: NodeMap) -> Geometry:
    """A torus is drawn as rows of four, a ring as two rows, a chain as rows that turn at their end."""
    indices = [device.index for device in node.devices]
    slots = _slots(indices)
    count = max(slots.values(), default=0) + 1
    width = _width(node.topology, count)
    cells = {index: _cell(node.topology, slot, width) for index, slot in slots.items()}
    rows = max((row for _, row in cells.values()), default=0) + 1
    return Geometry(cells, min(width, count), rows, tuple(_lines(node, cells)))


def _slots(indices: list[int]) -> dict[int, int]:
    """Places in the drawing, by index; an index that is missing leaves its place empty."""
    if all(0 <= index < _MOST_SLOTS for index in indices):
        return {index: index for index in indices}
    return {index: slot for slot, index in enumerate(indices)}


def _width(topology: Topology | None, count: int) -> int:
    if topology is Topology.RING:
        return (count + 1) // 2
    if topology is Topology.CHAIN:
        return min(count, _LONGEST_ROW)
    return TORUS_WIDTH if count <= TORUS_WIDTH * TORUS_WIDTH else _LONGEST_ROW


def _cell(topology: Topology | None, slot: int, width: int) -> tuple[int, int]:
    row, column = divmod(slot, width)
    if topology in (Topology.RING, Topology.CHAIN) and row % 2:
        column = width - 1 - column
    return column, row


def _lines(node: NodeMap, cells: dict[int, tuple[int, int]]) -> Iterator[DrawnLink]:
    for first, second in node.links:
        (column, row), (other_column, other_row) = cells[first], cells[second]
        if row == other_row:
            yield DrawnLink(first, second, Wrap.NONE if abs(column - other_column) == 1 else Wrap.ROW)
        else:
            yield DrawnLink(first, second, Wrap.NONE if abs(row - other_row) == 1 else Wrap.COLUMN)
