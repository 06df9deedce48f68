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
from runtime.text import number_ranges

if TYPE_CHECKING:
    from commands.types.published import NodeTemplate

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

    A TYPE is the name of an instance type; without any, all types are printed.

    Exit codes: 0; 2 if a type is not known, or the policy files cannot be used.
    """
    options, found = load_settings({"policies": policies, "kubernetes_version": kubernetes_version})
    entries = _chosen(found.catalogue if found is not None else Catalogue(), names, offered=offered)
    if output in _NO_YAML:
        from commands.types import table

        if output == "json":
            write(json.dumps(table.as_objects(entries), indent=2) + "\n")
        else:
            write(table.as_text(entries) if output == "text" else table.as_wide_text(entries))
        return
    if node and len(entries) != 1:
        raise click.UsageError("--node names one node: give one TYPE.")
    write(_generated(output, _nodes(entries, node, kernel_driver, options.kubernetes_version)))


def _chosen(catalogue: Catalogue, wanted: Sequence[str], *, offered: bool) -> list[InstanceType]:
    """The types to print. Raises click.UsageError for a name that the catalogue does not have."""
    for name in wanted:
        if name not in catalogue:
            hint = did_you_mean(name, catalogue.suggestions())
            raise click.UsageError(f"There is no instance type {quoted(name)} in the catalogue.{hint}")
    return [entry for entry in catalogue if (not wanted or entry.name in wanted) and (entry.offered or not offered)]


def _nodes(entries: Sequence[InstanceType], node: str, kernel_driver: str, kubernetes: str) -> list["NodeTemplate"]:
    """A node of each type; types whose number of devices is not known are left out, with a line on stderr."""
    if importlib.util.find_spec("kubeletplugin") is None:
        raise click.UsageError(
            "the code of the driver, which describes the nodes, is not installed here (the image of the webhook leaves"
            " it out): run this command where the whole package is installed."
        )
    from commands.types.published import NodeTemplate

    made = []
    for entry in entries:
        if entry.devices is None:
            say(f"{entry.name} is left out: it is not known how many devices it has.")
            continue
        made.append(NodeTemplate(entry, node or entry.name.replace(".", "-"), kernel_driver, kubernetes))
    return made


def _generated(output: str, nodes: Sequence["NodeTemplate"]) -> str:
    from commands.types import published

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
