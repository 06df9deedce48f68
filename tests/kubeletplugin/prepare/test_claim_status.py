"""The status of claims has their devices and health; failed status writes do not affect pods."""

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.discover.health import DeviceHealth, HealthMonitor, HealthSnapshot, HealthStatus
from kubeletplugin.discover.sysfs import NodeHardware
from kubeletplugin.metrics import PluginMetrics
from kubeletplugin.prepare.checkpoint import PreparedDevice
from kubeletplugin.prepare.claim_status import ClaimStatusWriter, conditions, data, with_times
from kubeletplugin.prepare.driver import ClaimReference, Driver
from neuron.hardware.instances import Catalogue
from runtime.api_server import StatusError
from tests.kubeletplugin.fakes import (
    DRIVER,
    NODE,
    FakeApi,
    FakeClock,
    FakeUsage,
    Node,
    claim_object,
    config,
    devices,
    result,
    share,
    uid,
)
from tests.kubeletplugin.fakes import until as eventually


class World:
    """One node with its driver and the writer."""

    def __init__(self, root: Path) -> None:
        self.node = Node(root)
        self.api, self.clock, self.metrics = FakeApi(), FakeClock(), PluginMetrics()
        self.monitor = HealthMonitor(self.node.discover, Catalogue, self.clock, 1.0)
        self.driver = Driver(
            self.node.preparer(), self.api, self.node.view, NODE, FakeUsage(), clock=self.clock, metrics=self.metrics
        )
        self.writer = ClaimStatusWriter(self.driver, self.monitor, clock=self.clock, metrics=self.metrics, retry=0.01)
        self.driver.observer = self.writer

    async def prepare(self, number: int, *results: Any, **fields: Any) -> None:
        self.api.add_claim(claim_object(number, *results, **fields))
        answers = await self.driver.prepare([ClaimReference("ns", f"claim-{number}", uid(number))])
        assert answers[uid(number)].error == ""

    async def unprepare(self, number: int) -> None:
        answers = await self.driver.unprepare([ClaimReference("ns", f"claim-{number}", uid(number))])
        assert answers[uid(number)].error == ""

    def entries(self, number: int) -> list[Any]:
        return copy.deepcopy(list(self.api.claim_objects[f"ns/claim-{number}"]["status"].get("devices", ())))

    def applied(self) -> int:
        return sum(call.startswith("apply") for call in self.api.calls)

    def errors(self) -> float:
        return self.metrics.background_errors.labels("claim-status")._value.get()

    def consecutive_errors(self) -> float | None:
        name = "neuron_dra_plugin_consecutive_errors"
        return self.metrics.registry.get_sample_value(name, {"component": "claim-status"})


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    await made.monitor.refresh()
    yield made
    made.driver.close()


@contextlib.asynccontextmanager
async def running(world: World) -> AsyncIterator[None]:
    task = asyncio.create_task(world.writer.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def restarted(world: World) -> None:
    """Another instance of the driver on the same node."""
    world.driver.preparer = world.node.preparer()
    world.writer = ClaimStatusWriter(world.driver, world.monitor, clock=world.clock, metrics=world.metrics)


async def test_a_prepared_claim_has_ids_conditions_and_variables(world: World) -> None:
    await world.prepare(1, *devices(3), config=[config("NeuronConfig", logicalNeuronCore=1)])
    assert await world.writer.sync()
    [entry] = world.entries(1)
    serial = world.node.discover().devices[3].serial
    assert entry == {
        "driver": DRIVER,
        "pool": NODE,
        "device": "neuron-device-3",
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Prepared",
                "message": f"Prepared on node {NODE}.",
                "lastTransitionTime": "1970-01-12T13:46:40Z",
            },
            {
                "type": "Healthy",
                "status": "True",
                "reason": "Healthy",
                "message": "",
                "lastTransitionTime": "1970-01-12T13:46:40Z",
            },
        ],
        "data": {
            "deviceIds": [3],
            "devicePaths": ["/dev/neuron3"],
            "serialNumbers": [serial],
            "environment": {"NEURON_LOGICAL_NC_CONFIG": "1"},
        },
    }


