"""Pods for devices and cores that arrive and leave: how many are refused, by who places them.

- ours: the claim of conversion (`make_claim`) on nodes as the driver publishes them, by the model of the allocator.
- extension: a run of consecutive devices or cores at any start; on Trainium 1, 4, 8 or 16 devices, each count aligned.
- plugin: any free devices or cores. What is not contiguous fails later, in the runtime.

A loss system: a pod that fits on no node is refused and counted. All three get the same arrivals in the same order of
nodes. `benchmarks.packing` prints the table.
"""

import dataclasses
import functools
import heapq
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol, TypeAlias

from commands.devices.allocator_inputs import Hardware, PodClaim, Selects, hardware_of, read_demand
from conversion.claims.containers import Ask, Role
from conversion.claims.instance_fit import DeviceConfig, counts_of
from conversion.claims.making import Claim, make_claim
from kubeletplugin.discover.health import NodeFacts
from kubeletplugin.discover.sysfs import NeuronDevice, NodeHardware
from kubeletplugin.publish.slices import ClusterFeatures, NodeDevices, desired_slices
from neuron import names
from neuron.allocator.search import AllocatorClaim, AllocatorNode, AllocatorResult
from neuron.api.claim_reader import claim_spec
from neuron.api.slices import read_slice
from neuron.hardware.instances import Catalogue, InstanceType

TYPES: Final = ("trn1.32xlarge", "trn2.48xlarge", "inf2.48xlarge", "inf2.24xlarge", "inf1.24xlarge", "inf1.6xlarge")
NODES: Final = 10
ARRIVALS: Final = 1500
LOAD: Final = 0.9
"""Cores requested on average, as a share of those that exist."""

Pod: TypeAlias = tuple[str, int]
"""A legacy resource and its amount."""

PARTS: Final = "parts of a device"
"""Pods for fewer cores than a device has."""
_BOTH: Final = (names.RESOURCE_NEURON, names.RESOURCE_NEURONCORE)
MIXES: Final[Mapping[str, tuple[str, ...]]] = {
    "devices": (names.RESOURCE_NEURON,),
    "cores": (names.RESOURCE_NEURONCORE,),
    "both": _BOTH,
    PARTS: (names.RESOURCE_NEURONCORE,),
}


class Placer(Protocol):
    """Places pods on nodes."""

    def place(self, node: int, pod: Pod) -> Callable[[], None] | None:
        """Place a pod on a node. The answer gives its devices back; None: it does not fit."""


class Ours:
    """Converted pods, on the model of the scheduler's allocator."""

    def __init__(self, entry: InstanceType, *, shares: bool) -> None:
        """Args: `shares`: whether the cluster serves shares of devices (Kubernetes 1.36)."""
        self._hardware = _published(entry.name, shares)
        shared = any(device.shared for device in self._hardware.devices)
        self._entry = dataclasses.replace(entry, shares_cores=shared, tries_orders=not shares)
        self._nodes = [AllocatorNode(self._hardware.devices, hurry=True) for _ in range(NODES)]
        self._states = [0] * NODES
        self._failed: dict[tuple[int, Pod], int] = {}
        self._selects = Selects()
        self._claims: dict[Pod, AllocatorClaim] = {}

    def place(self, node: int, pod: Pod) -> Callable[[], None] | None:
        if self._failed.get((node, pod)) == self._states[node]:
            return None
        results = self._nodes[node].allocate(self._claim(pod))
        if results is None:
            self._failed[node, pod] = self._states[node]
            return None
        self._states[node] += 1
        return functools.partial(self._release, node, results)

    def _release(self, node: int, results: tuple[AllocatorResult, ...]) -> None:
        self._nodes[node].release(results)
        self._states[node] += 1

    def _claim(self, pod: Pod) -> AllocatorClaim:
        if pod not in self._claims:
            ask = Ask("main", Role.APP, "spec.containers[0]", *pod)
            made = make_claim([ask], [self._entry], DeviceConfig(), names.DRIVER, pin_types=True)
            if not isinstance(made, Claim):
                raise ValueError(str(made.findings[0]))
            spec = claim_spec(made.template.spec["spec"])
            self._claims[pod] = read_demand([PodClaim(names.POD_CLAIM, spec)], None, self._selects).claim
        return self._claims[pod]


