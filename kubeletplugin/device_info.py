"""Who uses which device, and how much, as metrics: `neuron_dra_device_*`.

Rows come from the prepared claims, pods and containers from the kubelet, and what their cores do from the kernel driver
(`core_use`). Neuron Monitor does not know claims, so dashboards join by the device's name.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from kubeletplugin.changes import Clock
from kubeletplugin.discover.core_use import CoresUse
from kubeletplugin.discover.devices import NODE_DEVICE, device_index, device_name, physical_cores
from kubeletplugin.discover.health import HealthMonitor, HealthStatus
from kubeletplugin.metrics import CoreUse, DeviceUse, PluginMetrics
from kubeletplugin.ports import WAITS, UsageUnknownError
from kubeletplugin.prepare.checkpoint import PreparedClaim, PreparedDevice
from kubeletplugin.prepare.containers import read_visible_cores, visible_cores
from kubeletplugin.prepare.driver import Driver
from kubeletplugin.prepare.usage import NoKubeletError, UsedDevice, is_of

_log = logging.getLogger(__name__)


def rows(
    claims: Iterable[PreparedClaim], used: Collection[UsedDevice], cores: Mapping[int, int]
) -> tuple[DeviceUse, ...]:
    """The series of prepared claims; a whole node is all of its devices, and adminAccess holds nothing.

    Args:
        used: what the kubelet's pods use.
        cores: number of physical cores by the device's index, where it is known.
    """
    found: set[DeviceUse] = set()
    for claim in claims:
        for device in claim.devices:
            if device.admin_access:
                continue
            users = {
                (each.pod.partition("/")[2], each.container)
                for each in used
                if is_of(each, claim) and each.device == device.device and each.request in ("", device.parent_request)
            }
            for index in device.indices:
                text = _cores(device, cores.get(index, 0))
                for pod, container in users or {("", "")}:
                    found.add(DeviceUse(device_name(index), text, pod, claim.namespace, container, claim.name))
    return tuple(sorted(found))


def _cores(device: PreparedDevice, count: int) -> str:
    numbers = device.cores if device.cores is not None else tuple(range(count))
    return visible_cores(numbers) if numbers else ""


def use_of(row: DeviceUse, found: Mapping[int, CoresUse]) -> CoreUse:
    """What the cores of a row do. Containers that use the same cores have the same values.

    Args:
        found: by the device's index.
    """
    device = found.get(-1 if (index := device_index(row.device)) is None else index, CoresUse())
    cores = [device.cores.get(number, CoreUse()) for number in read_visible_cores(row.cores)]
    memory = [core.memory for core in cores if core.memory is not None]
    busy = [core.busy for core in cores if core.busy is not None]
    return CoreUse(
        sum(memory) if memory and len(memory) == len(cores) else None,
        sum(busy) / len(busy) if busy and len(busy) == len(cores) else None,
    )


class DeviceInfo:
    """Follows what uses the devices, and shows it to scrapes."""

    def __init__(
        self,
        driver: Driver,
        monitor: HealthMonitor,
        read_use: Callable[[Iterable[int]], Mapping[int, CoresUse]],
        *,
        clock: Clock,
        metrics: PluginMetrics,
    ) -> None:
        """`read_use` reads the use of devices by index; it blocks."""
        self._driver = driver
        self._monitor = monitor
        self._read_use = read_use
        self._clock = clock
        self._metrics = metrics

    async def run(self) -> None:
        """Refresh at intervals until cancelled."""
        while True:
            await self.refresh()
            await self._clock.sleep(WAITS.look)

    async def refresh(self) -> None:
        """Read prepared claims and the kubelet's pods. What cannot be read now keeps its last series."""
        snapshot = self._monitor.snapshot
        self._metrics.device_series.healthy = {
            each.device: each.status is HealthStatus.HEALTHY
            for each in snapshot.health
            if each.status is not HealthStatus.UNKNOWN and each.device != NODE_DEVICE
        }
        used: tuple[UsedDevice, ...] = ()
        try:
            claims = (await self._driver.checkpoint()).claims.values()
            with contextlib.suppress(NoKubeletError):
                used = await self._driver.usage.listed() if claims else ()
        except (OSError, TimeoutError, UsageUnknownError) as error:
            self._metrics.failed("device-info")
            _log.warning("what uses the devices cannot be read", extra={"error": str(error)})
            return
        cores = {
            device.index: count
            for device in snapshot.hardware.devices
            if (count := physical_cores(snapshot.hardware, snapshot.instance, device.index)) is not None
        }
        found = await asyncio.to_thread(self._read_use, [device.index for device in snapshot.hardware.devices])
        series = self._metrics.device_series
        series.power = {device_name(index): use.power for index, use in found.items() if use.power is not None}
        series.used = {row: use_of(row, found) for row in rows(claims, used, cores)}
        self._metrics.worked("device-info")
