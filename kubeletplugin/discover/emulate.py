"""An emulated node: writes the files of the Neuron kernel driver, for tests and `--emulate`.

Only the files are fake. Discovery reads them like real files, and all other parts are unchanged.
"""

import contextlib
import hashlib
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kubeletplugin.discover import sysfs
from neuron.findings import did_you_mean
from neuron.hardware import connections
from neuron.hardware.instances import Catalogue, InstanceType

DRIVER_VERSION: Final = "2.25.4.0"
"""The kernel driver that the examples of the AWS documentation select by version."""

_FAMILY: Final = {"inf1": "Inf1", "inf2": "Inf2", "trn1": "Trn1", "trn2": "Trn2", "trn3": "Trn3"}
_DEVICE: Final = {
    "inf1": "Inferentia",
    "inf2": "Inferentia2",
    "trn1": "Trainium1",
    "trn2": "Trainium2",
    "trn3": "Trainium3",
}
_ARCHITECTURE: Final = {
    "inf1": ("NDv1", "NCv1"),
    "inf2": ("NDv3", "NCv2"),
    "trn1": ("NDv2", "NCv2"),
    "trn2": ("NDv3", "NCv3"),
    "trn3": ("NDv4", "NCv4"),
}
_FUNCTIONS: Final = {"trn1.32xlarge": ("0x7164", 0x90), "trn2.48xlarge": ("0x7364", 0xA0)}
"""PCI device id, and the first bus of NUMA node 1, of the types whose addresses are documented."""
_NEWEST: Final = "trn3"
"""The generation whose files a type of another family gets, which a policy file has added."""
_MODES: Final = {4: 1, 2: 3, 1: 4}
_UNKNOWN_COUNTS: Final = {"48xlarge": 16, "24xlarge": 4}
_HEALTH_SINCE: Final = (2, 28)
_MARKER: Final = "emulates"


class UnknownTypeError(ValueError):
    """The catalogue has no such instance type."""


def emulated_type(name: str, catalogue: Catalogue | None = None) -> InstanceType:
    """The entry of a catalogue, by default the built-in one. Raises UnknownTypeError."""
    catalogue = catalogue or Catalogue()
    entry = catalogue.get(name)
    if entry is None:
        hint = did_you_mean(name, catalogue.suggestions(name))
        raise UnknownTypeError(f"There is no instance type {name!r} to emulate.{hint}")
    return entry


def devices_of(entry: InstanceType) -> int:
    """Number of devices to emulate: that of the catalogue, or a likely one if the catalogue has none."""
    return entry.devices or _UNKNOWN_COUNTS.get(entry.name.partition(".")[2], 16)


def write_tree(
    root: Path,
    entry: InstanceType,
    *,
    driver_version: str = DRIVER_VERSION,
    node_id: int = 0,
    server: str = "us-0",
    use: bool = False,
) -> None:
    """Write `root/sys` and `root/dev` of one node. An existing tree with the same parameters is not changed.

    A tree with other parameters is removed first: only files that an emulation wrote.

    Args:
        driver_version: version of the kernel driver; newer ones have more files.
        node_id: the node's number in its UltraServer, from 0.
        server: name of the UltraServer; the same for all of its nodes.
        use: whether to write the counters of use, too, which are 1,000 files on a large node.

    Raises:
        OSError: the tree cannot be written.
    """
    marker = root / _MARKER
    figures = f"{devices_of(entry)} {entry.cores_per_device} {entry.topology}"
    stamp = f"{entry.name} {figures} {driver_version} {server} {node_id}\n"
    if marker.exists() and marker.read_text() == stamp:
        return
    sysfs_root, dev_root = root / "sys", root / "dev"
    if marker.exists():
        for directory in (sysfs.DEVICES, sysfs.CLASS, sysfs.PCI_DEVICES):
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(sysfs_root / directory)
        others = (sysfs_root / sysfs.PRODUCT_NAME, sysfs_root / sysfs.DRIVER_VERSION, *dev_root.glob("neuron[0-9]*"))
        for path in others:
            path.unlink(missing_ok=True)
    # The marker is empty until the tree is complete: after a crash the tree is removed and written again.
    _write(marker, "")
    _write(sysfs_root / sysfs.PRODUCT_NAME, f"{entry.name}\n")
    _write(sysfs_root / sysfs.DRIVER_VERSION, f"{driver_version}\n")
    dev_root.mkdir(parents=True, exist_ok=True)
    for index in range(devices_of(entry)):
        write_device(sysfs_root, entry, index, driver_version)
        if use:
            write_use(sysfs_root, index, range(entry.cores_per_device or 0))
        _write(dev_root / f"neuron{index}", "")
    _write_pci(sysfs_root, entry)
    if entry.ultraserver_nodes:
        _write_ultraserver(sysfs_root / sysfs.CLASS, entry, server, node_id)
    marker.write_text(stamp)


