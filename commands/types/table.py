"""The instance catalogue as a table with numbered sources, and as JSON. Pure."""

from collections.abc import Sequence
from typing import Final

from neuron.hardware.instances import InstanceType
from neuron.hardware.sources import FIGURES, NOT_STATED, Source

UNKNOWN: Final = "unknown"
_TITLES: Final = {
    "devices": "DEVICES",
    "cores": "CORES/DEVICE",
    "lnc": "LNC",
    "memory": "MEMORY/DEVICE",
    "topology": "TOPOLOGY",
    "groups": "GROUPS",
    "ultraserver": "ULTRASERVER",
}
_GAP: Final = "  "


def as_text(types: Sequence[InstanceType]) -> str:
    """One line for each type. The number behind a figure is that of its source, which is listed below."""
    numbers: dict[Source, int] = {}
    rows = [["TYPE", *_TITLES.values()]]
    for entry in types:
        shown = _figures(entry)
        cells = [entry.name, *(_text(shown[figure]) for figure in _TITLES)]
        for place, figure in enumerate(("name", *_TITLES)):
            number = numbers.setdefault(_source(entry, figure), len(numbers) + 1)
            cells[place] += f" [{number}]"
        rows.append(cells)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [_GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    listed = [f"[{number}] {source.confidence.value}: {source.text}" for source, number in numbers.items()]
    return "\n".join([*lines, "", "Sources, and how sure a figure is by them:", *listed]) + "\n"


def as_objects(types: Sequence[InstanceType]) -> list[dict[str, object]]:
    """Each type as an object: null is a figure that is not known."""
    return [
        {
            "name": entry.name,
            "family": entry.family,
            "offered": entry.offered,
            **{key: value for key, value in _figures(entry).items() if key != "lnc"},
            "logicalNeuronCores": list(entry.logical_neuron_cores),
            "defaultLogicalNeuronCore": entry.default_logical_neuron_core,
            "deviceCounts": None if entry.devices is None else list(entry.counts) if not entry.consecutive else "any",
            "sources": {
                figure: {"source": _source(entry, figure).text, "confidence": _source(entry, figure).confidence.value}
                for figure in FIGURES
            },
        }
        for entry in types
    ]


def _source(entry: InstanceType, figure: str) -> Source:
    return entry.sources.get(figure, NOT_STATED)


def _figures(entry: InstanceType) -> dict[str, object]:
    sizes = entry.ultraserver_nodes
    return {
        "devices": entry.devices,
        "cores": entry.cores_per_device,
        "lnc": "/".join(map(str, entry.logical_neuron_cores)) or None,
        "memory": None if entry.memory_gib is None else f"{entry.memory_gib}Gi",
        "topology": entry.topology.value,
        "groups": list(entry.groups) if entry.groups_known else None,
        "ultraserver": None if sizes is None else list(sizes),
    }


def _text(value: object) -> str:
    if value is None:
        return UNKNOWN
    return ",".join(map(str, value)) or "-" if isinstance(value, list) else str(value)
