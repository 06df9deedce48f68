"""Orders the migration by namespace, and computes what each step needs and frees, with the allocator's model. Pure.

Namespaces without obstacles come first, and of those the ones with the fewest devices: the first step teaches the most
for the least risk. A node becomes free when no workload that uses the device plugin on it is left.
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from checks.claims.device_index import SelectorError
from commands.devices.allocator_inputs import (
    Hardware,
    PodClaim,
    UnknownClassError,
    catalogue_hardware,
    read_demand,
)
from commands.devices.node_devices import ClusterDevices, DeviceModel, Held, Results, unmet_selection, untolerated
from commands.report.model import Fate, MigrationStep, NeuronNodes, PodNeed, Workload, total
from conversion.claims.candidates import labels_of
from neuron.allocator.search import AllocatorClaim, SearchTooLongError
from neuron.api.claim_specs import ClaimSpec, ClassSpec
from neuron.api.nodes import Node
from neuron.hardware.instances import InstanceType
from neuron.names import CLASS_QUOTA

# --- where the pods find place ----------------------------------------------------------------------------------------

# A node takes pods while its devices last, the fullest node first. The scheduler may spread pods, and then fewer fit.
# CPU, memory and the pods of other workloads are not judged.


@dataclasses.dataclass(frozen=True, slots=True)
class Fit:
    """Where a pod could run on an empty node.

    Attributes:
        nodes: that exist and could take it.
        types: their instance types; if there are none, the types of the catalogue that could.
        selected: types of existing nodes that could serve the pod, and whose other labels it does not select.
    """

    nodes: frozenset[str]
    types: tuple[str, ...]
    selected: tuple[str, ...] = ()


class _OpenNode(NamedTuple):
    """A node on which new pods get devices of the driver."""

    node: Node
    model: DeviceModel
    held: Held

    @property
    def free(self) -> int:
        """Devices that a claim can get whole."""
        return len(self.model.free(self.held))

    def take(self, claim: AllocatorClaim) -> bool:
        """Allocate a claim, and keep it; false if it does not fit."""
        found = self.model.allocate(self.held, claim)
        if found is not None:
            self.held.add(len(self.held.pods), found)
        return found is not None


class Places:
    """The nodes of a cluster, on which pods of converted workloads are placed."""

    def __init__(self, cluster: ClusterDevices, classes: Callable[[], Mapping[str, ClassSpec] | None]) -> None:
        """`classes` gives the DeviceClasses."""
        self._cluster = cluster
        self._classes = classes
        self._claims: dict[PodNeed, AllocatorClaim | None] = {}
        self._fits: dict[PodNeed, Fit] = {}
        self._empty: dict[tuple[PodNeed, str], bool] = {}
        self._by_type = dict(catalogue_hardware(cluster.catalogue))
        # A node of a Neuron type may have neither driver nor device plugin now.
        self._neuron = [
            node
            for node in cluster.nodes
            if node.legacy or cluster.publishes(node.name) or self._type(node) in cluster.catalogue
        ]
        self._open: dict[str, _OpenNode] = {}
        self._models: dict[int, DeviceModel] = {}
        """By the identity of their hardware, which they keep."""
        self._full: defaultdict[PodNeed, set[str]] = defaultdict(set)
        """Nodes that have no place for one more pod of a need. Later there is none either: nothing is given back."""
        for node in self._neuron:
            mapped = cluster.map_of(node.name)
            if mapped is not None and mapped.open and mapped.devices and cluster.devices(node.name).missing is None:
                found = cluster.devices(node.name)
                self._open[node.name] = self._opened(node, found.hardware, found.held)

    def free(self) -> dict[str, int]:
        """Devices that no claim holds, by instance type, of types that have nodes with a driver."""
        found: Counter[str] = Counter()
        for each in self._open.values():
            found[self._type(each.node)] += each.free
        return dict(sorted(found.items()))

    def move(self, name: str) -> None:
        """From now on, the driver serves a node of the device plugin."""
        node = next(each for each in self._neuron if each.name == name)
        hardware = self._by_type.get(self._type(node))
        if hardware is not None:
            self._open[name] = self._opened(node, hardware)

    def _opened(self, node: Node, hardware: Hardware, held: Results = ()) -> _OpenNode:
        # Nodes that become free have the hardware of their type: they share what is remembered of it.
        model = self._models.get(id(hardware))
        if model is None:
            entry = self._cluster.catalogue.get(self._type(node))
            model = DeviceModel(hardware, entry, counters_leak=self._cluster.counters_leak)
            self._models[id(hardware)] = model
        return _OpenNode(node, model, Held(held))

    def fit(self, need: PodNeed) -> Fit:
        """Where pods with this need could run, if nothing else ran."""
        if need not in self._fits:
            self._fits[need] = self._fit(need)
        return self._fits[need]

    def place(self, need: PodNeed, pods: int) -> Counter[str]:
        """Place pods, and keep them there: number by instance type; in total less than `pods` if not all fit."""
        placed: Counter[str] = Counter()
        claim = self.claim(need)
        if claim is None:
            return placed
        left = pods
        full = self._full[need]
        nodes = [each for name, each in self._open.items() if name not in full]
        for each in sorted(nodes, key=lambda each: (each.free, each.node.name)):
            if not left:
                break
            if not _admits(need, each.node) or untolerated(need.pod, each.node):
                full.add(each.node.name)
                continue
            while left and each.take(claim):
                placed[self._type(each.node)] += 1
                left -= 1
            if left:
                full.add(each.node.name)
        return placed

    def _fit(self, need: PodNeed) -> Fit:
        holding = [node for node in self._neuron if self._holds(need, node)]
        fitting = [node for node in holding if _admits(need, node)]
        if fitting:
            types = dict.fromkeys(sorted(map(self._type, fitting)))
            return Fit(frozenset(node.name for node in fitting), tuple(types))
        known = [
            entry.name
            for entry in self._cluster.catalogue
            if _may_admit(need, entry) and self._holds_on(need, entry.name, self._by_type[entry.name])
        ]
        return Fit(frozenset(), tuple(known), tuple(sorted({self._type(node) for node in holding} & set(known))))

    def _holds(self, need: PodNeed, node: Node) -> bool:
        """Whether the devices of a node serve the claim, if no other claim has them. Yes if they are not known."""
        hardware, key = self._by_type.get(self._type(node)), self._type(node)
        if self._cluster.publishes(node.name):
            published = self._cluster.devices(node.name).hardware
            # Nodes that publish all devices of their type share its answer.
            if published.devices and (hardware is None or len(published.devices) != len(hardware.devices)):
                hardware, key = published, f"node {node.name}"
        return hardware is None or self._holds_on(need, key, hardware)

    def _holds_on(self, need: PodNeed, key: str, hardware: Hardware) -> bool:
        if (need, key) not in self._empty:
            claim = self.claim(need)
            bare = Hardware(tuple(dataclasses.replace(each, taints=()) for each in hardware.devices), hardware.counters)
            try:
                self._empty[need, key] = claim is None or bare.node().allocate(claim) is not None
            except (SearchTooLongError, SelectorError):
                self._empty[need, key] = True  # Not decided.
        return self._empty[need, key]

    def claim(self, need: PodNeed) -> AllocatorClaim | None:
        """All claims of a pod as one claim of the model; None if it cannot be read."""
        if need not in self._claims:
            self._claims[need] = self.joined(need.claims)
        return self._claims[need]

    def joined(self, specs: Iterable[ClaimSpec]) -> AllocatorClaim | None:
        """Claims as one claim of the model; None if a selector cannot be evaluated."""
        claims = [PodClaim(str(number), spec) for number, spec in enumerate(specs)]
        try:
            try:
                return read_demand(claims, self._classes(), self._cluster.selects).claim
            except UnknownClassError:
                # The DeviceClass comes with the driver. The templates have selectors of their own.
                return read_demand(claims, None, self._cluster.selects).claim
        except SelectorError:
            return None

    def _type(self, node: Node) -> str:
        return self._cluster.instance_type(node)


def _admits(need: PodNeed, node: Node) -> bool:
    return not unmet_selection(need.pod, node)


def _may_admit(need: PodNeed, entry: InstanceType) -> bool:
    """Whether the node selection can admit nodes of a type, whatever other labels they have."""
    labels = labels_of(entry)
    node = Node(entry.name, labels={key: value for key, value in labels.items() if value is not None})
    return all(labels.get(str(each.get("key")), None) is None for each in unmet_selection(need.pod, node))


# --- the order of migration -------------------------------------------------------------------------------------------

Quotas = Callable[[str], Mapping[str, int] | None]
"""Limits of a namespace's ResourceQuotas on devices, by the name in `spec.hard`; None: not known."""


