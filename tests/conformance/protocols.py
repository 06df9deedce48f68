"""gRPC protocols as tables: services, messages, enums, with all numbers and types."""

import importlib
import mmap
from pathlib import Path
from typing import Any, Final

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

SOURCES: Final = {
    "dra_v1": "k8s.io/kubelet/pkg/apis/dra/v1/api.proto",
    "dra_v1beta1": "k8s.io/kubelet/pkg/apis/dra/v1beta1/api.proto",
    "dra_health_v1alpha1": "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1/api.proto",
    "registration_v1": "k8s.io/kubelet/pkg/apis/pluginregistration/v1/api.proto",
}
"""The kubelet's name of each of our `.proto` files."""

_PREFIX: Final = "staging/src/"
_END: Final = b"\x62\x06proto3"
"""Field 12, `syntax`: protoc-gen-go writes fields in order, and the protocols have no later one."""
_LABELS: Final = {FieldDescriptorProto.LABEL_REPEATED: "repeated ", FieldDescriptorProto.LABEL_REQUIRED: "required "}


def embedded(binary: Path, name: str) -> FileDescriptorProto:
    """The descriptor of a `.proto` file in a Go program.

    Raises:
        LookupError: there is none.
    """
    with binary.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for full in (f"{_PREFIX}{name}".encode(), name.encode()):
            start = content.find(b"\n" + bytes([len(full)]) + full + b"\x12")
            end = content.find(_END, start)
            if start >= 0 and end >= 0:
                return FileDescriptorProto.FromString(content[start : end + len(_END)])
    raise LookupError(f"{binary} has no descriptor of {name}")


def ours(name: str) -> FileDescriptorProto:
    """The descriptor of one of our `.proto` files."""
    module: Any = importlib.import_module(f"kubeletplugin.pb.{name}_pb2")
    return FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)


def table(file: FileDescriptorProto) -> dict[str, Any]:
    """A protocol without its comments and options."""
    messages: dict[str, dict[str, str]] = {}
    enums: dict[str, dict[str, int]] = {}
    for message in file.message_type:
        _add(message, "", file.package, messages, enums)
    for enum in file.enum_type:
        enums[enum.name] = _values(enum)
    services = {
        service.name: {
            method.name: f"{_stream(method.client_streaming)}{_local(method.input_type, file.package)} -> "
            f"{_stream(method.server_streaming)}{_local(method.output_type, file.package)}"
            for method in service.method
        }
        for service in file.service
    }
    return {"package": file.package, "services": services, "messages": messages, "enums": enums}


def _add(
    message: DescriptorProto,
    outer: str,
    package: str,
    messages: dict[str, dict[str, str]],
    enums: dict[str, dict[str, int]],
) -> None:
    name = f"{outer}{message.name}"
    messages[name] = {field.name: _field(field, package) for field in message.field}
    for nested in message.nested_type:
        _add(nested, f"{name}.", package, messages, enums)
    for enum in message.enum_type:
        enums[f"{name}.{enum.name}"] = _values(enum)


def _values(enum: EnumDescriptorProto) -> dict[str, int]:
    return {value.name: value.number for value in enum.value}


def _field(field: FieldDescriptorProto, package: str) -> str:
    label = "optional " if field.proto3_optional else _LABELS.get(field.label, "")
    kind = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    return f"{label}{_local(field.type_name, package) if field.type_name else kind} = {field.number}"


def _local(name: str, package: str) -> str:
    return name.removeprefix(f".{package}.")


def _stream(streaming: bool) -> str:
    return "stream " if streaming else ""
