"""Claims are prepared once, never twice over the same device, and answered for always alike."""

import dataclasses
import errno
import fcntl
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kubeletplugin.files import DiskFiles
from kubeletplugin.prepare.checkpoint import PreparedClaim, PreparedDevice, uid_before
from kubeletplugin.prepare.decide import DeviceHeldError, PrepareError
from kubeletplugin.prepare.preparer import DeviceAnswer, devices_held
from tests.kubeletplugin.fakes import NODE, Node, allocated, config, devices, result, spec_name, uid


def seen(node: Node, number: int) -> dict[str, list[Any]]:
    """Device nodes and variables that a claim's spec adds."""
    spec = json.loads((node.cdi_dir / spec_name(number)).read_text())
    edits = [device["containerEdits"] for device in spec["devices"]]
    return {
        "nodes": [entry["path"] for edit in edits for entry in edit.get("deviceNodes", [])],
        "env": [entry for edit in edits for entry in edit.get("env", [])],
    }


def test_a_claim_is_prepared(node: Node) -> None:
    answers = node.preparer().prepare(allocated(1, *devices(4, 5)), node.view())
    assert answers == tuple(
        DeviceAnswer("n0", NODE, f"neuron-device-{index}", (f"neuron.aws.com/claim={uid(1)}_n0_neuron-device-{index}",))
        for index in (4, 5)
    )
    assert seen(node, 1) == {"nodes": ["/dev/neuron4", "/dev/neuron5"], "env": []}
    assert node.spec_names() == [spec_name(1)]


def test_admin_access_is_refused_outside_the_namespaces_that_may_have_it(node: Node) -> None:
    looks, mine = result("neuron-device-0", "look", adminAccess=True), result("neuron-device-1", "mine")
    for claim in (allocated(1, looks), allocated(1, mine, looks)):
        for allowed in (frozenset[str](), frozenset({"neuron-monitoring"})):
            view = dataclasses.replace(node.view(), admin_namespaces=allowed)
            with pytest.raises(PrepareError, match="which the driver refuses in namespace ns"):
                node.preparer().prepare(claim, view)
    assert not node.spec_names()
    view = dataclasses.replace(node.view(), admin_namespaces=frozenset({"ns"}))
    assert node.preparer().prepare(allocated(1, looks), view)
    closed = dataclasses.replace(node.view(), admin_namespaces=frozenset[str]())
    assert node.preparer().prepare(allocated(2, mine), closed)


def test_a_damaged_checkpoint_does_not_restore_refused_admin_access(node: Node) -> None:
    view = dataclasses.replace(node.view(), admin_namespaces=frozenset[str]())
    looks = allocated(1, result("neuron-device-0", "look", adminAccess=True))
    running = PreparedClaim(uid(1), "ns", "claim-1", "", (PreparedDevice("look", NODE, "neuron-device-0", (0,)),))
    preparer = node.preparer()
    recovery = preparer.complete([running], [looks], view)
    assert ["which the driver refuses" in problem for problem in recovery.errors] == [True]
    assert preparer.checkpoint().claims == {}, "it would hold the device, which another claim may use"
    assert not node.spec_names()


def test_the_answer_names_the_request_without_its_alternative(node: Node) -> None:
    [answer] = node.preparer().prepare(allocated(1, result("neuron-device-0", "n0/big")), node.view())
    assert answer.request == "n0"


def test_both_spellings_of_a_device_are_understood(node: Node) -> None:
    [answer] = node.preparer().prepare(allocated(1, result("neurondevice3")), node.view())
    assert answer.device == "neurondevice3"
    assert seen(node, 1)["nodes"] == ["/dev/neuron3"]


def test_the_same_claim_gets_the_same_answer_also_after_a_restart(node: Node) -> None:
    claim = allocated(1, *devices(0, 1), config=[config("NeuronConfig", logicalNeuronCore=1)])
    preparer = node.preparer()
    first = preparer.prepare(claim, node.view())
    spec = (node.cdi_dir / spec_name(1)).read_bytes()
    again = preparer.prepare(claim, node.view())
    restarted = node.preparer()
    restarted.recover()
    assert first == again == restarted.prepare(claim, node.view())
    assert (node.cdi_dir / spec_name(1)).read_bytes() == spec


