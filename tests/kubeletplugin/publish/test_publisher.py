"""Slices that another client deletes or changes are written again, and fields that the cluster drops are reported."""

import asyncio
import contextlib
import fcntl
import logging
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.discover.health import HealthMonitor
from kubeletplugin.discover.own_node import OwnNode
from kubeletplugin.metrics import PluginMetrics
from kubeletplugin.ports import JsonObject
from kubeletplugin.prepare.usage import Holds
from kubeletplugin.publish.offer import KubeletGate
from kubeletplugin.publish.publisher import NodeSources, Publisher, SliceNote
from kubeletplugin.settings import DriverSettings
from neuron.hardware.instances import Catalogue
from runtime.api_server import UnreachableError
from tests.kubeletplugin.fakes import NODE, FakeApi, FakeClock, Node, node_object, until, working

GATE_SECONDS = 10.0
"""Of the gate: the longest wait for a kubelet that restarts."""

FIRST, SECOND = (f"{NODE}-neuron.aws.com-{number:03d}" for number in range(2))


class Publishing:
    """A publisher at work."""

    def __init__(
        self, node: Node, api: FakeApi, clock: FakeClock, effect: str = "NoSchedule", *, withhold: bool = False
    ) -> None:
        self.node, self.api, self.clock = node, api, clock
        self.metrics = PluginMetrics()
        self.monitor = HealthMonitor(node.discover, Catalogue, clock, 10.0)
        self.own = OwnNode(api, clock=FakeClock(), metrics=self.metrics, use_facts=self.monitor.use_facts)
        self.gate = KubeletGate(clock, 30.0)
        self.holds = Holds()
        self.served: tuple[str, ...] = ()
        self.note = SliceNote()
        self.publisher = Publisher(
            api,
            NodeSources(self.monitor, self.own, self.gate, self.holds, lambda: self.served, self.note),
            DriverSettings(
                node_name=NODE,
                state_dir=node.root,
                unhealthy_taint=effect,
                faulty_kubelet="Withhold" if withhold else "Publish",
            ),
            clock=clock,
            metrics=self.metrics,
            jitter=lambda _low, high: high,
        )

    async def until(self, done: Callable[[], bool]) -> None:
        """Let the publisher work until something holds."""
        await until(done)

    async def settled(self) -> None:
        """Let it work until it has nothing left to do: it waits for a change in many turns of the event loop."""
        wake, turns = self.publisher._wake, 0
        while turns < 20:
            turns = turns + 1 if wake._waiters and not wake.is_set() else 0  # type: ignore[attr-defined]
            await asyncio.sleep(0)

    def writes(self) -> list[str]:
        return [call for call in self.api.calls if call.split()[0] in {"create", "update", "delete"}]

    def generations(self) -> list[int]:
        return [body["spec"]["pool"]["generation"] for _, body in sorted(self.api.stored.items())]

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"neuron_dra_plugin_{name}", labels) or 0.0

    def taints(self) -> dict[str, Any]:
        devices = [device for body in self.api.stored.values() for device in body["spec"].get("devices", ())]
        return {device["name"]: device["taints"] for device in devices if "taints" in device}


@contextlib.asynccontextmanager
async def publishing(
    node: Node,
    api: FakeApi,
    clock: FakeClock,
    effect: str = "NoSchedule",
    *,
    registered: bool = True,
    withhold: bool = False,
    restoring: bool = False,
) -> AsyncIterator[Publishing]:
    made = Publishing(node, api, clock, effect, withhold=withhold)
    made.holds.restore(restoring=restoring)
    if registered:
        made.gate.answered(accepted=True)
    await made.monitor.refresh()
    async with working(made.publisher.run(), made.own.run()):
        yield made


async def test_slices_are_published_once_and_not_written_again(node: Node, api: FakeApi, clock: FakeClock) -> None:
    async with publishing(node, api, clock) as at:
        await at.until(lambda: bool(api.stored))
        await at.settled()
        series = {sample.name for metric in at.metrics.registry.collect() for sample in metric.samples}
        assert "neuron_dra_plugin_ultraserver_publish" not in series
        assert at.writes() == [f"create {FIRST}"]
        assert at.metric("slices_published") == 1
        assert at.metric("slice_writes_total", operation="create") == 1
        assert at.metric("devices", health="healthy") == 16