def steps(
    workloads: Iterable[Workload],
    quotas: Quotas,
    device_class: str,
    neuron_nodes: NeuronNodes | None,
    places: Places | None,
    on_nodes: Mapping[str, frozenset[str]],
) -> tuple[MigrationStep, ...]:
    """The order of migration. Namespaces in which nothing converts and nothing is blocked are left out.

    Args:
        neuron_nodes: the cluster's nodes; None without a cluster.
        places: the same nodes, as pods find place on them.
        on_nodes: node -> uids of the workloads that use the device plugin there.
    """
    by_namespace: defaultdict[str, list[Workload]] = defaultdict(list)
    for each in workloads:
        by_namespace[each.ref.namespace].append(each)
    drafts = [
        draft
        for namespace, members in by_namespace.items()
        if (draft := _draft(namespace, members, quotas(namespace) or {}, device_class)).workloads or draft.blocked
    ]
    drafts.sort(key=lambda each: namespace_order(each.namespace, by_namespace[each.namespace]))
    moving = {draft.namespace: [each for each in by_namespace[draft.namespace] if _moves(each)] for draft in drafts}
    if neuron_nodes is None or places is None:
        return tuple(drafts)
    return tuple(_with_nodes(drafts, moving, neuron_nodes, places, on_nodes))


