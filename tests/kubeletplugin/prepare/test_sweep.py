"""Deleted claims are released after a while, and lost claims are restored."""

import asyncio
import dataclasses
import json
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.discover.processes import ClaimFile, ProcessUse
from kubeletplugin.files import DiskFiles
from kubeletplugin.metrics import PluginMetrics
from kubeletplugin.ports import JsonObject, NoProcessesError, UsageUnknownError
from kubeletplugin.prepare.checkpoint import PreparedClaim, PreparedDevice, Share, uid_before
from kubeletplugin.prepare.decide import PrepareError
from kubeletplugin.prepare.driver import ClaimReference, Driver
from kubeletplugin.prepare.sweep import Sweeper
from kubeletplugin.prepare.usage import Hold, Holds, NodeUsage, PodResources
from runtime.api_server import StatusError, UnreachableError, UnreadableAnswerError
from tests.kubeletplugin.fakes import (
    NODE,
    FakeApi,
    FakeClock,
    Node,
    allocated,
    claim_object,
    config,
    devices,
    result,
    share,
    spec_name,
    uid,
    until,
    working,
)
from tests.kubeletplugin.kubelet_server import FakeProcesses, KubeletServer, pod_resources


def middle(low: float, high: float) -> float:
    """A jitter that is none."""
    return (low + high) / 2


class Bench:
    """A driver that has prepared two claims, which exist; its sweeper; and what both look at."""

    def __init__(self, node: Node, kubelet: KubeletServer) -> None:
        self.node, self.kubelet = node, kubelet
        self.api, self.clock, self.processes, self.metrics = FakeApi(), FakeClock(), FakeProcesses(), PluginMetrics()
        self.preparer = node.preparer()
        for number in (1, 2):
            self.prepare(number, *devices(number))
            self.api.add_claim(claim_object(number, *devices(number)))
        self.usage = NodeUsage(PodResources(kubelet.socket, 0.2), self.processes)
        self.driver = Driver(
            self.preparer, self.api, node.view, NODE, self.usage, clock=self.clock, metrics=self.metrics
        )
        self.sweeper = Sweeper(self.driver, 300.0, clock=self.clock, metrics=self.metrics, jitter=middle)

    def prepare(self, number: int, *results: JsonObject) -> None:
        """Prepare a claim with these allocated devices, without the driver."""
        self.preparer.prepare(allocated(number, *results), self.node.view())

    def call(self, operation: str, number: int) -> str:
        """The driver's error for a claim, as the kubelet gets it."""
        reference = ClaimReference("ns", f"claim-{number}", uid(number))
        return str(asyncio.run(getattr(self.driver, operation)([reference]))[uid(number)].error)

    def sweep(self, times: int = 1) -> list[bool]:
        return [asyncio.run(self.sweeper.sweep()) for _ in range(times)]

    def run(self, condition: Callable[[], bool]) -> None:
        """The sweeper runs until then."""

        async def scenario() -> None:
            async with working(self.sweeper.run()):
                await until(condition)

        asyncio.run(scenario())

    @property
    def claims(self) -> dict[str, PreparedClaim]:
        """What the checkpoint has, by UID."""
        return dict(self.preparer.checkpoint().claims)

    @property
    def holds(self) -> Holds:
        return self.driver.holds

    @property
    def hold(self) -> Hold:
        """The only one."""
        [hold] = self.holds.claims.values()
        return hold

    def sample(self, name: str, component: str = "") -> float | None:
        labels = {"component": component} if component else {}
        return self.metrics.registry.get_sample_value(f"neuron_dra_plugin_{name}", labels)

    def list_pods(self, *numbers: int) -> None:
        """The kubelet lists a pod of each of these prepared claims only."""
        self.kubelet.pods = [pod_resources(f"p-{number}", self.claims[uid(number)]) for number in numbers]

    def lose(self, *numbers: int) -> None:
        """The checkpoint is lost, and the specs of these claims."""
        (self.node.state_dir / "checkpoint.json").unlink()
        for number in numbers:
            (self.node.cdi_dir / spec_name(number)).unlink()

    def lose_everything(self) -> None:
        self.lose()
        for name in self.node.spec_names():
            (self.node.cdi_dir / name).unlink()


@pytest.fixture
def bench(node: Node) -> Iterator[Bench]:
    # Paths of sockets are short.
    with tempfile.TemporaryDirectory() as directory, KubeletServer(Path(directory) / "k.sock") as kubelet:
        bench = Bench(node, kubelet)
        yield bench
        bench.driver.close()
        bench.usage.close()


def test_claims_that_exist_stay(bench: Bench) -> None:
    assert bench.sweep(3) == [True] * 3
    assert bench.node.spec_names() == [spec_name(1), spec_name(2)]


