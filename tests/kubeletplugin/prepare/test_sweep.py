"""Deleted claims are released after a while, and lost claims are restored."""

import asyncio
import dataclasses
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.discover.processes import ClaimFile, ProcessUse
from kubeletplugin.files import DiskFiles
from kubeletplugin.metrics import PluginMetrics
from kubeletplugin.pb import podresources_v1_pb2 as pb
from kubeletplugin.ports import JsonObject, NoProcessesError, UsageUnknownError
from kubeletplugin.prepare.checkpoint import PreparedDevice, Share, uid_before
from kubeletplugin.prepare.decide import PrepareError
from kubeletplugin.prepare.driver import ClaimReference, Driver
from kubeletplugin.prepare.preparer import Preparer
from kubeletplugin.prepare.sweep import Sweeper
from kubeletplugin.prepare.usage import NodeUsage, PodResources
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


@pytest.fixture
def metrics() -> PluginMetrics:
    return PluginMetrics()


@pytest.fixture
def preparer(node: Node) -> Preparer:
    """Two prepared claims."""
    preparer = node.preparer()
    for number in (1, 2):
        preparer.prepare(allocated(number, *devices(number)), node.view())
    return preparer


@pytest.fixture
def kubelet() -> Iterator[KubeletServer]:
    """A kubelet that answers, with no pod."""
    # Paths of sockets are short.
    with tempfile.TemporaryDirectory() as directory, KubeletServer(Path(directory) / "k.sock") as server:
        yield server


@pytest.fixture
def processes() -> FakeProcesses:
    return FakeProcesses()


@pytest.fixture
def driver(
    preparer: Preparer,
    node: Node,
    api: FakeApi,
    kubelet: KubeletServer,
    processes: FakeProcesses,
    clock: FakeClock,
    metrics: PluginMetrics,
) -> Iterator[Driver]:
    usage = NodeUsage(PodResources(kubelet.socket, 0.2), processes)
    driver = Driver(preparer, api, node.view, NODE, usage, clock=clock, metrics=metrics)
    yield driver
    driver.close()
    usage.close()


@pytest.fixture
def sweeper(
    driver: Driver,
    api: FakeApi,
    clock: FakeClock,
    metrics: PluginMetrics,
) -> Sweeper:
    for number in (1, 2):
        api.add_claim(claim_object(number, *devices(number)))
    return Sweeper(driver, 300.0, clock=clock, metrics=metrics, jitter=middle)


def listed(preparer: Preparer, *numbers: int) -> list[pb.PodResources]:
    """Pods with prepared claims, as the kubelet lists them."""
    claims = preparer.checkpoint().claims
    return [pod_resources(f"p-{number}", claims[uid(number)]) for number in numbers]


def sweep(sweeper: Sweeper, times: int = 1) -> list[bool]:
    return [asyncio.run(sweeper.sweep()) for _ in range(times)]


def test_claims_that_exist_stay(sweeper: Sweeper, node: Node) -> None:
    assert sweep(sweeper, 3) == [True] * 3
    assert node.spec_names() == [spec_name(1), spec_name(2)]


