"""Which nodes could take a pod now, with which devices, and for each other node the one reason. Pure.

The devices are those that the allocator's model (`neuron.allocator.search`) gives the pod's claims on each node. If it
gives none, the reason is found by asking again: with nothing held, without taints, without constraints.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from checks.claims.connections import group_size
from checks.claims.device_index import SelectorError
from commands.cluster.reader import Object
from commands.devices.allocator_inputs import JOINT, ClaimDemand, Hardware
from commands.devices.devices import HeldDevice, NodeMap, connected_sets
from commands.devices.node_devices import (
    TYPE_LABELS,
    ClusterDevices,
    PublishedDevices,
    conflict,
    lnc_of,
    requirement_text,
    taint_text,
    unmet_selection,
    untolerated,
)
from commands.explain.explanation import Block, Blocked, NodeVerdict
from neuron import names
from neuron.allocator.search import (
    AllocatorAlternative,
    AllocatorClaim,
    AllocatorDevice,
    AllocatorNode,
    AllocatorRequest,
    AllocatorResult,
    SearchTooLongError,
)
from neuron.api.fields import mapping, mappings, text
from neuron.api.nodes import Node, Requirement, unmet_terms
from neuron.api.stored_claims import Allocation
from neuron.api.taints import prevents_allocation
from neuron.findings import few, short
from neuron.hardware.device_shapes import DEVICE_ID
from runtime.text import cited, named, number_ranges

_MOST_SHOWN: Final = 8
"""Devices, or ranges of devices, in a message."""
_MOST_HOLDERS: Final = 3
_MOST_ALTERNATIVES: Final = f"a request has at most {names.MAX_FIRST_AVAILABLE} alternatives (NEU219)"

_Answer: TypeAlias = tuple[AllocatorResult, ...] | Blocked
"""The devices of a pod on a node, or why it gets none."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Question:
    """A claim on the devices of one node."""

    hardware: Hardware
    held: tuple[AllocatorResult, ...]
    claim: AllocatorClaim
    counters_leak: bool

    def key(self) -> object:
        """Equal for nodes that give the same answer: names, use, taints and what the claim reads of the devices."""
        read = [constraint.attribute for constraint in self.claim.constraints]
        parts = [part for request in self.claim.requests for part in request.alternatives]
        try:
            devices = tuple(
                (
                    device.name,
                    device.shared,
                    device.taints,
                    tuple(device.attributes.get(name) for name in read),
                    tuple(part.selects(device) for part in parts),
                    tuple((name, each.value) for name, each in device.capacity.items()),
                )
                for device in self.hardware.devices
            )
        except SelectorError:
            return object()  # Equal to no other.
        held = sorted((each.device, each.admin_access, tuple(sorted(each.consumed.items()))) for each in self.held)
        return devices, tuple(held), tuple(sorted(self.hardware.counters.items()))

    def answer(self) -> _Answer:
        try:
            found = self._try()
            return self._why() if found is None else found
        except SearchTooLongError:
            reason = "not decided: the search for devices takes too long, as it may in the scheduler"
            return Blocked(Block.TOO_LONG, reason)
        except SelectorError as error:
            return Blocked(Block.SELECTOR_FAILS, f"a selector of the claim fails on its devices: {cited(error)}")

    def _try(
        self, *, empty: bool = False, untainted: bool = False, loose: bool = False, sound: bool = False
    ) -> tuple[AllocatorResult, ...] | None:
        """What the claim gets: with nothing held, without taints, without constraints, or by a repaired scheduler."""
        hardware = self.hardware
        if untainted:
            bare = tuple(dataclasses.replace(device, taints=()) for device in hardware.devices)
            hardware = dataclasses.replace(hardware, devices=bare)
        leak = self.counters_leak and not sound
        node = hardware.node(() if empty else self.held, counters_leak=leak)
        return node.allocate(AllocatorClaim(self.claim.requests) if loose else self.claim)

    def _why(self) -> Blocked:
        # From what nothing helps against to what ends by itself: the first that is true is the reason.
        if self._try(empty=True, untainted=True, sound=True) is None:
            return self._never()
        if self._try(empty=True) is None or self._try(untainted=True) is not None:
            keys = {taint.key for device in self.hardware.devices for taint in device.taints}
            if keys == {names.TAINT_DEVICE_PLUGIN}:
                reason = "the device plugin still owns its devices: the driver holds them back (taint)"
                return Blocked(Block.PLUGIN, reason)
            return Blocked(Block.TAINTED, "devices that the pod needs are tainted")
        if self.counters_leak and self._try(sound=True) is not None:
            reason = (
                "the scheduler loses count of the node's devices (kubernetes/kubernetes#140436): groups stay hidden"
                " while another device of the node is in use"
            )
            return Blocked(Block.COUNTERS, reason)
        devices, needed = self._free(), self._needed()
        free = len(devices)
        if self._try(loose=True) is not None:
            connected = f"no {needed} of them are connected" if needed else "not connected as the claim requires"
            return Blocked(Block.NOT_CONNECTED, f"{free} devices are free, {connected}", free=free)
        if 0 < needed <= free:
            which = _ranges(devices)
            reason = f"{free} devices are free ({which}), and the claim names no {needed} of them together"
            return Blocked(Block.NOT_CONNECTED, reason, free=free)
        need = f", the pod needs {needed}" if needed else ""
        return Blocked(Block.HELD, f"{free} of {len(self._admitted())} devices free{need}", free=free)

    def _never(self) -> Blocked:
        for request in self.claim.requests:
            parts = request.alternatives
            if not any(part.selects(device) for device in self.hardware.devices for part in parts):
                return Blocked(
                    Block.WRONG_TYPE, f"wrong type: request {named(request.name)} admits none of its devices"
                )
        has, needed = len(self._admitted()), self._needed()
        if self._try(empty=True, untainted=True, loose=True, sound=True) is not None:
            return Blocked(Block.TOO_FEW, f"it has no {needed or ''} devices that are connected".replace("  ", " "))
        return Blocked(Block.TOO_FEW, f"it has {has} devices" + (f", the pod needs {needed}" if needed else ""))

    def _admitted(self) -> list[AllocatorDevice]:
        """Devices that a request may get."""
        parts = [part for request in self.claim.requests for part in request.alternatives]
        return [each for each in self.hardware.devices if any(part.selects(each) for part in parts)]

    def _free(self) -> list[AllocatorDevice]:
        """Those of them that no claim holds, and no taint keeps from the claim."""
        node = self.hardware.node(self.held)
        parts = [part for request in self.claim.requests for part in request.alternatives]
        tolerations = [each for part in parts for each in part.tolerations]
        return [
            device
            for device in self._admitted()
            if not prevents_allocation(device.taints, tolerations)
            if not node.in_use(device) and not node.consumed(device)
        ]

    def _needed(self) -> int:
        """Whole devices that the pod needs here; 0 if alternatives for this node differ, or are for shares or all."""
        requests = [_admitting(each, self.hardware.devices).alternatives for each in self.claim.requests]
        counts = [{part.count for part in parts} for parts in requests]
        shares = any(part.capacity for parts in requests for part in parts)
        if shares or any(len(each) != 1 or None in each for each in counts):
            return 0
        return sum(count for each in counts for count in each if count is not None)


