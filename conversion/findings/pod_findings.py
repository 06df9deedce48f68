"""Findings about pods that conversion refuses, leaves alone or changes, and reasons why one with a claim does not run.

Karpenter ignores pods with claims (`ignore-dra-requests`, the default), or knows no Neuron devices of nodes that it has
not made yet. Such a pod stays Pending, while a pod with limits gets its node. EKS Auto Mode cannot run the driver.
"""

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from checks.words import misspelt_keys_of_namespace
from conversion.asks.conversion_context import ConversionContext
from conversion.asks.pod_demand import PodDemand
from conversion.asks.steering import Steering
from conversion.claims.candidates import NodeSelection
from conversion.claims.families import SETTLED_BY
from conversion.claims.pools import Takers
from conversion.facts import LegacyQuota, NamespaceFacts
from conversion.objects import pods
from conversion.objects.pods import Excess
from neuron import names
from neuron.api.claim_specs import GROUP
from neuron.api.fields import LimitRange, Namespace, ResourceQuota, WrongFormError, mapping, mappings, read, text
from neuron.api.node_pools import KINDS, NODE_GROUP, Pool, read_described
from neuron.api.nodes import REQUIRED, Requirement, matches_nothing, read_node
from neuron.api.slices import read_slice
from neuron.findings import Finding, few, short, warning

OF_THE_RUN: Final = frozenset({"NEU216"})
"""Findings that say the same about every pod: commands on files show them once."""

_MOST_WARNED: Final = 16
"""The user's own claims that are named in warnings."""


def side_effects(facts: NamespaceFacts, context: ConversionContext, own_claims: Sequence[str]) -> list[Finding]:
    """NEU204 and NEU206: what works differently for a converted pod; NEU222 about its namespace."""
    if not (facts.quotas or own_claims or facts.unread):
        return []
    options = context.options
    found = uncounted(facts.quotas, context)
    found += [
        warning(
            "NEU206",
            "spec.resourceClaims",
            f"claim {short(name)} already requests {options.device_class} devices; the limits add more of them.",
            value=short(name),
        )
        for name in own_claims[:_MOST_WARNED]
    ]
    found += misspelt_keys_of_namespace(facts.unread)
    return found


def limited(facts: NamespaceFacts, device_class: str) -> list[Finding]:
    """NEU205 for each LimitRange that refuses a converted pod.

    The API server would say only that the pod has no limit (`plugin/pkg/admission/limitranger`).
    """
    fix = f"Drop it; bound Neuron devices by quota {device_class}.deviceclass.resource.k8s.io/devices."
    message = "LimitRange {} has a min, max or ratio for a Neuron resource, which refuses this pod."
    return [Finding("NEU205", "metadata.namespace", message.format(each), fix, each) for each in facts.limit_ranges]


@functools.lru_cache(maxsize=64)
def unknown_types(types: tuple[str, ...]) -> Finding:
    """NEU216: nothing says which instance types there are. The message is the same for all pods; the value differs."""
    message = (
        "neither the pod, a policy, ResourceSlices nor Nodes say which Neuron instance types there are: the claim fits"
        " all types that can serve the pod, and no node affinity to instance types is added."
    )
    return warning("NEU216", "spec", message, SETTLED_BY, ", ".join(types))


def has_node_name(node: str) -> Finding:
    """NEU201 as a warning."""
    message = f"nodeName is {short(node)!r}: the pod is not converted, because no scheduler would allocate its claim."
    return warning("NEU201", "spec.nodeName", message, "Use a nodeSelector.", short(node))


def has_node_name_but_locked(pod: pods.Pod, steering: Steering) -> Finding:
    """NEU201 as an error: the policy requires conversion."""
    node = short(pod.spec.nodeName or "")
    message = (
        f"nodeName is {node!r}, and policy {steering.policy('mode')} is locked to mode {steering.mode}: a pod that the"
        " scheduler does not place cannot be converted, because nothing else allocates its claim."
    )
    return Finding("NEU201", "spec.nodeName", message, "Use a nodeSelector.", node)


def is_mirror_but_locked(steering: Steering) -> Finding:
    """NEU201 for a mirror pod that no kubelet creates."""
    annotation = names.ANNOTATION_MIRROR_POD
    message = (
        f"only a kubelet may create mirror pods, and policy {steering.policy('mode')} is locked to mode"
        f" {steering.mode}: a pod with annotation {annotation} would not be converted."
    )
    return Finding("NEU201", f"metadata.annotations[{annotation}]", message, "Remove the annotation.")


def too_large(excess: Excess) -> Finding:
    """NEU114: a part of the pod exceeds its limit."""
    return Finding("NEU114", excess.path, f"the pod is too large: {excess.text}.", "Make it smaller.")


def too_many_terms(count: int, most: int) -> Finding:
    """NEU114: conversion would have to change too many node selector terms."""
    path = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    message = f"the pod has too many node selector terms: {count}, at most {most}."
    return Finding("NEU114", path, message, "Write it with fewer terms.", str(count))


def same_name(path: str, name: str) -> Finding:
    """NEU114: the record tells containers apart by name."""
    message = f"two containers of the pod are called {short(name)!r}."
    return Finding("NEU114", path, message, "Give every container a name of its own.", short(name))


def names_taken() -> Finding:
    """NEU113: there is no free name for the claim."""
    return Finding(
        "NEU113",
        "spec.resourceClaims",
        f"the claim names {names.POD_CLAIM} and {names.POD_CLAIM_FALLBACK} are both taken.",
        "Rename one of the pod's own claims.",
    )


def uncounted(quotas: Iterable[LegacyQuota], context: ConversionContext) -> list[Finding]:
    """NEU204 for each quota that does not count a converted pod.

    A quota counts a claim by its DeviceClass and by the extended resource of that class
    (`pkg/quota/v1/evaluator/core/resource_claims.go`). One with scopes counts no claim.
    """
    found, device_class = [], context.options.device_class
    for quota in quotas:
        served = all(context.extended_resources.get(each) == device_class for each in quota.resources)
        if not quota.scoped and (served or device_class in quota.classes):
            continue
        place = "its spec.hard"
        if quota.scoped:
            place = "the spec.hard of a quota without scopes: with scopes it counts no claim"
        message = f"ResourceQuota {quota.name} no longer counts this pod."
        fix = f"Use {device_class}.deviceclass.resource.k8s.io/devices in {place}."
        found.append(warning("NEU204", "metadata.namespace", message, fix, quota.name))
    return found


# --- why a pod with a correct claim does not run --------------------------------------------------------------------

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
            autoscaler = short(autoscalers[workload])
            message = (
                f"VerticalPodAutoscaler {autoscaler} resizes pods of {short(' '.join(workload))} in place, which"
                " Kubernetes refuses for pods with a claim: they are evicted instead, or keep their size."
            )
            fix = "Set updateMode to Initial, Recreate or Off."
            return [warning("NEU233", "spec", message, fix, autoscaler)]
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
