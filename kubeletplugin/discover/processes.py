"""Finds containers and processes that have Neuron devices. Reads the host's procfs.

A container of a claim names it: every CDI spec mounts one file for each request, whose name has the claim's UID, the
request, and the number of the preparation, which differs from that of earlier containers of the same claim. So every
process shows it in `/proc/PID/mountinfo`, which needs no capability. To read the open handles, the device nodes and the
variables of another user's process takes the capability SYS_PTRACE (proc(5)).
"""

import contextlib
import dataclasses
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeVar

from kubeletplugin.discover.sysfs import DEVICE_NAME
from kubeletplugin.ports import WAITS, NoProcessesError, UsageUnknownError

SUFFIX: Final = ".json"
_PART: Final = re.compile(r"[A-Za-z0-9-]{1,63}", re.ASCII)
_NAME: Final = re.compile(r"([A-Za-z0-9-]{1,63})_([A-Za-z0-9-]{1,63})_([0-9]{1,18})\.json", re.ASCII)
"""Neither UIDs nor names of requests contain an underscore."""
_DELETED: Final = "//deleted"
"""What the kernel adds to the name of a file that is mounted and removed (d_path)."""
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")
_OWN_MOUNTS: Final = Path("/proc/self/mountinfo")


_T = TypeVar("_T")
_OF_THE_HOST: Final = frozenset({"kthreadd", "kubelet"})
"""Names of processes of which a host has at least one; a container sees its own processes only."""
_POD: Final = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?![0-9a-f])")
"""A pod's UID in the path of a cgroup; systemd's cgroup driver writes underscores, static pods have hashes."""
_OPEN_DEVICE: Final = re.compile(r"/neuron([0-9]{1,3})(?: \(deleted\))?\Z")
_CONTAINER: Final = re.compile(r"/pods/([0-9a-f-]{32,36})/containers/([a-z0-9-]{1,63})/[^/ ]+ ")
"""The kubelet mounts a file of this path into each container for its termination message."""
_WAITS: Final = re.compile(r"^State:\s*D", re.MULTILINE)
_GONE: Final = (FileNotFoundError, ProcessLookupError)


@dataclasses.dataclass(frozen=True, slots=True)
class ClaimFile:
    """A file of a claim.

    Attributes:
        number: of the preparation (`PreparedClaim.number`).
    """

    uid: str
    request: str
    number: int

    @property
    def name(self) -> str:
        """The file's name. Raises ValueError for names that could point outside a directory."""
        for part in (self.uid, self.request):
            if not _PART.fullmatch(part):
                raise ValueError(f"{part!r} is neither the UID of a claim nor the name of a request.")
        return f"{self.uid}_{self.request}_{self.number}{SUFFIX}"


def read_name(name: str) -> ClaimFile | None:
    """The file of that name; None if it is no file of a claim."""
    match = _NAME.fullmatch(name)
    return ClaimFile(match[1], match[2], int(match[3])) if match else None


class Folder:
    """The folder of the files. A mount of any other file names no claim: pods choose what they mount from volumes."""

    def __init__(self, path: Path, own_mounts: Path = _OWN_MOUNTS) -> None:
        """`own_mounts` tells how the kernel names the folder in other mount namespaces."""
        self.path: Final = path
        self._own_mounts = own_mounts

    def mounted(self, mountinfo: str) -> frozenset[ClaimFile]:
        """The files that a mount namespace has, by its `mountinfo` (proc(5))."""
        if f"/{self.path.name}/" not in mountinfo:
            return frozenset()
        places = {str(self.path), *self._seen_from_outside()}
        paths = (root.removesuffix(_DELETED).rpartition("/") for root, _ in _roots(mountinfo))
        files = (read_name(name) for directory, _, name in paths if directory in places)
        return frozenset(file for file in files if file is not None)

    def _seen_from_outside(self) -> Iterator[str]:
        """The folder's path within its file system: mountinfo names the sources of mounts in this way."""
        try:
            mounts = list(_roots(self._own_mounts.read_text(errors="replace")))
        except OSError:
            return
        path = os.path.realpath(self.path)
        # Of several mounts at one place, the last hides the others.
        around = [
            (len(point), number)
            for number, (_, point) in enumerate(mounts)
            if point in ("/", path) or path.startswith(f"{point}/")
        ]
        if around:
            root, point = mounts[max(around)[1]]
            yield os.path.normpath(f"{root}/{path[len(point.rstrip('/')) :]}").replace("//", "/")