async def test_shares_of_one_device_have_separate_entries(world: World) -> None:
    share = "8d3ae8a4-5a3c-4a3a-9c4a-0d5a7b6c1e2f"
    await world.prepare(1, result("neuron-device-0", shareID=share))
    await world.writer.sync()
    assert [entry["shareID"] for entry in world.entries(1)] == [share]


async def test_entries_of_other_drivers_stay(world: World) -> None:
    other = {"driver": "efa.example.com", "pool": NODE, "device": "efa-0"}
    await world.prepare(1, *devices(0), {**result("efa-0"), "driver": "efa.example.com"})
    world.api.claim_objects["ns/claim-1"]["status"]["devices"] = [other]
    await world.writer.sync()
    assert [entry["device"] for entry in world.entries(1)] == ["efa-0", "neuron-device-0"]
    await world.unprepare(1)
    await world.writer.sync()
    assert world.entries(1) == [other]


async def test_a_device_in_two_admin_access_requests_has_one_entry(world: World) -> None:
    looks = [result("neuron-device-0", request, adminAccess=True) for request in ("a", "b")]
    await world.prepare(1, *looks)
    await world.writer.sync()
    assert [entry["device"] for entry in world.entries(1)] == ["neuron-device-0"]


async def test_nothing_is_written_while_nothing_changes(world: World) -> None:
    await world.prepare(1, *devices(0, 1))
    assert [await world.writer.sync() for _ in range(3)] == [True, True, True]
    assert requests(world, 1) == ["get ns/claim-1", "apply ns/claim-1 2"]


@pytest.mark.parametrize(
    "results",
    [devices(0), devices(5, 4), (share(5, 2, "n1", "b"), share(5, 2, "n0", "a"))],
    ids=["one", "unsorted", "shares"],
)
async def test_a_new_instance_reads_the_claim_and_writes_only_differences(
    world: World, results: tuple[Any, ...]
) -> None:
    await world.prepare(1, *results)
    await world.writer.sync()
    world.api.claim_objects["ns/claim-1"]["status"]["devices"].reverse()
    foreign = {"driver": "gpu.example.com", "pool": NODE, "device": "gpu-0"}
    world.api.claim_objects["ns/claim-1"]["status"]["devices"].append(foreign)
    before = world.entries(1)
    restarted(world)
    world.clock.time += 3600
    for _ in range(2):
        await world.writer.sync()
    assert (world.applied(), world.entries(1)) == (1, before)
    assert len(requests(world, 1)) == 3, "it is read by the driver and by each instance"
    world.api.claim_objects["ns/claim-1"]["status"]["devices"][0]["data"] = {}
    restarted(world)
    await world.writer.sync()
    found = sorted(world.entries(1), key=before.index)
    assert found == before, "also the times, because no status changed"


async def test_health_that_changes_is_written(world: World) -> None:
    async with running(world):
        await world.prepare(1, *devices(0, 1))
        await eventually(lambda: world.entries(1))
        counter = world.node.device_directory(1) / "stats/hardware/mem_ecc_uncorrected"
        counter.write_text("2\n")
        world.clock.time += 60
        await world.monitor.refresh()
        await eventually(lambda: world.entries(1)[1]["conditions"][1]["status"] == "False")
        assert world.entries(1)[1]["conditions"][1] == {
            "type": "Healthy",
            "status": "False",
            "reason": "HbmEcc",
            "message": "mem_ecc_uncorrected is 2",
            "lastTransitionTime": "1970-01-12T13:47:40Z",
        }
        assert world.entries(1)[0]["conditions"][1]["status"] == "True"
        ready = world.entries(1)[1]["conditions"][0]
        assert (ready["status"], ready["lastTransitionTime"]) == ("True", "1970-01-12T13:46:40Z")
        counter.write_text("0\n")
        await world.monitor.refresh()
        await eventually(lambda: world.entries(1)[1]["conditions"][1]["status"] == "True")


OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "pod-uid", "controller": True}


def requests(world: World, number: int) -> list[str]:
    """Requests about a claim."""
    return [call for call in world.api.calls if f"ns/claim-{number}" in call]


