"""Containers are compared with their claims: what the kubelet says they use, and what their mounts show."""

import asyncio
import dataclasses
from collections.abc import Mapping
from pathlib import Path

from kubeletplugin.checks.node_checks import ContainerLooks
from kubeletplugin.checks.readings import ClaimContainer
from kubeletplugin.discover.processes import ContainerProcess, Folder, OpenDevice, Processes
from kubeletplugin.prepare.checkpoint import PreparedClaim, PreparedDevice
from kubeletplugin.prepare.usage import UsedDevice
from tests.kubeletplugin.discover.test_processes import SYSTEMD, Proc
from tests.kubeletplugin.fakes import NODE, FakeApi, FakeUsage, claim_object, devices, uid

POD = "0a1b2c3d-1111-4222-8333-444455556666"


@dataclasses.dataclass
class Host:
    """A procfs, the kubelet's answer, and the looks."""

    proc: Proc
    api: FakeApi
    usage: FakeUsage
    claims: dict[str, PreparedClaim]

    def looks(self) -> ContainerLooks:
        async def claims() -> Mapping[str, PreparedClaim]:
            return self.claims

        return ContainerLooks(claims, self.api.claim, self.usage, self.processes())

    def processes(self) -> Processes:
        own = self.proc.root / "own-mounts"
        own.write_text("1 1 8:1 / / rw - ext4 /dev/sda rw\n")
        folder = Folder(self.proc.root / "state" / "device-metadata", own)
        return Processes(self.proc.root / "proc", self.proc.dev, folder)

    def container(self, pid: int, *files: str, name: str = "main") -> Path:
        made = self.proc.add(pid, "python", SYSTEMD, nodes=(0,) if files else ())
        self.proc.mounts(made, *files)
        log = f"/var/lib/kubelet/pods/{POD}/containers/{name}/0c0ffee1"
        with (made / "mountinfo").open("a") as file:
            file.write(f"91 1 8:1 {log} /dev/termination-log rw,relatime - ext4 /dev/sda rw\n")
        return made


def host(tmp_path: Path, number: int = 3) -> Host:
    device = PreparedDevice("n0", NODE, "neuron-device-0", (0,))
    claim = PreparedClaim(uid(1), "ns", "claim-1", "digest", (device,), number=number)
    api = FakeApi()
    body = claim_object(1, *devices(0))
    body["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": POD}]
    api.add_claim(body)
    used = UsedDevice("ns/p", "ns", "claim-1", uid(1), "n0", "neuron-device-0", NODE, container="main")
    return Host(Proc(tmp_path), api, FakeUsage((used,)), {uid(1): claim})


def look(found: Host, looks: ContainerLooks | None = None) -> tuple[ClaimContainer, ...] | str:
    return asyncio.run((looks or found.looks()).look())


def test_a_container_with_the_file_of_its_claim_is_proven_once(tmp_path: Path) -> None:
    at = host(tmp_path)
    at.container(41, f"{uid(1)}_n0_3.json")
    looks = at.looks()
    [seen] = look(at, looks)
    assert isinstance(seen, ClaimContainer)
    assert (seen.has, seen.pod, seen.name, [each.index for each in seen.nodes or ()]) == (True, "ns/p", "main", [0])
    calls = len(at.api.calls)
    assert look(at, looks) == (seen,)
    assert len(at.api.calls) == calls, "what is known is not asked again"


def test_a_runtime_that_ignores_cdi_is_told_after_two_looks(tmp_path: Path) -> None:
    at = host(tmp_path)
    made = at.container(41)
    looks = at.looks()
    assert look(at, looks) == (), "the runtime may be making it"
    [seen] = look(at, looks)
    assert isinstance(seen, ClaimContainer)
    assert (seen.has, str(seen), seen.claim) == (False, "container main of pod ns/p", f"ns/claim-1 (UID {uid(1)})")
    at.proc.mounts(made, f"{uid(1)}_n0_3.json")
    assert look(at, looks) == (), "the container was made again"


def test_nothing_is_said_of_containers_that_do_not_run_or_use_no_claim(tmp_path: Path) -> None:
    at = host(tmp_path)
    at.container(41, name="init")
    looks = at.looks()
    assert (look(at, looks), look(at, looks)) == ((), ())
    at.container(42)
    at.claims.clear()
    assert look(at, looks) == ()


def test_what_cannot_be_looked_at_is_said(tmp_path: Path) -> None:
    at = host(tmp_path)
    (tmp_path / "proc/2/comm").write_text("bash\n")
    said = look(at)
    assert isinstance(said, str)
    assert said.startswith("containers cannot be looked at: ")
    assert said.endswith("does not show the processes of the node: mount the host's /proc and set --proc-root")


def test_containers_and_open_devices_are_read_from_procfs(tmp_path: Path) -> None:
    at = host(tmp_path)
    made = at.container(41, f"{uid(1)}_n0_3.json")
    (made / "fd/5").symlink_to(at.proc.dev / "neuron0")
    at.proc.add(7, "neuron-top", "0::/system.slice\n", f"{at.proc.dev}/neuron1")
    (tmp_path / "proc/7/mountinfo").write_text("")
    assert [(each.pid, each.pod, each.name, len(each.files)) for each in at.processes().containers()] == [
        (41, POD, "main", 1)
    ]
    assert isinstance(at.processes().containers()[0], ContainerProcess)
    assert sorted(at.processes().opened(), key=lambda each: each.pid) == [
        OpenDevice(7, "neuron-top", "", frozenset({1}), claimed=False),
        OpenDevice(41, "python", POD, frozenset({0}), claimed=True),
    ]
