"""Containers name their claims, and processes have device nodes open."""

import dataclasses
import os
import subprocess
from pathlib import Path

import pytest

from kubeletplugin.discover.processes import ClaimFile, Folder, OpenDevice, Processes, ProcessUse
from kubeletplugin.ports import NoProcessesError, UsageUnknownError

POD = "0a1b2c3d-1111-4222-8333-444455556666"
SYSTEMD = f"0::/../../kubepods-burstable-pod{POD.replace('-', '_')}.slice/cri-containerd-abc.scope\n"
CGROUPFS = f"4:memory:/kubepods/besteffort/pod{POD}/abc\n0::/\n"


@dataclasses.dataclass
class Proc:
    """A procfs and a /dev in a directory."""

    root: Path

    def __post_init__(self) -> None:
        self.dev.mkdir()
        for index in range(3):
            (self.dev / f"neuron{index}").touch()
        self.add(2, "kthreadd", "0::/\n")

    @property
    def dev(self) -> Path:
        return self.root / "dev"

    def add(self, pid: int, command: str, cgroup: str, *handles: str, nodes: tuple[int, ...] = ()) -> Path:
        """A process, with handles of paths, in a container with device nodes."""
        made = self.root / "proc" / str(pid)
        for name in ("fd", "ns", "root/dev"):
            (made / name).mkdir(parents=True)
        (made / "comm").write_text(f"{command}\n")
        (made / "cgroup").write_text(cgroup)
        (made / "status").write_text(f"Name:\t{command}\n")
        (made / "ns/mnt").symlink_to(f"mnt:[{pid}]")
        for number, target in enumerate(handles):
            (made / "fd" / str(number)).symlink_to(target)
        for index in nodes:
            (made / "root/dev" / f"neuron{index}").touch()
        return made

    def processes(self) -> Processes:
        own = self.root / "own-mounts"
        own.write_text("1 1 8:1 / / rw - ext4 /dev/sda rw\n")
        return Processes(self.root / "proc", self.dev, Folder(self.root / "state" / "device-metadata", own))

    def scan(self, **options: bool) -> tuple[ProcessUse, ...]:
        return self.processes().scan(**options)

    def mounts(self, made: Path, *names: str, where: str = "") -> None:
        """A container has files of claims."""
        folder = where or f"{self.root}/state/device-metadata"
        point = "/run/kubernetes.io/dra-device-attributes/resourceclaims/c/n0/neuron.aws.com-metadata.json"
        lines = [f"{n} 1 8:1 {folder}/{name} {point} ro,relatime - ext4 /dev/sda rw" for n, name in enumerate(names)]
        (made / "mountinfo").write_text("\n".join(["90 1 0:5 / / rw - overlay overlay rw", *lines, ""]))


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


CLAIM = "0a1b2c3d-0000-4000-8000-000000000001"


@pytest.mark.parametrize(
    ("name", "file"),
    [
        (f"{CLAIM}_n0_17.json", ClaimFile(CLAIM, "n0", 17)),
        (f"{CLAIM}_n0_17.json//deleted", ClaimFile(CLAIM, "n0", 17)),
    ],
    ids=["mounted", "its file was removed"],
)
def test_a_container_names_its_claim(proc: Proc, name: str, file: ClaimFile) -> None:
    made = proc.add(41, "python", SYSTEMD, nodes=(0, 2))
    proc.mounts(made, name)
    [use] = proc.scan()
    assert use == ProcessUse(41, "python", POD, frozenset({file}), frozenset({0, 2}))
    assert str(use) == f"process 41 (python) of pod {POD} is in a container of the claim"


def test_each_container_is_told_once_and_with_all_its_claims(proc: Proc) -> None:
    for pid in (41, 42, 43):
        made = proc.add(pid, "python", SYSTEMD, f"{proc.dev}/neuron1")
        (made / "ns/mnt").unlink()
        (made / "ns/mnt").symlink_to("mnt:[7]")
        proc.mounts(made, "a_n0_1.json", "a_n1_1.json", "b_n0_2.json")
    [use] = proc.scan()
    assert use.files == {ClaimFile("a", "n0", 1), ClaimFile("a", "n1", 1), ClaimFile("b", "n0", 2)}


