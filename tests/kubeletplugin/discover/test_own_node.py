"""The driver sees its own Node change at once, also after errors and with the rights of an older role."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kubeletplugin.discover.own_node import OwnNode, node_state
from kubeletplugin.metrics import PluginMetrics
from runtime.api_server import StatusError, UnreachableError
from tests.kubeletplugin.fakes import FakeApi, FakeClock, node_object, until

AMOUNTS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "none": ({}, {}),
    "zero": ({"neuron": "0"}, {}),
    "devices": ({"neuron": "16"}, {"aws.amazon.com/neuron": 16}),
    "cores": ({"neuron": "0", "neuroncore": "32"}, {"aws.amazon.com/neuroncore": 32}),
    "old name": ({"neurondevice": "1"}, {"aws.amazon.com/neurondevice": 1}),
    "unreadable": ({"neuron": "many"}, {}),
}


@pytest.mark.parametrize("name", AMOUNTS)
def test_allocatable_legacy_resources_mean_a_device_plugin(name: str) -> None:
    allocatable, legacy = AMOUNTS[name]
    assert node_state(node_object(**allocatable)).legacy == legacy


def test_a_node_without_status_and_labels_is_read() -> None:
    state = node_state({"metadata": {"name": "n", "uid": "u"}})
    assert (dict(state.legacy), state.ultraserver_publish, dict(state.ultraserver_labels)) == ({}, None, {})


def test_labels_about_ultraservers_are_read() -> None:
    server = "neuron.amazonaws.com/ultraserver-server-id-4"
    state = node_state(node_object({"neuron.aws.com/ultraserver-publish": "node", server: "x", "other": "y"}))
    assert (state.ultraserver_publish, dict(state.ultraserver_labels)) == ("node", {server: "x"})


@contextlib.asynccontextmanager
async def following(api: FakeApi, clock: FakeClock) -> AsyncIterator[OwnNode]:
    own = OwnNode(api, clock=clock, metrics=PluginMetrics(), jitter=lambda _low, high: high)
    task = asyncio.create_task(own.run())
    try:
        yield own
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def consecutive_errors(own: OwnNode) -> float:
    name = "neuron_dra_plugin_consecutive_errors"
    return own._metrics.registry.get_sample_value(name, {"component": "node"}) or 0


async def test_watch_events_change_the_state_only_if_a_read_field_differs(api: FakeApi, clock: FakeClock) -> None:
    async with following(api, clock) as own:
        await until(lambda: own.state is not None)
        first = own.generation
        api.change_node(node_object() | {"spec": {"unschedulable": True}})
        api.change_node(node_object(neuron="16"))
        assert await own.wait(first, 60) == first + 1
        assert own.state is not None
        assert own.state.legacy == {"aws.amazon.com/neuron": 16}
        assert api.calls == ["follow node"], "nothing is polled"
        assert await own.wait(own.generation, 0.01) == first + 1


async def test_the_facts_are_passed_on_with_each_change(clock: FakeClock) -> None:
    """The instance type is known to preparation although slices still wait for the kubelet."""
    api = FakeApi(node_object({"node.kubernetes.io/instance-type": "trn2.48xlarge"}))
    types: list[str | None] = []

    own = OwnNode(api, clock=clock, metrics=PluginMetrics(), use_facts=lambda facts: types.append(facts.instance_type))
    await own.read()
    await own.read()
    api.change_node(node_object({"node.kubernetes.io/instance-type": "trn2.3xlarge"}))
    await own.read()
    assert types == ["trn2.48xlarge", "trn2.3xlarge"]


async def test_a_watch_event_older_than_the_last_read_is_ignored(api: FakeApi, clock: FakeClock) -> None:
    async with following(api, clock) as own:
        await until(lambda: own.state is not None)
        for version, amount in (("7", "16"), ("6", "0")):
            body = node_object(neuron=amount)
            body["metadata"]["resourceVersion"] = version
            for queue in api._node_watches:
                queue.put_nowait(body)
        await until(lambda: own.state is not None and own.state.legacy)
        await asyncio.sleep(0.01)
        assert own.state is not None
        assert own.state.legacy == {"aws.amazon.com/neuron": 16}


async def test_a_cluster_that_was_restored_from_a_backup_is_followed(api: FakeApi, clock: FakeClock) -> None:
    """Its versions are older than those that were seen: no device plugin, cordon or label was seen any more."""
    body = node_object()
    body["metadata"]["resourceVersion"] = "1000"
    api.node_object = body
    async with following(api, clock) as own:
        await until(lambda: own.state is not None)
        api.change_node(node_object(neuron="16"))
        api.forbidden = {"follow node"}
        api.end_node_watches()
        await until(lambda: own.state is not None and own.state.legacy)


async def test_the_end_of_a_watch_is_followed_by_the_next(api: FakeApi, clock: FakeClock) -> None:
    async with following(api, clock) as own:
        await until(lambda: own.state is not None)
        api.end_node_watches()
        await until(lambda: api.calls.count("follow node") == 2)
        api.change_node(node_object(neuron="1"))
        await until(lambda: own.state is not None and own.state.legacy)
        assert clock.slept == [1.0], "a server that ends every watch at once is not called in a loop"


async def test_a_driver_that_may_not_watch_reads_its_node(
    api: FakeApi, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    api.forbidden = {"follow node"}

    async with following(api, clock) as own:
        await until(lambda: own.state is not None)
        api.change_node(node_object(neuron="16"))
        await until(lambda: own.state is not None and own.state.legacy)
        assert clock.slept[:5] == [1, 2, 4, 8, 10]
    assert "the node cannot be watched" in caplog.messages


async def test_a_retry_waits_for_the_time_that_the_api_server_requests(api: FakeApi, clock: FakeClock) -> None:
    api.fail = StatusError(429, "busy", "TooManyRequests", retry_after=7)

    async with following(api, clock):
        await until(lambda: len(clock.slept) > 4)
        assert clock.slept[:5] == [7, 7, 7, 8, 10]


async def test_reading_the_node_is_retried_while_the_api_server_is_unavailable(
    api: FakeApi, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    api.fail = UnreachableError("away")

    async with following(api, clock) as own:
        await until(lambda: len(clock.slept) > 3)
        assert own.state is None
        assert consecutive_errors(own) >= 3
        api.fail = None
        await until(lambda: own.state is not None)
        await until(lambda: consecutive_errors(own) == 0)
    assert "the node cannot be read" in caplog.messages
