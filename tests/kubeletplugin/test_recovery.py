"""After a start the state on the disk is one that can be trusted, whatever happened to it."""

import dataclasses
import json
import shutil

import pytest

from kubeletplugin.discover.processes import ClaimFile, ProcessUse
from kubeletplugin.files import DiskFiles
from kubeletplugin.prepare.cdi import SpecFiles
from kubeletplugin.prepare.checkpoint import Checkpoint, CheckpointStore, PreparedClaim, PreparedDevice, uid_before
from kubeletplugin.prepare.decide import DeviceHeldError, PrepareError, Told
from kubeletplugin.prepare.preparer import Recovery
from tests.kubeletplugin.fakes import Node, allocated, devices, restored, result, spec_name, uid

FIRST, SECOND = allocated(1, *devices(0, 1)), allocated(2, *devices(2))


@pytest.fixture
def busy(node: Node) -> Node:
    """A node with two prepared claims."""
    preparer = node.preparer()
    for claim in (FIRST, SECOND):
        preparer.prepare(claim, node.view())
    return node


def specs_of(node: Node) -> dict[str, bytes]:
    return {name: (node.cdi_dir / name).read_bytes() for name in node.spec_names()}


def test_a_first_start_finds_nothing_and_claims_may_be_missing(node: Node) -> None:
    """The driver cannot distinguish it from a start after the state was lost."""
    node.state_dir.mkdir()
    preparer = node.preparer()
    recovery = preparer.recover()
    assert (recovery.errors, recovery.notes) == ((), ())
    assert preparer.checkpoint() == Checkpoint(node.boot_id, incomplete=True)
    claim = allocated(1, *devices(0))
    with pytest.raises(DeviceHeldError, match="Device neuron-device-0 may be in use: the driver still restores"):
        preparer.prepare(claim, node.view())
    preparer.prepare(allocated(2, result("neuron-device-0", adminAccess=True)), node.view())
    preparer.complete([], [], node.view())
    preparer.prepare(claim, node.view())


def test_specs_that_are_lost_or_changed_at_run_time_are_written_again(busy: Node) -> None:
    before, preparer = specs_of(busy), busy.preparer()
    assert preparer.mend() == ()
    (busy.cdi_dir / spec_name(1)).unlink()
    (busy.cdi_dir / spec_name(2)).write_text("{}")
    first, second = preparer.mend()
    assert first == f"The CDI spec of claim ns/claim-1 (UID {uid(1)}) was lost or changed, and was written again."
    assert f"UID {uid(2)}" in second
    assert specs_of(busy) == before
    for name in busy.spec_names():
        (busy.cdi_dir / name).unlink()
    busy.cdi_dir.rmdir()
    assert len(preparer.mend()) == 2
    assert specs_of(busy) == before


def test_a_plain_restart_changes_nothing(busy: Node) -> None:
    before = specs_of(busy)
    recovery = busy.preparer().recover()
    assert (recovery.errors, recovery.notes, specs_of(busy)) == ((), (), before)


def test_lost_specs_are_written_again(busy: Node) -> None:
    before = specs_of(busy)
    for name in busy.spec_names():
        (busy.cdi_dir / name).unlink()
    busy.preparer().recover()
    assert specs_of(busy) == before


def test_changed_specs_are_restored(busy: Node) -> None:
    before = specs_of(busy)
    (busy.cdi_dir / spec_name(1)).write_text("{}")
    busy.preparer().recover()
    assert specs_of(busy) == before


def test_leaked_specs_and_leftovers_are_removed(busy: Node) -> None:
    some = busy.preparer().checkpoint().claims[uid(1)]
    SpecFiles(DiskFiles(), busy.cdi_dir, busy.boot_id).ensure(dataclasses.replace(some, uid=uid(3)))
    (busy.cdi_dir / f".{spec_name(4)}.tmp").write_text("half")
    (busy.state_dir / ".checkpoint.json.tmp").write_text("half")
    recovery = busy.preparer().recover()
    assert recovery.notes[0] == f"The CDI spec of claim {uid(3)}, which is not prepared, was removed."
    assert busy.spec_names() == [spec_name(1), spec_name(2)]
    assert not (busy.state_dir / ".checkpoint.json.tmp").exists()


def test_a_reboot_invalidates_everything(busy: Node) -> None:
    busy.boot_id = "99999999-2222-4333-8444-555555555555"
    recovery = busy.preparer().recover()
    assert recovery.notes[0] == "The node was rebooted: 2 prepared claims are not prepared any more."
    assert busy.spec_names() == []
    assert busy.preparer().recover() == Recovery(), "it is told once"
    preparer = busy.preparer()
    assert preparer.checkpoint() == Checkpoint(busy.boot_id)
    preparer.prepare(allocated(3, *devices(0, 2)), busy.view())


