"""Device health, from the hardware to the kubelet's health stream and to device taints.

A device is unhealthy if it has an uncorrected ECC error, a subsystem that the firmware reports as unhealthy, no device
node, or if it has vanished. It is healthy again when the cause is gone, e.g. after a reset or a reload of the driver.
"""

import asyncio
import dataclasses
import enum
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from kubeletplugin.changes import Changing, Clock
from kubeletplugin.discover.devices import NODE_DEVICE, device_name
from kubeletplugin.discover.node_facts import NodeFacts, instance_type
from kubeletplugin.discover.sysfs import NeuronDevice, NodeHardware
from neuron import names
from neuron.api.taints import Taint
from neuron.hardware.instances import Catalogue, InstanceType

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
    judged |= {index: _vanished(index) for index in vanished}
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


def _vanished(index: int) -> DeviceHealth:
    message = f"neuron{index} has vanished from sysfs"
    return DeviceHealth(device_name(index), HealthStatus.UNHEALTHY, "vanished", message)


def _whole_node(health: Iterable[DeviceHealth]) -> DeviceHealth:
    """The health of the whole node is that of its worst device."""
    order = (HealthStatus.UNHEALTHY, HealthStatus.UNKNOWN, HealthStatus.HEALTHY)
    worst = min(health, key=lambda device: order.index(device.status))
    if worst.status is HealthStatus.HEALTHY:
        return DeviceHealth(NODE_DEVICE)
    return DeviceHealth(NODE_DEVICE, worst.status, worst.reason, f"{worst.device}: {worst.message}"[:MAX_MESSAGE])


class HealthMonitor(Changing):
    """Checks the hardware at intervals, and notifies waiting streams of changes of `snapshot`.

    To be used in the event loop's thread; only discovery runs in another thread.
    """

    def __init__(
        self, discover: Callable[[], NodeHardware], catalogue: Catalogue, clock: Clock, interval: float
    ) -> None:
        super().__init__()
        self._discover = discover
        self._catalogue = catalogue
        self._read_catalogue: Callable[[], Catalogue] | None = None
        self._clock = clock
        self._interval = interval
        self._seen: frozenset[int] = frozenset()
        self._facts: NodeFacts | None = None
        self.snapshot = HealthSnapshot(NodeHardware(None, None), None)

    @property
    def interval(self) -> float:
        """Seconds between two checks."""
        return self._interval

    def follow(self, read_catalogue: Callable[[], Catalogue]) -> None:
        """Use the catalogue that this returns at each check, in another thread."""
        self._read_catalogue = read_catalogue

    async def refresh(self) -> None:
        """Check the hardware now."""
        if self._read_catalogue is not None:
            self._catalogue = await asyncio.to_thread(self._read_catalogue)
        self._take(await asyncio.to_thread(self._discover))

    def use_facts(self, facts: NodeFacts) -> None:
        """Use the Node object's facts: its label has the instance type if DMI does not."""
        self._facts = facts
        self._take(self.snapshot.hardware)

    async def run(self) -> None:
        """Check the hardware until cancelled."""
        while True:
            await self._clock.sleep(self._interval)
            await self.refresh()

    def _take(self, hardware: NodeHardware) -> None:
        instance = instance_type(hardware, self._facts, self._catalogue)
        snapshot = assess(hardware, instance, self._seen)
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
