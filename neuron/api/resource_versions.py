"""Converts objects between the API versions of `resource.k8s.io`, as the API server does. Pure.

`v1` and `v1beta2` have the same fields, DeviceTaintRules also in `v1alpha3`. In `v1beta1` the fields of a request
without alternatives are in the request, not under `exactly`, and those of a device in a ResourceSlice under `basic`.
Source: pkg/apis/resource/v1beta1/conversion.go.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from neuron.api import slices
from neuron.api.claim_specs import GROUP

VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
"""Versions without the group, the preferred one first."""
_OLDEST: Final = "v1beta1"
"""The version without `exactly`, with `basic`."""


class _NestedFields(NamedTuple):
    """A list whose entries have their fields in a member of their own, in some versions.

    Attributes:
        path: of the object that has the list.
        own: fields that an entry has itself in every version.
        in_oldest: whether the member is that of `_OLDEST`, rather than of the others.
    """

    path: tuple[str, ...]
    field: str
    member: str
    own: tuple[str, ...]
    in_oldest: bool = False


_REQUESTS: Final = _NestedFields(("spec", "devices"), "requests", "exactly", ("name", "firstAvailable"))
_DEVICES: Final = _NestedFields(("spec",), "devices", "basic", ("name",), in_oldest=True)
_KINDS: Final[Mapping[str, _NestedFields | None]] = {
    "ResourceClaim": _REQUESTS,
    "ResourceClaimTemplate": _REQUESTS._replace(path=("spec", "spec", "devices")),
    "DeviceClass": None,
    "ResourceSlice": _DEVICES,
}


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
    entries = _KINDS.get(kind)
    if entries is not None and (version == _OLDEST) != (wanted == _OLDEST):
        change = functools.partial(_nested if entries.in_oldest == (wanted == _OLDEST) else _flat, entries)
        made = _changed(made, entries, entries.path, change)
    return made


def nested_request(request: Mapping[str, object]) -> Mapping[str, object]:
    """A request of `v1beta1` as in `v1`; the order of members is kept."""
    return _nested(_REQUESTS, request)


def _nested(entries: _NestedFields, entry: Mapping[str, object]) -> Mapping[str, object]:
    """An entry with its fields in the member; the order of members is kept.

    `exactly` does not exist in `v1beta1`: there the API server drops it. It stays if a request has nothing else.
    """
    own, member = entries.own, entries.member
    moved = {name: value for name, value in entry.items() if name not in (*own, member)}
    if not moved and not entries.in_oldest:
        return entry
    made: dict[str, object] = {}
    for name, value in entry.items():
        if name in own:
            made[name] = value
        else:
            made[member] = moved
    return made if moved else {**made, member: moved}


def _flat(entries: _NestedFields, entry: Mapping[str, object]) -> Mapping[str, object]:
    own, member = entries.own, entries.member
    inner = entry.get(member)
    if not isinstance(inner, dict):
        return entry
    kept = {name: value for name, value in entry.items() if name in own}
    return {**{name: value for name, value in inner.items() if name not in own}, **kept}


def _changed(
    data: Mapping[str, object],
    entries: _NestedFields,
    path: tuple[str, ...],
    change: Callable[[Mapping[str, object]], Mapping[str, object]],
) -> dict[str, object]:
    """An object with the entries below `path` changed."""
    made = dict(data)
    if path:
        inner = data.get(path[0])
        if isinstance(inner, dict):
            made[path[0]] = _changed(inner, entries, path[1:], change)
        return made
    if entries.in_oldest:
        # `v1` has pointers here, and `v1beta1` has values: an empty one is absent in both after the conversion.
        made = {name: value for name, value in made.items() if name not in ("nodeName", "allNodes") or value}
    listed = data.get(entries.field)
    if isinstance(listed, list):
        made[entries.field] = [change(entry) if isinstance(entry, dict) else entry for entry in listed]
    return made
