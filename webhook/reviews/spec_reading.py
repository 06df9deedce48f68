"""Decodes the specs of claims, templates and DeviceClasses in reviews; opaque parameters stay raw JSON."""

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from checks.claims.judging import ReadSpec, read
from conversion.objects import nesting
from conversion.objects.wire import ABSENT

NOTHING: Final = (b"", b"null")


class Object(Struct, frozen=True):
    """The field of an object that is read."""

    spec: Raw = ABSENT


class _Opaque(Struct, frozen=True):
    parameters: Raw = ABSENT


class _RawConfig(Struct, frozen=True):
    opaque: _Opaque | None = None


class _RawDevices(Struct, frozen=True):
    config: list[_RawConfig] | None = None


class _RawClaim(Struct, frozen=True):
    devices: _RawDevices | None = None


class _RawTemplate(Struct, frozen=True):
    spec: _RawClaim | None = None


decode: Final = msgspec.json.Decoder(Object).decode
KINDS: Final[dict[str, Any]] = {
    "ResourceClaim": msgspec.json.Decoder(_RawClaim).decode,
    "ResourceClaimTemplate": msgspec.json.Decoder(_RawTemplate).decode,
    "DeviceClass": msgspec.json.Decoder(_RawDevices).decode,
}


def read_specs(kind: str, api_version: str, spec: bytes, old: bytes) -> list[ReadSpec]:
    """The new spec, and the old one if there is one.

    Raises:
        pods.UnreadableError: one is not JSON, or nested too deeply.
    """
    return [read(kind, api_version, read_spec(kind, raw)) for raw in ((spec, old) if old else (spec,))]


def read_spec(kind: str, raw: bytes) -> object:
    """A `spec` as Python data. `opaque.parameters` stay raw JSON bytes, so that repeated keys can be found.

    Raises:
        pods.UnreadableError: it is not JSON, or nested too deeply.
    """
    spec: Any = nesting.decode(raw)
    try:
        typed: Any = KINDS[kind](raw)
    except msgspec.ValidationError:
        return spec  # a field has the wrong type: reading `spec` reports it
    data: Any = spec
    if kind == "ResourceClaimTemplate":
        data, typed = (spec or {}).get("spec"), typed and typed.spec
    if kind != "DeviceClass":
        data, typed = (data or {}).get("devices"), typed and typed.devices
    for entry, shape in zip((data or {}).get("config") or (), (typed and typed.config) or (), strict=False):
        if shape.opaque is not None and bytes(shape.opaque.parameters) not in NOTHING:
            entry["opaque"]["parameters"] = bytes(shape.opaque.parameters)
    return spec
