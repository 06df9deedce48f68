"""Reasons why a pod with a correct claim does not run: pinned cores, and nodes that Karpenter makes. Pure.

Karpenter ignores pods with claims (`ignore-dra-requests`, the default), or knows no Neuron devices of nodes that it has
not made yet. Such a pod stays Pending, while a pod with limits gets its node. EKS Auto Mode cannot run the driver.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from neuron import names
from neuron.api.node_selection import Requirement, matches_nothing
from neuron.demand.candidates import NodeSelection
from neuron.findings import Finding, few, short, warning
from neuron.hardware.instances import InstanceType
from webhook.decisions.conversion_context import ConversionContext
from webhook.decisions.pod_demand import PodDemand
from webhook.decisions.ports import NamespaceFacts

_FIX: Final = (
    "Run it on a managed or self-managed node group, or in a NodePool with replicas. If Karpenter makes nodes for"
    f' pods with Neuron claims, set --karpenter-serves-claims, or {names.ANNOTATION_KARPENTER_SERVES}: "true" on the'
    " Namespace."
)
_KARPENTER: Final = ("karpenter.sh/", "karpenter.k8s.aws/")
_AUTO_MODE_LABELS: Final = "eks.amazonaws.com/instance-"
_MOST_NAME: Final = 63
_MOST_TYPES: Final = 3


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


def autoscaled(
    selection: NodeSelection, types: Sequence[InstanceType], facts: NamespaceFacts, context: ConversionContext
) -> Finding | None:
    """NEU903, if no node would be made for the claim of a pod; None if one would, or if that is not known.

    The pod selects nodes of Karpenter or EKS Auto Mode, or no other nodes of its instance types were ever seen. Static
    NodePools have their nodes, whatever pods wait.

    Args:
        types: the instance types that can serve the pod; empty if any may.
    """
    if context.options.karpenter_serves_claims or (names.ANNOTATION_KARPENTER_SERVES, "true") in facts.annotations:
        return None
    ways = [*_ways(selection)]
    if ways and all(way.label for way in ways):
        if any(_is_served(way, types, context) for way in ways):
            return None
        shown = short(ways[0].label, _MOST_NAME)
        message = f"the pod selects nodes by {shown}, which only nodes of Karpenter or EKS Auto Mode have"
    elif types and all(entry.name in context.autoscaled_types for entry in types):
        shown = few([entry.name for entry in types], _MOST_TYPES)
        message = f"all nodes of {shown} are of Karpenter or EKS Auto Mode"
    else:
        return None
    message += ", and neither makes a node for a pod with a claim: the pod is left as it is."
    return Finding("NEU903", "spec", message, _FIX, shown)


class _Way(NamedTuple):
    """One way to match a node selection.

    Attributes:
        label: the label that only nodes of Karpenter or EKS Auto Mode have; empty if it requires none.
        pools: NodePools that it names; empty if it names none.
        automatic: whether it requires EKS Auto Mode.
    """

    label: str
    pools: frozenset[str]
    automatic: bool


def _is_served(way: _Way, types: Sequence[InstanceType], context: ConversionContext) -> bool:
    """Whether a static NodePool has the nodes."""
    if way.automatic:
        return False
    if way.pools:
        return not way.pools.isdisjoint(context.static_pools)
    return any(entry.name in context.static_types for entry in types)


def _ways(selection: NodeSelection) -> Iterator[_Way]:
    """The ways to match a node selection: one for each term of required node affinity."""
    own: list[Requirement] = [
        {"key": key, "operator": "In", "values": [value]} for key, value in selection.node_selector.items()
    ]
    if selection.terms is None:
        yield _way(own)
        return
    for term in selection.terms:
        if not matches_nothing(term):
            yield _way([*own, *(term.get("matchExpressions") or ())])


def _way(requirements: Sequence[Requirement]) -> _Way:
    label, automatic = "", False
    pools: frozenset[str] = frozenset()
    for each in requirements:
        key, values = str(each.get("key")), each.get("values") or ()
        if each.get("operator") not in ("In", "Exists"):
            continue
        if key == names.LABEL_COMPUTE_TYPE:
            only = bool(values) and set(map(str, values)) == {names.AUTO_MODE}
        else:
            only = key.startswith(_AUTO_MODE_LABELS)
        automatic = automatic or only
        if only or key.startswith(_KARPENTER):
            label = label or key
        if key in names.KARPENTER_POOL_LABELS:
            pools |= frozenset(map(str, values))
    return _Way(label, pools, automatic)
