"""What the pictures of the map share: where devices stand, words of the legend, styles."""

import dataclasses
import enum
import string
from collections.abc import Iterable, Iterator
from importlib import resources
from typing import Final

from commands.devices.devices import Device, DeviceState, HeldDevice, NodeMap
from neuron.findings import few
from neuron.hardware.connections import TORUS_WIDTH
from neuron.hardware.instances import Topology
from runtime.text import counted, number_ranges

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


LETTERS: Final = string.ascii_uppercase + string.ascii_lowercase
MANY: Final = "*"
"""The letter of claims after the first 52, and of a device that several claims share."""
COLOURS: Final = 8
"""Claims that can be told apart by colour; the ninth has that of the first."""

MARKS: Final = {DeviceState.FREE: "·", DeviceState.UNHEALTHY: "✗", DeviceState.TAINTED: "!", DeviceState.PLUGIN: "P"}
ASCII_MARKS: Final = {**MARKS, DeviceState.FREE: ".", DeviceState.UNHEALTHY: "x"}
WORDS: Final = {
    DeviceState.FREE: "free",
    DeviceState.HELD: "held",
    DeviceState.PARTLY: "partly held",
    DeviceState.UNHEALTHY: "unhealthy",
    DeviceState.TAINTED: "tainted",
    DeviceState.PLUGIN: "with the device plugin",
}


@dataclasses.dataclass(frozen=True, slots=True)
class LegendEntry:
    """A claim on a node.

    Attributes:
        colour: 0 to `COLOURS` - 1.
        devices: indices of the devices that it holds.
        cores: cores that it holds of shared devices; 0 if it holds whole devices.
    """

    letter: str
    colour: int
    holding: HeldDevice
    devices: tuple[int, ...]
    cores: int


def entries(node: NodeMap) -> tuple[LegendEntry, ...]:
    """The claims of a node in the order of their devices."""
    held: dict[str, list[tuple[Device, HeldDevice]]] = {}
    for device in node.devices:
        for holding in device.holders:
            held.setdefault(holding.uid or holding.name, []).append((device, holding))
    return tuple(
        LegendEntry(
            LETTERS[number] if number < len(LETTERS) else MANY,
            number % COLOURS,
            pairs[0][1],
            tuple(device.index for device, _ in pairs),
            sum(holding.cores or 0 for _, holding in pairs),
        )
        for number, pairs in enumerate(held.values())
    )


def by_device(found: Iterable[LegendEntry]) -> dict[int, list[LegendEntry]]:
    """The claims that hold each device, by its index."""
    holders: dict[int, list[LegendEntry]] = {}
    for entry in found:
        for index in entry.devices:
            holders.setdefault(index, []).append(entry)
    return holders


def held(entry: LegendEntry) -> str:
    """What a claim holds: `devices 0-3`, `device 9, 1 core` or `the whole node`."""
    if entry.holding.whole_node:
        return "the whole node"
    devices = f"device{'' if len(entry.devices) == 1 else 's'} {ranges(entry.devices)}"
    return f"{devices}, {counted(entry.cores, 'core')}" if entry.cores else devices


def users(holding: HeldDevice, most: int = 3) -> str:
    """Who uses a claim: `pod a, b`, `no pod`, or `PodGroup g, pod a, b`."""
    groups = f"PodGroup {few(holding.groups, most)}, " if holding.groups else ""
    return groups + (f"pod {few(holding.pods, most)}" if holding.pods else "no pod")


def ranges(indices: Iterable[int]) -> str:
    """Indices as `0-3, 9`."""
    return ", ".join(number_ranges(indices))


def scoped(selector: str) -> str:
    """The colours as variables of what a selector selects."""
    return _style("colours.css").replace("SELECTOR", selector)


def _style(name: str) -> str:
    """A style sheet of this folder on one line."""
    return "".join(resources.files("commands.map").joinpath(name).read_text(encoding="utf-8").splitlines())


VARIABLES: Final = scoped(":root")
DRAWING: Final = _style("drawing.css")
"""Classes of the parts of a drawing."""
