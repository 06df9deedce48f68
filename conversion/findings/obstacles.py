"""Reasons why a pod with a correct claim does not run: its own devices or cores, and nodes that Karpenter makes. Pure.

Karpenter ignores pods with claims (`ignore-dra-requests`, the default), or knows no Neuron devices of nodes that it has
not made yet. Such a pod stays Pending, while a pod with limits gets its node. EKS Auto Mode cannot run the driver.
"""

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

from conversion.asks.conversion_context import ConversionContext
from conversion.asks.pod_demand import PodDemand
from conversion.claims.candidates import NodeSelection
from conversion.claims.pools import Takers
from conversion.facts import NamespaceFacts
from conversion.objects import pods
from neuron import names
from neuron.api.claim_specs import GROUP
from neuron.api.fields import LimitRange, Namespace, ResourceQuota, WrongFormError, mapping, mappings, read, text
from neuron.api.node_pools import KINDS, NODE_GROUP, Pool, read_described
from neuron.api.nodes import REQUIRED, Requirement, matches_nothing, read_node
from neuron.api.slices import read_slice
from neuron.findings import Finding, few, short, warning

_FIX: Final = (
    "Run it on a managed or self-managed node group, or in a NodePool with replicas. If Karpenter makes nodes for"
    f' pods with Neuron claims, set --karpenter-serves-claims, or {names.ANNOTATION_KARPENTER_SERVES}: "true" on the'
    " Namespace."
)
_KARPENTER: Final = ("karpenter.sh/", "karpenter.k8s.aws/")
_AUTO_MODE_LABELS: Final = "eks.amazonaws.com/instance-"
_UNPIN: Final = "Remove the variable: the driver sets what the claim gives the container."
_MOST_NAME: Final = 63
_MOST_TYPES: Final = 3
_MOST_VOLUMES: Final = 16


def pinned_cores(demand: PodDemand) -> Iterator[Finding]:
    """NEU901: containers with Neuron devices that choose cores or devices themselves; NEU234: devices of the host."""
    for each in demand.containers:
        if each.sets_variables:
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
            yield warning("NEU901", f"{path}.env", message, _UNPIN, name)


def host_devices(pod: pods.Pod) -> Iterator[Finding]:
    """NEU234: volumes of a pod with a claim that are Neuron devices of the host."""
    for index, device in pod.host_devices[:_MOST_VOLUMES]:
        held = "this device" if device != "/dev" else "a Neuron device in it"
        message = f"volume {index} is the host's {device}, beside a claim: another pod may hold {held}."
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


def autoscaled(selection: NodeSelection, takers: Takers, context: ConversionContext) -> Finding | None:
    """NEU903, if no node would be made for the claim of a pod; None if one would, or if that is not known.

    Only dynamic pools can take the pod, or it selects nodes by a label that only nodes of Karpenter or EKS Auto Mode
    have. Nodes of static pools, and nodes without a pool, are there whatever pods wait.
    """
    if takers.static or takers.types:
        return None
    if takers.dynamic:
        shown = pools_text([each.pool for each in takers.dynamic])
        message = f"nodes for the pod come from {shown} only, and {_why_not(takers.dynamic[0].pool)}"
        return Finding("NEU903", "spec", f"{message}: the pod is left as it is.", _FIX, shown)
    if takers.idle or selection.is_empty:
        return None
    labels = [*_ways(selection)]
    if not labels or not all(labels):
        return None
    shown = short(labels[0], _MOST_NAME)
    message = (
        f"the pod selects nodes by {shown}, which only nodes of Karpenter or EKS Auto Mode have, and neither makes a"
        " node for a pod with a claim: the pod is left as it is."
    )
    if context.pools.problem:
        message += f" It is not known whether a static pool can take it: {context.pools.problem}."
    return Finding("NEU903", "spec", message, _FIX, shown)


def serves_claims(facts: NamespaceFacts, context: ConversionContext) -> bool:
    """Whether an admin says that Karpenter makes nodes for claims."""
    return context.options.karpenter_serves_claims or (names.ANNOTATION_KARPENTER_SERVES, "true") in facts.annotations


def unknown_pools(context: ConversionContext) -> Finding:
    """NEU905: nothing that is known can take a pod, and the pools are not known."""
    message = (
        f"it is not known whether an autoscaler makes the nodes of this pod: {context.pools.problem}. The pod is"
        " converted; if only a dynamic pool can take it, it stays Pending."
    )
    fix = (
        "Allow the webhook to list and watch the pools (docs/how-to/types.md), or correct what cannot be read, and"
        " create the pod again."
    )
    return warning("NEU905", "spec", message, fix, context.pools.problem)


READERS: Final[Mapping[tuple[str, str], Callable[[object], object]]] = {
    ("", "Node"): read_node,
    ("", "Namespace"): functools.partial(read, form=Namespace),
    ("", "ResourceQuota"): functools.partial(read, form=ResourceQuota),
    ("", "LimitRange"): functools.partial(read, form=LimitRange),
    (GROUP, "ResourceSlice"): read_slice,
    **{key: functools.partial(read_described, key[1]) for key in KINDS},
}
"""What reads the objects on which decisions about pods depend, and that have no check of their own."""


