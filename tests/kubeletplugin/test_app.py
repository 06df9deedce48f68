"""The whole plugin as a process: it starts, serves, publishes, and stops without leaving anything behind."""

import asyncio
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from aiohttp import web

from kubeletplugin.metrics import PluginMetrics
from kubeletplugin.pb import dra_v1_pb2, health_v1_pb2, registration_v1_pb2
from kubeletplugin.publish.slices import driver_version
from runtime import logs
from tests.kubeletplugin.fakes import NODE, claim_object, devices, uid, until
from tests.kubeletplugin.kubelet_server import KubeletServer
from tests.kubeletplugin.test_api_store import Server, kubeconfig, status
from tests.support.forked import Forked

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
TYPES = {"fixed": "", "own": "beef"}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Plugin:
    """One process of the plugin, against an API server of the test's."""

    def __init__(self, root: Path, server: str, pod_uid: str = "", **flags: Any) -> None:
        self.root = root
        self.pod_uid = pod_uid
        self.metrics_port, self.health_port = free_port(), free_port()
        arguments = {
            "node-name": NODE,
            "kubeconfig": kubeconfig(root, server),
            "emulate": "trn2.48xlarge",
            "cdi-dir": root / "cdi",
            "kubelet-plugins-dir": root / "p",
            "kubelet-registry-dir": root / "r",
            "pod-resources-socket": root / "pod-resources.sock",
            "bind-address": "127.0.0.1",
            "metrics-port": self.metrics_port,
            "health-port": self.health_port,
            "pod-uid": pod_uid,
        } | {key.replace("_", "-"): value for key, value in flags.items()}
        self.log = root / "log"
        given = [f"--{key}={value}" for key, value in arguments.items()]
        with self.log.open("ab") as log, Path(os.devnull).open() as nothing:
            self.process = Forked("kubeletplugin", given, (nothing.fileno(), log.fileno(), log.fileno()))

    @property
    def sockets(self) -> tuple[Path, Path]:
        infix = f"-{self.pod_uid}" if self.pod_uid else ""
        return self.root / f"p/neuron.aws.com/dra{infix}.sock", self.root / f"r/neuron.aws.com{infix}-reg.sock"

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    async def ended(self) -> int:
        return await asyncio.to_thread(self.process.wait, 20)


async def call(path: Path, method: str, request: Any, answer: Any) -> Any:
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        stub = channel.unary_unary(
            method, request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString
        )
        return await stub(request, timeout=60)