@pytest.mark.parametrize("quick", [True, False], ids=["before it was written", "after it was written"])
async def test_a_pod_with_its_own_claim_costs_two_requests_at_most(world: World, quick: bool) -> None:
    body = claim_object(1, *devices(0, 1))
    body["metadata"]["ownerReferences"] = [OWNER]
    world.api.add_claim(body)
    async with running(world):
        answers = await world.driver.prepare([ClaimReference("ns", "claim-1", uid(1))])
        assert answers[uid(1)].error == ""
        if not quick:
            await eventually(lambda: world.entries(1))
        await world.unprepare(1)
        await world.prepare(2, *devices(2))
        await eventually(lambda: world.entries(2))
    if quick:
        assert len(requests(world, 1)) <= 2
    else:
        assert requests(world, 1) == ["get ns/claim-1", "apply ns/claim-1 2"]
    assert requests(world, 2) == ["get ns/claim-2", "apply ns/claim-2 1"]
    await world.writer.sync()
    assert (world.writer._objects, world.writer._of_pods) == ({}, set())


async def test_a_claim_of_a_pod_that_was_prepared_before_the_start_is_left_to_the_api_server(world: World) -> None:
    body = claim_object(1, *devices(0))
    body["metadata"]["ownerReferences"] = [OWNER]
    world.api.add_claim(body)
    await world.driver.prepare([ClaimReference("ns", "claim-1", uid(1))])
    await world.writer.sync()
    restarted(world)
    world.driver.observer = world.writer
    await world.writer.sync()
    await world.unprepare(1)
    await world.writer.sync()
    assert world.applied() == 1


async def test_an_unprepared_claim_has_no_entries(world: World) -> None:
    async with running(world):
        await world.prepare(1, *devices(0))
        await eventually(lambda: world.entries(1))
        await world.unprepare(1)
        await eventually(lambda: world.entries(1) == [])


async def test_a_claim_that_was_prepared_before_the_start_is_cleared_too(world: World) -> None:
    await world.prepare(1, *devices(0))
    await world.writer.sync()
    restarted(world)
    world.driver.observer = world.writer
    await world.unprepare(1)
    await world.writer.sync()
    assert world.entries(1) == []


@pytest.mark.parametrize("order", [(1, 2), (2, 1)], ids=["after", "before"])
@pytest.mark.parametrize("again", [False, True], ids=["unprepared", "prepared again"])
async def test_a_claim_is_unprepared_while_another_one_is_written(
    world: World, monkeypatch: pytest.MonkeyPatch, again: bool, order: tuple[int, int]
) -> None:
    """The writer has the checkpoint from before."""
    for number in order:
        await world.prepare(number, *devices(number))
    await world.writer.sync()
    (world.node.device_directory(1) / "stats/hardware/sram_ecc_uncorrected").write_text("1\n")
    await world.monitor.refresh()
    really = world.api.apply_devices

    async def apply(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(world.api, "apply_devices", really)
        await world.unprepare(2)
        if again:
            await world.driver.prepare([ClaimReference("ns", "claim-2", uid(2))])
        return await really(*arguments, **options)

    monkeypatch.setattr(world.api, "apply_devices", apply)
    for _ in range(2):
        assert await world.writer.sync()
    assert [entry["device"] for entry in world.entries(2)] == (["neuron-device-2"] if again else [])


async def test_a_claim_that_is_prepared_again_keeps_its_entries(world: World) -> None:
    await world.prepare(1, *devices(0))
    await world.unprepare(1)
    await world.prepare(1, *devices(0))
    await world.writer.sync()
    await world.writer.sync()
    assert [entry["device"] for entry in world.entries(1)] == ["neuron-device-0"]


async def test_a_claim_that_is_prepared_for_other_devices_has_their_entries(world: World) -> None:
    for index in (0, 5):
        await world.prepare(1, *devices(index))
        await world.writer.sync()
        assert [entry["device"] for entry in world.entries(1)] == [f"neuron-device-{index}"]
    world.api.calls.clear()
    await world.writer.sync()
    assert world.api.calls == [], "the devices that it had before have no entry"


@pytest.mark.parametrize("forbidden", ["", "get ns/claim-1", "apply ns/claim-1 0"])
async def test_the_entries_of_an_unprepared_claim_are_removed_once(world: World, forbidden: str) -> None:
    await world.prepare(1, *devices(0))
    await world.writer.sync()
    await world.unprepare(1)
    world.api.forbidden.add(forbidden)
    world.api.calls.clear()
    for _ in range(3):
        assert await world.writer.sync()
    tried = ["get ns/claim-1", "apply ns/claim-1 0"]
    assert world.api.calls == tried[: 1 if forbidden == tried[0] else 2]


async def test_a_claim_that_is_prepared_again_before_the_writer_hears_of_it_is_not_cleared(world: World) -> None:
    """The checkpoint has it already; `prepared` follows."""
    await world.prepare(1, *devices(0))
    await world.writer.sync()
    world.writer.unprepared(ClaimReference("ns", "claim-1", uid(1)))
    assert await world.writer.sync()
    assert len(world.entries(1)) == 1


@pytest.mark.parametrize("failing", [1, 2], ids=["first", "last"])
@pytest.mark.parametrize("what", ["apply", "clear"])
async def test_one_claim_that_has_to_be_tried_again_is_not_forgotten_for_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch, what: str, failing: int
) -> None:
    for number in (1, 2):
        await world.prepare(number, *devices(number))
    if what == "clear":
        await world.writer.sync()
        for number in (1, 2):
            await world.unprepare(number)
    really = world.api.apply_devices

    async def apply(namespace: str, name: str, *arguments: Any, **options: Any) -> Any:
        if name == f"claim-{failing}":
            raise StatusError(503, "down")
        return await really(namespace, name, *arguments, **options)

    monkeypatch.setattr(world.api, "apply_devices", apply)
    assert not await world.writer.sync()
    monkeypatch.setattr(world.api, "apply_devices", really)
    assert await world.writer.sync()
    assert [len(world.entries(number)) for number in (1, 2)] == ([1, 1] if what == "apply" else [0, 0])


