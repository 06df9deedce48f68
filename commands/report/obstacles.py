"""Obstacles that conversion itself does not look at: queues, Karpenter, pinned cores, nodes. Pure.

Sources: `decisions.queues` for Kueue, Volcano and YuniKorn;
Karpenter up to 1.14 ignores pods with claims, and later versions know Neuron devices in static capacity only.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from commands.report.model import Cause, Estate, Obstacle
from commands.status.lines import counted, listed
from neuron import names
from neuron.findings import Finding, quoted, short, warning
from webhook.decisions.pod_demand import PodDemand
from webhook.decisions.queues import (
    KUEUE,
    VOLCANO,
    YUNIKORN,
    is_counted_by_template,
    losing_count,
    queues_of_workload,
)

_FIXES: Final = {
    KUEUE: "Map the DeviceClass to a resource of the ClusterQueue in deviceClassMappings of Kueue's configuration.",
    VOLCANO: "Check that your version of Volcano supports ResourceClaims, and bound the queue by other resources.",
    YUNIKORN: "Check that your version of YuniKorn supports ResourceClaims, and bound the queue by other resources.",
}
_KARPENTER: Final = ("karpenter.sh/", "karpenter.k8s.aws/")
_AUTO_MODE: Final = ("eks.amazonaws.com/compute-type", "auto")

_CAUSES: Final = {
    **dict.fromkeys(("NEU101", "NEU102", "NEU103", "NEU104", "NEU105", "NEU106", "NEU108"), Cause.COUNTS),
    **dict.fromkeys(("NEU202", "NEU215"), Cause.COUNTS),
    **dict.fromkeys(("NEU110", "NEU213", "NEU216", "NEU217"), Cause.SELECTION),
    **dict.fromkeys(("NEU109", "NEU111", "NEU112", "NEU118", "NEU212", "NEU710"), Cause.SETTINGS),
    **dict.fromkeys(("NEU120", "NEU121", "NEU122", "NEU214", "NEU230"), Cause.POLICY),
    **dict.fromkeys(("NEU801", "NEU802", "NEU803", "NEU804", "NEU805"), Cause.POLICY),
    "NEU203": Cause.SCHEDULER,
    "NEU204": Cause.QUOTA,
    "NEU205": Cause.LIMIT_RANGE,
}


def cause_of(finding: Finding) -> Cause:
    """The kind of obstacle that a finding of conversion or of a policy is."""
    return _CAUSES.get(finding.code, Cause.POD)


def pinned_cores(demand: PodDemand) -> Iterator[Obstacle]:
    """NEU901: containers with Neuron devices that choose their cores themselves."""
    for each in demand.containers:
        if each.ask.amount and names.ENV_VISIBLE_CORES in each.container.core_variables:
            name = short(each.container.name, 40)
            message = (
                f"container {name} sets {names.ENV_VISIBLE_CORES}: with a claim, the driver chooses the devices, and"
                " the container sees only these."
            )
            path = f"spec.{each.section}[{each.index}].env"
            finding = warning("NEU901", path, message, "Remove the variable; the claim allocates the cores.", name)
            yield Obstacle(Cause.CORES, finding, blocks=False)


def queues(
    group: str, kind: str, data: Mapping[str, Any], path: str, template: Mapping[str, Any]
) -> Iterator[Obstacle]:
    """NEU902: a queue that stops counting the pods when they are converted at admission.

    Args:
        group: API group of the workload.
        kind: of the workload.
        data: the workload.
        path: field path of the pod template.
        template: the pod template.
    """
    found = queues_of_workload(group, kind, data, [(path, template)])
    for queue in losing_count(found, by_template=is_counted_by_template(group, kind)):
        where = f" in queue {quoted(queue.name, 40)}" if queue.name else ""
        message = f"{queue.system} counts the Neuron resource of each pod{where}, and does not count its claim."
        finding = warning("NEU902", "metadata", message, _FIXES[queue.system], short(queue.name, 40))
        yield Obstacle(Cause.QUEUE, finding, blocks=False)


def karpenter(template: Mapping[str, Any], types: tuple[str, ...], estate: Estate | None) -> Iterator[Obstacle]:
    """NEU903: nodes that Karpenter makes, by the pod's node selection or because there are no others."""
    spec = _mapping(template.get("spec"))
    key = next((each for each in _selected(spec) if each.startswith(_KARPENTER) or each == _AUTO_MODE[0]), "")
    if key:
        message = f"the pods select nodes by {short(key, 60)}, which only nodes of Karpenter or EKS Auto Mode have."
        finding = warning("NEU903", "spec", message, _NODES_FIX, short(key, 60))
        yield Obstacle(Cause.KARPENTER, finding, blocks=True)
        return
    nodes = [] if estate is None else [node for node, each in estate.types.items() if not types or each in types]
    if estate is not None and nodes and estate.karpenter.issuperset(nodes):
        message = f"all nodes that can serve the pods are of Karpenter or EKS Auto Mode: {listed(nodes, 3)}."
        yield Obstacle(Cause.KARPENTER, warning("NEU903", "spec", message, _NODES_FIX), blocks=True)


_NODES_FIX: Final = (
    "Karpenter does not make nodes for pods with Neuron claims: run these pods on a managed or self-managed node group."
)


def nodes(types: tuple[str, ...], estate: Estate | None) -> Iterator[Obstacle]:
    """NEU904: no node can serve the claim, or all that can have both the device plugin and the driver."""
    if estate is None or not types or not estate.types:
        return
    fitting = sorted(node for node, each in estate.types.items() if each in types)
    if not fitting:
        message = f"the cluster has no node of type {listed(types, 4)}."
        fix = "Add such nodes, or change the node selection of the pods."
        yield Obstacle(Cause.NODES, warning("NEU904", "spec", message, fix), blocks=False)
        return
    mixed = set(estate.mixed)
    if mixed.issuperset(fitting):
        message = (
            f"the device plugin and the DRA driver both offer devices of {counted(len(fitting), 'node')}"
            f" ({listed(fitting, 3)}): claims get none of them."
        )
        fix = "Stop the device plugin on these nodes (docs/migrate.md, step 3)."
        yield Obstacle(Cause.NODES, warning("NEU904", "spec", message, fix), blocks=True)


def _selected(spec: Mapping[str, Any]) -> Iterator[str]:
    """Label keys by which a pod selects nodes: nodeSelector, and required node affinity."""
    yield from (str(key) for key in _mapping(spec.get("nodeSelector")))
    node = _mapping(_mapping(spec.get("affinity")).get("nodeAffinity"))
    required = _mapping(node.get("requiredDuringSchedulingIgnoredDuringExecution"))
    for term in _list(required.get("nodeSelectorTerms")):
        for expression in _list(_mapping(term).get("matchExpressions")):
            if _mapping(expression).get("operator") in ("In", "Exists"):
                yield str(_mapping(expression).get("key"))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