def test_a_claim_that_is_missing_in_two_sweeps_in_a_row_is_released(
    sweeper: Sweeper, node: Node, api: FakeApi, metrics: PluginMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    api.remove_claim(1)
    sweep(sweeper)
    assert node.spec_names() == [spec_name(1), spec_name(2)]
    sweep(sweeper)
    assert node.spec_names() == [spec_name(2)]
    assert metrics.registry.get_sample_value("neuron_dra_plugin_prepared_claims") == 1
    [record] = caplog.records
    assert record.claim == f"ns/claim-1 (UID {uid(1)})"  # type: ignore[attr-defined]


def test_a_claim_that_appears_again_is_not_released(sweeper: Sweeper, node: Node, api: FakeApi) -> None:
    api.remove_claim(1)
    sweep(sweeper)
    api.add_claim(claim_object(1, *devices(1)))
    sweep(sweeper)
    api.remove_claim(1)
    sweep(sweeper)
    assert spec_name(1) in node.spec_names()


@pytest.mark.parametrize("how", ["other-uid", "not-allocated"])
def test_a_claim_with_another_uid_or_without_allocation_counts_as_missing(
    sweeper: Sweeper, node: Node, api: FakeApi, how: str
) -> None:
    body = claim_object(1, *devices(1)) if how == "other-uid" else claim_object(1)
    if how == "other-uid":
        body["metadata"]["uid"] = uid(9)
    api.add_claim(body)
    sweep(sweeper, 2)
    assert node.spec_names() == [spec_name(2)]


@pytest.mark.parametrize("status", [7, {"allocation": 7}, {"allocation": {"devices": {"results": [7]}}}])
def test_a_claim_of_an_unknown_form_stays(sweeper: Sweeper, node: Node, api: FakeApi, status: Any) -> None:
    api.add_claim(claim_object(1, *devices(1)) | {"status": status})
    sweep(sweeper, 3)
    assert node.spec_names() == [spec_name(1), spec_name(2)]


@pytest.mark.parametrize("now", [devices(4), devices(3, 4, request="n1")], ids=["one-device-less", "other-request"])
def test_a_claim_that_was_allocated_again_in_part_counts_as_missing(
    sweeper: Sweeper, preparer: Preparer, node: Node, api: FakeApi, now: tuple[JsonObject, ...]
) -> None:
    preparer.prepare(allocated(3, *devices(3, 4)), node.view())
    api.add_claim(claim_object(3, *now))
    sweep(sweeper, 2)
    assert set(preparer.checkpoint().claims) == {uid(1), uid(2)}


@pytest.mark.parametrize(
    "now",
    [result("neuron-device-1", pool="node-2"), result("neuron-device-9"), result("gpu-0", driver="gpu.example.com")],
    ids=["other-node", "other-device", "other-driver"],
)
def test_a_claim_that_was_allocated_again_elsewhere_counts_as_missing(
    sweeper: Sweeper, node: Node, api: FakeApi, now: JsonObject
) -> None:
    api.add_claim(claim_object(1, now))
    sweep(sweeper)
    assert node.spec_names() == [spec_name(1), spec_name(2)]
    sweep(sweeper)
    assert node.spec_names() == [spec_name(2)]


def test_a_claim_with_another_share_of_the_same_device_counts_as_missing(
    sweeper: Sweeper, preparer: Preparer, node: Node, api: FakeApi
) -> None:
    for number in (3, 4):
        preparer.prepare(allocated(number, share(number, 2, share_id="first")), node.view())
        api.add_claim(claim_object(number, share(number, 2, share_id="first" if number == 3 else "second")))
    sweep(sweeper, 2)
    assert set(preparer.checkpoint().claims) == {uid(1), uid(2), uid(3)}


def test_a_share_that_the_kubelet_told_as_a_whole_device_stays(
    sweeper: Sweeper, preparer: Preparer, node: Node, api: FakeApi
) -> None:
    preparer.prepare(allocated(3, *devices(3)), node.view())
    api.add_claim(claim_object(3, share(3, 2)))
    sweep(sweeper, 2)
    assert uid(3) in preparer.checkpoint().claims


@pytest.mark.parametrize(
    "body",
    [
        claim_object(1, *devices(1), config=[config("Partition")]),
        claim_object(1, result("neuron-device-1", shareID="s", consumedCapacity={"neuroncores": "1500m"})),
    ],
    ids=["config", "amount of cores"],
)
def test_a_claim_that_is_not_understood_in_part_stays(
    sweeper: Sweeper, node: Node, api: FakeApi, body: JsonObject
) -> None:
    """A newer driver may have prepared it; its devices are in use."""
    api.add_claim(body)
    sweep(sweeper, 3)
    assert node.spec_names() == [spec_name(1), spec_name(2)]


def test_a_claim_that_is_prepared_again_meanwhile_is_not_released(
    sweeper: Sweeper, preparer: Preparer, node: Node, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = api.claim

    async def claim(namespace: str, name: str) -> JsonObject | None:
        if name == "claim-1":
            preparer.unprepare(uid(1))
            preparer.prepare(allocated(1, *devices(9)), node.view())
        return await really(namespace, name)

    api.remove_claim(1)
    sweep(sweeper)
    monkeypatch.setattr(api, "claim", claim)
    sweep(sweeper)
    assert spec_name(1) in node.spec_names()


def test_a_claim_that_is_allocated_as_before_while_it_is_looked_for_is_not_released(
    sweeper: Sweeper, node: Node, api: FakeApi, processes: FakeProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoint does not change when the kubelet has it prepared for the next pod."""

    def scan(**_: object) -> tuple[ProcessUse, ...]:
        api.add_claim(claim_object(1, *devices(1)))
        return ()

    api.remove_claim(1)
    sweep(sweeper)
    monkeypatch.setattr(processes, "scan", scan)
    sweep(sweeper)
    assert spec_name(1) in node.spec_names()


def test_a_claim_that_is_prepared_again_between_two_sweeps_counts_as_missing_once(
    sweeper: Sweeper, preparer: Preparer, node: Node, api: FakeApi
) -> None:
    api.remove_claim(1)
    sweep(sweeper)
    preparer.prepare(allocated(1, *devices(9)), node.view())
    sweep(sweeper)
    assert spec_name(1) in node.spec_names()
    sweep(sweeper)
    assert spec_name(1) not in node.spec_names()


def test_no_claim_is_released_without_the_api_server(
    sweeper: Sweeper, node: Node, api: FakeApi, metrics: PluginMetrics
) -> None:
    api.fail = UnreachableError("down")
    assert sweep(sweeper, 2) == [False, False]
    assert len(node.spec_names()) == 2
    assert metrics.registry.get_sample_value("neuron_dra_plugin_background_errors_total", {"component": "sweep"}) == 2
    consecutive = "neuron_dra_plugin_consecutive_errors"
    assert metrics.registry.get_sample_value(consecutive, {"component": "sweep"}) == 2
    api.fail = None
    assert sweep(sweeper)
    assert metrics.registry.get_sample_value(consecutive, {"component": "sweep"}) == 0


def test_claims_that_a_damaged_checkpoint_lost_are_restored(
    sweeper: Sweeper, preparer: Preparer, node: Node, api: FakeApi, kubelet: KubeletServer
) -> None:
    """No other claim is read: a cluster may have 100,000."""
    kubelet.pods = listed(preparer, 1, 2)
    (node.state_dir / "checkpoint.json").write_bytes(b"garbage")
    (node.cdi_dir / spec_name(1)).write_text("{}")
    (node.cdi_dir / spec_name(2)).unlink()
    api.add_claim(claim_object(3, *devices(3)))
    preparer.recover()
    assert sweep(sweeper) == [True]
    assert set(api.calls) == {"get ns/claim-1", "get ns/claim-2"}
    checkpoint = preparer.checkpoint()
    assert (set(checkpoint.claims), checkpoint.incomplete) == ({uid(1), uid(2)}, False)
    assert node.spec_names() == [spec_name(1), spec_name(2)]


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
    sweeper: Sweeper,
    preparer: Preparer,
    node: Node,
    api: FakeApi,
    kubelet: KubeletServer,
    monkeypatch: pytest.MonkeyPatch,
    second: JsonObject,
) -> None:
    really = api.claim

    async def claim(namespace: str, name: str) -> JsonObject | None:
        if name == "claim-2" and "unreadable" in second:
            raise UnreadableAnswerError("nested too deeply")
        return await really(namespace, name)

    monkeypatch.setattr(api, "claim", claim)
    kubelet.pods = listed(preparer, 1, 2)
    api.add_claim(claim_object(2, *devices(2)) | second)
    lose_everything(node)
    assert sweep(sweeper) == [True]
    claims = preparer.checkpoint().claims
    assert {key: (each.held, bool(each.allocation)) for key, each in claims.items()} == {
        uid(1): ({1}, True),
        uid(2): ({2}, False),
    }


def test_a_running_claim_that_cannot_be_restored_keeps_its_device(
    sweeper: Sweeper, preparer: Preparer, node: Node, kubelet: KubeletServer
) -> None:
    """The device's node may come back, and the claim may be deleted while its pod runs."""
    kubelet.pods = [pod_resources("p", preparer.checkpoint().claims[uid(1)])]
    (node.state_dir / "checkpoint.json").unlink()
    (node.cdi_dir / spec_name(1)).unlink()
    lost = node.dev / "neuron1"
    lost.rename(node.root / "away")
    sweep(sweeper)
    (node.root / "away").rename(lost)
    with pytest.raises(PrepareError, match="still prepared for ResourceClaim ns/claim-1"):
        preparer.prepare(allocated(3, *devices(1)), node.view())


def test_a_claim_that_was_restored_from_the_kubelet_and_exists_is_not_held(
    sweeper: Sweeper, driver: Driver, preparer: Preparer, node: Node, api: FakeApi, kubelet: KubeletServer
) -> None:
    """The kubelet names its request without the alternative."""
    chosen = result("neuron-device-3", "n0/big")
    preparer.prepare(allocated(3, chosen), node.view())
    kubelet.pods = [pod_resources("p", preparer.checkpoint().claims[uid(3)])]
    api.add_claim(claim_object(3, chosen, config=[config("Partition")]))
    (node.state_dir / "checkpoint.json").unlink()
    (node.cdi_dir / spec_name(3)).unlink()
    sweep(sweeper)
    assert set(preparer.checkpoint().claims) == {uid(1), uid(2), uid(3)}
    assert driver.holds.claims == {}


def test_a_state_that_is_damaged_at_run_time_is_logged_and_counted(
    sweeper: Sweeper, node: Node, metrics: PluginMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    (node.state_dir / "checkpoint.json").write_bytes(b"garbage")
    assert not asyncio.run(sweeper.mend())
    assert metrics.registry.get_sample_value("neuron_dra_plugin_background_errors_total", {"component": "state"}) == 1
    assert "state damaged" in caplog.messages


def test_claims_that_cannot_be_restored_are_logged(
    sweeper: Sweeper,
    preparer: Preparer,
    node: Node,
    api: FakeApi,
    kubelet: KubeletServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = dataclasses.replace(preparer.checkpoint().claims[uid(1)], uid=uid(3), name="claim-3")
    kubelet.pods = [pod_resources("p", refused)]
    (node.state_dir / "checkpoint.json").write_bytes(b"garbage")
    api.add_claim(claim_object(3, *devices(1)))
    preparer.recover()
    sweep(sweeper)
    assert set(preparer.checkpoint().claims) == {uid(1), uid(2)}, "the kubelet's word does not overrule the refusal"
    errors = [getattr(record, "error", "") for record in caplog.records]
    assert any(error.startswith("Claim ns/claim-3 cannot be restored: Device neuron-device-1") for error in errors)


def test_claims_are_restored_from_api_server_and_kubelet_without_any_state(
    sweeper: Sweeper, driver: Driver, preparer: Preparer, node: Node, api: FakeApi, kubelet: KubeletServer
) -> None:
    """The kubelet also knows the claims whose objects are gone: their devices are in use."""
    kubelet.pods = [pod_resources(f"p-{number}", preparer.checkpoint().claims[uid(number)]) for number in (1, 2)]
    api.remove_claim(2)
    (node.state_dir / "checkpoint.json").unlink()
    for name in node.spec_names():
        (node.cdi_dir / name).unlink()
    preparer.recover()
    assert preparer.checkpoint().incomplete
    assert sweep(sweeper) == [True]
    checkpoint = preparer.checkpoint()
    assert not checkpoint.incomplete
    restored = {key: (claim.name, claim.devices) for key, claim in checkpoint.claims.items()}
    assert restored == {
        uid(number): (f"claim-{number}", (PreparedDevice("n0", NODE, f"neuron-device-{number}", (number,)),))
        for number in (1, 2)
    }
    assert node.spec_names() == [spec_name(1), spec_name(2)]
    assert driver.holds.indices == {2}
    assert driver.holds.restoring is False


def test_a_share_that_only_the_kubelet_knows_holds_the_whole_device(
    sweeper: Sweeper, preparer: Preparer, node: Node, kubelet: KubeletServer
) -> None:
    preparer.prepare(allocated(3, share(5, 2, share_id="s-1")), node.view())
    kubelet.pods = [pod_resources("p", preparer.checkpoint().claims[uid(3)])]
    (node.state_dir / "checkpoint.json").unlink()
    (node.cdi_dir / spec_name(3)).unlink()
    preparer.recover()
    sweep(sweeper)
    [device] = preparer.checkpoint().claims[uid(3)].devices
    assert device.share == Share("s-1", None, 1, certain=False)
    with pytest.raises(PrepareError, match="shared with ResourceClaim ns/claim-3"):
        preparer.prepare(allocated(4, share(5, 1)), node.view())


def test_a_claim_whose_cores_are_lost_is_prepared_again_when_its_containers_have_ended(
    sweeper: Sweeper,
    driver: Driver,
    preparer: Preparer,
    node: Node,
    api: FakeApi,
    kubelet: KubeletServer,
    processes: FakeProcesses,
) -> None:
    """Its containers were started with other cores than the driver would choose now."""
    body = claim_object(3, share(5, 2, share_id="s-1"))
    preparer.prepare(allocated(4, share(5, 2)), node.view())
    preparer.prepare(allocated(3, *body["status"]["allocation"]["devices"]["results"]), node.view())
    preparer.unprepare(uid(4))
    kubelet.pods = [pod_resources("p", preparer.checkpoint().claims[uid(3)])]
    (node.state_dir / "checkpoint.json").unlink()
    (node.cdi_dir / spec_name(3)).unlink()
    processes.found = names(3, index=5)
    sweep(sweeper)
    api.add_claim(body)
    assert "the driver lost which of its cores that claim uses" in call(driver, "prepare", 3)
    with pytest.raises(PrepareError, match="the driver lost which of its cores"):
        preparer.prepare(allocated(5, share(5, 2)), node.view())
    processes.found = ()
    assert call(driver, "prepare", 3) == ""
    preparer.prepare(allocated(5, share(5, 2)), node.view())


def test_a_whole_node_that_only_the_kubelet_knows_holds_devices_that_have_vanished(
    tmp_path: Path, sweeper: Sweeper, preparer: Preparer, node: Node, kubelet: KubeletServer
) -> None:
    for number in (1, 2):
        preparer.unprepare(uid(number))
    whole = allocated(3, result("neuron-node"))
    preparer.prepare(whole, node.view())
    kubelet.pods = [pod_resources("p", preparer.checkpoint().claims[uid(3)])]
    (node.state_dir / "checkpoint.json").unlink()
    (node.cdi_dir / spec_name(3)).unlink()
    node.device_directory(7).rename(tmp_path / "away")
    sweep(sweeper)
    (tmp_path / "away").rename(node.device_directory(7))
    with pytest.raises(PrepareError, match="still prepared for ResourceClaim ns/claim-3"):
        preparer.prepare(allocated(4, *devices(7)), node.view())


def test_no_claim_is_prepared_while_the_kubelet_hangs_after_a_lost_state(
    sweeper: Sweeper, driver: Driver, preparer: Preparer, node: Node, api: FakeApi, kubelet: KubeletServer
) -> None:
    (node.state_dir / "checkpoint.json").unlink()
    preparer.recover()
    kubelet.hangs = True
    assert sweep(sweeper) == [False]
    assert (driver.holds.restoring, preparer.checkpoint().incomplete) == (True, True)
    api.add_claim(claim_object(3, *devices(7)))
    answers = asyncio.run(driver.prepare([ClaimReference("ns", "claim-3", uid(3))]))
    assert "Device neuron-device-7 may be in use" in answers[uid(3)].error
    kubelet.hangs = False
    assert sweep(sweeper) == [True]
    answers = asyncio.run(driver.prepare([ClaimReference("ns", "claim-3", uid(3))]))
    assert answers[uid(3)].error == ""


def test_every_device_is_held_while_a_lost_state_cannot_be_restored_for_want_of_the_kubelets_socket(
    sweeper: Sweeper,
    driver: Driver,
    preparer: Preparer,
    node: Node,
    kubelet: KubeletServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (node.state_dir / "checkpoint.json").unlink()
    preparer.recover()
    kubelet.socket.unlink()
    assert sweep(sweeper) == [False]
    assert (driver.holds.restoring, preparer.checkpoint().incomplete) == (True, True)
    [record] = [each for each in caplog.records if each.message == "sweep failed"]
    assert record.error.startswith(f"the kubelet's socket {kubelet.socket} does not exist: ")  # type: ignore[attr-defined]


def test_lost_specs_are_written_again_between_two_sweeps(
    sweeper: Sweeper, node: Node, clock: FakeClock, metrics: PluginMetrics
) -> None:
    before = (node.cdi_dir / spec_name(1)).read_bytes()

    async def scenario() -> None:
        async with working(sweeper.run()):
            await until(lambda: len(clock.slept) >= 1)
            (node.cdi_dir / spec_name(1)).unlink()
            await until(lambda: metrics.registry.get_sample_value("neuron_dra_plugin_restored_specs_total") == 1)

    asyncio.run(scenario())
    assert (node.cdi_dir / spec_name(1)).read_bytes() == before
    assert set(clock.slept) == {10.0}


def test_specs_that_cannot_be_compared_are_counted(
    sweeper: Sweeper, node: Node, metrics: PluginMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_args: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(DiskFiles, "identity", broken)
        assert asyncio.run(sweeper.mend())
    consecutive = "neuron_dra_plugin_consecutive_errors"
    assert metrics.registry.get_sample_value(consecutive, {"component": "specs"}) == 1
    # A sweep that succeeds does not hide it.
    sweep(sweeper)
    assert metrics.registry.get_sample_value(consecutive, {"component": "specs"}) == 1
    assert asyncio.run(sweeper.mend())
    assert metrics.registry.get_sample_value(consecutive, {"component": "specs"}) == 0


def test_sweeps_are_frequent_until_every_claim_is_known(sweeper: Sweeper, api: FakeApi, clock: FakeClock) -> None:
    api.fail = UnreachableError("down")

    async def scenario() -> None:
        async with working(sweeper.run()):
            await until(lambda: len(clock.slept) >= 2)
            api.fail = None
            before = len([call for call in api.calls if call == "get ns/claim-1"])
            await until(lambda: len([call for call in api.calls if call == "get ns/claim-1"]) > before + 1)

    start = clock.time
    asyncio.run(scenario())
    assert clock.slept[:2] == [10.0, 10.0]
    assert clock.time >= start + 300


class UnreadableFirst(FakeApi):
    """The first claim cannot be read."""

    async def claim(self, namespace: str, name: str) -> JsonObject | None:
        if name == "claim-1":
            raise UnreadableAnswerError(f"{namespace}/{name} is stored and cannot be read")
        return await super().claim(namespace, name)


def test_an_unreadable_claim_stays_and_does_not_keep_others(
    driver: Driver, node: Node, clock: FakeClock, metrics: PluginMetrics
) -> None:
    api = UnreadableFirst()
    api.add_claim(claim_object(1, *devices(1)))
    driver.objects = api
    sweeper = Sweeper(driver, 300.0, clock=clock, metrics=metrics, jitter=middle)
    assert sweep(sweeper, 2) == [True, True]
    assert node.spec_names() == [spec_name(1)]


# --- claims that are gone, and in use -------------------------------------------------------------------------


def test_a_claim_that_a_pod_still_uses_is_kept_until_the_kubelet_unprepares_it(
    sweeper: Sweeper, driver: Driver, preparer: Preparer, node: Node, api: FakeApi, kubelet: KubeletServer
) -> None:
    kubelet.pods = [pod_resources("p", preparer.checkpoint().claims[uid(1)])]
    api.remove_claim(1)
    sweep(sweeper, 5)
    assert node.spec_names() == [spec_name(1), spec_name(2)]
    [hold] = driver.holds.claims.values()
    assert (hold.why, driver.holds.indices) == ("the kubelet reports that pod ns/p uses it", {1})
    answer = asyncio.run(driver.unprepare([ClaimReference("ns", "claim-1", uid(1))]))
    assert answer[uid(1)].error == ""
    assert (driver.holds.claims, node.spec_names()) == ({}, [spec_name(2)])


def test_a_claim_that_is_unprepared_while_it_is_looked_for_is_not_held(
    sweeper: Sweeper, driver: Driver, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def claim(_namespace: str, name: str) -> JsonObject | None:
        await driver.unprepare([ClaimReference("ns", name, uid(1))])
        return None if name == "claim-1" else claim_object(2, *devices(2))

    monkeypatch.setattr(api, "claim", claim)
    sweep(sweeper)
    assert driver.holds.claims == {}


def test_a_claim_that_a_pod_no_longer_uses_is_released_by_the_next_sweep(
    sweeper: Sweeper, driver: Driver, preparer: Preparer, node: Node, api: FakeApi, kubelet: KubeletServer
) -> None:
    kubelet.pods = [pod_resources("p", preparer.checkpoint().claims[uid(1)])]
    api.remove_claim(1)
    sweep(sweeper, 3)
    kubelet.pods = []
    sweep(sweeper)
    assert (driver.holds.claims, node.spec_names()) == ({}, [spec_name(2)])


def test_pods_of_other_claims_keep_no_claim(
    sweeper: Sweeper, preparer: Preparer, node: Node, api: FakeApi, kubelet: KubeletServer
) -> None:
    kubelet.pods = [pod_resources("p", preparer.checkpoint().claims[uid(2)])]
    api.remove_claim(1)
    sweep(sweeper, 2)
    assert node.spec_names() == [spec_name(2)]


def test_a_kubelet_that_hangs_keeps_every_claim(
    sweeper: Sweeper, driver: Driver, node: Node, api: FakeApi, kubelet: KubeletServer
) -> None:
    kubelet.hangs = True
    api.remove_claim(1)
    assert sweep(sweeper, 3) == [True] * 3
    assert node.spec_names() == [spec_name(1), spec_name(2)]
    [hold] = driver.holds.claims.values()
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
def test_a_claim_whose_devices_a_process_uses_or_may_use_is_kept(
    sweeper: Sweeper, driver: Driver, node: Node, api: FakeApi, processes: FakeProcesses, name: str
) -> None:
    """The kubelet does not list pods that it is stopping."""
    processes.found, why = KEPT[name]
    api.remove_claim(1)
    sweep(sweeper, 3)
    assert node.spec_names() == [spec_name(1), spec_name(2)]
    [hold] = driver.holds.claims.values()
    assert hold.why == why


def test_devices_that_a_claim_had_before_are_held_until_nothing_uses_them(
    sweeper: Sweeper, driver: Driver, preparer: Preparer, node: Node, api: FakeApi, processes: FakeProcesses
) -> None:
    """A pod of the claim, which was deleted by force, runs on."""
    api.add_claim(claim_object(1, *devices(5)))
    preparer.prepare(allocated(1, *devices(5)), node.view())
    processes.found = use("pod-gone", 1, OLD)
    sweep(sweeper, 3)
    assert driver.holds.indices == {1}
    processes.found = ()
    sweep(sweeper)
    assert (driver.holds.indices, set(preparer.checkpoint().claims)) == (set(), {uid(1), uid(2)})


def test_a_claim_that_is_released_leaves_the_devices_that_it_had_before(
    sweeper: Sweeper, driver: Driver, preparer: Preparer, node: Node, api: FakeApi, processes: FakeProcesses
) -> None:
    preparer.prepare(allocated(1, *devices(5)), node.view())
    api.remove_claim(1)
    processes.found = use("pod-gone", 1, OLD)
    sweep(sweeper, 2)
    assert driver.holds.indices == {1, 5}, "a container names the claim"
    answer = asyncio.run(driver.unprepare([ClaimReference("ns", "claim-1", uid(1))]))
    assert answer[uid(1)].error == ""
    assert (driver.holds.indices, set(preparer.checkpoint().claims)) == ({1, 5}, {uid_before(uid(1)), uid(2)})
    processes.found = ()
    asyncio.run(sweeper._release_ended())
    assert (driver.holds.claims, set(preparer.checkpoint().claims)) == ({}, {uid(2)})


def test_a_claim_that_was_made_again_explains_no_use_of_the_old_ones_devices(
    sweeper: Sweeper, node: Node, api: FakeApi, processes: FakeProcesses
) -> None:
    body = claim_object(1, *devices(5))
    body["metadata"]["uid"] = uid(9)
    api.add_claim(body)
    processes.found = use("pod-uid", 1, OLD)
    sweep(sweeper, 3)
    assert node.spec_names() == [spec_name(1), spec_name(2)]


@pytest.mark.parametrize(
    "found",
    [use("pod-uid", 1, ClaimFile(uid(3), "all", 3)), use("elsewhere", 1)],
    ids=["looks at it", "names no claim"],
)
def test_processes_that_use_devices_for_claims_that_exist_keep_no_other(
    sweeper: Sweeper,
    preparer: Preparer,
    node: Node,
    api: FakeApi,
    processes: FakeProcesses,
    found: tuple[ProcessUse, ...],
) -> None:
    """A monitoring pod with adminAccess has every device open."""
    look = result("neuron-device-1", "all", adminAccess=True)
    preparer.prepare(allocated(3, look), node.view())
    api.add_claim(claim_object(3, look))
    processes.found = found
    api.remove_claim(1)
    sweep(sweeper, 2)
    assert node.spec_names() == [spec_name(2), spec_name(3)]


def test_every_device_is_held_until_a_first_sweep_has_succeeded(sweeper: Sweeper, driver: Driver, api: FakeApi) -> None:
    driver.holds.restore(restoring=True)
    api.fail = StatusError(503, "down")
    assert sweep(sweeper) == [False]
    assert asyncio.run(sweeper.mend())
    assert driver.holds.restoring
    api.fail = None
    assert sweep(sweeper) == [True]
    assert not driver.holds.restoring


def test_devices_are_held_from_the_first_sweep_on(sweeper: Sweeper, driver: Driver, api: FakeApi) -> None:
    api.remove_claim(1)
    sweep(sweeper)
    [hold] = driver.holds.claims.values()
    assert (hold.known, hold.why) == (None, "nothing is known to use it, and it is released at the next search")
    api.add_claim(claim_object(1, *devices(1)))
    sweep(sweeper)
    assert driver.holds.claims == {}


def test_a_refused_claim_names_the_holder_of_the_device(
    sweeper: Sweeper, driver: Driver, preparer: Preparer, api: FakeApi, kubelet: KubeletServer
) -> None:
    kubelet.pods = [pod_resources("p", preparer.checkpoint().claims[uid(1)])]
    api.add_claim(claim_object(3, *devices(1)))
    api.remove_claim(1)
    messages = []
    for _ in range(2):
        answers = asyncio.run(driver.prepare([ClaimReference("ns", "claim-3", uid(3))]))
        messages.append(answers[uid(3)].error)
        sweep(sweeper)
    assert messages[0].startswith("Device neuron-device-1 is still prepared for ResourceClaim ns/claim-1")
    why = " That ResourceClaim no longer exists: the kubelet reports that pod ns/p uses it."
    assert messages[1] == messages[0] + why
    assert driver.refusals == 2


def test_a_refused_claim_causes_an_early_sweep(
    sweeper: Sweeper, driver: Driver, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[tuple[float, bool]] = []

    async def sweep(*, release: bool = True) -> bool:
        looks.append((clock.time - 1_000_000, release))
        if looks[-1] == (0, True):
            asyncio.get_running_loop().call_soon(refuse)
        return True

    def refuse() -> None:
        driver.refusals += 1

    monkeypatch.setattr(sweeper, "sweep", sweep)

    async def scenario() -> None:
        async with working(sweeper.run()):
            await until(lambda: len(looks) >= 3)

    asyncio.run(scenario())
    assert looks[:3] == [(0, True), (10, False), (300, True)]


def test_a_sweep_that_failed_is_repeated_soon(
    sweeper: Sweeper, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[float] = []

    async def sweep(*, release: bool = True) -> bool:
        assert release
        begun.append(clock.time - 1_000_000)
        return len(begun) > 1

    monkeypatch.setattr(sweeper, "sweep", sweep)

    async def scenario() -> None:
        async with working(sweeper.run()):
            await until(lambda: len(begun) >= 3)

    asyncio.run(scenario())
    assert begun[:3] == [0, 10, 310]


def test_nodes_that_start_together_do_not_sweep_together(driver: Driver, metrics: PluginMetrics) -> None:
    def second_sweep(seed: int) -> float:
        clock, begun = FakeClock(), []
        jitter = random.Random(seed).uniform  # noqa: S311 - a test
        sweeper = Sweeper(driver, 300.0, clock=clock, metrics=metrics, jitter=jitter)

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


def test_a_sweep_without_release_releases_no_claim(sweeper: Sweeper, node: Node, api: FakeApi) -> None:
    api.remove_claim(1)
    assert asyncio.run(sweeper.sweep(release=False))
    assert asyncio.run(sweeper.sweep(release=False))
    sweep(sweeper)
    assert node.spec_names() == [spec_name(1), spec_name(2)]
    sweep(sweeper)
    assert node.spec_names() == [spec_name(2)]


# --- claims that have ended, and whose containers run on ---------------------------------------------------------


def names(number: int, *, index: int = 1, preparation: int = 1, **environment: str) -> tuple[ProcessUse, ...]:
    """A container that names a claim."""
    files = frozenset({ClaimFile(uid(number), "n0", preparation)})
    return (ProcessUse(1005, "train", "pod-hung", files, frozenset({index}), environment=environment),)


def call(driver: Driver, operation: str, number: int) -> str:
    reference = ClaimReference("ns", f"claim-{number}", uid(number))
    return asyncio.run(getattr(driver, operation)([reference]))[uid(number)].error  # type: ignore[no-any-return]


@pytest.mark.parametrize("wanting", ["another claim", "the same claim"])
def test_a_device_whose_container_hangs_is_given_to_nobody_after_the_kubelet_unprepared_it(
    sweeper: Sweeper, driver: Driver, node: Node, api: FakeApi, processes: FakeProcesses, wanting: str
) -> None:
    """The pod was deleted by force; the kubelet gives up, although the runtime does not stop the container."""
    processes.found = names(1)
    api.remove_claim(1)
    assert call(driver, "unprepare", 1) == ""
    assert node.spec_names() == [spec_name(2)], "no container starts with the device"
    assert driver.holds.indices == {1}, "at once"
    number = 3 if wanting == "another claim" else 1
    api.add_claim(claim_object(number, *devices(1)))
    error = call(driver, "prepare", number)
    assert error.startswith(f"Device neuron-device-1 is still prepared for ResourceClaim ns/claim-1 (UID {uid(1)})")
    assert error.endswith(
        " That ResourceClaim has ended: process 1005 (train) of pod pod-hung is in a container of the claim."
    )
    sweep(sweeper, 3)
    assert driver.holds.indices == {1}
    processes.found = ()
    assert call(driver, "prepare", number) == "", "the kubelet need not wait for a sweep"
    assert driver.holds.claims == {}
    assert spec_name(number) in node.spec_names()


def test_a_look_that_does_not_end_holds_the_device_until_there_is_an_answer(
    sweeper: Sweeper, driver: Driver, node: Node, processes: FakeProcesses
) -> None:
    processes.found = UsageUnknownError("too slow")
    assert call(driver, "unprepare", 1) == ""
    [hold] = driver.holds.claims.values()
    assert (hold.why, hold.known) == (
        "it is not known whether a pod uses it: too slow",
        False,
    )
    processes.found = ()
    asyncio.run(sweeper._release_ended())
    assert (driver.holds.claims, node.spec_names()) == ({}, [spec_name(2)])


def test_a_driver_that_may_not_see_processes_takes_the_kubelets_word(
    driver: Driver, preparer: Preparer, processes: FakeProcesses
) -> None:
    processes.found = NoProcessesError("no /proc")
    assert call(driver, "unprepare", 1) == ""
    assert (driver.holds.claims, set(preparer.checkpoint().claims)) == ({}, {uid(2)})


def test_a_call_that_the_next_preparation_overtook_changes_nothing(
    driver: Driver, preparer: Preparer, node: Node, processes: FakeProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet gave up waiting for it, and prepares the claim for the next pod."""

    def scan(**_: object) -> tuple[ProcessUse, ...]:
        preparer.prepare(allocated(1, *devices(1)), node.view())
        return ()

    monkeypatch.setattr(processes, "scan", scan)
    assert call(driver, "unprepare", 1) == ""
    assert spec_name(1) in node.spec_names()


# --- lost state ------------------------------------------------------------------------------------------------


@pytest.fixture
def shared(preparer: Preparer, node: Node, api: FakeApi, sweeper: Sweeper) -> dict[int, tuple[int, ...] | None]:
    """Claims with 2 of the 8 cores of a device each, of which the first has ended; and their cores."""
    for number in (3, 4, 5, 6):
        body = claim_object(number, share(5, 2, share_id=f"s{number}"))
        api.add_claim(body)
        preparer.prepare(allocated(number, *body["status"]["allocation"]["devices"]["results"]), node.view())
    api.remove_claim(3)
    preparer.unprepare(uid(3))
    return cores_of(preparer)


def cores_of(preparer: Preparer) -> dict[int, tuple[int, ...] | None]:
    claims = preparer.checkpoint().claims
    return {number: claims[uid(number)].devices[0].cores for number in (4, 5, 6) if uid(number) in claims}


def lose_everything(node: Node) -> None:
    (node.state_dir / "checkpoint.json").unlink()
    for name in node.spec_names():
        (node.cdi_dir / name).unlink()


def entry(preparer: Preparer, number: int) -> JsonObject:
    """What the driver writes to `status.devices`."""
    claim = preparer.checkpoint().claims[uid(number)]
    data = {"deviceIds": [5], "environment": claim.environment["n0"]}
    return {
        "driver": "neuron.aws.com",
        "pool": NODE,
        "device": "neuron-device-5",
        "shareID": f"s{number}",
        "data": data,
    }


@pytest.mark.parametrize("source", ["status", "containers", "both, and a forged status"])
def test_shares_get_their_own_cores_back_from_a_second_copy(
    sweeper: Sweeper,
    preparer: Preparer,
    node: Node,
    api: FakeApi,
    processes: FakeProcesses,
    shared: dict[int, tuple[int, ...] | None],
    kubelet: KubeletServer,
    source: str,
) -> None:
    kubelet.pods = listed(preparer, *shared)
    specs = {number: (node.cdi_dir / spec_name(number)).read_bytes() for number in shared}
    claims = preparer.checkpoint().claims
    for number in shared:
        status = api.claim_objects[f"ns/claim-{number}"]["status"]
        if source != "containers":
            status["devices"] = [
                {"driver": "other", "pool": NODE, "device": "neuron-device-5"},
                entry(preparer, number),
            ]
        if source == "both, and a forged status":
            status["devices"][-1]["data"] = {"environment": {"NEURON_RT_VISIBLE_CORES": "20-21"}}
        if source != "status":
            claim = claims[uid(number)]
            processes.found = (
                *processes.found,  # type: ignore[misc]
                *names(number, index=5, preparation=claim.number, **claim.environment["n0"]),
            )
    lose_everything(node)
    sweep(sweeper)
    assert cores_of(preparer) == shared
    assert all(
        device.share.certain
        for claim in preparer.checkpoint().claims.values()
        for device in claim.devices
        if device.share
    )
    environment = {number: claims[uid(number)].environment for number in shared}
    assert {n: preparer.checkpoint().claims[uid(n)].environment for n in shared} == environment
    if source == "containers":
        assert {number: (node.cdi_dir / spec_name(number)).exists() for number in specs} == dict.fromkeys(specs, True)


@pytest.mark.parametrize(
    "status",
    [
        [{"driver": "neuron.aws.com"}],
        [{"driver": "neuron.aws.com", "pool": NODE, "device": "neuron-device-5", "shareID": "s4", "data": 7}],
        [
            {
                "driver": "neuron.aws.com",
                "pool": NODE,
                "device": "neuron-device-5",
                "shareID": "s4",
                "data": {"environment": {"NEURON_RT_VISIBLE_CORES": ["5"]}},
            }
        ],
        [
            {
                "driver": "neuron.aws.com",
                "pool": NODE,
                "device": "neuron-device-5",
                "shareID": "s4",
                "data": {"environment": {"NEURON_RT_VISIBLE_CORES": "0-1"}},
            }
        ],
    ],
    ids=["no device", "data of another form", "no text", "cores of other devices"],
)
def test_a_status_of_another_form_tells_nothing(
    sweeper: Sweeper,
    preparer: Preparer,
    node: Node,
    api: FakeApi,
    kubelet: KubeletServer,
    shared: dict[int, tuple[int, ...] | None],
    status: Any,
) -> None:
    """The claim holds all cores, beside those of claims whose cores are told."""
    kubelet.pods = listed(preparer, *shared)
    for number in (5, 6):
        api.claim_objects[f"ns/claim-{number}"]["status"]["devices"] = [entry(preparer, number)]
    api.claim_objects["ns/claim-4"]["status"]["devices"] = status
    lose_everything(node)
    assert sweep(sweeper) == [True]
    assert cores_of(preparer) == shared | {4: None}
    with pytest.raises(PrepareError, match="the driver lost which of its cores"):
        preparer.prepare(allocated(7, share(5, 2)), node.view())


def test_devices_of_a_container_whose_claim_is_gone_are_held_after_a_lost_state(
    sweeper: Sweeper,
    driver: Driver,
    preparer: Preparer,
    node: Node,
    api: FakeApi,
    kubelet: KubeletServer,
    processes: FakeProcesses,
) -> None:
    kubelet.pods = listed(preparer, 2)
    api.remove_claim(1)
    processes.found = names(1)
    lose_everything(node)
    sweep(sweeper)
    assert (driver.holds.indices, node.spec_names()) == ({1}, [spec_name(2)])
    api.add_claim(claim_object(3, *devices(1)))
    assert "process 1005 (train) of pod pod-hung" in call(driver, "prepare", 3)
    processes.found = (dataclasses.replace(names(1)[0], indices=frozenset()),)
    sweep(sweeper)
    assert driver.holds.indices == {1}
    processes.found = ()
    assert call(driver, "prepare", 3) == ""


def test_a_container_whose_devices_cannot_be_seen_may_have_all(
    sweeper: Sweeper, driver: Driver, node: Node, api: FakeApi, processes: FakeProcesses
) -> None:
    api.remove_claim(1)
    processes.found = (dataclasses.replace(names(1)[0], indices=frozenset()),)
    lose_everything(node)
    sweep(sweeper)
    assert driver.holds.indices == set(range(16))


def test_the_next_preparation_has_a_number_that_no_container_names(
    sweeper: Sweeper, driver: Driver, preparer: Preparer, node: Node, api: FakeApi, processes: FakeProcesses
) -> None:
    processes.found = names(9, index=7, preparation=40)
    lose_everything(node)
    sweep(sweeper)
    api.add_claim(claim_object(3, *devices(4)))
    assert call(driver, "prepare", 3) == ""
    assert preparer.checkpoint().claims[uid(3)].number > 40
