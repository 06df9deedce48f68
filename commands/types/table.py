"""The instance catalogue as a table with numbered sources, and as JSON. Pure."""

from collections.abc import Sequence
from typing import Final

from neuron.hardware.instances import InstanceType
from neuron.hardware.sources import FIGURES, NOT_STATED, Confidence, Source
from runtime.text import aligned

UNKNOWN: Final = "unknown"
_TITLES: Final = {
    "devices": "DEVICES",
    "cores": "CORES",
    "lnc": "LNC",
    "memory": "MEMORY",
    "topology": "TOPOLOGY",
    "groups": "GROUPS",
    "ultraserver": "ULTRA",
}
_LONGER: Final = {"cores": "CORES/DEVICE", "memory": "MEMORY/DEVICE", "ultraserver": "ULTRASERVER"}
"""Titles of the wide table."""
_MARKS: Final = {Confidence.HIGH: "", Confidence.MEDIUM: "*", Confidence.LOW: "?"}
_NOT_OFFERED: Final = "Names that AWS does not offer: samples, development, one table only"


def as_text(types: Sequence[InstanceType]) -> str:
    """One line of at most 80 columns for each type, those that AWS offers first; a mark is behind a figure in doubt.

    Names of policy files can be longer.
    """
    groups = [[each for each in types if each.offered is offered] for offered in (True, False)]
    rows = [["TYPE", *_TITLES.values()]]
    rows += [_marked(entry) for group in groups for entry in group]
    lines = aligned(rows)
    if groups[1]:
        lines[1 + len(groups[0]) : 1 + len(groups[0])] = [*([""] if groups[0] else []), f"{_NOT_OFFERED}:"]
    shown = "".join(cell[-1] for row in rows[1:] for cell in row)
    lines += ["", "CORES and MEMORY: of one device. GROUPS: connected sets. ULTRA: nodes of a set."]
    if any(mark and mark in shown for mark in _MARKS.values()):
        lines.append("* as for the generation, or one table alone; ? sources contradict, or none says.")
    return "\n".join([*lines, "The source of each figure: -o wide"]) + "\n"


def _marked(entry: InstanceType) -> list[str]:
    shown = _figures(entry)
    cells = [entry.name]
    for figure in _TITLES:
        text = _text(shown[figure])
        cells.append(text if text == UNKNOWN else text + _MARKS[_source(entry, figure).confidence])
    return cells


def as_wide_text(types: Sequence[InstanceType]) -> str:
    """One line for each type. The number behind a figure is that of its source, which is listed below."""
    numbers: dict[Source, int] = {}
    rows = [["TYPE", *(_TITLES | _LONGER).values()]]
    for entry in sorted(types, key=lambda each: not each.offered):
        shown = _figures(entry)
        cells = [entry.name, *(_text(shown[figure]) for figure in _TITLES)]
        for place, figure in enumerate(("name", *_TITLES)):
            number = numbers.setdefault(_source(entry, figure), len(numbers) + 1)
            cells[place] += f" [{number}]"
        rows.append(cells)
    listed = [f"[{number}] {source.confidence.value}: {source.text}" for source, number in numbers.items()]
    return "\n".join([*aligned(rows), "", "Sources, and how sure a figure is by them:", *listed]) + "\n"


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