def test_a_prepared_claim_is_answered_while_its_device_is_unhealthy(node: Node) -> None:
    """A restarted kubelet asks again for running pods; an error would keep them from being tracked."""
    claim = allocated(1, *devices(0))
    first = node.preparer().prepare(claim, node.view())
    shutil.rmtree(node.device_directory(0))
    assert node.preparer().prepare(claim, node.view()) == first


def test_a_claim_that_was_allocated_again_is_prepared_again(node: Node) -> None:
    preparer = node.preparer()
    preparer.prepare(allocated(1, *devices(0)), node.view())
    [answer] = preparer.prepare(allocated(1, *devices(7)), node.view())
    assert answer.device == "neuron-device-7"
    assert seen(node, 1)["nodes"] == ["/dev/neuron7"]


def test_devices_that_a_claim_had_before_are_held_until_they_are_released(node: Node) -> None:
    """The kubelet may have been restarted while a pod of the claim, which was deleted by force, runs on."""
    preparer = node.preparer()
    for had in (devices(0, 1), devices(2), devices(3)):
        preparer.prepare(allocated(1, *had), node.view())
    preparer = node.preparer()
    preparer.recover()
    for number in (1, 2):
        for index in range(3):
            with pytest.raises(DeviceHeldError, match=f"neuron-device-{index} is still prepared for ResourceClaim ns/"):
                preparer.prepare(allocated(number, *devices(index)), node.view())
    ended = preparer.checkpoint().claims[uid_before(uid(1))]
    assert ended.held == {0, 1, 2, 3}, "the last allocation of claim 1 took those of the one before"
    assert node.spec_names() == [], "no container can be started with them"
    assert preparer.release(ended)
    preparer.prepare(allocated(1, *devices(0, 1, 2)), node.view())
    preparer.unprepare(uid(1))
    assert (node.spec_names(), preparer.checkpoint().claims) == ([], {})


def test_a_claim_that_was_prepared_again_is_neither_released_nor_unprepared_by_an_older_call(node: Node) -> None:
    """It looks as before: another instance, or a call that timed out, began when it was unprepared."""
    preparer = node.preparer()
    claim = allocated(1, *devices(0))
    preparer.prepare(claim, node.view())
    found = preparer.checkpoint().claims[uid(1)]
    for again in (False, True):
        if again:
            preparer.unprepare(uid(1))
        node.preparer().prepare(claim, node.view())
        now = preparer.checkpoint().claims[uid(1)]
        assert (now.devices, now.allocation) == (found.devices, found.allocation)
        assert not preparer.release(found)
        preparer.unprepare(uid(1), asked=found.asked)
        assert uid(1) in preparer.checkpoint().claims
    assert preparer.release(now)


def test_what_has_ended_again_is_not_released_by_an_older_look(node: Node) -> None:
    preparer = node.preparer()
    claim = allocated(1, *devices(0))
    ended = []
    for _ in range(2):
        preparer.prepare(claim, node.view())
        preparer.unprepare(uid(1), hold=True)
        ended.append(preparer.checkpoint().claims[uid_before(uid(1))])
        if len(ended) == 1:
            assert node.preparer().release(ended[0])
    assert ended[0].devices == ended[1].devices
    assert not preparer.release(ended[0])
    assert preparer.release(ended[1])


def test_each_request_gets_its_settings(node: Node) -> None:
    settings = [
        config("NeuronConfig", "FromClass", logicalNeuronCore=2),
        config("NeuronConfig", requests=("n1",), logicalNeuronCore=1),
    ]
    claim = allocated(1, result("neuron-device-0", "n0"), result("neuron-device-1", "n1/x"), config=settings)
    first, second = node.preparer().prepare(claim, node.view())
    kind = "neuron.aws.com/claim"
    assert first.cdi_device_ids == (f"{kind}={uid(1)}_n0_neuron-device-0", f"{kind}={uid(1)}_n0")
    assert second.cdi_device_ids == (f"{kind}={uid(1)}_n1_neuron-device-1", f"{kind}={uid(1)}_n1")
    assert seen(node, 1)["env"] == ["NEURON_LOGICAL_NC_CONFIG=2", "NEURON_LOGICAL_NC_CONFIG=1"]


