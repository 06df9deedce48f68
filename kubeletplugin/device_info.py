"""Who uses which device, and how much, as metrics: `neuron_dra_device_*`.

Rows come from the prepared claims, pods and containers from the kubelet, and what their cores do from the kernel
driver, which counts it in sysfs. That is read, and never written: a write sets a counter to 0. Neuron Monitor does not
know claims, so dashboards join by the device's name.

Sources: the Neuron sysfs user guide ("the total counters indicate the current memory usage"), and the source of kernel
driver 2.27: it counts memory at once, and the time in which a core executed when the process ends. Files are found by
name at any depth, because driver 2.31 moved some.
"""

import asyncio
import contextlib
import dataclasses
import logging
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from kubeletplugin.changes import Clock
from kubeletplugin.discover import sysfs
from kubeletplugin.discover.devices import NODE_DEVICE, device_index, device_name, physical_cores
from kubeletplugin.discover.health import HealthMonitor, HealthStatus
from kubeletplugin.metrics import CoreUse, DeviceUse, PluginMetrics
from kubeletplugin.ports import WAITS, UsageUnknownError
from kubeletplugin.prepare.cdi import read_visible_cores, visible_cores
from kubeletplugin.prepare.checkpoint import PreparedClaim
from kubeletplugin.prepare.driver import Driver
from kubeletplugin.prepare.usage import NoKubeletError, UsedDevice, is_of

_CORE: Final = re.compile(r"neuron_core([0-9]{1,3})", re.ASCII)
_POWER_FIELDS: Final = 5
_WRAPPED: Final = 1 << 63
"""A counter of the kernel from which more was taken than it had is near 2^64."""
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class CoresUse:
    """Use of a device.

    Attributes:
        cores: by number on the device.
        power: average of the last minute, as a part of 1; None if the kernel driver does not tell.
    """

    cores: Mapping[int, CoreUse] = dataclasses.field(default_factory=dict)
    power: float | None = None


def use_files(directory: Path) -> tuple[Mapping[int, Mapping[str, str]], str | None]:
    """The files of a device's directory that tell its use: paths by core and name, and the path for its power."""
    cores: dict[int, Mapping[str, str]] = {}
    for path in sorted([*directory.glob("neuron_core*"), *directory.glob("*/neuron_core*")]):
        if match := _CORE.fullmatch(path.name):
            found = sysfs.files_by_name(path)
            names = (sysfs.MEMORY, sysfs.DRIVER_MEMORY, sysfs.BUSY)
            cores[int(match[1])] = {each: found[each] for each in names if each in found}
    return cores, sysfs.files_by_name(directory).get(sysfs.POWER)


class UseReader:
    """Reads the use of devices. Looks for a device's files once, and again when its directory is another one."""

    def __init__(self, sysfs_root: Path) -> None:
        self._devices = sysfs_root / sysfs.DEVICES
        self._known: dict[int, tuple[int, Mapping[int, Mapping[str, str]], str | None]] = {}

    def read(self, indices: Iterable[int]) -> dict[int, CoresUse]:
        """The use of devices by index; a device that has gone is left out. Blocks."""
        found = {}
        for index in indices:
            directory = self._devices / f"neuron{index}"
            try:
                identity = directory.stat().st_ino
                if index not in self._known or self._known[index][0] != identity:
                    self._known[index] = identity, *use_files(directory)
            except OSError:  # it may also go while it is looked through
                self._known.pop(index, None)
                continue
            _, cores, power = self._known[index]
            found[index] = CoresUse({number: _core(paths) for number, paths in cores.items()}, _power(power))
        return found


def _core(paths: Mapping[str, str]) -> CoreUse:
    memory, own, busy = (_counter(paths.get(name)) for name in (sysfs.MEMORY, sysfs.DRIVER_MEMORY, sysfs.BUSY))
    return CoreUse(None if memory is None else max(0, memory - (own or 0)), None if busy is None else busy / 1e6)


def _counter(path: str | None) -> int | None:
    text = sysfs.text(Path(path)) if path is not None else None
    if text is None or not (text.isascii() and text.isdecimal()):
        return None
    number = int(text[:20])
    return number if number < _WRAPPED else None


def _power(path: str | None) -> float | None:
    fields = (sysfs.text(Path(path)) or "" if path is not None else "").split(",")
    if len(fields) != _POWER_FIELDS or fields[0] != "POWER_STATUS_VALID":
        return None
    try:
        average = float(fields[-1])
    except ValueError:
        return None
    return average / 100 if math.isfinite(average) and 0 <= average <= 100 else None


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
                numbers = device.cores if device.cores is not None else tuple(range(cores.get(index, 0)))
                text = visible_cores(numbers) if numbers else ""
                for pod, container in users or {("", "")}:
                    found.add(DeviceUse(device_name(index), text, pod, claim.namespace, container, claim.name))
    return tuple(sorted(found))


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