def write_device(sysfs_root: Path, entry: InstanceType, index: int, driver_version: str = DRIVER_VERSION) -> None:
    """Write one device's files, with the driver's blanks and newlines."""
    directory = sysfs_root / sysfs.DEVICES / f"neuron{index}"
    generation = entry.family[:4] if entry.family[:4] in _ARCHITECTURE else _NEWEST
    device, core = _ARCHITECTURE[generation]
    neighbours = ", ".join(str(other) for other in connections.neighbours(entry.topology, index, devices_of(entry)))
    _write(directory / "core_count", str(entry.cores_per_device))
    _write(directory / "connected_devices", f"{neighbours}\n")
    if generation != "inf1":
        _write(directory / "info/serial_number", f"{_digest(f'{entry.name}/{index}')}\n")
    _write(directory / "info/architecture/arch_type", f"{device}\n")
    _write(directory / "info/architecture/instance_type", f"{_FAMILY[generation]}\n")
    _write(directory / "info/architecture/device_name", f"{_DEVICE[generation]}\n")
    for number in range(entry.cores_per_device or 0):
        _write(directory / f"neuron_core{number}/info/architecture/arch_type", f"{core}\n")
    hardware = directory / "stats/hardware"
    for counter in sysfs.ECC_COUNTERS:
        _write(hardware / counter, "0\n")
    version = tuple(int(part) for part in driver_version.split("."))
    if version >= _HEALTH_SINCE:
        _write(hardware / "health_status/hbm_ecc_err_count", "0\n")
    if version >= sysfs.COMPONENTS_SINCE:
        _write(hardware / "health_status/unhealthy_components", "\n")
        _write(hardware / "health_status/healthcheck_heartbeat", "1\n")


def write_use(sysfs_root: Path, index: int, cores: Iterable[int], memory: int = 0, microseconds: int = 0) -> None:
    """Write the counters of use of cores of a device, and its power."""
    directory = sysfs_root / sysfs.DEVICES / f"neuron{index}"
    for number in cores:
        stats = directory / f"neuron_core{number}/stats"
        _write(stats / f"memory_usage/{sysfs.MEMORY}/total", f"{memory}\n")
        _write(stats / f"other_info/{sysfs.BUSY}/total", f"{microseconds}\n")
    _write(directory / f"stats/power/{sysfs.POWER}", "POWER_STATUS_VALID,1764259200,0.00,0.00,0.00\n")


def _write_pci(sysfs_root: Path, entry: InstanceType) -> None:
    """Write the PCI functions of a type whose addresses are documented; 16 buses share a root complex."""
    for address in connections.PCI_ADDRESSES.get(entry.name, ()):
        domain, bus, _ = address.split(":")
        device, second_node = _FUNCTIONS[entry.name]
        function = Path(f"devices/pci{domain}:{bus[0]}0/{address}")
        _write(sysfs_root / function / "vendor", f"{sysfs.PCI_VENDOR}\n")
        _write(sysfs_root / function / "device", f"{device}\n")
        _write(sysfs_root / function / "numa_node", f"{int(int(bus, 16) >= second_node)}\n")
        link = sysfs_root / sysfs.PCI_DEVICES / address
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(Path("../../..") / function)


def _write_ultraserver(directory: Path, entry: InstanceType, server: str, node_id: int) -> None:
    modes = ",".join(str(_MODES[nodes]) for nodes in sorted(entry.ultraserver_nodes or (), reverse=True))
    _write(directory / "ultraserver_mode", f"{modes}\n")
    for nodes in (2, 4):
        _write(directory / f"server_id_{nodes}", f"{_digest(f'{server}/{nodes}/{node_id // nodes}')}\n")
        _write(directory / f"node_id_{nodes}", f"{node_id % nodes}\n")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
