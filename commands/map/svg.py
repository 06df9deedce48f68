"""Nodes of the device map as one SVG picture, which follows the reader's light or dark scheme."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from commands.devices.devices import Device, DeviceMap, DeviceState, NodeMap
from commands.map.drawing import (
    DRAWING,
    MANY,
    MARKS,
    VARIABLES,
    WORDS,
    Geometry,
    LegendEntry,
    Wrap,
    by_device,
    entries,
    geometry,
    held,
    ranges,
    users,
)
from runtime.console import printable

WIDTH: Final = 64
HEIGHT: Final = 44
GAP_X: Final = 26
GAP_Y: Final = 22
STUB: Final = 14
_PADDING: Final = 24
_HEADER: Final = 58
_LINE: Final = 20
_COLUMNS: Final = 3
_CHARACTER: Final = 7.6
"""Width of a letter of the text lines, in pixels; on the wide side."""
_WIDEST: Final = 64
"""Letters of a text line; a longer one is cut."""

_STYLE: Final = (
    VARIABLES + "text{font:13px system-ui,sans-serif;fill:var(--ink)}.name{font-weight:600;font-size:16px}"
    ".faint{fill:var(--faint)}.paper{fill:var(--paper)}" + DRAWING
)


@dataclasses.dataclass(frozen=True, slots=True)
class Box:
    """A part of the picture: its elements from the origin, and its size."""

    elements: tuple[str, ...]
    width: int
    height: int


def as_svg(found: DeviceMap) -> str:
    """A picture of the nodes, three beside each other."""
    boxes = [_node(node) for node in found.nodes] or [Box((_text(0, 16, found.nothing),), 420, 20)]
    parts: list[str] = []
    top, widest = _PADDING, 0
    for row in _rows(boxes):
        left = _PADDING
        for box in row:
            parts.append(f'<g transform="translate({left} {top})">{"".join(box.elements)}</g>')
            left += box.width + _PADDING
        widest = max(widest, left)
        top += max(box.height for box in row) + _PADDING
    title = "Neuron devices of " + ", ".join(node.name for node in found.nodes[:_COLUMNS])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {widest} {top}" width="{widest}" height="{top}"'
        f' role="img" aria-label={_attribute(title)}>'
        f'<style>{_STYLE}</style><rect class="paper" width="{widest}" height="{top}"/>{"".join(parts)}</svg>\n'
    )


def _rows(boxes: Sequence[Box]) -> Iterator[Sequence[Box]]:
    for start in range(0, len(boxes), _COLUMNS):
        yield boxes[start : start + _COLUMNS]


def _node(node: NodeMap) -> Box:
    drawn, found = geometry(node), entries(node)
    connected = f"largest connected set free: {len(node.largest_free)}" if node.largest_free else "no device is free"
    kind = f"{node.instance_type or 'unknown type'}" + (f", {node.topology.value}" if node.topology else "")
    lines = [f"{kind}: {len(node.free)} of {len(node.devices)} devices free", connected + _note(node)]
    if node.on_plugin:
        lines = [f"{kind}: {len(node.devices)} devices with the device plugin", "not moved to the driver yet"]
    elements = [_text(0, 16, node.name, "name")]
    elements += (_text(0, 36 + 18 * number, line, "faint") for number, line in enumerate(lines))
    header = _HEADER + STUB
    elements.append(f'<g transform="translate({STUB} {header})">{"".join(picture(node, drawn, found))}</g>')
    height = header + drawn.rows * (HEIGHT + GAP_Y) - GAP_Y + STUB
    legend = [*(_entry(entry) for entry in found), *states_of(node)]
    for letter, classes, text in legend:
        elements.append(
            f'<g class="swatch {classes}"><rect y="{height + 7}" width="24" height="18" rx="4"/>'
            f'<text x="12" y="{height + 21}" text-anchor="middle">{escape(letter)}</text></g>'
            + _text(34, height + 21, text)
        )
        height += _LINE + 4
    texts = [node.name, *lines, *(f"     {text}" for _, _, text in legend)]
    drawing = drawn.columns * (WIDTH + GAP_X) - GAP_X + 2 * STUB
    return Box(tuple(elements), max(drawing, int(max(map(len, map(_cut, texts))) * _CHARACTER)), height)


def _note(node: NodeMap) -> str:
    return f"; {node.closed}" if node.closed else ""


def _entry(entry: LegendEntry) -> tuple[str, str, str]:
    used = f", {users(entry.holding, 2)}" if entry.holding.pods or entry.holding.groups else ""
    return entry.letter, f"c{entry.colour}", f"{entry.holding.name}: {held(entry)}{used}"


def states_of(node: NodeMap) -> Iterator[tuple[str, str, str]]:
    """Mark, class and text of the states that the node's devices have."""
    if node.largest_free:
        yield MARKS[DeviceState.FREE], "fits", f"largest connected set that is free: {ranges(node.largest_free)}"
    for state, mark in MARKS.items():
        members = [device for device in node.devices if device.state is state and device.index not in node.largest_free]
        if members:
            faults = sorted({device.fault for device in members if device.fault})
            why = f" ({', '.join(faults)})" if faults else ""
            yield mark, state.value, f"{WORDS[state]}: {ranges(device.index for device in members)}{why}"


