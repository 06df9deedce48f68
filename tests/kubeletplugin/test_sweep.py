"""Claims that are gone are released after a while, and lost ones are asked for."""

import asyncio
from collections.abc import Iterator

import pytest

from kubeletplugin.driver import Driver, NodeClaims
from kubeletplugin.metrics import Metrics
from kubeletplugin.ports import JsonObject, KubeError, UnreadableObjectError
from kubeletplugin.prepare import Preparer
from kubeletplugin.sweep import Sweeper
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
)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def preparer(node: Node) -> Preparer:
    """Two prepared claims."""
    preparer = node.preparer()
    for number in (1, 2):
        preparer.prepare(allocated(number, *devices(number)), node.view())
    return preparer


@pytest.fixture
def sweeper(preparer: Preparer, node: Node, api: FakeApi, clock: FakeClock, metrics: Metrics) -> Iterator[Sweeper]:
    for number in (1, 2):
        api.add_claim(claim_object(number, *devices(number)))
    driver = Driver(NodeClaims(preparer, api, node.view, NODE), clock=clock, metrics=metrics)
    yield Sweeper(driver, NodeClaims(preparer, api, node.view, NODE), 300.0, clock=clock, metrics=metrics)
    driver.close()


def sweep(sweeper: Sweeper, times: int = 1) -> list[bool]:
    return [asyncio.run(sweeper.sweep()) for _ in range(times)]


def test_claims_that_exist_stay(sweeper: Sweeper, node: Node) -> None:
    assert sweep(sweeper, 3) == [True] * 3
    assert node.spec_names() == [spec_name(1), spec_name(2)]