def namespace_order(namespace: str, members: Iterable[Workload]) -> tuple[bool, int, str]:
    """By what namespaces are sorted: those without obstacles first, of those the ones with the fewest devices."""
    found = tuple(members)
    before = total(each.before for each in found if _moves(each))
    return any(each.blocked for each in found), before.devices + before.cores, namespace


def _moves(workload: Workload) -> bool:
    return workload.fate is Fate.CONVERTS and not workload.blocked


def _draft(namespace: str, members: Sequence[Workload], quota: Mapping[str, int], device_class: str) -> MigrationStep:
    moving = [each for each in members if _moves(each)]
    blocked = sum(each.blocked for each in members)
    after = total(each.after for each in moving if each.after is not None)
    resource, note = device_class + CLASS_QUOTA, ""
    if resource in quota and quota[resource] < after.devices:
        note = f"a ResourceQuota allows {quota[resource]} of {resource}; the workloads need {after.devices}"
    return MigrationStep(
        namespace=namespace,
        ready=not blocked,
        workloads=len(moving),
        blocked=blocked,
        staying=sum(each.fate in (Fate.STAYS, Fate.UNKNOWN) for each in members),
        pods=sum(each.pods or 0 for each in moving),
        before=total(each.before for each in moving),
        after=after,
        note=note,
    )


def _with_nodes(
    drafts: Sequence[MigrationStep],
    moving: Mapping[str, Sequence[Workload]],
    neuron_nodes: NeuronNodes,
    places: Places,
    on_nodes: Mapping[str, frozenset[str]],
) -> Iterable[MigrationStep]:
    """The steps with the nodes that become free, and what the driver has free before each."""
    left = {node: set(uids) for node, uids in on_nodes.items() if node in neuron_nodes.plugin}
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