def test_a_whole_ultraserver_node_gets_all_devices_and_its_place(tmp_path: Path) -> None:
    node = Node(tmp_path, "trn2u.48xlarge")
    settings = [config("UltraServerConfig", ultraserverMode=2), config("NeuronConfig", logicalNeuronCore=1)]
    [answer] = node.preparer().prepare(allocated(1, result("neuron-node"), config=settings), node.view())
    assert answer.device == "neuron-node"
    found = seen(node, 1)
    assert found["nodes"] == [f"/dev/neuron{index}" for index in range(16)]
    ultraserver = node.read_ultraserver()
    assert ultraserver is not None
    assert found["env"] == [
        "NEURON_LOGICAL_NC_CONFIG=1",
        "NEURON_RT_ULTRASERVER_MODE=3",
        "NEURON_RT_ULTRASERVER_NODE_ID=0",
        f"NEURON_RT_ULTRASERVER_SERVER_ID={ultraserver.members[2].server_id}",
    ]


def test_the_ultraserver_election_is_read_again_for_every_claim(tmp_path: Path) -> None:
    node = Node(tmp_path, "trn2u.48xlarge")
    claim = allocated(1, result("neuron-node"), config=[config("UltraServerConfig", ultraserverMode=4)])
    view = node.view()
    modes = node.sysfs / "class/neuron_device/ultraserver_mode"
    settled = modes.read_text()
    modes.write_text("busy\n")
    with pytest.raises(PrepareError, match="still electing"):
        node.preparer().prepare(claim, view)
    modes.write_text(settled)
    node.preparer().prepare(claim, view)


# --- refusals -------------------------------------------------------------------------------------------------


def test_a_device_of_another_claim_is_refused_and_the_claim_named(node: Node) -> None:
    preparer = node.preparer()
    preparer.prepare(allocated(1, *devices(0, 1)), node.view())
    with pytest.raises(PrepareError) as caught:
        preparer.prepare(allocated(2, *devices(1, 2)), node.view())
    assert str(caught.value) == (
        f"Device neuron-device-1 is still prepared for ResourceClaim ns/claim-1 (UID {uid(1)}) as neuron-device-1. It "
        "becomes free when the kubelet has stopped the pod that used it; the kubelet tries again by itself."
    )
    assert node.spec_names() == [spec_name(1)]
    preparer.unprepare(uid(1))
    preparer.prepare(allocated(2, *devices(1, 2)), node.view())


def test_a_whole_node_and_its_devices_exclude_each_other(tmp_path: Path) -> None:
    node = Node(tmp_path, "trn2u.48xlarge")
    preparer = node.preparer()
    preparer.prepare(allocated(1, *devices(3)), node.view())
    with pytest.raises(PrepareError, match=r"Device neuron-node is still prepared .* as neuron-device-3\."):
        preparer.prepare(allocated(2, result("neuron-node")), node.view())
    preparer.unprepare(uid(1))
    preparer.prepare(allocated(2, result("neuron-node")), node.view())
    with pytest.raises(PrepareError, match=r"Device neuron-device-3 is still prepared .* as neuron-node\."):
        preparer.prepare(allocated(1, *devices(3)), node.view())


def test_admin_access_sees_devices_of_others_and_holds_none(node: Node) -> None:
    preparer = node.preparer()
    preparer.prepare(allocated(1, *devices(0)), node.view())
    watching = [result(f"neuron-device-{index}", "all", adminAccess=True) for index in range(16)]
    settings = [config("NeuronConfig", logicalNeuronCore=1)]
    answers = preparer.prepare(allocated(2, *watching, config=settings), node.view())
    assert len(answers) == 16
    assert seen(node, 2) == {"nodes": [f"/dev/neuron{index}" for index in range(16)], "env": []}
    preparer.prepare(allocated(3, *devices(1)), node.view())


