"""Which nodes could take a pod now, with which devices, and for each other node the one reason. Pure.

The devices are those that the allocator's model (`neuron.allocator`) gives the pod's claims on each node.
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from neuron import names
from neuron.allocator import Result
from neuron.findings import short
from neuron.instances import Catalogue
from webhook.cluster.listing import Object, Seen, Unseen
from webhook.explain import node_fit
from webhook.explain.lnc import Cores, conflict, lnc_of
from webhook.explain.model import Demand, read_hardware, read_result
from webhook.explain.questions import Question
from webhook.explain.verdicts import Block, Blocked, NodeVerdict
from webhook.inspection import pools
from webhook.inspection.devices import DeviceMap, Holding, NodeMap

_MOST_HOLDERS: Final = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster as placement reads it.

    Attributes:
        nodes: all Nodes.
        slices: the driver's ResourceSlices.
        claims: all ResourceClaims.
        pods: pods that use Neuron devices.
        devices: the device map of the same objects.
        counters_leak: whether its scheduler has kubernetes/kubernetes#140436.
    """

    nodes: tuple[Object, ...]
    slices: tuple[Object, ...]
    claims: tuple[Object, ...]
    pods: tuple[Object, ...]
    devices: DeviceMap
    counters_leak: bool = False


def items(seen: Seen) -> tuple[Object, ...]:
    """The objects; none if they could not be read."""
    return () if isinstance(seen, Unseen) else seen


def place(pod: Object, demand: Demand, allocated: Sequence[Object], cluster: Cluster) -> tuple[NodeVerdict, ...]:
    """The verdict for each node, by name.

    Args:
        pod: after conversion: node selection, tolerations.
        demand: the claims that are not allocated yet.
        allocated: `status.allocation` of the pod's claims that are allocated already.
        cluster: nodes, devices and holders.
    """
    placer = _Placer(pod, demand, allocated, cluster)
    return tuple(sorted((placer.verdict(node) for node in cluster.nodes), key=lambda each: each.node))


def node_block(pod: Object, node: Object, instance_type: str) -> Blocked | None:
    """Why a node cannot take a pod, before devices are looked at; None if it can."""
    if not node_fit.is_ready(node):
        return Blocked(Block.NOT_READY, "the node is not ready: its kubelet does not answer")
    untolerated = node_fit.untolerated(pod, node)
    if (node.get("spec") or {}).get("unschedulable") and untolerated:
        return Blocked(Block.CORDONED, "cordoned")
    if unmet := node_fit.unmet_selection(pod, node):
        return _unmet(unmet, instance_type)
    if untolerated:
        texts = ", ".join(map(node_fit.taint_text, untolerated))
        return Blocked(Block.NODE_TAINT, f"the pod does not tolerate the node's taint {texts}")
    return None


def _unmet(unmet: Sequence[Object], instance_type: str) -> Blocked:
    by_type = [each for each in unmet if each.get("key") in node_fit.TYPE_LABELS]
    if len(by_type) == len(unmet):
        wanted = ", ".join(map(str, by_type[0].get("values") or ()))
        return Blocked(Block.WRONG_TYPE, f"wrong type: {instance_type or 'unknown'}; the pod needs {short(wanted)}")
    texts = ", ".join(node_fit.requirement_text(each) for each in unmet if each not in by_type)
    return Blocked(Block.SELECTION, f"the pod's node selection: {short(texts)}")


