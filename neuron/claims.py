"""Makes the one claim (`resource.k8s.io/v1`) that a pod gets for its asks."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from neuron import names, selectors
from neuron.demand import Ask, Role
from neuron.findings import Finding, warning
from neuron.instances import InstanceType
from neuron.layout import EXTRA
from neuron.serving import ConnectedSet, DeviceConfig, Serving, TypeRefusal, nearest, serve
from neuron.templates import Template


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """The claim of one pod.

    Attributes:
        template: its ResourceClaimTemplate.
        uses: for each ask, the request names that its container refers to. None: the container requests no devices.
            Empty tuple: the whole claim, by an entry without `request`.
        types: names of the instance types that can serve it, in catalogue order.
        connected: whether the claim requires more than an arbitrary set of devices.
        warnings: NEU202, NEU213 and NEU215.
    """

    template: Template
    uses: tuple[tuple[str, ...] | None, ...]
    types: tuple[str, ...]
    connected: bool
    warnings: tuple[Finding, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """Why no candidate instance type serves the pod.

    Attributes:
        findings: at least one error.
    """

    findings: tuple[Finding, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class _Alternative:
    """Instance types for which the requests are equal: one entry of `firstAvailable`."""

    name: str
    servings: tuple[Serving, ...]

    @property
    def first(self) -> Serving:
        return self.servings[0]

    @property
    def types(self) -> tuple[str, ...]:
        return tuple(serving.entry.name for serving in self.servings)


def make_claim(
    asks: Sequence[Ask],
    candidates: Sequence[InstanceType],
    config: DeviceConfig,
    device_class: str,
    *,
    pin_types: bool,
    unconnected: bool = False,
) -> Claim | Refusal:
    """Make the claim of a pod.

    Args:
        asks: one per container, init containers first.
        candidates: instance types to choose from, in order; not empty.
        config: device settings that annotations request.
        device_class: DeviceClass to request from.
        pin_types: whether selectors must restrict the claim to the candidates, because node selection does not.
        unconnected: whether counts that cannot be connected are allowed.
    """
    long_lived = sum(1 for ask in asks if ask.amount and ask.role is not Role.INIT)
    if long_lived > names.MAX_REQUESTS_PER_CLAIM:
        return Refusal((_too_many_requests(long_lived),))
    answers = [serve(entry, asks, config, unconnected=unconnected) for entry in candidates]
    servings = [answer for answer in answers if isinstance(answer, Serving)]
    refusals = [
        (entry, answer) for entry, answer in zip(candidates, answers, strict=True) if isinstance(answer, TypeRefusal)
    ]
    # A type of unknown size serves any single request. It does not count if every type of known size refuses the pod.
    only_unknown = all(serving.entry.devices is None and not serving.entry.groups for serving in servings)
    if not servings or (only_unknown and refusals and not pin_types):
        return _refusal(refusals, asks, candidates)
    # A pod that sets the logical NeuronCore gets a type where it can be set, if a candidate is of such a type.
    if any(serving.sets_lnc for serving in servings):
        servings = [serving for serving in servings if serving.sets_lnc]
    # Containers refer to requests, not to alternatives: the uses must be equal in all alternatives.
    uses = servings[0].layout.uses
    left_out = tuple(serving.entry.name for serving in servings if serving.layout.uses != uses)
    alternatives = _alternatives([serving for serving in servings if serving.layout.uses == uses])
    if len(alternatives) > names.MAX_FIRST_AVAILABLE:
        return Refusal((_too_many_alternatives(alternatives),))
    builder = _Builder(alternatives, config, device_class, by_type=pin_types or _needs_types(alternatives, asks))
    types = tuple(name for alternative in alternatives for name in alternative.types)
    return Claim(
        template=Template.make(builder.summary(), builder.spec()),
        uses=tuple(builder.use(use) if use else None for use in uses),
        types=types,
        connected=len(alternatives) > 1 or any(alternative.first.connected_sets for alternative in alternatives),
        warnings=(*_waste(asks, alternatives, config), *_unconnected(asks, alternatives), *_left_out(left_out)),
    )


def _alternatives(servings: Sequence[Serving]) -> tuple[_Alternative, ...]:
    """Group the types by equal requests, in order."""
    groups: dict[object, list[Serving]] = {}
    for serving in servings:
        shape = (tuple(serving.layout.counts.items()), serving.connected_sets, serving.sets_lnc)
        groups.setdefault(shape, []).append(serving)
    taken: dict[str, int] = {}
    alternatives = []
    for members in groups.values():
        family = members[0].entry.family
        taken[family] = taken.get(family, 0) + 1
        name = family if taken[family] == 1 else f"{family}-{taken[family]}"
        alternatives.append(_Alternative(name, tuple(members)))
    return tuple(alternatives)


def _needs_types(alternatives: Sequence[_Alternative], asks: Sequence[Ask]) -> bool:
    """Whether requests must select instance types, because a device of another type would be wrong.

    A device group exists only on types that publish it, and a single device is right on any type. Alternatives, cores,
    LNC and a whole node without groups are right only on the types for which they were computed.
    """
    if len(alternatives) > 1 or any(ask.in_cores and ask.amount for ask in asks):
        return True
    first = alternatives[0].first
    grouped = {identity for each_set in first.connected_sets if each_set.group for identity in each_set.requests}
    return first.sets_lnc or any(
        count > 1 and identity not in grouped for identity, count in first.layout.counts.items()
    )


class _Builder:
    """Builds the ResourceClaimTemplateSpec from alternatives whose uses are equal."""

    def __init__(
        self, alternatives: Sequence[_Alternative], config: DeviceConfig, device_class: str, *, by_type: bool
    ) -> None:
        self._alternatives = alternatives
        self._device_config = config
        self._device_class = device_class
        self._by_type = by_type
        first = alternatives[0].first
        spanned = {identity for each_set in first.connected_sets for identity in each_set.requests}
        # Connected requests first, the largest first: the allocator searches depth first. With single devices first,
        # backtracking on a fragmented node took seconds.
        order = sorted(
            first.layout.counts,
            key=lambda identity: (
                identity not in spanned,
                -first.layout.counts[identity],
                identity == EXTRA,
                identity,
            ),
        )
        self._request_names = {identity: f"n{position}" for position, identity in enumerate(order)}

    def use(self, use: Sequence[int]) -> tuple[str, ...]:
        """Request names of a use; empty if it is the whole claim."""
        if len(use) == len(self._request_names):
            return ()
        return tuple(sorted((self._request_names[identity] for identity in use), key=lambda name: int(name[1:])))

    def spec(self) -> dict[str, Any]:
        """The ResourceClaimTemplateSpec (`resource.k8s.io/v1`), with defaults set explicitly."""
        devices: dict[str, Any] = {"requests": [self._request(identity) for identity in self._request_names]}
        if constraints := self._constraints():
            devices["constraints"] = constraints
        if config := self._opaque_configs():
            devices["config"] = config
        return {"spec": {"devices": devices}}

    def summary(self) -> str:
        """The readable part of the template's name: devices of each request, then the settings."""
        if self._device_config.ultraserver_mode is not None:
            parts = [f"us{self._device_config.ultraserver_mode}"]
        else:
            counts = [alternative.first.layout.counts for alternative in self._alternatives]
            parts = [
                "or".join(dict.fromkeys(str(count[identity]) for count in counts)) for identity in self._request_names
            ]
        if self._device_config.lnc is not None:
            parts.append(f"lnc{self._device_config.lnc}")
        return "-".join(parts)

    def _request(self, identity: int) -> dict[str, Any]:
        name = self._request_names[identity]
        if len(self._alternatives) == 1:
            return {"name": name, "exactly": self._devices(self._alternatives[0], identity)}
        return {
            "name": name,
            "firstAvailable": [
                {"name": alternative.name, **self._devices(alternative, identity)} for alternative in self._alternatives
            ],
        }

    def _devices(self, alternative: _Alternative, identity: int) -> dict[str, Any]:
        whole_node = self._device_config.ultraserver_mode is not None
        expressions = [selectors.whole_node() if whole_node else selectors.single_device()]
        if self._by_type:
            expressions.append(selectors.instance_types(alternative.types))
        return {
            "deviceClassName": self._device_class,
            "allocationMode": "ExactCount",
            "count": 1 if whole_node else alternative.first.layout.counts[identity],
            "selectors": [{"cel": {"expression": expression}} for expression in expressions],
        }

    def _references(self, identities: Sequence[int], alternative: _Alternative) -> list[str]:
        """Request names for constraints and configs: `req`, or `req/sub` if there are alternatives."""
        suffix = f"/{alternative.name}" if len(self._alternatives) > 1 else ""
        return [f"{name}{suffix}" for identity, name in self._request_names.items() if identity in identities]

    def _constraints(self) -> list[dict[str, Any]]:
        if self._device_config.ultraserver_mode is not None:
            return []
        return [
            {
                "requests": self._references(each_set.requests, alternative),
                "matchAttribute": names.device_group_attribute(each_set.group),
            }
            for alternative in self._alternatives
            for each_set in self._sorted_sets(alternative)
            if each_set.group is not None
        ]

    def _sorted_sets(self, alternative: _Alternative) -> list[ConnectedSet]:
        order = list(self._request_names)
        return sorted(
            alternative.first.connected_sets,
            key=lambda each_set: sorted(order.index(identity) for identity in each_set.requests),
        )

    def _opaque_configs(self) -> list[dict[str, Any]]:
        everything = tuple(self._request_names)
        entries = []
        if self._device_config.lnc is not None:
            references = [
                reference
                for alternative in self._alternatives
                if alternative.first.sets_lnc
                for reference in self._references(everything, alternative)
            ]
            if references:
                entries.append((references, "NeuronConfig", "logicalNeuronCore", self._device_config.lnc))
        if self._device_config.ultraserver_mode is not None:
            references = [name for each in self._alternatives for name in self._references(everything, each)]
            entries.append((references, "UltraServerConfig", "ultraserverMode", self._device_config.ultraserver_mode))
        return [
            {
                "requests": references,
                "opaque": {
                    "driver": names.DRIVER,
                    "parameters": {"apiVersion": names.CONFIG_API_VERSION, "kind": kind, field: value},
                },
            }
            for references, kind, field, value in entries
        ]


