"""Decides about claims and templates that other programs make: with DeviceClass and count only, or `adminAccess`. Pure.

Each request with DeviceClass and count gets what conversion gives a container that requests as many devices by limits:
connected sets, alternatives by type, device settings. The name of a request stays, because pods refer to it.

Requests with `adminAccess` look at devices whose cores are all in use, too. The allocator checks the free capacity of a
shared device for them as for any other request. A driver without shares serves the same claim, so the request asks for
0 cores where devices of the cluster are shared.
"""

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct, structs

from conversion.asks.conversion_context import ConversionContext, steered
from conversion.asks.steering import NO_STEERING, Mode, ModeSettings, Steering, allowed, annotated_settings, combined
from conversion.claims import candidates
from conversion.claims.containers import Ask, Role
from conversion.claims.making import Refusal, make_claim
from conversion.claims.templates import KIND as TEMPLATE
from conversion.facts import NamespaceFacts
from conversion.objects import pods
from conversion.objects.pod_places import pointer
from conversion.patches.decision import (
    MOST_BYTES,
    Decision,
    Operation,
    Outcome,
    add,
    append,
    replace,
    set_members,
    size_of,
    unchanged,
)
from neuron import names
from neuron.api.fields import ObjectMeta, WrongFormError, mapping, mappings, read, sequence, text
from neuron.api.resource_versions import converted
from neuron.findings import Finding, as_warning, quoted, warning
from runtime.remembered import fingerprint

_PLACES: Final[Mapping[str, tuple[str, ...]]] = {
    "ResourceClaim": ("spec", "devices"),
    TEMPLATE: ("spec", "spec", "devices"),
}
"""Path of `devices` in the objects that are enriched, by kind."""
_PLAIN: Final = frozenset({"deviceClassName", "allocationMode", "count", "tolerations"})
"""Fields of a request that says no more than class and count. Tolerations do not choose devices."""
_OWNERS: Final = frozenset({"Pod", "PodGroup"})
"""Kubernetes makes claims of these from templates, and for extended resources; they are as the template is."""
_WORDS: Final = {"true": True, "false": False}
_READ: Final = frozenset(
    {
        names.ANNOTATION_ENRICH,
        names.ANNOTATION_ENRICHED,
        *(each.encode_name for each in structs.fields(pods.Annotations)),
    }
)
"""Annotations that decide."""
_NO_CORES: Final = {names.CAPACITY_CORES: "0"}
_MOST: Final = names.MAX_REQUESTS_PER_CLAIM
"""Requests, constraints and configs of a claim have one limit."""
_DEVICES_OF_A_NODE: Final = 16
"""Of every type that is in UltraServers: trn2u and trn3."""


class PlainRequest(Struct, frozen=True):
    """A request with DeviceClass and count only.

    Attributes:
        index: in the claim.
        fields: its fields, as in `resource.k8s.io/v1`.
    """

    index: int
    name: str
    count: int
    fields: Mapping[str, object]


class PlainClaim(Struct, frozen=True):
    """A claim or template whose requests for Neuron devices are plain.

    Attributes:
        at: path of `devices` in the object.
        devices: the object's `devices`, as in `resource.k8s.io/v1`.
        version: of the object, without the group.
    """

    kind: str
    version: str
    metadata: ObjectMeta
    at: tuple[str, ...]
    devices: Mapping[str, object]
    requests: tuple[PlainRequest, ...]

    @property
    def one_by_one(self) -> bool:
        """Whether it has a request for each device, as KServe writes them: together they are one set."""
        return len(self.requests) > 1 and all(each.count == 1 for each in self.requests)

    @property
    def key(self) -> Hashable:
        """All that `decide_claim` reads, but the name."""
        return self.kind, self.version, _read_of(self.metadata, self.devices)

    def pod(self) -> dict[str, object]:
        """The pod with limits that requests as much, for policies."""
        counts = [(each.name, each.count) for each in self.requests]
        if self.one_by_one:
            counts = [(counts[0][0], len(counts))]
        containers = [
            {"name": name, "resources": {"limits": {names.RESOURCE_NEURON: str(count)}}} for name, count in counts
        ]
        return _pod_of(self.metadata, containers)


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
    """A claim or template with such requests for Neuron devices. `at`: as of `PlainClaim`."""

    kind: str
    at: tuple[str, ...]
    metadata: ObjectMeta
    requests: tuple[AdminRequest, ...]

    @property
    def key(self) -> Hashable:
        """All that `decide_claim` reads, but the name."""
        return self.kind, _read_of(self.metadata, self.requests)

    def pod(self) -> dict[str, object]:
        """A pod with its labels and annotations, for policies."""
        return _pod_of(self.metadata, ())