@pytest.mark.parametrize(
    "where",
    [
        "/var/lib/kubelet/pods/x/volumes/kubernetes.io~empty-dir/v/device-metadata",
        "/elsewhere/device-metadata",
        "/device-metadata",
    ],
)
def test_a_file_of_a_volume_names_no_claim(proc: Proc, where: str) -> None:
    """A pod may mount a file of its volume at any place, under any name."""
    made = proc.add(41, "python", SYSTEMD)
    proc.mounts(made, f"{CLAIM}_n0_17.json", where=where)
    assert proc.scan() == ()


@pytest.mark.parametrize(
    ("own", "source"),
    [
        ("1 1 8:1 / / rw - ext4 a rw", "/x/state/device-metadata"),
        ("1 1 8:1 / / rw - ext4 a rw\n2 1 8:2 / /x rw - ext4 b rw", "/state/device-metadata"),
        ("1 1 8:1 / / rw - ext4 a rw\n2 1 8:2 /lib/kubelet /x/state rw - ext4 b rw", "/lib/kubelet/device-metadata"),
        ("1 1 8:1 /a /x/state rw - ext4 a rw\n2 1 8:2 /b /x/state rw - ext4 b rw", "/b/device-metadata"),
        ("1 1 8:1 /with\\040blank /x/state rw - ext4 a rw", "/with\\040blank/device-metadata"),
        ("", "/x/state/device-metadata"),
    ],
    ids=["one file system", "a file system of its own", "a bind mount", "mounted over", "escaped", "nothing known"],
)
def test_the_folder_is_known_as_the_kernel_names_it(tmp_path: Path, own: str, source: str) -> None:
    (tmp_path / "own").write_text(own)
    folder = Folder(Path("/x/state/device-metadata"), tmp_path / "own")
    line = f"9 1 8:2 {source}/a_n0_3.json /run/f ro - ext4 b rw\n"
    assert folder.mounted(line) == {ClaimFile("a", "n0", 3)}
    assert folder.mounted(line.replace("/a_n0", "/more/a_n0")) == frozenset()


def test_the_variables_of_the_neuron_runtime_are_read_if_asked_for(proc: Proc) -> None:
    made = proc.add(41, "python", SYSTEMD)
    proc.mounts(made, "a_n0_1.json")
    (made / "environ").write_bytes(b"NEURON_RT_VISIBLE_CORES=2-3\0SECRET=x\0NEURON_BAD\0\xff=\xff\0")
    assert proc.scan()[0].environment == {}
    assert proc.scan(environment=True)[0].environment == {"NEURON_RT_VISIBLE_CORES": "2-3", "NEURON_BAD": ""}
    (made / "status").write_text("Name:\tpython\nState:\tD (disk sleep)\n")
    assert proc.scan(environment=True)[0].environment == {}, "the reader would hang, too"


@pytest.mark.parametrize("cgroup", [SYSTEMD, CGROUPFS])
def test_an_open_handle_is_found_with_its_pod(proc: Proc, cgroup: str) -> None:
    proc.add(41, "python", cgroup, "/dev/null", "socket:[7]", f"{proc.dev}/neuron1")
    [opened] = proc.processes().opened()
    assert opened == OpenDevice(41, "python", POD, frozenset({1}), claimed=False)
    assert str(opened) == f"/dev/neuron1 in process 41 (python) of pod {POD}"


def test_a_container_that_names_no_claim_holds_nothing(proc: Proc) -> None:
    """AWS's monitor runs privileged, and neuron-top on the host."""
    proc.add(40, "python", SYSTEMD, f"{proc.dev}/neuron1", nodes=(0,))
    proc.add(41, "monitor", SYSTEMD, f"{proc.dev}/neuron0", nodes=(0, 1, 2))
    proc.add(42, "neuron-top", "0::/system.slice/x.service\n", f"{proc.dev}/neuron0", nodes=(0,))
    assert proc.scan() == ()