def _roots(mountinfo: str) -> Iterator[tuple[str, str]]:
    """Of each mount, its root within the file system and its place."""
    for line in mountinfo.splitlines():
        fields = line.split(" ", 5)
        if len(fields) > 5:
            yield _unescaped(fields[3]), _unescaped(fields[4])


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)


@dataclasses.dataclass(frozen=True, slots=True)
class ContainerProcess:
    """A process of a container of the kubelet.

    Attributes:
        pod: UID of its pod.
        name: of the container.
        files: the files of claims that it has.
    """

    pid: int
    pod: str
    name: str
    files: frozenset[ClaimFile]


@dataclasses.dataclass(frozen=True, slots=True)
class OpenDevice:
    """A process that has device nodes open.

    Attributes:
        claimed: whether its container names a claim.
    """

    pid: int
    command: str
    pod: str
    indices: frozenset[int]
    claimed: bool

    def __str__(self) -> str:
        devices = ", ".join(f"/dev/neuron{index}" for index in sorted(self.indices))
        where = f"of pod {self.pod}" if self.pod else "of the host"
        return f"{devices} in process {self.pid} ({self.command}) {where}"


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessUse:
    """A process of a container that names claims.

    Attributes:
        pid: in the PID namespace of the procfs.
        pod: UID of its pod; empty if it is in no pod.
        files: the files of claims that its container has.
        indices: devices whose nodes are in its container; none if these cannot be read, or are the host's.
        environment: variables of the Neuron runtime with which it was started, if they were asked for.
    """

    pid: int
    command: str
    pod: str
    files: frozenset[ClaimFile] = frozenset()
    indices: frozenset[int] = frozenset()
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        where = f"of pod {self.pod}" if self.pod else "of the host"
        return f"process {self.pid} ({self.command}) {where} is in a container of the claim"


class Processes:
    """The processes of the node."""

    def __init__(self, proc_root: Path, dev_root: Path, folder: Folder, seconds: float = WAITS.scan) -> None:
        """A scan ends after `seconds` without an answer. `dev_root` is the host's directory of device nodes."""
        self.root: Final = proc_root
        self._dev = dev_root
        self._folder = folder
        self._seconds = seconds

    def scan(self, *, environment: bool = False) -> tuple[ProcessUse, ...]:
        """The containers that name claims, by one process of each. Blocks.

        Args:
            environment: also read their variables.

        Raises:
            NoProcessesError: the host's processes are not visible.
            UsageUnknownError: they cannot be read, or it took too long.
        """
        return self._look(_Scan.run, environment=environment)

    def containers(self) -> tuple[ContainerProcess, ...]:
        """The containers of the kubelet's pods. Blocks. Raises as `scan`."""
        return self._look(_Scan.containers)

    def opened(self) -> tuple[OpenDevice, ...]:
        """The processes that have device nodes open. Blocks.

        Raises:
            UsageUnknownError: as of `scan`, and if none is found and some could not be looked at.
        """
        return self._look(_Scan.opened)

    def _look(self, read: "Callable[[_Scan], Iterator[_T]]", *, environment: bool = False) -> tuple[_T, ...]:
        scan = _Scan(self.root, self._dev, self._folder, time.monotonic() + self._seconds, environment=environment)
        try:
            found = tuple(read(scan))
        except OSError as error:
            raise UsageUnknownError(f"the processes of the node cannot be listed: {error}") from error
        if not scan.of_the_host:
            raise NoProcessesError(
                f"{self.root} does not show the processes of the node: mount the host's /proc and set --proc-root"
            )
        if not found and scan.denied:
            raise UsageUnknownError(f"{scan.denied} processes cannot be looked at (capability SYS_PTRACE)")
        return found


