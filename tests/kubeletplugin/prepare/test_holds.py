"""Devices of claims that no longer exist are kept from new claims, and reported, until they are free."""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.discover.devices import NODE_DEVICE
from kubeletplugin.discover.health import assess
from kubeletplugin.discover.own_node import OwnNode, node_state
from kubeletplugin.metrics import PluginMetrics
from kubeletplugin.node_events import HoldReporter
from kubeletplugin.ports import WAITS, JsonObject
from kubeletplugin.prepare.checkpoint import PreparedClaim, PreparedDevice, uid_before
from kubeletplugin.prepare.usage import Hold, Holds
from kubeletplugin.publish import publisher
from kubeletplugin.publish.offer import offer
from kubeletplugin.publish.slices import ClusterFeatures, desired_slices
from kubeletplugin.settings import DriverSettings
from neuron.hardware.instances import Catalogue
from runtime.api_server import StatusError
from tests.kubeletplugin.fakes import NODE, FakeApi, FakeClock, Node, node_object, prepared_claim, uid, until, working
from tests.kubeletplugin.publish.test_publisher import publishing

TAINT = {"key": "neuron.aws.com/held", "value": "kept", "effect": "NoSchedule"}


def holding_claim(number: int, *indices: int, admin: bool = False) -> PreparedClaim:
    held = tuple(PreparedDevice("n0", NODE, f"neuron-device-{index}", (index,), admin) for index in indices)
    return prepared_claim(number, *held)


def hold(number: int, *indices: int, known: bool = True) -> dict[str, Hold]:
    return {uid(number): Hold(holding_claim(number, *indices), known, "a pod uses it")}


def offered(root: Path, instance_type: str, *held: int, keeps_taints: bool = True) -> dict[str, JsonObject]:
    node = Node(root, instance_type)
    found = assess(node.discover(), Catalogue().get(instance_type))
    state, features = node_state(node_object()), ClusterFeatures()
    made, _ = offer(found, state, DriverSettings(node_name="n"), keeps_taints=keeps_taints, held=held)
    slices = desired_slices(state.facts, made, "1.0.0", features)
    return {device["name"]: device for piece in slices for device in piece.content.get("devices", ())}


@pytest.mark.parametrize("instance_type", ["trn2.48xlarge", "trn2u.48xlarge", "inf2.48xlarge"])
def test_a_held_device_has_a_taint(tmp_path: Path, instance_type: str) -> None:
    devices = offered(tmp_path, instance_type, 3, 5)
    tainted = {name for name, device in devices.items() if TAINT in device.get("taints", ())}
    assert tainted == {"neuron-device-3", "neuron-device-5"} | ({NODE_DEVICE} & devices.keys())


@pytest.mark.parametrize("instance_type", ["trn2.48xlarge", "trn2u.48xlarge", "inf2.48xlarge"])
def test_held_devices_are_not_published_if_the_cluster_has_no_taints(tmp_path: Path, instance_type: str) -> None:
    before = offered(tmp_path, instance_type)
    devices = offered(tmp_path, instance_type, 3, keeps_taints=False)
    assert devices.keys() == before.keys() - {"neuron-device-3", NODE_DEVICE}
    assert {name: device["attributes"] for name, device in devices.items()} == {
        name: before[name]["attributes"] for name in devices
    }


@pytest.mark.parametrize("taints", [True, False])
async def test_slices_follow_the_held_devices(node: Node, api: FakeApi, clock: FakeClock, taints: bool) -> None:
    api.taints = taints

    async with publishing(node, api, clock) as at:
        await at.until(lambda: bool(api.stored))
        await at.settled()
        at.holds.take(hold(1, 4))
        await at.until(lambda: len(at.writes()) == 2)
        [body] = api.stored.values()
        names = [device["name"] for device in body["spec"]["devices"]]
        assert ("neuron-device-4" in names) is taints
        assert at.taints() == ({"neuron-device-4": [TAINT]} if taints else {})
        at.holds.forget(uid(1))
        await at.until(lambda: len(at.writes()) == 3)
        assert (at.taints(), len(next(iter(api.stored.values()))["spec"]["devices"])) == ({}, 16)