def test_a_claim_that_was_allocated_again_gets_no_device_of_another_claim(node: Node) -> None:
    preparer = node.preparer()
    preparer.prepare(allocated(1, *devices(0)), node.view())
    preparer.prepare(allocated(2, *devices(1)), node.view())
    with pytest.raises(PrepareError, match="neuron-device-1 is still prepared for ResourceClaim ns/claim-2"):
        preparer.prepare(allocated(1, *devices(1)), node.view())


def test_admin_access_does_not_change_the_rules_for_the_other_requests_of_its_claim(node: Node) -> None:
    preparer = node.preparer()
    preparer.prepare(allocated(1, *devices(1)), node.view())
    look = result("neuron-device-0", "look", adminAccess=True)
    with pytest.raises(PrepareError, match="neuron-device-1 is still prepared for ResourceClaim ns/claim-1"):
        preparer.prepare(allocated(2, look, *devices(1)), node.view())
    settings = [config("NeuronConfig", logicalNeuronCore=1)]
    preparer.prepare(allocated(2, look, *devices(2), config=settings), node.view())
    assert seen(node, 2)["env"] == ["NEURON_LOGICAL_NC_CONFIG=1"]


REFUSED: dict[str, tuple[str, tuple[Any, ...], list[Any], str]] = {
    "The node does not have the device neuron-device-3: its Neuron devices are 0. It has vanished since the claim "
    "was allocated; delete the pod to have it allocated again.": ("trn2.3xlarge", (result("neuron-device-3"),), []),
    "The node does not have the device gpu-0": ("trn2.3xlarge", (result("gpu-0"),), []),
    "NEU412: logicalNeuronCore cannot be set on trn1.2xlarge, whose size is always 1. Remove the NeuronConfig.": (
        "trn1.2xlarge",
        devices(0),
        [config("NeuronConfig", logicalNeuronCore=1)],
    ),
    "NEU414: ultraserverMode 2 needs a neuron_node device, not a neuron_device.": (
        "trn2u.48xlarge",
        devices(0),
        [config("UltraServerConfig", ultraserverMode=2)],
    ),
}


@pytest.mark.parametrize("said", REFUSED)
def test_settings_that_the_hardware_lacks_are_refused_without_traces(tmp_path: Path, said: str) -> None:
    instance_type, results, settings = REFUSED[said]
    node = Node(tmp_path, instance_type)
    preparer = node.preparer()
    with pytest.raises(PrepareError) as caught:
        preparer.prepare(allocated(1, *results, config=settings), node.view())
    assert str(caught.value).startswith(said)
    assert node.spec_names() == []
    assert preparer.checkpoint().claims == {}


def test_a_node_without_devices_is_named(node: Node) -> None:
    empty = dataclasses.replace(node.view(), hardware=dataclasses.replace(node.view().hardware, devices=()))
    for device in ("neuron-device-0", "neuron-node"):
        with pytest.raises(PrepareError, match=rf"does not have the device {device}: its Neuron devices are none\."):
            node.preparer().prepare(allocated(1, result(device)), empty)


def test_a_device_without_its_node_is_refused(node: Node) -> None:
    (node.dev / "neuron2").unlink()
    with pytest.raises(PrepareError) as caught:
        node.preparer().prepare(allocated(1, *devices(2)), node.view())
    assert str(caught.value) == (
        "Device neuron-device-2 has no device node /dev/neuron2: check the Neuron kernel driver."
    )


def test_a_node_without_one_of_its_devices_is_refused_as_a_whole(tmp_path: Path) -> None:
    node = Node(tmp_path, "trn2u.48xlarge")
    shutil.rmtree(node.device_directory(9))
    with pytest.raises(PrepareError, match="The node does not have the device neuron-node"):
        node.preparer().prepare(allocated(1, result("neuron-node")), node.view())


def test_settings_are_not_checked_if_the_instance_type_is_unknown(node: Node) -> None:
    view = dataclasses.replace(node.view(), instance=None)
    node.preparer().prepare(allocated(1, *devices(0), config=[config("NeuronConfig", logicalNeuronCore=1)]), view)


# --- unprepare ------------------------------------------------------------------------------------------------