def test_a_claim_that_is_missing_in_two_sweeps_in_a_row_is_released(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.api.remove_claim(1)
    bench.sweep()
    assert bench.node.spec_names() == [spec_name(1), spec_name(2)]
    bench.sweep()
    assert bench.node.spec_names() == [spec_name(2)]
    assert bench.sample("prepared_claims") == 1
    [record] = caplog.records
    assert record.claim == f"ns/claim-1 (UID {uid(1)})"  # type: ignore[attr-defined]


def test_a_claim_that_appears_again_is_not_released(bench: Bench) -> None:
    bench.api.remove_claim(1)
    bench.sweep()
    bench.api.add_claim(claim_object(1, *devices(1)))
    bench.sweep()
    bench.api.remove_claim(1)
    bench.sweep()
    assert spec_name(1) in bench.node.spec_names()


@pytest.mark.parametrize("how", ["other-uid", "not-allocated"])
def test_a_claim_with_another_uid_or_without_allocation_counts_as_missing(bench: Bench, how: str) -> None:
    body = claim_object(1, *devices(1)) if how == "other-uid" else claim_object(1)
    if how == "other-uid":
        body["metadata"]["uid"] = uid(9)
    bench.api.add_claim(body)
    bench.sweep(2)
    assert bench.node.spec_names() == [spec_name(2)]


@pytest.mark.parametrize("status", [7, {"allocation": 7}, {"allocation": {"devices": {"results": [7]}}}])
def test_a_claim_of_an_unknown_form_stays(bench: Bench, status: Any) -> None:
    bench.api.add_claim(claim_object(1, *devices(1)) | {"status": status})
    bench.sweep(3)
    assert bench.node.spec_names() == [spec_name(1), spec_name(2)]


@pytest.mark.parametrize("now", [devices(4), devices(3, 4, request="n1")], ids=["one-device-less", "other-request"])
def test_a_claim_that_was_allocated_again_in_part_counts_as_missing(bench: Bench, now: tuple[JsonObject, ...]) -> None:
    bench.prepare(3, *devices(3, 4))
    bench.api.add_claim(claim_object(3, *now))
    bench.sweep(2)
    assert set(bench.claims) == {uid(1), uid(2)}


@pytest.mark.parametrize(
    "now",
    [result("neuron-device-1", pool="node-2"), result("neuron-device-9"), result("gpu-0", driver="gpu.example.com")],
    ids=["other-node", "other-device", "other-driver"],
)
def test_a_claim_that_was_allocated_again_elsewhere_counts_as_missing(bench: Bench, now: JsonObject) -> None:
    bench.api.add_claim(claim_object(1, now))
    bench.sweep()
    assert bench.node.spec_names() == [spec_name(1), spec_name(2)]
    bench.sweep()
    assert bench.node.spec_names() == [spec_name(2)]


def test_a_claim_with_another_share_of_the_same_device_counts_as_missing(bench: Bench) -> None:
    for number in (3, 4):
        bench.prepare(number, share(number, 2, share_id="first"))
        bench.api.add_claim(claim_object(number, share(number, 2, share_id="first" if number == 3 else "second")))
    bench.sweep(2)
    assert set(bench.claims) == {uid(1), uid(2), uid(3)}


def test_a_share_that_the_kubelet_told_as_a_whole_device_stays(bench: Bench) -> None:
    bench.prepare(3, *devices(3))
    bench.api.add_claim(claim_object(3, share(3, 2)))
    bench.sweep(2)
    assert uid(3) in bench.claims


@pytest.mark.parametrize(
    "body",
    [
        claim_object(1, *devices(1), config=[config("Partition")]),
        claim_object(1, result("neuron-device-1", shareID="s", consumedCapacity={"neuroncores": "1500m"})),
    ],
    ids=["config", "amount of cores"],
)
def test_a_claim_that_is_not_understood_in_part_stays(bench: Bench, body: JsonObject) -> None:
    """A newer driver may have prepared it; its devices are in use."""
    bench.api.add_claim(body)
    bench.sweep(3)
    assert bench.node.spec_names() == [spec_name(1), spec_name(2)]


def test_a_claim_that_is_prepared_again_meanwhile_is_not_released(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = bench.api.claim

    async def claim(namespace: str, name: str) -> JsonObject | None:
        if name == "claim-1":
            bench.preparer.unprepare(uid(1))
            bench.prepare(1, *devices(9))
        return await really(namespace, name)

    bench.api.remove_claim(1)
    bench.sweep()
    monkeypatch.setattr(bench.api, "claim", claim)
    bench.sweep()
    assert spec_name(1) in bench.node.spec_names()


def test_a_claim_that_is_allocated_as_before_while_it_is_looked_for_is_not_released(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoint does not change when the kubelet has it prepared for the next pod."""

    def scan(**_: object) -> tuple[ProcessUse, ...]:
        bench.api.add_claim(claim_object(1, *devices(1)))
        return ()

    bench.api.remove_claim(1)
    bench.sweep()
    monkeypatch.setattr(bench.processes, "scan", scan)
    bench.sweep()
    assert spec_name(1) in bench.node.spec_names()


def test_a_claim_that_is_prepared_again_between_two_sweeps_counts_as_missing_once(bench: Bench) -> None:
    bench.api.remove_claim(1)
    bench.sweep()
    bench.prepare(1, *devices(9))
    bench.sweep()
    assert spec_name(1) in bench.node.spec_names()
    bench.sweep()
    assert spec_name(1) not in bench.node.spec_names()


def test_no_claim_is_released_without_the_api_server(bench: Bench) -> None:
    bench.api.fail = UnreachableError("down")
    assert bench.sweep(2) == [False, False]
    assert len(bench.node.spec_names()) == 2
    assert bench.sample("background_errors_total", "sweep") == 2
    assert bench.sample("consecutive_errors", "sweep") == 2
    bench.api.fail = None
    assert bench.sweep()
    assert bench.sample("consecutive_errors", "sweep") == 0


def test_claims_that_a_damaged_checkpoint_lost_are_restored(bench: Bench) -> None:
    """No other claim is read: a cluster may have 100,000."""
    bench.list_pods(1, 2)
    (bench.node.state_dir / "checkpoint.json").write_bytes(b"garbage")
    (bench.node.cdi_dir / spec_name(1)).write_text("{}")
    (bench.node.cdi_dir / spec_name(2)).unlink()
    bench.api.add_claim(claim_object(3, *devices(3)))
    bench.preparer.recover()
    assert bench.sweep() == [True]
    assert set(bench.api.calls) == {"get ns/claim-1", "get ns/claim-2"}
    checkpoint = bench.preparer.checkpoint()
    assert (set(checkpoint.claims), checkpoint.incomplete) == ({uid(1), uid(2)}, False)
    assert bench.node.spec_names() == [spec_name(1), spec_name(2)]


@pytest.mark.parametrize(
    "second",
    [
        {"status": 7},
        {"status": claim_object(2, *devices(2), reserved=False)["status"]},
        {"status": claim_object(2, result("neuron-device-2", pool="node-2"))["status"]},
        {"unreadable": True},
    ],
    ids=["unknown form", "not reserved", "on another node", "unreadable"],
)
def test_a_claim_whose_object_tells_nothing_is_restored_from_the_kubelet(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, second: JsonObject
) -> None:
    really = bench.api.claim

    async def claim(namespace: str, name: str) -> JsonObject | None:
        if name == "claim-2" and "unreadable" in second:
            raise UnreadableAnswerError("nested too deeply")
        return await really(namespace, name)

    monkeypatch.setattr(bench.api, "claim", claim)
    bench.list_pods(1, 2)
    bench.api.add_claim(claim_object(2, *devices(2)) | second)
    bench.lose_everything()
    assert bench.sweep() == [True]
    claims = bench.claims
    assert {key: (each.held, bool(each.allocation)) for key, each in claims.items()} == {
        uid(1): ({1}, True),
        uid(2): ({2}, False),
    }


def test_a_running_claim_that_cannot_be_restored_keeps_its_device(bench: Bench) -> None:
    """The device's node may come back, and the claim may be deleted while its pod runs."""
    bench.list_pods(1)
    bench.lose(1)
    lost = bench.node.dev / "neuron1"
    lost.rename(bench.node.root / "away")
    bench.sweep()
    (bench.node.root / "away").rename(lost)
    with pytest.raises(PrepareError, match="still prepared for ResourceClaim ns/claim-1"):
        bench.prepare(3, *devices(1))


OTHERS = {
    "none of this node": config("UltraServerConfig", ultraserverMode=4),
    "none of this driver": config("NeuronConfig", sharing="all"),
}


@pytest.mark.parametrize("settings", OTHERS.values(), ids=OTHERS)
def test_a_running_claim_of_another_driver_of_our_name_that_cannot_be_restored_keeps_its_device(
    bench: Bench, settings: JsonObject
) -> None:
    """Its CDI ids tell neither claim nor request. The driver ended with every start, or gave the device away."""
    held = PreparedClaim(uid(3), "ns", "claim-3", "", (PreparedDevice("", NODE, "neuron-device-3", (3,)),))
    bench.kubelet.pods = [pod_resources("p-3", held, with_ids=False)]
    bench.api.add_claim(claim_object(3, *devices(3), config=[settings]))
    bench.lose()
    assert bench.sweep() == [True]
    assert bench.claims[uid(3)].held == {3}
    assert (bench.claims[uid(3)].devices[0].request, bench.holds.claims) == ("n0", {})
    assert bench.node.preparer().recover().errors == ()
    with pytest.raises(PrepareError, match="still prepared for ResourceClaim ns/claim-3"):
        bench.prepare(4, *devices(3))


def test_a_claim_of_which_no_request_is_known_has_no_file_of_metadata(bench: Bench) -> None:
    """Its object is allocated elsewhere by now."""
    lost = PreparedClaim(uid(3), "ns", "claim-3", "", (PreparedDevice("", NODE, "neuron-device-3", (3,)),))
    bench.kubelet.pods = [pod_resources("p-3", lost, with_ids=False)]
    bench.api.add_claim(claim_object(3, *devices(4)))
    bench.lose()
    assert bench.sweep() == [True]
    assert bench.holds.indices == {3}
    [device] = json.loads((bench.node.cdi_dir / spec_name(3)).read_bytes())["devices"]
    assert "mounts" not in device["containerEdits"]


def test_a_claim_that_is_unprepared_while_a_lost_state_is_restored_stays_unprepared(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet listed it just before, and does not ask again: its device would be held for two sweeps or more."""
    bench.list_pods(1, 2)
    bench.lose_everything()
    read, calls = bench.api.claim, iter([ClaimReference("ns", "claim-1", uid(1))])

    async def claim(namespace: str, name: str) -> JsonObject | None:
        await bench.driver.unprepare(calls)
        return await read(namespace, name)

    monkeypatch.setattr(bench.api, "claim", claim)
    assert bench.sweep() == [True]
    assert set(bench.claims) == {uid(2)}
    monkeypatch.setattr(bench.api, "claim", read)
    assert bench.call("prepare", 1) == ""
    bench.lose_everything()
    bench.sweep()
    assert set(bench.claims) == {uid(1), uid(2)}, "only that once"


def test_a_claim_that_was_restored_from_the_kubelet_and_exists_is_not_held(bench: Bench) -> None:
    """The kubelet names its request without the alternative."""
    chosen = result("neuron-device-3", "n0/big")
    bench.prepare(3, chosen)
    bench.list_pods(3)
    bench.api.add_claim(claim_object(3, chosen, config=[config("Partition")]))
    bench.lose(3)
    bench.sweep()
    assert set(bench.claims) == {uid(1), uid(2), uid(3)}
    assert bench.holds.claims == {}


def test_a_state_that_is_damaged_at_run_time_is_logged_and_counted(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    (bench.node.state_dir / "checkpoint.json").write_bytes(b"garbage")
    assert not asyncio.run(bench.sweeper.mend())
    assert bench.sample("background_errors_total", "state") == 1
    assert "state damaged" in caplog.messages


def test_claims_that_cannot_be_restored_are_logged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    refused = dataclasses.replace(bench.claims[uid(1)], uid=uid(3), name="claim-3")
    bench.kubelet.pods = [pod_resources("p", refused)]
    (bench.node.state_dir / "checkpoint.json").write_bytes(b"garbage")
    bench.api.add_claim(claim_object(3, *devices(1)))
    bench.preparer.recover()
    bench.sweep()
    assert set(bench.claims) == {uid(1), uid(2)}, "the kubelet's word does not overrule the refusal"
    errors = [getattr(record, "error", "") for record in caplog.records]
    assert any(error.startswith("Claim ns/claim-3 cannot be restored: Device neuron-device-1") for error in errors)


def test_claims_are_restored_from_api_server_and_kubelet_without_any_state(bench: Bench) -> None:
    """The kubelet also knows the claims whose objects are gone: their devices are in use."""
    bench.kubelet.pods = [pod_resources(f"p-{number}", bench.claims[uid(number)]) for number in (1, 2)]
    bench.api.remove_claim(2)
    bench.lose_everything()
    bench.preparer.recover()
    assert bench.preparer.checkpoint().incomplete
    assert bench.sweep() == [True]
    checkpoint = bench.preparer.checkpoint()
    assert not checkpoint.incomplete
    restored = {key: (claim.name, claim.devices) for key, claim in checkpoint.claims.items()}
    assert restored == {
        uid(number): (f"claim-{number}", (PreparedDevice("n0", NODE, f"neuron-device-{number}", (number,)),))
        for number in (1, 2)
    }
    assert bench.node.spec_names() == [spec_name(1), spec_name(2)]
    assert bench.holds.indices == {2}
    assert bench.holds.restoring is False


def test_a_share_that_only_the_kubelet_knows_holds_the_whole_device(bench: Bench) -> None:
    bench.prepare(3, share(5, 2, share_id="s-1"))
    bench.list_pods(3)
    bench.lose(3)
    bench.preparer.recover()
    bench.sweep()
    [device] = bench.claims[uid(3)].devices
    assert device.share == Share("s-1", None, 1, certain=False)
    with pytest.raises(PrepareError, match="shared with ResourceClaim ns/claim-3"):
        bench.prepare(4, share(5, 1))


def test_a_claim_whose_cores_are_lost_is_prepared_again_when_its_containers_have_ended(bench: Bench) -> None:
    """Its containers were started with other cores than the driver would choose now."""
    body = claim_object(3, share(5, 2, share_id="s-1"))
    bench.prepare(4, share(5, 2))
    bench.prepare(3, *body["status"]["allocation"]["devices"]["results"])
    bench.preparer.unprepare(uid(4))
    bench.list_pods(3)
    bench.lose(3)
    bench.processes.found = names(3, index=5)
    bench.sweep()
    bench.api.add_claim(body)
    assert "the driver lost which of its cores that claim uses" in bench.call("prepare", 3)
    with pytest.raises(PrepareError, match="the driver lost which of its cores"):
        bench.prepare(5, share(5, 2))
    bench.processes.found = ()
    assert bench.call("prepare", 3) == ""
    bench.prepare(5, share(5, 2))


def test_a_whole_node_that_only_the_kubelet_knows_holds_devices_that_have_vanished(
    bench: Bench, tmp_path: Path
) -> None:
    for number in (1, 2):
        bench.preparer.unprepare(uid(number))
    whole = allocated(3, result("neuron-node"))
    bench.preparer.prepare(whole, bench.node.view())
    bench.list_pods(3)
    bench.lose(3)
    bench.node.device_directory(7).rename(tmp_path / "away")
    bench.sweep()
    (tmp_path / "away").rename(bench.node.device_directory(7))
    with pytest.raises(PrepareError, match="still prepared for ResourceClaim ns/claim-3"):
        bench.prepare(4, *devices(7))


def test_no_claim_is_prepared_while_the_kubelet_hangs_after_a_lost_state(bench: Bench) -> None:
    bench.lose()
    bench.preparer.recover()
    bench.kubelet.hangs = True
    assert bench.sweep() == [False]
    assert (bench.holds.restoring, bench.preparer.checkpoint().incomplete) == (True, True)
    bench.api.add_claim(claim_object(3, *devices(7)))
    assert "Device neuron-device-7 may be in use" in bench.call("prepare", 3)
    bench.kubelet.hangs = False
    assert bench.sweep() == [True]
    assert bench.call("prepare", 3) == ""


def test_every_device_is_held_while_a_lost_state_cannot_be_restored_for_want_of_the_kubelets_socket(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.lose()
    bench.preparer.recover()
    bench.kubelet.socket.unlink()
    assert bench.sweep() == [False]
    assert (bench.holds.restoring, bench.preparer.checkpoint().incomplete) == (True, True)
    [record] = [each for each in caplog.records if each.message == "sweep failed"]
    assert record.error.startswith(f"the kubelet's socket {bench.kubelet.socket} does not exist: ")  # type: ignore[attr-defined]


async def test_lost_specs_are_written_again_between_two_sweeps(bench: Bench) -> None:
    before = (bench.node.cdi_dir / spec_name(1)).read_bytes()

    async with working(bench.sweeper.run()):
        await until(lambda: len(bench.clock.slept) >= 1)
        (bench.node.cdi_dir / spec_name(1)).unlink()
        await until(lambda: bench.sample("restored_specs_total") == 1)
    assert (bench.node.cdi_dir / spec_name(1)).read_bytes() == before
    assert set(bench.clock.slept) == {10.0}


def test_specs_that_cannot_be_compared_are_counted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(DiskFiles, "identity", broken)
        assert asyncio.run(bench.sweeper.mend())
    assert bench.sample("consecutive_errors", "specs") == 1
    # A sweep that succeeds does not hide it.
    bench.sweep()
    assert bench.sample("consecutive_errors", "specs") == 1
    assert asyncio.run(bench.sweeper.mend())
    assert bench.sample("consecutive_errors", "specs") == 0


async def test_sweeps_are_frequent_until_every_claim_is_known(bench: Bench) -> None:
    bench.api.fail = UnreachableError("down")

    start = bench.clock.time
    async with working(bench.sweeper.run()):
        await until(lambda: len(bench.clock.slept) >= 2)
        bench.api.fail = None
        before = len([call for call in bench.api.calls if call == "get ns/claim-1"])
        await until(lambda: len([call for call in bench.api.calls if call == "get ns/claim-1"]) > before + 1)
    assert bench.clock.slept[:2] == [10.0, 10.0]
    assert bench.clock.time >= start + 300


def test_an_unreadable_claim_stays_and_does_not_keep_others(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    really = bench.api.claim

    async def claim(namespace: str, name: str) -> JsonObject | None:
        if name == "claim-1":
            raise UnreadableAnswerError(f"{namespace}/{name} is stored and cannot be read")
        return await really(namespace, name)

    monkeypatch.setattr(bench.api, "claim", claim)
    bench.api.remove_claim(2)
    assert bench.sweep(2) == [True, True]
    assert bench.node.spec_names() == [spec_name(1)]


# --- claims that are gone, and in use -------------------------------------------------------------------------


def test_a_claim_that_a_pod_still_uses_is_kept_until_the_kubelet_unprepares_it(bench: Bench) -> None:
    bench.list_pods(1)
    bench.api.remove_claim(1)
    bench.sweep(5)
    assert bench.node.spec_names() == [spec_name(1), spec_name(2)]
    hold = bench.hold
    assert (hold.why, bench.holds.indices) == ("the kubelet reports that pod ns/p-1 uses it", {1})
    assert bench.call("unprepare", 1) == ""
    assert (bench.holds.claims, bench.node.spec_names()) == ({}, [spec_name(2)])


def test_a_claim_that_is_unprepared_while_it_is_looked_for_is_not_held(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def claim(_namespace: str, name: str) -> JsonObject | None:
        await bench.driver.unprepare([ClaimReference("ns", name, uid(1))])
        return None if name == "claim-1" else claim_object(2, *devices(2))

    monkeypatch.setattr(bench.api, "claim", claim)
    bench.sweep()
    assert bench.holds.claims == {}


def test_a_claim_that_a_pod_no_longer_uses_is_released_by_the_next_sweep(bench: Bench) -> None:
    bench.list_pods(1)
    bench.api.remove_claim(1)
    bench.sweep(3)
    bench.kubelet.pods = []
    bench.sweep()
    assert (bench.holds.claims, bench.node.spec_names()) == ({}, [spec_name(2)])


def test_pods_of_other_claims_keep_no_claim(bench: Bench) -> None:
    bench.list_pods(2)
    bench.api.remove_claim(1)
    bench.sweep(2)
    assert bench.node.spec_names() == [spec_name(2)]


def test_a_kubelet_that_hangs_keeps_every_claim(bench: Bench) -> None:
    bench.kubelet.hangs = True
    bench.api.remove_claim(1)
    assert bench.sweep(3) == [True] * 3
    assert bench.node.spec_names() == [spec_name(1), spec_name(2)]
    hold = bench.hold
    assert hold.known is False
    assert hold.why.startswith("it is not known whether a pod uses it: the kubelet does not answer at ")


def use(pod_uid: str, index: int = 1, *files: ClaimFile) -> tuple[ProcessUse, ...]:
    return (ProcessUse(41, "python", pod_uid, frozenset(files), frozenset({index})),)


OLD = ClaimFile(uid(1), "n0", 1)
"""Of the first preparation of the claim."""
KEPT = {
    "a container that names it": (
        use("pod-gone", 7, OLD),
        "process 41 (python) of pod pod-gone is in a container of the claim",
    ),
    "no answer": (UsageUnknownError("too slow"), "it is not known whether a pod uses it: too slow"),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_claim_whose_devices_a_process_uses_or_may_use_is_kept(bench: Bench, name: str) -> None:
    """The kubelet does not list pods that it is stopping."""
    bench.processes.found, why = KEPT[name]
    bench.api.remove_claim(1)
    bench.sweep(3)
    assert bench.node.spec_names() == [spec_name(1), spec_name(2)]
    hold = bench.hold
    assert hold.why == why


def test_devices_that_a_claim_had_before_are_held_until_nothing_uses_them(bench: Bench) -> None:
    """A pod of the claim, which was deleted by force, runs on."""
    bench.api.add_claim(claim_object(1, *devices(5)))
    bench.prepare(1, *devices(5))
    bench.processes.found = use("pod-gone", 1, OLD)
    bench.sweep(3)
    assert bench.holds.indices == {1}
    bench.processes.found = ()
    bench.sweep()
    assert (bench.holds.indices, set(bench.claims)) == (set(), {uid(1), uid(2)})


def test_a_claim_that_is_released_leaves_the_devices_that_it_had_before(bench: Bench) -> None:
    bench.prepare(1, *devices(5))
    bench.api.remove_claim(1)
    bench.processes.found = use("pod-gone", 1, OLD)
    bench.sweep(2)
    assert bench.holds.indices == {1, 5}, "a container names the claim"
    assert bench.call("unprepare", 1) == ""
    assert (bench.holds.indices, set(bench.claims)) == (
        {1, 5},
        {uid_before(uid(1)), uid(2)},
    )
    bench.processes.found = ()
    asyncio.run(bench.driver.release_ended())
    assert (bench.holds.claims, set(bench.claims)) == ({}, {uid(2)})


def test_a_claim_that_was_made_again_explains_no_use_of_the_old_ones_devices(bench: Bench) -> None:
    body = claim_object(1, *devices(5))
    body["metadata"]["uid"] = uid(9)
    bench.api.add_claim(body)
    bench.processes.found = use("pod-uid", 1, OLD)
    bench.sweep(3)
    assert bench.node.spec_names() == [spec_name(1), spec_name(2)]


@pytest.mark.parametrize(
    "found",
    [use("pod-uid", 1, ClaimFile(uid(3), "all", 3)), use("elsewhere", 1)],
    ids=["looks at it", "names no claim"],
)
def test_processes_that_use_devices_for_claims_that_exist_keep_no_other(
    bench: Bench, found: tuple[ProcessUse, ...]
) -> None:
    """A monitoring pod with adminAccess has every device open."""
    look = result("neuron-device-1", "all", adminAccess=True)
    bench.prepare(3, look)
    bench.api.add_claim(claim_object(3, look))
    bench.processes.found = found
    bench.api.remove_claim(1)
    bench.sweep(2)
    assert bench.node.spec_names() == [spec_name(2), spec_name(3)]


def test_every_device_is_held_until_a_first_sweep_has_succeeded(bench: Bench) -> None:
    bench.holds.restore(restoring=True)
    bench.api.fail = StatusError(503, "down")
    assert bench.sweep() == [False]
    assert asyncio.run(bench.sweeper.mend())
    assert bench.holds.restoring
    bench.api.fail = None
    assert bench.sweep() == [True]
    assert not bench.holds.restoring


def test_devices_are_held_from_the_first_sweep_on(bench: Bench) -> None:
    bench.api.remove_claim(1)
    bench.sweep()
    hold = bench.hold
    assert (hold.known, hold.why) == (None, "nothing is known to use it, and it is released at the next search")
    bench.api.add_claim(claim_object(1, *devices(1)))
    bench.sweep()
    assert bench.holds.claims == {}


def test_a_refused_claim_names_the_holder_of_the_device(bench: Bench) -> None:
    bench.list_pods(1)
    bench.api.add_claim(claim_object(3, *devices(1)))
    bench.api.remove_claim(1)
    messages = []
    for _ in range(2):
        messages.append(bench.call("prepare", 3))
        bench.sweep()
    assert messages[0].startswith("Device neuron-device-1 is still prepared for ResourceClaim ns/claim-1")
    why = " That ResourceClaim no longer exists: the kubelet reports that pod ns/p-1 uses it."
    assert messages[1] == messages[0] + why
    assert bench.driver.refusals == 2


def test_a_refused_claim_causes_an_early_sweep(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[tuple[float, bool]] = []

    async def sweep(*, release: bool = True) -> bool:
        looks.append((bench.clock.time - 1_000_000, release))
        if looks[-1] == (0, True):
            asyncio.get_running_loop().call_soon(refuse)
        return True

    def refuse() -> None:
        bench.driver.refusals += 1

    monkeypatch.setattr(bench.sweeper, "sweep", sweep)

    bench.run(lambda: len(looks) >= 3)
    assert looks[:3] == [(0, True), (10, False), (300, True)]


def test_a_sweep_that_failed_is_repeated_soon(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[float] = []

    async def sweep(*, release: bool = True) -> bool:
        assert release
        begun.append(bench.clock.time - 1_000_000)
        return len(begun) > 1

    monkeypatch.setattr(bench.sweeper, "sweep", sweep)

    bench.run(lambda: len(begun) >= 3)
    assert begun[:3] == [0, 10, 310]


def test_nodes_that_start_together_do_not_sweep_together(bench: Bench) -> None:
    def second_sweep(seed: int) -> float:
        clock, begun = FakeClock(), []
        jitter = random.Random(seed).uniform  # noqa: S311 - a test
        sweeper = Sweeper(bench.driver, 300.0, clock=clock, metrics=bench.metrics, jitter=jitter)

        async def sweep(*, release: bool = True) -> bool:
            begun.append(clock.time)
            return True

        async def scenario() -> None:
            async with working(sweeper.run()):
                await until(lambda: len(begun) >= 2)

        sweeper.sweep = sweep  # type: ignore[method-assign]
        asyncio.run(scenario())
        return begun[1] - begun[0]

    times = sorted(second_sweep(seed) for seed in range(40))
    assert 240 <= times[0] < 260
    assert 340 < times[-1] <= 360
    assert len({int(each) for each in times}) > 20


def test_a_sweep_without_release_releases_no_claim(bench: Bench) -> None:
    bench.api.remove_claim(1)
    assert asyncio.run(bench.sweeper.sweep(release=False))
    assert asyncio.run(bench.sweeper.sweep(release=False))
    bench.sweep()
    assert bench.node.spec_names() == [spec_name(1), spec_name(2)]
    bench.sweep()
    assert bench.node.spec_names() == [spec_name(2)]


# --- claims that have ended, and whose containers run on ---------------------------------------------------------


def names(number: int, *, index: int = 1, preparation: int = 1, **environment: str) -> tuple[ProcessUse, ...]:
    """A container that names a claim."""
    files = frozenset({ClaimFile(uid(number), "n0", preparation)})
    return (ProcessUse(1005, "train", "pod-hung", files, frozenset({index}), environment=environment),)


@pytest.mark.parametrize("wanting", ["another claim", "the same claim"])
def test_a_device_whose_container_hangs_is_given_to_nobody_after_the_kubelet_unprepared_it(
    bench: Bench, wanting: str
) -> None:
    """The pod was deleted by force; the kubelet gives up, although the runtime does not stop the container."""
    bench.processes.found = names(1)
    bench.api.remove_claim(1)
    assert bench.call("unprepare", 1) == ""
    assert bench.node.spec_names() == [spec_name(2)], "no container starts with the device"
    assert bench.holds.indices == {1}, "at once"
    number = 3 if wanting == "another claim" else 1
    bench.api.add_claim(claim_object(number, *devices(1)))
    error = bench.call("prepare", number)
    assert error.startswith(f"Device neuron-device-1 is still prepared for ResourceClaim ns/claim-1 (UID {uid(1)})")
    assert error.endswith(
        " That ResourceClaim has ended: process 1005 (train) of pod pod-hung is in a container of the claim."
    )
    bench.sweep(3)
    assert bench.holds.indices == {1}
    bench.processes.found = ()
    assert bench.call("prepare", number) == "", "the kubelet need not wait for a sweep"
    assert bench.holds.claims == {}
    assert spec_name(number) in bench.node.spec_names()


def test_a_look_that_does_not_end_holds_the_device_until_there_is_an_answer(bench: Bench) -> None:
    bench.processes.found = UsageUnknownError("too slow")
    assert bench.call("unprepare", 1) == ""
    hold = bench.hold
    assert (hold.why, hold.known) == (
        "it is not known whether a pod uses it: too slow",
        False,
    )
    bench.processes.found = ()
    asyncio.run(bench.driver.release_ended())
    assert (bench.holds.claims, bench.node.spec_names()) == ({}, [spec_name(2)])


def test_a_driver_that_may_not_see_processes_takes_the_kubelets_word(bench: Bench) -> None:
    bench.processes.found = NoProcessesError("no /proc")
    assert bench.call("unprepare", 1) == ""
    assert (bench.holds.claims, set(bench.claims)) == ({}, {uid(2)})


def test_a_call_that_the_next_preparation_overtook_changes_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet gave up waiting for it, and prepares the claim for the next pod."""

    def scan(**_: object) -> tuple[ProcessUse, ...]:
        bench.prepare(1, *devices(1))
        return ()

    monkeypatch.setattr(bench.processes, "scan", scan)
    assert bench.call("unprepare", 1) == ""
    assert spec_name(1) in bench.node.spec_names()


# --- lost state ------------------------------------------------------------------------------------------------


@pytest.fixture
def shared(bench: Bench) -> dict[int, tuple[int, ...] | None]:
    """Claims with 2 of the 8 cores of a device each, of which the first has ended; and their cores."""
    for number in (3, 4, 5, 6):
        bench.api.add_claim(claim_object(number, share(5, 2, share_id=f"s{number}")))
        bench.prepare(number, share(5, 2, share_id=f"s{number}"))
    bench.api.remove_claim(3)
    bench.preparer.unprepare(uid(3))
    return cores_of(bench)


def cores_of(bench: Bench) -> dict[int, tuple[int, ...] | None]:
    claims = bench.claims
    return {number: claims[uid(number)].devices[0].cores for number in (4, 5, 6) if uid(number) in claims}


def status(number: int, data: Any) -> JsonObject:
    """An entry of `status.devices` with this data."""
    share_id = f"s{number}"
    return {"driver": "neuron.aws.com", "pool": NODE, "device": "neuron-device-5", "shareID": share_id, "data": data}


def entry(bench: Bench, number: int) -> JsonObject:
    """The one that the driver writes."""
    return status(number, {"deviceIds": [5], "environment": bench.claims[uid(number)].environment["n0"]})


@pytest.mark.parametrize("source", ["status", "containers", "both, and a forged status"])
def test_shares_get_their_own_cores_back_from_a_second_copy(
    bench: Bench, shared: dict[int, tuple[int, ...] | None], source: str
) -> None:
    bench.list_pods(*shared)
    specs = {number: (bench.node.cdi_dir / spec_name(number)).read_bytes() for number in shared}
    claims = bench.claims
    for number in shared:
        seen = bench.api.claim_objects[f"ns/claim-{number}"]["status"]
        if source != "containers":
            seen["devices"] = [
                {"driver": "other", "pool": NODE, "device": "neuron-device-5"},
                entry(bench, number),
            ]
        if source == "both, and a forged status":
            seen["devices"][-1]["data"] = {"environment": {"NEURON_RT_VISIBLE_CORES": "20-21"}}
        if source != "status":
            claim = claims[uid(number)]
            bench.processes.found = (
                *bench.processes.found,  # type: ignore[misc]
                *names(number, index=5, preparation=claim.number, **claim.environment["n0"]),
            )
    bench.lose_everything()
    bench.sweep()
    assert cores_of(bench) == shared
    assert all(device.share.certain for claim in bench.claims.values() for device in claim.devices if device.share)
    environment = {number: claims[uid(number)].environment for number in shared}
    assert {n: bench.claims[uid(n)].environment for n in shared} == environment
    if source == "containers":
        assert {number: (bench.node.cdi_dir / spec_name(number)).exists() for number in specs} == dict.fromkeys(
            specs, True
        )


@pytest.mark.parametrize(
    "told",
    [
        {"driver": "neuron.aws.com"},
        status(4, 7),
        status(4, {"environment": {"NEURON_RT_VISIBLE_CORES": ["5"]}}),
        status(4, {"environment": {"NEURON_RT_VISIBLE_CORES": "0-1"}}),
    ],
    ids=["no device", "data of another form", "no text", "cores of other devices"],
)
def test_a_status_of_another_form_tells_nothing(
    bench: Bench, shared: dict[int, tuple[int, ...] | None], told: JsonObject
) -> None:
    """The claim holds all cores, beside those of claims whose cores are told."""
    bench.list_pods(*shared)
    for number in (5, 6):
        bench.api.claim_objects[f"ns/claim-{number}"]["status"]["devices"] = [entry(bench, number)]
    bench.api.claim_objects["ns/claim-4"]["status"]["devices"] = [told]
    bench.lose_everything()
    assert bench.sweep() == [True]
    assert cores_of(bench) == shared | {4: None}
    with pytest.raises(PrepareError, match="the driver lost which of its cores"):
        bench.prepare(7, share(5, 2))


def test_devices_of_a_container_whose_claim_is_gone_are_held_after_a_lost_state(bench: Bench) -> None:
    bench.list_pods(2)
    bench.api.remove_claim(1)
    bench.processes.found = names(1)
    bench.lose_everything()
    bench.sweep()
    assert (bench.holds.indices, bench.node.spec_names()) == ({1}, [spec_name(2)])
    bench.api.add_claim(claim_object(3, *devices(1)))
    assert "process 1005 (train) of pod pod-hung" in bench.call("prepare", 3)
    bench.processes.found = (dataclasses.replace(names(1)[0], indices=frozenset()),)
    bench.sweep()
    assert bench.holds.indices == {1}
    bench.processes.found = ()
    assert bench.call("prepare", 3) == ""


def test_a_container_whose_devices_cannot_be_seen_may_have_all(bench: Bench) -> None:
    bench.api.remove_claim(1)
    bench.processes.found = (dataclasses.replace(names(1)[0], indices=frozenset()),)
    bench.lose_everything()
    bench.sweep()
    assert bench.holds.indices == set(range(16))


def test_the_next_preparation_has_a_number_that_no_container_names(bench: Bench) -> None:
    bench.processes.found = names(9, index=7, preparation=40)
    bench.lose_everything()
    bench.sweep()
    bench.api.add_claim(claim_object(3, *devices(4)))
    assert bench.call("prepare", 3) == ""
    assert bench.claims[uid(3)].number > 40
