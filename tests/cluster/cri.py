"""A container runtime that runs nothing: it speaks CRI to the kubelet and remembers what each container would see."""

import dataclasses
import itertools
import threading
import time
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf.message import Message

from tests.cluster.cdi import Edits, UnresolvableError, resolve
from tests.cluster.pb import cri_pb2 as pb

_IMAGE_SIZE: Final = 1 << 20
_READY_CONDITIONS: Final = ("RuntimeReady", "NetworkReady")


@dataclasses.dataclass
class Sandbox:
    """A pod, as the runtime knows it."""

    id: str
    config: pb.PodSandboxConfig
    ip: str
    created_at: int
    ready: bool = True


@dataclasses.dataclass
class Container:
    """A container, with what it would see once started.

    Attributes:
        id: the runtime's name for it.
        sandbox: the pod that it belongs to.
        config: what the kubelet asked for.
        cdi_devices: CDI ids that the kubelet passed.
        sees: environment, device nodes and mounts, with the CDI edits applied.
    """

    id: str
    sandbox: Sandbox
    config: pb.ContainerConfig
    cdi_devices: tuple[str, ...]
    sees: Edits
    created_at: int
    started_at: int = 0
    finished_at: int = 0
    state: "pb.ContainerState.ValueType" = pb.CONTAINER_CREATED

    @property
    def name(self) -> str:
        """The container's name in its pod."""
        return self.config.metadata.name

    @property
    def pod(self) -> str:
        """`namespace/name` of its pod."""
        metadata = self.sandbox.config.metadata
        return f"{metadata.namespace}/{metadata.name}"


def _matches(labels: Any, selector: Any) -> bool:
    return all(labels.get(key) == value for key, value in selector.items())


