"""The gRPC services over real unix sockets, as the kubelet calls them."""

import asyncio
import contextlib
import dataclasses
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
import pytest

from kubeletplugin import kubelet
from kubeletplugin.discover.health import HealthMonitor
from kubeletplugin.kubelet import (
    SocketError,
    SocketPaths,
    UnixServer,
    handlers,
    other_sockets,
    probe_service,
    registration,
    remove_stale_sockets,
    socket_paths,
)
from kubeletplugin.metrics import PluginMetrics
from kubeletplugin.pb import (
    dra_health_v1alpha1_pb2,
    dra_v1_pb2,
    dra_v1beta1_pb2,
    health_v1_pb2,
    registration_v1_pb2,
)
from kubeletplugin.ports import WAITS
from kubeletplugin.prepare.driver import Driver
from neuron.hardware.instances import Catalogue
from runtime.api_server import UnreachableError
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
    share,
    spec_name,
    uid,
)

PREPARE = "NodePrepareResources"
VERSIONS = {
    "v1": ("k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", dra_v1_pb2),
    "v1beta1": ("k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin", dra_v1beta1_pb2),
}


class World:
    """A driver that serves on a socket, and a client of it."""

    def __init__(self, node: Node, api: FakeApi, clock: FakeClock, channel: grpc.aio.Channel) -> None:
        self.node, self.api, self.clock, self.channel = node, api, clock, channel
        self.monitor: HealthMonitor

    async def call(self, service: str, method: str, request: Any, answer: Any, **options: Any) -> Any:
        stub = self.channel.unary_unary(
            f"/{service}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return await stub(request, **options)

    async def dra(self, version: str, method: str, *numbers: int, **options: Any) -> Any:
        service, pb = VERSIONS[version]
        claims = [pb.Claim(namespace="ns", name=f"claim-{number}", uid=uid(number)) for number in numbers]
        request = getattr(pb, f"{method}Request")(claims=claims)
        return await self.call(service, method, request, getattr(pb, f"{method}Response"), **options)


@contextlib.asynccontextmanager
async def world(node: Node, api: FakeApi, clock: FakeClock) -> AsyncIterator[World]:
    driver = Driver(node.preparer(), api, node.view, NODE, FakeUsage(), clock=clock, metrics=PluginMetrics())
    monitor = HealthMonitor(node.discover, Catalogue, clock, 10.0)
    await monitor.refresh()
    server = UnixServer(node.root / "dra.sock", handlers(driver, monitor, NODE, clock))
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{server.path}") as channel:
        made = World(node, api, clock, channel)
        made.monitor = monitor
        yield made
    await server.stop(0)
    driver.close()


def test_full_names_are_those_of_the_kubelet() -> None:
    for name, pb in VERSIONS.values():
        assert [service.full_name for service in pb.DESCRIPTOR.services_by_name.values()] == [name]
    assert (
        registration_v1_pb2.DESCRIPTOR.services_by_name["Registration"].full_name == "pluginregistration.Registration"
    )
    health = dra_health_v1alpha1_pb2.DESCRIPTOR.services_by_name["DRAResourceHealth"]
    assert health.full_name == "v1alpha1.DRAResourceHealth"


@pytest.mark.parametrize(("pb", "fields"), [(dra_v1_pb2, 5), (dra_v1beta1_pb2, 4)], ids=["v1", "v1beta1"])
def test_share_ids_exist_in_v1_only(pb: ModuleType, fields: int) -> None:
    assert len(pb.Device.DESCRIPTOR.fields) == fields


@pytest.mark.parametrize("version", VERSIONS)
async def test_both_versions_prepare_and_unprepare(node: Node, api: FakeApi, clock: FakeClock, version: str) -> None:
    settings = [config("NeuronConfig", logicalNeuronCore=1)]
    api.add_claim(claim_object(1, result("neuron-device-3", "n0/big"), config=settings))

    async with world(node, api, clock) as at:
        answer = await at.dra(version, PREPARE, 1, 2)
        [device] = answer.claims[uid(1)].devices
        assert list(device.request_names) == ["n0"]
        assert (device.pool_name, device.device_name) == (NODE, "neuron-device-3")
        kind = "neuron.aws.com/claim"
        assert list(device.cdi_device_ids) == [f"{kind}={uid(1)}_n0_neuron-device-3", f"{kind}={uid(1)}_n0"]
        assert answer.claims[uid(1)].error == ""
        assert "does not exist" in answer.claims[uid(2)].error
        assert await at.dra(version, PREPARE, 1) == type(answer)(claims={uid(1): answer.claims[uid(1)]})
        undone = await at.dra(version, "NodeUnprepareResources", 1, 2)
        assert {key: value.error for key, value in undone.claims.items()} == {uid(1): "", uid(2): ""}
    assert node.spec_names() == []


async def test_each_request_has_the_logical_neuron_core_of_its_config(
    node: Node, api: FakeApi, clock: FakeClock
) -> None:
    settings = [
        config("NeuronConfig", requests=("n0",), logicalNeuronCore=1),
        config("NeuronConfig", requests=("n1/a", "n1/b"), logicalNeuronCore=2),
    ]
    results = [result(f"neuron-device-{number}", name) for number, name in enumerate(("n0", "n0", "n1/b", "n2"))]
    api.add_claim(claim_object(1, *results, config=settings))

    async with world(node, api, clock) as at:
        answer = (await at.dra("v1", PREPARE, 1)).claims[uid(1)]
        assert (answer.error, [list(each.request_names) for each in answer.devices]) == (
            "",
            [["n0"], ["n0"], ["n1"], ["n2"]],
        )
    spec = json.loads((node.cdi_dir / spec_name(1)).read_text())
    sets = {
        each["name"]: [text for text in each["containerEdits"].get("env", ()) if text.startswith("NEURON_LOGICAL")]
        for each in spec["devices"]
    }
    assert {name.removeprefix(f"{uid(1)}_"): value for name, value in sets.items() if value} == {
        "n0": ["NEURON_LOGICAL_NC_CONFIG=1"],
        "n1": ["NEURON_LOGICAL_NC_CONFIG=2"],
    }


@pytest.mark.parametrize(("version", "share_id"), [("v1", "the-share"), ("v1beta1", None)])
async def test_the_kubelet_gets_the_share_of_a_device_if_its_version_has_it(
    tmp_path: Path, api: FakeApi, clock: FakeClock, version: str, share_id: str | None
) -> None:
    api.add_claim(claim_object(1, share(0, 1, share_id="the-share")))
    api.add_claim(claim_object(2, result("neuron-device-1")))

    async with world(Node(tmp_path, "inf1.6xlarge"), api, clock) as at:
        answer = await at.dra(version, PREPARE, 1, 2)
        [shared], [whole] = (answer.claims[uid(number)].devices for number in (1, 2))
        assert (shared.share_id if share_id else None) == share_id
        assert not share_id or not whole.HasField("share_id")


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_empty_call_is_a_probe(node: Node, api: FakeApi, clock: FakeClock, version: str) -> None:
    async with world(node, api, clock) as at:
        assert len((await at.dra(version, PREPARE)).claims) == 0


def test_claims_of_many_pods_at_once_are_all_answered(node: Node, api: FakeApi, clock: FakeClock) -> None:
    for number in range(16):
        api.add_claim(claim_object(number, *devices(number)))

    async def scenario() -> list[str]:
        async with world(node, api, clock) as at:
            answers = await asyncio.gather(*(at.dra("v1", PREPARE, number) for number in range(16)))
            return [answer.claims[uid(number)].error for number, answer in enumerate(answers)]

    assert asyncio.run(scenario()) == [""] * 16
    assert len(node.spec_names()) == 16


@pytest.mark.parametrize(
    ("remaining", "least", "most"), [(None, 30, WAITS.call), (10.0, 3, 7.5), (1.0, 0, 0)], ids=["none", "10-s", "1-s"]
)
async def test_retries_end_before_the_kubelets_time_out(
    node: Node, api: FakeApi, clock: FakeClock, remaining: float | None, least: float, most: float
) -> None:
    api.fail = UnreachableError("down")

    async with world(node, api, clock) as at:
        answer = await at.dra("v1", PREPARE, 1, timeout=remaining)
        assert "cannot be read: down" in answer.claims[uid(1)].error
    assert least <= sum(clock.slept) <= most


@pytest.mark.parametrize("version", ["v1", "v1alpha1"])
async def test_the_complete_health_is_streamed_at_start_and_on_every_change(
    node: Node, api: FakeApi, clock: FakeClock, version: str
) -> None:
    pb = dra_health_v1alpha1_pb2

    async with world(node, api, clock) as at:
        stub = at.channel.unary_stream(
            f"/{version}.DRAResourceHealth/NodeWatchResources",
            request_serializer=pb.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=pb.NodeWatchResourcesResponse.FromString,
        )
        stream: Any = stub(pb.NodeWatchResourcesRequest())
        first = await stream.read()
        assert [device.device.device_name for device in first.devices] == [f"neuron-device-{n}" for n in range(16)]
        assert {device.device.pool_name for device in first.devices} == {NODE}
        assert {device.health for device in first.devices} == {pb.HEALTHY}
        assert {device.last_updated_time for device in first.devices} == {int(clock.time)}
        assert {device.health_check_timeout_seconds for device in first.devices} == {30}
        (node.dev / "neuron4").unlink()
        await at.monitor.refresh()
        second = await stream.read()
        assert (second.devices[4].health, second.devices[4].message) == (pb.UNHEALTHY, "/dev/neuron4 is missing")
        assert second.devices[5].health == pb.HEALTHY
        stream.cancel()


async def test_health_is_sent_again_before_it_expires_in_the_kubelet(
    node: Node, api: FakeApi, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert WAITS.health_resent < WAITS.health_lost
    monkeypatch.setattr(kubelet, "WAITS", dataclasses.replace(WAITS, health_resent=0.01))
    pb = dra_health_v1alpha1_pb2

    async with world(node, api, clock) as at:
        stub = at.channel.unary_stream(
            "/v1alpha1.DRAResourceHealth/NodeWatchResources",
            request_serializer=pb.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=pb.NodeWatchResourcesResponse.FromString,
        )
        stream: Any = stub(pb.NodeWatchResourcesRequest())
        for _ in range(3):
            await stream.read()
        stream.cancel()


# --- registration -------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def registered(paths: SocketPaths) -> AsyncIterator[tuple[list[bool], grpc.aio.Channel]]:
    """The kubelet's answers as the driver receives them, and a channel for its calls."""
    answers: list[bool] = []
    server = UnixServer(paths.registration, [registration(paths.plugin, answers.append)])
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{paths.registration}") as channel:
        yield answers, channel
    await server.stop(0)


async def registration_call(channel: grpc.aio.Channel, method: str, request: Any, answer: Any) -> Any:
    stub = channel.unary_unary(
        f"/pluginregistration.Registration/{method}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=answer.FromString,
    )
    return await stub(request)


@pytest.mark.parametrize(("registered_now", "level"), [(True, "INFO"), (False, "ERROR")], ids=["taken", "refused"])
async def test_registration_is_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, level: str, *, registered_now: bool
) -> None:
    pb = registration_v1_pb2
    paths = socket_paths(tmp_path / "p", tmp_path / "r")
    caplog.set_level("INFO")

    async with registered(paths) as (answers, channel):
        info = await registration_call(channel, "GetInfo", pb.InfoRequest(), pb.PluginInfo)
        assert (info.type, info.name, info.endpoint) == ("DRAPlugin", "neuron.aws.com", str(paths.plugin))
        assert list(info.supported_versions) == [
            *("v1.DRAPlugin", "v1beta1.DRAPlugin"),
            *("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"),
        ]
        assert answers == []
        status = pb.RegistrationStatus(plugin_registered=registered_now, error="no")
        await registration_call(channel, "NotifyRegistrationStatus", status, pb.RegistrationStatusResponse)
        assert answers == [registered_now]
    assert [record.levelname for record in caplog.records if record.name == "kubeletplugin.kubelet"] == [level]


def test_sockets_carry_the_pods_uid(short_path: Path) -> None:
    fixed, own = (socket_paths(short_path / "p", short_path / "r", pod) for pod in ("", "abc-1"))
    assert (fixed.plugin.name, fixed.registration.name) == ("dra.sock", "neuron.aws.com-reg.sock")
    assert (own.plugin.name, own.registration.name) == ("dra-abc-1.sock", "neuron.aws.com-abc-1-reg.sock")


def test_the_kubelets_own_directories_leave_room_for_a_uid() -> None:
    socket_paths(Path("/var/lib/kubelet/plugins/neuron.aws.com"), Path("/var/lib/kubelet/plugins_registry"), uid(1))


def test_a_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SocketError) as caught:
        socket_paths(tmp_path / ("x" * 100), tmp_path)
    assert str(caught.value).endswith("is longer than the 107 bytes that the kernel allows: use shorter directories.")


