"""Who uses which device, as series: pods of the kubelet, claims of the checkpoint, cores of shares."""

import asyncio
import dataclasses
from collections.abc import Collection
from typing import Any

import pytest
from prometheus_client import generate_latest

from kubeletplugin.device_info import CoresUse, DeviceInfo, UseReader, rows, use_of
from kubeletplugin.discover import emulate
from kubeletplugin.discover.health import DeviceHealth, HealthSnapshot, HealthStatus
from kubeletplugin.metrics import CoreUse, DeviceUse, PluginMetrics
from kubeletplugin.ports import UsageUnknownError
from kubeletplugin.prepare.checkpoint import PreparedDevice, Share
from kubeletplugin.prepare.usage import NoKubeletError, UsedDevice
from neuron.hardware.instances import Catalogue
from tests.kubeletplugin.fakes import NODE, FakeClock, Node, allocated, devices, prepared_claim, uid

CORES = dict.fromkeys(range(16), 8)


def whole(index: int, request: str = "n0", **fields: Any) -> PreparedDevice:
    return PreparedDevice(request, NODE, f"neuron-device-{index}", (index,), **fields)


def used(number: int, index: int, pod: str = "p", container: str = "main", request: str = "n0") -> UsedDevice:
    name = f"neuron-device-{index}"
    return UsedDevice(f"ns/{pod}", "ns", f"claim-{number}", uid(number), request, name, NODE, None, container)


def test_a_container_that_uses_a_device_is_named() -> None:
    assert rows([prepared_claim(1, whole(3))], [used(1, 3), used(2, 4)], CORES) == (
        DeviceUse("neuron-device-3", "0-7", "p", "ns", "main", "claim-1"),
    )


def test_containers_that_share_a_claim_have_a_series_each() -> None:
    found = rows([prepared_claim(1, whole(0))], [used(1, 0), used(1, 0, container="side"), used(1, 0, pod="q")], CORES)
    assert [(each.pod, each.container) for each in found] == [("p", "main"), ("p", "side"), ("q", "main")]


def test_a_claim_without_a_container_has_no_pod() -> None:
    [found] = rows([prepared_claim(1, whole(0))], [], {})
    assert found == DeviceUse("neuron-device-0", "", "", "ns", "", "claim-1")


def test_shares_name_their_cores_and_requests_are_apart() -> None:
    held = (whole(0, share=Share("s", (2, 3))), whole(0, "n1/big", share=Share("t", (5, 7))))
    found = rows([prepared_claim(1, *held)], [used(1, 0), used(1, 0, container="other", request="n1")], CORES)
    assert [(each.cores, each.container) for each in found] == [("2-3", "main"), ("5,7", "other")]


def test_a_whole_node_shows_all_of_its_devices_and_admin_access_shows_none() -> None:
    node = PreparedDevice("n0", NODE, "neuron-node", (0, 1))
    found = rows([prepared_claim(1, node), prepared_claim(2, whole(5, admin_access=True))], [], CORES)
    assert [each.device for each in found] == ["neuron-device-0", "neuron-device-1"]


class Kubelet:
    def __init__(self, *answers: tuple[UsedDevice, ...] | Exception) -> None:
        self.answers = list(answers)

    async def listed(self) -> tuple[UsedDevice, ...]:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def of(self, claims: Collection[Any], others: Any) -> Any:  # noqa: ARG002 - the port's signature
        raise AssertionError("only the list is asked for")


class Inside:
    """A driver that runs operations at once."""

    def __init__(self, preparer: Any, usage: Any) -> None:
        self.preparer, self.usage = preparer, usage

    async def checkpoint(self) -> Any:
        return self.preparer.checkpoint()


@dataclasses.dataclass
class Monitor:
    snapshot: HealthSnapshot


@pytest.fixture
def metrics() -> PluginMetrics:
    return PluginMetrics()


def info(node: Node, kubelet: Kubelet, metrics: PluginMetrics) -> DeviceInfo:
    health = (
        DeviceHealth("neuron-device-0"),
        DeviceHealth("neuron-device-1", HealthStatus.UNHEALTHY),
        DeviceHealth("neuron-node"),
    )
    monitor: Any = Monitor(HealthSnapshot(node.discover(), Catalogue().get(node.instance_type), health))
    preparer = node.preparer()
    preparer.prepare(allocated(1, *devices(4)), node.view())
    inside: Any = Inside(preparer, kubelet)
    read = UseReader(node.sysfs).read
    return DeviceInfo(inside, monitor, read, clock=FakeClock(), metrics=metrics)


