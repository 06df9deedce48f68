"""The kubelet's gRPC protocols: DRA plugin, health stream, registration; and the health service for the pod's probes.

DRAPlugin is served as v1 and v1beta1, the health stream as v1 and v1alpha1: the versions of each differ only in their
package. With a pod UID the socket names contain it, so that two instances can serve during an upgrade (kubelet 1.33 and
later). Without one the names are fixed, for every kubelet. The health service calls the driver's sockets as the kubelet
does.
"""

import contextlib
import dataclasses
import errno
import logging
import os
import re
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import grpc

from kubeletplugin.changes import Clock
from kubeletplugin.discover.health import HealthMonitor
from kubeletplugin.pb import dra_health_v1alpha1_pb2, dra_v1_pb2, dra_v1beta1_pb2, health_v1_pb2, registration_v1_pb2
from kubeletplugin.ports import WAITS
from kubeletplugin.prepare.driver import ClaimReference, Driver, PrepareResult
from kubeletplugin.publish.offer import DEVICES, NODE, KubeletGate
from neuron import names
from runtime import tracing
from runtime.retries import Backoff

SERVICES: Final = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""For the registration, best first: the kubelet uses the first one that it knows."""

_VERSIONS: Final = {
    "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin": dra_v1_pb2,
    "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin": dra_v1beta1_pb2,
}
_HEALTH: Final = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""v1 comes with Kubernetes 1.37, and v1alpha1 is read until 1.39. Only the package differs: the messages have the same
fields with the same numbers, so one set of them serves both."""

Handler = Callable[[object, object], Awaitable[object]]


def handlers(driver: Driver, monitor: HealthMonitor, pool: str, clock: Clock) -> tuple[grpc.GenericRpcHandler, ...]:
    """The services of the driver's socket."""
    services = [_dra_plugin(name, messages, driver) for name, messages in _VERSIONS.items()]
    return (*services, *(_health(name, monitor, pool, clock) for name in _HEALTH))


def _dra_plugin(name: str, messages: ModuleType, driver: Driver) -> grpc.GenericRpcHandler:
    async def prepare(request: object, context: Any) -> object:
        with tracing.served("NodePrepareResources", context.invocation_metadata() or ()):
            # The answer arrives before the kubelet's time-out.
            remaining = context.time_remaining()
            budget = WAITS.call if remaining is None else min(WAITS.call, max(0.0, float(remaining) - WAITS.answer))
            results = await driver.prepare(_references(request), budget)
        claims = {uid: _prepared(messages, result) for uid, result in results.items()}
        return messages.NodePrepareResourcesResponse(claims=claims)

    async def unprepare(request: object, _context: object) -> object:
        results = await driver.unprepare(_references(request))
        answer = messages.NodeUnprepareResourceResponse
        claims = {uid: answer(error=result.error) for uid, result in results.items()}
        return messages.NodeUnprepareResourcesResponse(claims=claims)

    return unary(
        name,
        {
            "NodePrepareResources": (prepare, messages.NodePrepareResourcesRequest),
            "NodeUnprepareResources": (unprepare, messages.NodeUnprepareResourcesRequest),
        },
    )


def unary(name: str, methods: dict[str, tuple[Handler, Any]]) -> grpc.GenericRpcHandler:
    """A service of unary calls.

    Args:
        name: full name of the service.
        methods: by name, the handler and the type of its request.
    """
    return grpc.method_handlers_generic_handler(
        name,
        {
            method: grpc.unary_unary_rpc_method_handler(
                handler,
                request_deserializer=request.FromString,
                response_serializer=lambda message: message.SerializeToString(),
            )
            for method, (handler, request) in methods.items()
        },
    )


def _references(request: Any) -> list[ClaimReference]:
    return [ClaimReference(claim.namespace, claim.name, claim.uid) for claim in request.claims]


def _prepared(messages: ModuleType, result: PrepareResult) -> object:
    # v1beta1 has no field for it: with that version the kubelet does not tell shares of a device apart.
    known = "share_id" in messages.Device.DESCRIPTOR.fields_by_name
    devices = [
        messages.Device(
            request_names=[answer.request],
            pool_name=answer.pool,
            device_name=answer.device,
            cdi_device_ids=answer.cdi_device_ids,
            **({"share_id": answer.share_id} if known and answer.share_id is not None else {}),
        )
        for answer in result.devices
    ]
    return messages.NodePrepareResourceResponse(devices=devices, error=result.error)