def test_a_socket_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    server = UnixServer(tmp_path / "file" / "dra.sock", [])
    with pytest.raises(SocketError, match=rf"^The driver cannot serve on {tmp_path}/file/dra.sock: "):
        asyncio.run(server.start())


def test_unserved_sockets_are_removed_and_served_ones_stay(tmp_path: Path) -> None:
    plugins, registry = tmp_path / "p", tmp_path / "r"
    for directory in (plugins, registry):
        directory.mkdir()
    stale = (
        plugins / ".dra-old",
        plugins / "dra-old.sock",
        plugins / "dra.sock",
        registry / "neuron.aws.com-old-reg.sock",
    )
    foreign = (registry / "gpu.nvidia.com-reg.sock", plugins / "other.sock")
    for path in (*stale, *foreign):
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    (plugins / "dra-file.sock").touch()
    with socket.socket(socket.AF_UNIX) as living:
        living.bind(str(plugins / "dra-living.sock"))
        living.listen()
        removed = remove_stale_sockets(plugins, registry)
    assert removed == stale
    assert {path.name for path in plugins.iterdir()} == {"dra-file.sock", "dra-living.sock", "other.sock"}
    assert [path.name for path in registry.iterdir()] == ["gpu.nvidia.com-reg.sock"]


def test_directories_that_do_not_exist_have_no_stale_sockets(tmp_path: Path) -> None:
    assert remove_stale_sockets(tmp_path / "p", tmp_path / "r") == ()


