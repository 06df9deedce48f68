"""Requests with `adminAccess` look at devices whose cores are all in use, too. Pure.

The allocator checks the free capacity of a shared device for `adminAccess` as for any other request. A driver without
shares serves the same claim, so the request asks for 0 cores where devices of the cluster are shared.
"""

import json
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from conversion.asks.conversion_context import ConversionContext
from conversion.asks.steering import NO_STEERING, Mode, Steering, annotated_settings, combined
from conversion.facts import NamespaceFacts
from conversion.objects import pods
from conversion.objects.pod_places import pointer
from conversion.patches.decision import Decision, Operation, Outcome, unchanged
from conversion.patches.operations import add, set_members
from neuron import names
from neuron.api.fields import WrongFormError, mapping, mappings, read, text
from neuron.api.metadata import ObjectMeta
from neuron.findings import warning

_NO_CORES: Final = {names.CAPACITY_CORES: "0"}
_READ: Final = (names.ANNOTATION_ENRICH, *(each.encode_name for each in msgspec.structs.fields(pods.Annotations)))
"""Annotations that decide."""


class AdminRequest(Struct, frozen=True):
    """A request with `adminAccess` that says nothing of cores.

    Attributes:
        path: of its fields, as a JSON pointer.
        capacity: as written; None: absent.
    """

    name: str
    path: str
    capacity: Mapping[str, Any] | None


class AdminClaim(Struct, frozen=True):
    """A claim or template with such requests for Neuron devices. `at`: path of `devices` in the object."""

    kind: str
    at: tuple[str, ...]
    metadata: ObjectMeta
    requests: tuple[AdminRequest, ...]

    @property
    def key(self) -> Hashable:
        """All that `look` reads, but the name."""
        annotations = self.metadata.annotations
        known = None if annotations is None else sorted((key, annotations.get(key)) for key in _READ)
        return self.kind, repr((known, self.requests))

    def pod(self) -> dict[str, object]:
        """A pod with its labels and annotations, for policies."""
        kept = {"labels": self.metadata.labels, "annotations": self.metadata.annotations}
        return {"metadata": {key: dict(value) for key, value in kept.items() if value}, "spec": {"containers": []}}


def read_admin(kind: str, data: Mapping[str, object], device_class: str) -> AdminClaim | None:
    """The claim, if it has requests with `adminAccess` for a DeviceClass that say nothing of cores; else None."""
    at = {"ResourceClaim": ("spec",), "ResourceClaimTemplate": ("spec", "spec")}.get(kind)
    if at is None:
        return None
    try:
        metadata = read(data.get("metadata"), ObjectMeta)
    except WrongFormError:
        return None
    found = tuple(_requests(data, (*at, "devices"), device_class))
    return AdminClaim(kind, at, metadata, found) if found else None


def _requests(data: Mapping[str, object], at: tuple[str, ...], device_class: str) -> Iterator[AdminRequest]:
    devices: Any = data
    for step in at:
        devices = mapping(mapping(devices).get(step))
    for index, entry in enumerate(mappings(devices.get("requests"))):
        nested = "exactly" in entry
        fields = mapping(entry.get("exactly")) if nested else entry
        capacity = fields.get("capacity")
        asked = mapping(mapping(capacity).get("requests"))
        if fields.get("adminAccess") is not True or fields.get("deviceClassName") != device_class:
            continue
        if not any(each in asked for each in names.CORES_SPELLINGS):
            path = pointer(*at, "requests", index, *(("exactly",) if nested else ()))
            yield AdminRequest(text(entry.get("name")), path, capacity if isinstance(capacity, Mapping) else None)


def look(
    claim: AdminClaim, facts: NamespaceFacts, context: ConversionContext, steering: Steering = NO_STEERING
) -> Decision:
    """Decide about such a claim that is being created. It is never refused."""
    if not context.shares_counted:
        return unchanged("no-shares")
    own = claim.metadata.annotations or {}
    if own.get(names.ANNOTATION_ENRICH, dict(facts.annotations).get(names.ANNOTATION_ENRICH)) == "false":
        return unchanged("not-enriched")
    settings = combined(
        annotated_settings(msgspec.convert(own, pods.Annotations), facts, Mode(context.options.mode)), steering
    )
    if settings.mode is Mode.OFF:
        return unchanged(f"mode-off-by-{settings.source}")
    if settings.mode is Mode.SHADOW:
        message = f"shadow mode: this {claim.kind} would be enriched: adminAccess with {names.CAPACITY_CORES} 0."
        said = warning("NEU240", ".".join((*claim.at, "devices")), message, "", claim.metadata.name)
        return Decision(Outcome.SHADOWED, "shadow", warnings=(said,), shadowed=Outcome.ENRICHED)
    return Decision(Outcome.ENRICHED, "admin-access", patch=tuple(_patch(claim)), audit={"enriched": _record(claim)})


def keep_looking(claim: AdminClaim, old: Mapping[str, object], device_class: str) -> Decision:
    """Decide about an update of such a claim by a program that writes it as it did first: the spec stays.

    Args:
        old: the stored object, in the version of the new one.
    """
    annotations = mapping(mapping(old.get("metadata")).get("annotations"))
    if annotations.get(names.ANNOTATION_ENRICHED) != _record(claim):
        return unchanged("not-enriched")
    if read_admin(claim.kind, old, device_class) is not None:
        return unchanged("not-enriched")  # the stored object says nothing of cores either
    return Decision(Outcome.ENRICHED, "enriched-before", patch=tuple(_patch(claim)))


def _patch(claim: AdminClaim) -> Iterator[Operation]:
    for each in claim.requests:
        path = f"{each.path}/capacity"
        if each.capacity is None:
            yield add(path, {"requests": _NO_CORES})
        else:
            asked = each.capacity.get("requests")
            yield from set_members(f"{path}/requests", asked if isinstance(asked, Mapping) else None, _NO_CORES)
    record = {names.ANNOTATION_ENRICHED: _record(claim)}
    yield from set_members("/metadata/annotations", claim.metadata.annotations, record)


def _record(claim: AdminClaim) -> str:
    """What is added, as JSON."""
    return json.dumps({"requests": {each.name: ["capacity"] for each in claim.requests}}, separators=(",", ":"))
