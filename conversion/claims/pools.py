"""Which pools of autoscalers, and which nodes that no pool made, can take a pod. Pure.

The answer depends on the pools, and on the nodes that exist without one; never on nodes that a pool made and that a
process happened to see. A pool can take a pod if its requirements and labels and the pod's node selection have a value
in common for each label, an instance type fits both and the pod's devices, and the pod tolerates its taints. Source:
Karpenter, `scheduling.Requirements.Compatible` and its page "Scheduling": a label that neither Karpenter nor the pool
knows is absent on its nodes.
"""

import dataclasses
import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from conversion.claims.candidates import ACCELERATORS, NodeSelection, labels_of
from conversion.claims.containers import Ask, Role
from neuron import names
from neuron.api.node_pools import NODE_GROUP, Pool
from neuron.api.nodes import Requirement, Term, compares, matches_nothing, unmet_selector, unmet_terms
from neuron.api.taints import TolerationSpec
from neuron.hardware.instances import InstanceType

_PROVIDERS: Final = ("karpenter.k8s.aws/", "eks.amazonaws.com/")
_ZONE: Final = "topology.kubernetes.io/zone"
_HOSTNAME: Final = "kubernetes.io/hostname"
_ALIASES: Final = {
    names.LABEL_INSTANCE_TYPE_BETA: names.LABEL_INSTANCE_TYPE,
    "failure-domain.beta.kubernetes.io/zone": _ZONE,
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
    "beta.kubernetes.io/arch": "kubernetes.io/arch",
    "beta.kubernetes.io/os": "kubernetes.io/os",
}
"""Older names of labels (Karpenter's `NormalizedLabels`)."""
_ON_ALL_NODES: Final = (
    _ZONE,
    "topology.kubernetes.io/region",
    "topology.k8s.aws/zone-id",
    "karpenter.sh/capacity-type",
    "karpenter.sh/registered",
    "karpenter.sh/initialized",
)
"""Labels that each node of Karpenter has, with a value that a pool may leave open."""
_OF_ONE_NODE: Final = (_HOSTNAME, "topology.k8s.aws/network-node-layer-", names.ULTRASERVER_LABELS)
"""Labels whose values few nodes share, or their beginnings. They are not kept of nodes."""
_OF_ONE_NODE_ENDS: Final = "/instance-id"


class StaticNode(NamedTuple):
    """What is kept of a node that no pool made. Equal nodes are one.

    Attributes:
        instance_type: without SageMaker's prefix.
        labels: sorted, without those of `is_of_one_node`.
    """

    instance_type: str
    labels: tuple[tuple[str, str], ...] = ()


def is_of_one_node(key: str) -> bool:
    """Whether a label tells single nodes, or small sets of them, apart."""
    return key.startswith(_OF_ONE_NODE) or key.endswith(_OF_ONE_NODE_ENDS)


class Supply(Struct, frozen=True):
    """The nodes that there are and that can be made.

    Attributes:
        pools: of autoscalers.
        zones: in which a node class makes nodes, by its name, as far as they are known.
        nodes: distinct nodes that no pool made; without nodes of other types than Neuron's.
        unlisted: whether there are more of them than are kept.
        problem: why the pools are not known, as a clause; empty if they are.
    """

    pools: tuple[Pool, ...] = ()
    zones: tuple[tuple[str, tuple[str, ...]], ...] = ()
    nodes: frozenset[StaticNode] = frozenset()
    unlisted: bool = False
    problem: str = ""

    def over(self, other: "Supply") -> "Supply":
        """This supply, and what another one has in addition."""
        known = {(pool.kind, pool.name) for pool in self.pools}
        pools = (*self.pools, *(pool for pool in other.pools if (pool.kind, pool.name) not in known))
        zones = {**dict(other.zones), **dict(self.zones)}
        return Supply(
            pools,
            tuple(zones.items()),
            self.nodes | other.nodes,
            self.unlisted or other.unlisted,
            self.problem or other.problem,
        )


