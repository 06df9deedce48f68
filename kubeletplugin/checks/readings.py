"""What the checks read on the node: files, device nodes, the Node object, processes. Nothing is judged here.

A reading that is not possible says why.
"""

import contextlib
import dataclasses
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from kubeletplugin.discover import sysfs
from kubeletplugin.discover.processes import ContainerProcess, OpenDevice
from kubeletplugin.discover.sysfs import NodeHardware
from kubeletplugin.settings import DriverSettings
from neuron import names
from neuron.hardware.instances import InstanceType

HUGE_PAGES: Final = Path("kernel/mm/hugepages")
INFINIBAND: Final = Path("class/infiniband")
SELINUX: Final = Path("fs/selinux/enforce")
TEST_FILE: Final = f".{names.DRIVER}-claim_check.tmp"
"""Of the test write. A driver that starts removes files of this form; no container runtime reads them."""

_HUGE: Final = re.compile(r"hugepages-([0-9]+)kB", re.ASCII)
_LABEL: Final = "security.selinux"


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceNode:
    """A file `/dev/neuronN`, of the host or in a container.

    Attributes:
        kind: `character device`, `missing`, or what else it is.
        numbers: major and minor; None if it is no device.
        link: whether `/dev/char/MAJ:MIN` leads to it; None if it has no numbers.
    """

    index: int
    kind: str
    uid: int = 0
    gid: int = 0
    mode: int = 0
    numbers: tuple[int, int] | None = None
    link: bool | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceFiles:
    """The sysfs files of one device by name: path below the device's directory. `closed` cannot be read.

    Attributes:
        use: those that tell the use of its first core, and of the device.
    """

    index: int
    found: Mapping[str, str]
    closed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    use: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class TrialWrite:
    """A file that was written, read back and removed.

    Attributes:
        error: why that failed; empty if it did not.
        label: the file's SELinux context; empty without one.
    """

    folder: Path
    error: str = ""
    label: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Interface:
    """An RDMA interface of the node, with its kernel driver and PCI address."""

    name: str
    driver: str
    address: str


@dataclasses.dataclass(frozen=True, slots=True)
class NodeInfo:
    """What the Node object tells; `error`: why it cannot be read."""

    runtime: str = ""
    kubelet: str = ""
    type_label: str = ""
    error: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class ClaimContainer:
    """A container that, as the kubelet says, uses a prepared claim, and what it has.

    Attributes:
        pod: `namespace/name`.
        devices: of the claim, by index.
        has: whether the mount of the claim's CDI spec is in the container.
        nodes: its device nodes; None if they cannot be read.
    """

    pod: str
    name: str
    claim: str
    devices: frozenset[int]
    has: bool
    nodes: tuple[DeviceNode, ...] | None = None

    def __str__(self) -> str:
        return f"container {self.name} of pod {self.pod}"


@dataclasses.dataclass(frozen=True, slots=True)
class Readings:
    """Everything that the checks judge.

    Attributes:
        emulated: whether the kernel driver's files are fake.
        module: version by `/sys/module/neuron/version`; None without the file.
        module_loaded: whether `/sys/module/neuron` exists.
        huge_pages: by size in KiB: how many there are, and how many are free.
        enforcing: whether SELinux denies; None if the node has no SELinux, or does not show it.
        opened: device nodes that processes have open; a text says why that is not known.
        containers: those that were looked at; a text says why that is not known.
    """

    hardware: NodeHardware
    instance: InstanceType | None
    node: NodeInfo = NodeInfo()
    emulated: bool = False
    module: str | None = None
    module_loaded: bool = False
    files: tuple[DeviceFiles, ...] = ()
    nodes: tuple[DeviceNode, ...] = ()
    logical_nc: sysfs.LogicalNcFile = sysfs.NO_FILE
    writes: tuple[TrialWrite, ...] = ()
    enforcing: bool | None = None
    interfaces: tuple[Interface, ...] = ()
    verbs: tuple[str, ...] = ()
    huge_pages: Mapping[int, tuple[int, int]] = dataclasses.field(default_factory=dict)
    functions: tuple[str, ...] = ()
    opened: tuple[OpenDevice, ...] | str = ()
    containers: tuple[ClaimContainer, ...] | str = ()


