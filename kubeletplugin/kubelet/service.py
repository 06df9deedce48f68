"""The gRPC services: DRAPlugin v1 and v1beta1, and the health stream v1 and v1alpha1.

The versions of each differ only in their package.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from types import ModuleType
from typing import Any, Final

import grpc

from kubeletplugin.changes import Clock
from kubeletplugin.discover.health import HealthMonitor
from kubeletplugin.pb import dra_health_v1alpha1_pb2, dra_v1_pb2, dra_v1beta1_pb2
from kubeletplugin.ports import WAITS
from kubeletplugin.prepare.driver import ClaimReference, Driver, PrepareResult
from kubeletplugin.prepare.preparer import DeviceAnswer
from runtime import tracing

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
            results = await driver.prepare(_references(request), _budget(context))
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


def _budget(context: Any) -> float:
    """Seconds for retries, so that the answer arrives before the kubelet's time-out."""
    remaining = context.time_remaining()
    if remaining is None:
        return WAITS.call
    return min(WAITS.call, max(0.0, float(remaining) - WAITS.answer))


def _prepared(messages: ModuleType, result: PrepareResult) -> object:
    devices = [
        messages.Device(
            request_names=[answer.request],
            pool_name=answer.pool,
            device_name=answer.device,
            cdi_device_ids=answer.cdi_device_ids,
            **_share_id(messages, answer),
        )
        for answer in result.devices
    ]
    return messages.NodePrepareResourceResponse(devices=devices, error=result.error)


def _share_id(messages: ModuleType, answer: DeviceAnswer) -> dict[str, str]:
    """v1beta1 has no field for it: with that version the kubelet does not tell shares of a device apart."""
    known = "share_id" in messages.Device.DESCRIPTOR.fields_by_name
    return {"share_id": answer.share_id} if known and answer.share_id is not None else {}


def _health(name: str, monitor: HealthMonitor, pool: str, clock: Clock) -> grpc.GenericRpcHandler:
    async def watch(_request: object, _context: object) -> AsyncIterator[object]:
        while True:
            generation = monitor.generation
            yield _health_message(monitor, pool, clock)
            await monitor.wait(generation, WAITS.health_resent)

    handler = grpc.unary_stream_rpc_method_handler(
        watch,
        request_deserializer=dra_health_v1alpha1_pb2.NodeWatchResourcesRequest.FromString,
        response_serializer=dra_health_v1alpha1_pb2.NodeWatchResourcesResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(name, {"NodeWatchResources": handler})


def _health_message(monitor: HealthMonitor, pool: str, clock: Clock) -> object:
    pb = dra_health_v1alpha1_pb2
    now = int(clock.now())
    timeout = max(WAITS.health_lost, int(3 * monitor.interval))
    devices = [
        pb.DeviceHealth(
            device=pb.DeviceIdentifier(pool_name=pool, device_name=device.device),
            health=device.status.name,
            last_updated_time=now,
            health_check_timeout_seconds=timeout,
            message=device.message,
        )
        for device in monitor.snapshot.health
    ]
    return pb.NodeWatchResourcesResponse(devices=devices)