def _ranges(devices: Iterable[AllocatorDevice]) -> str:
    """Ids of devices, such as `0-3, 6`; names of those without an id."""
    ids = [each.attributes.get(DEVICE_ID) for each in devices]
    numbers = sorted(each for each in ids if isinstance(each, int))
    if len(numbers) < len(ids):
        return few([named(each.name) for each in devices], _MOST_SHOWN)
    return few(number_ranges(numbers), _MOST_SHOWN)


def place(
    pod: Object, demand: ClaimDemand, allocated: Sequence[Allocation], cluster: ClusterDevices
) -> tuple[NodeVerdict, ...]:
    """The verdict for each node, by name.

    Args:
        pod: after conversion: node selection, tolerations.
        demand: the claims that are not allocated yet.
        allocated: `status.allocation` of the pod's claims that are allocated already.
        cluster: nodes, devices and holders.
    """
    return judge(pod, cluster, _Placer(pod, demand, allocated, cluster).ask)


def judge(pod: Object, cluster: ClusterDevices, ask: Callable[[Node], _Answer]) -> tuple[NodeVerdict, ...]:
    """The verdict for each node, by name.

    Args:
        ask: what the pod gets on a Neuron node that it may run on, apart from CPU and memory; or why it gets nothing.
    """
    found = []
    for node in sorted(cluster.nodes, key=lambda each: each.name):
        name, instance_type = node.name, cluster.instance_type(node)
        if cluster.map_of(name) is None and instance_type not in cluster.catalogue:
            found.append(NodeVerdict(name, instance_type, block=Block.NOT_NEURON, reason="no Neuron devices"))
            continue
        answer = _node_block(pod, node, instance_type) or ask(node)
        if not isinstance(answer, Blocked):
            answer = _load_block(pod, node, cluster) or answer
        if isinstance(answer, Blocked):
            found.append(answer.verdict(name, instance_type))
            continue
        texts = dict.fromkeys(map(cluster.devices(name).hardware.text, answer)) if answer else ()
        found.append(NodeVerdict(name, instance_type, answer, tuple(texts)))
    return tuple(found)