def unread(group: str, kind: str, data: object) -> Iterator[Finding]:
    """NEU905 about an object of a kind of `READERS` that has a wrong form."""
    try:
        READERS.get((group, kind), mapping)(data)
    except WrongFormError as error:
        path, what = pods.place(error)
        name = short(text(mapping(mapping(data).get("metadata")).get("name")), _MOST_NAME)
        named = f"{kind} {name}".rstrip()
        message = f"{named} cannot be read: {what}. Pods are decided without what cannot be read."
        yield warning("NEU905", path, message, pods.how_to_read(what, "kubectl refuses the object: correct the field."))


def unmet_selection(selection: NodeSelection, context: ConversionContext) -> Iterator[Finding]:
    """NEU228 about a pod that nothing can take: nothing meets its node selection, or what does cannot take it."""
    part = context.pools.unmet_everywhere(selection)
    if part is None:
        met = context.pools.selected(selection)
        pools = [each.pool for each in (*met.static, *met.idle, *met.dynamic)]
        if not selection.is_empty and (pools or met.types):
            shown = pools_text(pools) if pools else f"Nodes of type {few(sorted(met.types), _MOST_TYPES)}"
            message = (
                f"only {shown} can meet the node selection of the pod, and cannot take it: too few devices, a limit, or"
                " a taint that it does not tolerate. The pod waits."
            )
            yield warning("NEU228", "spec", message, "Request less, add a toleration, or select other nodes.", shown)
        return
    key, values = str(part.get("key")), [short(str(each), _MOST_NAME) for each in part.get("values") or ()]
    if not key:
        path, what = "spec", "the node selection of the pod"
    elif selection.node_selector.get(key) in (part.get("values") or ()):
        path, what = f"spec.nodeSelector[{short(key)}]", f"nodeSelector {short(key)}={values[0]}"
    else:
        path = f"spec.affinity.nodeAffinity.{REQUIRED}"
        what = " ".join(
            filter(None, ("node affinity", short(key), str(part.get("operator")), few(values, _MOST_TYPES)))
        )
    message = f"no Neuron node and no pool that is known meets {what}: the pod waits until one does."
    fix = "Correct the node selection, or add the label to a node group or to the template of a NodePool."
    yield warning("NEU228", path, message, fix, short(key) or what)


def pools_text(pools: Sequence[Pool]) -> str:
    """Names of pools, for a message."""
    kind = pools[0].kind
    named = [short(pool.name if pool.kind == kind else str(pool), 2 * _MOST_NAME) for pool in pools]
    return f"{kind}{'s' if len(pools) > 1 else ''} {few(named, _MOST_TYPES)}"


def _why_not(pool: Pool) -> str:
    if pool.automatic:
        return "the driver cannot run on nodes of EKS Auto Mode"
    if pool.kind == NODE_GROUP[1]:
        return "Cluster Autoscaler makes none for this claim"
    return "Karpenter makes none for a pod with a claim"


def _ways(selection: NodeSelection) -> Iterator[str]:
    """For each way to match a node selection, the label that only nodes of Karpenter or EKS Auto Mode have, or none."""
    own: list[Requirement] = [
        {"key": key, "operator": "In", "values": [value]} for key, value in selection.node_selector.items()
    ]
    if selection.terms is None:
        yield _label(own)
        return
    for term in selection.terms:
        if not matches_nothing(term):
            yield _label([*own, *(term.get("matchExpressions") or ())])


def _label(requirements: Sequence[Requirement]) -> str:
    for each in requirements:
        key, values = str(each.get("key")), each.get("values") or ()
        if each.get("operator") not in ("In", "Exists", "Gt", "Lt"):
            continue  # NotIn and DoesNotExist match nodes without the label, too.
        automatic = key == names.LABEL_COMPUTE_TYPE and set(map(str, values)) == {names.AUTO_MODE}
        if automatic or key.startswith((*_KARPENTER, _AUTO_MODE_LABELS)):
            return key
    return ""


def resized(kind: str, data: Mapping[str, object], autoscalers: Mapping[tuple[str, str], str]) -> list[Finding]:
    """NEU233, if an autoscaler resizes the pods of an object in place.

    Args:
        kind: of the object, whose pods have claims.
        autoscalers: their names, by kind and name of the workload that each resizes.
    """
    for workload in workloads_of(kind, data):
        if workload in autoscalers:
            return [_resizes(autoscalers[workload], " ".join(workload))]
    return []


def workloads_of(kind: str, data: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Kinds and names that a `targetRef` for an object can have: its own, and those of the workload that made it.

    A Deployment is not the owner of its pods. Their ReplicaSet has its name, and the hash that is their label.
    """
    metadata = mapping(data.get("metadata"))
    yield kind, text(metadata.get("name"))
    digest = text(mapping(metadata.get("labels")).get("pod-template-hash"))
    for owner in mappings(metadata.get("ownerReferences")):
        made_by, name = text(owner.get("kind")), text(owner.get("name"))
        yield made_by, name
        if made_by == "ReplicaSet" and digest and name.endswith(f"-{digest}"):
            yield "Deployment", name.removesuffix(f"-{digest}")


def _resizes(autoscaler: str, workload: str) -> Finding:
    message = (
        f"VerticalPodAutoscaler {short(autoscaler)} resizes pods of {short(workload)} in place, which Kubernetes"
        " refuses for pods with a claim: they are evicted instead, or keep their size."
    )
    return warning("NEU233", "spec", message, "Set updateMode to Initial, Recreate or Off.", short(autoscaler))