def test_a_file_with_such_a_name_elsewhere_is_no_device(proc: Proc, tmp_path: Path) -> None:
    (tmp_path / "neuron0").touch()
    proc.add(41, "python", SYSTEMD, f"{tmp_path}/neuron0", f"{tmp_path}/gone/neuron0")
    assert proc.processes().opened() == ()


def test_the_procfs_of_a_container_gives_no_result(tmp_path: Path) -> None:
    (tmp_path / "proc/1").mkdir(parents=True)
    (tmp_path / "proc/1/comm").write_text("neuron-dra\n")
    (tmp_path / "proc/1/cgroup").write_text("0::/\n")
    folder = Folder(tmp_path)
    with pytest.raises(NoProcessesError, match="does not show the processes of the node: mount the host's /proc"):
        Processes(tmp_path / "proc", tmp_path, folder).scan()
    with pytest.raises(UsageUnknownError, match="cannot be listed"):
        Processes(tmp_path / "nowhere", tmp_path, folder).scan()


def test_without_sys_ptrace_containers_still_name_their_claims(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    made = proc.add(41, "python", SYSTEMD, f"{proc.dev}/neuron1", nodes=(1,))
    proc.mounts(made, "a_n0_1.json")
    proc.add(42, "python", SYSTEMD, f"{proc.dev}/neuron1")
    listed, linked = os.scandir, Path.readlink

    def scandir(path: Path) -> object:
        if str(path).endswith(("/fd", "/root/dev")):
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    def readlink(path: Path) -> Path:
        if path.name == "mnt":
            raise PermissionError(13, "Permission denied", str(path))
        return linked(path)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(Path, "readlink", readlink)
    assert proc.scan() == (ProcessUse(41, "python", POD, frozenset({ClaimFile("a", "n0", 1)})),)


def test_mounts_that_cannot_be_read_are_no_answer(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    proc.add(41, "python", SYSTEMD)
    really = Path.read_text

    def read_text(path: Path, **options: str) -> str:
        if path.name == "mountinfo":
            raise PermissionError(13, "Permission denied", str(path))
        return really(path, **options)

    monkeypatch.setattr(Path, "read_text", read_text)
    with pytest.raises(UsageUnknownError, match=r"mountinfo cannot be read: Permission denied"):
        proc.scan()


def test_a_scan_ends_in_time(proc: Proc) -> None:
    with pytest.raises(UsageUnknownError, match="1 processes cannot be read in time"):
        Processes(proc.root / "proc", proc.dev, Folder(proc.root), -1.0).scan()


def test_a_real_process_is_found_by_its_mounts(tmp_path: Path) -> None:
    (tmp_path / "neuron0").touch()
    folder = tmp_path / "device-metadata"
    folder.mkdir()
    file, target = folder / "a_n0_1.json", tmp_path / "target"
    file.touch()
    target.touch()
    mine = tmp_path / "proc"
    mine.mkdir()
    kubelet = mine / "1"
    kubelet.mkdir()
    (kubelet / "comm").write_text("kubelet\n")
    (kubelet / "cgroup").write_text("0::/\n")
    act = f"mount --bind {file} {target} && rm {file} && echo mounted && exec sleep 60"
    command = ["unshare", "--mount", "sh", "-c", act]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != b"mounted\n":
                pytest.skip("may not mount here")
            # Only this one: other processes of the machine come and go.
            (mine / str(process.pid)).symlink_to(f"/proc/{process.pid}")
            [use] = Processes(mine, tmp_path, Folder(folder)).scan()
            assert (use.pid, use.files) == (process.pid, {ClaimFile("a", "n0", 1)})
        finally:
            process.kill()