def read_files(settings: DriverSettings, hardware: NodeHardware, instance: InstanceType | None) -> Readings:
    """Read the node's files; the Node, processes and containers are left out. Writes and removes test files."""
    sysfs_root, dev_root = settings.sysfs_root, settings.dev_root
    module = sysfs_root / sysfs.DRIVER_VERSION
    return Readings(
        hardware,
        instance,
        emulated=settings.emulate is not None,
        module=sysfs.text(module),
        module_loaded=module.parent.is_dir(),
        files=tuple(_device_files(sysfs_root, device.index) for device in hardware.devices),
        nodes=tuple(device_node(dev_root, device.index) for device in hardware.devices),
        logical_nc=sysfs.read_logical_nc(settings.logical_nc_file),
        writes=tuple(_test_write(folder) for folder in (settings.cdi_dir, settings.state)),
        enforcing={"1": True, "0": False}.get(sysfs.text(sysfs_root / SELINUX) or ""),
        interfaces=tuple(_interfaces(sysfs_root / INFINIBAND)),
        verbs=tuple(_names(dev_root / "infiniband", "uverbs")),
        huge_pages=dict(_huge_pages(sysfs_root / HUGE_PAGES)),
        functions=tuple(sorted(sysfs.neuron_functions(sysfs_root / sysfs.PCI_DEVICES))),
    )


def device_node(dev: Path, index: int) -> DeviceNode:
    """The file `neuronN` of a directory of device nodes."""
    path = dev / f"neuron{index}"
    try:
        status = path.lstat()
    except OSError:
        return DeviceNode(index, "missing")
    found = DeviceNode(index, _kind(status.st_mode), status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode))
    if not stat.S_ISCHR(status.st_mode):
        return found
    numbers = os.major(status.st_rdev), os.minor(status.st_rdev)
    link = dev / "char" / f"{numbers[0]}:{numbers[1]}"
    leads = False
    with contextlib.suppress(OSError):
        leads = link.stat().st_rdev == status.st_rdev
    return dataclasses.replace(found, numbers=numbers, link=leads)


def container_nodes(proc_root: Path, process: ContainerProcess) -> tuple[DeviceNode, ...] | None:
    """The Neuron device nodes that a process sees; None if they cannot be read."""
    dev = proc_root / str(process.pid) / "root" / "dev"
    try:
        with os.scandir(dev) as entries:
            indices = sorted(int(match[1]) for each in entries if (match := sysfs.DEVICE_NAME.fullmatch(each.name)))
    except OSError:
        return None
    return tuple(device_node(dev, index) for index in indices)


def _kind(mode: int) -> str:
    kinds: tuple[tuple[Callable[[int], bool], str], ...] = (
        (stat.S_ISCHR, "character device"),
        (stat.S_ISREG, "regular file"),
        (stat.S_ISLNK, "symbolic link"),
        (stat.S_ISDIR, "directory"),
    )
    return next((name for test, name in kinds if test(mode)), "special file")


def _device_files(root: Path, index: int) -> DeviceFiles:
    directory = root / sysfs.DEVICES / f"neuron{index}"
    paths = sysfs.files_by_name(directory)
    shown = {name: os.path.relpath(path, directory) for name, path in paths.items()}
    found = {name: path for name, path in shown.items() if os.access(paths[name], os.R_OK)}
    closed = {name: path for name, path in shown.items() if name not in found}
    return DeviceFiles(index, found, closed, {name: shown[name] for name in sysfs.USE if name in shown})


def _test_write(folder: Path) -> TrialWrite:
    path, content = folder / TEST_FILE, b"written by neuron-dra-kubelet-plugin to see whether it can\n"
    label = ""
    try:
        path.write_bytes(content)
        try:
            if path.read_bytes() != content:
                return TrialWrite(folder, "what was written cannot be read back")
            with contextlib.suppress(OSError):  # no SELinux, or no extended attributes
                label = os.getxattr(path, _LABEL).rstrip(b"\0").decode(errors="replace")
        finally:
            path.unlink()
    except OSError as error:
        return TrialWrite(folder, error.strerror or str(error))
    return TrialWrite(folder, "", label)


def _names(directory: Path, prefix: str) -> list[str]:
    try:
        return sorted(each.name for each in directory.iterdir() if each.name.startswith(prefix))
    except OSError:
        return []


def _interfaces(directory: Path) -> Iterator[Interface]:
    for name in _names(directory, ""):
        device = directory / name / "device"
        driver = os.path.realpath(device / "driver").rpartition("/")[2] if (device / "driver").exists() else ""
        address = os.path.realpath(device).rpartition("/")[2] if device.exists() else ""
        yield Interface(name, driver, address)


def _huge_pages(directory: Path) -> Iterator[tuple[int, tuple[int, int]]]:
    for name in _names(directory, "hugepages-"):
        size = _HUGE.fullmatch(name)
        numbers = [(sysfs.text(directory / name / each) or "")[:256] for each in ("nr_hugepages", "free_hugepages")]
        if size and all(each.isdecimal() for each in numbers):
            yield int(size[1]), (int(numbers[0]), int(numbers[1]))
