"""The devices of a cluster as placement reads them: by node, with what claims hold. Pure."""

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

from commands.cluster.reader import Unseen, items
from commands.devices import device_map
from commands.devices.allocator_inputs import Hardware, hardware_of, result_of
from commands.devices.devices import NodeMap
from commands.devices.snapshot import ClusterSnapshot
from neuron import names
from neuron.allocator.search import AllocatorResult
from neuron.api.allocation import config_entries
from neuron.api.configs import ConfigEntry, configs_in_force
from neuron.api.nodes import Node
from neuron.api.slices import Slice, incomplete, newest
from neuron.api.stored_claims import StoredClaim
from neuron.hardware.instances import Catalogue
from runtime.text import named


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


T = TypeVar("T")


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
            self._hold(claim)
        self.map: Final = device_map.build(seen, catalogue)
        self._maps = {node.name: node for node in self.map.nodes}
        self._read: dict[str, PublishedDevices] = {}

    @classmethod
    def of(cls, seen: ClusterSnapshot, kubernetes: str, catalogue: Catalogue | None = None) -> "ClusterDevices | None":
        """The cluster; None if nodes or slices could not be read."""
        if isinstance(seen.nodes, Unseen) or isinstance(seen.slices, Unseen):
            return None
        return cls(seen, kubernetes, catalogue or Catalogue())

    def _hold(self, claim: StoredClaim) -> None:
        for entry in claim.ours:
            self._held[entry.pool].append(result_of(entry))
            if entry.share_id:
                self._shares[entry.pool][entry.device].append(Cores.of_claim(claim, entry.request))

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