def _node_block(pod: Object, node: Node, instance_type: str) -> Blocked | None:
    """Why a node cannot take a pod, before devices are looked at; None if it can."""
    if not node.ready:
        return Blocked(Block.NOT_READY, "the node is not ready: its kubelet does not answer")
    taints = untolerated(pod, node)
    if node.cordoned and taints:
        return Blocked(Block.CORDONED, "cordoned")
    if unmet := unmet_selection(pod, node):
        return _unmet(unmet, instance_type)
    if taints:
        texts = ", ".join(map(taint_text, taints))
        return Blocked(Block.NODE_TAINT, f"the pod does not tolerate the node's taint {texts}")
    return None


def _load_block(pod: Object, node: Node, cluster: ClusterDevices) -> Blocked | None:
    """Why CPU, memory, storage or the number of pods keep a pod off a node; None if they do not, or are not known."""
    lacking = {} if cluster.loads is None else cluster.loads.lacking(pod, node)
    if not lacking:
        return None
    return Blocked(Block.RESOURCES, f"not enough {' and '.join(lacking)} free", "; ".join(lacking.values()))


def _unmet(unmet: Sequence[Requirement], instance_type: str) -> Blocked:
    by_type = [each for each in unmet if each.get("key") in TYPE_LABELS]
    if len(by_type) == len(unmet):
        wanted = ", ".join(map(named, by_type[0].get("values") or ()))
        actual = named(instance_type or "unknown")
        return Blocked(Block.WRONG_TYPE, f"wrong type: {actual}; the pod needs {short(wanted)}")
    texts = ", ".join(requirement_text(each) for each in unmet if each not in by_type)
    return Blocked(Block.SELECTION, f"the pod's node selection: {short(texts)}")