class Runtime:
    """The runtime's state and its answers. A container whose command is `true` ends at once; others run until stopped.

    Args:
        cdi_directory: where drivers write CDI specs.
        images: a directory that stands for the image file system.
    """

    def __init__(self, cdi_directory: Path, images: Path) -> None:
        self._cdi = cdi_directory
        self._image_directory = images
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._sandboxes: dict[str, Sandbox] = {}
        self._containers: dict[str, Container] = {}
        self._images: set[str] = set()
        self.history: list[Container] = []
        self.refusals: list[str] = []

    def created(self, namespace: str, pod: str) -> dict[str, Container]:
        """The containers ever made for a pod, by name; the latest where there were several."""
        with self._lock:
            return {each.name: each for each in self.history if each.pod == f"{namespace}/{pod}"}

    def crash(self, namespace: str, pod: str) -> None:
        """End the running containers of a pod, as if their processes had died."""
        with self._lock:
            for each in self._containers.values():
                if each.pod == f"{namespace}/{pod}":
                    self._finish(each)

    # --- RuntimeService -------------------------------------------------------------------------------------

    def version(self, _: pb.VersionRequest) -> pb.VersionResponse:
        return pb.VersionResponse(
            version="0.1.0", runtime_name="stand-in", runtime_version="1.0.0", runtime_api_version="v1"
        )

    def status(self, _: pb.StatusRequest) -> pb.StatusResponse:
        conditions = [pb.RuntimeCondition(type=name, status=True) for name in _READY_CONDITIONS]
        return pb.StatusResponse(status=pb.RuntimeStatus(conditions=conditions))

    def runtime_config(self, _: pb.RuntimeConfigRequest) -> pb.RuntimeConfigResponse:
        return pb.RuntimeConfigResponse(linux=pb.LinuxRuntimeConfiguration(cgroup_driver=pb.CGROUPFS))

    def update_runtime_config(self, _: pb.UpdateRuntimeConfigRequest) -> pb.UpdateRuntimeConfigResponse:
        return pb.UpdateRuntimeConfigResponse()

    def run_pod_sandbox(self, request: pb.RunPodSandboxRequest) -> pb.RunPodSandboxResponse:
        with self._lock:
            number = next(self._numbers)
            made = Sandbox(f"sandbox-{number}", request.config, f"10.88.0.{number % 250 + 2}", time.time_ns())
            self._sandboxes[made.id] = made
        return pb.RunPodSandboxResponse(pod_sandbox_id=made.id)

    def stop_pod_sandbox(self, request: pb.StopPodSandboxRequest) -> pb.StopPodSandboxResponse:
        with self._lock:
            if sandbox := self._sandboxes.get(request.pod_sandbox_id):
                sandbox.ready = False
                for each in self._containers.values():
                    if each.sandbox is sandbox:
                        self._finish(each)
        return pb.StopPodSandboxResponse()

    def remove_pod_sandbox(self, request: pb.RemovePodSandboxRequest) -> pb.RemovePodSandboxResponse:
        with self._lock:
            self._sandboxes.pop(request.pod_sandbox_id, None)
            kept = {k: v for k, v in self._containers.items() if v.sandbox.id != request.pod_sandbox_id}
            self._containers = kept
        return pb.RemovePodSandboxResponse()

    def pod_sandbox_status(self, request: pb.PodSandboxStatusRequest) -> pb.PodSandboxStatusResponse:
        with self._lock:
            each = self._sandboxes[request.pod_sandbox_id]
            status = pb.PodSandboxStatus(
                id=each.id,
                metadata=each.config.metadata,
                state=pb.SANDBOX_READY if each.ready else pb.SANDBOX_NOTREADY,
                created_at=each.created_at,
                network=pb.PodSandboxNetworkStatus(ip=each.ip),
                labels=each.config.labels,
                annotations=each.config.annotations,
            )
        return pb.PodSandboxStatusResponse(status=status)

    def list_pod_sandbox(self, request: pb.ListPodSandboxRequest) -> pb.ListPodSandboxResponse:
        wanted = request.filter
        with self._lock:
            items = [
                pb.PodSandbox(
                    id=each.id,
                    metadata=each.config.metadata,
                    state=pb.SANDBOX_READY if each.ready else pb.SANDBOX_NOTREADY,
                    created_at=each.created_at,
                    labels=each.config.labels,
                    annotations=each.config.annotations,
                )
                for each in self._sandboxes.values()
                if wanted.id in {"", each.id} and _matches(each.config.labels, wanted.label_selector)
            ]
        if wanted.HasField("state"):
            items = [item for item in items if item.state == wanted.state.state]
        return pb.ListPodSandboxResponse(items=items)

    def create_container(self, request: pb.CreateContainerRequest) -> pb.CreateContainerResponse:
        config = request.config
        ids = tuple(device.name for device in config.cdi_devices)
        sees = Edits(
            env={entry.key: entry.value for entry in config.envs},
            devices={device.container_path: device.host_path for device in config.devices},
            mounts={
                mount.container_path: (mount.host_path, ("ro",) if mount.readonly else ()) for mount in config.mounts
            },
        )
        with self._lock:
            try:
                resolve(self._cdi, ids, sees)
            except UnresolvableError as error:
                self.refusals.append(f"{config.metadata.name}: {error}")
                raise
            name = f"container-{next(self._numbers)}"
            sandbox = self._sandboxes[request.pod_sandbox_id]
            made = Container(name, sandbox, config, ids, sees, time.time_ns())
            self._containers[name] = made
            self.history.append(made)
        return pb.CreateContainerResponse(container_id=name)

    def start_container(self, request: pb.StartContainerRequest) -> pb.StartContainerResponse:
        with self._lock:
            each = self._containers[request.container_id]
            each.state, each.started_at = pb.CONTAINER_RUNNING, time.time_ns()
            if list(each.config.command) == ["true"]:
                self._finish(each)
        return pb.StartContainerResponse()

    def stop_container(self, request: pb.StopContainerRequest) -> pb.StopContainerResponse:
        with self._lock:
            if each := self._containers.get(request.container_id):
                self._finish(each)
        return pb.StopContainerResponse()

    @staticmethod
    def _finish(each: Container) -> None:
        if each.state != pb.CONTAINER_EXITED:
            each.state, each.finished_at = pb.CONTAINER_EXITED, time.time_ns()

    def remove_container(self, request: pb.RemoveContainerRequest) -> pb.RemoveContainerResponse:
        with self._lock:
            self._containers.pop(request.container_id, None)
        return pb.RemoveContainerResponse()

    def list_containers(self, request: pb.ListContainersRequest) -> pb.ListContainersResponse:
        wanted = request.filter
        with self._lock:
            items = [
                pb.Container(
                    id=each.id,
                    pod_sandbox_id=each.sandbox.id,
                    metadata=each.config.metadata,
                    image=each.config.image,
                    image_ref=each.config.image.image,
                    state=each.state,
                    created_at=each.created_at,
                    labels=each.config.labels,
                    annotations=each.config.annotations,
                )
                for each in self._containers.values()
                if wanted.id in {"", each.id}
                and wanted.pod_sandbox_id in {"", each.sandbox.id}
                and _matches(each.config.labels, wanted.label_selector)
            ]
        if wanted.HasField("state"):
            items = [item for item in items if item.state == wanted.state.state]
        return pb.ListContainersResponse(containers=items)

    def container_status(self, request: pb.ContainerStatusRequest) -> pb.ContainerStatusResponse:
        with self._lock:
            each = self._containers[request.container_id]
            status = pb.ContainerStatus(
                id=each.id,
                metadata=each.config.metadata,
                state=each.state,
                created_at=each.created_at,
                started_at=each.started_at,
                finished_at=each.finished_at,
                image=each.config.image,
                image_ref=each.config.image.image,
                reason="Completed" if each.state == pb.CONTAINER_EXITED else "",
                labels=each.config.labels,
                annotations=each.config.annotations,
                log_path=each.config.log_path,
            )
        return pb.ContainerStatusResponse(status=status)

    def reopen_container_log(self, _: pb.ReopenContainerLogRequest) -> pb.ReopenContainerLogResponse:
        return pb.ReopenContainerLogResponse()

    # --- ImageService ---------------------------------------------------------------------------------------

    @staticmethod
    def _image(name: str) -> pb.Image:
        return pb.Image(id=name, repo_tags=[name], size=_IMAGE_SIZE)

    def list_images(self, _: pb.ListImagesRequest) -> pb.ListImagesResponse:
        with self._lock:
            return pb.ListImagesResponse(images=[self._image(name) for name in sorted(self._images)])

    def image_status(self, request: pb.ImageStatusRequest) -> pb.ImageStatusResponse:
        name = request.image.image
        with self._lock:
            return pb.ImageStatusResponse(image=self._image(name) if name in self._images else None)

    def pull_image(self, request: pb.PullImageRequest) -> pb.PullImageResponse:
        with self._lock:
            self._images.add(request.image.image)
        return pb.PullImageResponse(image_ref=request.image.image)

    def image_fs_info(self, _: pb.ImageFsInfoRequest) -> pb.ImageFsInfoResponse:
        usage = pb.FilesystemUsage(
            timestamp=time.time_ns(),
            fs_id=pb.FilesystemIdentifier(mountpoint=str(self._image_directory)),
            used_bytes=pb.UInt64Value(value=_IMAGE_SIZE),
            inodes_used=pb.UInt64Value(value=1),
        )
        return pb.ImageFsInfoResponse(image_filesystems=[usage], container_filesystems=[usage])


