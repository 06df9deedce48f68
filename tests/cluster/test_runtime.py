"""The stand-in runtime applies CDI ids and refuses calls as a real runtime does."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.cluster.cdi import Edits, UnresolvableError, resolve
from tests.cluster.cri import Runtime, RuntimeServer
from tests.cluster.pb import cri_pb2 as pb

KIND = "k8s.example.com/claim"


def write_spec(directory: Path, name: str, devices: dict[str, dict[str, Any]], **common: Any) -> None:
    spec: dict[str, Any] = {"cdiVersion": "0.6.0", "kind": KIND, "containerEdits": common}
    spec["devices"] = [{"name": key, "containerEdits": edits} for key, edits in devices.items()]
    (directory / f"{name}.json").write_text(json.dumps(spec))


def test_edits_of_a_spec_apply_once_and_those_of_its_devices_follow(tmp_path: Path) -> None:
    node = {"deviceNodes": [{"path": "/dev/neuron0", "hostPath": "/host/neuron3"}, {"path": "/dev/neuron1"}]}
    mount = {"hostPath": "/h", "containerPath": "/c", "options": ["ro", "bind"]}
    write_spec(tmp_path, "a", {"x": {**node, "env": ["A=device"]}, "y": {"mounts": [mount]}}, env=["A=spec", "B=a=b"])
    seen = resolve(tmp_path, [f"{KIND}=x", f"{KIND}=y", f"{KIND}=x"], Edits(env={"A": "pod", "C": "pod"}))
    assert seen.env == {"A": "device", "B": "a=b", "C": "pod"}
    assert seen.devices == {"/dev/neuron0": "/host/neuron3", "/dev/neuron1": "/dev/neuron1"}
    assert seen.mounts == {"/c": ("/h", ("ro", "bind"))}


@pytest.mark.parametrize("files", [[], ["one", "two"]], ids=["in-no-file", "in-two-files"])
def test_ids_that_do_not_resolve_are_named(tmp_path: Path, files: list[str]) -> None:
    for name in files:
        write_spec(tmp_path, name, {"x": {}})
    with pytest.raises(UnresolvableError, match=rf"^unresolvable CDI devices {KIND}=x$"):
        resolve(tmp_path, [f"{KIND}=x"], Edits())


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    return Runtime(tmp_path, tmp_path)


@pytest.fixture
def channel(runtime: Runtime, tmp_path: Path) -> Iterator[grpc.Channel]:
    server = RuntimeServer(runtime, tmp_path / "cri.sock")
    server.start()
    with grpc.insecure_channel(server.endpoint) as channel:
        yield channel
    server.stop()


def call(channel: grpc.Channel, rpc: str, request: Any, service: str = "RuntimeService") -> Any:
    answer = getattr(pb, f"{rpc}Response")
    method = channel.unary_unary(
        f"/runtime.v1.{service}/{rpc}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=answer.FromString,
    )
    return method(request, timeout=5)


def create(channel: grpc.Channel, *ids: str, command: tuple[str, ...] = ()) -> str:
    metadata = pb.PodSandboxMetadata(name="p", namespace="n", uid="u")
    config = pb.PodSandboxConfig(metadata=metadata)
    sandbox = call(channel, "RunPodSandbox", pb.RunPodSandboxRequest(config=config)).pod_sandbox_id
    wanted = pb.ContainerConfig(
        metadata=pb.ContainerMetadata(name="main"),
        command=command,
        envs=[pb.KeyValue(key="A", value="pod")],
        cdi_devices=[pb.CDIDevice(name=each) for each in ids],
    )
    request = pb.CreateContainerRequest(pod_sandbox_id=sandbox, config=wanted)
    return str(call(channel, "CreateContainer", request).container_id)


def test_a_created_container_sees_its_devices(channel: grpc.Channel, runtime: Runtime, tmp_path: Path) -> None:
    write_spec(tmp_path, "claim", {"x": {"env": ["NEURON=1"], "deviceNodes": [{"path": "/dev/neuron0"}]}})
    create(channel, f"{KIND}=x")
    made = runtime.created("n", "p")["main"]
    assert made.cdi_devices == (f"{KIND}=x",)
    assert made.sees.env == {"A": "pod", "NEURON": "1"}
    assert list(made.sees.devices) == ["/dev/neuron0"]


def test_a_container_with_an_unknown_device_is_refused(channel: grpc.Channel, runtime: Runtime) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        create(channel, f"{KIND}=gone")
    error: Any = refused.value
    assert error.code() is grpc.StatusCode.INTERNAL
    assert error.details() == f"CDI device injection failed: unresolvable CDI devices {KIND}=gone"
    assert runtime.created("n", "p") == {}
    assert runtime.refusals == [f"main: unresolvable CDI devices {KIND}=gone"]


def test_a_missing_container_is_not_found(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        call(channel, "ContainerStatus", pb.ContainerStatusRequest(container_id="nobody"))
    error: Any = refused.value
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert error.details() == "ContainerStatus: there is no 'nobody'"


@pytest.mark.parametrize(
    ("command", "state"), [(("true",), pb.CONTAINER_EXITED), (("serve",), pb.CONTAINER_RUNNING)], ids=["true", "other"]
)
def test_only_the_command_true_exits_by_itself(channel: grpc.Channel, command: tuple[str, ...], state: int) -> None:
    container = create(channel, command=command)
    call(channel, "StartContainer", pb.StartContainerRequest(container_id=container))
    status = call(channel, "ContainerStatus", pb.ContainerStatusRequest(container_id=container)).status
    assert status.state == state
    assert status.exit_code == 0


def test_a_pulled_image_exists(channel: grpc.Channel) -> None:
    spec = pb.ImageSpec(image="app:1")
    asked = pb.ImageStatusRequest(image=spec)
    assert not call(channel, "ImageStatus", asked, "ImageService").HasField("image")
    call(channel, "PullImage", pb.PullImageRequest(image=spec), "ImageService")
    assert call(channel, "ImageStatus", asked, "ImageService").image.repo_tags == ["app:1"]
