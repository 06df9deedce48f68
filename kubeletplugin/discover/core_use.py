"""How much the cores of the devices are used, as the kernel driver counts it in sysfs. Reads, and never writes: a write
sets a counter to 0.

Sources: the Neuron sysfs user guide ("the total counters indicate the current memory usage"), and the source of kernel
driver 2.27: it counts memory at once, and the time in which a core executed when the process ends. Files are found by
name at any depth, because driver 2.31 moved some.
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from kubeletplugin.discover import sysfs
from kubeletplugin.metrics import CoreUse

MEMORY: Final = "device_mem"
"""Bytes of device memory, by the core for which they were allocated."""
DRIVER_MEMORY: Final = "driver_memory"
"""The part of it that the kernel driver has for itself."""
BUSY: Final = "nc_time_in_use"
"""Microseconds."""
POWER: Final = "utilization"
"""`status,time,least,most,average` of the last minute, in percent of the device's largest power."""

FILES: Final = (MEMORY, DRIVER_MEMORY, BUSY, POWER)
"""Names of the files of a device's first core, and of the device."""

_CORE: Final = re.compile(r"neuron_core([0-9]{1,3})", re.ASCII)
_POWER_FIELDS: Final = 5
_WRAPPED: Final = 1 << 63
"""A counter of the kernel from which more was taken than it had is near 2^64."""


@dataclasses.dataclass(frozen=True, slots=True)
class CoresUse:
    """Use of a device.

    Attributes:
        cores: by number on the device.
        power: average of the last minute, as a part of 1; None if the kernel driver does not tell.
    """

    cores: Mapping[int, CoreUse] = dataclasses.field(default_factory=dict)
    power: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class UseFiles:
    """Paths of the files of a device, by name: of each core, and of the device."""

    cores: Mapping[int, Mapping[str, str]]
    device: Mapping[str, str]


def use_files(directory: Path) -> UseFiles:
    """The files of a device's directory that tell its use."""
    cores: dict[int, Mapping[str, str]] = {}
    for path in sorted([*directory.glob("neuron_core*"), *directory.glob("*/neuron_core*")]):
        if match := _CORE.fullmatch(path.name):
            found = sysfs.files_by_name(path)
            cores[int(match[1])] = {each: found[each] for each in (MEMORY, DRIVER_MEMORY, BUSY) if each in found}
    found = sysfs.files_by_name(directory)
    return UseFiles(cores, {POWER: found[POWER]} if POWER in found else {})


class UseReader:
    """Reads the use of devices. Looks for a device's files once, and again when its directory is another one."""

    def __init__(self, sysfs_root: Path) -> None:
        self._devices = sysfs_root / sysfs.DEVICES
        self._known: dict[int, tuple[int, UseFiles]] = {}

    def read(self, indices: Iterable[int]) -> dict[int, CoresUse]:
        """The use of devices by index; a device that has gone is left out. Blocks."""
        found = {}
        for index in indices:
            directory = self._devices / f"neuron{index}"
            try:
                identity = directory.stat().st_ino
            except OSError:
                self._known.pop(index, None)
                continue
            known, files = self._known.get(index, (-1, None))
            if files is None or known != identity:
                files = use_files(directory)
                self._known[index] = identity, files
            found[index] = CoresUse(
                {number: _core(paths) for number, paths in files.cores.items()}, _power(files.device.get(POWER))
            )
        return found


def _core(paths: Mapping[str, str]) -> CoreUse:
    memory, own, busy = (_counter(paths.get(name)) for name in (MEMORY, DRIVER_MEMORY, BUSY))
    return CoreUse(
        None if memory is None else max(0, memory - (own or 0)),
        None if busy is None else busy / 1e6,
    )


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
