"""Reasons why a pod with a correct claim does not run: pinned cores, and nodes that Karpenter makes. Pure.

Karpenter up to 1.14 ignores pods with claims, and later versions know Neuron devices in static capacity only.
"""

from collections.abc import Iterator
from typing import Final

from neuron import names
from neuron.demand.candidates import NodeSelection
from neuron.findings import Finding, short, warning
from webhook.decisions.pod_demand import PodDemand

KARPENTER_FIX: Final = (
    "Karpenter does not make nodes for pods with Neuron claims: run these pods on a managed or self-managed node group."
)
_KARPENTER: Final = ("karpenter.sh/", "karpenter.k8s.aws/")
_AUTO_MODE: Final = "eks.amazonaws.com/compute-type"
_MOST_NAME: Final = 63


def pinned_cores(demand: PodDemand) -> Iterator[Finding]:
    """NEU901: containers with Neuron devices that choose their cores themselves."""
    for each in demand.containers:
        if each.ask.amount and names.ENV_VISIBLE_CORES in each.container.core_variables:
            name = short(each.container.name, _MOST_NAME)
            message = (
                f"container {name} sets {names.ENV_VISIBLE_CORES}: with a claim, the driver chooses the devices, and"
                " the container sees only these."
            )
            path = f"spec.{each.section}[{each.index}].env"
            yield warning("NEU901", path, message, "Remove the variable; the claim allocates the cores.", name)


def autoscaled(selection: NodeSelection) -> Iterator[Finding]:
    """NEU903: a pod that selects nodes of Karpenter or of EKS Auto Mode."""
    key = next((each for each in _required(selection) if each.startswith(_KARPENTER) or each == _AUTO_MODE), "")
    if key:
        shown = short(key, _MOST_NAME)
        message = f"the pod selects nodes by {shown}, which only nodes of Karpenter or EKS Auto Mode have."
        yield warning("NEU903", "spec", message, KARPENTER_FIX, shown)


def _required(selection: NodeSelection) -> Iterator[str]:
    """Label keys that a node must have."""
    yield from selection.node_selector
    for term in selection.terms or ():
        for expression in term.get("matchExpressions") or ():
            if expression.get("operator") in ("In", "Exists"):
                yield str(expression.get("key"))
