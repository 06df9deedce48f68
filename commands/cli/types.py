"""`neuron-dra types`: the instance catalogue with its sources, and what autoscalers need to scale from a claim."""

import importlib.util
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click
import yaml

from commands.cli.inputs import load_settings, setting_options
from commands.cli.streams import output_option, say, write
from neuron.findings import did_you_mean, quoted
from neuron.hardware.instances import Catalogue, InstanceType
from neuron.hardware.sources import FIGURES, NOT_STATED, Confidence, Source
from runtime.text import aligned, number_ranges

if TYPE_CHECKING:
    from commands.types import NodeTemplate


_DRIVER: Final = "2.25.4.0"
_NO_YAML: Final = ("text", "wide", "json")


@click.command(name="types")
@click.argument("names", nargs=-1, metavar="[TYPE]...")
@output_option(
    "text",
    "wide",
    "json",
    "resourceslices",
    "karpenter",
    "cluster-autoscaler",
    told="text: a table, types that AWS offers first; wide: with the source of each figure; json: for programs;"
    " resourceslices: what a node of each type will publish; karpenter: the same as a DRAConfig of"
    " Karpenter's KWOK driver; cluster-autoscaler: annotations of a"
    " MachineDeployment, and the counts with which a group scales from zero.",
)
@click.option("--offered", is_flag=True, help="Only types that AWS offers.")
@click.option(
    "--node", default="", metavar="NAME", help="With resourceslices: name of the node. Default: from the type's name."
)
@click.option(
    "--kernel-driver",
    default=_DRIVER,
    show_default=True,
    metavar="VERSION",
    help="Version of the Neuron kernel driver that the devices show.",
)
@setting_options("policies", "kubernetes_version")
def types(
    names: tuple[str, ...],
    output: str,
    *,
    offered: bool,
    node: str,
    kernel_driver: str,
    policies: str | None,
    kubernetes_version: str | None,
) -> None:
    """Print the instance types that neuron-dra knows: each figure with its source, and how sure it is.

    A TYPE is the name of an instance type or of a family; without any, all types
    are printed.

    Exit codes: 0; 2 if a type is not known, or the policy files cannot be used.
    """
    options, found = load_settings({"policies": policies, "kubernetes_version": kubernetes_version})
    entries = _chosen(found.catalogue if found is not None else Catalogue(), names, offered=offered)
    if output in _NO_YAML:
        if output == "json":
            write(json.dumps(as_objects(entries), indent=2) + "\n")
        else:
            write(as_text(entries) if output == "text" else as_wide_text(entries))
        return
    if node and len(entries) != 1:
        raise click.UsageError("--node names one node: give one TYPE.")
    write(_generated(output, _nodes(entries, node, kernel_driver, options.kubernetes_version)))


def _chosen(catalogue: Catalogue, wanted: Sequence[str], *, offered: bool) -> list[InstanceType]:
    """The types to print. Raises click.UsageError for a name that the catalogue does not have."""
    for name in wanted:
        if name not in catalogue and name not in catalogue.families():
            hint = did_you_mean(name, catalogue.suggestions(name))
            raise click.UsageError(f"There is no instance type {quoted(name)} in the catalogue.{hint}")
    chosen = [entry for entry in catalogue if not wanted or entry.name in wanted or entry.family in wanted]
    return [entry for entry in chosen if entry.offered or not offered]


def _nodes(entries: Sequence[InstanceType], node: str, kernel_driver: str, kubernetes: str) -> list["NodeTemplate"]:
    """A node of each type; types whose number of devices is not known are left out, with a line on stderr."""
    if importlib.util.find_spec("kubeletplugin") is None:
        raise click.UsageError(
            "the code of the driver, which describes the nodes, is not installed here (the image of the webhook leaves"
            " it out): run this command where the whole package is installed."
        )
    from commands.types import NodeTemplate

    made = []
    for entry in entries:
        if entry.devices is None:
            say(f"{entry.name} is left out: it is not known how many devices it has.")
            continue
        made.append(NodeTemplate(entry, node or entry.name.replace(".", "-"), kernel_driver, kubernetes))
    return made


def _generated(output: str, nodes: Sequence["NodeTemplate"]) -> str:
    from commands import types as published

    if output == "karpenter":
        return _yaml([published.karpenter_config(nodes)])
    if output == "resourceslices":
        return _yaml([each for node in nodes for each in published.resource_slices(node)])
    texts = []
    for node in nodes:
        entry = node.entry
        seen = published.slices_of_annotations(entry, node.name)
        counts = dict(published.claims_of(entry))
        zero = [count for count, spec in counts.items() if published.fits(spec, seen)]
        patch = {"metadata": {"annotations": dict(published.capacity_annotations(entry))}}
        comment = f"# {entry.name}: a group without nodes starts one for pods with {_counts(zero)}."
        if others := [count for count in counts if count not in zero]:
            comment += f" For {_counts(others)}, keep one node in the group."
        texts.append(f"---\n{comment}\n{yaml.safe_dump(patch, sort_keys=False)}")
    return "".join(texts)


def _yaml(objects: Sequence[object]) -> str:
    """YAML documents. The devices share values, which would become anchors."""
    return yaml.safe_dump_all(json.loads(json.dumps(objects)), sort_keys=False, explicit_start=True)


def _counts(counts: Sequence[int]) -> str:
    if not counts:
        return "no count of devices"
    return f"{', '.join(number_ranges(counts))} device{'' if list(counts) == [1] else 's'}"


# --- the catalogue as a table with numbered sources, and as JSON ------------------------------------------------------


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
