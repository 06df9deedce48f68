"""Reads the specs of claims, templates and DeviceClasses in reviews, and their shape. Pure.

The shape of a claim's spec is all that its check reads, without the names of its requests.

Names are only references, and texts of findings. No check reads the tolerations of a request. So claims of one shape
that have no findings share one decision, whatever their requests are called and tolerate.
"""

from collections.abc import Hashable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from checks.claims.judging import ReadSpec, read
from conversion.objects import nesting, pods
from conversion.objects.wire import ABSENT
from neuron.names import DNS_LABEL


class _Exactly(Struct, frozen=True, forbid_unknown_fields=True):
    """An `ExactDeviceRequest`."""

    deviceClassName: Raw = ABSENT  # noqa: N815 - the API's spelling
    selectors: Raw = ABSENT
    allocationMode: Raw = ABSENT  # noqa: N815
    count: Raw = ABSENT
    adminAccess: Raw = ABSENT  # noqa: N815
    capacity: Raw = ABSENT
    tolerations: Raw = ABSENT

    def judged(self) -> Hashable:
        """The fields that a check reads."""
        return (
            bytes(self.deviceClassName),
            bytes(self.selectors),
            bytes(self.allocationMode),
            bytes(self.count),
            bytes(self.adminAccess),
            bytes(self.capacity),
        )


class _Request(Struct, frozen=True, forbid_unknown_fields=True):
    """A request of v1 and v1beta2. In v1beta1 a request with one class has other fields, and so no shape."""

    name: str
    exactly: _Exactly | None = None
    firstAvailable: Raw = ABSENT  # noqa: N815


class _Constraint(Struct, frozen=True, forbid_unknown_fields=True):
    requests: list[str] | None = None
    matchAttribute: Raw = ABSENT  # noqa: N815
    distinctAttribute: Raw = ABSENT  # noqa: N815


class _ShapedConfig(Struct, frozen=True, forbid_unknown_fields=True):
    requests: list[str] | None = None
    opaque: Raw = ABSENT


class _ShapedDevices(Struct, frozen=True, forbid_unknown_fields=True):
    requests: list[_Request]
    constraints: list[_Constraint] | None = None
    config: list[_ShapedConfig] | None = None


class _ShapedClaim(Struct, frozen=True, forbid_unknown_fields=True):
    devices: _ShapedDevices


class _ShapedTemplate(Struct, frozen=True, forbid_unknown_fields=True):
    spec: _ShapedClaim
    metadata: Raw = ABSENT


_DECODERS: Final[dict[str, Any]] = {
    "ResourceClaim": msgspec.json.Decoder(_ShapedClaim).decode,
    "ResourceClaimTemplate": msgspec.json.Decoder(_ShapedTemplate).decode,
}


def shape_of(kind: str, version: str, spec: bytes) -> Hashable | None:
    """The shape of a claim or template; None if its names may have findings, or if it has fields that are unknown here.

    Args:
        spec: its spec as JSON.
    """
    decode = _DECODERS.get(kind)
    if decode is None:
        return None
    try:
        read = decode(spec)
    except pods.UnreadableError:
        return None
    devices: _ShapedDevices = (read if kind == "ResourceClaim" else read.spec).devices
    places = {request.name: place for place, request in enumerate(devices.requests)}
    # Names that are repeated, or no DNS labels, have findings.
    if len(places) < len(devices.requests) or not all(map(DNS_LABEL.fullmatch, places)):
        return None
    try:
        return (
            kind,
            version,
            tuple([(each.exactly and each.exactly.judged(), bytes(each.firstAvailable)) for each in devices.requests]),
            tuple(
                [
                    (_placed(each.requests, places), bytes(each.matchAttribute), bytes(each.distinctAttribute))
                    for each in devices.constraints or ()
                ]
            ),
            tuple([(_placed(each.requests, places), bytes(each.opaque)) for each in devices.config or ()]),
        )
    except KeyError:
        return None


def _placed(references: Sequence[str] | None, places: dict[str, int]) -> tuple[tuple[int, str], ...]:
    """References by the place of their request, and the name of the alternative. Raises KeyError for no request."""
    parts = [reference.partition("/") for reference in references or ()]
    return tuple([(places[name], slash + alternative) for name, slash, alternative in parts])


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
