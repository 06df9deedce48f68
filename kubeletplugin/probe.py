"""The gRPC health service for the pod's probes. It calls the driver's sockets, as the kubelet does."""

from pathlib import Path
from typing import Any, Final

import grpc

from kubeletplugin.pb import dra_v1_pb2, health_v1_pb2, registration_v1_pb2
from kubeletplugin.register import SocketPaths
from kubeletplugin.service import unary

_SERVICE: Final = "grpc.health.v1.Health"
_NAMES: Final = frozenset({"", "liveness", "readiness"})
_PROBE_SECONDS: Final = 3.0


class Prober:
    """Answers `grpc.health.v1.Health/Check` for the services "", "liveness" and "readiness"."""

    def __init__(self, paths: SocketPaths) -> None:
        self._paths = paths

    def handler(self) -> grpc.GenericRpcHandler:
        """The gRPC service."""

        async def check(request: Any, context: Any) -> Any:
            if request.service not in _NAMES:
                await context.abort(grpc.StatusCode.NOT_FOUND, f"There is no service {request.service!r} here.")
            serving = await self.serves()
            return health_v1_pb2.HealthCheckResponse(status="SERVING" if serving else "NOT_SERVING")

        return unary(_SERVICE, {"Check": (check, health_v1_pb2.HealthCheckRequest)})

    async def serves(self) -> bool:
        """Whether both sockets answer: GetInfo for registration, an empty NodePrepareResources on the other."""
        calls: tuple[tuple[Path, str, Any], ...] = (
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
