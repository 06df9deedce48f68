"""Asks the kubelet which prepared claims its pods use: the PodResources API, version v1, over the kubelet's socket.

The kubelet answers from its own state, so it also names claims whose objects were removed from the API server.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import grpc

from kubeletplugin.pb import podresources_v1_pb2
from kubeletplugin.ports import UsageUnknownError
from kubeletplugin.prepare import cdi
from neuron import names

_LIST: Final = "/v1.PodResourcesLister/List"
_TIMEOUT: Final = 5.0
_LONGEST_ANSWER: Final = 16 * 1024 * 1024
"""Bytes; the kubelet's own bound."""


class NoKubeletError(UsageUnknownError):
    """The kubelet does not serve the API: there is no socket."""


@dataclasses.dataclass(frozen=True, slots=True)
class UsedDevice:
    """A device of this driver that a pod uses.

    Attributes:
        pod: `namespace/name` of the pod.
        namespace: of the claim.
        uid: of the claim; empty if the CDI ids do not contain it.
        request: of the claim, without its alternative; empty if the CDI ids do not contain it.
        share_id: of a device that several claims share.
    """

    pod: str
    namespace: str
    claim: str
    uid: str
    request: str
    device: str
    pool: str
    share_id: str | None = None
    container: str = ""


class PodResources:
    """The kubelet's answers. Each question opens its own connection: a restarted kubelet has a new socket."""

    def __init__(self, socket: Path, seconds: float = _TIMEOUT) -> None:
        """`seconds` is the time-out of a question."""
        self._socket = socket
        self._seconds = seconds

    async def used(self) -> tuple[UsedDevice, ...]:
        """The devices that pods of the node use.

        Raises:
            NoKubeletError: there is no socket.
            UsageUnknownError: the kubelet does not answer.
        """
        if not self._socket.exists():
            raise NoKubeletError(
                f"the kubelet's socket {self._socket} does not exist: mount its directory and set "
                "--pod-resources-socket"
            )
        options = [("grpc.max_receive_message_length", _LONGEST_ANSWER), ("grpc.enable_http_proxy", 0)]
        async with grpc.aio.insecure_channel(f"unix:{self._socket}", options=options) as channel:
            ask = channel.unary_unary(
                _LIST,
                request_serializer=podresources_v1_pb2.ListPodResourcesRequest.SerializeToString,
                response_deserializer=podresources_v1_pb2.ListPodResourcesResponse.FromString,
            )
            try:
                answer = await ask(podresources_v1_pb2.ListPodResourcesRequest(), timeout=self._seconds)
            except grpc.aio.AioRpcError as error:
                why = f"{error.code().name} {error.details() or ''}".rstrip()
                raise UsageUnknownError(f"the kubelet does not answer at {self._socket}: {why}") from error
        return tuple(_devices(answer))


def _devices(answer: Any) -> Iterator[UsedDevice]:
    for pod in answer.pod_resources:
        for container in pod.containers:
            for dynamic in container.dynamic_resources:
                for resource in dynamic.claim_resources:
                    if resource.driver_name == names.DRIVER:
                        found = _device(f"{pod.namespace}/{pod.name}", dynamic, resource)
                        yield dataclasses.replace(found, container=container.name)


def _device(pod: str, dynamic: Any, resource: Any) -> UsedDevice:
    # The kubelet adds the ids of the claim's other devices to those of this one.
    ids = [found for each in resource.cdi_devices if (found := cdi.parse_id(each.name)) is not None]
    uid = ids[0].uid if ids else ""
    request = next((each.request for each in ids if each.device == resource.device_name), "")
    return UsedDevice(
        pod,
        dynamic.claim_namespace,
        dynamic.claim_name,
        uid,
        request,
        resource.device_name,
        resource.pool_name,
        resource.share_id if resource.HasField("share_id") else None,
    )
