"""A device plugin on the driver's node is reported when it appears and when it leaves."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from kubeletplugin.discover.own_node import OwnNode, node_state
from kubeletplugin.metrics import PluginMetrics
from kubeletplugin.node_events import (
    LEFT,
    OTHER_LEFT,
    REGISTERED,
    StateReporter,
    device_plugin,
    lasting,
    lost_registration,
    node_event,
    other_driver,
)
from kubeletplugin.publish.offer import KubeletGate, OtherDriver
from kubeletplugin.settings import Guard
from tests.kubeletplugin.fakes import NODE, FakeApi, FakeClock, node_object, until, working

HELD = {
    Guard.TAINT: "new claims get none of this driver's devices (taint neuron.aws.com/device-plugin)",
    Guard.WITHHOLD: "this driver publishes no device",
    Guard.OFF: "both may give a device to different pods, because the guard of this driver is off",
}


@pytest.mark.parametrize("guard", HELD)
def test_the_event_names_node_resource_consequence_and_fix(guard: Guard) -> None:
    state = node_state(node_object(neuron="16"))
    body = node_event(state.facts, device_plugin(state, guard), 0.0)
    assert body["message"] == (
        "A device plugin offers this node's Neuron devices (allocatable aws.amazon.com/neuron: 16): "
        f"{HELD[guard]}. Prepared claims go on. Keep the device plugin off the nodes of the DRA driver."
    )
    assert (body["type"], body["reason"]) == ("Warning", "DevicePluginActive")
    assert body["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "node-uid"}
    assert (body["metadata"]["namespace"], body["lastTimestamp"]) == ("default", "1970-01-01T00:00:00Z")


def test_the_name_of_an_event_is_never_too_long() -> None:
    node = node_object(neuron="16")
    node["metadata"]["name"] = "n" * 253
    state = node_state(node)
    body = node_event(state.facts, device_plugin(state, Guard.TAINT), 0.0)
    assert len(body["metadata"]["name"]) == 253


@contextlib.asynccontextmanager
async def reporting(api: FakeApi, clock: FakeClock) -> AsyncIterator[PluginMetrics]:
    metrics = PluginMetrics()
    own = OwnNode(api, clock=FakeClock(), metrics=metrics)
    say = lasting(lambda: device_plugin(own.state, Guard.TAINT))
    gauge = metrics.device_plugin
    reporter = StateReporter(own, say, LEFT, own, gauge=gauge, clock=clock, metrics=metrics)
    async with working(own.run(), reporter.run()):
        yield metrics


def active(metrics: PluginMetrics) -> float | None:
    return metrics.registry.get_sample_value("neuron_dra_plugin_device_plugin_active")


async def test_a_device_plugin_is_reported_once_when_it_appears_and_once_when_it_leaves(
    api: FakeApi, clock: FakeClock
) -> None:
    async with reporting(api, clock) as metrics:
        await until(lambda: "follow node" in api.calls)
        await asyncio.sleep(0.02)
        assert (api.reports, active(metrics)) == ([], 0), "no plugin is no news"
        api.change_node(node_object(neuron="16"))
        await until(lambda: len(api.reports) == 1)
        assert active(metrics) == 1
        api.change_node(node_object(neuron="15"))
        await asyncio.sleep(0.02)
        api.change_node(node_object(neuron="0"))
        await until(lambda: len(api.reports) == 2)
        assert active(metrics) == 0
    assert [(body["type"], body["reason"]) for body in api.reports] == [
        ("Warning", "DevicePluginActive"),
        ("Normal", "DevicePluginGone"),
    ]
    assert api.reports[1]["message"] == (
        "No device plugin offers this node's Neuron devices any more: this driver allocates them."
    )


async def test_a_failed_write_of_an_event_is_retried(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    api = FakeApi(node_object(neuron="16"))
    api.forbidden = {"report"}

    async with reporting(api, clock) as metrics:
        await until(lambda: len(clock.slept) > 3)
        assert active(metrics) == 1
        api.forbidden.clear()
        await until(lambda: bool(api.reports))
    assert clock.slept[:3] == [1, 2, 4]
    assert "the event cannot be written" in caplog.messages


async def test_another_driver_is_reported_when_it_appears_and_when_it_leaves(api: FakeApi, clock: FakeClock) -> None:
    metrics, other = PluginMetrics(), OtherDriver(clock)
    own = OwnNode(api, clock=FakeClock(), metrics=metrics)
    reporter = StateReporter(
        other,
        lambda: other_driver(other),
        OTHER_LEFT,
        own,
        gauge=metrics.other_driver,
        clock=clock,
        metrics=metrics,
    )
    async with working(own.run(), reporter.run()):
        await asyncio.sleep(0.02)
        assert api.reports == [], "no other driver is no news"
        api.forbidden = {"report"}
        other.look(NODE, ["n-neuron.aws.com-x7k2p"], ("neuron.aws.com-reg.sock",))
        await until(lambda: len(clock.slept) > 2)
        assert metrics.registry.get_sample_value("neuron_dra_plugin_other_driver_active") == 1
        api.forbidden.clear()
        await until(lambda: len(api.reports) == 1)
        other.look(NODE, [], ())
        await until(lambda: len(api.reports) == 2)
        assert metrics.registry.get_sample_value("neuron_dra_plugin_other_driver_active") == 0
    assert [(body["type"], body["reason"], body["message"]) for body in api.reports] == [
        (
            "Warning",
            "OtherDriverActive",
            "Another driver named neuron.aws.com is on this node (ResourceSlices n-neuron.aws.com-x7k2p and the "
            "registration socket neuron.aws.com-reg.sock): this driver publishes no device. Prepared claims go on. "
            "Keep the other driver's DaemonSet off the nodes of this one.",
        ),
        (
            "Normal",
            "OtherDriverGone",
            "No other driver named neuron.aws.com is on this node any more: this driver publishes its devices.",
        ),
    ]


async def test_a_lost_registration_is_reported_and_its_end_too(api: FakeApi, clock: FakeClock) -> None:
    metrics, gate = PluginMetrics(), KubeletGate(clock, 30.0)
    own = OwnNode(api, clock=FakeClock(), metrics=metrics)
    reporter = StateReporter(
        gate,
        lambda: lost_registration(gate),
        REGISTERED,
        own,
        clock=clock,
        metrics=metrics,
    )
    async with working(own.run(), reporter.run()):
        gate.answered(accepted=True)
        gate.lose("its registration socket /r/neuron.aws.com-reg.sock was removed")
        await until(lambda: len(api.reports) == 1)
        gate.answered(accepted=True)
        await until(lambda: len(api.reports) == 2)
    assert [(body["type"], body["reason"], body["message"]) for body in api.reports] == [
        (
            "Warning",
            "RegistrationLost",
            "The kubelet does not know this driver: its registration socket /r/neuron.aws.com-reg.sock was removed. No "
            "device is published, and the registration socket is made again until the kubelet registers it. Prepared "
            "claims go on. If it lasts, look into the kubelet's log.",
        ),
        ("Normal", "RegistrationBack", "The kubelet has registered this driver: its devices are published."),
    ]