@pytest.mark.parametrize("taints", [True, False])
async def test_every_device_is_held_while_claims_may_be_missing(
    node: Node, api: FakeApi, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, taints: bool
) -> None:
    monkeypatch.setattr(publisher, "WAITS", dataclasses.replace(WAITS, restored=0.1))
    api.taints = taints

    async with publishing(node, api, clock, restoring=True) as at:
        await at.until(lambda: bool(api.stored))
        [body] = api.stored.values()
        assert len(body["spec"]["devices"]) == len(at.taints()) == (16 if taints else 0)
        at.holds.restore(restoring=False)
        await at.until(lambda: len(at.writes()) == 2)
        assert (at.taints(), len(next(iter(api.stored.values()))["spec"]["devices"])) == ({}, 16)


async def test_publishing_waits_for_a_quick_restoration(node: Node, api: FakeApi, clock: FakeClock) -> None:
    async with publishing(node, api, clock, restoring=True) as at:
        await asyncio.sleep(0.05)
        assert at.writes() == []
        at.holds.restore(restoring=False)
        await at.until(lambda: bool(api.stored))
        assert at.taints() == {}


@pytest.fixture
def metrics() -> PluginMetrics:
    return PluginMetrics()


@contextlib.asynccontextmanager
async def reporting(api: FakeApi, clock: FakeClock, metrics: PluginMetrics) -> AsyncIterator[Holds]:
    holds = Holds()
    own = OwnNode(api, clock=FakeClock(), metrics=metrics)
    async with working(own.run(), HoldReporter(holds, own, clock=clock, metrics=metrics).run()):
        yield holds