class ApiServer:
    """A fake API server on a real port."""

    def __init__(self) -> None:
        self.server = Server()
        self.stored: list[Any] = []
        answers = self.server.answers
        answers[f"/api/v1/nodes/{NODE}"] = {"metadata": {"name": NODE, "uid": "u", "labels": {}}}
        answers["/version"] = {"major": "1", "minor": "36"}
        answers[f"POST {SLICES}"] = self._create
        answers[f"GET {SLICES}"] = self._list
        answers[f"DELETE {SLICES}/{NODE}-neuron.aws.com-000"] = self._delete
        answers["/api/v1/nodes"] = self._nodes
        answers["/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/claim-1"] = claim_object(1, *devices(0, 1))

    async def _create(self, request: web.Request) -> web.Response:
        body = await request.json()
        body["metadata"]["resourceVersion"] = "2"
        if "dryRun" not in request.query:
            self.stored.append(body)
        return web.json_response(body)

    async def _delete(self, _request: web.Request) -> web.Response:
        self.stored.clear()
        return web.json_response({})

    async def _nodes(self, request: web.Request) -> web.StreamResponse:
        assert request.query["fieldSelector"] == f"metadata.name={NODE}"
        if "watch" not in request.query:
            node = self.server.answers[f"/api/v1/nodes/{NODE}"]
            return web.json_response({"items": [node], "metadata": {"resourceVersion": "1"}})
        return await self._silent(request)

    async def _list(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.json_response({"items": self.stored, "metadata": {"resourceVersion": "1"}})
        return await self._silent(request)

    async def _silent(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.sleep(30)
        return response

    async def start(self) -> str:
        application = web.Application()
        application.router.add_route("*", "/{tail:.*}", self.server.handle)
        self.runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self.runner.cleanup()


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[KubeletServer]:
    """A kubelet without pods: a driver that starts for the first time asks it whether claims are prepared."""
    with KubeletServer(tmp_path / "pod-resources.sock") as server:
        yield server


@pytest.fixture
def started() -> Iterator[list[Plugin]]:
    """Plugins that are ended with the test, whatever becomes of it."""
    plugins: list[Plugin] = []
    yield plugins
    for plugin in plugins:
        if plugin.process.poll() is None:
            plugin.process.kill()
            plugin.process.wait()


@pytest.mark.usefixtures("kubelet")
@pytest.mark.parametrize("name", TYPES)
def test_the_plugin_serves_publishes_and_stops_cleanly(tmp_path: Path, started: list[Plugin], name: str) -> None:
    async def scenario() -> None:
        api = ApiServer()
        plugin = Plugin(tmp_path, await api.start(), TYPES[name])
        started.append(plugin)
        service, registration = plugin.sockets
        await until(registration.exists)
        assert api.stored == [], "devices are offered when the kubelet can prepare them"
        await _registered(plugin)
        await until(lambda: bool(api.stored))
        assert len(api.stored[0]["spec"]["devices"]) == 16
        info = await call(
            registration,
            "/pluginregistration.Registration/GetInfo",
            registration_v1_pb2.InfoRequest(),
            registration_v1_pb2.PluginInfo,
        )
        assert info.endpoint == str(service)
        claim = dra_v1_pb2.Claim(namespace="ns", name="claim-1", uid=uid(1))
        prepare = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
        request = dra_v1_pb2.NodePrepareResourcesRequest(claims=[claim])
        answer = await call(service, prepare, request, dra_v1_pb2.NodePrepareResourcesResponse)
        assert [device.device_name for device in answer.claims[uid(1)].devices] == [
            "neuron-device-0",
            "neuron-device-1",
        ]
        async with httpx.AsyncClient(trust_env=False) as http:
            metrics = (await http.get(f"http://127.0.0.1:{plugin.metrics_port}/metrics")).text
        assert "neuron_dra_plugin_prepared_devices 2.0" in metrics
        [skew] = re.findall(r"^neuron_dra_plugin_clock_skew_seconds (\S+)$", metrics, re.MULTILINE)
        assert float(skew) != 0, "the API server answered with its Date, which is cut to seconds"
        async with grpc.aio.insecure_channel(f"127.0.0.1:{plugin.health_port}") as channel:
            check = channel.unary_unary(
                "/grpc.health.v1.Health/Check",
                request_serializer=health_v1_pb2.HealthCheckRequest.SerializeToString,
                response_deserializer=health_v1_pb2.HealthCheckResponse.FromString,
            )
            for service_name in ("liveness", "readiness", "readiness/devices"):
                assert (await check(health_v1_pb2.HealthCheckRequest(service=service_name))).status == 1
        plugin.process.send_signal(signal.SIGUSR2)
        await call(service, prepare, request, dra_v1_pb2.NodePrepareResourcesResponse)
        assert plugin.process.poll() is None, "SIGUSR2 shows the stacks, and ends nothing"
        plugin.process.send_signal(signal.SIGTERM)
        await until(lambda: not registration.exists())
        # The kubelet calls the driver until it has seen that.
        second = dra_v1_pb2.NodePrepareResourcesRequest(claims=[claim])
        again = await call(service, prepare, second, dra_v1_pb2.NodePrepareResourcesResponse)
        assert again == answer
        assert await plugin.ended() == 0
        assert not service.exists()
        assert not registration.exists()
        assert api.stored == [], "no driver could prepare claims that are allocated now"
        assert (tmp_path / f"cdi/neuron.aws.com-claim_{uid(1)}.json").exists(), "running pods keep what they have"
        await api.stop()

    asyncio.run(scenario())
    assert "most recent call first" in started[0].log.read_text(), "the stacks"
    events = [event["event"] for event in started[0].events()]
    assert events[0] == "starting"
    assert {"serving", "slices published", "claim done", "stopping", "slices withdrawn"} <= set(events)


async def test_the_plugin_starts_and_serves_while_the_api_server_is_unavailable(
    tmp_path: Path, started: list[Plugin]
) -> None:
    plugin = Plugin(tmp_path, "http://127.0.0.1:1", metrics_port=0, health_port=0)
    started.append(plugin)
    service, registration = plugin.sockets
    await until(registration.exists)
    unprepare = "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources"
    claim = dra_v1_pb2.Claim(namespace="ns", name="claim-1", uid=uid(1))
    request = dra_v1_pb2.NodeUnprepareResourcesRequest(claims=[claim])
    answer = await call(service, unprepare, request, dra_v1_pb2.NodeUnprepareResourcesResponse)
    assert answer.claims[uid(1)].error == ""
    plugin.process.terminate()
    assert await plugin.ended() == 0


async def _registered(plugin: Plugin) -> None:
    await until(plugin.sockets[1].exists)
    await call(
        plugin.sockets[1],
        "/pluginregistration.Registration/NotifyRegistrationStatus",
        registration_v1_pb2.RegistrationStatus(plugin_registered=True),
        registration_v1_pb2.RegistrationStatusResponse,
    )


@pytest.mark.usefixtures("kubelet")
def test_a_new_process_does_not_offer_devices_of_a_claim_whose_object_is_gone(
    tmp_path: Path, started: list[Plugin]
) -> None:
    async def gone(_request: web.Request) -> web.Response:
        await asyncio.sleep(1)
        return status(404, "NotFound")

    async def scenario() -> None:
        api = ApiServer()
        server = await api.start()
        started.append(Plugin(tmp_path, server))
        await until(started[0].sockets[1].exists)
        claim = dra_v1_pb2.Claim(namespace="ns", name="claim-1", uid=uid(1))
        prepare = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
        request = dra_v1_pb2.NodePrepareResourcesRequest(claims=[claim])
        answer = await call(started[0].sockets[0], prepare, request, dra_v1_pb2.NodePrepareResourcesResponse)
        assert answer.claims[uid(1)].error == ""
        started[0].process.kill()
        await started[0].ended()
        api.server.answers["/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/claim-1"] = gone
        started.append(Plugin(tmp_path, server, "next"))
        await _registered(started[1])
        await until(lambda: bool(api.stored))
        kept = [device["name"] for device in api.stored[0]["spec"]["devices"] if device.get("taints")]
        assert kept == ["neuron-device-0", "neuron-device-1"]
        await api.stop()

    asyncio.run(scenario())


async def test_a_process_that_was_killed_leaves_sockets_that_the_next_one_removes(
    short_path: Path, started: list[Plugin]
) -> None:
    first = Plugin(short_path, "http://127.0.0.1:1", "dead")
    started.append(first)
    await until(first.sockets[1].exists)
    first.process.kill()
    await first.ended()
    assert first.sockets[0].exists()
    second = Plugin(short_path, "http://127.0.0.1:1", "alive")
    started.append(second)
    await until(second.sockets[1].exists)
    assert not first.sockets[0].exists()
    assert not first.sockets[1].exists()


FAILURES: dict[str, tuple[dict[str, Any], str]] = {
    "emulate": (
        {"emulate": "trn2.48xlrge"},
        "--emulate: There is no instance type 'trn2.48xlrge' to emulate. Did you mean 'trn2.48xlarge'?",
    ),
    "kubeconfig": (
        {"kubeconfig": "/nonexistent"},
        "The API server cannot be used: cannot read /nonexistent: ",
    ),
    "state": ({"state_dir": "/proc/nothing"}, "The files of the emulated node cannot be written: "),
    "long-path": ({"kubelet_plugins_dir": "/tmp/" + "x" * 100}, "is longer than the 107 bytes"),
    "registry": ({"kubelet_registry_dir": "/proc/nothing"}, "The driver cannot serve on /proc/nothing/neuron.aws.com-"),
    "taken": ({}, "or choose another port with --metrics-port"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_plugin_that_cannot_start_exits_with_3_and_the_cause(
    tmp_path: Path, started: list[Plugin], name: str
) -> None:
    flags, said = FAILURES[name]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        if name == "taken":
            flags = {"metrics_port": taken.getsockname()[1]}
        plugin = Plugin(tmp_path, "http://127.0.0.1:1", **flags)
        started.append(plugin)
        assert plugin.process.wait(60) == 3
    assert said in plugin.log.read_text()
    assert "Traceback" not in plugin.log.read_text()
    assert not any(path.exists() for path in plugin.sockets)


def test_a_health_port_in_use_is_reported(tmp_path: Path, started: list[Plugin]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        plugin = Plugin(tmp_path, "http://127.0.0.1:1", health_port=port)
        started.append(plugin)
        assert plugin.process.wait(60) == 3
    assert f"Health cannot be served on 127.0.0.1:{port}: " in plugin.log.read_text()


@pytest.mark.parametrize("address", ["::", "[::]", "0.0.0.0"])
async def test_the_plugin_serves_on_ipv4_and_ipv6_addresses(
    tmp_path: Path, started: list[Plugin], address: str
) -> None:
    """Any address of IPv6 takes connections of IPv4 as well, where the node has both."""

    plugin = Plugin(tmp_path, "http://127.0.0.1:1", bind_address=address)
    started.append(plugin)
    await until(lambda: plugin.process.poll() is not None or "serving" in plugin.log.read_text())
    assert plugin.process.poll() is None, plugin.log.read_text()
    async with httpx.AsyncClient(trust_env=False) as http:
        metrics = await http.get(f"http://127.0.0.1:{plugin.metrics_port}/metrics")
    assert metrics.status_code == 200
    async with grpc.aio.insecure_channel(f"127.0.0.1:{plugin.health_port}") as channel:
        await asyncio.wait_for(channel.channel_ready(), 10)


def test_an_ipv6_address_that_cannot_be_bound_is_named_in_brackets(tmp_path: Path, started: list[Plugin]) -> None:
    plugin = Plugin(tmp_path, "http://127.0.0.1:1", bind_address="2001:db8::1", metrics_port=0)
    started.append(plugin)
    assert plugin.process.wait(60) == 3
    assert f"Health cannot be served on [2001:db8::1]:{plugin.health_port}: " in plugin.log.read_text()


# --- small parts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("python", "semantic"),
    [
        ("0.1.0", "0.1.0"),
        ("1.2", "1.2.0"),
        ("1.2.3rc1", "1.2.3-rc.1"),
        ("1.2.3.dev4+g5", "1.2.3-dev.4"),
        ("2.0a1", "2.0.0-alpha.1"),
        ("2.0.0b2", "2.0.0-beta.2"),
        ("unknown", "0.0.0"),
    ],
)
def test_the_published_version_is_semantic(python: str, semantic: str) -> None:
    assert driver_version(python) == semantic


def test_the_drivers_own_version_is_published() -> None:
    assert driver_version().count(".") >= 2


def test_a_failed_preparation_is_counted() -> None:
    metrics = PluginMetrics()
    with pytest.raises(RuntimeError), metrics.measured("prepare"):
        raise RuntimeError
    labels = {"operation": "prepare", "result": "error"}
    assert metrics.registry.get_sample_value("neuron_dra_plugin_claims_total", labels) == 1.0


def test_logs_are_lines_of_keys(tmp_path: Path) -> None:
    record = logging.makeLogRecord(
        {"msg": "claim done", "levelno": 20, "levelname": "INFO", "name": "x", "created": 1.5}
    )
    record.uid, record.path = "u", tmp_path
    assert json.loads(logs.JSONFormatter().format(record)) == {
        "ts": "1970-01-01T00:00:01.500Z",
        "level": "info",
        "event": "claim done",
        "logger": "x",
        "uid": "u",
        "path": str(tmp_path),
    }
    assert logs.TextFormatter().format(record) == (f"1970-01-01T00:00:01.500Z INFO    claim done uid=u path={tmp_path}")
    record.exc_info = (ValueError, ValueError("x"), None)
    assert "ValueError: x" in json.loads(logs.JSONFormatter().format(record))["traceback"]
    assert logs.TextFormatter().format(record).endswith('traceback="ValueError: x"')


@pytest.mark.parametrize("formatter", [logs.JSONFormatter(), logs.TextFormatter()], ids=["json", "text"])
def test_a_log_record_is_one_printable_line(formatter: logging.Formatter) -> None:
    text = "a\u2028b\x85c\x7fd\u202ee\nf"
    record = logging.makeLogRecord({"msg": text, "levelno": 20, "levelname": "INFO", "name": "x", "created": 1.5})
    record.reason = text
    line = formatter.format(record)
    assert line.isprintable()
    assert line.splitlines() == [line]


IMPORTS = {
    "kubeletplugin.cli": {"grpc", "kubernetes", "aiohttp", "webhook", "policies", "certs"},
    "kubeletplugin.app": {"webhook", "policies", "certs", "starlette", "uvicorn", "celpy"},
    "kubeletplugin.prepare.preparer": {"grpc", "kubernetes", "aiohttp", "asyncio", "pydantic", "prometheus_client"},
    "neuron.api.configs": {"pydantic", "msgspec", "kubernetes"},
}


@pytest.mark.parametrize("module", IMPORTS)
def test_a_module_loads_only_what_it_needs(module: str) -> None:
    script = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={**os.environ}
    )
    assert not IMPORTS[module] & set(done.stdout.split())