def test_a_claim_that_is_gone_twice_in_a_row_is_released(
    sweeper: Sweeper, node: Node, api: FakeApi, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    api.remove_claim(1)
    sweep(sweeper)
    assert node.spec_names() == [spec_name(1), spec_name(2)]
    sweep(sweeper)
    assert node.spec_names() == [spec_name(2)]
    assert metrics.registry.get_sample_value("neuron_dra_plugin_prepared_claims") == 1
    [record] = caplog.records
    assert record.claim == f"ns/claim-1 (UID {uid(1)})"  # type: ignore[attr-defined]


def test_a_claim_that_comes_back_is_not_released(sweeper: Sweeper, node: Node, api: FakeApi) -> None:
    api.remove_claim(1)
    sweep(sweeper)
    api.add_claim(claim_object(1, *devices(1)))
    sweep(sweeper)
    api.remove_claim(1)
    sweep(sweeper)
    assert spec_name(1) in node.spec_names()


@pytest.mark.parametrize("how", ["other-uid", "not-allocated"])
def test_a_claim_that_is_another_one_now_counts_as_gone(sweeper: Sweeper, node: Node, api: FakeApi, how: str) -> None:
    body = claim_object(1, *devices(1)) if how == "other-uid" else claim_object(1)
    if how == "other-uid":
        body["metadata"]["uid"] = uid(9)
    api.add_claim(body)
    sweep(sweeper, 2)
    assert node.spec_names() == [spec_name(2)]


@pytest.mark.parametrize(
    "now",
    [result("neuron-device-1", pool="node-2"), result("neuron-device-9"), result("gpu-0", driver="gpu.example.com")],
    ids=["other-node", "other-device", "other-driver"],
)
def test_a_claim_that_was_allocated_anew_elsewhere_counts_as_gone(
    sweeper: Sweeper, node: Node, api: FakeApi, now: JsonObject
) -> None:
    api.add_claim(claim_object(1, now))
    sweep(sweeper)
    assert node.spec_names() == [spec_name(1), spec_name(2)]
    sweep(sweeper)
    assert node.spec_names() == [spec_name(2)]


def test_a_claim_with_another_share_of_the_same_device_counts_as_gone(
    sweeper: Sweeper, preparer: Preparer, node: Node, api: FakeApi
) -> None:
    for number in (3, 4):
        preparer.prepare(allocated(number, share(number, 2, share_id="first")), node.view())
        api.add_claim(claim_object(number, share(number, 2, share_id="first" if number == 3 else "second")))
    sweep(sweeper, 2)
    assert set(preparer.checkpoint().claims) == {uid(1), uid(2), uid(3)}


def test_a_share_that_an_older_driver_wrote_as_a_whole_device_stays(
    sweeper: Sweeper, preparer: Preparer, node: Node, api: FakeApi
) -> None:
    preparer.prepare(allocated(3, *devices(3)), node.view())
    api.add_claim(claim_object(3, share(3, 2)))
    sweep(sweeper, 2)
    assert uid(3) in preparer.checkpoint().claims


def test_a_claim_whose_config_is_not_understood_stays(sweeper: Sweeper, node: Node, api: FakeApi) -> None:
    """A newer driver may have prepared it; its devices are in use."""
    api.add_claim(claim_object(1, *devices(1), config=[config("Partition")]))
    sweep(sweeper, 3)
    assert node.spec_names() == [spec_name(1), spec_name(2)]


def test_a_claim_that_is_prepared_anew_meanwhile_is_not_released(
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


def test_without_the_api_server_nothing_is_released(
    sweeper: Sweeper, node: Node, api: FakeApi, metrics: Metrics
) -> None:
    api.fail = KubeError("down")
    assert sweep(sweeper, 2) == [False, False]
    assert len(node.spec_names()) == 2
    assert metrics.registry.get_sample_value("neuron_dra_plugin_background_errors_total", {"component": "sweep"}) == 2


def test_what_a_damaged_checkpoint_lost_is_restored(
    sweeper: Sweeper, preparer: Preparer, node: Node, api: FakeApi
) -> None:
    (node.state_dir / "checkpoint.json").write_bytes(b"garbage")
    (node.cdi_dir / spec_name(1)).write_text("{}")
    (node.cdi_dir / spec_name(2)).unlink()
    api.add_claim(claim_object(3, *devices(3), reserved=False))
    api.add_claim(claim_object(4, *devices(4)) | {"status": {}})
    elsewhere = claim_object(5, *devices(5))
    elsewhere["status"]["allocation"]["devices"]["results"][0]["pool"] = "node-2"
    api.add_claim(elsewhere)
    preparer.recover()
    assert sweep(sweeper) == [True]
    checkpoint = preparer.checkpoint()
    assert (set(checkpoint.claims), checkpoint.incomplete) == ({uid(1), uid(2)}, False)
    assert node.spec_names() == [spec_name(1), spec_name(2)]


def test_what_cannot_be_restored_is_said(
    sweeper: Sweeper, preparer: Preparer, node: Node, api: FakeApi, caplog: pytest.LogCaptureFixture
) -> None:
    (node.state_dir / "checkpoint.json").write_bytes(b"garbage")
    api.add_claim(claim_object(3, *devices(1)))
    preparer.recover()
    sweep(sweeper)
    errors = [getattr(record, "error", "") for record in caplog.records]
    assert any(error.startswith("Claim ns/claim-3 cannot be restored: Device neuron-device-1") for error in errors)


def test_it_sweeps_often_until_everything_is_known(sweeper: Sweeper, api: FakeApi, clock: FakeClock) -> None:
    api.fail = KubeError("down")

    async def scenario() -> None:
        task = asyncio.create_task(sweeper.run())
        await until(lambda: len(clock.slept) >= 2)
        api.fail = None
        await until(lambda: 300.0 in clock.slept)
        task.cancel()

    asyncio.run(scenario())
    assert clock.slept[:2] == [10.0, 10.0]


class UnreadableFirst(FakeApi):
    """The first claim cannot be read."""

    async def claim(self, namespace: str, name: str) -> JsonObject | None:
        if name == "claim-1":
            raise UnreadableObjectError(f"{namespace}/{name} is stored and cannot be read")
        return await super().claim(namespace, name)


def test_a_claim_that_cannot_be_read_stays_and_keeps_no_other(
    preparer: Preparer, node: Node, clock: FakeClock, metrics: Metrics
) -> None:
    api = UnreadableFirst()
    api.add_claim(claim_object(1, *devices(1)))
    driver = Driver(NodeClaims(preparer, api, node.view, NODE), clock=clock, metrics=metrics)
    sweeper = Sweeper(driver, NodeClaims(preparer, api, node.view, NODE), 300.0, clock=clock, metrics=metrics)
    assert sweep(sweeper, 2) == [True, True]
    assert node.spec_names() == [spec_name(1)]
    driver.close()
