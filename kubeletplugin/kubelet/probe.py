"""The gRPC health service for the pod's probes. It calls the driver's sockets, as the kubelet does."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

import grpc

from kubeletplugin.kubelet.register import SocketPaths
from kubeletplugin.kubelet.service import unary
from kubeletplugin.pb import dra_v1_pb2, health_v1_pb2, registration_v1_pb2
from kubeletplugin.publish.offer import DEVICES, NODE

_SERVICE: Final = "grpc.health.v1.Health"
_READINESS: Final = "readiness"
_OFFERS: Final = {f"{_READINESS}/devices": DEVICES, f"{_READINESS}/node": NODE}
_NAMES: Final = frozenset({"", "liveness", _READINESS, *_OFFERS})
_PROBE_SECONDS: Final = 3.0


class Prober:
    """Answers `grpc.health.v1.Health/Check`.

    The services: "" and "liveness": the sockets answer; "readiness": and the kubelet has registered the plugin;
    "readiness/devices" and "readiness/node": and the node offers single devices, or the whole UltraServer node.
    """

    def __init__(
        self, paths: SocketPaths, *, registered: Callable[[], bool], offered: Callable[[], Collection[str]]
    ) -> None:
        self._paths = paths
        self._registered = registered
        self._offered = offered

    def handler(self) -> grpc.GenericRpcHandler:
        """The gRPC service."""

        async def check(request: Any, context: Any) -> object:
            if request.service not in _NAMES:
                await context.abort(grpc.StatusCode.NOT_FOUND, f"There is no service {request.service!r} here.")
            serving = await self.serves() and self._ready_for(request.service)
            return health_v1_pb2.HealthCheckResponse(status="SERVING" if serving else "NOT_SERVING")

        return unary(_SERVICE, {"Check": (check, health_v1_pb2.HealthCheckRequest)})

    def _ready_for(self, service: str) -> bool:
        if not service.startswith(_READINESS):
            return True
        return self._registered() and (service not in _OFFERS or _OFFERS[service] in self._offered())

    async def serves(self) -> bool:
        """Whether both sockets answer: GetInfo for registration, an empty NodePrepareResources on the other."""
        calls: tuple[tuple[Path, str, object], ...] = (
            (self._paths.registration, "/pluginregistration.Registration/GetInfo", registration_v1_pb2.InfoRequest()),
            (
                self._paths.plugin,
                "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
                dra_v1_pb2.NodePrepareResourcesRequest(),
            ),
        )
        for path, method, request in calls:
            async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
                call: Any = channel.unary_unary(method, request_serializer=lambda message: message.SerializeToString())
                try:
                    await call(request, timeout=_PROBE_SECONDS)
                except grpc.aio.AioRpcError:
                    return False
        return True
