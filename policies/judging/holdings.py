"""How many Neuron devices an object can hold at once: the most, on any alternative, of any class that has them.

A policy that limits devices must not be talked out of it, so every doubt counts for more: `All` is everything that a
node has, of `firstAvailable` the largest alternative counts, and what cannot be known is said (`Holding.unknown`).

Pods follow the pod resource formula of `k8s.io/component-helpers/resource`: containers and sidecars hold their devices
together; an init container holds its own beside those of the sidecars that started before it. What limits and what
claims say is added, because the device plugin and the DRA driver know nothing of each other. Every step is linear.
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from neuron import names, quantities
from neuron.claim_specs import ALL, EXACT_COUNT, ClaimSpec, Config, Constraint, DeviceRequest, Selector
from policies.judging.knowledge import NOTHING_KNOWN, DeviceKnowledge, figures
from policies.judging.whole_nodes import excludes_whole_nodes

MOST: Final = 1_000_000
"""Counts stop here: no cluster has as many devices, and sums stay small numbers."""

_SHOWN: Final = 60
_MOST_REASONS: Final = 3
_LNC_VARIABLE: Final = "NEURON_LOGICAL_NC_CONFIG"
_GROUPS: Final = "resource.aws.com/devicegroup"
_IMPLICIT: Final = "deviceclass.resource.kubernetes.io/"
"""Extended resources that stand for a DeviceClass by its name (KEP-5004)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Holding:
    """What an object can hold.

    Attributes:
        requests: of a pod `{container, resource, amount, init}`, of a claim `{request, resource, amount}`.
        devices: the most devices that it can hold at once, at most `MOST`.
        cores: the most that it asks for as cores, at most `MOST`.
        lncs: every logical NeuronCore setting that it makes, in order.
        classes: DeviceClasses that it requests from and that have, or may have, Neuron devices.
        converted: whether its record was verified.
        unknown: why it could be more devices; empty where it cannot.
    """

    requests: tuple[Mapping[str, object], ...]
    devices: int
    cores: int
    lncs: tuple[int, ...]
    classes: tuple[str, ...]
    converted: bool
    unknown: str

    def values(self) -> dict[str, object]:
        """The fields of the variable `neuron` that come from the object."""
        return {
            "requests": list(self.requests),
            "devices": self.devices,
            "devicesKnown": not self.unknown,
            "unknown": self.unknown,
            "cores": self.cores,
            "lnc": self.lncs[0] if self.lncs else 0,
            "lncs": list(self.lncs),
            "classes": list(self.classes),
            "converted": self.converted,
        }


def of_pod(pod: Mapping[str, Any], knowledge: DeviceKnowledge) -> Holding:
    """What a pod can hold, by its containers and by its claims."""
    tally = _Tally(knowledge)
    spec, metadata = mapping(pod.get("spec")), mapping(pod.get("metadata"))
    lnc = mapping(metadata.get("annotations")).get(names.ANNOTATION_LNC)
    if lnc in ("1", "2"):
        tally.sets_lnc(int(lnc))
    for section in ("initContainers", "containers", "ephemeralContainers"):
        for container in mappings(spec.get(section)):
            tally.environment(container)
    now, before = _Together(), _Together()
    for section in ("initContainers", "containers"):
        recorded = mapping((knowledge.record or {}).get(section))
        for container in mappings(spec.get(section)):
            init = section == "initContainers" and container.get("restartPolicy") != "Always"
            name = str(container.get("name", ""))
            live = tally.container(name, mapping(container.get("resources")), init=init)
            amounts = mapping(recorded.get(name))
            past = tally.container(name, {"limits": amounts}, init=init)
            if amounts and knowledge.strips_limits:
                live, past = (0, 0), (max(live[0], past[0]), max(live[1], past[1]))
            now.add(*live, init=init)
            before.add(*past, init=init)
    held = _least(now.devices + _claimed(spec, before.devices, tally))
    return tally.holding(held, _least(now.cores + before.cores), converted=knowledge.record is not None)


