"""Who uses which device, as metrics: `neuron_dra_device_info`, and the health of each device.

Rows come from the prepared claims; pods and containers from the kubelet. Neuron Monitor does not know claims, so
dashboards join by the device's name.
"""

import contextlib
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from kubeletplugin.clock import Clock
from kubeletplugin.discover.devices import NODE_DEVICE, device_name
from kubeletplugin.discover.health import HealthMonitor, HealthStatus
from kubeletplugin.discover.sharing import physical_cores
from kubeletplugin.metrics import DeviceUse, PluginMetrics
from kubeletplugin.ports import UsageUnknownError
from kubeletplugin.prepare.checkpoint import PreparedClaim, PreparedDevice
from kubeletplugin.prepare.driver import Driver
from kubeletplugin.prepare.environment import visible_cores
from kubeletplugin.prepare.pod_resources import NoKubeletError, UsedDevice
from kubeletplugin.prepare.preparer import Preparer
from kubeletplugin.prepare.usage import Usage

INTERVAL: Final = 15.0
"""Seconds."""

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
            users = {(each.pod.partition("/")[2], each.container) for each in used if _is_of(each, claim, device)}
            for index in device.indices:
                text = _cores(device, cores.get(index, 0))
                for pod, container in users or {("", "")}:
                    found.add(DeviceUse(device_name(index), text, pod, claim.namespace, container, claim.name))
    return tuple(sorted(found))


def _is_of(used: UsedDevice, claim: PreparedClaim, device: PreparedDevice) -> bool:
    same_claim = used.uid == claim.uid if used.uid else (used.namespace, used.claim) == (claim.namespace, claim.name)
    return same_claim and used.device == device.device and used.request in ("", device.parent_request)


def _cores(device: PreparedDevice, count: int) -> str:
    numbers = device.cores if device.cores is not None else tuple(range(count))
    return visible_cores(numbers) if numbers else ""


class DeviceInfo:
    """Follows what uses the devices, and shows it to scrapes."""

    def __init__(
        self,
        driver: Driver,
        preparer: Preparer,
        usage: Usage,
        monitor: HealthMonitor,
        *,
        clock: Clock,
        metrics: PluginMetrics,
    ) -> None:
        self._driver = driver
        self._preparer = preparer
        self._usage = usage
        self._monitor = monitor
        self._clock = clock
        self._metrics = metrics

    async def run(self) -> None:
        """Refresh at intervals until cancelled."""
        while True:
            await self.refresh()
            await self._clock.sleep(INTERVAL)

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
            claims = (await self._driver.in_state(self._preparer.checkpoint)).claims.values()
            with contextlib.suppress(NoKubeletError):
                used = await self._usage.listed() if claims else ()
        except (OSError, TimeoutError, UsageUnknownError) as error:
            self._metrics.failed("device-info")
            _log.warning("what uses the devices cannot be read", extra={"error": str(error)})
            return
        cores = {
            device.index: count
            for device in snapshot.hardware.devices
            if (count := physical_cores(snapshot.hardware, snapshot.instance, device.index)) is not None
        }
        self._metrics.device_series.used = rows(claims, used, cores)
        self._metrics.worked("device-info")