def _waste(asks: Sequence[Ask], alternatives: Sequence[_Alternative], config: DeviceConfig) -> list[Finding]:
    """NEU202 for each container whose cores were rounded up, with the first type where they were."""
    servings = [serving for alternative in alternatives for serving in alternative.servings]
    findings = []
    for index, ask in enumerate(asks):
        if not (ask.in_cores and ask.amount):
            continue
        for serving in servings:
            devices = serving.layout.size(serving.layout.uses[index])
            cores = devices * (serving.entry.cores(config.lnc) or 0)
            if cores > ask.amount:
                message = (
                    f"{ask.container} asked for {_counted(ask.amount, 'core')} and gets {_counted(devices, 'device')}"
                    f" on {serving.entry.name} ({_counted(cores, 'core')}): {cores - ask.amount} unused."
                )
                findings.append(warning("NEU202", ask.resource_path, message, value=str(ask.amount)))
                break
    return findings


def _unconnected(asks: Sequence[Ask], alternatives: Sequence[_Alternative]) -> list[Finding]:
    """NEU215 for each container whose devices may be unconnected, with the first type where they may."""
    servings = [serving for alternative in alternatives for serving in alternative.servings]
    findings = []
    for index, ask in enumerate(asks):
        loose = next((each for each in servings if each.devices[index] not in (0, *each.entry.counts)), None)
        if loose is not None:
            devices, connected = loose.devices[index], ", ".join(map(str, loose.entry.counts))
            message = (
                f"{ask.container} gets {devices} devices that need not be connected with each other on"
                f" {loose.entry.name}: policy allows it."
            )
            fix = f"Connected counts: {connected}."
            findings.append(warning("NEU215", ask.resource_path, message, fix, str(devices)))
    return findings


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _left_out(types: Sequence[str]) -> list[Finding]:
    """NEU213 for types that can serve the pod, but with other uses for the init containers."""
    if not types:
        return []
    shown = ", ".join(types[:3]) + (", …" if len(types) > 3 else "")
    return [
        warning(
            "NEU213",
            "spec.initContainers",
            f"{shown} would distribute the devices differently and cannot share a claim with the other types.",
            f"To run there, set the annotation {names.ANNOTATION_INSTANCE_TYPE}.",
        )
    ]