def shown(metrics: PluginMetrics) -> list[str]:
    return [
        line for line in generate_latest(metrics.registry).decode().splitlines() if line.startswith("neuron_dra_device")
    ]


def test_a_scrape_shows_uses_and_health(node: Node, metrics: PluginMetrics) -> None:
    use = dataclasses.replace(used(1, 4), namespace="ns", pod="ns/p")
    asyncio.run(info(node, Kubelet((use,)), metrics).refresh())
    assert shown(metrics) == [
        'neuron_dra_device_info{claim="claim-1",container="main",cores="0-7",device="neuron-device-4",'
        'namespace="ns",pod="p"} 1.0',
        'neuron_dra_device_healthy{device="neuron-device-0"} 1.0',
        'neuron_dra_device_healthy{device="neuron-device-1"} 0.0',
    ]


LABELS = '{claim="claim-1",container="main",cores="0-7",device="neuron-device-4",namespace="ns",pod="p"}'


def test_a_scrape_shows_what_the_cores_of_a_pod_do(node: Node, metrics: PluginMetrics) -> None:
    emulate.write_use(node.sysfs, 4, range(8), memory=1000, microseconds=2_500_000)
    emulate.write_use(node.sysfs, 5, range(8), memory=7)
    use = dataclasses.replace(used(1, 4), namespace="ns", pod="ns/p")
    asyncio.run(info(node, Kubelet((use,)), metrics).refresh())
    found = [line for line in shown(metrics) if "info" not in line and "healthy" not in line]
    assert found == [
        f"neuron_dra_device_memory_used_bytes{LABELS} 8000.0",
        f"neuron_dra_device_busy_seconds_total{LABELS} 2.5",
        'neuron_dra_device_power_ratio{device="neuron-device-4"} 0.0',
        'neuron_dra_device_power_ratio{device="neuron-device-5"} 0.0',
    ]


@pytest.mark.parametrize(
    ("cores", "found", "told"),
    [
        ("0-1", {0: CoreUse(5, 1.0), 1: CoreUse(6, 3.0), 2: CoreUse(9, 9.0)}, CoreUse(11, 2.0)),
        ("1,2", {0: CoreUse(5, 1.0), 1: CoreUse(6), 2: CoreUse(0, 9.0)}, CoreUse(6, None)),
        ("0-1", {0: CoreUse(5, 1.0)}, CoreUse(None, None)),
        ("", {0: CoreUse(5, 1.0)}, CoreUse(None, None)),
    ],
    ids=["mean", "time-not-told-of-one", "a-core-without-files", "cores-not-known"],
)
def test_use_is_told_only_if_all_cores_of_the_container_tell_it(
    cores: str, found: dict[int, CoreUse], told: CoreUse
) -> None:
    row = DeviceUse("neuron-device-3", cores, "p", "ns", "main", "c")
    assert use_of(row, {3: CoresUse(found)}) == told
    assert use_of(row, {2: CoresUse(found)}) == CoreUse()


def test_a_kubelet_that_does_not_answer_leaves_the_last_series(node: Node, metrics: PluginMetrics) -> None:
    use = dataclasses.replace(used(1, 4), namespace="ns", pod="ns/p")
    found = info(node, Kubelet((use,), UsageUnknownError("hangs"), NoKubeletError("no socket")), metrics)
    asyncio.run(found.refresh())
    before = shown(metrics)
    asyncio.run(found.refresh())
    assert shown(metrics) == before
    consecutive, labels = "neuron_dra_plugin_consecutive_errors", {"component": "device-info"}
    assert metrics.registry.get_sample_value(consecutive, labels) == 1
    asyncio.run(found.refresh())
    assert metrics.registry.get_sample_value(consecutive, labels) == 0
    assert 'pod=""' in shown(metrics)[0]


def test_labels_of_the_series_are_escaped(metrics: PluginMetrics) -> None:
    metrics.device_series.used = {DeviceUse("d", "", 'a"\n\\b', "ns", "c", "claim"): CoreUse()}
    [line] = [each for each in shown(metrics) if "device_info" in each]
    assert 'pod="a\\"\\n\\\\b"' in line
