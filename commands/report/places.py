"""Places converted pods on the cluster's nodes, with the allocator's model: which types have room for how many. Pure.

A node takes pods while its devices last, the fullest node first. The scheduler may spread pods, and then fewer fit.
CPU, memory and the pods of other workloads are not judged.
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Final

from checks.claims.device_index import SelectorError
from commands.cluster.reader import Object
from commands.devices import node_fit
from commands.devices.allocator_inputs import (
    Hardware,
    PodClaim,
    Selects,
    UnknownClassError,
    catalogue_hardware,
    free_devices,
    read_demand,
)
from commands.devices.cluster_devices import ClusterDevices
from conversion.claims.candidates import labels_of
from neuron.allocator.search import AllocatorClaim, AllocatorNode, SearchTooLongError
from neuron.api.claim_specs import ClaimSpec, ClassSpec
from neuron.api.nodes import Node
from neuron.hardware.instances import InstanceType


@dataclasses.dataclass(frozen=True, eq=False)
class PodNeed:
    """What the pods of equal templates need of a node. Compared by identity.

    Attributes:
        pod: with the node selection and the tolerations only.
        claims: the specs of its claims.
    """

    pod: Object
    claims: tuple[ClaimSpec, ...]


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


class _OpenNode:
    """A node on which new pods get devices of the driver.

    Attributes:
        free: its single devices that a claim can get whole.
    """

    def __init__(self, node: Node, hardware: Hardware, model: AllocatorNode) -> None:
        self.node: Final = node
        self._hardware = hardware
        self._model = model
        self.free = self._count()

    def take(self, claim: AllocatorClaim) -> bool:
        """Allocate a claim, and keep it; false if it does not fit."""
        found = _allocates(self._model, claim)
        if found:
            self.free = self._count()
        return found

    def _count(self) -> int:
        return len(free_devices(self._hardware, self._model))


class Places:
    """The nodes of a cluster, on which pods of converted workloads are placed."""

    def __init__(self, cluster: ClusterDevices, classes: Callable[[], Mapping[str, ClassSpec] | None]) -> None:
        """`classes` gives the DeviceClasses."""
        self._cluster = cluster
        self._classes = classes
        self._selects = Selects()
        self._claims: dict[PodNeed, AllocatorClaim | None] = {}
        self._fits: dict[PodNeed, Fit] = {}
        self._empty: dict[tuple[PodNeed, str], bool] = {}
        self._by_type = dict(catalogue_hardware(cluster.catalogue))
        # A node of a Neuron type may have neither driver nor device plugin now.
        self._neuron = [node for node in cluster.nodes if self._is_neuron(node)]
        self._open: dict[str, _OpenNode] = {}
        self._full: defaultdict[PodNeed, set[str]] = defaultdict(set)
        """Nodes that have no place for one more pod of a need. Later there is none either: nothing is given back."""
        for node in self._neuron:
            mapped = cluster.map_of(node.name)
            if mapped is not None and mapped.open and mapped.devices and cluster.devices(node.name).missing is None:
                found = cluster.devices(node.name)
                model = found.hardware.node(found.held, counters_leak=cluster.counters_leak)
                self._open[node.name] = _OpenNode(node, found.hardware, model)

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
            self._open[name] = _OpenNode(node, hardware, hardware.node())

    def fit(self, need: PodNeed) -> Fit:
        """Where pods with this need could run, if nothing else ran."""
        if need not in self._fits:
            self._fits[need] = self._fit(need)
        return self._fits[need]

    def place(self, need: PodNeed, pods: int) -> Counter[str]:
        """Place pods, and keep them there: number by instance type; in total less than `pods` if not all fit."""
        placed: Counter[str] = Counter()
        claim = self._claim(need)
        if claim is None:
            return placed
        left = pods
        full = self._full[need]
        nodes = [each for name, each in self._open.items() if name not in full]
        for each in sorted(nodes, key=lambda each: (each.free, each.node.name)):
            if not left:
                break
            if not _admits(need, each.node) or node_fit.untolerated(need.pod, each.node):
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
            if published.devices and (hardware is None or len(published.devices) != len(hardware.devices)):
                hardware, key = published, f"node {node.name}"
        return hardware is None or self._holds_on(need, key, hardware)

    def _holds_on(self, need: PodNeed, key: str, hardware: Hardware) -> bool:
        if (need, key) not in self._empty:
            claim = self._claim(need)
            bare = Hardware(tuple(dataclasses.replace(each, taints=()) for each in hardware.devices), hardware.counters)
            self._empty[need, key] = claim is None or _allocates(bare.node(), claim, unknown=True)
        return self._empty[need, key]

    def _claim(self, need: PodNeed) -> AllocatorClaim | None:
        """All claims of a pod as one claim of the model; None if it cannot be read."""
        if need not in self._claims:
            self._claims[need] = self._read(need)
        return self._claims[need]

    def _read(self, need: PodNeed) -> AllocatorClaim | None:
        claims = [PodClaim(str(number), spec) for number, spec in enumerate(need.claims)]
        try:
            try:
                return read_demand(claims, self._classes(), self._selects).claim
            except UnknownClassError:
                # The DeviceClass comes with the driver. The templates have selectors of their own.
                return read_demand(claims, None, self._selects).claim
        except SelectorError:
            return None

    def _is_neuron(self, node: Node) -> bool:
        return bool(node.legacy) or self._cluster.publishes(node.name) or self._type(node) in self._cluster.catalogue

    def _type(self, node: Node) -> str:
        return self._cluster.instance_type(node)


def _admits(need: PodNeed, node: Node) -> bool:
    return not node_fit.unmet_selection(need.pod, node)


def _may_admit(need: PodNeed, entry: InstanceType) -> bool:
    """Whether the node selection can admit nodes of a type, whatever other labels they have."""
    labels = labels_of(entry)
    node = Node(entry.name, labels={key: value for key, value in labels.items() if value is not None})
    return all(labels.get(str(each.get("key")), None) is None for each in node_fit.unmet_selection(need.pod, node))


def _allocates(model: AllocatorNode, claim: AllocatorClaim, *, unknown: bool = False) -> bool:
    """Allocate a claim; `unknown`: the answer if the search takes too long or a selector fails."""
    try:
        return model.allocate(claim) is not None
    except (SearchTooLongError, SelectorError):
        return unknown
