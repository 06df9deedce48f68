"""What the node is, and how its devices are: from the hardware to the kubelet's health stream and to device taints.

The node's type is that of DMI or of its label, by the instance catalogue in force: the built-in one, or that of a
folder of policy files, which is followed. Only this module reads policy files, and only if a folder is given: the
models of policies need time and memory.

A device is unhealthy if it has an uncorrected ECC error, a subsystem that the firmware reports as unhealthy, no device
node, or if it has vanished. It is healthy again when the cause is gone, e.g. after a reset or a reload of the driver.
"""

import asyncio
import dataclasses
import enum
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from kubeletplugin.changes import Changing, Clock
from kubeletplugin.discover.devices import NODE_DEVICE, device_name
from kubeletplugin.discover.sysfs import NeuronDevice, NodeHardware
from kubeletplugin.ports import WAITS
from neuron import names
from neuron.api.nodes import Node
from neuron.api.taints import Taint
from neuron.hardware.instances import Catalogue, InstanceType, Topology

LABEL_NETWORK_NODE: Final = "topology.k8s.aws/network-node-layer-{}"

LABEL_CAPACITY_BLOCK: Final = "topology.k8s.aws/capacity-block-id"

NETWORK_LAYERS: Final = (1, 2, 3)


_PROBLEMS_LOGGED: Final = 20


@dataclasses.dataclass(frozen=True, slots=True)
class NodeFacts:
    """The facts from the Node object.

    Attributes:
        name: of the node, and so of the pool.
        uid: of the Node object, which owns the slices.
        instance_type: from the well-known label, for nodes whose DMI does not have it; None without the label.
        network_nodes: EC2 network node by layer, from labels.
        capacity_block: EC2 capacity block, from a label.
        kubelet: version of the kubelet; empty if the Node does not say.
        runtime: name and version of the container runtime; empty if the Node does not say.
    """

    name: str
    uid: str
    instance_type: str | None = None
    network_nodes: Mapping[int, str] = dataclasses.field(default_factory=dict)
    capacity_block: str | None = None
    kubelet: str = ""
    runtime: str = ""


def node_facts(node: Node) -> NodeFacts:
    """The facts from a Node object."""
    layers = {layer: node.labels.get(LABEL_NETWORK_NODE.format(layer)) for layer in NETWORK_LAYERS}
    return NodeFacts(
        name=node.name,
        uid=node.uid,
        instance_type=node.instance_type or None,
        network_nodes={layer: value for layer, value in layers.items() if value},
        capacity_block=node.labels.get(LABEL_CAPACITY_BLOCK),
        kubelet=node.kubelet,
        runtime=node.runtime,
    )


def instance_type(hardware: NodeHardware, facts: NodeFacts | None, catalogue: Catalogue) -> InstanceType | None:
    """The node's instance type. For a type that the catalogue does not have, only discovered facts are set.

    Returns:
        None if neither DMI nor the node's label names a type.
    """
    name = hardware.instance_type or (facts.instance_type if facts else None)
    if name is None:
        return None
    known = catalogue.get(name)
    if known is not None:
        return known
    topology = Topology.SINGLE if len(hardware.devices) == 1 else Topology.SWITCH
    return InstanceType(name, name.partition(".")[0], None, None, (), 1, None, topology)


class Catalogues:
    """Reads the InstanceTypeCatalogs of a folder, again after each change."""

    def __init__(self, folder: Path | None) -> None:
        """Without a folder, the catalogue is always the built-in one."""
        self._folder = folder
        self._current = Catalogue()
        self._look: object = None
        self.problem = ""

    def current(self) -> Catalogue:
        """The catalogue of the files as they are now.

        If they have a problem, it is logged once, and the catalogue stays as it was.
        """
        if self._folder is None:
            return self._current
        from policies.files import folders, reading

        look = folders.fingerprint(self._folder)
        if look == self._look:
            return self._current
        self._look = look
        try:
            self._current = reading.read_catalogue(folders.read_folder(self._folder))
        except folders.PolicyError as error:
            shown = [str(problem) for problem in error.problems[:_PROBLEMS_LOGGED]]
            extra = {"folder": str(self._folder), "problems": shown, "number": len(error.problems)}
            _log.error("instance types not read: the catalogue in force stays", extra=extra)
            self.problem = "; ".join(shown)
        else:
            self.problem = ""
            _log.info("instance types read", extra={"folder": str(self._folder), "types": len(self._current.names())})
        return self._current