def test_another_instance_is_seen_by_the_socket_that_it_serves(tmp_path: Path) -> None:
    own = tmp_path / "neuron.aws.com-a-reg.sock"
    assert other_sockets(tmp_path / "none", own) == ()
    with socket.socket(socket.AF_UNIX) as dead, socket.socket(socket.AF_UNIX) as foreign:
        dead.bind(str(tmp_path / "neuron.aws.com-dead-reg.sock"))
        for path in (own, tmp_path / "gpu.nvidia.com-b-reg.sock"):
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(str(path))
        foreign.bind(str(tmp_path / "gpu.nvidia.com-c-reg.sock"))
        foreign.listen()
        assert other_sockets(tmp_path, own) == ()
        with socket.socket(socket.AF_UNIX) as living:
            living.bind(str(tmp_path / "neuron.aws.com-b-reg.sock"))
            living.listen()
            assert other_sockets(tmp_path, own) == ("neuron.aws.com-b-reg.sock",)
        with socket.socket(socket.AF_UNIX) as helper:
            helper.bind(str(tmp_path / "neuron.aws.com-reg.sock"))
            helper.listen()
            name = "neuron.aws.com-reg.sock"
            assert other_sockets(tmp_path, own) == (name,)


async def test_an_instance_can_start_while_another_with_its_process_number_ends(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC removes the name on which it listened; processes of containers have small numbers."""
    older, newer = (UnixServer(short_path / f"dra-{name}.sock", []) for name in "ab")
    await older.start()
    made = grpc.aio.server

    def server() -> grpc.aio.Server:
        found = made()
        start = found.start

        async def start_and_end_the_other() -> None:
            await start()
            await older.stop(0)

        monkeypatch.setattr(found, "start", start_and_end_the_other)
        return found

    monkeypatch.setattr(grpc.aio, "server", server)
    await newer.start()
    assert newer.in_place
    await newer.stop(0)


async def test_a_stopping_instance_leaves_the_socket_of_its_successor(tmp_path: Path) -> None:
    path = tmp_path / "dra.sock"
    old, new = UnixServer(path, []), UnixServer(path, [])
    await old.start()
    await new.start()
    await old.stop(0)
    assert path.exists()
    await new.stop(0)
    assert not path.exists()


# --- probes -------------------------------------------------------------------------------------------------------


async def health_status(probes: grpc.GenericRpcHandler, path: Path, service: str) -> int:
    server = UnixServer(path, [probes])
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            stub = channel.unary_unary(
                "/grpc.health.v1.Health/Check",
                request_serializer=health_v1_pb2.HealthCheckRequest.SerializeToString,
                response_deserializer=health_v1_pb2.HealthCheckResponse.FromString,
            )
            answer = await stub(health_v1_pb2.HealthCheckRequest(service=service))
            status: int = answer.status
            return status
    finally:
        await server.stop(0)


PROBES = {
    "": (False, ()),
    "liveness": (False, ()),
    "readiness": (True, ()),
    "readiness/devices": (True, ("devices",)),
    "readiness/node": (True, ("node", "devices")),
}


@pytest.mark.parametrize("name", PROBES)
async def test_probes_ask_as_the_kubelet_does(node: Node, api: FakeApi, clock: FakeClock, name: str) -> None:
    registered_now, offered = PROBES[name]

    paths = SocketPaths(node.root / "dra.sock", node.root / "reg.sock")
    probes = probe_service(paths, registered=lambda: registered_now, offered=lambda: offered)
    async with world(node, api, clock):
        assert await health_status(probes, node.root / "h", name) == health_v1_pb2.HealthCheckResponse.NOT_SERVING
        async with registered(paths):
            assert await health_status(probes, node.root / "h", name) == health_v1_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize(
    ("name", "registered_now", "offered"),
    [
        ("readiness", False, ("devices",)),
        ("readiness/devices", False, ("devices",)),
        ("readiness/devices", True, ("node",)),
        ("readiness/node", True, ("devices",)),
        ("readiness/node", True, ()),
    ],
)
async def test_an_instance_is_not_ready_for_services_that_it_does_not_offer(
    node: Node, api: FakeApi, clock: FakeClock, name: str, offered: tuple[str, ...], *, registered_now: bool
) -> None:
    paths = SocketPaths(node.root / "dra.sock", node.root / "reg.sock")
    probes = probe_service(paths, registered=lambda: registered_now, offered=lambda: offered)
    async with world(node, api, clock), registered(paths):
        assert await health_status(probes, node.root / "h", name) == health_v1_pb2.HealthCheckResponse.NOT_SERVING
        assert await health_status(probes, node.root / "h", "liveness") == health_v1_pb2.HealthCheckResponse.SERVING


def test_other_services_are_not_found(tmp_path: Path) -> None:
    probes = probe_service(SocketPaths(tmp_path / "a", tmp_path / "b"), registered=bool, offered=tuple)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        asyncio.run(health_status(probes, tmp_path / "h", "nonsense"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert caught.value.details() == "There is no service 'nonsense' here."
