"""The kubelet's calls: every claim is answered for, and a slow API server is asked again in time."""

import asyncio
import dataclasses
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.discover.sysfs import UltraServer
from kubeletplugin.files import DiskFiles
from kubeletplugin.metrics import PluginMetrics
from kubeletplugin.ports import WAITS, JsonObject
from kubeletplugin.prepare.decide import NodeView
from kubeletplugin.prepare.driver import ClaimReference, Driver, PrepareResult
from neuron.api.allocation import AllocatedClaim, read_allocation
from runtime.api_server import ApiServerError, StatusError, UnreachableError, UnreadableAnswerError
from tests.kubeletplugin.fakes import (
    NODE,
    FakeApi,
    FakeClock,
    FakeUsage,
    Node,
    claim_object,
    config,
    devices,
    result,
    spec_name,
    uid,
)
from tests.support.timing import assert_below

DOWN = UnreachableError("cannot connect to https://10.0.0.1: Connection refused")


@pytest.fixture
def metrics() -> PluginMetrics:
    return PluginMetrics()


@pytest.fixture
def driver(node: Node, api: FakeApi, clock: FakeClock, metrics: PluginMetrics) -> Iterator[Driver]:
    driver = Driver(node.preparer(), api, node.view, NODE, FakeUsage(), clock=clock, metrics=metrics)
    yield driver
    driver.close()


def reference(number: int) -> ClaimReference:
    return ClaimReference("ns", f"claim-{number}", uid(number))


def prepare(driver: Driver, *numbers: int, budget: float = 40.0) -> dict[str, PrepareResult]:
    return asyncio.run(driver.prepare([reference(number) for number in numbers], budget))


def unprepare(driver: Driver, *numbers: int) -> dict[str, PrepareResult]:
    return asyncio.run(driver.unprepare([reference(number) for number in numbers]))


def sample(metrics: PluginMetrics, name: str, **labels: str) -> float:
    value = metrics.registry.get_sample_value(f"neuron_dra_plugin_{name}", labels)
    assert value is not None
    return value


def test_a_call_without_claims_sends_no_request(driver: Driver, api: FakeApi) -> None:
    assert prepare(driver) == unprepare(driver) == {}
    assert api.calls == []


def test_claims_are_fetched_prepared_and_counted(
    driver: Driver, api: FakeApi, metrics: PluginMetrics, node: Node
) -> None:
    api.add_claim(claim_object(1, *devices(0, 1)))
    api.add_claim(claim_object(2, *devices(2)))
    outcomes = prepare(driver, 1, 2)
    assert [answer.device for answer in outcomes[uid(1)].devices] == ["neuron-device-0", "neuron-device-1"]
    assert outcomes[uid(2)].error == ""
    assert sample(metrics, "claims_total", operation="prepare", result="success") == 2
    assert sample(metrics, "claim_duration_seconds_count", operation="prepare") == 2
    assert (sample(metrics, "prepared_claims"), sample(metrics, "prepared_devices")) == (2, 3)
    assert unprepare(driver, 1, 2) == {uid(1): PrepareResult(), uid(2): PrepareResult()}
    assert sample(metrics, "claims_total", operation="unprepare", result="success") == 2
    assert sample(metrics, "prepared_devices") == 0
    assert node.spec_names() == []


def test_a_claim_named_twice_is_prepared_once(driver: Driver, api: FakeApi) -> None:
    api.add_claim(claim_object(1, *devices(0)))
    assert len(prepare(driver, 1, 1)[uid(1)].devices) == 1