TAINT_KEY: Final = f"{names.DRIVER}/unhealthy"
MAX_MESSAGE: Final = 1024
"""Characters that the kubelet keeps of a message (KEP-4680)."""

_FATAL_COUNTERS: Final = {"mem_ecc_uncorrected": "hbm-ecc", "sram_ecc_uncorrected": "sram-ecc"}
"""Counters of errors that are neither corrected nor repairable, and the taint's value for each."""

_log = logging.getLogger(__name__)


class HealthStatus(enum.IntEnum):
    """Health as the kubelet numbers it (dra-health v1alpha1)."""

    UNKNOWN = 0
    HEALTHY = 1
    UNHEALTHY = 2


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceHealth:
    """One device's health.

    Attributes:
        reason: value of the taint; empty unless unhealthy.
        message: for pod status and log.
    """

    device: str
    status: HealthStatus = HealthStatus.HEALTHY
    reason: str = ""
    message: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class HealthSnapshot:
    """The node at one moment.

    Attributes:
        instance: the node's type; None if it is not known.
        health: of every device, also of vanished ones and of the whole node.
        vanished: indices of missing devices.
    """

    hardware: NodeHardware
    instance: InstanceType | None
    health: tuple[DeviceHealth, ...] = ()
    vanished: frozenset[int] = frozenset()


def assess(hardware: NodeHardware, instance: InstanceType | None, seen: Iterable[int] = ()) -> HealthSnapshot:
    """Assess every device.

    Args:
        instance: the node's type. Devices that its catalogue entry counts and the node lacks have vanished. If the
            node has no device at all, the kernel driver is not loaded, and nothing is published.
        seen: indices of devices that were found before.
    """
    present = {device.index for device in hardware.devices}
    expected = set(seen)
    if present and instance is not None and instance.devices is not None:
        expected |= set(range(instance.devices))
    vanished = frozenset(expected - present)
    judged = {device.index: _judge(device) for device in hardware.devices}
    for index in vanished:
        gone = f"neuron{index} has vanished from sysfs"
        judged[index] = DeviceHealth(device_name(index), HealthStatus.UNHEALTHY, "vanished", gone)
    health = [judged[index] for index in sorted(judged)]
    if health and instance is not None and instance.ultraserver_nodes:
        health.append(_whole_node(health))
    return HealthSnapshot(hardware, instance, tuple(health), vanished)


def taints(health: Iterable[DeviceHealth], effect: str | None) -> Mapping[str, Taint]:
    """The taints of unhealthy devices by device name; none if `effect` is None."""
    if effect is None:
        return {}
    unhealthy = [device for device in health if device.status is HealthStatus.UNHEALTHY]
    return {device.device: Taint(TAINT_KEY, device.reason, effect) for device in unhealthy}


def _judge(device: NeuronDevice) -> DeviceHealth:
    faults = []
    if not device.has_node:
        faults.append(("no-device-node", f"/dev/neuron{device.index} is missing"))
    for counter, reason in _FATAL_COUNTERS.items():
        count = device.counters.get(counter, 0)
        if count > 0:
            faults.append((reason, f"{counter} is {count}"))
    faults += [("component", f"{component} is unhealthy") for component in device.unhealthy]
    name = device_name(device.index)
    if faults:
        message = "; ".join(message for _, message in faults)[:MAX_MESSAGE]
        return DeviceHealth(name, HealthStatus.UNHEALTHY, faults[0][0], message)
    if device.unreadable:
        return DeviceHealth(name, HealthStatus.UNKNOWN, "", "; ".join(device.unreadable)[:MAX_MESSAGE])
    return DeviceHealth(name)


