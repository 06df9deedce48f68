"""Counters, components, device nodes and vanished devices become health and taints; recovery clears them."""

import asyncio
import dataclasses
import logging
import shutil
import threading
from pathlib import Path

import pytest

from kubeletplugin.discover import health
from kubeletplugin.discover.health import DeviceHealth, HealthMonitor, HealthStatus, NodeFacts, assess, taints
from kubeletplugin.discover.sysfs import NeuronDevice, NodeHardware
from kubeletplugin.ports import WAITS
from neuron.api.taints import Taint
from neuron.hardware.instances import Catalogue, InstanceType
from tests.kubeletplugin.fakes import NODE, FakeClock, Node, until, working

CATALOGUE = Catalogue()


def trn2() -> InstanceType:
    found = CATALOGUE.get("trn2.3xlarge")
    assert found is not None
    return found


def health_of(device: NeuronDevice) -> DeviceHealth:
    [found] = assess(NodeHardware("trn2.3xlarge", None, (device,)), trn2()).health
    return found


JUDGED: dict[str, tuple[NeuronDevice, HealthStatus, str, str]] = {
    "sound": (NeuronDevice(0, counters={"mem_ecc_uncorrected": 0}), HealthStatus.HEALTHY, "", ""),
    "repairable": (NeuronDevice(0, counters={"mem_ecc_repairable_uncorrected": 9}), HealthStatus.HEALTHY, "", ""),
    "negative": (NeuronDevice(0, counters={"mem_ecc_uncorrected": -1}), HealthStatus.HEALTHY, "", ""),
    "hbm": (
        NeuronDevice(0, counters={"mem_ecc_uncorrected": 2}),
        HealthStatus.UNHEALTHY,
        "hbm-ecc",
        "mem_ecc_uncorrected is 2",
    ),
    "sram": (
        NeuronDevice(0, counters={"sram_ecc_uncorrected": 1}),
        HealthStatus.UNHEALTHY,
        "sram-ecc",
        "sram_ecc_uncorrected is 1",
    ),
    "component": (
        NeuronDevice(0, unhealthy=("hbm", "link_efa")),
        HealthStatus.UNHEALTHY,
        "component",
        "hbm is unhealthy; link_efa is unhealthy",
    ),
    "no-device-node": (
        NeuronDevice(0, has_node=False, counters={"mem_ecc_uncorrected": 2}),
        HealthStatus.UNHEALTHY,
        "no-device-node",
        "/dev/neuron0 is missing; mem_ecc_uncorrected is 2",
    ),
    "unreadable": (NeuronDevice(0, unreadable=("x: I/O error",)), HealthStatus.UNKNOWN, "", "x: I/O error"),
}


@pytest.mark.parametrize("name", JUDGED)
def test_a_device_is_judged(name: str) -> None:
    device, status, reason, message = JUDGED[name]
    assert health_of(device) == DeviceHealth("neuron-device-0", status, reason, message)


def test_a_message_is_no_longer_than_the_kubelet_keeps() -> None:
    assert len(health_of(NeuronDevice(0, unhealthy=tuple(f"part-{n}" for n in range(200)))).message) == 1024


def test_devices_that_the_type_has_and_the_node_lacks_have_vanished(node: Node) -> None:
    shutil.rmtree(node.device_directory(3))
    snapshot = assess(node.discover(), CATALOGUE.get("trn2.48xlarge"))
    assert snapshot.vanished == {3}
    assert snapshot.health[3] == DeviceHealth(
        "neuron-device-3", HealthStatus.UNHEALTHY, "vanished", "neuron3 has vanished from sysfs"
    )
    assert len(snapshot.health) == 16


def test_a_node_without_devices_has_no_missing_devices() -> None:
    assert assess(NodeHardware(None, None), trn2()).health == ()


def test_devices_that_were_seen_are_missed_also_on_unknown_types() -> None:
    snapshot = assess(NodeHardware(None, None, (NeuronDevice(0),)), None, seen=[0, 1])
    assert [device.reason for device in snapshot.health] == ["", "vanished"]


def test_the_whole_node_is_as_healthy_as_its_worst_device(tmp_path: Path) -> None:
    node = Node(tmp_path, "trn2u.48xlarge")
    instance = CATALOGUE.get("trn2u.48xlarge")
    assert assess(node.discover(), instance).health[16] == DeviceHealth("neuron-node")
    (node.device_directory(2) / "stats/hardware/sram_ecc_uncorrected").write_text("4\n")
    assert assess(node.discover(), instance).health[16] == DeviceHealth(
        "neuron-node", HealthStatus.UNHEALTHY, "sram-ecc", "neuron-device-2: sram_ecc_uncorrected is 4"
    )


