"""Line charts as SVG, both axes logarithmic."""

import math
from collections.abc import Mapping, Sequence
from typing import Final
from xml.sax.saxutils import escape

Line = Sequence[tuple[float, float]]
"""Points (x, y), both above 0."""

_COLOURS: Final = ("#2563eb", "#d97706", "#0d9488", "#dc2626", "#7c3aed", "#4b5563")
_WIDTH: Final = 560
_HEIGHT: Final = 300
_LEFT: Final = 64
_TOP: Final = 34
_STYLE: Final = 'font-size="12" font-family="sans-serif"'


def _decades(values: Sequence[float]) -> range:
    """Exponents of 10 that enclose the values."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return range(low, max(high, low + 1) + 1)


def _tick(exponent: int) -> str:
    if exponent < 0:
        return f"{10.0**exponent:g}"
    return f"{10**exponent:,}"


def chart(title: str, x_label: str, y_label: str, lines: Mapping[str, Line]) -> str:
    """One chart; the legend is below it."""
    points = [point for line in lines.values() for point in line]
    across, up = _decades([x for x, _ in points]), _decades([y for _, y in points])
    bottom, right = _TOP + _HEIGHT, _LEFT + _WIDTH

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            _LEFT + _WIDTH * (math.log10(x) - across[0]) / (across[-1] - across[0]),
            bottom - _HEIGHT * (math.log10(y) - up[0]) / (up[-1] - up[0]),
        )

    height = bottom + 52 + 18 * len(lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right + 20} {height}" {_STYLE} role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{right + 20}" height="{height}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="18" font-size="14">{escape(title)}</text>',
    ]
    for exponent in up:
        _, y = place(10.0 ** across[0], 10.0**exponent)
        parts.append(f'<line x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_tick(exponent)}</text>')
    for exponent in across:
        x, _ = place(10.0**exponent, 10.0 ** up[0])
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{_tick(exponent)}</text>')
    parts.append(f'<text x="{right}" y="{bottom + 34}" text-anchor="end">{escape(x_label)}</text>')
    parts.append(f'<text x="{_LEFT + 4}" y="{_TOP + 12}">{escape(y_label)}</text>')
    for number, (name, line) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        places = [place(x, y) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        y = bottom + 52 + 18 * number
        parts.append(f'<rect x="{_LEFT}" y="{y - 10}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{_LEFT + 20}" y="{y}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])