NO_SUPPLY: Final = Supply()


class PodNeeds(NamedTuple):
    """What a pod needs of a node, for this question.

    Attributes:
        devices: that its containers have at once; 0 if it requests cores only.
        cores: physical ones, as `devices`.
        families: the only ones allowed; empty for any.
    """

    selection: NodeSelection
    tolerations: tuple[TolerationSpec, ...]
    devices: int
    cores: int
    families: Collection[str] = ()


class PoolMatch(NamedTuple):
    """A pool that can take a pod, with its instance types that fit, in catalogue order."""

    pool: Pool
    types: tuple[InstanceType, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Takers:
    """What can take a pod. Pools are in the order in which Karpenter tries them.

    Attributes:
        static: pools that have nodes for its claim, whatever pods wait.
        idle: static pools with no replicas.
        dynamic: pools that make a node for the pod with limits, and none for one with a claim.
        types: the instance types of nodes without a pool that can take it.
    """

    static: tuple[PoolMatch, ...] = ()
    idle: tuple[PoolMatch, ...] = ()
    dynamic: tuple[PoolMatch, ...] = ()
    types: frozenset[str] = frozenset()


NOBODY: Final = Takers()


def amounts(asks: Iterable[Ask]) -> tuple[int, int]:
    """Devices and cores that the containers of a pod have at once."""
    found = []
    for in_cores in (False, True):
        lasting = initial = 0
        for ask in asks:
            if ask.in_cores is in_cores:
                if ask.role is Role.INIT:
                    initial = max(initial, ask.amount + lasting)
                else:
                    lasting += ask.amount
        found.append(max(initial, lasting))
    return found[0], found[1]


class _Values(NamedTuple):
    """The values of a label that requirements allow.

    Attributes:
        values: the allowed ones, or the forbidden ones.
        inverted: whether they are forbidden.
        above: and below: limits of a whole number, exclusive.
        absent: whether a node without the label is allowed.
    """

    values: frozenset[str]
    inverted: bool = True
    above: int | None = None
    below: int | None = None
    absent: bool = False

    def has(self, value: str) -> bool:
        if (value in self.values) is self.inverted:
            return False
        if self.above is not None and not compares("Gt", value, str(self.above)):
            return False
        return self.below is None or compares("Lt", value, str(self.below))

    def and_(self, other: "_Values") -> "_Values":
        lows = [each for each in (self.above, other.above) if each is not None]
        highs = [each for each in (self.below, other.below) if each is not None]
        if self.inverted and other.inverted:
            values, inverted = self.values | other.values, True
        elif self.inverted or other.inverted:
            listed, forbidden = (other, self) if self.inverted else (self, other)
            values, inverted = listed.values - forbidden.values, False
        else:
            values, inverted = self.values & other.values, False
        return _Values(
            values, inverted, max(lows, default=None), min(highs, default=None), self.absent and other.absent
        )

    @property
    def possible(self) -> bool:
        """Whether a node can meet it."""
        if self.absent:
            return True
        if not self.inverted:
            return any(map(self.has, self.values))
        return self.above is None or self.below is None or self.below - self.above > 1


_NOTHING: Final = _Values(frozenset(), inverted=False)
_ABSENT: Final = _Values(frozenset(), inverted=False, absent=True)
_ANY: Final = _Values(frozenset())


def _allowed(operator: str, values: Sequence[object]) -> _Values:
    """The values that a requirement allows; an operator that nobody knows allows any."""
    texts = frozenset(map(str, values))
    match operator:
        case "In":
            return _Values(texts, inverted=False)
        case "NotIn":
            return _Values(texts, absent=True)
        case "DoesNotExist":
            return _ABSENT
        case "Gt" | "Lt" | "Gte" | "Lte":
            return _compared(operator, next(iter(texts), ""))
    return _ANY


def _compared(operator: str, limit: str) -> _Values:
    if not compares("Gt", limit, "-999999999999999999"):
        return _NOTHING
    number = int(limit)
    if operator.startswith("G"):
        return _Values(frozenset(), above=number - (operator == "Gte"))
    return _Values(frozenset(), below=number + (operator == "Lte"))


def _merged(rules: Iterable[tuple[str, _Values]]) -> dict[str, _Values]:
    """The values that all rules on a label allow, by label."""
    found: dict[str, _Values] = {}
    for key, values in rules:
        found[key] = found[key].and_(values) if key in found else values
    return found


def _rule(key: str, operator: str, values: Sequence[object]) -> tuple[str, _Values]:
    """A requirement of a pool or of a pod: the label by its newer name, and the values that it allows."""
    key = _ALIASES.get(key, key)
    if key.endswith("/instance-type"):
        # SageMaker HyperPod writes instance types as `ml.<type>`.
        values = [str(each).removeprefix(names.SAGEMAKER_PREFIX) for each in values]
    return key, _allowed(operator, values)


# --- labels that the instance type determines ---------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _labels(entry: InstanceType) -> Mapping[str, str | None]:
    """Labels of the nodes of a type; the value is None if it is not known."""
    more: dict[str, str | None] = {"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux"}
    more |= {f"{domain}instance-accelerator-manufacturer": "aws" for domain in _PROVIDERS}
    return {**labels_of(entry), **more}


def _is_of_type(key: str) -> bool:
    """Whether an instance type determines a label."""
    if key in ("kubernetes.io/arch", "kubernetes.io/os", names.LABEL_INSTANCE_TYPE):
        return True
    return any(key.startswith(f"{domain}instance-") for domain in _PROVIDERS)


def _type_meets(labels: Mapping[str, str | None], key: str, allowed: _Values) -> bool:
    if key not in labels:
        # No Neuron type has GPUs; figures such as instance-cpu are not in the catalogue.
        return allowed.absent if "/instance-gpu-" in key else True
    value = labels[key]
    if value is None:
        return allowed.inverted or not allowed.values <= ACCELERATORS
    return allowed.has(value)


def _split(rules: Mapping[str, _Values]) -> tuple[dict[str, _Values], dict[str, _Values]]:
    """Rules on labels that the instance type determines, and the others."""
    of_type = {key: each for key, each in rules.items() if _is_of_type(key)}
    return of_type, {key: each for key, each in rules.items() if key not in of_type}


# --- pools ----------------------------------------------------------------------------------------------------


class _NeuronPool(NamedTuple):
    """A pool with its Neuron types, and what its nodes have of other labels."""

    pool: Pool
    types: tuple[InstanceType, ...]
    labels: Mapping[str, _Values]

    def has(self, key: str, wanted: _Values) -> bool:
        """Whether a node of it can meet requirements on a label."""
        offered = self.labels.get(key)
        if offered is None:
            if key.startswith((*_ON_ALL_NODES, "karpenter.k8s.aws/")):
                return wanted.possible and wanted != _ABSENT
            return wanted.absent
        return offered.and_(wanted).possible


class NeuronPools:
    """The pools of a supply that can have Neuron nodes. Immutable: made once for many pods."""

    def __init__(self, supply: Supply, catalogue: Iterable[InstanceType]) -> None:
        self._supply = supply
        self._entries = tuple(catalogue)
        zones = dict(supply.zones)
        read = [_neuron_pool(pool, zones, self._entries) for pool in supply.pools]
        found = [each for each in read if each.types]
        self._pools = sorted(found, key=lambda each: (-each.pool.weight, each.pool.kind, each.pool.name))

    @property
    def problem(self) -> str:
        """`Supply.problem`."""
        return self._supply.problem

    @property
    def known(self) -> bool:
        """Whether a pool or node with Neuron devices is known."""
        return bool(self._pools or self._supply.nodes)

    def families(self, *, dynamic: bool) -> frozenset[str]:
        """The families of static pools; `dynamic`: of all pools."""
        pools = [each for each in self._pools if dynamic or not (each.pool.dynamic or each.pool.automatic)]
        return frozenset(entry.family for each in pools for entry in each.types)

    def named(self, name: str) -> Pool | None:
        """The pool of that name that can have Neuron nodes."""
        return next((each.pool for each in self._pools if each.pool.name == name), None)

    def takers(self, needs: PodNeeds) -> Takers:
        """What can take a pod."""
        if not self.known:
            return NOBODY
        fitting = [entry for entry in self._entries if _fits(entry, needs)]
        ways = [*_ways(needs.selection, fitting)]
        static: list[PoolMatch] = []
        idle: list[PoolMatch] = []
        dynamic: list[PoolMatch] = []
        for each in self._pools:
            match = _match(each, needs, ways)
            if match is None:
                continue
            pool = each.pool
            if pool.dynamic or pool.automatic:
                serves = pool.serves_claims and needs.devices == 1 and not needs.cores
                (static if serves else dynamic).append(match)
            else:
                (static if pool.replicas and dict(pool.limits).get("nodes", 1) > 0 else idle).append(match)
        return Takers(tuple(static), tuple(idle), tuple(dynamic), frozenset(self._types(needs, fitting)))

    def _types(self, needs: PodNeeds, fitting: Sequence[InstanceType]) -> Iterator[str]:
        """Types of nodes without a pool that can take a pod. Their taints are not known."""
        names_ = {entry.name for entry in fitting}
        unknown = {node.instance_type for node in self._supply.nodes} - {entry.name for entry in self._entries}
        for node in self._supply.nodes:
            fits = node.instance_type in names_ or node.instance_type in unknown
            if fits and (self._supply.unlisted or not unmet(needs.selection, node)):
                yield node.instance_type

    @property
    def _all_known(self) -> bool:
        return self.known and not self._supply.unlisted and not self._supply.problem

    def selected(self, selection: NodeSelection) -> Takers:
        """What meets a node selection, whatever a pod asks for and tolerates; `NOBODY` if not all pools are known."""
        return self.takers(PodNeeds(selection, (TolerationSpec(),), 0, 0)) if self._all_known else NOBODY

    def unmet_everywhere(self, selection: NodeSelection) -> Requirement | None:
        """A requirement of a node selection that no node and no pool meets, or that none meets with the others.

        None if one can meet the selection, or if no pool and no node is known.
        """
        if not self._all_known or self.selected(selection) != NOBODY:
            return None
        parts = [*unmet_selector(selection.node_selector, {})]
        single = selection.terms is not None and len(selection.terms) == 1
        parts += [each for term in selection.terms or () if single for each in term.get("matchExpressions") or ()]
        for part in parts:
            if self.selected(NodeSelection(terms=[{"matchExpressions": [part]}])) == NOBODY:
                return part
        return parts[0] if len(parts) == 1 else {"key": "", "operator": "", "values": []}


NO_POOLS: Final = NeuronPools(NO_SUPPLY, ())


def unmet(selection: NodeSelection, node: StaticNode) -> list[Requirement]:
    """The requirements of a node selection that a node does not meet, without those on labels that are not kept."""
    if selection.annotated and node.instance_type not in selection.annotated:
        return [{"key": names.LABEL_INSTANCE_TYPE, "operator": "In", "values": list(selection.annotated)}]
    labels = dict(node.labels)
    found = unmet_selector(selection.node_selector, labels)
    if selection.terms is not None:
        terms: list[Term] = [
            {"matchExpressions": term["matchExpressions"]} if term.get("matchExpressions") else term
            for term in selection.terms
        ]
        by_field = any(not term.get("matchExpressions") and term.get("matchFields") for term in selection.terms)
        found += [] if by_field else unmet_terms(terms, "", labels)
    return [each for each in found if not is_of_one_node(str(each.get("key")))]


def _neuron_pool(pool: Pool, zones: Mapping[str, tuple[str, ...]], entries: Sequence[InstanceType]) -> _NeuronPool:
    rules = _merged(_rule(each.key, each.operator, each.values) for each in pool.rules)
    of_type, others = _split(rules)
    _, _, node_class = pool.node_class
    if zones.get(node_class):
        known = _Values(frozenset(zones[node_class]), inverted=False)
        others[_ZONE] = others.get(_ZONE, _ANY).and_(known)
    if pool.kind == NODE_GROUP[1] and not of_type and not pool.serves_claims:
        return _NeuronPool(pool, (), others)  # It may be of any type of EC2.
    named = frozenset[str]().union(*(each.values for each in of_type.values() if not each.inverted))
    types = tuple(
        entry
        for entry in entries
        if (entry.offered or not named.isdisjoint((entry.name, entry.family)))
        and all(_type_meets(_labels(entry), key, each) for key, each in of_type.items())
        and _within(entry, dict(pool.limits))
    )
    return _NeuronPool(pool, types, others)


def _within(entry: InstanceType, limits: Mapping[str, int]) -> bool:
    """Whether the limits of a pool allow one node of a type. CPU and memory of types are not known."""
    devices = entry.devices or 1
    least = {
        **dict.fromkeys(("nodes", "cpu", "memory"), 1),
        **dict.fromkeys((names.RESOURCE_NEURON, names.RESOURCE_NEURONDEVICE), devices),
        names.RESOURCE_NEURONCORE: devices * (entry.cores_per_device or 1),
    }
    return all(limits.get(resource, amount) >= amount for resource, amount in least.items())


class _Way(NamedTuple):
    """One way to meet a node selection.

    Attributes:
        rules: on labels that the instance type does not determine.
        types: that meet the requirements on the others.
        providers: domains of the labels that it requires: nodes have those of the program that made them.
    """

    rules: Mapping[str, _Values]
    types: frozenset[str]
    providers: frozenset[str]


def _ways(selection: NodeSelection, fitting: Sequence[InstanceType]) -> Iterator[_Way]:
    """One for each term of required node affinity that a new node can meet."""
    own = [_rule(key, "In", [value]) for key, value in selection.node_selector.items()]
    terms: Sequence[Sequence[Requirement]] = [()]
    if selection.terms is not None:
        # A field names a node that exists.
        terms = [
            term.get("matchExpressions") or ()
            for term in selection.terms
            if not matches_nothing(term) and not term.get("matchFields")
        ]
    for term in terms:
        listed = (_rule(str(each.get("key")), str(each.get("operator")), each.get("values") or ()) for each in term)
        of_type, others = _split(_merged([*own, *listed]))
        types = frozenset(
            entry.name
            for entry in fitting
            if all(_type_meets(_labels(entry), key, each) for key, each in of_type.items())
        )
        if types and others.get(_HOSTNAME, _ANY).inverted:
            required = [key for key, each in of_type.items() if not each.absent]
            providers = frozenset(each for each in _PROVIDERS if any(key.startswith(each) for key in required))
            yield _Way(others, types, providers)


def _match(each: _NeuronPool, needs: PodNeeds, ways: Sequence[_Way]) -> PoolMatch | None:
    if not all(any(one.tolerates(taint) for one in needs.tolerations) for taint in each.pool.taints):
        return None
    taken: set[str] = set()
    own = frozenset() if each.pool.kind == NODE_GROUP[1] else frozenset({_PROVIDERS[each.pool.automatic]})
    for way in ways:
        if way.providers <= own and all(each.has(key, wanted) for key, wanted in way.rules.items()):
            taken |= way.types
    types = tuple(entry for entry in each.types if entry.name in taken)
    return PoolMatch(each.pool, types) if types else None


def _fits(entry: InstanceType, needs: PodNeeds) -> bool:
    """Whether a node of a type has the devices of a pod; yes if its number is not known."""
    if needs.selection.annotated and entry.name not in needs.selection.annotated:
        return False
    if needs.families and entry.family not in needs.families:
        return False
    if entry.devices is None:
        return True
    cores = entry.cores_per_device
    if cores is None:
        return needs.devices <= entry.devices
    return needs.devices + -(-needs.cores // cores) <= entry.devices
