"""The UltraServer labels of a Node follow sysfs; other labels are not changed."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator

import pytest

from kubeletplugin.discover.health import HealthMonitor
from kubeletplugin.discover.own_node import KEYS, Labeller, OwnNode, label_changes, ultraserver_labels
from kubeletplugin.discover.sysfs import CLASS, Membership, UltraServer
from kubeletplugin.metrics import PluginMetrics
from neuron.hardware.instances import Catalogue
from tests.kubeletplugin.fakes import FakeApi, FakeClock, Node, node_object, until, working

MODE, SERVER_2, SERVER_4, NODE_2, NODE_4 = (
    f"neuron.amazonaws.com/ultraserver-{name}"
    for name in ("mode", "server-id-2", "server-id-4", "node-id-2", "node-id-4")
)
FOUR = Membership("0123456789abcdef", 3)
TWO = Membership("fedcba9876543210", 1)

READ: dict[str, tuple[UltraServer | None, dict[str, str] | None]] = {
    "none": (None, {}),
    "electing": (UltraServer(frozenset({1}), {4: FOUR}, busy=True), None),
    "alone": (UltraServer(frozenset({4})), {MODE: "4"}),
    "no mode": (UltraServer(), {}),
    "two": (UltraServer(frozenset({4, 2}), {2: TWO}), {MODE: "2_4", SERVER_2: "fedcba9876543210", NODE_2: "1"}),
    "two and four": (
        UltraServer(frozenset({1, 4, 3}), {2: TWO, 4: FOUR}),
        {
            MODE: "1_3_4",
            SERVER_2: "fedcba9876543210",
            NODE_2: "1",
            SERVER_4: "0123456789abcdef",
            NODE_4: "3",
        },
    ),
    "number out of range": (
        UltraServer(frozenset({1}), {2: FOUR, 4: FOUR}),
        {MODE: "1", SERVER_4: "0123456789abcdef", NODE_4: "3"},
    ),
    "no label value": (UltraServer(frozenset({1}), {4: Membership("a b", 0)}), {MODE: "1", NODE_4: "0"}),
}


@pytest.mark.parametrize("name", READ)
def test_labels_follow_sysfs(name: str) -> None:
    ultraserver, labels = READ[name]
    assert ultraserver_labels(ultraserver) == labels


def test_changes_are_only_differences_and_only_our_keys() -> None:
    foreign = "neuron.amazonaws.com/ultraserver-rack"
    present = {MODE: "1", SERVER_4: "old", NODE_4: "2", foreign: "x"}
    assert label_changes(present, {MODE: "1", SERVER_4: "new"}) == {SERVER_4: "new", NODE_4: None}
    assert label_changes(present, present) == {}
    assert set(KEYS) == {MODE, SERVER_2, SERVER_4, NODE_2, NODE_4}


class Labelling:
    """A labeller at work on an emulated node."""

    def __init__(self, node: Node, api: FakeApi, clock: FakeClock, **which: bool) -> None:
        self.node, self.api, self.clock = node, api, clock
        self.metrics = PluginMetrics()
        self.monitor = HealthMonitor(node.discover, Catalogue, clock, 10.0)
        self.own = OwnNode(api, clock=FakeClock(), metrics=self.metrics)
        self.labeller = Labeller(self.own, self.monitor, clock=clock, metrics=self.metrics, **which)

    def labels(self) -> dict[str, str]:
        found: dict[str, str] = self.api.node_object["metadata"]["labels"]
        return found

    async def write(self, name: str, text: str) -> None:
        """The kernel driver changes a file."""
        (self.node.sysfs / CLASS / name).write_text(text)
        await self.monitor.refresh()

    def writes(self) -> int:
        return self.api.calls.count("label node")


@contextlib.asynccontextmanager
async def labelling(node: Node, api: FakeApi, clock: FakeClock, **which: bool) -> AsyncIterator[Labelling]:
    made = Labelling(node, api, clock, **which)
    await made.monitor.refresh()
    async with working(made.own.run(), made.labeller.run()):
        yield made


async def test_labels_are_set_changed_and_removed_with_the_membership(ultra: Node, clock: FakeClock) -> None:
    api = FakeApi(node_object({"other": "stays"}))

    async with labelling(ultra, api, clock) as at:
        await until(lambda: set(KEYS) <= at.labels().keys())
        assert at.labels()["other"] == "stays"
        assert (at.labels()[MODE], at.labels()[NODE_4]) == ("1_3_4", "0")
        await at.write("server_id_4", "00000000deadbeef\n")
        await until(lambda: at.labels()[SERVER_4] == "00000000deadbeef")
        await at.write("server_id_4", "busy\n")
        await asyncio.sleep(0.02)
        assert at.labels()[SERVER_4] == "00000000deadbeef", "while the nodes elect, the labels stay"
        await at.write("server_id_4", f"{'0' * 16}\n")
        await at.write("node_id_4", "-1\n")
        await until(lambda: not {SERVER_4, NODE_4} & at.labels().keys())
        assert at.labels()[NODE_2] == "0"
        (at.node.sysfs / CLASS / "ultraserver_mode").unlink()
        await at.monitor.refresh()
        await until(lambda: at.labels() == {"other": "stays"})


def test_a_node_of_no_ultraserver_is_not_written_and_stale_labels_are_removed(node: Node, clock: FakeClock) -> None:
    async def scenario(api: FakeApi, writes: int) -> None:
        async with labelling(node, api, clock) as at:
            await until(lambda: at.own.state is not None and not set(KEYS) & at.labels().keys())
            await asyncio.sleep(0.02)
            assert at.writes() == writes

    asyncio.run(scenario(FakeApi(), 0))
    asyncio.run(scenario(FakeApi(node_object({SERVER_2: "left by an older life of the node"})), 1))


PRESENT = "neuron.amazonaws.com/present"


@pytest.mark.parametrize(
    ("labels", "then"),
    [({}, "true"), ({PRESENT: "false"}, "false")],
    ids=["missing", "of an administrator"],
)
async def test_the_label_for_agents_of_aws_may_be_set_by_others(
    ultra: Node, clock: FakeClock, labels: dict[str, str], then: str
) -> None:
    api = FakeApi(node_object(labels))

    async with labelling(ultra, api, clock, ultraserver=False, present=True) as at:
        await until(lambda: PRESENT in at.labels())
        assert at.labels() == {PRESENT: then}
        assert at.writes() == (not labels)
        for number in range(16):
            shutil.rmtree(at.node.device_directory(number))
        await at.monitor.refresh()
        assert at.monitor.snapshot.hardware.devices == ()
        await asyncio.sleep(0.02)
        assert at.labels() == {PRESENT: then}, "it stays without devices"


def test_a_node_without_devices_does_not_get_the_label_of_aws(node: Node, clock: FakeClock) -> None:
    for number in range(16):
        shutil.rmtree(node.device_directory(number))

    async def scenario(api: FakeApi) -> None:
        async with labelling(node, api, clock, present=True) as at:
            await until(lambda: at.own.state is not None)
            await asyncio.sleep(0.02)
            assert (at.labels(), at.writes()) == ({}, 0)

    asyncio.run(scenario(FakeApi()))


async def test_labels_that_others_change_are_restored_with_growing_pauses(
    ultra: Node, api: FakeApi, clock: FakeClock
) -> None:
    async with labelling(ultra, api, clock) as at:
        for number in range(1, 6):
            await until(lambda number=number: at.writes() == number)  # type: ignore[misc]
            await until(lambda: set(KEYS) <= at.labels().keys())
            api.change_node(node_object())
        await until(lambda: len(clock.slept) >= 5)
        assert clock.slept[:5] == [0.2, 0.4, 0.8, 1.6, 3.2]


async def test_a_failed_write_of_labels_is_retried(
    ultra: Node, api: FakeApi, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    api.forbidden = {"label node"}

    async with labelling(ultra, api, clock) as at:
        await until(lambda: at.writes() > 2)
        name, labels = "neuron_dra_plugin_consecutive_errors", {"component": "labels"}
        assert (at.metrics.registry.get_sample_value(name, labels) or 0) >= 2
        api.forbidden.clear()
        await until(lambda: set(KEYS) <= at.labels().keys())
        await until(lambda: at.metrics.registry.get_sample_value(name, labels) == 0)
    assert "the node's labels cannot be written" in caplog.messages
