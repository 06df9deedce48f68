"""Orders the migration by namespace, and computes what each step needs and frees. Pure.

Namespaces without obstacles come first, and of those the ones with the fewest devices: the first step teaches the most
for the least risk. A node becomes free when no workload that uses the device plugin on it is left.
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from commands.report.model import Devices, Fate, MigrationStep, NeuronNodes, Workload, total
from commands.report.places import Places

Quotas = Callable[[str], Mapping[str, int] | None]
"""Limits of a namespace's ResourceQuotas on devices, by the name in `spec.hard`; None: not known."""

QUOTA: Final = "{device_class}.deviceclass.resource.k8s.io/devices"
"""Name of a DeviceClass in `spec.hard` of a ResourceQuota."""


@dataclasses.dataclass(frozen=True, slots=True)
class PlanInputs:
    """What a plan needs beside the workloads.

    Attributes:
        neuron_nodes: the cluster's nodes; None without a cluster.
        places: the same nodes, as pods find place on them.
        on_nodes: node -> uids of the workloads that use the device plugin there.
    """

    neuron_nodes: NeuronNodes | None = None
    places: Places | None = None
    on_nodes: Mapping[str, frozenset[str]] = dataclasses.field(default_factory=dict)
    quotas: Quotas = lambda _: None
    device_class: str = ""


def steps(workloads: Iterable[Workload], around: PlanInputs) -> tuple[MigrationStep, ...]:
    """The order of migration. Namespaces in which nothing converts and nothing is blocked are left out."""
    by_namespace: defaultdict[str, list[Workload]] = defaultdict(list)
    for each in workloads:
        by_namespace[each.ref.namespace].append(each)
    drafts = [
        draft
        for namespace, members in by_namespace.items()
        if (draft := _draft(namespace, members, around)).workloads or draft.blocked
    ]
    drafts.sort(key=lambda each: namespace_order(each.namespace, by_namespace[each.namespace]))
    moving = {draft.namespace: [each for each in by_namespace[draft.namespace] if _moves(each)] for draft in drafts}
    return tuple(_with_nodes(drafts, moving, around))


def namespace_order(namespace: str, members: Iterable[Workload]) -> tuple[bool, int, str]:
    """By what namespaces are sorted: those without obstacles first, of those the ones with the fewest devices."""
    found = tuple(members)
    before = total(each.before for each in found if _moves(each))
    return any(each.blocked for each in found), before.devices + before.cores, namespace


def _moves(workload: Workload) -> bool:
    return workload.fate is Fate.CONVERTS and not workload.blocked


def _draft(namespace: str, members: Sequence[Workload], around: PlanInputs) -> MigrationStep:
    moving = [each for each in members if _moves(each)]
    blocked = sum(each.blocked for each in members)
    after = total(each.after for each in moving if each.after is not None)
    return MigrationStep(
        namespace=namespace,
        ready=not blocked,
        workloads=len(moving),
        blocked=blocked,
        staying=sum(each.fate in (Fate.STAYS, Fate.UNKNOWN) for each in members),
        pods=sum(each.pods or 0 for each in moving),
        before=total(each.before for each in moving),
        after=after,
        note=_quota_note(namespace, after, around),
    )


def _quota_note(namespace: str, after: Devices, around: PlanInputs) -> str:
    name = QUOTA.format(device_class=around.device_class)
    allowed = (around.quotas(namespace) or {}).get(name)
    if allowed is None or allowed >= after.devices:
        return ""
    return f"a ResourceQuota allows {allowed} of {name}; the workloads need {after.devices}"


def _with_nodes(
    drafts: Sequence[MigrationStep], moving: Mapping[str, Sequence[Workload]], around: PlanInputs
) -> Iterable[MigrationStep]:
    """The steps with the nodes that become free, and what the driver has free before each."""
    neuron_nodes, places = around.neuron_nodes, around.places
    if neuron_nodes is None or places is None:
        yield from drafts
        return
    left = {node: set(uids) for node, uids in around.on_nodes.items() if node in neuron_nodes.plugin}
    for draft in drafts:
        nodes = []
        for node in sorted(left):
            before = len(left[node])
            left[node] -= {each.ref.uid for each in moving[draft.namespace]}
            if before and not left[node]:
                nodes.append(node)
        for node in nodes:
            del left[node]
        freed, free = sum(neuron_nodes.plugin[node] for node in nodes), places.free()
        needs, short = _placed(moving[draft.namespace], places)
        yield dataclasses.replace(draft, nodes=tuple(nodes), freed=freed, free=free, needs=needs, short=short)
        for node in nodes:
            places.move(node)


def _placed(moving: Sequence[Workload], places: Places) -> tuple[Mapping[str, int], int]:
    """Place the pods of workloads, the largest first: devices by instance type, and devices that find no place."""
    needs: Counter[str] = Counter()
    short = 0
    groups = [(group.after or group.before, group) for each in moving for group in each.groups]
    for after, group in sorted(groups, key=lambda each: -each[0].devices):
        if group.need is None:
            needs["types that are not known"] += after.devices * group.known_pods
            continue
        found = places.place(group.need, group.known_pods)
        for instance_type, pods in found.items():
            needs[instance_type or "an unknown type"] += after.devices * pods
        if without := (group.known_pods - found.total()) * after.devices:
            types = places.fit(group.need).types
            needs[" or ".join(types) or "no type"] += without
            short += without
    return {name: amount for name, amount in sorted(needs.items()) if amount}, short
