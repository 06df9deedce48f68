"""The kubelet's PodResources API on a real socket, with answers of the test's."""

import dataclasses
import threading
from collections.abc import Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, Final, Self

import grpc

from kubeletplugin.discover.processes import ProcessUse
from kubeletplugin.pb import podresources_v1_pb2 as pb
from kubeletplugin.prepare import cdi
from kubeletplugin.prepare.checkpoint import PreparedClaim
from kubeletplugin.prepare.usage import NodeUsage
from tests.kubeletplugin.fakes import DRIVER, NODE

_SERVICE: Final = "v1.PodResourcesLister"


def pod_resources(name: str, *claims: PreparedClaim, driver: str = DRIVER, with_ids: bool = True) -> pb.PodResources:
    """A pod whose one container uses claims, as the kubelet describes it: ids add up over the devices of a claim."""
    resources = []
    for claim in claims:
        devices, ids = [], []
        for position, device in enumerate(claim.devices):
            ids += [pb.CDIDevice(name=each) for each in cdi.device_ids(claim, position)] if with_ids else []
            share = {"share_id": device.share.id} if device.share is not None else {}
            devices.append(
                pb.ClaimResource(
                    cdi_devices=ids, driver_name=driver, pool_name=NODE, device_name=device.device, **share
                )
            )
        resources.append(
            pb.DynamicResource(claim_name=claim.name, claim_namespace=claim.namespace, claim_resources=devices)
        )
    container = pb.ContainerResources(name="main", dynamic_resources=resources)
    return pb.PodResources(name=name, namespace="ns", containers=[container])


class KubeletServer:
    """Serves until the end of the block.

    Attributes:
        pods: of the answer.
        hangs: whether no answer comes.
    """

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.pods: Sequence[pb.PodResources] = ()
        self.hangs = False
        self._ended = threading.Event()

    def _list(self, _request: Any, _context: grpc.ServicerContext) -> Any:
        if self.hangs:
            self._ended.wait(60)
        return pb.ListPodResourcesResponse(pod_resources=self.pods)

    def __enter__(self) -> Self:
        handler = grpc.unary_unary_rpc_method_handler(
            self._list,
            request_deserializer=pb.ListPodResourcesRequest.FromString,
            response_serializer=pb.ListPodResourcesResponse.SerializeToString,
        )
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {"List": handler}),))
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._server.stop(grace=None).wait()


@dataclasses.dataclass
class FakeProcesses:
    """The result of every scan."""

    found: tuple[ProcessUse, ...] | Exception = ()

    def scan(self, *, environment: bool = False) -> tuple[ProcessUse, ...]:
        if isinstance(self.found, Exception):
            raise self.found
        return tuple(each if environment else dataclasses.replace(each, environment={}) for each in self.found)


def usage(kubelet: Any, processes: Any = None) -> NodeUsage:
    """What decides about a release, with some of its sources."""
    return NodeUsage(kubelet, processes or FakeProcesses())
