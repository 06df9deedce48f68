"""Processes that use a device are found by their handles and by the nodes in their containers."""

import dataclasses
import os
import subprocess
from pathlib import Path

import pytest

from kubeletplugin.discover.processes import Processes, ProcessScan, ProcessUse
from kubeletplugin.ports import UsageUnknownError

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

    def add(
        self, pid: int, command: str, cgroup: str, *handles: str, nodes: tuple[int, ...] = (), effective: int = 0
    ) -> Path:
        """A process, with handles of paths, in a container with device nodes."""
        made = self.root / "proc" / str(pid)
        for name in ("fd", "ns", "root/dev"):
            (made / name).mkdir(parents=True)
        (made / "comm").write_text(f"{command}\n")
        (made / "cgroup").write_text(cgroup)
        (made / "status").write_text(f"Name:\t{command}\nCapEff:\t{effective:016x}\n")
        (made / "ns/mnt").symlink_to(f"mnt:[{pid}]")
        for number, target in enumerate(handles):
            (made / "fd" / str(number)).symlink_to(target)
        for index in nodes:
            (made / "root/dev" / f"neuron{index}").touch()
        return made

    def using(self, *indices: int) -> ProcessScan:
        found = Processes(self.root / "proc", self.dev)
        found._device_of = lambda _path: None  # type: ignore[method-assign]  # all are on one file system here
        return found.using(indices)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


@pytest.mark.parametrize("cgroup", [SYSTEMD, CGROUPFS])
def test_an_open_handle_is_found_with_its_pod(proc: Proc, cgroup: str) -> None:
    proc.add(41, "python", cgroup, "/dev/null", "socket:[7]", f"{proc.dev}/neuron1")
    proc.add(42, "python", cgroup, f"{proc.dev}/neuron2")
    assert proc.using(0, 1) == ProcessScan((ProcessUse(41, "python", POD, 1, True),))
    [use] = proc.using(1).uses
    assert str(use) == f"process 41 (python) of pod {POD} has /dev/neuron1 open"


def test_a_device_node_in_a_container_is_found_without_a_handle(proc: Proc) -> None:
    proc.add(41, "python", SYSTEMD, nodes=(0,))
    [use] = proc.using(0, 1).uses
    assert str(use) == f"process 41 (python) of pod {POD} is in a container with /dev/neuron0"


def test_a_privileged_container_has_all_nodes_and_uses_none_of_them(proc: Proc) -> None:
    proc.add(41, "kube-proxy", SYSTEMD, nodes=(0, 1, 2), effective=1 << 21)
    assert proc.using(0) == ProcessScan()
    proc.add(42, "monitor", SYSTEMD, f"{proc.dev}/neuron0", nodes=(0, 1, 2), effective=1 << 21)
    assert [use.pid for use in proc.using(0).uses] == [42]


def test_a_process_of_the_host_counts_if_it_has_a_handle(proc: Proc) -> None:
    proc.add(41, "neuron-top", "0::/system.slice/x.service\n", f"{proc.dev}/neuron0", nodes=(0,))
    [use] = proc.using(0).uses
    assert str(use) == "process 41 (neuron-top) of the host has /dev/neuron0 open"


def test_a_file_with_such_a_name_elsewhere_is_no_device(proc: Proc, tmp_path: Path) -> None:
    (tmp_path / "neuron0").touch()
    proc.add(41, "python", SYSTEMD, f"{tmp_path}/neuron0", f"{tmp_path}/gone/neuron0")
    assert proc.using(0) == ProcessScan()


def test_the_procfs_of_a_container_gives_no_result(tmp_path: Path) -> None:
    (tmp_path / "proc/1").mkdir(parents=True)
    (tmp_path / "proc/1/comm").write_text("neuron-dra\n")
    (tmp_path / "proc/1/cgroup").write_text("0::/\n")
    (tmp_path / "proc/1/fd").mkdir()
    with pytest.raises(UsageUnknownError, match="does not show the processes of the node: mount the host's /proc"):
        Processes(tmp_path / "proc", tmp_path).using([0])
    with pytest.raises(UsageUnknownError, match="cannot be listed"):
        Processes(tmp_path / "nowhere", tmp_path).using([0])


def test_an_unreadable_process_of_a_pod_may_use_devices(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    made = proc.add(41, "python", SYSTEMD)
    proc.add(42, "systemd", "0::/init.scope\n")
    really = os.scandir

    def scandir(path: Path) -> object:
        if str(path).endswith(("/41/fd", "/42/fd")):
            raise PermissionError(13, "Permission denied", str(path))
        return really(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert proc.using(0) == ProcessScan(
        (),
        "processes of pods cannot be read, which needs the capability SYS_PTRACE: "
        f"python (process 41, pod {POD}): Permission denied",
    )
    (made / "cgroup").write_text("0::/\n")
    assert proc.using(0) == ProcessScan()


def test_a_scan_ends_in_time(proc: Proc) -> None:
    with pytest.raises(UsageUnknownError, match="1 processes cannot be read in time"):
        Processes(proc.root / "proc", proc.dev, -1.0).using([0])


def test_a_real_process_is_found(tmp_path: Path) -> None:
    (tmp_path / "neuron0").touch()
    (tmp_path / "neuron1").touch()
    mine = tmp_path / "proc"
    mine.mkdir()
    with (tmp_path / "neuron0").open() as handle, subprocess.Popen(["sleep", "60"], stdin=handle) as process:
        try:
            # Only this one: other processes of the machine come and go.
            (mine / str(process.pid)).symlink_to(f"/proc/{process.pid}")
            kubelet = mine / "1"
            kubelet.mkdir()
            (kubelet / "comm").write_text("kubelet\n")
            (kubelet / "cgroup").write_text("0::/\n")
            (kubelet / "fd").mkdir()
            [use] = Processes(mine, tmp_path).using([0, 1]).uses
            assert (use.pid, use.index, use.open) == (process.pid, 0, True)
        finally:
            process.kill()
