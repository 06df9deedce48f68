"""The device map as one HTML page without external resources, which `page.js` draws from the data in it, and as SVG."""

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from typing import Final
from xml.sax.saxutils import escape, quoteattr

import orjson

from commands.cluster.snapshot import ClusterSnapshot
from commands.devices.devices import Device, DeviceMap, DeviceState, NodeMap, summarise
from commands.map import drawing
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
from commands.map.text import in_order, note, type_summary, ultraserver
from commands.present.html import embedded, escaped, source_of
from runtime.console import printable

Json = dict[str, object]

_FILES: Final = resources.files("commands.map")
SCRIPT: Final = (_FILES / "page.js").read_text(encoding="utf-8")
STYLE: Final = drawing.VARIABLES + drawing.DRAWING + (_FILES / "page.css").read_text(encoding="utf-8")


POLICY: Final = (
    f"default-src 'none'; script-src {source_of(SCRIPT)}; style-src {source_of(STYLE)}; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'"
)
"""Content-Security-Policy: only the page's own script and style run, whatever names the cluster has. The image is the
empty icon, without which browsers request one."""

_BODY: Final = (_FILES / "page.html").read_text(encoding="utf-8")


def as_page(found: DeviceMap, seen: ClusterSnapshot, interval: float | None = None) -> str:
    """The page.

    Args:
        interval: seconds between requests for new data; None: a page that does not change.
    """
    live = f' data-interval="{interval:g}"' if interval else ""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="color-scheme" content="light dark">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escaped(POLICY)}">\n'
        f'<title>Neuron devices</title>\n<link rel="icon" href="data:,">\n<style>{STYLE}</style>\n</head>\n'
        f"<body{live}>\n{_BODY}{embedded(orjson.dumps(data(found, seen)))}\n"
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def data(found: DeviceMap, seen: ClusterSnapshot, stale: str = "") -> Json:
    """What the page draws; `stale` says why it is not current."""
    layouts: dict[str, Json] = {}
    return {
        "cluster": seen.address,
        "time": seen.taken.isoformat(timespec="seconds"),
        "stale": stale,
        "problems": list(found.problems),
        "types": [type_summary(each) for each in summarise(found.nodes)],
        "nodes": [_node(node, layouts) for node in in_order(found.nodes)],
        "layouts": layouts,
        "strays": [f"{stray.holding.name}: {stray.pool}/{stray.device}" for stray in found.strays],
    }


def _node(node: NodeMap, layouts: dict[str, Json]) -> Json:
    found = entries(node)
    numbers = {entry.holding.uid or entry.holding.name: number for number, entry in enumerate(found)}
    holders = by_device(found)
    topology = f", {node.topology.value}" if node.topology is not None else ""
    fits = f", {len(node.largest_free)} connected" if node.largest_free else ""
    free = f"{len(node.free)} of {len(node.devices)} free{fits}"
    if node.on_plugin:
        free = f"{len(node.devices)} with the device plugin"
    devices = [_device(node, device, holders.get(device.index, []), numbers) for device in node.devices]
    place = node.ultraserver
    searched = [node.name, node.instance_type, *((place.server, place.workload) if place else ())]
    searched += [text for entry in found for text in (entry.holding.name, *entry.holding.pods, *entry.holding.groups)]
    searched += node.plugin.pods if node.plugin else ()
    return {
        "name": node.name,
        "type": node.instance_type,
        "headline": f"{node.instance_type or 'unknown type'}{topology}: {free}",
        "note": note(node),
        "place": ultraserver(node),
        "closed": node.closed,
        "onPlugin": node.on_plugin,
        "fits": node.largest_free,
        "whole": node.open and len(node.free) == len(node.devices),
        "server": place.server if place else "",
        "size": place.size if place else 0,
        "layout": _layout(node, layouts),
        "claims": [_claim(entry) for entry in found],
        "devices": devices,
        "states": [{"mark": mark, "class": kind, "text": text} for mark, kind, text in states_of(node)],
        "text": " ".join(searched).lower(),
    }


def _claim(entry: LegendEntry) -> Json:
    holding = entry.holding
    return {
        # A claim's uid has no blanks; its name has none, either.
        "id": holding.uid or holding.name,
        "name": holding.name,
        "pods": holding.pods,
        "letter": entry.letter,
        "colour": entry.colour,
        "text": f"{holding.name}: {held(entry)}, {users(holding)}",
    }