def picture(node: NodeMap, drawn: Geometry, found: Iterable[LegendEntry]) -> Iterator[str]:
    """The elements of one node's drawing."""
    for line in drawn.lines:
        first, second = drawn.cells[line.first], drawn.cells[line.second]
        for x1, y1, x2, y2 in segments(first, second, line.wrap):
            kind = "link wrap" if line.wrap is not Wrap.NONE else "link"
            yield f'<path class="{kind}" d="M{x1} {y1}L{x2} {y2}"/>'
    holders = by_device(found)
    for device in node.devices:
        fits = device.index in node.largest_free
        yield _device(device, drawn.cells[device.index], holders.get(device.index, []), fits=fits)


def segments(first: tuple[int, int], second: tuple[int, int], wrap: Wrap) -> list[tuple[int, int, int, int]]:
    """The lines of one connection: between the devices, or out of both."""
    (x1, y1), (x2, y2) = sorted((_centre(first), _centre(second)))
    if wrap is Wrap.ROW:
        outward = WIDTH // 2 + STUB
        return [(x1 - outward, y1, x1, y1), (x2, y2, x2 + outward, y2)]
    if wrap is Wrap.COLUMN:
        outward = HEIGHT // 2 + STUB
        return [(x1, y1 - outward, x1, y1), (x2, y2, x2, y2 + outward)]
    return [(x1, y1, x2, y2)]


def _centre(cell: tuple[int, int]) -> tuple[int, int]:
    column, row = cell
    return column * (WIDTH + GAP_X) + WIDTH // 2, row * (HEIGHT + GAP_Y) + HEIGHT // 2


def mark_of(device: Device, holders: Sequence[LegendEntry]) -> str:
    """The letter or sign of a device."""
    return MARKS[device.state] if not holders else MANY if len(holders) > 1 else holders[0].letter


def classes_of(device: Device, holders: Sequence[LegendEntry], *, fits: bool) -> str:
    """The classes of a device (`style`); `fits`: it is in the largest free connected set."""
    classes = ["device", device.state.value]
    classes += [f"c{holders[0].colour}"] if holders else []
    classes += ["fault"] if device.fault else []
    classes += ["fits"] if fits else []
    return " ".join(classes)


def title_of(device: Device, holders: Sequence[LegendEntry]) -> str:
    """One sentence about a device, for tooltips and screen readers."""
    by = f" by {', '.join(entry.holding.name for entry in holders)}" if holders else ""
    cores = f", {device.free_cores} of {device.cores} cores left" if device.state is DeviceState.PARTLY else ""
    fault = f", unhealthy: {device.fault}" if device.fault else ""
    return f"device {device.index}: {WORDS[device.state]}{by}{cores}{fault}"


def _device(device: Device, cell: tuple[int, int], holders: Sequence[LegendEntry], *, fits: bool) -> str:
    column, row = cell
    x, y = column * (WIDTH + GAP_X), row * (HEIGHT + GAP_Y)
    return (
        f'<g class="{classes_of(device, holders, fits=fits)}"><title>{_clean(title_of(device, holders))}</title>'
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="7"/>'
        f'<text class="index" x="{x + 14}" y="{y + 16}">{device.index}</text>'
        f'<text x="{x + WIDTH // 2 + 4}" y="{y + HEIGHT // 2 + 8}">{escape(mark_of(device, holders))}</text></g>'
    )


def _text(x: int, y: int, text: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x}" y="{y}">{_clean(_cut(text))}</text>'


def _cut(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"


def _clean(text: str) -> str:
    """Escaped, and without characters that XML does not allow."""
    return escape(printable(text, "utf-8"))


def _attribute(text: str) -> str:
    return quoteattr(printable(text, "utf-8"))