EnrichableClaim: TypeAlias = PlainClaim | AdminClaim


def enrichable_claim(
    kind: str, data: Mapping[str, object], device_class: str, *, updates: bool = False
) -> EnrichableClaim | None:
    """A claim or template that says no more than DeviceClass and count, or has `adminAccess`; else None.

    Args:
        updates: whether it is the new object of an update: `kubectl apply` writes the requests as they were, and leaves
            the constraints that were added.
    """
    at = _PLACES.get(kind)
    if at is None:
        return None
    try:
        metadata = read(data.get("metadata"), ObjectMeta)
    except WrongFormError:
        return None
    plain = _read_plain(kind, data, at, metadata, device_class, updates=updates)
    if plain is not None:
        return plain
    found = tuple(_admin_requests(data, at, device_class))
    return AdminClaim(kind, at, metadata, found) if found else None


def decide_claim(
    claim: EnrichableClaim, facts: NamespaceFacts, context: ConversionContext, steering: Steering = NO_STEERING
) -> Decision:
    """Decide about such a claim that is being created. It is never refused."""
    if isinstance(claim, AdminClaim):
        return _look(claim, facts, context, steering)
    return _enrich(claim, facts, context, steering)


def keep_claim(claim: EnrichableClaim, old: Mapping[str, object], device_class: str) -> Decision:
    """Decide about an update of an enriched claim by a program that writes it as it did first: the spec stays.

    Specs of claims are immutable. Without this, such a program, or `kubectl apply`, would be refused each time.

    Args:
        old: the stored object, in the version of the new one.
    """
    if isinstance(claim, PlainClaim):
        return _keep(claim, old)
    annotations = mapping(mapping(old.get("metadata")).get("annotations"))
    kept = annotations.get(names.ANNOTATION_ENRICHED) == _admin_record(claim)
    # If the stored object has no amount of cores either, it was not enriched.
    if not kept or any(_admin_requests(old, claim.at, device_class)):
        return unchanged("not-enriched")
    return Decision(Outcome.ENRICHED, "enriched-before", patch=tuple(_admin_patch(claim)))


def _below(data: object, steps: Sequence[str]) -> Mapping[str, Any]:
    """The object at a path; empty if there is none."""
    for step in steps:
        data = mapping(data).get(step)
    return mapping(data)


def _read_of(metadata: ObjectMeta, requested: object) -> Hashable:
    """What decides about a claim: its annotations that are read, and what it requests."""
    annotations = metadata.annotations
    known = {key: annotations[key] for key in annotations.keys() & _READ} if annotations else {}
    text_read = repr((sorted(known.items()), requested)).encode(errors="surrogatepass")
    return bool(annotations), annotations is None, fingerprint(text_read)


