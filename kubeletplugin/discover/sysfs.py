"""Discovery: reads a node's Neuron devices from sysfs, DMI and /dev, and the node's default size of a logical core.

Sources: the Neuron sysfs user guide and release notes of the kernel driver. Files may end with or without a newline, be
readable by root only (before driver 2.28), be missing (older drivers, inf1), or contain "busy" while UltraServers elect
their nodes. Driver 2.31 moved files inside a device's directory, so they are found by name at any depth.

The default size of a logical NeuronCore is a file of one line `NAME=VALUE`, which AWS's device plugin reads. Containers
do not see it: the runtime in them uses the type's default, unless a claim's config says otherwise.

The kernel driver shows its devices as virtual ones, without a link to their PCI functions. So the function of device N
is known only in two cases: the node has one device and one Neuron function; or AWS documents the addresses of the
instance type, and the node has Neuron functions at these addresses only. Vendor and device ids: those that the kernel
driver binds to.
"""

import dataclasses
import errno
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from neuron import names
from neuron.hardware.connections import PCI_ADDRESSES

DEVICES: Final = Path("devices/virtual/neuron_device")
CLASS: Final = Path("class/neuron_device")
DRIVER_VERSION: Final = Path("module/neuron/version")
PRODUCT_NAME: Final = Path("devices/virtual/dmi/id/product_name")

ECC_COUNTERS: Final = ("mem_ecc_uncorrected", "mem_ecc_repairable_uncorrected", "sram_ecc_uncorrected")

MEMORY: Final = "device_mem"
"""Bytes of device memory, by the core for which they were allocated."""
DRIVER_MEMORY: Final = "driver_memory"
"""The part of it that the kernel driver has for itself."""
BUSY: Final = "nc_time_in_use"
"""Microseconds."""
POWER: Final = "utilization"
"""`status,time,least,most,average` of the last minute, in percent of the device's largest power."""

USE: Final = (MEMORY, DRIVER_MEMORY, BUSY, POWER)
"""Names of the files that tell the use of a device's first core, and of the device."""

COMPONENTS_SINCE: Final = (2, 30, 2)
"""The first version of the kernel driver with `unhealthy_components`."""
DEVICE_NAME: Final = re.compile(r"neuron([0-9]{1,3})", re.ASCII)
"""The name of a device, here and in /dev."""
_EC2_TYPE: Final = re.compile(r"[a-z0-9-]+\.[a-z0-9-]+", re.ASCII)
_OTHER_DIRECTORIES: Final = re.compile(r"neuron_core[0-9]+", re.ASCII)
_POWER_MANAGEMENT: Final = "power"
"""A directory of the kernel for every device; the Neuron driver's own of that name are deeper."""
_MAX_DEPTH: Final = 5
_MAX_LENGTH: Final = 4096
MOST_CORES: Final = 128
"""Of a device: a request policy has at most 10 values: 0, the powers of two up to this number, and one that is none.
What is above, such as 4294967295 for an error, is no number of cores."""
_WORD: Final = re.compile(r"[!-~]{1,64}", re.ASCII)
"""Serial numbers and ids of UltraServer sets, which go into variables of containers and into API objects."""
_GONE: Final = frozenset({errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.ENOTDIR})
_NO_NODE: Final = -1
_NO_SERVER: Final = frozenset({"", "0" * 16})
_BUSY: Final = "busy"
_NONE_WORDS: Final = frozenset({"", "none", "0"})


_LOGICAL_NC_LINE: Final = re.compile(r"\s*(?:export\s+)?([A-Z_]+)\s*=\s*[\"']?([0-9]{1,3})[\"']?\s*", re.ASCII)


PCI_DEVICES: Final = Path("bus/pci/devices")
PCI_VENDOR: Final = "0x1d0f"
NEURON_FUNCTIONS: Final = frozenset(
    {"0x7064", "0x7065", "0x7066", "0x7067", "0x7164", "0x7264", "0x7364"}  # inf1 (four), trn1, inf2, trn2
)
_ROOT: Final = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}", re.ASCII)
_NUMA_NODE: Final = re.compile(r"[0-9]{1,5}", re.ASCII)
_FUNCTION: Final = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)


class SysfsError(OSError):
    """A file exists but cannot be read; the message has the path and the reason."""


@dataclasses.dataclass(frozen=True, slots=True)
class NeuronDevice:
    """One device of the node.

    Attributes:
        index: N of `/dev/neuronN`.
        cores: physical NeuronCores, independent of the LNC; None if only root may read it.
        connected: indices of its neighbours; None if only root may read it.
        serial: serial number; None if the device has none.
        has_node: whether its device node is in /dev.
        counters: ECC events since the driver was loaded, by the name of existing files.
        unhealthy: subsystems that the firmware reports as unhealthy (driver 2.30.2 and later).
        unreadable: files that could not be read, with the reasons.
    """

    index: int
    cores: int | None = None
    connected: frozenset[int] | None = None
    serial: str | None = None
    has_node: bool = True
    counters: Mapping[str, int] = dataclasses.field(default_factory=dict)
    unhealthy: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Membership:
    """The node's place in a set of UltraServer nodes: the set's id, the node's number in it."""

    server_id: str
    node_id: int


