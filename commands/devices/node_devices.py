"""The devices of nodes, and what claims hold of them: what one more claim gets there, and what is free. Pure.

A report's plan and a rehearsal place pods with it. `explain` asks the allocator itself: it needs the reason of a no.
"""

import dataclasses
import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from checks.claims.device_index import SelectorError
from commands.cluster.reader import Object, Unseen, items
from commands.cluster.snapshot import ClusterSnapshot
from commands.devices import device_map
from commands.devices.allocator_inputs import Hardware, Selects, hardware_of, result_of
from commands.devices.devices import DeviceGroup, NodeMap, connected_groups, existing_links, largest_connected
from neuron import names
from neuron.allocator.search import AllocatorClaim, AllocatorNode, AllocatorResult, SearchTooLongError
from neuron.api.allocation import config_entries
from neuron.api.configs import ConfigEntry, configs_in_force
from neuron.api.nodes import Node, Requirement, required_terms, unmet_selector, unmet_terms
from neuron.api.slices import Slice, incomplete, newest
from neuron.api.stored_claims import StoredClaim
from neuron.api.taints import Taint, TolerationSpec
from neuron.hardware.device_shapes import DEVICE_ID, qualified
from neuron.hardware.instances import Catalogue, InstanceType
from runtime.text import named

Results: TypeAlias = tuple[AllocatorResult, ...]

_RESOURCE_TYPE: Final = qualified(names.ATTRIBUTE_RESOURCE_TYPE)
_ALTERNATIVES: Final = {34: 0.0, 35: 1.0}
"""Weight of the scheduler's score for alternatives, by minor version of Kubernetes; 2 in all others."""


class Held:
    """What claims hold of the devices of one node.

    Attributes:
        fixed: what holders have that are no pods of the caller.
        pods: what its pods have, by their number.
    """

    __slots__ = ("_key", "fixed", "pods")

    def __init__(self, fixed: Results = (), pods: dict[int, Results] | None = None) -> None:
        self.fixed = fixed
        self.pods = pods or {}
        self._key: object = None

    def copy(self) -> "Held":
        """An independent copy."""
        return Held(self.fixed, dict(self.pods))

    def __iter__(self) -> Iterator[AllocatorResult]:
        yield from self.fixed
        for results in self.pods.values():
            yield from results

    @property
    def key(self) -> object:
        """Equal for equal devices that are held."""
        if self._key is None:
            found = [(each.device, *sorted(each.consumed.items())) for each in self if not each.admin_access]
            self._key = tuple(sorted(found))
        return self._key

    def fix(self, results: Results) -> None:
        """Set what holders have that are no pods of the caller."""
        self.fixed, self._key = results, None

    def add(self, pod: int, results: Results) -> None:
        self.pods[pod], self._key = results, None

    def remove(self, pod: int) -> None:
        self.pods.pop(pod, None)
        self._key = None