async def test_labels_of_the_node_are_published(node: Node, clock: FakeClock) -> None:
    api = FakeApi(node_object({"topology.k8s.aws/network-node-layer-1": "nn-7"}))

    async with publishing(node, api, clock) as at:
        await at.until(lambda: bool(api.stored))
        attributes = api.stored[FIRST]["spec"]["devices"][0]["attributes"]
        assert attributes["networkNodeLayer1"] == {"string": "nn-7"}


async def test_a_restart_finds_its_slices_and_writes_nothing(node: Node, api: FakeApi, clock: FakeClock) -> None:
    async with publishing(node, api, clock) as at:
        await at.until(lambda: bool(api.stored))
    async with publishing(node, api, clock) as at:
        await at.until(lambda: any(call.startswith("watch") for call in api.calls[3:]))
        await at.settled()
        assert len(at.writes()) == 1


async def test_deleted_slices_are_created_again(ultra: Node, api: FakeApi, clock: FakeClock) -> None:
    async with publishing(ultra, api, clock) as at:
        await at.until(lambda: len(api.stored) == 2)
        await at.settled()
        before = {name: body["spec"]["devices"] for name, body in api.stored.items() if "devices" in body["spec"]}
        api.wipe()
        await at.until(lambda: len(api.stored) == 2)
        assert at.generations() == [2, 2]
        after = {name: body["spec"]["devices"] for name, body in api.stored.items() if "devices" in body["spec"]}
        assert after == before
        api.wipe(SECOND)
        await at.until(lambda: at.generations() == [3, 3])


async def test_slices_of_a_deleted_node_are_created_again_for_the_new_node(
    node: Node, api: FakeApi, clock: FakeClock
) -> None:
    """A Node that registers again has another UID; slices of the old one would be collected as garbage."""

    async with publishing(node, api, clock) as at:
        await at.until(lambda: bool(api.stored))
        await at.settled()
        api.node_object = node_object() | {"metadata": {"name": NODE, "uid": "new-uid", "labels": {}}}
        api.wipe()
        await at.until(lambda: bool(api.stored))
        await at.settled()
        assert [owner["uid"] for owner in api.stored[FIRST]["metadata"]["ownerReferences"]] == ["new-uid"]
        assert at.writes() == [f"create {FIRST}"] * 2, "none was written for the old Node"


async def test_a_changed_label_of_the_node_is_published_at_once(node: Node, api: FakeApi, clock: FakeClock) -> None:
    async with publishing(node, api, clock) as at:
        await at.until(lambda: bool(api.stored))
        await at.settled()
        reads = api.calls.count("get node")
        api.change_node(node_object({"topology.k8s.aws/network-node-layer-1": "nn-7"}))
        await at.until(lambda: "networkNodeLayer1" in api.stored[FIRST]["spec"]["devices"][0]["attributes"])
        assert api.calls.count("get node") == reads, "a watch shows it"


async def test_a_change_by_another_writer_is_undone(node: Node, api: FakeApi, clock: FakeClock) -> None:
    def change(spec: JsonObject) -> None:
        del spec["devices"][3]

    async with publishing(node, api, clock) as at:
        await at.until(lambda: bool(api.stored))
        api.tamper(FIRST, change)
        await at.until(lambda: len(api.stored[FIRST]["spec"]["devices"]) == 16)
        assert at.writes()[-1] == f"update {FIRST}"


async def test_repeated_changes_by_another_writer_are_undone_with_growing_pauses(
    node: Node, api: FakeApi, clock: FakeClock
) -> None:
    async with publishing(node, api, clock) as at:
        for _ in range(9):
            await at.until(lambda: bool(api.stored))
            await at.settled()
            api.wipe()
            await asyncio.sleep(0.01)
            at.gate.answered(accepted=True)
        await at.until(lambda: bool(api.stored))
        pauses = [slept for slept in clock.slept if slept != GATE_SECONDS]
        assert pauses[:9] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0]


