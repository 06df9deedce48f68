"""Finds processes that use Neuron devices: open handles, and device nodes in containers. Reads the host's procfs.

A process of another user can be read only with the capability SYS_PTRACE (proc(5), ptrace(2)). A result is an answer
only if the processes of all pods could be read.
"""

import dataclasses
import os
import re
import stat
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

from kubeletplugin.ports import UsageUnknownError

LONGEST_SCAN: Final = 10.0
"""Seconds."""

_OF_THE_HOST: Final = frozenset({"kthreadd", "kubelet"})
"""Names of processes of which a host has at least one; a container sees its own processes only."""
_POD: Final = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?![0-9a-f])")
"""A pod's UID in the path of a cgroup; systemd's cgroup driver writes underscores, static pods have hashes."""
_DEVICE: Final = re.compile(r"/neuron([0-9]{1,3})(?: \(deleted\))?\Z")
_CAPABILITIES: Final = re.compile(r"^CapEff:\s*([0-9a-f]+)$", re.MULTILINE)
_SYS_ADMIN: Final = 1 << 21
_GONE: Final = (FileNotFoundError, ProcessLookupError)
_SHOWN: Final = 3


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessUse:
    """A process that uses a device.

    Attributes:
        pid: in the PID namespace of the procfs.
        pod: UID of its pod; empty if it is in no pod.
        open: whether it has the device open; else only its container has the device node.
    """

    pid: int
    command: str
    pod: str
    index: int
    open: bool

    def __str__(self) -> str:
        where = f"of pod {self.pod}" if self.pod else "of the host"
        device = f"/dev/neuron{self.index}"
        how = f"has {device} open" if self.open else f"is in a container with {device}"
        return f"process {self.pid} ({self.command}) {where} {how}"


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessScan:
    """The result of a scan.

    Attributes:
        doubt: why there may be more uses; empty if all processes of pods could be read.
    """

    uses: tuple[ProcessUse, ...] = ()
    doubt: str = ""


class Processes:
    """The processes of the node."""

    def __init__(self, proc_root: Path, dev_root: Path, seconds: float = LONGEST_SCAN) -> None:
        """A scan ends after `seconds` without an answer. `dev_root` is the host's directory of device nodes."""
        self._root = proc_root
        self._dev = dev_root
        self._seconds = seconds

    def using(self, indices: Collection[int]) -> ProcessScan:
        """The processes that use any of some devices. Blocks.

        Raises:
            UsageUnknownError: the host's processes are not visible, or it took too long.
        """
        scan = _Scan(self._root, self._numbers(indices), self._device_of(self._dev), time.monotonic() + self._seconds)
        try:
            found = tuple(scan.run())
        except OSError as error:
            raise UsageUnknownError(f"the processes of the node cannot be listed: {error}") from error
        if not scan.of_the_host:
            raise UsageUnknownError(
                f"{self._root} does not show the processes of the node: mount the host's /proc and set --proc-root"
            )
        doubt = ""
        if scan.unreadable:
            shown = "; ".join(scan.unreadable[:_SHOWN])
            doubt = f"processes of pods cannot be read, which needs the capability SYS_PTRACE: {shown}"
        return ProcessScan(found, doubt)

    def _numbers(self, indices: Collection[int]) -> Mapping[int, tuple[int, int] | None]:
        """The device numbers of the host's device node, by index; None if there is no node."""
        return {index: self._identity(self._dev / f"neuron{index}") for index in indices}

    @staticmethod
    def _identity(path: Path) -> tuple[int, int] | None:
        try:
            return _identity(path.stat())
        except OSError:
            return None

    @staticmethod
    def _device_of(directory: Path) -> int | None:
        try:
            return directory.stat().st_dev
        except OSError:
            return None


class _Scan:
    """One pass over all processes.

    Attributes:
        of_the_host: whether processes of the host were seen.
        unreadable: pods' processes that could not be read.
    """

    def __init__(
        self, root: Path, devices: Mapping[int, tuple[int, int] | None], host_dev: int | None, deadline: float
    ) -> None:
        self._root = root
        self._devices = devices
        self._host_dev = host_dev
        self._deadline = deadline
        self._namespaces: set[str] = set()
        self.of_the_host = False
        self.unreadable: list[str] = []

    def run(self) -> Iterator[ProcessUse]:
        with os.scandir(self._root) as entries:
            pids = [entry.name for entry in entries if entry.name.isdecimal()]
        for pid in pids:
            if time.monotonic() > self._deadline:
                raise UsageUnknownError(f"{len(pids)} processes cannot be read in time")
            try:
                yield from self._process(pid)
            except _GONE:
                continue  # it ended

    def _process(self, pid: str) -> Iterator[ProcessUse]:
        command = self._text(pid, "comm").strip()
        self.of_the_host |= command in _OF_THE_HOST
        match = _POD.search(self._text(pid, "cgroup"))
        pod = match[1].replace("_", "-") if match else ""
        found: dict[int, bool] = {}
        try:
            if pod:
                found = dict.fromkeys(self._nodes(pid), False)
            found |= dict.fromkeys(self._handles(pid), True)
        except PermissionError as error:
            # A container gets a claim's devices, so a process outside of pods has none of them.
            if pod:
                self.unreadable.append(f"{command} (process {pid}, pod {pod}): {error.strerror}")
        for index, is_open in sorted(found.items()):
            yield ProcessUse(int(pid), command, pod, index, is_open)

    def _text(self, pid: str, name: str) -> str:
        return (self._root / pid / name).read_text(errors="replace")

    def _handles(self, pid: str) -> Iterator[int]:
        """Devices that the process has open."""
        directory = self._root / pid / "fd"
        with os.scandir(directory) as entries:
            for entry in entries:
                path = Path(entry.path)
                try:
                    index = self._opened(path, path.readlink())
                except _GONE:
                    continue
                if index is not None:
                    yield index

    def _opened(self, path: Path, target: Path) -> int | None:
        """The device of an open file; None for another file. Other files are not touched: they may hang."""
        match = _DEVICE.search(str(target))
        if match is None or not target.is_absolute():
            return None
        opened = _identity(path.stat())
        named = int(match[1])
        for index, host in self._devices.items():
            if host is not None and opened == host:
                return index
        # Emulated devices are null devices in containers.
        return named if named in self._devices and str(target.parent) == "/dev" else None

    def _nodes(self, pid: str) -> Iterator[int]:
        """Devices whose nodes are in the /dev of the process's container, once for each container."""
        process = self._root / pid
        namespace = str((process / "ns" / "mnt").readlink())
        if namespace in self._namespaces:
            return
        capabilities = _CAPABILITIES.search(self._text(pid, "status"))
        if capabilities is None or int(capabilities[1], 16) & _SYS_ADMIN:
            return  # a privileged container has the nodes of all devices
        dev = process / "root" / "dev"
        try:
            if dev.stat().st_dev == self._host_dev:
                return  # the host's /dev
            for index in self._devices:
                if self._exists(dev / f"neuron{index}"):
                    yield index
        except _GONE:
            return
        self._namespaces.add(namespace)

    @staticmethod
    def _exists(path: Path) -> bool:
        try:
            path.lstat()  # does not follow a link of the container
        except _GONE:
            return False
        return True


def _identity(status: os.stat_result) -> tuple[int, int]:
    """The numbers of a device node; of another file, as emulated nodes have, its file system and inode."""
    if stat.S_ISCHR(status.st_mode):
        return -1, status.st_rdev
    return status.st_dev, status.st_ino