@dataclasses.dataclass(frozen=True, slots=True)
class UltraServer:
    """The kernel driver's facts about the node's UltraServer.

    Attributes:
        modes: values of the driver's mode enum that the node can take (1 = 4 nodes, 2 = 2 nodes side by side,
            3 = 2 nodes on top of each other, 4 = 1 node). Not counts of nodes.
        members: its place in the set of 2 and of 4 nodes, if it has one.
        busy: whether the nodes are still electing; then the other fields are not reliable.
    """

    modes: frozenset[int] = frozenset()
    members: Mapping[int, Membership] = dataclasses.field(default_factory=dict)
    busy: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """The place of one device.

    Attributes:
        root: its PCIe root complex, e.g. `pci0000:c8`; None if it is not known.
        numa_node: the NUMA node; None if it is not known, or if the machine has none.
        address: its PCI address, e.g. `0000:cc:00.0`; None if it is not known.
    """

    root: str | None = None
    numa_node: int | None = None
    address: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class NodeHardware:
    """A node's Neuron hardware at one moment.

    Attributes:
        instance_type: EC2 instance type by DMI; None if DMI does not name one.
        driver_version: version of the kernel driver, four numbers; None if the module is not loaded.
        devices: in order of their index.
        ultraserver: None if the driver has no such files.
        places: PCIe root complex and NUMA node by the device's index, where they are known; also of a missing device.
        logical_nc: size of a logical NeuronCore that the node's file of defaults sets; None if it sets none.
    """

    instance_type: str | None
    driver_version: str | None
    devices: tuple[NeuronDevice, ...] = ()
    ultraserver: UltraServer | None = None
    places: Mapping[int, Place] = dataclasses.field(default_factory=dict)
    logical_nc: int | None = None

    @property
    def links(self) -> frozenset[tuple[int, int]] | None:
        """Pairs of connected devices; None if the node does not tell.

        It does not tell if a device's file cannot be read, or if no device names a neighbour.
        """
        found = set()
        for device in self.devices:
            if device.connected is None:
                return None
            found |= {(device.index, other) for other in device.connected}
        return frozenset(found) or None

    def device(self, index: int) -> NeuronDevice | None:
        """The device of that index, or None."""
        return next((device for device in self.devices if device.index == index), None)


def discover(sysfs_root: Path, dev_root: Path, logical_nc_file: Path | None = None) -> NodeHardware:
    """Read the node's hardware.

    Args:
        sysfs_root: usually `/sys`.
        dev_root: usually `/dev`.
        logical_nc_file: see `read_logical_nc`; None: it is not looked at.

    Returns:
        The hardware as far as it could be read. A device that vanishes meanwhile is left out; files that cannot be
        read are in the device's `unreadable`.
    """
    product = text(sysfs_root / PRODUCT_NAME)
    instance_type = product if product and _EC2_TYPE.fullmatch(product) else None
    found = []
    for index in _indices(sysfs_root / DEVICES):
        device = _device(sysfs_root / DEVICES / f"neuron{index}", dev_root, index)
        if device is not None:
            found.append(device)
    return NodeHardware(
        instance_type=instance_type,
        driver_version=text(sysfs_root / DRIVER_VERSION) or None,
        devices=tuple(found),
        ultraserver=read_ultraserver(sysfs_root),
        places=pci_places(sysfs_root, instance_type, [device.index for device in found]),
        logical_nc=None if logical_nc_file is None else read_logical_nc(logical_nc_file).size,
    )


def read_ultraserver(sysfs_root: Path) -> UltraServer | None:
    """Read only the UltraServer files, which change while nodes elect."""
    directory = sysfs_root / CLASS
    modes = text(directory / "ultraserver_mode")
    if modes is None:
        return None
    texts = {}
    for nodes in (2, 4):
        # The later generation has only one set, and no number in the names of its files.
        server = text(directory / f"server_id_{nodes}") or text(directory / "reservation_id")
        node = text(directory / f"node_id_{nodes}") or text(directory / "node_id")
        texts[nodes] = (server or "", node or str(_NO_NODE))
    members = {}
    for nodes, (server, node) in texts.items():
        number = _number(node)
        if server not in _NO_SERVER and _WORD.fullmatch(server) and number is not None and number > _NO_NODE:
            members[nodes] = Membership(server, number)
    return UltraServer(
        modes=frozenset(_numbers(modes)),
        members=members,
        busy=_BUSY in modes or any(_BUSY in text for pair in texts.values() for text in pair),
    )


def _indices(directory: Path) -> list[int]:
    try:
        names = [entry.name for entry in directory.iterdir()]
    except OSError:
        return []
    matches = (DEVICE_NAME.fullmatch(name) for name in names)
    return sorted(int(match[1]) for match in matches if match)