def test_an_unexpected_error_of_one_claim_does_not_affect_the_others(
    driver: Driver, api: FakeApi, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def read(body: JsonObject, *arguments: Any) -> AllocatedClaim:
        if body["metadata"]["uid"] == uid(1):
            raise KeyError("an error that no code expects")
        return read_allocation(body, *arguments)

    monkeypatch.setattr("kubeletplugin.prepare.driver.read_allocation", read)
    for number in (1, 2):
        api.add_claim(claim_object(number, *devices(number)))
    outcomes = prepare(driver, 1, 2)
    assert outcomes[uid(1)].error == "The driver failed unexpectedly (KeyError); its log has the details."
    assert "an error that no code expects" in caplog.text
    assert [answer.device for answer in outcomes[uid(2)].devices] == ["neuron-device-2"]


def without_results(body: JsonObject) -> JsonObject:
    return body | {"status": {}}


BAD: dict[str, tuple[JsonObject | None, str]] = {
    "missing": (None, "ResourceClaim ns/claim-1 does not exist (any more); the kubelet asked for it."),
    "other-uid": (
        claim_object(1, *devices(0)) | {"metadata": {"namespace": "ns", "name": "claim-1", "uid": uid(9)}},
        f"ResourceClaim ns/claim-1 has UID {uid(9)}, not {uid(1)}",
    ),
    "not-allocated": (without_results(claim_object(1)), "ResourceClaim ns/claim-1 is not allocated."),
    "elsewhere": (claim_object(1, result("neuron-device-0", pool="node-2")), "is allocated elsewhere"),
    "unknown-device": (claim_object(1, *devices(99)), "The node does not have the device neuron-device-99"),
    "unknown-kind": (claim_object(1, *devices(0), config=[config("Partition")]), "NEU406"),
    "newer-field": (
        claim_object(1, *devices(0), config=[config("NeuronConfig", logicalNeuronCore=1, turbo=True)]),
        'NEU407: NeuronConfig has no field "turbo".',
    ),
    "malformed": (claim_object(1, {"driver": "neuron.aws.com"}), "Object missing required field `request`"),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_claims_get_their_own_error_and_the_others_are_prepared(
    driver: Driver, api: FakeApi, metrics: PluginMetrics, node: Node, name: str
) -> None:
    body, said = BAD[name]
    if body is not None:
        api.add_claim(body)
    api.add_claim(claim_object(2, *devices(5)))
    outcomes = prepare(driver, 1, 2)
    assert said in outcomes[uid(1)].error
    assert outcomes[uid(1)].devices == ()
    assert [answer.device for answer in outcomes[uid(2)].devices] == ["neuron-device-5"]
    assert sample(metrics, "claims_total", operation="prepare", result="error") == 1
    assert node.spec_names() == [spec_name(2)]


def test_unprepare_needs_no_claim_and_no_api_server(driver: Driver, api: FakeApi, node: Node) -> None:
    api.add_claim(claim_object(1, *devices(0)))
    prepare(driver, 1)
    api.remove_claim(1)
    api.fail = DOWN
    assert unprepare(driver, 1, 7) == {uid(1): PrepareResult(), uid(7): PrepareResult()}
    assert node.spec_names() == []


def failing(times: int, error: ApiServerError, api: FakeApi) -> Callable[[str, str], Awaitable[Any]]:
    really, left = api.claim, [error] * times

    async def claim(namespace: str, name: str) -> Any:
        if left:
            raise left.pop()
        return await really(namespace, name)

    return claim


@pytest.mark.parametrize(
    "error",
    [DOWN, StatusError(429, "busy", "TooManyRequests"), StatusError(503, "oops", "ServiceUnavailable")],
    ids=["no-answer", "overload", "unavailable"],
)
def test_requests_are_retried_until_the_api_server_answers(
    driver: Driver, api: FakeApi, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, error: ApiServerError
) -> None:
    api.add_claim(claim_object(1, *devices(0)))
    monkeypatch.setattr(api, "claim", failing(5, error, api))
    assert prepare(driver, 1)[uid(1)].error == ""
    assert clock.slept == [0.1, 0.2, 0.4, 0.8, 1.6]


@pytest.mark.parametrize(("asked", "pause"), [(7, 7), (60, 0.1)], ids=["within the budget", "beyond it"])
def test_a_pause_that_the_api_server_asks_for_is_kept_if_the_call_has_time(
    driver: Driver, api: FakeApi, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, asked: float, pause: float
) -> None:
    api.add_claim(claim_object(1, *devices(0)))
    monkeypatch.setattr(api, "claim", failing(1, StatusError(429, "busy", "TooManyRequests", retry_after=asked), api))
    assert prepare(driver, 1)[uid(1)].error == ""
    assert clock.slept == [pause]


def test_an_api_server_that_stays_away_is_an_error_within_the_budget(
    driver: Driver, api: FakeApi, clock: FakeClock
) -> None:
    api.fail = DOWN
    start = clock.monotonic()
    outcome = prepare(driver, 1, 2)[uid(1)]
    assert outcome.error == (
        "ResourceClaim ns/claim-1 cannot be read: cannot connect to https://10.0.0.1: Connection refused. The "
        "kubelet tries again by itself."
    )
    assert 30 < clock.monotonic() - start <= 80, "two claims on one clock, each within its 40 s"


def test_a_hanging_request_is_cancelled_at_the_end_of_the_budget(
    driver: Driver, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet gets the cause within its 45 s, however long a request could take."""

    async def hang(*_args: str) -> None:
        await asyncio.sleep(5)

    monkeypatch.setattr(api, "claim", hang)
    start = time.monotonic()
    assert prepare(driver, 1, budget=0.1)[uid(1)].error == (
        "ResourceClaim ns/claim-1 cannot be read: the API server did not answer in the time that a call of the "
        "kubelet has. The kubelet tries again by itself."
    )
    assert_below(time.monotonic() - start, 3)


def test_prepare_waits_for_devices_that_another_claim_holds(
    driver: Driver, api: FakeApi, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleting a pod without grace lets the scheduler be faster than the kubelet."""
    for number in (1, 2):
        api.add_claim(claim_object(number, *devices(0)))
    prepare(driver, 1)
    really = clock.sleep

    async def sleep(seconds: float) -> None:
        await really(seconds)
        if len(clock.slept) == 3:
            await driver.unprepare([reference(1)])

    monkeypatch.setattr(clock, "sleep", sleep)
    outcome = prepare(driver, 2)[uid(2)]
    assert (outcome.error, [answer.device for answer in outcome.devices]) == ("", ["neuron-device-0"])
    assert clock.slept == [0.05, 0.1, 0.2]


def test_devices_that_stay_held_are_an_error_that_names_the_claim(
    driver: Driver, api: FakeApi, clock: FakeClock
) -> None:
    for number in (1, 2):
        api.add_claim(claim_object(number, *devices(0)))
    prepare(driver, 1)
    error = prepare(driver, 2)[uid(2)].error
    assert f"is still prepared for ResourceClaim ns/claim-1 (UID {uid(1)})" in error
    assert 10 < sum(clock.slept) <= 15
    assert prepare(driver, 2, budget=1.0)[uid(2)].error == error
    assert sum(clock.slept) <= 17


def test_ultraserver_files_that_do_not_answer_stop_no_other_claim(
    tmp_path: Path, api: FakeApi, clock: FakeClock, metrics: PluginMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, answers = Node(tmp_path, "trn2u.48xlarge"), threading.Event()

    def hangs() -> UltraServer | None:
        answers.wait(60)
        return node.read_ultraserver()

    def view() -> NodeView:
        return dataclasses.replace(node.view(), read_ultraserver=hangs)

    api.add_claim(claim_object(1, result("neuron-node"), config=[config("UltraServerConfig", ultraserverMode=2)]))
    api.add_claim(claim_object(2, *devices(0)))
    driver = Driver(node.preparer(), api, view, NODE, FakeUsage(), clock=clock, metrics=metrics)

    async def both() -> tuple[dict[str, PrepareResult], dict[str, PrepareResult]]:
        waiting = asyncio.create_task(driver.prepare([reference(1)]))
        async with asyncio.timeout(30):
            others = await driver.prepare([reference(2)])
            await driver.unprepare([reference(2)])
        assert not waiting.done()
        answers.set()
        return others, await waiting

    others, waited = asyncio.run(both())
    assert (others[uid(2)].error, waited[uid(1)].error) == ("", "")
    answers.clear()
    monkeypatch.setattr("kubeletplugin.prepare.driver.WAITS", dataclasses.replace(WAITS, sysfs=0.01))
    # A claim that is prepared is answered for all the same; the kubelet asks again after its start.
    assert prepare(driver, 1)[uid(1)] == waited[uid(1)]
    unprepare(driver, 1)
    assert prepare(driver, 1)[uid(1)].error == (
        "The kernel driver's UltraServer files have not answered for 0.01 s: look into the kernel's log (dmesg) for "
        "lines of the Neuron driver. The kubelet tries again by itself."
    )
    answers.set()
    driver.close()


@pytest.mark.parametrize("ends", [True, False], ids=["that ends", "that hangs"])
def test_a_driver_that_stops_waits_for_a_call_of_the_kubelet(
    driver: Driver, api: FakeApi, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, *, ends: bool
) -> None:
    """The kubelet ends the call when it sees that the driver's registration socket has gone."""
    api.add_claim(claim_object(1, *devices(0)))
    really = api.claim

    async def scenario() -> None:
        answer = asyncio.Event()

        async def claim(namespace: str, name: str) -> JsonObject | None:
            await answer.wait()
            return await really(namespace, name)

        async def sleep(seconds: float) -> None:
            clock.slept.append(seconds)
            clock.time += 0 if ends else seconds
            if ends and len(clock.slept) == 5:
                answer.set()
            await asyncio.sleep(0)

        monkeypatch.setattr(api, "claim", claim)
        monkeypatch.setattr(clock, "sleep", sleep)
        await driver.finish_calls()
        assert clock.slept == [], "none runs"
        call = asyncio.create_task(driver.prepare([reference(1)]))
        await asyncio.sleep(0)
        await driver.finish_calls()
        assert call.done() is ends
        answer.set()
        assert (await call)[uid(1)].error == ""

    asyncio.run(scenario())
    assert ends or sum(clock.slept) == pytest.approx(15, abs=0.1)


def test_a_refused_request_is_not_retried(driver: Driver, api: FakeApi, clock: FakeClock) -> None:
    api.fail = StatusError(403, "no", "Forbidden")
    assert "ResourceClaim ns/claim-1 cannot be read: HTTP 403, 'no'." in prepare(driver, 1)[uid(1)].error
    assert clock.slept == []


def test_an_older_api_version_is_logged(driver: Driver, api: FakeApi, caplog: pytest.LogCaptureFixture) -> None:
    older = config("NeuronConfig", logicalNeuronCore=1)
    older["opaque"]["parameters"]["apiVersion"] = "neuron.aws.com/v1alphav1"
    api.add_claim(claim_object(1, *devices(0), config=[older]))
    assert prepare(driver, 1)[uid(1)].error == ""
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert record.finding.startswith("NEU411")  # type: ignore[attr-defined]


def test_a_cdi_directory_that_cannot_be_written_is_an_error_with_its_path(
    driver: Driver, api: FakeApi, node: Node
) -> None:
    node.cdi_dir.write_text("a file")
    api.add_claim(claim_object(1, *devices(0)))
    error = prepare(driver, 1)[uid(1)].error
    assert error.startswith("The driver's state on the node cannot be written: ")
    assert f"Check free space and write permission of {node.cdi_dir}" in error
    assert error.endswith("; the kubelet tries again by itself.")


def test_a_full_disk_is_an_error_until_there_is_room(
    driver: Driver, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.add_claim(claim_object(1, *devices(0)))

    def full(_self: DiskFiles, path: Any, _data: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(DiskFiles, "write", full)
        assert "No space left on device" in prepare(driver, 1)[uid(1)].error
    assert prepare(driver, 1)[uid(1)].error == ""


def test_damaged_state_is_logged_and_counted(
    driver: Driver, api: FakeApi, node: Node, metrics: PluginMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    api.add_claim(claim_object(1, *devices(0)))
    (node.state_dir / "checkpoint.json").write_bytes(b"garbage")
    assert "the driver still restores which claims are prepared" in prepare(driver, 1)[uid(1)].error
    assert sample(metrics, "background_errors_total", component="state") == 1
    assert any("is damaged" in getattr(record, "problem", "") for record in caplog.records)


def test_claims_that_cannot_be_counted_are_logged(
    driver: Driver, node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_args: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(DiskFiles, "identity", broken)
    assert "Input/output error" in unprepare(driver, 1)[uid(1)].error
    assert "prepared claims cannot be counted" in caplog.messages


class UnreadableFirst(FakeApi):
    """The first claim is stored and no parser takes it."""

    async def claim(self, namespace: str, name: str) -> JsonObject | None:
        if name == "claim-1":
            self.calls.append(name)
            raise UnreadableAnswerError(f"{namespace}/{name} is stored and cannot be read: it is nested too deeply")
        return await super().claim(namespace, name)


def test_a_claim_that_cannot_be_parsed_fails_alone_and_at_once(
    node: Node, clock: FakeClock, metrics: PluginMetrics
) -> None:
    api = UnreadableFirst()
    api.add_claim(claim_object(2, *devices(2)))
    driver = Driver(node.preparer(), api, node.view, NODE, FakeUsage(), clock=clock, metrics=metrics)
    outcomes = prepare(driver, 1, 2)
    driver.close()
    assert "cannot be read: ns/claim-1 is stored and cannot be read: it is nested too deeply" in outcomes[uid(1)].error
    assert [answer.device for answer in outcomes[uid(2)].devices] == ["neuron-device-2"]
    assert api.calls.count("claim-1") == 1