class _Placer:
    def __init__(
        self, pod: Object, demand: ClaimDemand, allocated: Sequence[Allocation], cluster: ClusterDevices
    ) -> None:
        self._pod = pod
        self._demand = demand
        self._allocated = allocated
        self._cluster = cluster
        self._known: dict[object, _Answer] = {}

    def ask(self, node: Node) -> _Answer:
        """The devices that the pod gets on a node, or why it gets none."""
        for allocation in self._allocated:
            selector = allocation.node_selector
            if selector and unmet_terms(selector.get("nodeSelectorTerms") or (), node.name, node.labels):
                return Blocked(Block.ELSEWHERE, "a claim of the pod is allocated on another node")
        if self._cluster.publishes(node.name):
            return self._by_devices(node)
        if node.legacy:
            return Blocked(Block.PLUGIN, "the device plugin still owns its devices, and the driver does not run")
        return Blocked(Block.NO_DRIVER, "the driver publishes nothing: it does not run there, or has no devices")

    def _by_devices(self, node: Node) -> _Answer:
        found = self._cluster.devices(node.name)
        if found.missing is not None:
            reason = "incomplete pool: the scheduler allocates only when all its ResourceSlices are there"
            return Blocked(Block.INCOMPLETE, reason, f"{found.missing[0]} of {found.missing[1]} ResourceSlices")
        if not found.hardware.devices and node.legacy:
            return Blocked(Block.PLUGIN, "the device plugin still owns its devices, and the driver withholds them")
        if not found.hardware.devices:
            return Blocked(Block.NO_DRIVER, "the driver runs and publishes no device")
        asked = _Question(found.hardware, found.held, self._demand.claim, self._cluster.counters_leak)
        key = asked.key()
        if key not in self._known:
            self._known[key] = asked.answer()
        answer = self._known[key]
        if isinstance(answer, Blocked):
            return self._with_detail(answer, found, self._cluster.map_of(node.name))
        return self._lnc_conflict(answer, found, self._cluster.instance_type(node)) or answer

    def _lnc_conflict(
        self, results: Iterable[AllocatorResult], found: PublishedDevices, instance_type: str
    ) -> Blocked | None:
        entry = self._cluster.catalogue.get(instance_type)
        size = entry.default_logical_neuron_core if entry else 1
        for result in results:
            wanted = lnc_of(*self._demand.configs_of(result.request)) or size
            others = found.shares.get(result.device, ())
            if result.consumed and (holder := conflict(wanted, others, size)):
                reason = "LNC conflict: the scheduler would share a device with a pod of another logicalNeuronCore"
                return Blocked(Block.LNC, reason, f"{result.device}: {holder}")
        return None

    def _with_detail(self, blocked: Blocked, found: PublishedDevices, mapped: NodeMap | None) -> Blocked:
        """The reason with what only this node has: devices, holders."""
        if mapped is None:
            return blocked
        if blocked.block is Block.NOT_CONNECTED:
            missed = untried(self._pod, self._demand, found.hardware.node(found.held), mapped)
            if missed is not None:
                ids = {each.name: each for each in found.hardware.devices}
                where = _ranges(ids[each.device] for each in missed)
                return Blocked(Block.NOT_TRIED, f"free: devices {where}; not tried by the claim", _MOST_ALTERNATIVES)
        detail = blocked.detail
        match blocked.block:
            case Block.HELD:
                detail = _holders(mapped)
            case Block.NOT_CONNECTED:
                detail = f"at most {len(mapped.largest_free)} of them connected; {_holders(mapped)}"
            case Block.TAINTED:
                tainted = [each for each in mapped.devices if each.taints]
                sick = [f"{named(each.name)} {named(each.fault or each.taints[0])}" for each in tainted]
                detail = few(sick, _MOST_HOLDERS)
        return dataclasses.replace(blocked, detail=detail)


def _holders(mapped: NodeMap) -> str:
    """Who holds the devices of a node, the largest first."""
    counts = Counter(name for device in mapped.devices for name in {_holder(each) for each in device.holders})
    held = [f"{name} ({count})" for name, count in counts.most_common()]
    return f"held by {few(held, _MOST_HOLDERS)}" if held else ""


def _holder(holding: HeldDevice) -> str:
    if not holding.pods:
        return f"claim {named(holding.name)}"
    more = f" and {len(holding.pods) - 1} more" if len(holding.pods) > 1 else ""
    return f"{named(f'{holding.namespace}/{holding.pods[0]}')}{more}"


# --- free, connected devices that a claim does not try ----------------------------------------------------------------