def of_claim(spec: Mapping[str, Any], knowledge: DeviceKnowledge) -> Holding:
    """What a claim, or a claim of a template, can hold; its spec may be of any version of the API."""
    tally = _Tally(knowledge)
    devices = mapping(spec.get("devices"))
    constrained = _Constrained(_constraints(devices))
    held = 0
    for request in mappings(devices.get("requests")):
        name = str(request.get("name", ""))
        alternatives = list(_alternatives(request))
        if not alternatives:
            tally.doubt(f"request {shown(name)} is of a form that is not known")
        held += tally.request(name, alternatives, constrained, told=True)
    for config in mappings(devices.get("config")):
        tally.config(mapping(config.get("opaque")))
    return tally.holding(_least(held), 0, converted=False)


def read_record(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the annotation of a pod's conversion says, not verified; empty if it is not a JSON object."""
    annotations = mapping(mapping(pod.get("metadata")).get("annotations"))
    text = annotations.get(names.ANNOTATION_CONVERTED_FROM)
    try:
        return mapping(json.loads(text)) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        return {}


def lncs_of(configs: Iterable[Config]) -> tuple[int, ...]:
    """The logical NeuronCore settings of the configs of a claim or class, for our driver."""
    tally = _Tally(NOTHING_KNOWN)
    for config in configs:
        tally.config({"driver": config.driver, "parameters": _parsed(config.parameters)})
    return tally.holding(0, 0, converted=False).lncs


def mapping(value: object) -> Mapping[str, Any]:
    """The value, if it is a JSON object; else an empty one."""
    return value if isinstance(value, dict) else {}


def mappings(value: object) -> Iterator[Mapping[str, Any]]:
    """The JSON objects of a list; none where it is no list."""
    entries: Iterable[object] = value if isinstance(value, list) else ()
    return (entry for entry in entries if isinstance(entry, dict))


def shown(name: str) -> str:
    """A name for a message: short, and on one line."""
    return ascii(name if len(name) <= _SHOWN else f"{name[:_SHOWN]}...")


def _least(count: int) -> int:
    return min(count, MOST)


# --- claims -----------------------------------------------------------------------------------------------


def _alternatives(request: Mapping[str, Any]) -> Iterator[DeviceRequest]:
    """Everything that a request may be granted, in any version of the API.

    v1 and v1beta2 have `exactly` or `firstAvailable`, v1beta1 the fields in the request itself. All of them count: the
    API server takes what its version knows.
    """
    name = str(request.get("name", ""))
    for each in mappings(request.get("firstAvailable")):
        yield _devices(each, f"{name}/{each.get('name', '')!s}")
    exact = request.get("exactly")
    if isinstance(exact, dict):
        yield _devices(exact, name)
    if "deviceClassName" in request:
        yield _devices(request, name)


def _devices(fields: Mapping[str, Any], reference: str) -> DeviceRequest:
    """An alternative; a count of -1 stands for one that is not readable."""
    mode, count = fields.get("allocationMode"), fields.get("count")
    everything = isinstance(mode, str) and len(mode) <= _SHOWN and mode.casefold() == ALL.casefold()
    if not everything and mode not in (None, "", EXACT_COUNT):
        amount = -1
    elif count is None:
        amount = 1
    else:
        amount = max(1, count) if isinstance(count, int) and not isinstance(count, bool) else -1
    selectors = tuple(
        Selector("", text)
        for each in mappings(fields.get("selectors"))
        if isinstance(text := mapping(each.get("cel")).get("expression"), str)
    )
    device_class = fields.get("deviceClassName")
    name = device_class if isinstance(device_class, str) else ""
    return DeviceRequest("", reference, name, selectors, everything, amount)


def _constraints(devices: Mapping[str, Any]) -> Iterator[Constraint]:
    for each in mappings(devices.get("constraints")):
        listed = each.get("requests")
        requests = tuple(one for one in listed if isinstance(one, str)) if isinstance(listed, list) else ()
        attribute = each.get("matchAttribute")
        if isinstance(attribute, str):
            yield Constraint("", requests, attribute)


class _Constrained:
    """Which requests have to be in one device group: a whole node is in none, so it is never granted to them."""

    def __init__(self, constraints: Iterable[Constraint]) -> None:
        self._names: set[str] = set()
        self._all = False
        for each in constraints:
            if each.match_attribute.startswith(_GROUPS):
                self._all = self._all or not each.requests
                self._names.update(each.requests)

    def __contains__(self, request: DeviceRequest) -> bool:
        reference = request.reference
        return self._all or reference in self._names or reference.partition("/")[0] in self._names


def _claimed(spec: Mapping[str, Any], recorded: int, tally: "_Tally") -> int:
    """Devices of a pod's claims. One ResourceClaim that several entries name is allocated once."""
    knowledge = tally.knowledge
    held = 0
    seen: set[str] = set()
    for entry in mappings(spec.get("resourceClaims")):
        template, claim = entry.get("resourceClaimTemplateName"), entry.get("resourceClaimName")
        ours = knowledge.record is not None and entry.get("name") == knowledge.recorded_claim
        if isinstance(template, str) and template:
            known = knowledge.templates.get(template)
            if known is None and ours:
                held += recorded
            else:
                held += tally.claim(known, f"ResourceClaimTemplate {shown(template)}")
        elif isinstance(claim, str) and claim:
            if claim not in seen:
                seen.add(claim)
                held += tally.claim(knowledge.claims.get(claim), f"ResourceClaim {shown(claim)}")
        else:
            tally.doubt(f"the claim {shown(str(entry.get('name', ''))[:_SHOWN])} names nothing that is known")
        held = _least(held)
    return held


# --- counting ---------------------------------------------------------------------------------------------


class _Together:
    """Devices and cores of containers, as they are held at one time."""

    def __init__(self) -> None:
        self._running = [0, 0]
        self._most = [0, 0]

    def add(self, *amounts: int, init: bool) -> None:
        """Take in the next container, in the order in which they start."""
        for unit, amount in enumerate(amounts):
            held = _least(self._running[unit] + amount)
            self._most[unit] = max(self._most[unit], held)
            if not init:
                self._running[unit] = held

    @property
    def devices(self) -> int:
        return self._most[0]

    @property
    def cores(self) -> int:
        return self._most[1]


class _Tally:
    """Adds up one object."""

    def __init__(self, knowledge: DeviceKnowledge) -> None:
        self.knowledge = knowledge
        self._figures = figures(knowledge.catalogue)
        self._requests: list[Mapping[str, object]] = []
        self._lncs: dict[int, None] = {}
        self._classes: dict[str, None] = {}
        self._reasons: dict[str, None] = {}

    def holding(self, devices: int, cores: int, *, converted: bool) -> Holding:
        """What came of it."""
        unknown = "; ".join(list(self._reasons)[:_MOST_REASONS])
        return Holding(
            tuple(self._requests), devices, cores, tuple(self._lncs), tuple(self._classes), converted, unknown
        )

    def doubt(self, reason: str) -> None:
        """Note why it could be more."""
        if len(self._reasons) < _MOST_REASONS:
            self._reasons[reason] = None

    def sets_lnc(self, value: int) -> None:
        """Note a logical NeuronCore setting."""
        self._lncs[value] = None

    def config(self, opaque: Mapping[str, Any]) -> None:
        """Take in an opaque config of our driver, whatever its apiVersion and kind are."""
        if opaque.get("driver") != names.DRIVER:
            return
        for key, value in mapping(opaque.get("parameters")).items():
            if len(key) <= _SHOWN and key.casefold() == "logicalneuroncore" and value in (1, 2):
                self.sets_lnc(int(value))

    def environment(self, container: Mapping[str, Any]) -> None:
        """Take in the variable by which a container chooses for itself, where its value stands in the pod."""
        for entry in mappings(container.get("env")):
            value = entry.get("value")
            if entry.get("name") == _LNC_VARIABLE and isinstance(value, str) and len(value) <= _SHOWN:
                chosen = value.strip()
                if chosen in ("1", "2"):
                    self.sets_lnc(int(chosen))

    def container(self, name: str, resources: Mapping[str, Any], *, init: bool) -> tuple[int, int]:
        """Devices and cores of one container; an amount may stand under limits, or under requests alone."""
        devices = cores = 0
        limits, requests = mapping(resources.get("limits")), mapping(resources.get("requests"))
        for resource in {**requests, **limits}:
            device_class = self._class_behind(resource)
            if resource not in names.LEGACY_RESOURCES and device_class is None:
                continue
            amount = max(
                self._amount(name, resource, each[resource]) for each in (limits, requests) if resource in each
            )
            if not amount:
                continue
            if device_class is not None:
                request = DeviceRequest("", name, device_class, count=amount)
                devices += self.request(name, [request], _Constrained(()), told=False)
                continue
            if resource == names.RESOURCE_NEURONCORE:
                cores += amount
                devices += self._figures.devices_for(amount)
            else:
                devices += amount
            self._requests.append({"container": name, "resource": resource, "amount": amount, "init": init})
        return _least(devices), _least(cores)

    def _class_behind(self, resource: str) -> str | None:
        """The DeviceClass that serves an extended resource; None for any other resource."""
        if resource.startswith(_IMPLICIT):
            return resource.removeprefix(_IMPLICIT)
        return None if resource in names.LEGACY_RESOURCES else self.knowledge.extended.get(resource)

    def _amount(self, container: str, resource: str, value: object) -> int:
        try:
            return _least(quantities.parse_count(value))
        except quantities.NotACountError as error:
            self.doubt(f"container {shown(container)} asks for an amount of {shown(resource)} that {error}")
            return 0

    def claim(self, spec: ClaimSpec | None, called: str) -> int:
        """Devices of a claim that a pod names."""
        if spec is None:
            self.doubt(f"{called} is not known")
            return 0
        constrained = _Constrained(spec.constraints)
        held = 0
        for request in spec.requests:
            if not request.alternatives:
                self.doubt(f"{called} has a request of a form that is not known")
            held += self.request(request.name, request.alternatives, constrained, told=False)
        for config in spec.configs:
            self.config({"driver": config.driver, "parameters": _parsed(config.parameters)})
        return _least(held)

    def request(
        self, name: str, alternatives: Iterable[DeviceRequest], constrained: _Constrained, *, told: bool
    ) -> int:
        """The most devices of any alternative."""
        most, of = 0, ""
        for each in alternatives:
            amount = self._alternative(name, each, constrained)
            if amount > most or not of:
                most, of = amount, each.device_class if amount else of
        if told and most:
            self._requests.append({"request": name, "resource": of, "amount": most})
        return most

    def _alternative(self, name: str, devices: DeviceRequest, constrained: _Constrained) -> int:
        has = self.knowledge.has_devices(devices.device_class)
        if has is False:
            return 0
        self._classes[devices.device_class] = None
        if has is None:
            self.doubt(f"it is not known whether DeviceClass {shown(devices.device_class)} has Neuron devices")
            return 0
        for lnc in self.knowledge.class_lncs.get(devices.device_class, ()):
            self.sets_lnc(lnc)
        if devices.everything:
            return self._figures.node
        if devices.count < 0:
            self.doubt(f"it is not known how many devices request {shown(name)} asks for")
            return 0
        count = _least(max(1, devices.count))
        return _least(count * self._figures.node) if self._may_be_node(devices, constrained) else count

    def _may_be_node(self, devices: DeviceRequest, constrained: _Constrained) -> bool:
        """Whether one "device" of a request can be a whole UltraServer node."""
        if devices in constrained:
            return False
        expressions = [each.expression for each in devices.selectors]
        if excludes_whole_nodes(expressions, self._figures.ultraservers):
            return False
        return self.knowledge.whole_nodes or any(names.RESOURCE_TYPE_NODE in each for each in expressions)


def _parsed(parameters: object) -> object:
    """Opaque parameters, which are kept as raw JSON; what is wrong with them is for others to say."""
    if not isinstance(parameters, bytes):
        return parameters
    try:
        return json.loads(parameters)
    except (ValueError, RecursionError):
        return {}