async def test_sick_devices_are_tainted_until_they_recover(node: Node, api: FakeApi, clock: FakeClock) -> None:
    counter = node.device_directory(6) / "stats/hardware/mem_ecc_uncorrected"

    async with publishing(node, api, clock) as at:
        await at.until(lambda: bool(api.stored))
        counter.write_text("2\n")
        await at.monitor.refresh()
        await at.until(lambda: bool(at.taints()))
        taint = {"key": "neuron.aws.com/unhealthy", "value": "hbm-ecc", "effect": "NoSchedule"}
        assert at.taints() == {"neuron-device-6": [taint]}
        assert at.generations() == [1]
        counter.write_text("0\n")
        await at.monitor.refresh()
        await at.until(lambda: not at.taints())


@pytest.mark.parametrize(("effect", "tainted"), [("NoExecute", True), ("Off", False)], ids=["evict", "off"])
async def test_the_taint_effect_is_configurable(
    node: Node, api: FakeApi, clock: FakeClock, effect: str, *, tainted: bool
) -> None:
    shutil.rmtree(node.device_directory(1))

    async with publishing(node, api, clock, effect) as at:
        await at.until(lambda: bool(api.stored))
        found = at.taints()
        assert bool(found) is tainted
        assert not tainted or found["neuron-device-1"][0]["effect"] == effect
        assert len(api.stored[FIRST]["spec"]["devices"]) == 16


async def test_the_end_of_a_watch_is_no_error(node: Node, api: FakeApi, clock: FakeClock) -> None:
    async with publishing(node, api, clock) as at:
        await at.until(lambda: bool(api.stored))
        await at.settled()
        lists = api.calls.count("list slices")
        api.end_watches()
        await at.until(lambda: api.calls.count("list slices") > lists)
        assert at.metric("background_errors_total", component="publish") == 0