DAMAGE = {
    "garbage": b"garbage",
    "empty": b"",
    "zeros": b"\0" * 4096,
    "newer": b'{"apiVersion": "checkpoint.neuron.aws.com/v9", "kind": "NeuronCheckpoint", "data": {}}',
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_checkpoint_is_kept_aside_logged_and_rebuilt_from_the_specs(busy: Node, name: str) -> None:
    before = specs_of(busy)
    path = busy.state_dir / "checkpoint.json"
    path.write_bytes(DAMAGE[name])
    recovery = busy.preparer().recover()
    [error] = recovery.errors
    [aside] = busy.state_dir.glob("checkpoint.json.damaged-*")
    assert aside.read_bytes() == DAMAGE[name]
    assert error.startswith(f"The checkpoint {path} is damaged: ")
    rebuilt = "the state is rebuilt from the CDI specs, the kubelet and the API server."
    assert error.endswith(f"It was copied to {aside}, and {rebuilt}")
    assert specs_of(busy) == before
    preparer = busy.preparer()
    assert set(preparer.checkpoint().claims) == {uid(1), uid(2)}
    with pytest.raises(PrepareError, match="still prepared for ResourceClaim ns/claim-1"):
        preparer.prepare(allocated(3, *devices(0)), busy.view())


def test_a_lost_checkpoint_is_rebuilt_as_well(busy: Node) -> None:
    (busy.state_dir / "checkpoint.json").unlink()
    busy.preparer().recover()
    checkpoint = busy.preparer().checkpoint()
    assert (set(checkpoint.claims), checkpoint.incomplete) == ({uid(1), uid(2)}, True)


def test_damage_at_run_time_is_found_and_repaired(busy: Node) -> None:
    preparer = busy.preparer()
    preparer.recover()
    (busy.state_dir / "checkpoint.json").write_bytes(b"garbage")
    with pytest.raises(PrepareError, match="still prepared for ResourceClaim ns/claim-2"):
        preparer.prepare(allocated(3, *devices(2)), busy.view())
    [problem] = preparer.take_problems()
    assert "is damaged" in problem
    assert preparer.take_problems() == ()


@pytest.fixture
def torn(busy: Node) -> Node:
    """A node whose checkpoint and one of whose specs are damaged."""
    (busy.state_dir / "checkpoint.json").write_bytes(b"garbage")
    (busy.cdi_dir / spec_name(1)).write_text("{}")
    return busy


def test_a_damaged_spec_is_kept_until_the_api_server_was_read(torn: Node) -> None:
    recovery = torn.preparer().recover()
    assert len(recovery.errors) == 2
    assert f"{torn.cdi_dir / spec_name(1)} cannot be read back" in recovery.errors[1]
    assert torn.spec_names() == [spec_name(1), spec_name(2)]
    torn.preparer().recover()
    assert torn.spec_names() == [spec_name(1), spec_name(2)]
    assert torn.preparer().checkpoint().incomplete


def test_claims_are_restored_from_the_api_server(torn: Node) -> None:
    preparer = torn.preparer()
    preparer.recover()
    recovery = preparer.complete(restored(torn.view(), SECOND, FIRST), [SECOND, FIRST], torn.view())
    assert recovery.notes[0] == "Claim ns/claim-1 was restored from the API server."
    assert len(recovery.notes) == 2, "the other is the difference from the damaged checkpoint"
    checkpoint = preparer.checkpoint()
    assert (set(checkpoint.claims), checkpoint.incomplete) == ({uid(1), uid(2)}, False)
    assert "neuron-device-1" in (torn.cdi_dir / spec_name(1)).read_text()


def test_claims_that_only_the_kubelet_knows_are_restored(node: Node) -> None:
    running = PreparedClaim(uid(3), "ns", "gone", "", (PreparedDevice("n0", "node-1", "neuron-device-3", (3,)),))
    recovery = node.preparer().complete([running], [], node.view())
    said = "Claim ns/gone was restored from the kubelet, whose pods use it."
    assert recovery == Recovery(notes=(said,))
    with pytest.raises(DeviceHeldError, match="still prepared for ResourceClaim ns/gone"):
        node.preparer().prepare(allocated(1, *devices(3)), node.view())


def test_a_device_of_a_running_claim_is_not_prepared_for_the_next_claim(node: Node) -> None:
    """The running claim's object was removed by force, so the scheduler gave its device to the next one."""
    device = PreparedDevice("n0", "node-1", "neuron-device-3", (3,))
    running = PreparedClaim(uid(3), "ns", "gone", "", (device,))
    waits = allocated(1, *devices(3))
    node.preparer().complete([running], [], node.view())
    with pytest.raises(DeviceHeldError, match="still prepared for ResourceClaim ns/gone"):
        node.preparer().prepare(waits, node.view())


@pytest.mark.parametrize("allocated_to", [0, 2], ids=["a free device", "a device of another claim"])
def test_devices_that_the_kubelet_names_are_held_although_the_claim_has_others_by_now(
    busy: Node, allocated_to: int
) -> None:
    """A pod of the claim, which was deallocated by force, runs on."""
    device = PreparedDevice("n0", "node-1", "neuron-device-3", (3,))
    running = PreparedClaim(uid(5), "ns", "claim-5", "", (device,))
    preparer = busy.preparer()
    preparer.unprepare(uid(1))
    preparer.complete([running], [allocated(5, *devices(allocated_to))], busy.view())
    with pytest.raises(DeviceHeldError, match="neuron-device-3 is still prepared for ResourceClaim ns/claim-5"):
        preparer.prepare(allocated(6, *devices(3)), busy.view())


def test_a_claim_gets_no_device_that_it_was_not_prepared_for_when_it_is_restored(node: Node) -> None:
    """It was allocated again by force: its container has device 3, and that of a pod that is gone has device 0."""
    device = PreparedDevice("n0", "node-1", "neuron-device-3", (3,))
    running, again = PreparedClaim(uid(5), "ns", "claim-5", "", (device,)), allocated(5, *devices(0))
    hung = ProcessUse(7, "train", "pod", frozenset({ClaimFile(uid(9), "n0", 2)}), frozenset({0}))
    preparer = node.preparer()
    preparer.complete([running], [again], node.view(), Told((hung,)))
    with pytest.raises(DeviceHeldError, match="neuron-device-0 is still prepared for ResourceClaim") as caught:
        preparer.prepare(again, node.view())
    assert caught.value.holder == uid_before(uid(9))
    assert preparer.release(preparer.checkpoint().claims[uid_before(uid(9))])
    preparer.prepare(again, node.view())
    with pytest.raises(DeviceHeldError, match="neuron-device-3 is still prepared for ResourceClaim") as caught:
        preparer.prepare(allocated(6, *devices(3)), node.view())
    assert caught.value.holder == uid_before(uid(5)), "until its first container has ended"


def test_a_reserved_claim_that_cannot_be_decided_holds_its_devices(node: Node) -> None:
    (node.dev / "neuron3").rename(node.root / "away")
    preparer = node.preparer()
    claim = allocated(1, *devices(3))
    [error] = preparer.complete(restored(node.view(), claim), [claim], node.view()).errors
    assert "has no device node" in error
    (node.root / "away").rename(node.dev / "neuron3")
    with pytest.raises(DeviceHeldError, match="still prepared for ResourceClaim ns/claim-1"):
        preparer.prepare(allocated(2, *devices(3)), node.view())
    preparer.prepare(allocated(1, *devices(3)), node.view())


def test_specs_of_claims_that_the_api_server_does_not_know_are_removed(torn: Node) -> None:
    preparer = torn.preparer()
    preparer.recover()
    recovery = preparer.complete(restored(torn.view(), SECOND), [SECOND], torn.view())
    assert f"The CDI spec of claim {uid(1)}, which is not prepared, was removed." in recovery.notes
    assert torn.spec_names() == [spec_name(2)]


def test_a_claim_that_cannot_be_restored_is_named(torn: Node) -> None:
    preparer = torn.preparer()
    preparer.recover()
    claim = allocated(1, *devices(2))
    recovery = preparer.complete(restored(torn.view(), claim), [claim], torn.view())
    [error] = recovery.errors
    assert error.startswith("Claim ns/claim-1 cannot be restored: Device neuron-device-2 is still prepared for")


def test_a_claim_that_cannot_be_restored_is_named_although_specs_cannot_be_written(torn: Node) -> None:
    """The state is complete after this call, so no other call would name the claim."""
    preparer = torn.preparer()
    preparer.recover()
    shutil.rmtree(torn.cdi_dir)
    torn.cdi_dir.write_text("a file")
    claims = allocated(1, *devices(2)), allocated(3, *devices(3))
    recovery = preparer.complete(restored(torn.view(), *claims), claims, torn.view())
    assert not preparer.checkpoint().incomplete
    assert recovery.notes[0] == "Claim ns/claim-3 was restored from the API server."
    restore, specs = sorted((*recovery.errors, *preparer.take_problems()))
    assert restore.startswith("Claim ns/claim-1 cannot be restored: ")
    assert specs.startswith("The CDI specs cannot be brought up to date: ")


def test_the_driver_starts_with_an_unusable_cdi_directory(node: Node) -> None:
    node.state_dir.mkdir()
    node.cdi_dir.write_text("a file")
    recovery = node.preparer().recover()
    assert recovery.errors[0].startswith("The CDI specs cannot be listed: ")
    assert recovery.errors[-1].startswith("The CDI specs cannot be brought up to date: ")


def test_two_instances_share_their_state(busy: Node) -> None:
    old, new = busy.preparer(), busy.preparer()
    new.recover()
    new.prepare(allocated(3, *devices(7)), busy.view())
    with pytest.raises(PrepareError, match="ns/claim-3"):
        old.prepare(allocated(4, *devices(7)), busy.view())
    old.unprepare(uid(3))
    new.prepare(allocated(4, *devices(7)), busy.view())
    stored = CheckpointStore(DiskFiles(), busy.state_dir).load()
    assert stored is not None
    assert set(stored.claims) == {uid(1), uid(2), uid(4)}
    assert json.loads((busy.cdi_dir / spec_name(4)).read_text())["kind"] == "neuron.aws.com/claim"
