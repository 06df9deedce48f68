"""Reasons why a pod with a correct claim does not run: its own devices or cores, and nodes that Karpenter makes. Pure.

Karpenter ignores pods with claims (`ignore-dra-requests`, the default), or knows no Neuron devices of nodes that it has
not made yet. Such a pod stays Pending, while a pod with limits gets its node. EKS Auto Mode cannot run the driver.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from neuron import names
from neuron.api.node_selection import Requirement, matches_nothing
from neuron.demand.candidates import NodeSelection
from neuron.findings import Finding, few, short, warning
from neuron.hardware.instances import InstanceType
from webhook.decisions import pods
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
_MOST_VOLUMES: Final = 16


def pinned_cores(demand: PodDemand) -> Iterator[Finding]:
    """NEU901: containers with Neuron devices that choose cores or devices themselves; NEU234: devices of the host."""
    for each in demand.containers:
        if each.ask.amount:
            yield from pinned(each.container, f"spec.{each.section}[{each.index}]")
    yield from host_devices(demand.pod)


def pinned(container: pods.Container, path: str) -> Iterator[Finding]:
    """NEU901 about a container with a claim. `path`: its field path."""
    for variable, _ in container.device_variables:
        if variable in names.PINNING_VARIABLES:
            name = short(container.name, _MOST_NAME)
            message = (
                f"container {name} sets {variable}: with a claim, the driver chooses the devices, and the container"
                " sees only these."
            )
            yield warning("NEU901", f"{path}.env", message, "Remove the variable; the claim allocates the cores.", name)


def host_devices(pod: pods.Pod) -> Iterator[Finding]:
    """NEU234: volumes of a pod with a claim that are Neuron devices of the host."""
    for index, device in pod.host_devices[:_MOST_VOLUMES]:
        message = f"volume {index} is the host's {device}, beside a claim: another pod may hold this device."
        fix = "Remove the volume: the driver gives the container the devices of its claim."
        yield warning("NEU234", f"spec.volumes[{index}].hostPath.path", message, fix, device)


def against_config(container: pods.Container, path: str, claim: str, values: Collection[int]) -> Iterator[Finding]:
    """NEU235: the logical NeuronCore of a container's variable is none of those that its claim sets.

    Args:
        path: field path of the container.
        claim: name of the claim in the pod.
        values: of the claim's configs; empty if it sets none.
    """
    for variable, value in container.device_variables:
        if variable in names.LNC_VARIABLES and value.isdecimal() and values and int(value) not in values:
            own = " or ".join(map(str, sorted(values)))
            message = (
                f"container {short(container.name, _MOST_NAME)} sets {variable} to {value}, and claim"
                f" {short(claim, _MOST_NAME)!r} sets logicalNeuronCore {own}: the driver replaces the variable."
            )
            fix = "Write the same value in both, or remove the variable."
            yield warning("NEU235", f"{path}.env", message, fix, value)


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
