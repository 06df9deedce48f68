"""Converts objects between the API versions of `resource.k8s.io`, as the API server does. Pure.

`v1` and `v1beta2` have the same fields, DeviceTaintRules also in `v1alpha3`. In `v1beta1` the fields of a request
without alternatives are in the request, not under `exactly`, and those of a device in a ResourceSlice under `basic`.
Source: pkg/apis/resource/v1beta1/conversion.go.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from neuron.api import slices
from neuron.api.claim_specs import GROUP

VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
"""Versions without the group, the preferred one first."""
_FLAT: Final = "v1beta1"
"""The version without `exactly`, with `basic`."""
_EXACTLY: Final = "exactly"
_BASIC: Final = "basic"
_OF_REQUEST: Final = ("name", "firstAvailable")
"""Fields that a request has itself in every version."""
_OF_DEVICE: Final = ("name",)

_Change = Callable[[Mapping[str, object]], Mapping[str, object]]


def convertible(kind: str, version: str, wanted: str) -> bool:
    """Whether objects of a kind of `resource.k8s.io` can be converted from one version to another."""
    versions = slices.TAINT_RULE_VERSIONS if kind == slices.TAINT_RULE else VERSIONS if kind in _KINDS else ()
    return version == wanted or (version in versions and wanted in versions)


def converted(kind: str, data: object, wanted: str) -> Any:
    """An object in another version of `resource.k8s.io`.

    Args:
        kind: its kind; `convertible` has to be true.
        data: the object, with its `apiVersion`. It is not modified; the result shares values with it.
        wanted: the version, without the group.

    Returns:
        The object. Values of other types than the API's, which only files have, are returned unchanged.
    """
    if not isinstance(data, dict):
        return data
    version = str(data.get("apiVersion", "")).rpartition("/")[2]
    made = {**data, "apiVersion": f"{GROUP}/{wanted}"}
    if (version == _FLAT) != (wanted == _FLAT):
        change = _KINDS[kind]
        made |= change(made, to_flat=wanted == _FLAT)
    return made


def nested_request(request: Mapping[str, object]) -> Mapping[str, object]:
    """A request of `v1beta1` as in `v1`; the order of members is kept.

    `exactly` does not exist in `v1beta1`: there the API server drops it. It stays if the request has nothing else.
    """
    moved = {name: value for name, value in request.items() if name not in _OF_REQUEST}
    if not moved.keys() - {_EXACTLY}:
        return request
    moved.pop(_EXACTLY, None)
    made: dict[str, object] = {}
    for name, value in request.items():
        if name in _OF_REQUEST:
            made[name] = value
        else:
            made[_EXACTLY] = moved
    return made


def _flat_request(request: Mapping[str, object]) -> Mapping[str, object]:
    inner = request.get(_EXACTLY)
    if not isinstance(inner, dict):
        return request
    own = {name: value for name, value in request.items() if name in _OF_REQUEST}
    return {**{name: value for name, value in inner.items() if name not in _OF_REQUEST}, **own}


def _nested_device(device: Mapping[str, object]) -> Mapping[str, object]:
    inner = {name: value for name, value in device.items() if name not in (*_OF_DEVICE, _BASIC)}
    return {**{name: device[name] for name in _OF_DEVICE if name in device}, _BASIC: inner}


def _flat_device(device: Mapping[str, object]) -> Mapping[str, object]:
    inner = device.get(_BASIC)
    own = {name: value for name, value in device.items() if name in _OF_DEVICE}
    return {**(inner if isinstance(inner, dict) else {}), **own}


def _claim(data: Mapping[str, object], *, to_flat: bool) -> dict[str, object]:
    change = _flat_request if to_flat else nested_request
    return _within(data, "spec", lambda spec: _with_requests(spec, change))


def _template(data: Mapping[str, object], *, to_flat: bool) -> dict[str, object]:
    return _within(data, "spec", lambda spec: {**spec, **_claim(spec, to_flat=to_flat)})


def _device_class(data: Mapping[str, object], *, to_flat: bool) -> dict[str, object]:  # noqa: ARG001 - equal in all versions
    return {}


def _slice(data: Mapping[str, object], *, to_flat: bool) -> dict[str, object]:
    change = _nested_device if to_flat else _flat_device

    def spec_of(spec: Mapping[str, object]) -> Mapping[str, object]:
        # `v1` has pointers here, and `v1beta1` has values: an empty one is absent in both after the conversion.
        kept = {name: value for name, value in spec.items() if name not in ("nodeName", "allNodes") or value}
        return _with_entries(kept, "devices", change)

    return _within(data, "spec", spec_of)


def _with_requests(spec: Mapping[str, object], change: _Change) -> Mapping[str, object]:
    return {**spec, **_within(spec, "devices", lambda devices: _with_entries(devices, "requests", change))}


def _within(data: Mapping[str, object], field: str, change: _Change) -> dict[str, object]:
    """The field with its object changed; empty if it has no object."""
    value = data.get(field)
    return {field: change(value)} if isinstance(value, dict) else {}


def _with_entries(data: Mapping[str, object], field: str, change: _Change) -> Mapping[str, object]:
    entries = data.get(field)
    if not isinstance(entries, list):
        return data
    return {**data, field: [change(entry) if isinstance(entry, dict) else entry for entry in entries]}


_KINDS: Final[Mapping[str, Callable[..., dict[str, object]]]] = {
    "ResourceClaim": _claim,
    "ResourceClaimTemplate": _template,
    "DeviceClass": _device_class,
    "ResourceSlice": _slice,
}
