"""The protocols between driver and kubelet are the kubelet's own: the same names, numbers and types."""

import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from kubeletplugin.changes import Clock
from kubeletplugin.kubelet import SERVICES, handlers, registration
from tests.conformance import protocols
from tests.conformance.schemas import KUBELET, recorded

NEWER = "v1.DRAResourceHealth"
"""Comes with Kubernetes 1.37, so the recorded kubelet does not have it. Its messages are those of v1alpha1."""


@pytest.mark.parametrize("name", protocols.SOURCES)
def test_messages_have_the_kubelets_fields(name: str) -> None:
    assert protocols.table(protocols.ours(name)) == recorded(KUBELET)["protocols"][name]


class Call(NamedTuple):
    """`grpc.HandlerCallDetails`."""

    method: str
    invocation_metadata: tuple[()] = ()


def served(path: str) -> list[Any]:
    # The parts behind the handlers are not called.
    parts: Any = None
    every = (
        *handlers(parts, parts, "node-1", Clock()),
        registration(Path("dra.sock"), lambda _: None),
    )
    call: Any = Call(path)
    found: list[grpc.RpcMethodHandler | None] = [handler.service(call) for handler in every]
    return [each for each in found if each is not None]


def test_every_method_is_served_as_the_kubelet_calls_it() -> None:
    calls = [
        (f"/{protocol['package']}.{service}/{method}", types)
        for protocol in recorded(KUBELET)["protocols"].values()
        for service, methods in protocol["services"].items()
        for method, types in methods.items()
    ]
    assert len(calls) == 7
    for path, types in calls:
        [handler] = served(path)
        assert (handler.request_streaming, handler.response_streaming) == (False, "-> stream " in types), path


def test_the_registration_offers_services_of_the_protocols() -> None:
    packages = [protocol["package"] for protocol in recorded(KUBELET)["protocols"].values()]
    known = {
        f"{protocol['package'].rpartition('.')[2]}.{service}"
        for protocol in recorded(KUBELET)["protocols"].values()
        for service in protocol["services"]
    }
    assert len(set(packages)) == len(packages)
    assert set(SERVICES) - known == {NEWER}
    old, new = (f"/{package}.DRAResourceHealth/NodeWatchResources" for package in ("v1alpha1", "v1"))
    [handler], [newer] = served(old), served(new)
    assert newer.request_deserializer == handler.request_deserializer
    assert newer.response_serializer == handler.response_serializer


PROTO = """syntax = "proto3";
package demo.v1;
service Demo { rpc Watch(stream Ask) returns (stream Ask) {} }
enum Colour { RED = 0; }
message Ask {
  message Part { bool ok = 1; }
  enum Kind { NONE = 0; SOME = 3; }
  repeated Part parts = 2;
  optional string id = 5;
  map<string, int64> counts = 7;
}
"""


def test_a_message_table_has_every_property_of_the_wire_format(tmp_path: Path) -> None:
    (tmp_path / "demo.proto").write_text(PROTO)
    out = tmp_path / "demo.pb"
    command = ["-m", "grpc_tools.protoc", f"-I{tmp_path}", f"--descriptor_set_out={out}", "demo.proto"]
    subprocess.run([sys.executable, *command], check=True)
    content = out.read_bytes()
    # A descriptor set of one file: its tag, its length, the file.
    file = FileDescriptorProto.FromString(content[3:])
    assert protocols.table(file) == {
        "package": "demo.v1",
        "services": {"Demo": {"Watch": "stream Ask -> stream Ask"}},
        "messages": {
            "Ask": {
                "parts": "repeated Ask.Part = 2",
                "id": "optional string = 5",
                "counts": "repeated Ask.CountsEntry = 7",
            },
            "Ask.Part": {"ok": "bool = 1"},
            "Ask.CountsEntry": {"key": "string = 1", "value": "int64 = 2"},
        },
        "enums": {"Colour": {"RED": 0}, "Ask.Kind": {"NONE": 0, "SOME": 3}},
    }
    binary = tmp_path / "program"
    # As protoc-gen-go writes it into a program: only the file's name is another.
    file.name = "staging/src/k8s.io/demo.proto"
    binary.write_bytes(b"\x7fELF..." + file.SerializeToString(deterministic=True) + b"\x0a\x03more")
    assert protocols.embedded(binary, "k8s.io/demo.proto") == file
    with pytest.raises(LookupError, match=r"program has no descriptor of k8s\.io/other\.proto"):
        protocols.embedded(binary, "k8s.io/other.proto")