# A request has at most 8 alternatives, so a claim does not name every run of devices (NEU219). The claim is asked again
# with every connected set of the node: if it then fits, the devices that it gets are free and not tried.


_USERS: Final = ("initContainers", "containers")


def untried(
    pod: Object, demand: ClaimDemand, node: AllocatorNode, mapped: NodeMap
) -> tuple[AllocatorResult, ...] | None:
    """The devices that the claims of a pod would get if they tried every connected set of a node; None: not known.

    Args:
        pod: after conversion: its containers say which requests they use together.
        node: with what other claims hold.
    """
    if demand.elsewhere or any(each.distinct or not group_size(each.attribute) for each in demand.claim.constraints):
        return None
    asked = [_admitting(each, node.devices) for each in demand.claim.requests]
    parts = [part for each in asked for part in each.alternatives]

    def admits(device: AllocatorDevice) -> bool:
        return any(part.selects(device) for part in parts)

    found = [_everywhere(each, admits, mapped) for each in _used_together(pod, asked)]
    # The largest first, as in claims: they have the fewest places.
    requests = sorted((each for each in found if each is not None), key=lambda each: -(each.alternatives[0].count or 0))
    if len(requests) < len(found):
        return None
    try:
        return node.allocate(AllocatorClaim(tuple(requests)))
    except SearchTooLongError:
        return None


def _admitting(request: AllocatorRequest, devices: Sequence[AllocatorDevice]) -> AllocatorRequest:
    """The request with the alternatives that admit a device of the node."""
    parts = tuple(part for part in request.alternatives if any(map(part.selects, devices)))
    return AllocatorRequest(request.name, parts)


def _used_together(pod: Object, requests: Sequence[AllocatorRequest]) -> Iterator[list[AllocatorRequest]]:
    sets = [{place} for place in range(len(requests))]
    spec = mapping(pod.get("spec"))
    for container in (each for field in _USERS for each in mappings(spec.get(field))):
        used: set[int] = set()
        for entry in mappings(mapping(container.get("resources")).get("claims")):
            claim, request = text(entry.get("name")), text(entry.get("request"))
            used |= {place for place, each in enumerate(requests) if _names(claim, request, each.name)}
        if used:
            joined = used.union(*(each for each in sets if each & used))
            sets = [*(each for each in sets if not each & used), joined]
    return ([requests[place] for place in sorted(each)] for each in sorted(sets, key=min))


def _names(claim: str, request: str, name: str) -> bool:
    """Whether an entry of a container is for a request of the joint claim."""
    own, joint, bare = name.rpartition(JOINT)
    return (not joint or own == claim) and request in ("", bare)


def _everywhere(
    requests: Sequence[AllocatorRequest], admits: Callable[[AllocatorDevice], bool], mapped: NodeMap
) -> AllocatorRequest | None:
    """One request for what one container uses, with every connected set of a node as an alternative.

    A share of one device is as it is. None where a share is beside devices, or a count is not known.

    Args:
        admits: whether a request of the claim admits a device.
    """
    parts = [part for each in requests for part in each.alternatives]
    counts = [{part.count for part in each.alternatives} for each in requests]
    if any(part.capacity or part.admin_access for part in parts):
        return requests[0] if len(requests) == 1 and counts[0] == {1} else None
    known = [count for each in counts if len(each) == 1 for count in each if count is not None]
    if len(known) < len(requests):
        return None
    alternatives = tuple(
        AllocatorAlternative(str(number), _among(ids, admits), sum(known), tolerations=parts[0].tolerations)
        for number, ids in enumerate(connected_sets(mapped, sum(known)))
    )
    return AllocatorRequest(requests[0].name, alternatives) if alternatives else None


def _among(ids: Collection[int], admits: Callable[[AllocatorDevice], bool]) -> Callable[[AllocatorDevice], bool]:
    # Written in the loop, all alternatives would have the ids of the last one.
    return lambda device: device.attributes.get(DEVICE_ID) in ids and admits(device)