async def test_publishing_is_retried_while_the_api_server_is_unavailable(
    node: Node, api: FakeApi, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    api.fail = UnreachableError("away")

    async with publishing(node, api, clock) as at:
        await at.until(lambda: len(clock.slept) >= 8)
        assert clock.slept[:8] == [1, 2, 4, 8, 16, 32, 60, 60]
        assert at.metric("background_errors_total", component="publish") >= 8
        assert at.metric("consecutive_errors", component="publish") >= 8
        api.fail = None
        await at.until(lambda: bool(api.stored))
        await at.until(lambda: at.metric("consecutive_errors", component="publish") == 0)
    assert "publishing failed" in caplog.messages


async def test_a_foreign_slice_with_our_name_is_an_error_and_publishing_continues(
    node: Node, api: FakeApi, clock: FakeClock
) -> None:
    hidden = {"metadata": {"name": FIRST, "resourceVersion": "1"}, "spec": {}}

    api.stored[FIRST] = hidden
    api.slices = _nothing  # type: ignore[method-assign]
    async with publishing(node, api, clock) as at:
        await at.until(lambda: bool(clock.slept))
        assert at.metric("background_errors_total", component="publish") >= 1


async def _nothing() -> tuple[list[JsonObject], str]:
    return [], "1"


async def test_fields_that_the_cluster_drops_are_logged_and_not_written_repeatedly(
    node: Node, api: FakeApi, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(node.device_directory(1))

    def drop(spec: JsonObject) -> None:
        for device in spec["devices"]:
            device.pop("taints", None)

    api.drop = drop

    async with publishing(node, api, clock) as at:
        await at.until(lambda: bool(api.stored))
        await at.settled()
        assert len(at.writes()) == 1
        assert at.metric("slice_dropped_fields") == 1
        api.end_watches()
        await at.settled()
        assert len(at.writes()) == 1
    said = [getattr(record, "reason", "") for record in caplog.records]
    assert sum("does not keep taints of ResourceSlices" in reason for reason in said) == 1


async def test_kinds_of_devices_that_the_cluster_drops_are_no_limitation(
    ultra: Node, api: FakeApi, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    sent: list[object] = []
    api.version = "v1.37.0"
    api.drop = lambda spec: sent.append(spec.pop("partitionTypeAttribute", None))

    async with publishing(ultra, api, clock) as at:
        await at.until(lambda: len(api.stored) == 2)
        await at.settled()
        assert sent == [None, "neuron.aws.com/resourceType"]
        api.end_watches()
        await at.settled()
        assert len(at.writes()) == 2
        assert at.metric("slice_dropped_fields") == 0
    assert not any("does not keep" in getattr(record, "reason", "") for record in caplog.records)


def without_counters(spec: JsonObject) -> None:
    spec.pop("sharedCounters", None)
    for device in spec.get("devices", ()):
        device.pop("consumesCounters", None)


async def test_the_whole_node_is_withdrawn_without_shared_counters(
    ultra: Node, api: FakeApi, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    api.drop = without_counters

    async with publishing(ultra, api, clock) as at:
        await at.until(lambda: len(api.stored) == 1 and at.generations() == [1])
        await at.settled()
        assert at.writes() == [f"create {FIRST}", f"update {FIRST}"], "the whole node was never published"
        [body] = api.stored.values()
        assert [each["name"] for each in body["spec"]["devices"]] == [f"neuron-device-{n}" for n in range(16)]
    said = "an UltraServer node publishes its devices or the whole node, not both"
    assert any(said in getattr(record, "reason", "") for record in caplog.records)


async def test_a_cluster_that_cannot_share_gets_whole_devices(
    tmp_path: Path, api: FakeApi, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    def drop(spec: JsonObject) -> None:
        for device in spec["devices"]:
            device.pop("allowMultipleAllocations", None)
            for capacity in device.get("capacity", {}).values():
                capacity.pop("requestPolicy", None)

    api.drop = drop

    async with publishing(Node(tmp_path, "inf1.2xlarge"), api, clock) as at:
        await at.until(lambda: len(at.writes()) > 1)
        await at.settled()
        assert len(at.writes()) == 2, "once with shares, once without"
        assert at.metric("slice_dropped_fields") == 0
        made = api.stored[FIRST]["spec"]["devices"][0]
        assert made["capacity"] == {"memory": {"value": "8Gi"}, "neuroncores": {"value": "4"}}
        assert "allowMultipleAllocations" not in made
        api.end_watches()
        await at.settled()
        assert len(at.writes()) == 2
    said = [getattr(record, "reason", "") for record in caplog.records]
    assert sum("DRAConsumableCapacity" in reason for reason in said) == 1
    assert "claims cannot share the cores of a device: every claim gets whole devices" in said


async def test_shared_devices_are_tainted_like_others(tmp_path: Path, api: FakeApi, clock: FakeClock) -> None:
    node = Node(tmp_path, "inf1.2xlarge")
    (node.dev / "neuron0").unlink()

    async with publishing(node, api, clock) as at:
        await at.until(lambda: bool(api.stored))
        await at.settled()
        devices = api.stored[FIRST]["spec"]["devices"]
        assert [device["allowMultipleAllocations"] for device in devices] == [True]
        assert [taint["value"] for taint in devices[0]["taints"]] == ["no-device-node"]
        assert devices[0]["capacity"]["neuroncores"]["value"] == "4"


async def test_old_clusters_get_counters_and_devices_in_one_slice(ultra: Node, api: FakeApi, clock: FakeClock) -> None:
    api.version = "v1.34.9"

    async with publishing(ultra, api, clock) as at:
        await at.until(lambda: bool(api.stored))
        await at.settled()
        [body] = api.stored.values()
        assert len(body["spec"]["devices"]) == 17
        assert len(body["spec"]["sharedCounters"]) == 1


@pytest.mark.parametrize(
    ("empty", "said"),
    [
        (True, "the node shows no Neuron device: check that the Neuron kernel driver is loaded"),
        (False, "the instance type is not known, so nothing is published"),
    ],
    ids=["no-devices", "no-type"],
)
async def test_a_node_without_known_devices_publishes_an_empty_slice_and_logs_once(
    node: Node, api: FakeApi, clock: FakeClock, caplog: pytest.LogCaptureFixture, said: str, *, empty: bool
) -> None:
    (node.sysfs / "devices/virtual/dmi/id/product_name").write_text("HVM domU\n")
    if empty:
        shutil.rmtree(node.sysfs / "devices/virtual/neuron_device")

    async with publishing(node, api, clock) as at:
        await at.until(lambda: bool(api.stored))
        api.end_watches()
        await at.settled()
        assert api.stored[FIRST]["spec"]["devices"] == []
    assert sum(getattr(record, "reason", "").startswith(said) for record in caplog.records) == 1


@pytest.mark.parametrize("withhold", [False, True])
async def test_a_faulty_kubelet_is_named_and_gets_devices_by_setting(
    node: Node, clock: FakeClock, caplog: pytest.LogCaptureFixture, *, withhold: bool
) -> None:
    api = FakeApi(node_object() | {"status": {"nodeInfo": {"kubeletVersion": "v1.34.1"}}})

    async with publishing(node, api, clock, withhold=withhold) as at:
        await at.until(lambda: bool(api.stored))
        assert len(api.stored[FIRST]["spec"]["devices"]) == (0 if withhold else 16)
        assert at.metric("faulty_kubelet") == 1
        api.node_object["status"]["nodeInfo"]["kubeletVersion"] = "v1.34.2"
        api.wipe()  # as the upgraded kubelet does when it starts
        await at.until(lambda: FIRST in api.stored and at.metric("faulty_kubelet") == 0)
        assert len(api.stored[FIRST]["spec"]["devices"]) == 16
    effect = "no device is published" if withhold else "devices are published"
    said = (
        f"kubelet v1.34.1 of node {NODE} can lose pods that use ResourceClaims (kubernetes/kubernetes#133920): {effect}"
        "; upgrade it to 1.34.2 or later"
    )
    assert [getattr(record, "reason", "") for record in caplog.records].count(said) == 1


async def test_only_one_instance_publishes_and_the_next_takes_over(
    node: Node, api: FakeApi, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    with (node.root / "publish.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        async with publishing(node, api, clock) as at:
            await at.until(lambda: len(clock.slept) > 3)
            assert "list slices" not in api.calls
            fcntl.flock(lock, fcntl.LOCK_UN)
            await at.until(lambda: bool(api.stored))
    said = [getattr(record, "reason", "") for record in caplog.records]
    assert said.count("another instance publishes; waiting for its end") == 1


async def test_a_watch_event_older_than_our_own_write_is_ignored(node: Node, api: FakeApi, clock: FakeClock) -> None:
    async with publishing(node, api, clock) as at:
        await at.until(lambda: bool(api.stored))
        await at.settled()
        old = dict(api.stored[FIRST], metadata={"name": FIRST, "resourceVersion": "0"}, spec={"pool": {}})
        api._notify("MODIFIED", old)
        await at.settled()
        assert len(at.writes()) == 1


# --- registration, owner and kind of device ------------------------------------------------------------------------


async def test_nothing_is_written_before_the_kubelet_has_registered_the_plugin(
    node: Node, api: FakeApi, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forever(_seconds: float) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(clock, "sleep", forever)

    async with publishing(node, api, clock, registered=False) as at:
        await asyncio.sleep(0.05)
        assert at.writes() == []
        at.gate.answered(accepted=True)
        await at.until(lambda: bool(api.stored))


async def test_devices_are_tainted_while_a_device_plugin_is_present(node: Node, api: FakeApi, clock: FakeClock) -> None:
    async with publishing(node, api, clock) as at:
        await at.until(lambda: bool(api.stored))
        assert "dry run" not in api.calls
        api.change_node(node_object(neuron="16"))
        await at.until(lambda: len(at.taints()) == 16)
        assert at.taints()["neuron-device-0"] == [
            {"key": "neuron.aws.com/device-plugin", "value": "active", "effect": "NoSchedule"}
        ]
        api.change_node(node_object(neuron="0"))
        await at.until(lambda: at.taints() == {})
        assert len(api.stored[FIRST]["spec"]["devices"]) == 16


async def test_no_device_is_published_beside_a_device_plugin_if_taints_are_dropped(
    node: Node, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    api = FakeApi(node_object(neuron="16"))
    api.taints = False
    published: list[int] = []
    api.drop = lambda spec: published.append(len(spec["devices"]))

    async with publishing(node, api, clock) as at:
        await at.until(lambda: bool(api.stored))
        await at.settled()
        assert (api.stored[FIRST]["spec"]["devices"], at.publisher.offered) == ([], frozenset())
        assert set(published) == {0}
        api.change_node(node_object(neuron="0"))
        await at.until(lambda: len(api.stored[FIRST]["spec"]["devices"]) == 16)
        assert at.publisher.offered == {"devices"}
    said = "a device plugin offers the devices, and the API server does not keep device taints"
    assert sum(getattr(record, "reason", "").startswith(said) for record in caplog.records) == 1


async def test_the_nodes_label_switches_between_devices_and_the_whole_node(
    ultra: Node, api: FakeApi, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    api.drop = without_counters

    def names() -> list[str]:
        return [device["name"] for body in api.stored.values() for device in body["spec"].get("devices", ())]

    async with publishing(ultra, api, clock) as at:
        await at.until(lambda: len(names()) == 16)
        await at.settled()
        assert at.publisher.offered == {"devices"}
        assert at.metric("ultraserver_publish", offer="devices") == 1
        api.change_node(node_object({"neuron.aws.com/ultraserver-publish": "node"}))
        await at.until(lambda: names() == ["neuron-node"])
        await at.settled()
        assert at.publisher.offered == {"node"}
        assert at.metric("ultraserver_publish", offer="node") == 1
        assert at.metric("ultraserver_publish", offer="devices") == 0
        api.change_node(node_object({"neuron.aws.com/ultraserver-publish": "both"}))
        await at.until(lambda: len(names()) == 16)
    assert any("has the value 'both', which is not devices or node" in str(vars(r)) for r in caplog.records)


async def test_an_ultraserver_node_offers_devices_and_the_whole_node_with_counters(
    ultra: Node, api: FakeApi, clock: FakeClock
) -> None:
    async with publishing(ultra, api, clock) as at:
        await at.until(lambda: len(api.stored) == 2)
        await at.settled()
        assert at.publisher.offered == {"devices", "node"}
        assert at.metric("ultraserver_publish", offer="both") == 1


async def test_the_last_instance_withdraws_its_slices(ultra: Node, api: FakeApi, clock: FakeClock) -> None:
    async with publishing(ultra, api, clock) as at:
        await at.until(lambda: len(api.stored) == 2)
    await at.publisher.withdraw()
    assert api.stored == {}


async def test_slices_that_another_instance_publishes_stay(node: Node, api: FakeApi, clock: FakeClock) -> None:
    async with publishing(node, api, clock) as at:
        await at.until(lambda: bool(api.stored))
    with (node.root / "publish.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        await at.publisher.withdraw()
    assert api.stored


async def test_an_instance_ends_also_while_the_api_server_is_away(
    node: Node, api: FakeApi, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with publishing(node, api, clock) as at:
        await at.until(lambda: bool(api.stored))
    api.fail = UnreachableError("away")
    await at.publisher.withdraw()
    assert "slices cannot be withdrawn; the kubelet deletes them" in caplog.messages


OTHERS = f"{NODE}-neuron.aws.com-x7k2p"
"""As the library of Kubernetes names a slice (`generateName`)."""
ITS_SOCKET = ("neuron.aws.com-reg.sock",)


async def publish_as_another_driver(api: FakeApi) -> None:
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    await api.create({"metadata": {"name": OTHERS}, "spec": {"driver": "neuron.aws.com", "pool": pool, "devices": []}})


@pytest.mark.parametrize("first", ["ours", "theirs"])
async def test_nothing_is_published_beside_another_driver_until_it_has_gone(
    ultra: Node, api: FakeApi, clock: FakeClock, first: str
) -> None:
    if first == "theirs":
        await publish_as_another_driver(api)
    async with publishing(ultra, api, clock) as at:
        if first == "ours":
            await at.until(lambda: len(api.stored) == 2)
            await at.settled()
        at.served = ITS_SOCKET
        if first == "ours":
            await publish_as_another_driver(api)
        await at.until(lambda: bool(at.publisher.other.evidence) and set(api.stored) == {OTHERS})
        await at.settled()
        assert f"delete {OTHERS}" not in api.calls
        assert at.generations() == [1], "no slice of ours makes theirs obsolete"
        assert (at.publisher.offered, at.metric("slices_published")) == (frozenset(), 0)
        at.served = ()
        api.wipe()
        await at.until(lambda: len(api.stored) == 2)
        assert at.publisher.other.evidence == ""


async def test_slices_of_a_driver_that_has_gone_are_removed(node: Node, api: FakeApi, clock: FakeClock) -> None:
    await publish_as_another_driver(api)
    async with publishing(node, api, clock) as at:
        await at.until(lambda: set(api.stored) == {FIRST})
        assert at.publisher.other.evidence == ""


async def test_slices_that_come_back_belong_to_a_driver_whose_socket_is_not_seen(
    node: Node, api: FakeApi, clock: FakeClock
) -> None:
    await publish_as_another_driver(api)
    async with publishing(node, api, clock) as at:
        await at.until(lambda: set(api.stored) == {FIRST})
        await publish_as_another_driver(api)
        await at.until(lambda: set(api.stored) == {OTHERS})
        await at.settled()
        assert api.calls.count(f"delete {OTHERS}") == 1, "they are not fought"
        assert at.publisher.other.evidence == f"ResourceSlices {OTHERS}"
        clock.time += 600
        await at.until(lambda: set(api.stored) == {FIRST})


async def test_another_driver_keeps_its_slices_when_this_one_ends(node: Node, api: FakeApi, clock: FakeClock) -> None:
    await publish_as_another_driver(api)
    async with publishing(node, api, clock) as at:
        at.served = ITS_SOCKET
        await at.until(lambda: bool(at.publisher.other.evidence))
    await at.publisher.withdraw()
    assert set(api.stored) == {OTHERS}


async def test_a_socket_of_another_instance_alone_is_an_upgrade(node: Node, api: FakeApi, clock: FakeClock) -> None:
    async with publishing(node, api, clock) as at:
        at.served = ("neuron.aws.com-uid-reg.sock",)
        await at.until(lambda: set(api.stored) == {FIRST})
        assert at.publisher.other.evidence == ""


@pytest.mark.parametrize(
    ("label", "shared"), [("on", True), ("off", False), ("yes", True)], ids=["on", "off", "neither"]
)
async def test_the_nodes_label_decides_whether_its_devices_are_shared(
    tmp_path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture, label: str, *, shared: bool
) -> None:
    api = FakeApi(node_object({"neuron.aws.com/share-cores": label}))

    async with publishing(Node(tmp_path, "inf1.6xlarge"), api, clock) as at:
        await at.until(lambda: bool(api.stored))
        devices = api.stored[FIRST]["spec"]["devices"]
        assert [device.get("allowMultipleAllocations", False) for device in devices] == [shared] * 4
    odd = [str(getattr(record, "reason", "")) for record in caplog.records]
    assert any("'yes', which is not on or off: the setting (auto) is in force" in each for each in odd) is (
        label == "yes"
    )


async def test_what_the_checks_found_is_on_the_first_slice(node: Node, api: FakeApi, clock: FakeClock) -> None:
    key = "neuron.aws.com/node-checks"

    def noted() -> str:
        found: str = (api.stored[FIRST]["metadata"].get("annotations") or {}).get(key, "")
        return found

    async with publishing(node, api, clock) as at:
        await at.until(lambda: bool(api.stored))
        assert noted() == ""
        at.note.take('[{"check": "CDI"}]')
        await at.until(lambda: noted() == '[{"check": "CDI"}]')
        assert at.generations() == [1], "the scheduler has nothing to learn"
        at.note.take("")
        await at.until(lambda: noted() == "")


async def test_without_a_registration_nothing_is_published(node: Node, api: FakeApi, clock: FakeClock) -> None:
    async with publishing(node, api, clock) as at:
        await at.until(lambda: bool(api.stored))
        at.gate.lose("its registration socket was removed")
        await at.until(lambda: not api.stored)
        assert at.metric("slices_published") == 0
        at.gate.answered(accepted=True)
        await at.until(lambda: bool(api.stored))