def _device(node: NodeMap, device: Device, holders: list[LegendEntry], numbers: dict[str, int]) -> Json:
    return {
        "index": device.index,
        "state": WORDS[device.state] + (f", unhealthy: {device.fault}" if device.fault else ""),
        "fault": device.fault,
        "mark": mark_of(device, holders),
        "classes": classes_of(device, holders, fits=device.index in node.largest_free),
        "title": title_of(device, holders),
        "claims": [numbers[entry.holding.uid or entry.holding.name] for entry in holders],
        "taints": [str(taint) for taint in device.taints],
    }


def _layout(node: NodeMap, layouts: dict[str, Json]) -> str:
    """The drawing's key: nodes of one type share it."""
    drawn = geometry(node)
    key = hashlib.sha256(repr((list(drawn.cells.values()), drawn.lines)).encode()).hexdigest()[:12]
    if key not in layouts:
        width, height = WIDTH + GAP_X, HEIGHT + GAP_Y
        layouts[key] = {
            "width": drawn.columns * width - GAP_X + 2 * STUB,
            "height": drawn.rows * height - GAP_Y + 2 * STUB,
            "cell": [WIDTH, HEIGHT],
            "cells": [[STUB + column * width, STUB + row * height] for column, row in drawn.cells.values()],
            "lines": [
                [*(each + STUB for each in segment), int(line.wrap is not Wrap.NONE)]
                for line in drawn.lines
                for segment in segments(drawn.cells[line.first], drawn.cells[line.second], line.wrap)
            ],
        }
    return key


# --- nodes as one SVG picture, which follows the reader's light or dark scheme ----------------------------------------


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
    boxes = [_node_box(node) for node in found.nodes] or [Box((_text(0, 16, found.nothing),), 420, 20)]
    parts: list[str] = []
    top, widest = _PADDING, 0
    for start in range(0, len(boxes), _COLUMNS):
        left, row = _PADDING, boxes[start : start + _COLUMNS]
        for box in row:
            parts.append(f'<g transform="translate({left} {top})">{"".join(box.elements)}</g>')
            left += box.width + _PADDING
        widest = max(widest, left)
        top += max(box.height for box in row) + _PADDING
    title = "Neuron devices of " + ", ".join(node.name for node in found.nodes[:_COLUMNS])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {widest} {top}" width="{widest}" height="{top}"'
        f' role="img" aria-label={quoteattr(printable(title, "utf-8"))}>'
        f'<style>{_STYLE}</style><rect class="paper" width="{widest}" height="{top}"/>{"".join(parts)}</svg>\n'
    )


def _node_box(node: NodeMap) -> Box:
    drawn, found = geometry(node), entries(node)
    connected = f"largest connected set free: {len(node.largest_free)}" if node.largest_free else "no device is free"
    kind = f"{node.instance_type or 'unknown type'}" + (f", {node.topology.value}" if node.topology else "")
    lines = [
        f"{kind}: {len(node.free)} of {len(node.devices)} devices free",
        connected + (f"; {node.closed}" if node.closed else ""),
    ]
    if node.on_plugin:
        lines = [f"{kind}: {len(node.devices)} devices with the device plugin", "not moved to the driver yet"]
    elements = [_text(0, 16, node.name, "name")]
    elements += (_text(0, 36 + 18 * number, line, "faint") for number, line in enumerate(lines))
    header = _HEADER + STUB
    elements.append(f'<g transform="translate({STUB} {header})">{"".join(picture(node, drawn, found))}</g>')
    height = header + drawn.rows * (HEIGHT + GAP_Y) - GAP_Y + STUB
    legend = []
    for entry in found:
        used = f", {users(entry.holding, 2)}" if entry.holding.pods or entry.holding.groups else ""
        legend.append((entry.letter, f"c{entry.colour}", f"{entry.holding.name}: {held(entry)}{used}"))
    legend += states_of(node)
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
        yield _drawn(device, drawn.cells[device.index], holders.get(device.index, []), fits=fits)


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


def _drawn(device: Device, cell: tuple[int, int], holders: Sequence[LegendEntry], *, fits: bool) -> str:
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