def _health(name: str, monitor: HealthMonitor, pool: str, clock: Clock) -> grpc.GenericRpcHandler:
    pb = dra_health_v1alpha1_pb2

    async def watch(_request: object, _context: object) -> AsyncIterator[object]:
        while True:
            generation = monitor.generation
            devices = [
                pb.DeviceHealth(
                    device=pb.DeviceIdentifier(pool_name=pool, device_name=device.device),
                    health=device.status.name,
                    last_updated_time=int(clock.now()),
                    health_check_timeout_seconds=max(WAITS.health_lost, int(3 * monitor.interval)),
                    message=device.message,
                )
                for device in monitor.snapshot.health
            ]
            yield pb.NodeWatchResourcesResponse(devices=devices)
            await monitor.wait(generation, WAITS.health_resent)

    handler = grpc.unary_stream_rpc_method_handler(
        watch,
        request_deserializer=pb.NodeWatchResourcesRequest.FromString,
        response_serializer=pb.NodeWatchResourcesResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(name, {"NodeWatchResources": handler})


_MAX_SOCKET_PATH: Final = 107
"""Bytes of a unix socket's path, without the final zero (`unix(7)`)."""
_READINESS: Final = "readiness"
_OFFERS: Final = {f"{_READINESS}/devices": DEVICES, f"{_READINESS}/node": NODE}
_NAMES: Final = frozenset({"", "liveness", _READINESS, *_OFFERS})
_log = logging.getLogger(__name__)


class SocketError(Exception):
    """A socket cannot be used; the message has the path, the reason and the fix."""


@dataclasses.dataclass(frozen=True, slots=True)
class SocketPaths:
    """Where an instance of the driver serves.

    Attributes:
        plugin: the DRA services.
    """

    plugin: Path
    registration: Path


def socket_paths(plugin_dir: Path, registry_dir: Path, pod_uid: str = "") -> SocketPaths:
    """The paths of an instance.

    Args:
        plugin_dir: the driver's own directory below the kubelet's plugin directory.
        registry_dir: the directory of registration sockets, which the kubelet watches.
        pod_uid: of the driver's pod; empty for the fixed names.

    Raises:
        SocketError: a path is longer than the kernel allows.
    """
    infix = f"-{pod_uid}" if pod_uid else ""
    paths = SocketPaths(plugin_dir / f"dra{infix}.sock", registry_dir / f"{names.DRIVER}{infix}-reg.sock")
    for path in (paths.plugin, paths.registration):
        if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
            raise SocketError(
                f"The socket path {path} is longer than the {_MAX_SOCKET_PATH} bytes that the kernel allows: "
                "use shorter directories."
            )
    return paths


def remove_stale_sockets(plugin_dir: Path, registry_dir: Path) -> tuple[Path, ...]:
    """Remove sockets of the driver that no process serves, because the kubelet would call them; returns their paths."""
    ours = re.escape(names.DRIVER)
    candidates = [
        *_matching(plugin_dir, re.compile(r"\.?dra(-[A-Za-z0-9-]+)?(\.sock)?", re.ASCII)),
        *_matching(registry_dir, re.compile(rf"\.?{ours}(-[A-Za-z0-9-]+)?-reg(\.sock)?", re.ASCII)),
    ]
    stale = tuple(path for path in candidates if not _is_served(path))
    for path in stale:
        path.unlink(missing_ok=True)
    return stale


def other_sockets(registry_dir: Path, own: Path) -> tuple[str, ...]:
    """The registration sockets of our driver's name that other processes serve."""
    pattern = re.compile(rf"{re.escape(names.DRIVER)}(-[A-Za-z0-9-]+)?-reg\.sock", re.ASCII)
    return tuple(path.name for path in _matching(registry_dir, pattern) if path != own and _is_served(path))


def _matching(directory: Path, pattern: re.Pattern[str]) -> Iterable[Path]:
    with contextlib.suppress(FileNotFoundError):
        for path in sorted(directory.iterdir()):
            if pattern.fullmatch(path.name) and stat.S_ISSOCK(path.lstat().st_mode):
                yield path


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(1.0)
        try:
            client.connect(str(path))
        except OSError as error:
            return error.errno not in (errno.ECONNREFUSED, errno.ENOENT)
    return True


class UnixServer:
    """A gRPC server on one unix socket.

    It listens on a temporary name and then renames the socket. So the kubelet does not call a socket that does not
    answer yet. gRPC removes the name on which it listened when it stops; that is not the name of a newer instance.
    """

    def __init__(self, path: Path, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        self.path: Final = path
        self._handlers = tuple(handlers)
        self._server: grpc.aio.Server | None = None
        self._inode = 0

    async def start(self) -> None:
        """Serve. Raises SocketError."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Of this instance, as the path is: its process's number may be that of another one, in another container.
            first = self.path.with_name(f".{self.path.stem}")
            first.unlink(missing_ok=True)
            self._server = grpc.aio.server()
            self._server.add_generic_rpc_handlers(self._handlers)
            self._server.add_insecure_port(f"unix:{first}")
            await self._server.start()
            self._inode = first.stat().st_ino
            first.replace(self.path)
        except (OSError, RuntimeError) as error:
            await self.stop(0)
            raise SocketError(f"The driver cannot serve on {self.path}: {error}. Check the directory.") from error

    @property
    def in_place(self) -> bool:
        """Whether the socket is where clients look for it."""
        try:
            return self.path.stat().st_ino == self._inode
        except OSError:
            return False

    async def renew(self) -> None:
        """Make the socket again. Calls on the old one may finish. Raises SocketError; the old one goes on then."""
        before = self._server
        try:
            await self.start()
        except SocketError:
            self._server = before
            raise
        if before is not None:
            await before.stop(1.0)

    async def stop(self, grace: float) -> None:
        """Remove the socket, so that the kubelet stops calling it, and let calls finish for `grace` seconds."""
        with contextlib.suppress(OSError):
            # A newer instance may have replaced it by its own.
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()
        if self._server is not None:
            await self._server.stop(grace)


class SocketKeeper:
    """Makes sockets again that were removed, and the one for the registration while the kubelet has lost the driver.

    The kubelet sees a new file in its directory and registers the driver.
    """

    def __init__(self, plugin: UnixServer, registration: UnixServer, gate: KubeletGate, clock: Clock) -> None:
        self._plugin = plugin
        self._registration = registration
        self._gate = gate
        self._clock = clock
        self._pause = Backoff(WAITS.first_renewal, WAITS.last_renewal)
        self._not_before = float("-inf")

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self._clock.sleep(WAITS.sockets_look)
            await self.look()

    async def look(self) -> None:
        """Look once."""
        if not self._plugin.in_place:
            await self._renew(self._plugin)
        if not self._registration.in_place:
            self._gate.lose(f"its registration socket {self._registration.path} was removed")
            await self._renew(self._registration)
        elif not self._gate.lost:
            self._pause.reset()
        elif self._clock.monotonic() >= self._not_before:
            await self._renew(self._registration)

    async def _renew(self, server: UnixServer) -> None:
        self._not_before = self._clock.monotonic() + self._pause.failed()
        try:
            await server.renew()
        except SocketError as error:
            _log.error("the socket cannot be made again", extra={"error": str(error)})
        else:
            _log.warning("socket made again", extra={"path": str(server.path)})


def registration(endpoint: Path, answered: Callable[[bool], None]) -> grpc.GenericRpcHandler:
    """The registration service. `answered` gets the kubelet's answer: whether it accepts the plugin."""
    pb = registration_v1_pb2

    async def get_info(_request: object, _context: object) -> object:
        return pb.PluginInfo(type="DRAPlugin", name=names.DRIVER, endpoint=str(endpoint), supported_versions=SERVICES)

    async def notify(request: Any, _context: object) -> object:
        if request.plugin_registered:
            _log.info("registered with the kubelet", extra={"endpoint": str(endpoint)})
        else:
            _log.error("the kubelet refused the registration", extra={"error": request.error})
        answered(request.plugin_registered)
        return pb.RegistrationStatusResponse()

    return unary(
        "pluginregistration.Registration",
        {"GetInfo": (get_info, pb.InfoRequest), "NotifyRegistrationStatus": (notify, pb.RegistrationStatus)},
    )


def probe_service(
    paths: SocketPaths, *, registered: Callable[[], bool], offered: Callable[[], Collection[str]]
) -> grpc.GenericRpcHandler:
    """`grpc.health.v1.Health/Check`.

    Its names: "" and "liveness": the sockets answer; "readiness": and the kubelet has registered the plugin;
    "readiness/devices" and "readiness/node": and the node offers single devices, or the whole UltraServer node.
    """

    async def check(request: Any, context: Any) -> object:
        name = request.service
        if name not in _NAMES:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"There is no service {name!r} here.")
        serving = await _serves(paths)
        if name.startswith(_READINESS):
            serving = serving and registered() and (name not in _OFFERS or _OFFERS[name] in offered())
        return health_v1_pb2.HealthCheckResponse(status="SERVING" if serving else "NOT_SERVING")

    return unary("grpc.health.v1.Health", {"Check": (check, health_v1_pb2.HealthCheckRequest)})


async def _serves(paths: SocketPaths) -> bool:
    """Whether both sockets answer: GetInfo for registration, an empty NodePrepareResources on the other."""
    calls: tuple[tuple[Path, str, object], ...] = (
        (paths.registration, "/pluginregistration.Registration/GetInfo", registration_v1_pb2.InfoRequest()),
        (
            paths.plugin,
            "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
            dra_v1_pb2.NodePrepareResourcesRequest(),
        ),
    )
    for path, method, request in calls:
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            call: Any = channel.unary_unary(method, request_serializer=lambda message: message.SerializeToString())
            try:
                await call(request, timeout=WAITS.probe)
            except grpc.aio.AioRpcError:
                return False
    return True
