"""The JSON patch that replaces legacy resources by a claim, and the label and record of a converted pod. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from conversion.asks.pod_demand import ContainerDemand, PodDemand
from conversion.asks.records import AddedHints, Amounts, EfaRequest, Record
from conversion.claims.interfaces import Interfaces
from conversion.claims.making import Claim
from conversion.objects import pods
from conversion.objects.nesting import key_of, keys_of
from conversion.objects.pod_places import pointer
from conversion.patches.decision import Operation, add, append, remove, remove_members, replace, set_members
from neuron import names

_CORE_VARIABLES: Final = frozenset(names.CORE_VARIABLES)


def free_name(demand: PodDemand) -> str | None:
    """A name for the claim that the pod neither declares nor refers to; None if both names are taken."""
    taken = {entry.get("name") for entry in demand.pod.decode_claims() or ()}
    for each in demand.containers:
        if each.resources is not None and "claims" in each.resources:
            taken.update([entry.get("name") for entry in each.resources["claims"] or ()])
    if names.POD_CLAIM not in taken:
        return names.POD_CLAIM
    return names.POD_CLAIM_FALLBACK if names.POD_CLAIM_FALLBACK not in taken else None


def claim_patch(demand: PodDemand, claim: Claim, claim_name: str, efa: Interfaces | None = None) -> list[Operation]:
    """Remove the legacy resources and add the claim. `efa`: interfaces that the claim includes."""
    operations: list[Operation] = []
    for each, use, exact in zip(demand.containers, claim.uses, claim.exact, strict=True):
        moved = efa is not None and efa.container == each.container.name
        operations += strip_legacy(each.pointer, each.resources, efa=moved)
        entries: list[dict[str, str]] = []
        if use is not None:
            # Without names of requests, a container uses the whole claim.
            entries = [{"name": claim_name, "request": request} for request in use] or [{"name": claim_name}]
        operations += refer(each, entries)
        # `variables` decodes and checks the whole list: an operation that appends needs a list.
        if not exact and each.ask.in_cores and each.ask.amount and _CORE_VARIABLES.isdisjoint(each.container.variables):
            # Keeps the container to the cores that it requests: rounding up and a node's LNC default can give more.
            # For a share of a device the driver sets which cores.
            variable = {"name": names.ENV_NUM_CORES, "value": str(each.ask.amount)}
            environment = () if each.container.has_env else None
            operations += append(f"{each.pointer}/env", environment, [variable])
    earlier = demand.earlier
    if earlier is None:
        current = demand.pod.decode_claims()
        entry = {"name": claim_name, "resourceClaimTemplateName": claim.template.name}
        operations += append("/spec/resourceClaims", current, [entry])
    elif earlier.template != claim.template.name:
        path = pointer("spec", "resourceClaims", earlier.index, "resourceClaimTemplateName")
        operations.append(replace(path, claim.template.name))
    return operations


def strip_legacy(path: str, resources: Mapping[str, Any] | None, *, efa: bool) -> list[Operation]:
    """Remove the legacy resources from limits and requests. One that stays in either would be allocated twice.

    Args:
        path: JSON pointer of the container.
        efa: whether the claim includes its EFA interfaces.
    """
    removed = (*names.LEGACY_RESOURCES, names.RESOURCE_EFA) if efa else names.LEGACY_RESOURCES
    operations: list[Operation] = []
    if not resources:
        return operations
    for field in ("limits", "requests"):
        if field in resources:
            operations += remove_members(f"{path}/resources/{field}", resources[field], removed)
    return operations


def refer(demand: ContainerDemand, entries: list[dict[str, str]]) -> list[Operation]:
    """Make a container refer to the claim by exactly these entries; entries of other claims stay."""
    if not entries:
        return []
    if demand.resources is None:
        # An empty object counts as none, and `add` replaces it.
        return [add(f"{demand.pointer}/resources", {"claims": entries})]
    current = demand.resources.get("claims")
    path = f"{demand.pointer}/resources/claims"
    if not current:
        return append(path, current, entries)
    wanted, present = keys_of(entries), keys_of(current)
    stale = [
        index
        for index, entry in enumerate(current)
        if entry.get("name") == entries[0]["name"] and key_of(entry) not in wanted
    ]
    missing = [entry for entry in entries if key_of(entry) not in present]
    return [remove(f"{path}/{index}") for index in reversed(stale)] + append(path, current, missing)


def encode_record(
    demand: PodDemand, added: AddedHints, claim: str, template: str = "", efa: Interfaces | None = None
) -> str:
    """The value of the annotation `converted-from`. `claim`, `template` and `efa`: see `Record`."""
    amounts: dict[str, dict[str, Amounts]] = {"containers": {}, "initContainers": {}}
    for each in demand.containers:
        if each.amounts:
            amounts[each.section][each.container.name] = each.amounts
    asked = None if efa is None else EfaRequest(efa.container, efa.count)
    efa_class = "" if efa is None else efa.device_class
    return Record(amounts["containers"], amounts["initContainers"], added, claim, template, asked, efa_class).encode()


def mark(pod: pods.Pod, record: str | None) -> list[Operation]:
    """Set the label and the record, unless the pod has them already."""
    metadata = pod.metadata or pods.PodMetadata()
    labels = None if metadata.labels is None else {names.LABEL_CONVERTED: metadata.labels.converted}
    annotations = (
        None if metadata.annotations is None else {names.ANNOTATION_CONVERTED_FROM: metadata.annotations.converted_from}
    )
    parents = [add("/metadata", {})] if pod.metadata is None else []
    return [
        *parents,
        *set_members("/metadata/labels", labels, {names.LABEL_CONVERTED: "true"}),
        *set_members("/metadata/annotations", annotations, {names.ANNOTATION_CONVERTED_FROM: record}),
    ]
