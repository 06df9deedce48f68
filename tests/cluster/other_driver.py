"""A stand-in for another driver named neuron.aws.com, such as AWS's: it registers, publishes and prepares."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from kubeletplugin.pb import dra_v1_pb2, registration_v1_pb2
from tests.cluster.api import Api, Object
from tests.cluster.driver import NodeDirectories
from tests.cluster.nodes import DRIVER

_PLUGIN = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"


class OtherDriver:
    """The other driver. Its slice has a name of the API server's choice, as with Kubernetes' Go library.

    Attributes:
        prepared: UIDs of the claims that the kubelet let it prepare.
    """

    def __init__(self, api: Api, node: NodeDirectories) -> None:
        self._api = api
        self._node = node
        self.prepared: list[str] = []
        self.unprepared: list[str] = []
        self._registered = threading.Event()

    @property
    def registration(self) -> Path:
        """Its registration socket, without a pod's UID."""
        return self._node.plugins_registry / f"{DRIVER}-reg.sock"

    def slices(self) -> list[Object]:
        """Its slices."""
        found = self._api.list("ResourceSlice", fieldSelector=f"spec.nodeName={self._node.node},spec.driver={DRIVER}")
        return [each for each in found if each["metadata"].get("generateName")]

    def publish(self, generation: int = 1) -> Object:
        """Write its slice with 16 devices."""
        devices = [
            {
                "name": f"neuron-device-{index}",
                "attributes": {
                    "deviceId": {"int": index},
                    "instanceType": {"string": "trn2.48xlarge"},
                    "resourceType": {"string": "neuron_device"},
                },
            }
            for index in range(16)
        ]
        node = self._api.get("Node", self._node.node)
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node.node, "uid": node["metadata"]["uid"]}
        return self._api.create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"generateName": f"{self._node.node}-{DRIVER[:12]}-", "ownerReferences": [owner]},
                "spec": {
                    "driver": DRIVER,
                    "nodeName": self._node.node,
                    "pool": {"name": self._node.node, "generation": generation, "resourceSliceCount": 1},
                    "devices": devices,
                },
            }
        )

    @contextmanager
    def running(self) -> Iterator["OtherDriver"]:
        """Registered with the kubelet, with its slice published; at the end all is removed, as by its DaemonSet."""
        plugin = self._node.plugins / "other.sock"
        server = grpc.server(ThreadPoolExecutor(4))
        server.add_generic_rpc_handlers((self._service(plugin), self._plugin()))
        for path in (plugin, self.registration):
            path.unlink(missing_ok=True)
            server.add_insecure_port(f"unix:{path}")
        server.start()
        try:
            # As a careful driver: a pod whose first preparation fails waits for a minute.
            assert self._registered.wait(60), "the kubelet did not register the other driver"
            self.publish()
            yield self
        finally:
            server.stop(0).wait()
            for path in (plugin, self.registration):
                path.unlink(missing_ok=True)
            for each in self.slices():
                self._api.delete("ResourceSlice", each["metadata"]["name"])

    def _service(self, endpoint: Path) -> grpc.GenericRpcHandler:
        pb = registration_v1_pb2
        info = pb.PluginInfo(type="DRAPlugin", name=DRIVER, endpoint=str(endpoint), supported_versions=["v1.DRAPlugin"])

        def notify(status: Any) -> object:
            if status.plugin_registered:
                self._registered.set()
            return pb.RegistrationStatusResponse()

        return _unary(
            "pluginregistration.Registration",
            {
                "GetInfo": (lambda _: info, pb.InfoRequest),
                "NotifyRegistrationStatus": (notify, pb.RegistrationStatus),
            },
        )

    def _plugin(self) -> grpc.GenericRpcHandler:
        pb = dra_v1_pb2

        def prepare(request: Any) -> object:
            answers = {}
            for claim in request.claims:
                self.prepared.append(claim.uid)
                body = self._api.get("ResourceClaim", claim.name, claim.namespace)
                results = body["status"]["allocation"]["devices"]["results"]
                devices = [
                    pb.Device(
                        request_names=[each["request"]],
                        pool_name=each["pool"],
                        device_name=each["device"],
                        cdi_device_ids=[self._spec(claim.uid, each["device"])],
                    )
                    for each in results
                ]
                answers[claim.uid] = pb.NodePrepareResourceResponse(devices=devices)
            return pb.NodePrepareResourcesResponse(claims=answers)

        def unprepare(request: Any) -> object:
            uids = [claim.uid for claim in request.claims]
            self.unprepared.extend(uids)
            for uid in uids:
                for path in self._node.cdi_directory.glob(f"other-{uid}-*.json"):
                    path.unlink()
            return pb.NodeUnprepareResourcesResponse(claims={uid: pb.NodeUnprepareResourceResponse() for uid in uids})

        return _unary(
            _PLUGIN,
            {
                "NodePrepareResources": (prepare, pb.NodePrepareResourcesRequest),
                "NodeUnprepareResources": (unprepare, pb.NodeUnprepareResourcesRequest),
            },
        )

    def _spec(self, uid: str, device: str) -> str:
        index = device.rpartition("-")[2]
        node = {"path": f"/dev/neuron{index}", "type": "c", "major": 1, "minor": 3}
        kind, name = "k8s.neuron.amazonaws.com/claim", f"{uid}-{device}"
        spec = {
            "cdiVersion": "0.5.0",
            "kind": kind,
            "devices": [{"name": name, "containerEdits": {"deviceNodes": [node]}}],
        }
        (self._node.cdi_directory / f"other-{uid}-{device}.json").write_text(json.dumps(spec))
        return f"{kind}={name}"


def _unary(name: str, methods: dict[str, tuple[Any, Any]]) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(
        name,
        {
            method: grpc.unary_unary_rpc_method_handler(
                lambda request, _context, handle=handle: handle(request),
                request_deserializer=kind.FromString,
                response_serializer=lambda message: message.SerializeToString(),
            )
            for method, (handle, kind) in methods.items()
        },
    )