def _whole_node(health: Iterable[DeviceHealth]) -> DeviceHealth:
    """The health of the whole node is that of its worst device."""
    order = (HealthStatus.UNHEALTHY, HealthStatus.UNKNOWN, HealthStatus.HEALTHY)
    worst = min(health, key=lambda device: order.index(device.status))
    if worst.status is HealthStatus.HEALTHY:
        return DeviceHealth(NODE_DEVICE)
    return DeviceHealth(NODE_DEVICE, worst.status, worst.reason, f"{worst.device}: {worst.message}"[:MAX_MESSAGE])


def _blocked(last: DeviceHealth) -> DeviceHealth:
    """The health of a device whose files do not answer. What was unhealthy stays so, with its taint."""
    if last.status is HealthStatus.UNHEALTHY:
        return last
    message = f"the kernel driver's files have not answered for {WAITS.health_lost} s"
    return DeviceHealth(last.device, HealthStatus.UNKNOWN, "", message)


class HealthMonitor(Changing):
    """Checks the hardware at intervals, and notifies waiting streams of changes of `snapshot`.

    To be used in the event loop's thread; only discovery runs in another thread.
    """

    def __init__(
        self,
        discover: Callable[[], NodeHardware],
        read_catalogue: Callable[[], Catalogue],
        clock: Clock,
        interval: float,
    ) -> None:
        """Both are called at each check, in another thread; checks are `interval` seconds apart."""
        super().__init__()
        self._discover = discover
        self._read_catalogue = read_catalogue
        self._catalogue = Catalogue()
        self._clock = clock
        self.interval: Final = interval
        self._seen: frozenset[int] = frozenset()
        self._blocked = False
        self._facts: NodeFacts | None = None
        self.snapshot = HealthSnapshot(NodeHardware(None, None), None)

    async def refresh(self) -> None:
        """Check the hardware now."""
        self._catalogue, hardware = await asyncio.to_thread(lambda: (self._read_catalogue(), self._discover()))
        self._blocked = False
        self._take(hardware)

    def use_facts(self, facts: NodeFacts) -> None:
        """Use the Node object's facts: its label has the instance type if DMI does not."""
        self._facts = facts
        self._take(self.snapshot.hardware)

    async def run(self) -> None:
        """Check the hardware until cancelled.

        A file of a kernel driver that hangs blocks its reader. Then no device is healthy any more: the kubelet would
        take a health that is sent again for a new one.
        """
        while True:
            await self._clock.sleep(self.interval)
            check = asyncio.create_task(self.refresh())
            try:
                await asyncio.wait({check}, timeout=WAITS.health_lost)
                if not check.done():
                    self._blocked = True
                    self._take(self.snapshot.hardware)
                await check
            finally:
                check.cancel()

    def _take(self, hardware: NodeHardware) -> None:
        instance = instance_type(hardware, self._facts, self._catalogue)
        snapshot = assess(hardware, instance, self._seen)
        if self._blocked:
            snapshot = dataclasses.replace(snapshot, health=tuple(map(_blocked, snapshot.health)))
        self._seen |= {device.index for device in hardware.devices}
        if snapshot == self.snapshot:
            return
        before = {device.device: device for device in self.snapshot.health}
        for device in snapshot.health:
            known = before.get(device.device, DeviceHealth(device.device))
            if device != known:
                level = logging.INFO if device.status is HealthStatus.HEALTHY else logging.WARNING
                extra = {"device": device.device, "health": device.status.name, "reason": device.message}
                _log.log(level, "device health changed", extra=extra)
        self.snapshot = snapshot
        self._count_change()