_RPCS: Final[dict[str, dict[str, Callable[[Runtime, Any], Message]]]] = {
    "runtime.v1.RuntimeService": {
        "Version": Runtime.version,
        "Status": Runtime.status,
        "RuntimeConfig": Runtime.runtime_config,
        "UpdateRuntimeConfig": Runtime.update_runtime_config,
        "RunPodSandbox": Runtime.run_pod_sandbox,
        "StopPodSandbox": Runtime.stop_pod_sandbox,
        "RemovePodSandbox": Runtime.remove_pod_sandbox,
        "PodSandboxStatus": Runtime.pod_sandbox_status,
        "ListPodSandbox": Runtime.list_pod_sandbox,
        "CreateContainer": Runtime.create_container,
        "StartContainer": Runtime.start_container,
        "StopContainer": Runtime.stop_container,
        "RemoveContainer": Runtime.remove_container,
        "ListContainers": Runtime.list_containers,
        "ContainerStatus": Runtime.container_status,
        "ReopenContainerLog": Runtime.reopen_container_log,
    },
    "runtime.v1.ImageService": {
        "ListImages": Runtime.list_images,
        "ImageStatus": Runtime.image_status,
        "PullImage": Runtime.pull_image,
        "ImageFsInfo": Runtime.image_fs_info,
    },
}
"""What the kubelet may call; everything else answers UNIMPLEMENTED."""


def _handler(
    rpc: str, runtime: Runtime, method: Callable[[Runtime, Any], Message]
) -> "grpc.RpcMethodHandler[Any, Any]":
    request_type = getattr(pb, f"{rpc}Request")

    def serve(request: Any, context: grpc.ServicerContext) -> Message:
        try:
            return method(runtime, request)
        except UnresolvableError as error:
            context.abort(grpc.StatusCode.INTERNAL, f"CDI device injection failed: {error}")
        except KeyError as error:
            context.abort(grpc.StatusCode.NOT_FOUND, f"{rpc}: there is no {error}")
        raise AssertionError(f"abort returned in {rpc}")

    response_type = getattr(pb, f"{rpc}Response")
    return grpc.unary_unary_rpc_method_handler(
        serve,
        request_deserializer=request_type.FromString,
        response_serializer=response_type.SerializeToString,
    )


class RuntimeServer:
    """Serves a runtime on a unix socket."""

    def __init__(self, runtime: Runtime, socket: Path) -> None:
        self.endpoint = f"unix://{socket}"
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=8, thread_name_prefix="cri"))
        for service, rpcs in _RPCS.items():
            handlers = {rpc: _handler(rpc, runtime, method) for rpc, method in rpcs.items()}
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        self._server.add_insecure_port(self.endpoint)

    def start(self) -> None:
        """Serve."""
        self._server.start()

    def stop(self) -> None:
        """Stop serving and wait until that is done."""
        self._server.stop(grace=1).wait()