def _refusal(
    refusals: Sequence[tuple[InstanceType, TypeRefusal]], asks: Sequence[Ask], candidates: Sequence[InstanceType]
) -> Refusal:
    """The first candidate's refusal, with the counts that the other candidates allow.

    A type that lacks a requested setting is named only if all candidates lack it: a message about trn1 does not help a
    pod that requests an UltraServer.
    """
    suitable = [pair for pair in refusals if not pair[1].unsuitable]
    if suitable:
        refusals, candidates = suitable, [entry for entry, _ in suitable]
    ring = next((entry.name for entry, refusal in refusals if refusal.ring), None)
    by_path = {ask.resource_path: ask for ask in asks}
    _, first = refusals[0]
    return Refusal(
        tuple(
            _with_choice(finding, by_path[finding.path], candidates, ring) if finding.code == "NEU105" else finding
            for finding in first.findings
        )
    )


def _with_choice(finding: Finding, ask: Ask, candidates: Sequence[InstanceType], ring: str | None) -> Finding:
    """Add the nearest valid counts to NEU105, or make it NEU107 if only a ring could serve the count."""
    units = {
        count * ((entry.cores(None) or 1) if ask.in_cores else 1) for entry in candidates for count in entry.counts
    }
    choice = nearest(ask.amount, units)
    fix = f"Nearest valid counts: {choice}." if choice else ""
    if ring is None:
        return dataclasses.replace(finding, fix=fix)
    ring_only = (
        f"Only consecutive devices of a ring ({ring}) could serve it, which cannot be requested through DRA yet."
    )
    return dataclasses.replace(finding, code="NEU107", fix=f"{ring_only} {fix}")


def _too_many_requests(count: int) -> Finding:
    return Finding(
        "NEU108",
        "spec.containers",
        f"{count} containers ask for Neuron devices, and a ResourceClaim holds at most"
        f" {names.MAX_REQUESTS_PER_CLAIM} requests.",
        "Spread the containers over several pods.",
        str(count),
    )


def _too_many_alternatives(alternatives: Sequence[_Alternative]) -> Finding:
    return Finding(
        "NEU108",
        "spec.containers",
        f"the candidate instance types need {len(alternatives)} different requests, and a ResourceClaim holds at most"
        f" {names.MAX_FIRST_AVAILABLE} alternatives.",
        f"Select an instance type with the annotation {names.ANNOTATION_INSTANCE_TYPE}.",
        str(len(alternatives)),
    )
