"""`python docs/draw_topology.py`: draws docs/topology-*.svg and docs/concepts-*.svg from the instance catalogue.

Each cell that stands for a device has the device's id as text; cells of one colour share a value.
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from neuron.hardware import device_groups, windows
from neuron.hardware.instances import Catalogue, InstanceType
from neuron.hardware.windows import Line

FOLDER: Final = Path(__file__).parent
COLOURS: Final = ("#bfdbfe", "#bbf7d0", "#fde68a", "#fbcfe8", "#ddd6fe", "#a5f3fc", "#fed7aa", "#d9f99d")
ALONE: Final = "#f3f4f6"
"""Colour of a device that is in no window: it has a value of its own."""
_CELL: Final = 34
_INK: Final = "#374151"


def _svg(width: float, height: float, label: str, parts: Iterable[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif" role="img" aria-label="{label}">'
    )
    style = f"<style>.d {{stroke: {_INK}}} line {{stroke: {_INK}; stroke-width: 2}} .n {{text-anchor: middle}}</style>"
    background = f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>'
    return "\n".join([head, style, background, *parts, "</svg>", ""])


def _text(x: float, y: float, text: str, size: int = 12) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}">{text}</text>'


def _cell(x: float, y: float, text: str, fill: str, width: float = _CELL, height: float = _CELL) -> str:
    """A device or core with its number."""
    return (
        f'<rect class="d" x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height:.0f}" fill="{fill}"/>'
        f'<text class="n" x="{x + width / 2:.0f}" y="{y + height / 2 + 4:.0f}" font-size="12">{text}</text>'
    )


def _line(start: tuple[float, float], end: tuple[float, float]) -> str:
    return f'<line x1="{start[0]:.0f}" y1="{start[1]:.0f}" x2="{end[0]:.0f}" y2="{end[1]:.0f}"/>'


def _known(name: str) -> InstanceType:
    found = Catalogue().get(name)
    assert found is not None, name
    return found


def _line_of(name: str) -> Line:
    line = _known(name).line
    assert line is not None, name
    return line


# --- how devices are connected --------------------------------------------------------------------------------


def connections() -> str:
    """Torus, ring and chain."""
    parts = [
        _text(20, 24, "torus: trn1.32xlarge, trn2.48xlarge", 13),
        _text(280, 24, "ring: inf2.48xlarge", 13),
        _text(560, 24, "chain: inf2.24xlarge", 13),
        *_torus(30, 56, {}),
        *_ring(370, 160, _line_of("inf2.48xlarge")),
        *_chain(560, 130, _line_of("inf2.24xlarge")),
        _text(560, 200, "chain: inf1.6xlarge", 13),
        *_chain(560, 216, _line_of("inf1.6xlarge")),
    ]
    return _svg(860, 300, "Devices of a torus, a ring and a chain, and their connections", parts)


def _torus(x: float, y: float, fills: Mapping[int, str]) -> list[str]:
    """A 4 x 4 torus; lines that leave the drawing on one side come back on the other."""
    step, half = 50, _CELL / 2
    parts = []
    for number in range(4):
        middle = number * step + half
        parts.append(_line((x - 14, y + middle), (x + 3 * step + _CELL + 14, y + middle)))
        parts.append(_line((x + middle, y - 14), (x + middle, y + 3 * step + _CELL + 14)))
    for device in range(16):
        row, column = divmod(device, 4)
        parts.append(_cell(x + column * step, y + row * step, str(device), fills.get(device, COLOURS[0])))
    return parts


def _ring(x: float, y: float, line: Line) -> list[str]:
    """Devices on a circle around a point."""
    radius = 104
    places = [
        (x + radius * math.sin(turn), y - radius * math.cos(turn))
        for turn in (2 * math.pi * device / line.devices for device in range(line.devices))
    ]
    parts = [_line(places[device], places[(device + 1) % line.devices]) for device in range(line.devices)]
    parts += [
        _cell(left - _CELL / 2, top - _CELL / 2, str(device), COLOURS[0]) for device, (left, top) in enumerate(places)
    ]
    return parts


def _chain(x: float, y: float, line: Line) -> list[str]:
    step, half = 48, _CELL / 2
    parts = [_line((x + half, y + half), (x + (line.devices - 1) * step + half, y + half))]
    parts += [_cell(x + device * step, y, str(device), COLOURS[0]) for device in range(line.devices)]
    return parts


# --- groups -----------------------------------------------------------------------------------------------------


def groups() -> str:
    """The groups of 4 and 8 of a torus."""
    parts: list[str] = []
    for number, size in enumerate((4, 8)):
        ids = [device_groups.group_id("trn2.48xlarge", device, size) for device in range(16)]
        colours = dict(zip(dict.fromkeys(ids), COLOURS, strict=False))
        left = 30 + number * 280
        parts.append(_text(left - 10, 24, f"resource.aws.com/devicegroup{size}_id", 13))
        parts += _torus(left, 56, {device: colours[value] for device, value in enumerate(ids)})
    return _svg(560, 270, "Groups of 4 and of 8 devices of a torus", parts)


# --- windows ----------------------------------------------------------------------------------------------------


def published_windows() -> str:
    """What every device publishes for some sizes, on a ring and on a chain: one row for each attribute."""
    parts: list[str] = []
    y = 30.0
    for name, sizes in (("inf2.48xlarge", (3, 4, 5)), ("inf2.24xlarge", (2, 3))):
        line = _line_of(name)
        parts.append(_text(20, y, f"{name}: {'a ring' if line.wraps else 'a chain'} of {line.devices}", 13))
        y += 12
        for size in sizes:
            for shift in windows.published_shifts(line)[size]:
                attribute = windows.attribute(size, shift)
                parts.append(_text(20, y + 16, attribute))
                parts += _row(270, y, line, attribute)
                y += 28
        y += 34
    return _svg(720, y - 20, "Window attributes: devices of one colour have the same value", parts)


def _row(x: float, y: float, line: Line, attribute: str) -> list[str]:
    values = [windows.attributes(line, device)[attribute] for device in range(line.devices)]
    common = [value for value in dict.fromkeys(values) if values.count(value) > 1]
    fills = {value: COLOURS[place % len(COLOURS)] for place, value in enumerate(common)}
    return [
        _cell(x + device * 36, y, str(device), fills.get(value, ALONE), height=24)
        for device, value in enumerate(values)
    ]


# --- shares -----------------------------------------------------------------------------------------------------


def shares() -> str:
    """Nine cores of inf1.6xlarge, and what is left."""
    instance = _known("inf1.6xlarge")
    cores, devices = instance.cores_per_device or 0, instance.devices or 0
    wanted = 9
    whole, rest = divmod(wanted, cores)
    parts = [_text(20, 24, f"aws.amazon.com/neuroncore: {wanted} on {instance.name}", 13)]
    for device in range(devices):
        left = 20 + device * (cores * 36 + 24)
        parts.append(_text(left, 52, f"device {device}"))
        for core in range(cores):
            number = device * cores + core
            held = device < whole or (device == whole and core < rest)
            parts.append(_cell(left + core * 36, 60, str(number), COLOURS[0] if held else ALONE))
        kind = "whole device" if device < whole else f"share of {rest} core" if device == whole else "free"
        parts.append(_text(left, 114, kind))
    last = cores * devices - 1
    parts.append(_text(20, 140, f"NEURON_RT_VISIBLE_CORES=0-{wanted - 1}; cores {wanted} to {last} are left."))
    return _svg(20 + devices * (cores * 36 + 24), 156, "Two whole devices and a share of the next one", parts)


# --- cores and UltraServers -----------------------------------------------------------------------------------


def logical_cores() -> str:
    """The cores of a trn2 device with each logical NeuronCore configuration."""
    known = _known("trn2.48xlarge")
    cores, height = known.cores_per_device or 0, 70
    parts: list[str] = []
    for row, size in enumerate(known.logical_neuron_cores):
        top = 20 + row * (height + 34)
        default = " (default)" if size == known.default_logical_neuron_core else ""
        parts.append(_text(20, top + 14, f"LNC {size}{default}: {cores // size} logical cores", 13))
        for core in range(cores):
            logical = core // size
            parts.append(_cell(20 + core * 60, top + 24, f"core {core}", COLOURS[logical % len(COLOURS)], 60, 30))
        for logical in range(cores // size):
            left = 20 + logical * size * 60
            parts.append(_text(left + 4, top + height, f"logical {logical}", 11))
    return _svg(40 + cores * 60, 40 + 2 * (height + 34), "Physical and logical cores of one trn2 device", parts)


def ultraserver() -> str:
    """The nodes of an UltraServer, and the sets of its modes."""
    sizes = _known("trn2u.48xlarge").ultraserver_nodes
    nodes, cell = max(sizes), 22
    width = 4 * cell + 40
    parts = [_text(20, 24, "UltraServer of four trn2u.48xlarge nodes", 13)]
    for node in range(nodes):
        left = 20 + node * (width + 20)
        parts.append(f'<rect class="d" x="{left}" y="36" width="{width}" height="{4 * cell + 44}" fill="#ffffff"/>')
        parts.append(_text(left + 8, 52, f"node {node}"))
        parts += [
            _cell(left + 20 + (device % 4) * cell, 62 + (device // 4) * cell, str(device), COLOURS[0], cell, cell)
            for device in range(16)
        ]
        if node:
            parts += [_line((left - 20, 73 + row * cell), (left, 73 + row * cell)) for row in range(4)]
    for row, size in enumerate(sorted(sizes, reverse=True)):
        top = 196 + row * 26
        for first in range(0, nodes, size):
            left, right = 20 + first * (width + 20), 20 + (first + size - 1) * (width + 20) + width
            parts.append(_line((left, top), (right, top)))
        noun = "node" if size == 1 else "nodes"
        parts.append(_text(20, top - 5, f"mode {size}: sets of {size} {noun}", 11))
    return _svg(20 + nodes * (width + 20), 270, "Four nodes of an UltraServer, with 16 devices each", parts)


DRAWINGS: Final = {
    "topology-connections.svg": connections,
    "topology-groups.svg": groups,
    "topology-windows.svg": published_windows,
    "topology-shares.svg": shares,
    "concepts-cores.svg": logical_cores,
    "concepts-ultraserver.svg": ultraserver,
}


def main() -> None:
    """Write the drawings."""
    for name, draw in DRAWINGS.items():
        (FOLDER / name).write_text(draw())


if __name__ == "__main__":
    main()
