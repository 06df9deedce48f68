"""Obstacles that depend on the nodes of the cluster, and the kind of obstacle that each finding is. Pure."""

from collections.abc import Iterator
from typing import Final

from commands.report.model import Cause, NeuronNodes, Obstacle
from commands.report.places import Fit
from commands.status.lines import counted, listed
from neuron.findings import Finding, warning

_CAUSES: Final = {
    **dict.fromkeys(("NEU101", "NEU102", "NEU103", "NEU104", "NEU105", "NEU106", "NEU108"), Cause.COUNTS),
    **dict.fromkeys(("NEU202", "NEU215"), Cause.COUNTS),
    **dict.fromkeys(("NEU110", "NEU213", "NEU216", "NEU217", "NEU218", "NEU228"), Cause.SELECTION),
    **dict.fromkeys(("NEU109", "NEU111", "NEU112", "NEU118", "NEU212", "NEU710"), Cause.SETTINGS),
    **dict.fromkeys(("NEU120", "NEU121", "NEU122", "NEU214", "NEU230"), Cause.POLICY),
    **dict.fromkeys(("NEU801", "NEU802", "NEU803", "NEU804", "NEU805"), Cause.POLICY),
    "NEU203": Cause.SCHEDULER,
    "NEU232": Cause.QUEUE,
    "NEU901": Cause.CORES,
    **dict.fromkeys(("NEU903", "NEU905"), Cause.KARPENTER),
    "NEU204": Cause.QUOTA,
    "NEU205": Cause.LIMIT_RANGE,
}


def cause_of(finding: Finding) -> Cause:
    """The kind of obstacle that a finding of conversion or of a policy is."""
    return _CAUSES.get(finding.code, Cause.POD)


def nodes(fit: Fit, neuron_nodes: NeuronNodes) -> Iterator[Obstacle]:
    """NEU904: no node can serve the claim, or all that can have both the device plugin and the driver."""
    if not fit.nodes:
        yield Obstacle(Cause.NODES, warning("NEU904", "spec", *_no_node(fit, neuron_nodes)), blocks=False)
    elif set(neuron_nodes.mixed).issuperset(fit.nodes):
        message = (
            f"the device plugin and the DRA driver both offer devices of {counted(len(fit.nodes), 'node')}"
            f" ({listed(fit.nodes, 3)}): claims get none of them."
        )
        fix = "Stop the device plugin on these nodes (docs/migrate.md, step 3)."
        yield Obstacle(Cause.NODES, warning("NEU904", "spec", message, fix), blocks=True)


def _no_node(fit: Fit, neuron_nodes: NeuronNodes) -> tuple[str, str]:
    """Message and fix."""
    if fit.selected:
        types = listed(fit.selected, 4)
        message = f"the node selection of the pods leaves out all nodes of {types}, which could serve the claim."
        return message, "Label such a node, or change the node selection of the pods."
    has = f"it has {listed(set(neuron_nodes.types.values()), 4)}" if neuron_nodes.types else "it has no Neuron node"
    if not fit.types:
        return f"no instance type that the pods may run on can serve the claim; {has}.", "Change their node selection."
    message = f"the cluster has no node of a type that fits, which are {listed(fit.types, 4)}; {has}."
    return message, "Add such nodes, or change the node selection of the pods."