class Extension:
    """The rule of the Neuron scheduler extension, by a mask of free cores for each node."""

    def __init__(self, entry: InstanceType) -> None:
        self._entry = entry
        self._per_device = entry.cores(None) or 1
        self._total = (entry.devices or 0) * self._per_device
        self._free = [(1 << self._total) - 1] * NODES
        self._runs: dict[Pod, tuple[int, ...]] = {}

    def place(self, node: int, pod: Pod) -> Callable[[], None] | None:
        if pod not in self._runs:
            self._runs[pod] = tuple(self._tried(pod))
        free = self._free[node]
        found = next((run for run in self._runs[pod] if free & run == run), None)
        if found is None:
            return None
        self._free[node] ^= found
        return functools.partial(self._release, node, found)

    def _release(self, node: int, run: int) -> None:
        self._free[node] |= run

    def _tried(self, pod: Pod) -> Iterator[int]:
        resource, amount = pod
        size, step = self._per_device, 1
        if resource == names.RESOURCE_NEURONCORE:
            for start in range(self._total - amount + 1):
                yield ((1 << amount) - 1) << start
            return
        line, devices = self._entry.line, self._entry.devices or 0
        if line is not None:
            windows = [line.window(amount, start) for start in line.starts(amount)] if amount < devices else []
            for window in windows or [tuple(range(devices))]:
                yield sum(((1 << size) - 1) << device * size for device in window)
            return
        step = amount
        for start in range(0, devices - amount + 1, step):
            yield ((1 << amount * size) - 1) << start * size


class Plugin:
    """The device plugin alone: any free devices or cores."""

    def __init__(self, entry: InstanceType) -> None:
        self._per_device = entry.cores(None) or 1
        self._free = [[self._per_device] * (entry.devices or 0) for _ in range(NODES)]

    def place(self, node: int, pod: Pod) -> Callable[[], None] | None:
        resource, amount = pod
        free = self._free[node]
        taken: dict[int, int] = {}
        # Fullest devices first: what is left of a device serves cores only.
        for device in sorted(range(len(free)), key=lambda each: (free[each], each)):
            if resource == names.RESOURCE_NEURONCORE and free[device] and amount:
                taken[device] = min(amount, free[device])
                amount -= taken[device]
            elif resource != names.RESOURCE_NEURONCORE and free[device] == self._per_device and amount:
                taken[device], amount = self._per_device, amount - 1
        if amount:
            return None
        for device, cores in taken.items():
            free[device] -= cores
        return functools.partial(self._release, node, taken)

    def _release(self, node: int, taken: Mapping[int, int]) -> None:
        for device, cores in taken.items():
            self._free[node][device] += cores


def _published(name: str, shares: bool) -> Hardware:
    """A node of a type as the driver publishes it by default."""
    entry = Catalogue().get(name)
    assert entry is not None
    hardware = NodeHardware(name, "2.31.7.0", tuple(NeuronDevice(index) for index in range(entry.devices or 0)))
    found = NodeDevices(hardware, entry, shares_cores=shares)
    pieces = desired_slices(NodeFacts("node", "uid"), found, "1.0.0", ClusterFeatures(counters=False, shares=shares))
    pool = {"name": "node"}
    return hardware_of([read_slice({"spec": {**piece.content, "pool": pool}}) for piece in pieces])


def pods(entry: InstanceType, mix: str) -> dict[Pod, float]:
    """The pods of a mix with their weights: every count alike; of devices those that the extension allows."""
    found: dict[Pod, float] = {}
    for resource in MIXES[mix]:
        cores = resource == names.RESOURCE_NEURONCORE
        most = (entry.cores(None) or 1) * (entry.devices or 0)
        if mix == PARTS:
            most = (entry.cores(None) or 1) - 1
        amounts = range(1, most + 1) if cores else counts_of(entry)
        found |= {(resource, amount): 1 / len(amounts) for amount in amounts}
    return found


def refused(entry: InstanceType, mix: str, placer: Placer, load: float, seed: int) -> float:
    """Share of the pods that are refused, in one run of `ARRIVALS`."""
    per_device = entry.cores(None) or 1
    weights = pods(entry, mix)
    mean = sum(
        amount * (1 if resource == names.RESOURCE_NEURONCORE else per_device) * weight
        for (resource, amount), weight in weights.items()
    ) / sum(weights.values())
    rate = load * NODES * (entry.devices or 0) * per_device / mean
    chance = random.Random(seed)  # noqa: S311 - a simulation
    leaving: list[tuple[float, int, Callable[[], None]]] = []
    now, lost = 0.0, 0
    for number in range(ARRIVALS):
        now += chance.expovariate(rate)
        while leaving and leaving[0][0] <= now:
            heapq.heappop(leaving)[2]()
        pod = chance.choices(list(weights), list(weights.values()))[0]
        end = now + chance.expovariate(1.0)
        order = chance.sample(range(NODES), NODES)
        release = next((found for node in order if (found := placer.place(node, pod)) is not None), None)
        if release is None:
            lost += 1
        else:
            heapq.heappush(leaving, (end, number, release))
    return lost / ARRIVALS


def placers(entry: InstanceType) -> dict[str, Callable[[], Placer]]:
    """Who places pods, by the name of the column."""
    return {
        "ours": functools.partial(Ours, entry, shares=True),
        "ours, no shares": functools.partial(Ours, entry, shares=False),
        "extension": functools.partial(Extension, entry),
        "plugin": functools.partial(Plugin, entry),
    }