class _Placer:
    def __init__(self, pod: Object, demand: Demand, allocated: Sequence[Object], cluster: Cluster) -> None:
        self._pod = pod
        self._demand = demand
        self._allocated = allocated
        self._cluster = cluster
        self._catalogue = Catalogue()
        specs = pools.newest(cluster.slices)
        self._partial = pools.incomplete(specs)
        self._specs: defaultdict[str, list[Object]] = defaultdict(list)
        for spec in specs:
            self._specs[pools.node_of(spec)].append(spec)
        self._held: defaultdict[str, list[Result]] = defaultdict(list)
        self._cores: defaultdict[tuple[str, str], list[Cores]] = defaultdict(list)
        for claim in cluster.claims:
            self._hold(claim)
        self._maps = {node.name: node for node in cluster.devices.nodes}
        self._known: dict[Any, tuple[Result, ...] | Blocked] = {}

    def _hold(self, claim: Object) -> None:
        allocation = (claim.get("status") or {}).get("allocation") or {}
        for entry in (allocation.get("devices") or {}).get("results") or ():
            if entry.get("driver") != names.DRIVER:
                continue
            self._held[entry["pool"]].append(read_result(entry))
            if entry.get("shareID"):
                self._cores[entry["pool"], entry["device"]].append(Cores.of_claim(claim, entry))

    def verdict(self, node: Object) -> NodeVerdict:
        name = node["metadata"]["name"]
        specs = self._specs.get(name, [])
        mapped = self._maps.get(name)
        published = mapped.instance_type if mapped else ""
        instance_type = published or pools.instance_type(node)
        if not specs and not pools.advertised(node) and instance_type not in self._catalogue:
            return NodeVerdict(name, instance_type, block=Block.NOT_NEURON, reason="no Neuron devices")
        blocked = node_block(self._pod, node, instance_type) or self._by_claims(node, bool(specs))
        if blocked is not None:
            return blocked.verdict(name, instance_type)
        return self._by_devices(name, instance_type, node, specs)

    def _by_claims(self, node: Object, published: bool) -> Blocked | None:
        for allocation in self._allocated:
            selector = allocation.get("nodeSelector")
            if selector and node_fit.unmet_terms(selector.get("nodeSelectorTerms") or (), node):
                return Blocked(Block.ELSEWHERE, "a claim of the pod is allocated on another node")
        if published:
            return None
        if pools.advertised(node):
            return Blocked(Block.PLUGIN, "the device plugin still owns its devices, and the driver does not run")
        return Blocked(Block.NO_DRIVER, "the driver publishes nothing: it does not run there, or has no devices")

    # --- its devices --------------------------------------------------------------------------------------------

    def _by_devices(self, name: str, instance_type: str, node: Object, specs: list[Object]) -> NodeVerdict:
        pool = str(specs[0]["pool"]["name"])
        if pool in self._partial:
            found, expected = self._partial[pool]
            reason = "incomplete pool: the scheduler allocates only when all its ResourceSlices are there"
            return Blocked(Block.INCOMPLETE, reason, f"{found} of {expected} ResourceSlices").verdict(
                name, instance_type
            )
        hardware = read_hardware(specs)
        if not hardware.devices and pools.advertised(node):
            reason = "the device plugin still owns its devices, and the driver withholds them"
            return Blocked(Block.PLUGIN, reason).verdict(name, instance_type)
        if not hardware.devices:
            return Blocked(Block.NO_DRIVER, "the driver runs and publishes no device").verdict(name, instance_type)
        here = [each for each in self._held[pool] if each.device in hardware.names]
        asked = Question(hardware, tuple(here), self._demand.claim, self._cluster.counters_leak)
        key = asked.key()
        if key not in self._known:
            self._known[key] = asked.answer()
        answer = self._known[key]
        mapped = self._maps.get(name)
        if isinstance(answer, Blocked):
            return self._with_detail(answer, mapped).verdict(name, instance_type)
        conflict_found = self._lnc_conflict(answer, pool, mapped)
        if conflict_found is not None:
            return conflict_found.verdict(name, instance_type)
        return NodeVerdict(name, instance_type, answer, tuple(dict.fromkeys(map(hardware.text, answer))))

    def _lnc_conflict(self, results: Iterable[Result], pool: str, mapped: NodeMap | None) -> Blocked | None:
        default = self._catalogue.get(mapped.instance_type if mapped else "")
        size = default.default_logical_neuron_core if default else 1
        for result in results:
            others = self._cores.get((pool, result.device), ())
            wanted = lnc_of(*self._demand.configs_of(result.request)) or size
            if result.consumed and (holder := conflict(wanted, others, size)):
                reason = "LNC conflict: the scheduler would share a device with a pod of another logicalNeuronCore"
                return Blocked(Block.LNC, reason, f"{result.device}: {holder}")
        return None

    def _with_detail(self, blocked: Blocked, mapped: NodeMap | None) -> Blocked:
        """The reason with what only this node has: devices, holders."""
        if mapped is None:
            return blocked
        match blocked.block:
            case Block.HELD:
                return dataclasses.replace(blocked, detail=_holders(mapped))
            case Block.NOT_CONNECTED:
                most = len(mapped.largest_free)
                return dataclasses.replace(blocked, detail=f"at most {most} of them connected; {_holders(mapped)}")
            case Block.TAINTED:
                sick = [
                    f"{device.name} {device.fault or device.taints[0]}" for device in mapped.devices if device.taints
                ]
                return dataclasses.replace(blocked, detail=_listed(sick))
        return blocked


def _holders(mapped: NodeMap) -> str:
    """Who holds the devices of a node, the largest first."""
    counts: Counter[str] = Counter()
    for device in mapped.devices:
        for name in {_holder(each) for each in device.holders}:
            counts[name] += 1
    return f"held by {_listed([f'{name} ({count})' for name, count in counts.most_common()])}" if counts else ""


def _holder(holding: Holding) -> str:
    if not holding.pods:
        return f"claim {holding.name}"
    more = f" and {len(holding.pods) - 1} more" if len(holding.pods) > 1 else ""
    return f"{holding.namespace}/{holding.pods[0]}{more}"


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - _MOST_HOLDERS
    return ", ".join(texts[:_MOST_HOLDERS]) + (f" and {more} more" if more > 0 else "")