def test_only_unhealthy_devices_are_tainted() -> None:
    judged = [
        DeviceHealth("a"),
        DeviceHealth("b", HealthStatus.UNKNOWN),
        DeviceHealth("c", HealthStatus.UNHEALTHY, "hbm-ecc"),
    ]
    assert taints(judged, "NoExecute") == {"c": Taint("neuron.aws.com/unhealthy", "hbm-ecc", "NoExecute")}
    assert taints(judged, None) == {}


# --- the monitor ----------------------------------------------------------------------------------------------


def monitor_of(node: Node, clock: FakeClock, interval: float = 10.0) -> HealthMonitor:
    return HealthMonitor(node.discover, lambda: CATALOGUE, clock, interval)


async def test_health_changes_are_reported_and_logged(
    node: Node, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    counter = node.device_directory(5) / "stats/hardware/mem_ecc_uncorrected"

    caplog.set_level(logging.INFO)
    monitor = monitor_of(node, clock)
    await monitor.refresh()
    generation = monitor.generation
    assert all(device.status is HealthStatus.HEALTHY for device in monitor.snapshot.health)
    counter.write_text("1\n")
    waiter = asyncio.create_task(monitor.wait(generation, 60))
    await asyncio.sleep(0)
    await monitor.refresh()
    assert await waiter == monitor.generation > generation
    assert monitor.snapshot.health[5].reason == "hbm-ecc"
    counter.write_text("0\n")
    await monitor.refresh()
    assert not monitor.snapshot.health[5].reason
    said = [(record.levelname, record.device, record.health) for record in caplog.records]  # type: ignore[attr-defined]
    assert said == [("WARNING", "neuron-device-5", "UNHEALTHY"), ("INFO", "neuron-device-5", "HEALTHY")]


async def test_waiting_ends_with_its_time(node: Node, clock: FakeClock) -> None:
    monitor = monitor_of(node, clock)
    assert await monitor.wait(monitor.generation, 0.01) == 0
    assert await monitor.wait(7, 60) == 0


async def test_an_unchanged_node_is_not_reported(node: Node, clock: FakeClock) -> None:
    monitor = monitor_of(node, clock)
    await monitor.refresh()
    await monitor.refresh()
    assert monitor.generation == 1


async def test_health_is_checked_repeatedly(node: Node, clock: FakeClock) -> None:
    monitor = monitor_of(node, clock, interval=7.0)
    task = asyncio.create_task(monitor.run())
    (node.dev / "neuron1").unlink()
    await monitor.wait(monitor.generation, 10)
    task.cancel()
    assert clock.slept[0] == 7.0
    assert monitor.interval == 7.0


async def test_no_device_is_healthy_while_the_files_of_the_kernel_driver_hang(
    node: Node, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet takes the time at which it receives a health for that of the check."""
    monkeypatch.setattr(health, "WAITS", dataclasses.replace(WAITS, health_lost=0))
    (node.device_directory(5) / "stats/hardware/mem_ecc_uncorrected").write_text("1\n")
    answer = threading.Event()
    answer.set()

    def discover() -> NodeHardware:
        assert answer.wait(60)
        return node.discover()

    monitor = HealthMonitor(discover, lambda: CATALOGUE, clock, 10.0)
    await monitor.refresh()
    answer.clear()
    async with working(monitor.run()):
        await until(lambda: monitor.snapshot.health[0].status is HealthStatus.UNKNOWN)
        monitor.use_facts(NodeFacts(NODE, "u"))  # what does not read the files does not make it better
        assert monitor.snapshot.health[0].message == "the kernel driver's files have not answered for 0 s"
        assert monitor.snapshot.health[5].reason == "hbm-ecc"
        monkeypatch.setattr(health, "WAITS", WAITS)
        answer.set()
        await until(lambda: monitor.snapshot.health[0].status is HealthStatus.HEALTHY)


async def test_the_instance_type_is_read_from_the_label_if_dmi_lacks_it(node: Node, clock: FakeClock) -> None:
    (node.sysfs / "devices/virtual/dmi/id/product_name").write_text("HVM domU\n")

    monitor = monitor_of(node, clock)
    await monitor.refresh()
    types = [monitor.snapshot.instance]
    monitor.use_facts(NodeFacts(NODE, "u", "trn2.48xlarge"))
    types.append(monitor.snapshot.instance)
    assert types == [None, CATALOGUE.get("trn2.48xlarge")]