class _Scan:
    """One pass over all processes.

    Attributes:
        of_the_host: whether processes of the host were seen.
        denied: processes that could not be looked at for lack of rights.
    """

    def __init__(self, root: Path, dev: Path, folder: Folder, deadline: float, *, environment: bool) -> None:
        self._root = root
        self._folder = folder
        self._deadline = deadline
        self._environment = environment
        self._devices = {index: _identity_of(dev / f"neuron{index}") for index in _nodes_in(dev)}
        self._host_dev = _identity_of(dev)
        self._namespaces: set[str] = set()
        self.of_the_host = False
        self.denied = 0

    def run(self) -> Iterator[ProcessUse]:
        """See `Processes.scan`."""
        for pid in self._pids():
            with contextlib.suppress(*_GONE):
                yield from self._process(pid)

    def containers(self) -> Iterator[ContainerProcess]:
        """See `Processes.containers`."""
        for pid in self._pids():
            with contextlib.suppress(*_GONE, PermissionError):
                self._command(pid)
                if not self._pod(pid):
                    continue
                mounts = self._mounts(pid)
                if match := _CONTAINER.search(mounts):
                    yield ContainerProcess(int(pid), match[1], match[2], self._folder.mounted(mounts))

    def opened(self) -> Iterator[OpenDevice]:
        """See `Processes.opened`."""
        for pid in self._pids():
            try:
                command = self._command(pid)
                if indices := frozenset(self._handles(pid)):
                    claimed = bool(self._folder.mounted(self._mounts(pid)))
                    yield OpenDevice(int(pid), command, self._pod(pid), indices, claimed)
            except PermissionError:
                self.denied += 1
            except _GONE:
                continue

    def _pids(self) -> Iterator[str]:
        with os.scandir(self._root) as entries:
            pids = [entry.name for entry in entries if entry.name.isdecimal()]
        for pid in pids:
            if time.monotonic() > self._deadline:
                raise UsageUnknownError(f"{len(pids)} processes cannot be read in time")
            yield pid

    def _process(self, pid: str) -> Iterator[ProcessUse]:
        command = self._command(pid)
        namespace = ""
        with contextlib.suppress(PermissionError):
            namespace = str((self._root / pid / "ns" / "mnt").readlink())
        if namespace in self._namespaces:
            return
        if files := self._folder.mounted(self._mounts(pid)):
            indices: frozenset[int] = frozenset()
            with contextlib.suppress(PermissionError, *_GONE):
                dev = self._root / pid / "root" / "dev"
                if _identity_of(dev) != self._host_dev:
                    indices = frozenset(_nodes_in(dev))
            yield ProcessUse(int(pid), command, self._pod(pid), files, indices, self._variables(pid))
        if namespace:
            self._namespaces.add(namespace)

    def _command(self, pid: str) -> str:
        command = self._text(pid, "comm").strip()
        self.of_the_host |= command in _OF_THE_HOST
        return command

    def _pod(self, pid: str) -> str:
        """UID of the process's pod; empty if it is in none."""
        match = _POD.search(self._text(pid, "cgroup"))
        return match[1].replace("_", "-") if match else ""

    def _text(self, pid: str, name: str) -> str:
        return (self._root / pid / name).read_text(errors="replace")

    def _mounts(self, pid: str) -> str:
        try:
            return self._text(pid, "mountinfo")
        except PermissionError as error:
            raise UsageUnknownError(f"{self._root / pid / 'mountinfo'} cannot be read: {error.strerror}") from error
        except OSError:
            return ""  # a process that has ended has no mounts (EINVAL)

    def _variables(self, pid: str) -> Mapping[str, str]:
        # To read the memory of a process that hangs in the kernel would hang, too.
        if not self._environment or _WAITS.search(self._text(pid, "status")):
            return {}
        try:
            with (self._root / pid / "environ").open("rb") as file:
                entries = file.read(1 << 20).decode(errors="replace").split("\0")
        except OSError:
            return {}
        pairs = (entry.partition("=") for entry in entries if entry.startswith("NEURON_"))
        return {name: value for name, _, value in pairs}

    def _handles(self, pid: str) -> Iterator[int]:
        directory = self._root / pid / "fd"
        with os.scandir(directory) as entries:
            for entry in entries:
                path = Path(entry.path)
                with contextlib.suppress(*_GONE):
                    index = self._opened(path, path.readlink())
                    if index is not None:
                        yield index

    def _opened(self, path: Path, target: Path) -> int | None:
        """The device of an open file; None for another file. Other files are not touched: they may hang."""
        match = _OPEN_DEVICE.search(str(target))
        if match is None or not target.is_absolute():
            return None
        opened = _identity(path.stat())
        named = int(match[1])
        for index, host in self._devices.items():
            if host is not None and opened == host:
                return index
        # Emulated devices are null devices in containers.
        return named if named in self._devices and str(target.parent) == "/dev" else None


def _nodes_in(directory: Path) -> Iterator[int]:
    """Indices of the device nodes in a directory. Links of a container are not followed."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(directory) as entries:
        for entry in entries:
            if match := DEVICE_NAME.fullmatch(entry.name):
                yield int(match[1])


def _identity_of(path: Path) -> tuple[int, int] | None:
    try:
        return _identity(path.stat())
    except OSError:
        return None


def _identity(status: os.stat_result) -> tuple[int, int]:
    """The numbers of a device node; of another file, as emulated nodes have, its file system and inode."""
    if stat.S_ISCHR(status.st_mode):
        return -1, status.st_rdev
    return status.st_dev, status.st_ino