def test_unprepare_removes_spec_and_state(node: Node) -> None:
    preparer = node.preparer()
    preparer.prepare(allocated(1, *devices(0)), node.view())
    preparer.unprepare(uid(1))
    assert (node.spec_names(), preparer.checkpoint().claims) == ([], {})


@pytest.mark.parametrize("unknown", [uid(9), "", "../../etc/passwd"], ids=["uid", "empty", "path"])
def test_unpreparing_an_unknown_claim_is_no_error(node: Node, unknown: str) -> None:
    node.preparer().unprepare(unknown)


def test_held_devices_are_counted(tmp_path: Path) -> None:
    node = Node(tmp_path)
    preparer = node.preparer()
    preparer.prepare(allocated(1, *devices(0, 1, 2)), node.view())
    preparer.prepare(allocated(2, result("neuron-device-0", adminAccess=True)), node.view())
    preparer.prepare(allocated(3, result("neuron-device-5", adminAccess=True)), node.view())
    assert devices_held(preparer.checkpoint().claims) == 3, "a claim with adminAccess holds nothing"


# --- a disk that does not cooperate ------------------------------------------------------------------------------


class FailingFiles(DiskFiles):
    """Fails to write below one directory, like a full or read-only file system."""

    def __init__(self, directory: Path, number: int) -> None:
        self.directory: Path | None = directory
        self._number = number

    def write(self, path: Path, data: bytes) -> None:
        if self.directory is not None and path.is_relative_to(self.directory):
            super().write(path, data[: len(data) // 2])
            raise OSError(self._number, "no", str(path))
        super().write(path, data)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS], ids=["full", "read-only"])
@pytest.mark.parametrize("where", ["cdi", "state"])
def test_a_claim_is_prepared_once_the_disk_can_be_written(tmp_path: Path, where: str, number: int) -> None:
    files = FailingFiles(tmp_path / where, number)
    node = Node(tmp_path, files=files)
    claim = allocated(1, *devices(0))
    preparer = node.preparer()
    with pytest.raises(OSError, match="no"):
        preparer.prepare(claim, node.view())
    assert node.spec_names() == []
    assert not list(tmp_path.rglob("*.tmp"))
    files.directory = None
    preparer.prepare(claim, node.view())
    assert node.spec_names() == [spec_name(1)]


def test_a_claim_whose_spec_could_not_be_written_can_be_undone(tmp_path: Path) -> None:
    files = FailingFiles(tmp_path / "cdi", errno.EROFS)
    node = Node(tmp_path, files=files)
    preparer = node.preparer()
    with pytest.raises(OSError, match="no"):
        preparer.prepare(allocated(1, *devices(0)), node.view())
    preparer.unprepare(uid(1))
    files.directory = None
    preparer.prepare(allocated(2, *devices(0)), node.view())


def test_prepare_waits_for_the_lock_of_another_instance(tmp_path: Path) -> None:
    node = Node(tmp_path, lock_timeout=0.05)
    preparer = node.preparer()
    with (node.state_dir / "serialize.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError) as caught:
            preparer.prepare(allocated(1, *devices(0)), node.view())
        lock_path = node.state_dir / "serialize.lock"
        assert str(caught.value) == f"Another instance of the driver has held {lock_path} for 0.05 s."
    preparer.prepare(allocated(1, *devices(0)), node.view())


def test_an_instance_that_hangs_with_the_lock_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, waited = [0.0], []

    def sleep(seconds: float) -> None:
        now[0] += seconds
        waited.append(seconds)

    monkeypatch.setattr("kubeletplugin.files.time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    node = Node(tmp_path)
    preparer, view = node.preparer(), node.view()

    def fails_after(number: int) -> float:
        waited.clear()
        with pytest.raises(TimeoutError, match=r"has held .*/serialize\.lock for 10 s\."):
            preparer.prepare(allocated(number, *devices(number)), view)
        return sum(waited)

    for _ in range(2):
        with (node.state_dir / "serialize.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert fails_after(1) == pytest.approx(10, abs=0.1)
            assert fails_after(2) == fails_after(3) == 0
        preparer.prepare(allocated(1, *devices(1)), view)