def _device(directory: Path, dev_root: Path, index: int) -> NeuronDevice | None:
    files = files_by_name(directory)
    unreadable: list[str] = []

    def read(name: str) -> str | None:
        try:
            return _read(files[name]) if name in files else None
        except SysfsError as error:
            unreadable.append(str(error))
            return None

    cores, connected, serial = _number(read("core_count") or ""), read("connected_devices"), read("serial_number") or ""
    if cores is not None and not 0 < cores <= MOST_CORES:
        unreadable.append(f"{files['core_count']}: it says {str(cores)[:20]}, which is no number of cores")
        cores = None
    counters = {name: _number(read(name) or "") for name in ECC_COUNTERS}
    words = re.split(r"[,\s]+", read("unhealthy_components") or "")
    device = NeuronDevice(
        index=index,
        cores=cores,
        connected=None if connected is None else frozenset(_numbers(connected)),
        serial=serial if _WORD.fullmatch(serial) else None,
        has_node=(dev_root / f"neuron{index}").exists(),
        counters={name: count for name, count in counters.items() if count is not None},
        unhealthy=tuple(sorted({word for word in words if word.lower() not in _NONE_WORDS})),
        unreadable=tuple(unreadable),
    )
    return device if directory.is_dir() else None


def files_by_name(directory: Path) -> dict[str, str]:
    """The path of each file of a device. A counter may be a directory with the file `total`."""
    found: dict[str, str] = {}
    root = str(directory)
    for parent, directories, files in os.walk(root):
        depth = parent.count(os.sep, len(root))
        if depth >= _MAX_DEPTH:
            directories.clear()
        directories[:] = sorted(
            name
            for name in directories
            if not _OTHER_DIRECTORIES.fullmatch(name) and (depth or name != _POWER_MANAGEMENT)
        )
        if "total" in files:
            found.setdefault(parent.rpartition(os.sep)[2], f"{parent}{os.sep}total")
        for name in files:
            found.setdefault(name, f"{parent}{os.sep}{name}")
    return found


def _read(path: Path | str) -> str | None:
    """A sysfs file without surrounding blanks; None if it does not exist or only root may read it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(descriptor, _MAX_LENGTH)
        finally:
            os.close(descriptor)
    except PermissionError:
        return None
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise SysfsError(f"{path}: {error.strerror}") from error
    return data.decode("ascii", "replace").strip(" \t\r\n\0")


def text(path: Path) -> str | None:
    """A sysfs file without surrounding blanks; None if it cannot be read."""
    try:
        return _read(path)
    except SysfsError:
        return None


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _numbers(text: str) -> list[int]:
    found = (_number(word) for word in re.split(r"[,\s]+", text))
    return [number for number in found if number is not None]


@dataclasses.dataclass(frozen=True, slots=True)
class LogicalNcFile:
    """The file.

    Attributes:
        size: physical cores of a logical one; None if the file does not say.
        problem: why it does not say, although it exists; empty if there is no file.
    """

    path: Path
    size: int | None = None
    problem: str = ""


NO_FILE: Final = LogicalNcFile(Path(names.LOGICAL_NC_FILE))
"""A node without the file, at its usual place."""


def read_logical_nc(path: Path) -> LogicalNcFile:
    """Read the file. Comments and empty lines are skipped."""
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_LENGTH).decode(errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return LogicalNcFile(path)
    except OSError as error:
        return LogicalNcFile(path, None, f"it cannot be read: {error.strerror}")
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    found = [
        match
        for line in lines
        if (match := _LOGICAL_NC_LINE.fullmatch(line)) is not None and match[1] in names.LNC_VARIABLES
    ]
    sizes = {int(match[2]) for match in found}
    if len(sizes) == 1:
        return LogicalNcFile(path, sizes.pop())
    why = "sets different values" if sizes else f"has no line {names.LNC_VARIABLES[0]}=<number>"
    return LogicalNcFile(path, None, f"it {why}: {' '.join(text.split())[:80]!r}")


def pci_places(sysfs_root: Path, instance_type: str | None, indices: Collection[int]) -> dict[int, Place]:
    """The place of each device whose PCI function is known, by the device's index; also of one that has vanished.

    Args:
        sysfs_root: usually `/sys`.
        instance_type: EC2 type of the node, if it is known.
    """
    functions = neuron_functions(sysfs_root / PCI_DEVICES)
    documented = PCI_ADDRESSES.get(instance_type or "", ())
    if len(indices) == len(functions) == 1:
        found = dict(zip(indices, functions.values(), strict=True))
    elif functions.keys() <= set(documented):
        found = {index: functions[address] for index, address in enumerate(documented) if address in functions}
    else:
        return {}
    return {index: _place(path.resolve()) for index, path in found.items()}


def neuron_functions(directory: Path) -> dict[str, Path]:
    """The PCI functions of Neuron devices, by address."""
    try:
        entries = [path for path in directory.iterdir() if _FUNCTION.fullmatch(path.name)]
    except OSError:
        return {}
    return {
        path.name: path
        for path in entries
        if text(path / "vendor") == PCI_VENDOR and text(path / "device") in NEURON_FUNCTIONS
    }


def _place(function: Path) -> Place:
    root = next((part for part in function.parts if _ROOT.fullmatch(part)), None)
    number = text(function / "numa_node") or ""
    # -1: the firmware tells none.
    return Place(root, int(number) if _NUMA_NODE.fullmatch(number) else None, function.name)