def _pod_of(metadata: ObjectMeta, containers: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """A pod with the labels and annotations of a claim, for policies."""
    kept = {"labels": metadata.labels, "annotations": metadata.annotations}
    return {
        "metadata": {key: dict(value) for key, value in kept.items() if value},
        "spec": {"containers": list(containers)},
    }


def _settings_of(
    metadata: ObjectMeta, facts: NamespaceFacts, context: ConversionContext, steering: Steering
) -> ModeSettings:
    """The settings for a claim: its annotations, those of its Namespace, and policies."""
    own = msgspec.convert(metadata.annotations or {}, pods.Annotations)
    return combined(annotated_settings(own, facts, Mode(context.options.mode)), steering)


def _shadowed(kind: str, name: str, path: str, what: str) -> Finding:
    """NEU240: what shadow mode leaves out."""
    return warning("NEU240", path, f"shadow mode: this {kind} would be enriched: {what}.", "", name)


def _read_plain(
    kind: str, data: Mapping[str, object], at: tuple[str, ...], meta: ObjectMeta, device_class: str, *, updates: bool
) -> PlainClaim | None:
    """The claim, if it says no more than DeviceClass and count of Neuron devices; else None.

    One with a constraint or a config of ours was written with care, and so was one of the webhook itself. Claims that
    Kubernetes makes for pods are left alone.
    """
    owners = {each.kind for each in meta.owner_references or ()}
    if (meta.labels or {}).get(names.LABEL_MANAGED_BY) == names.MANAGER or not owners.isdisjoint(_OWNERS):
        return None
    devices = _below(converted(kind, data, "v1"), at)
    entries = list(mappings(devices.get("requests")))
    ours = [_plain(index, each) for index, each in enumerate(entries) if _names_class(each, device_class)]
    requests = [each for each in ours if each is not None]
    if not ours or len(requests) < len(ours) or len(entries) > _MOST:
        return None
    if not updates and _says_more(devices, requests):
        return None
    version = text(data.get("apiVersion")).rpartition("/")[2]
    return PlainClaim(kind, version, meta, at, devices, tuple(requests))


def _names_class(request: Mapping[str, Any], device_class: str) -> bool:
    parts = (mapping(request.get("exactly")), *mappings(request.get("firstAvailable")))
    return any(each.get("deviceClassName") == device_class for each in parts)


def _plain(index: int, entry: Mapping[str, object]) -> PlainRequest | None:
    """The request, if it says no more than class and count."""
    fields, name = mapping(entry.get("exactly")), text(entry.get("name"))
    count = fields.get("count", 1)
    if not name or entry.keys() - {"name", "exactly"} or fields.keys() - _PLAIN:
        return None
    if type(count) is not int or count < 1 or fields.get("allocationMode", "ExactCount") != "ExactCount":
        return None
    return PlainRequest(index, name, count, fields)


def _says_more(devices: Mapping[str, object], ours: Sequence[PlainRequest]) -> bool:
    """Whether a constraint or config is about one of our requests."""
    wanted = {each.name for each in ours}
    for entry in (*mappings(devices.get("constraints")), *mappings(devices.get("config"))):
        named = {text(each).partition("/")[0] for each in sequence(entry.get("requests"))}
        if not named or named & wanted:
            return True
    return False


def _wants(claim: PlainClaim, facts: NamespaceFacts, steering: Steering) -> tuple[bool, list[Finding]]:
    """Whether a claim is to be enriched: by its annotation, that of its Namespace, or a policy; and NEU109."""
    own = (claim.metadata.annotations or {}).get(names.ANNOTATION_ENRICH)
    value = own if own is not None else dict(facts.annotations).get(names.ANNOTATION_ENRICH)
    if value is None:
        return steering.enriches_claims, []
    if value in _WORDS:
        return _WORDS[value], []
    path = f"metadata.annotations[{names.ANNOTATION_ENRICH}]" if own is not None else "metadata.namespace"
    owner = "annotation" if own is not None else "Namespace annotation"
    message = f"{owner} {names.ANNOTATION_ENRICH} is {quoted(value)}."
    return False, [warning("NEU109", path, message, "Allowed: true, false.", value)]


def _enrich(claim: PlainClaim, facts: NamespaceFacts, context: ConversionContext, steering: Steering) -> Decision:
    wanted, wrong = _wants(claim, facts, steering)
    if not wanted:
        return unchanged("not-enriched", *wrong)
    settings = _settings_of(claim.metadata, facts, context, steering)
    findings = [as_warning(each) for each in settings.findings]
    if settings.mode is Mode.OFF or findings:
        return unchanged(f"mode-off-by-{settings.source}" if settings.mode is Mode.OFF else "bad-request", *findings)
    context = steered(context, steering)
    selection = candidates.NodeSelection(settings.instance_types)
    found = allowed(candidates.find(context.catalogue, selection, context.families), steering)
    if not found.types:
        return _left(claim, found.errors or found.unknown)
    asks = [_ask(claim, each) for each in claim.requests]
    if claim.one_by_one:
        asks = [structs.replace(asks[0], amount=len(asks))]
    made = make_claim(
        asks,
        found.types,
        structs.replace(settings.device_config, divides=False),
        text(claim.requests[0].fields.get("deviceClassName")),
        pin_types=bool(settings.instance_types or steering.families),
        unconnected=steering.unconnected,
        others=context.catalogue,
    )
    if isinstance(made, Refusal):
        return _left(claim, made.findings)
    spec = _below(made.template.spec, ("spec", "devices"))
    alternatives = any("firstAvailable" in each for each in mappings(spec.get("requests")))
    if claim.one_by_one and (alternatives or settings.device_config.ultraserver_mode is not None):
        # Alternatives are chosen for each request alone: a constraint cannot connect several requests with them.
        count = len(claim.requests)
        message = f"{count} requests for one device each cannot get these settings on all allowed instance types."
        fix = f"Use one request for {count} devices, or allow fewer instance types."
        return _left(claim, [Finding("NEU241", asks[0].path, message, fix, claim.metadata.name)])
    changes = _Changes(claim, spec, made.uses)
    if not changes.patch:
        return unchanged("nothing-to-add")
    if changes.too_large:
        return _left(claim, [Finding("NEU114", _path(claim.at), changes.too_large)])
    warnings = tuple(_moved(each) for each in made.warnings)
    audit = {"enriched": changes.record}
    if settings.mode is Mode.SHADOW:
        said = _shadowed(claim.kind, claim.metadata.name, _path(claim.at), changes.text)
        return Decision(Outcome.SHADOWED, "shadow", warnings=(said, *warnings), audit=audit, shadowed=Outcome.ENRICHED)
    return Decision(Outcome.ENRICHED, "class-and-count", patch=changes.patch, warnings=warnings, audit=audit)


def _ask(claim: PlainClaim, request: PlainRequest) -> Ask:
    path = f"{_path(claim.at)}.requests[{request.index}]"
    return Ask(request.name, Role.APP, path, names.RESOURCE_NEURON, request.count)


def _path(at: Sequence[str]) -> str:
    return ".".join(at)


def _moved(finding: Finding) -> Finding:
    """A finding about a request, without the limit of a container in its path."""
    return warning(finding.code, finding.path.partition(".resources.")[0], finding.message, finding.fix, finding.value)


def _left(claim: PlainClaim, findings: Sequence[Finding]) -> Decision:
    """NEU241: the claim stays as it is, because conversion would not serve as many devices either."""
    reasons = [_moved(each) for each in findings]
    path = next((each.path for each in reasons if each.path.startswith(_path(claim.at))), _path(claim.at))
    why = " ".join(each.message for each in reasons)
    fix = " ".join(dict.fromkeys(each.fix for each in reasons if each.fix))
    message = f"this {claim.kind} stays as it is: {why}"
    return unchanged("not-enrichable", warning("NEU241", path, message, fix, claim.metadata.name))


def _keep(claim: PlainClaim, old: Mapping[str, object]) -> Decision:
    """Only what enrichment wrote is patched: Kubernetes compares the text of opaque configs, so others stay as sent."""
    annotations = mapping(mapping(old.get("metadata")).get("annotations"))
    record = annotations.get(names.ANNOTATION_ENRICHED)
    stored, written = (_below(each, claim.at) for each in (converted(claim.kind, dict(old), "v1"), old))
    if not isinstance(record, str) or not _asks_the_same(claim, stored, _counts_in(record)):
        return unchanged("not-enriched")
    requests = sequence(written.get("requests"))
    patch = [replace(pointer(*claim.at, "requests", each.index), requests[each.index]) for each in claim.requests]
    for field in ("constraints", "config"):
        added = _restored_entries(claim, field, stored, written)
        if added is None:
            return unchanged("not-enriched")
        patch += added
    patch += set_members("/metadata/annotations", claim.metadata.annotations, {names.ANNOTATION_ENRICHED: record})
    return Decision(Outcome.ENRICHED, "enriched-before", patch=tuple(patch))


def _counts_in(record: str) -> Mapping[str, object]:
    """The counts that requests had before, by name, where they are not what is stored.

    An UltraServer needs a whole node, which is one device. Records of earlier versions do not have the count of a node,
    and every type in an UltraServer had 16 devices.
    """
    try:
        data = mapping(json.loads(record))
    except ValueError:
        return {}
    if "counts" in data:
        return mapping(data["counts"])
    whole = "UltraServerConfig" in sequence(data.get("config"))
    return dict.fromkeys(mapping(data.get("requests")), _DEVICES_OF_A_NODE) if whole else {}


def _asks_the_same(claim: PlainClaim, stored: Mapping[str, Any], counts: Mapping[str, object]) -> bool:
    """Whether a stored claim has as many devices of the same classes in the same requests."""
    before, after = list(mappings(stored.get("requests"))), list(mappings(claim.devices.get("requests")))
    ours = {each.index: each for each in claim.requests}
    if len(before) != len(after):
        return False
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        request = ours.get(index)
        if request is None:
            if old != new:
                return False
            continue
        wanted = request.name, request.fields.get("deviceClassName"), request.count
        for each in [*mappings(old.get("firstAvailable"))] or [mapping(old.get("exactly"))]:
            count = counts.get(request.name, each.get("count"))
            if (old.get("name"), each.get("deviceClassName"), count) != wanted:
                return False
    return True


def _restored_entries(
    claim: PlainClaim, field: str, stored: Mapping[str, Any], written: Mapping[str, Any]
) -> list[Operation] | None:
    """Adds the stored constraints or configs of ours that an update lacks; None if it changes any other."""
    sent, kept = list(sequence(claim.devices.get(field))), list(sequence(stored.get(field)))
    path = pointer(*claim.at, field)
    patch: list[Operation] = []
    place = 0
    for index, (entry, value) in enumerate(zip(kept, sequence(written.get(field)), strict=True)):
        if place < len(sent) and sent[place] == entry:
            place += 1
        elif _is_ours(mapping(entry)):
            patch.append(add(f"{path}/{index}", value))
        else:
            return None
    if place < len(sent):
        return None
    # An absent list, an empty one and null are replaced.
    return patch if sent else append(path, None, [each["value"] for each in patch])


def _is_ours(entry: Mapping[str, Any]) -> bool:
    """Whether enrichment can have added a constraint or a config."""
    opaque = mapping(entry.get("opaque"))
    return opaque.get("driver") == names.DRIVER if opaque else bool(entry.get("matchAttribute"))


class _Changes:
    """The patch from a plain claim to a made one, and the record of it."""

    def __init__(self, claim: PlainClaim, made: Mapping[str, object], uses: Sequence[tuple[str, ...] | None]) -> None:
        """`made`: `devices` of the claim for the same requests; `uses`: of `conversion.claims.making.Claim`."""
        self._claim = claim
        requests = {text(each.get("name")): each for each in mappings(made.get("requests"))}
        mine = [next(iter(use or requests)) for use in uses]
        mine *= len(claim.requests) if claim.one_by_one else 1
        pairs = []
        self._own: dict[str, list[str]] = {}
        for each, name in zip(claim.requests, mine, strict=True):
            self._own.setdefault(name, []).append(each.name)
            pairs.append((each, self._request(each, requests[name])))
        self._requests = [(each, new) for each, new in pairs if _says_something(new)]
        self._constraints = [self._renamed(each) for each in mappings(made.get("constraints"))]
        self._configs = [self._renamed(each) for each in mappings(made.get("config"))]
        self.patch = tuple(self._operations()) if self._requests or self._constraints or self._configs else ()

    def _request(self, old: PlainRequest, new: Mapping[str, Any]) -> dict[str, Any]:
        kept = {"tolerations": old.fields["tolerations"]} if old.fields.get("tolerations") else {}
        if "firstAvailable" in new:
            return {"name": old.name, "firstAvailable": [{**each, **kept} for each in new["firstAvailable"]]}
        count = {"count": 1} if self._claim.one_by_one else {}
        return {"name": old.name, "exactly": {**mapping(new.get("exactly")), **count, **kept}}

    def _renamed(self, entry: Mapping[str, Any]) -> dict[str, object]:
        """A constraint or config with the names that the claim's requests have."""
        parts = [text(each).partition("/") for each in sequence(entry.get("requests"))]
        return {
            **entry,
            "requests": [f"{own}{slash}{sub}" for name, slash, sub in parts for own in self._own[name]],
        }

    def _operations(self) -> Iterator[Operation]:
        claim, at = self._claim, pointer(*self._claim.at)
        shape = {
            "apiVersion": "resource.k8s.io/v1",
            "spec": {"devices": {"requests": [new for _, new in self._requests]}},
        }
        written = converted("ResourceClaim", shape, claim.version)["spec"]["devices"]["requests"]
        for (old, _), new in zip(self._requests, written, strict=True):
            yield replace(f"{at}/requests/{old.index}", new)
        for field, added in (("constraints", self._constraints), ("config", self._configs)):
            # An empty list and null are replaced.
            yield from append(f"{at}/{field}", sequence(claim.devices.get(field)) or None, added)
        record = {names.ANNOTATION_ENRICHED: self.record}
        yield from set_members("/metadata/annotations", claim.metadata.annotations, record)

    @property
    def too_large(self) -> str:
        """Why the claim would be too large, as a sentence; empty if it is not."""
        for field, added in (("constraints", self._constraints), ("config", self._configs)):
            number = len(added) + len(sequence(self._claim.devices.get(field)))
            if number > _MOST:
                return f"it would have {number} entries in {field}, at most {_MOST}."
        size = size_of(self.patch)
        return f"the patch would have {size} bytes, at most {MOST_BYTES}." if size > MOST_BYTES else ""

    @property
    def record(self) -> str:
        """What is added, as JSON."""
        requests = {
            old.name: ["firstAvailable"] if "firstAvailable" in new else sorted(new["exactly"].keys() - _PLAIN)
            for old, new in self._requests
        }
        constraints = [text(each.get("matchAttribute")) for each in self._constraints]
        configs = [mapping(mapping(each.get("opaque")).get("parameters")).get("kind") for each in self._configs]
        counts = {
            old.name: old.count
            for old, new in self._requests
            if "exactly" in new and new["exactly"].get("count") != old.count
        }
        found = {"requests": requests, "constraints": constraints, "config": configs, "counts": counts}
        return json.dumps({key: value for key, value in found.items() if value}, separators=(",", ":"))

    @property
    def text(self) -> str:
        """What would be added, for people."""
        parts = [f"{old.name}: {old.count} device{'' if old.count == 1 else 's'}" for old in self._claim.requests]
        added = dict.fromkeys(
            [
                *("alternatives" if "firstAvailable" in new else "selectors" for _, new in self._requests),
                *("constraints" for _ in self._constraints[:1]),
                *("config" for _ in self._configs[:1]),
            ]
        )
        return f"{', '.join(parts)} ({', '.join(added)})"


def _says_something(new: Mapping[str, object]) -> bool:
    """Whether a made request says more than class and count."""
    return "firstAvailable" in new or bool(mapping(new.get("exactly")).keys() - _PLAIN)


# --- adminAccess ------------------------------------------------------------------------------------------------------


def _admin_requests(data: Mapping[str, object], at: tuple[str, ...], device_class: str) -> Iterator[AdminRequest]:
    for index, entry in enumerate(mappings(_below(data, at).get("requests"))):
        nested = "exactly" in entry
        fields = mapping(entry.get("exactly")) if nested else entry
        capacity = fields.get("capacity")
        asked = mapping(mapping(capacity).get("requests"))
        if fields.get("adminAccess") is not True or fields.get("deviceClassName") != device_class:
            continue
        if not any(each in asked for each in names.CORES_SPELLINGS):
            path = pointer(*at, "requests", index, *(("exactly",) if nested else ()))
            yield AdminRequest(text(entry.get("name")), path, capacity if isinstance(capacity, Mapping) else None)


def _look(claim: AdminClaim, facts: NamespaceFacts, context: ConversionContext, steering: Steering) -> Decision:
    if not context.shares_counted:
        return unchanged("no-shares")
    own = claim.metadata.annotations or {}
    if own.get(names.ANNOTATION_ENRICH, dict(facts.annotations).get(names.ANNOTATION_ENRICH)) == "false":
        return unchanged("not-enriched")
    settings = _settings_of(claim.metadata, facts, context, steering)
    if settings.mode is Mode.OFF:
        return unchanged(f"mode-off-by-{settings.source}")
    if settings.mode is Mode.SHADOW:
        what = f"adminAccess with {names.CAPACITY_CORES} 0"
        said = _shadowed(claim.kind, claim.metadata.name, ".".join(claim.at), what)
        return Decision(Outcome.SHADOWED, "shadow", warnings=(said,), shadowed=Outcome.ENRICHED)
    return Decision(
        Outcome.ENRICHED, "admin-access", patch=tuple(_admin_patch(claim)), audit={"enriched": _admin_record(claim)}
    )


def _admin_patch(claim: AdminClaim) -> Iterator[Operation]:
    for each in claim.requests:
        path = f"{each.path}/capacity"
        if each.capacity is None:
            yield add(path, {"requests": _NO_CORES})
        else:
            asked = each.capacity.get("requests")
            yield from set_members(f"{path}/requests", asked if isinstance(asked, Mapping) else None, _NO_CORES)
    record = {names.ANNOTATION_ENRICHED: _admin_record(claim)}
    yield from set_members("/metadata/annotations", claim.metadata.annotations, record)


def _admin_record(claim: AdminClaim) -> str:
    """What is added, as JSON."""
    return json.dumps({"requests": {each.name: ["capacity"] for each in claim.requests}}, separators=(",", ":"))