class DeviceModel:
    """The devices of nodes with equal hardware. Answers are remembered by what is held."""

    def __init__(self, hardware: Hardware, entry: InstanceType | None, *, counters_leak: bool, minor: int = 0) -> None:
        """Prepare. `entry`: the instance type; None if the catalogue lacks it. `minor`: version of Kubernetes."""
        self.hardware: Final = hardware
        self._entry = entry
        self._leak = counters_leak
        self._weight: Final = _ALTERNATIVES.get(minor, 2.0)
        self._answers: dict[object, tuple[AllocatorClaim, Results | None]] = {}
        self._free: dict[object, tuple[int, ...]] = {}
        self._largest: dict[tuple[int, ...], int] = {}
        self._last: tuple[object, AllocatorNode] | None = None
        singles = [each for each in hardware.devices if each.attributes.get(_RESOURCE_TYPE) != names.RESOURCE_TYPE_NODE]
        ids = [each.attributes.get(DEVICE_ID) for each in singles]
        self.index: Final = {
            each.name: number if isinstance(number, int) else at
            for at, (each, number) in enumerate(zip(singles, ids, strict=True))
        }
        self.whole: Final = tuple(each.name for each in hardware.devices if each.name not in self.index)
        self.single: Final = bool(singles)
        self.count: Final = len(singles) or (entry.devices if entry is not None and entry.devices else len(self.whole))

    def allocate(self, held: Held, claim: AllocatorClaim) -> Results | None:
        """The devices of a claim beside those that are held; None if it gets none."""
        key = (held.key, id(claim))
        if key not in self._answers:
            node = self._node(held)
            try:
                found = node.allocate(claim)
            except (SearchTooLongError, SelectorError):
                found = None
            node.release(found or ())
            self._answers[key] = claim, found
        return self._answers[key][1]

    def later(self, claim: AllocatorClaim, results: Results) -> float:
        """What a node's score loses because a claim gets later alternatives of its requests there."""
        got = {each.request for each in results}
        ranks = [
            rank
            for request in claim.requests
            for rank, each in enumerate(request.alternatives)
            if each.name and f"{request.name}/{each.name}" in got
        ]
        return self._weight * sum(ranks) / (names.MAX_FIRST_AVAILABLE * len(ranks)) if ranks else 0.0

    def free(self, held: Held) -> tuple[int, ...]:
        """Indices of the devices that a claim can get whole.

        A node that publishes only itself as a whole has all of its devices free, or none.
        """
        if held.key not in self._free:
            if self.single:
                self._free[held.key] = tuple(sorted(self._whole_devices(self._node(held))))
            else:
                self._free[held.key] = () if any(True for _ in held) else tuple(range(self.count))
        return self._free[held.key]

    def largest(self, held: Held) -> int:
        """The size of the largest connected set of devices that a claim can get whole."""
        free = self.free(held)
        if not self.single:
            return len(free)
        if free not in self._largest:
            indices, (sets, pairs) = tuple(sorted(self.index.values())), self._links
            self._largest[free] = len(largest_connected(self._entry, indices, free, sets, pairs))
        return self._largest[free]

    @functools.cached_property
    def _links(self) -> tuple[tuple[DeviceGroup, ...], tuple[tuple[int, int], ...]]:
        """The connected sets that claims can request, and the pairs of connected devices."""
        published = {each.name: each.attributes for each in self.hardware.devices}
        sets = connected_groups({index: published[name] for name, index in self.index.items()})
        return sets, existing_links(self._entry, tuple(sorted(self.index.values())), sets)

    def _whole_devices(self, node: AllocatorNode) -> Iterator[int]:
        """Indices of the single devices that a claim can get whole."""
        for device in self.hardware.devices:
            taken = device.name not in self.index or node.in_use(device) or node.consumed(device)
            if taken or any(taint.prevents for taint in device.taints):
                continue
            if all(node.left(name) >= amount for name, amount in device.counters.items()):
                yield self.index[device.name]

    def _node(self, held: Held) -> AllocatorNode:
        """The node of the allocator. It is kept: one question about what is held mostly follows another."""
        if self._last is None or self._last[0] != held.key:
            self._last = held.key, self.hardware.node(held, counters_leak=self._leak)
        return self._last[1]


# --- the devices of a cluster -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Cores:
    """A share of a device.

    Attributes:
        holder: the pod or claim that has it, for messages.
        lnc: its logicalNeuronCore; None: the default of the instance type.
    """

    holder: str
    lnc: int | None

    @classmethod
    def of_claim(cls, claim: StoredClaim, request: str) -> "Cores":
        """The share that a request of an allocated claim has."""
        namespace, name = claim.metadata.namespace, claim.metadata.name
        holder = named(f"{namespace}/{claim.pods[0].name}") if claim.pods else f"claim {named(f'{namespace}/{name}')}"
        configs = claim.allocation.configs if claim.allocation is not None else ()
        return cls(holder, lnc_of(config_entries(configs, names.DRIVER)[0], request))


def lnc_of(configs: Sequence[ConfigEntry], request: str) -> int | None:
    """The logicalNeuronCore in force for a request, `req` or `req/sub`; None if none is set."""
    return configs_in_force(configs, request).logical_neuron_core


def conflict(wanted: int, others: Iterable[Cores], default: int) -> str:
    """Which holder uses a device with another size, as a text; empty if none does.

    Args:
        wanted: size of the pod.
        others: shares that claims hold of the device.
        default: size of the instance type.
    """
    for other in others:
        if (other.lnc or default) != wanted:
            return f"{other.holder} uses it with logicalNeuronCore {other.lnc or default}, the pod needs {wanted}"
    return ""


_VERSION: Final = re.compile(r"v?1\.([0-9]{1,4})\.([0-9]{1,4})")
_LAST_LEAKING: Final = (36, 2)
"""The last release of Kubernetes 1 with kubernetes/kubernetes#140436."""


@dataclasses.dataclass(frozen=True, slots=True)
class PublishedDevices:
    """The published devices of one node.

    Attributes:
        hardware: in the newest generation of its pool.
        missing: slices found and expected, if the pool is incomplete; else None.
        shares: shares of its devices, by device.
    """

    hardware: Hardware
    held: tuple[AllocatorResult, ...]
    missing: tuple[int, int] | None
    shares: Mapping[str, Sequence[Cores]]


