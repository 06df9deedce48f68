"""The shape of a claim's spec: all that its check reads, without the names of its requests. Pure.

Names are only references, and texts of findings. No check reads the tolerations of a request. So claims of one shape
that have no findings share one decision, whatever their requests are called and tolerate.
"""

from collections.abc import Hashable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from conversion.objects import pods
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
    """References by the place of their request, and the name of the alternative.

    Raises:
        KeyError: one names no request.
    """
    parts = [reference.partition("/") for reference in references or ()]
    return tuple([(places[name], slash + alternative) for name, slash, alternative in parts])
