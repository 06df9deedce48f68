"""Requests with `adminAccess` look at devices whose cores are all in use, too. Pure.

The allocator checks the free capacity of a shared device for `adminAccess` as for any other request. A driver without
shares serves the same claim, so the request asks for 0 cores where devices of the cluster are shared.
"""

import json
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from conversion.asks.conversion_context import ConversionContext
from conversion.asks.steering import NO_STEERING, Mode, Steering
from conversion.facts import NamespaceFacts
from conversion.objects.pod_places import pointer
from conversion.patches.decision import Decision, Operation, Outcome, add, set_members, unchanged
from conversion.patches.enrich_claims import PLACES, metadata_of, pod_of, read_of, settings_of, shadowed
from neuron import names
from neuron.api.fields import ObjectMeta, mapping, mappings, text

_NO_CORES: Final = {names.CAPACITY_CORES: "0"}


class AdminRequest(Struct, frozen=True):
    """A request with `adminAccess` and without an amount of cores.

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
        return self.kind, read_of(self.metadata, self.requests)

    def pod(self) -> dict[str, object]:
        """A pod with its labels and annotations, for policies."""
        return pod_of(self.metadata, ())


def read_admin(kind: str, data: Mapping[str, object], device_class: str) -> AdminClaim | None:
    """The claim, if it has requests with `adminAccess` for a DeviceClass and without an amount of cores; else None."""
    at = PLACES.get(kind)
    metadata = metadata_of(data) if at is not None else None
    if at is None or metadata is None:
        return None
    found = tuple(_requests(data, at, device_class))
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
    settings = settings_of(claim.metadata, facts, context, steering)
    if settings.mode is Mode.OFF:
        return unchanged(f"mode-off-by-{settings.source}")
    if settings.mode is Mode.SHADOW:
        what = f"adminAccess with {names.CAPACITY_CORES} 0"
        said = shadowed(claim.kind, claim.metadata.name, ".".join(claim.at), what)
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
        return unchanged("not-enriched")  # the stored object has no amount of cores either
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