async def test_entries_of_another_node_are_not_removed(world: World) -> None:
    """The API server could not be reached while the claim was deallocated here and allocated there."""
    await world.prepare(1, *devices(0))
    await world.writer.sync()
    await world.unprepare(1)
    theirs = {"driver": DRIVER, "pool": "node-b", "device": "neuron-device-0"}
    moved = claim_object(1, *(each | {"pool": "node-b"} for each in devices(0)))
    moved["status"]["devices"] = [theirs]
    world.api.add_claim(moved)
    assert await world.writer.sync()
    assert world.entries(1) == [theirs]
    assert world.api.calls.count("apply ns/claim-1 0") == 0


async def test_a_claim_that_changes_while_it_is_cleared_is_read_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.prepare(1, *devices(0))
    await world.writer.sync()
    await world.unprepare(1)
    really = world.api.apply_devices

    async def apply(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(world.api, "apply_devices", really)
        world.api.claim_objects["ns/claim-1"]["metadata"]["resourceVersion"] = "changed"
        return await really(*arguments, **options)

    monkeypatch.setattr(world.api, "apply_devices", apply)
    assert not await world.writer.sync()
    assert len(world.entries(1)) == 1
    assert await world.writer.sync()
    assert world.entries(1) == []


@pytest.mark.parametrize("change", ["gone", "another UID", "other devices"])
async def test_a_claim_that_was_deleted_or_allocated_again_is_not_written(world: World, change: str) -> None:
    await world.prepare(1, *devices(0))
    if change == "gone":
        world.api.remove_claim(1)
    elif change == "another UID":
        world.api.claim_objects["ns/claim-1"]["metadata"]["uid"] = uid(9)
    else:
        world.api.add_claim(claim_object(1, *devices(5)))
    restarted(world)
    world.driver.observer = world.writer
    assert await world.writer.sync()
    assert world.applied() == 0
    await world.unprepare(1)
    assert await world.writer.sync()
    assert world.errors() == 0


async def test_a_claim_of_an_unknown_form_fails_alone(world: World) -> None:
    for number in (1, 2):
        await world.prepare(number, *devices(number))
    world.api.add_claim(claim_object(1, *devices(1)) | {"status": {"allocation": 7}})
    restarted(world)
    assert await world.writer.sync()
    assert (world.applied(), world.errors()) == (1, 1)


async def test_a_claim_that_is_deleted_before_the_write_is_forgotten(world: World) -> None:
    await world.prepare(1, *devices(0))
    await world.writer.sync()
    world.api.remove_claim(1)
    (world.node.device_directory(0) / "stats/hardware/sram_ecc_uncorrected").write_text("1\n")
    await world.monitor.refresh()
    assert await world.writer.sync()
    assert world.errors() == 0


async def test_status_is_written_again_after_the_api_server_was_unavailable(world: World) -> None:
    async with running(world):
        world.api.fail = None
        await world.prepare(1, *devices(0))
        await eventually(lambda: world.entries(1))
        world.api.fail = StatusError(503, "down")
        await world.unprepare(1)
        await eventually(lambda: world.errors() >= 2)
        assert world.consecutive_errors() == world.errors()
        world.api.fail = None
        await eventually(lambda: world.entries(1) == [])
        await eventually(lambda: world.consecutive_errors() == 0)


async def test_a_refused_status_write_does_not_fail_prepare_and_is_retried_later(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await world.prepare(1, *devices(0))
    world.api.fail = StatusError(403, "resourceclaims/status is forbidden", "Forbidden")
    assert await world.writer.sync(), "nothing to repeat soon"
    assert await world.writer.sync()
    assert (world.errors(), world.consecutive_errors()) == (1, 1), "the pause after a refusal is no success"
    assert caplog.records[-1].__dict__["error"] == (
        "the status of ResourceClaim ns/claim-1 cannot be written: HTTP 403, 'resourceclaims/status is forbidden'"
    )
    world.api.fail = None
    world.clock.time += 601
    await world.writer.sync()
    assert world.entries(1)
    assert world.consecutive_errors() == 0


async def test_status_is_not_written_repeatedly_if_the_api_server_drops_the_field(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.api.keeps_device_status = False
    for number in (1, 2):
        await world.prepare(number, *devices(number))
    for _ in range(3):
        assert await world.writer.sync()
    await world.unprepare(2)
    assert await world.writer.sync()
    assert world.applied() <= 2
    [record] = [each for each in caplog.records if each.message == "claim status is limited"]
    assert "DRAResourceClaimDeviceStatus is off" in record.__dict__["reason"]


async def test_an_unreadable_checkpoint_is_reported_by_the_status_writer(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(_call: Any) -> Any:
        raise OSError("disk")

    monkeypatch.setattr(world.driver, "in_state", broken)
    assert not await world.writer.sync()
    assert caplog.records[-1].__dict__["error"] == "prepared claims cannot be read: disk"


def test_a_device_without_health_checks_has_unknown_health() -> None:
    assert conditions("neuron-device-0", NODE, HealthSnapshot(NodeHardware(None, None), None))[1] == {
        "type": "Healthy",
        "status": "Unknown",
        "reason": "NotMonitored",
        "message": "The device is not known on the node.",
    }


@pytest.mark.parametrize(
    ("health", "status", "reason"),
    [
        (DeviceHealth("neuron-device-0", HealthStatus.UNKNOWN, message="why"), "Unknown", "NotReadable"),
        (DeviceHealth("neuron-device-0", HealthStatus.UNHEALTHY, "hbm-ecc", "why"), "False", "HbmEcc"),
        (DeviceHealth("neuron-device-0", HealthStatus.UNHEALTHY, message="why"), "False", "Unhealthy"),
    ],
    ids=["not readable", "unhealthy", "unhealthy without reason"],
)
def test_a_condition_says_what_the_health_is(health: DeviceHealth, status: str, reason: str) -> None:
    found = conditions("neuron-device-0", NODE, HealthSnapshot(NodeHardware(None, None), None, (health,)))[1]
    assert found == {"type": "Healthy", "status": status, "reason": reason, "message": "why"}


def test_a_serial_number_that_is_missing_is_left_out() -> None:
    device = PreparedDevice("n0", NODE, "neuron-node", (0, 1))
    found = data(device, {}, HealthSnapshot(NodeHardware(None, None), None))
    assert found == {"deviceIds": [0, 1], "devicePaths": ["/dev/neuron0", "/dev/neuron1"]}


def test_a_time_changes_with_the_status() -> None:
    old = [{"type": "Ready", "status": "True", "lastTransitionTime": "then"}]
    now = [{"type": "Ready", "status": "True"}, {"type": "Healthy", "status": "False"}]
    assert [each["lastTransitionTime"] for each in with_times(now, old, "now")] == ["then", "now"]