class ClusterDevices:
    """Nodes, devices and holders of a cluster. Devices of a node are read once.

    Attributes:
        nodes: all Nodes.
        pods: pods that use Neuron devices.
        claims: all ResourceClaims.
        catalogue: instance types.
        loads: what pods request of their nodes; None: not known.
        selects: evaluates selectors on the devices.
        minor: version of Kubernetes, such as 36 for 1.36; 0: not known.
        counters_leak: whether the scheduler has kubernetes/kubernetes#140436.
        map: the device map.
    """

    def __init__(self, seen: ClusterSnapshot, kubernetes: str, catalogue: Catalogue) -> None:
        """Prepare.

        Args:
            seen: objects of the cluster; nodes and slices could be read.
            kubernetes: version of the API server, which is taken for that of the scheduler.
            catalogue: instance types.
        """
        self.nodes: Final = items(seen.nodes)
        self.pods: Final = items(seen.pods)
        self.claims: Final = items(seen.claims)
        self.catalogue: Final = catalogue
        self.loads: Final = seen.loads
        self.selects: Final = Selects()
        version = _VERSION.match(kubernetes)
        self.minor: Final = 0 if version is None else int(version[1])
        self.counters_leak: Final = version is not None and (self.minor, int(version[2])) <= _LAST_LEAKING
        current = newest(items(seen.slices))
        self._missing = incomplete(current)
        self._slices: defaultdict[str, list[Slice]] = defaultdict(list)
        for each in current:
            self._slices[each.node].append(each)
        self._held: defaultdict[str, list[AllocatorResult]] = defaultdict(list)
        self._shares: defaultdict[str, defaultdict[str, list[Cores]]] = defaultdict(lambda: defaultdict(list))
        for claim in self.claims:
            for entry in claim.ours:
                self._held[entry.pool].append(result_of(entry))
                if entry.share_id:
                    self._shares[entry.pool][entry.device].append(Cores.of_claim(claim, entry.request))
        self.map: Final = device_map.build(seen, catalogue)
        self._maps = {node.name: node for node in self.map.nodes}
        self._read: dict[str, PublishedDevices] = {}

    @classmethod
    def of(cls, seen: ClusterSnapshot, kubernetes: str, catalogue: Catalogue | None = None) -> "ClusterDevices | None":
        """The cluster; None if nodes or slices could not be read."""
        if isinstance(seen.nodes, Unseen) or isinstance(seen.slices, Unseen):
            return None
        return cls(seen, kubernetes, catalogue or Catalogue())

    def publishes(self, node: str) -> bool:
        """Whether the driver publishes slices of the node, with or without devices."""
        return node in self._slices

    def map_of(self, node: str) -> NodeMap | None:
        """The node in the device map."""
        return self._maps.get(node)

    def instance_type(self, node: Node) -> str:
        """As the driver publishes it, else by the Node's label; empty if unknown."""
        mapped = self._maps.get(node.name)
        return (mapped.instance_type if mapped else "") or node.instance_type

    def devices(self, node: str) -> PublishedDevices:
        """The devices of a node that publishes slices."""
        if node not in self._read:
            slices = self._slices[node]
            pool = slices[0].pool
            hardware = hardware_of(slices)
            known = hardware.names
            held = tuple(each for each in self._held[pool] if each.device in known)
            self._read[node] = PublishedDevices(hardware, held, self._missing.get(pool), self._shares[pool])
        return self._read[node]


# --- whether a pod may run on a node, apart from its devices: selection and taints ------------------------------------

# Source: the scheduler's plugins NodeAffinity, NodeUnschedulable and TaintToleration. Volumes, ports, affinity to other
# pods and preemption are not judged.


TYPE_LABELS: Final = (names.LABEL_INSTANCE_TYPE, names.LABEL_INSTANCE_TYPE_BETA)


def unmet_selection(pod: Object, node: Node) -> list[Requirement]:
    """The requirements of the pod's node selection that the node does not meet; empty if it may run there.

    Of terms, which are alternatives, those of the closest one.
    """
    spec = pod.get("spec") or {}
    unmet = unmet_selector(spec.get("nodeSelector") or {}, node.labels)
    terms = required_terms(spec.get("affinity"))
    return unmet if terms is None else unmet + unmet_terms(terms, node.name, node.labels)


def requirement_text(requirement: Requirement) -> str:
    """A requirement as people write it: `disk in (ssd)`."""
    key, operator = named(requirement.get("key")), requirement.get("operator")
    values = ", ".join(map(named, requirement.get("values") or ()))
    words = {
        "In": f"in ({values})",
        "NotIn": f"not in ({values})",
        "Exists": "exists",
        "DoesNotExist": "does not exist",
    }
    return f"{key} {words.get(str(operator), f'{named(operator)} {values}')}"


def untolerated(pod: Object, node: Node) -> list[Taint]:
    """The taints of a node that keep the pod off it."""
    tolerations = [TolerationSpec.read(each) for each in (pod.get("spec") or {}).get("tolerations") or ()]
    preventing = (taint for taint in node.taints if taint.prevents)
    return [taint for taint in preventing if not any(each.tolerates(taint) for each in tolerations)]


def taint_text(taint: Taint) -> str:
    value = f"={named(taint.value)}" if taint.value else ""
    return f"{named(taint.key)}{value}:{named(taint.effect)}"
