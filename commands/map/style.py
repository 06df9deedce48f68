"""Colours of the drawings, for SVG and page, light and dark. Text on every fill has a contrast of at least 4.5 : 1."""

from typing import Final

_LIGHT: Final = {
    "paper": "#ffffff",
    "ink": "#1b1f24",
    "faint": "#57606a",
    "line": "#8c959f",
    "soft": "#f3f5f7",
    "edge": "#d0d7de",
    "accent": "#0550ae",
    "free": "#ffffff",
    "fits": "#d2f4d9",
    "bad": "#b3261e",
    "on-bad": "#ffffff",
    "warn": "#ffe08a",
    "plugin": "#d5dae0",
    "c0": "#8ec5ff",
    "c1": "#ffb86b",
    "c2": "#cbb0f7",
    "c3": "#7fe0c3",
    "c4": "#f7a8c9",
    "c5": "#e3d26f",
    "c6": "#b7cf9f",
    "c7": "#d9bba5",
}
_DARK: Final = {
    "paper": "#0d1117",
    "ink": "#e6edf3",
    "faint": "#9da7b1",
    "line": "#6e7681",
    "soft": "#161b22",
    "edge": "#30363d",
    "accent": "#79b8ff",
    "free": "#0d1117",
    "fits": "#12401f",
    "bad": "#ff8a80",
    "on-bad": "#1b1f24",
    "warn": "#6b5300",
    "plugin": "#3a424b",
    "c0": "#1f5fa8",
    "c1": "#8f4f00",
    "c2": "#6b3fb0",
    "c3": "#0b6b54",
    "c4": "#a8376d",
    "c5": "#6b5d00",
    "c6": "#47632f",
    "c7": "#714b34",
}


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())


def scoped(selector: str) -> str:
    """The colours as variables of what a selector selects."""
    return (
        f"{selector}{{color-scheme:light dark;{_variables(_LIGHT)}}}"
        f"@media(prefers-color-scheme:dark){{{selector}{{{_variables(_DARK)}}}}}"
    )


VARIABLES: Final = scoped(":root")

DRAWING: Final = (
    ".link{stroke:var(--line);stroke-width:2;fill:none}.wrap{stroke-dasharray:3 3}"
    ".device>rect,.swatch>rect{stroke:var(--line);stroke-width:1.5;fill:var(--free)}"
    ".device text{fill:var(--ink);text-anchor:middle;font:600 15px ui-monospace,Menlo,Consolas,monospace}"
    ".device .index{font:11px ui-monospace,Menlo,Consolas,monospace}"
    ".unhealthy>rect{fill:var(--bad)}.unhealthy>text{fill:var(--on-bad)}"
    ".tainted>rect{fill:var(--warn)}.plugin>rect{fill:var(--plugin)}.fits>rect{fill:var(--fits)}"
    ".fault>rect{stroke:var(--bad);stroke-width:4}"
    ".partly>rect{stroke-dasharray:6 3}" + "".join(f".c{number}>rect{{fill:var(--c{number})}}" for number in range(8))
)
"""Classes of the parts of a drawing."""