async def test_a_kept_claim_is_reported_when_it_is_kept_and_when_it_is_free(
    api: FakeApi, clock: FakeClock, metrics: PluginMetrics
) -> None:
    def kept(reason: str) -> float | None:
        return metrics.registry.get_sample_value("neuron_dra_plugin_kept_claims", {"reason": reason})

    async with reporting(api, clock, metrics) as holds:
        holds.take({uid(1): Hold(holding_claim(1, 4), None)})
        await until(lambda: metrics.registry.get_sample_value("neuron_dra_plugin_held_devices") == 1)
        assert api.reports == [], "it will be released at the next search"
        holds.take(hold(1, 4, 5, known=False))
        await until(lambda: len(api.reports) == 1)
        assert (kept("unknown"), kept("in-use")) == (1, 0)
        holds.take(hold(1, 4, 5) | hold(2, 6))
        await until(lambda: len(api.reports) == 3)
        assert (kept("unknown"), kept("in-use")) == (0, 2)
        holds.take({uid(1): Hold(holding_claim(1, 4, 5), None)} | hold(2, 6))
        await until(lambda: kept("in-use") == 1)
        assert len(api.reports) == 3, "it is not released before the next search"
        holds.take({})
        await until(lambda: len(api.reports) == 5)
        assert (kept("unknown"), kept("in-use")) == (0, 0)
    first, *_, last = api.reports
    assert (first["type"], first["reason"], last["type"], last["reason"]) == (
        "Warning",
        "DeviceKept",
        "Normal",
        "KeptDeviceFree",
    )
    assert first["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "node-uid"}
    assert first["message"] == (
        f"ResourceClaim ns/claim-1 (UID {uid(1)}) no longer exists, and its devices stay with it (neuron-device-4, "
        "neuron-device-5): a pod uses it. No other claim gets them until no process has them."
    )


async def test_an_event_that_cannot_be_written_is_written_later(
    api: FakeApi, clock: FakeClock, metrics: PluginMetrics
) -> None:
    async with reporting(api, clock, metrics) as holds:
        await until(lambda: "follow node" in api.calls)
        api.fail = StatusError(503, "down")
        holds.take(hold(1, 4))
        await until(lambda: (metrics.background_errors.labels("events")._value.get() or 0) >= 2)
        consecutive = "neuron_dra_plugin_consecutive_errors"
        assert (metrics.registry.get_sample_value(consecutive, {"component": "events"}) or 0) >= 2
        api.fail = None
        await until(lambda: len(api.reports) == 1)
        await until(lambda: metrics.registry.get_sample_value(consecutive, {"component": "events"}) == 0)


async def test_earlier_devices_of_a_claim_are_reported_with_its_uid(
    api: FakeApi, clock: FakeClock, metrics: PluginMetrics
) -> None:
    holds = Holds()
    reporter = HoldReporter(holds, OwnNode(api, clock=clock, metrics=metrics), clock=clock, metrics=metrics)
    before = dataclasses.replace(holding_claim(1, 3), uid=uid_before(uid(1)))

    for kept in ({before.uid: Hold(before, True, "a pod uses it")}, {}):
        holds.take(kept)
        assert await reporter.report()
    assert [each["message"] for each in api.reports] == [
        f"ResourceClaim ns/claim-1 (UID {uid(1)}) has ended, and its devices stay with it"
        " (neuron-device-3): a pod uses it. No other claim gets them until no process has them.",
        f"ResourceClaim ns/claim-1 (UID {uid(1)}), which has ended, was released: neuron-device-3.",
    ]


async def test_a_claim_is_reported_once_each_time_it_is_kept(
    api: FakeApi, clock: FakeClock, metrics: PluginMetrics
) -> None:
    looks = Hold(holding_claim(2, 3, admin=True), True, "a pod uses it")
    holds = Holds()
    reporter = HoldReporter(holds, OwnNode(api, clock=clock, metrics=metrics), clock=clock, metrics=metrics)

    for _ in range(2):
        for kept in ({uid(2): looks}, {}):
            holds.take(kept)
            assert [await reporter.report() for _ in range(2)] == [True, True]
    assert [each["reason"] for each in api.reports] == ["DeviceKept", "KeptDeviceFree"] * 2
    assert api.reports[1]["message"].endswith("was released: no device.")


@pytest.mark.parametrize("failing", [1, 2], ids=["first", "last"])
@pytest.mark.parametrize("freed", [False, True], ids=["kept", "released"])
async def test_one_event_that_cannot_be_written_is_tried_again(
    api: FakeApi,
    clock: FakeClock,
    metrics: PluginMetrics,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    freed: bool,
    failing: int,
) -> None:
    holds = Holds()
    reporter = HoldReporter(holds, OwnNode(api, clock=clock, metrics=metrics), clock=clock, metrics=metrics)
    both = hold(1, 4) | hold(2, 6)
    really = api.report

    async def report(event: Any) -> None:
        if f"claim-{failing} " in event["message"]:
            raise StatusError(503, "down")
        await really(event)

    holds.take(both)
    if freed:
        assert await reporter.report()
        holds.take({})
    caplog.set_level(logging.INFO)
    caplog.clear()
    with monkeypatch.context() as patch:
        patch.setattr(api, "report", report)
        assert not await reporter.report()
    assert await reporter.report()
    assert len(api.reports) == (4 if freed else 2)
    fields = [
        (each.message, getattr(each, "claim", None), getattr(each, "reason", None), getattr(each, "error", None))
        for each in caplog.records
    ]
    said = ("kept claim released", None) if freed else ("claim kept", "a pod uses it")
    told = {number: (said[0], str(holding_claim(number, 0)), said[1], None) for number in (1, 2)}
    again = told[failing]
    assert sorted(fields, key=str) == sorted(
        [*told.values(), ("the event cannot be written", None, None, "HTTP 503, 'down'"), again], key=str
    )


def test_admin_access_holds_no_device() -> None:
    assert holding_claim(1, 3, admin=True).held == frozenset()
