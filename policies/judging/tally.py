"""Adds up the Neuron devices, cores and settings that one object can hold.

A policy that limits devices must not be bypassed, so every doubt counts for more: `All` counts as all devices of the
largest node, `firstAvailable` counts as its largest alternative, and what is not known becomes `Holding.unknown`.
Every step is linear in the size of the object, except for parsing selectors, which the `time` of an engine bounds.
"""

import dataclasses
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from checks.claims.connections import group_size
from checks.claims.device_index import SelectorTimeError
from neuron import names, quantities
from neuron.api import environment
from neuron.api.claim_specs import ClaimSpec, Config, DeviceRequest
from neuron.api.configs import covers
from neuron.api.fields import mapping
from policies.judging.knowledge import DeviceKnowledge, figures, of_catalogue
from policies.judging.selectors import DeviceSelectors

MOST: Final = 1_000_000
"""Counts are cut to this number: no cluster has as many devices, and sums stay small numbers."""

MOST_REASONS: Final = 3
_IMPLICIT: Final = "deviceclass.resource.kubernetes.io/"
"""Prefix of extended resources that name a DeviceClass (KEP-5004)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Holding:
    """What an object can hold.

    Attributes:
        requests: for a pod `{container, resource, amount, init}`, for a claim `{request, resource, amount}`.
        devices: the most devices that it can hold at once, at most `MOST`.
        cores: the most cores that it requests as cores, at most `MOST`; of shares, physical cores.
        lncs: every logical NeuronCore setting in it, in order.
        classes: DeviceClasses that it requests from and that have, or may have, Neuron devices.
        converted: whether the record of its conversion was verified.
        unknown: why it could hold more devices; empty if it cannot.
        named_claims: different ResourceClaims that a pod names. They can be replaced until the pod is scheduled.
        named_devices: the part of `devices` that these claims hold now.
        pods: those of a workload; None for a pod, and for what makes no pods.
    """

    requests: tuple[Mapping[str, object], ...]
    devices: int
    cores: int
    lncs: tuple[int, ...]
    classes: tuple[str, ...]
    converted: bool
    unknown: str
    named_claims: int = 0
    named_devices: int = 0
    pods: "PodHoldings | None" = None

    def values(self) -> dict[str, object]:
        """The fields of the CEL variable `neuron` that come from the object."""
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
            "namedClaims": self.named_claims,
            "namedDevices": self.named_devices,
            **(self.pods or PodHoldings(self.devices, self.cores, self.unknown)).values(),
        }


@dataclasses.dataclass(frozen=True, slots=True)
class PodHoldings:
    """What the pods of an object hold.

    Attributes:
        devices: of the pod that can hold most.
        cores: of the pod that requests most as cores.
        unknown: why a pod could hold more devices; empty if none can.
        pods: at one time; None if that is not known.
        templates: for each pod template `{path, devices, cores, devicesKnown, pods, podsKnown}`.
    """

    devices: int
    cores: int
    unknown: str
    pods: int | None = 1
    templates: tuple[Mapping[str, object], ...] = ()

    def values(self) -> dict[str, object]:
        """The fields of the CEL variable `neuron` that are about pods."""
        return {
            "podDevices": self.devices,
            "podCores": self.cores,
            "podDevicesKnown": not self.unknown,
            "pods": self.pods or 0,
            "podsKnown": self.pods is not None,
            "templates": list(self.templates),
        }


class Concurrent:
    """Devices and cores of containers, as they are held at one time (pod resource formula, see `device_counts`)."""

    def __init__(self) -> None:
        self._running = [0, 0]
        self._most = [0, 0]

    def add(self, *amounts: int, init: bool) -> None:
        """Add the next container, in the order in which they start."""
        for unit, amount in enumerate(amounts):
            held = at_most(self._running[unit] + amount)
            self._most[unit] = max(self._most[unit], held)
            if not init:
                self._running[unit] = held

    @property
    def devices(self) -> int:
        """The most devices at one time."""
        return self._most[0]

    @property
    def cores(self) -> int:
        """The most cores at one time."""
        return self._most[1]


class DeviceTally:
    """Adds up one object."""

    def __init__(self, knowledge: DeviceKnowledge, time: DeviceSelectors | None = None) -> None:
        """Parse selectors within `time`; None: without a bound, for the files of an administrator."""
        self.knowledge = knowledge
        self.time = time
        self._figures = figures(knowledge.catalogue)
        self._nodes = knowledge.whole_nodes or of_catalogue(knowledge.catalogue)
        self._requests: list[Mapping[str, object]] = []
        self._lncs: dict[int, None] = {}
        self._classes: dict[str, None] = {}
        self._reasons: dict[str, None] = {}

    def holding(self, devices: int, cores: int, *, converted: bool) -> Holding:
        unknown = "; ".join(self._reasons)
        return Holding(
            tuple(self._requests), devices, cores, tuple(self._lncs), tuple(self._classes), converted, unknown
        )

    def add(self, other: "DeviceTally") -> None:
        """Add what another tally of a part of the object noted."""
        requests, lncs, classes, reasons = other.noted
        self._requests += requests
        self._lncs |= lncs
        self._classes |= classes
        for reason in reasons:
            self.doubt(reason)

    @property
    def noted(self) -> tuple[list[Mapping[str, object]], dict[int, None], dict[str, None], dict[str, None]]:
        """Requests, logical NeuronCore settings, DeviceClasses and reasons."""
        return self._requests, self._lncs, self._classes, self._reasons

    @property
    def may_doubt(self) -> bool:
        """Whether there is room for a reason."""
        return len(self._reasons) < MOST_REASONS

    def doubt(self, reason: str) -> None:
        """Note why the object could hold more."""
        if len(self._reasons) < MOST_REASONS:
            self._reasons[reason] = None

    def sets_lnc(self, value: int) -> None:
        """Note a logical NeuronCore setting."""
        self._lncs[value] = None

    def environment(self, container: Mapping[str, object]) -> None:
        """Read the environment variables that set the logical NeuronCore. A value that is not known may be any.

        `envFrom` does not count: few of its sources hold such a variable, and each pod that has one would be refused.
        """
        for value in environment.logical_neuron_cores(container).values():
            self._lncs |= dict.fromkeys((1, 2) if value is None else (value,) if value else ())

    def container(self, name: str, resources: object, *, init: bool) -> tuple[int, int]:
        """Devices and cores of one container; an amount may be in limits, or in requests alone.

        Names that mean the same devices are one request, as for conversion.
        """
        devices = cores = 0
        named: list[int] = []
        amounts = mapping(resources)
        limits, requests = mapping(amounts.get("limits")), mapping(amounts.get("requests"))
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
                devices += self.request(name, [request], (), listed=False)[0]
                continue
            if resource == names.RESOURCE_NEURONCORE:
                cores += amount
                devices += self._figures.devices_for(amount)
            else:
                named.append(amount)
            self._requests.append({"container": name, "resource": resource, "amount": amount, "init": init})
        if named and self._figures.are_one_request(named, cores):
            devices -= self._figures.devices_for(cores) if cores else 0
            named = named[:1]
        return at_most(devices + sum(named)), at_most(cores)

    def _class_behind(self, resource: str) -> str | None:
        """The DeviceClass that serves an extended resource; None for any other resource."""
        if resource.startswith(_IMPLICIT):
            return resource.removeprefix(_IMPLICIT)
        return None if resource in names.LEGACY_RESOURCES else self.knowledge.extended.get(resource)

    def _amount(self, container: str, resource: str, value: object) -> int:
        try:
            return at_most(quantities.parse_count(value))
        except quantities.NotACountError as error:
            self.doubt(f"container {name_text(container)} requests an amount of {name_text(resource)} that {error}")
            return 0

    def claim(self, spec: ClaimSpec | None, called: str = "") -> tuple[int, int]:
        """Devices, and cores of shares, of a claim; `spec` is None if it is not known.

        Args:
            called: what a pod calls it; empty: it is the object itself, and its requests become entries of `Holding`.
        """
        if spec is None:
            self.doubt(f"{called} is not known")
            return 0, 0
        grouped = [each.requests for each in spec.constraints if group_size(each.match_attribute)]
        devices = cores = 0
        for request in spec.requests:
            if not request.alternatives:
                what = f"{called} has a request" if called else f"request {name_text(request.name)} is"
                self.doubt(f"{what} of a form that is not known")
            most = self.request(request.name, request.alternatives, grouped, listed=not called)
            devices, cores = devices + most[0], cores + most[1]
        self._lncs |= dict.fromkeys(lncs_of(spec.configs))
        return at_most(devices), at_most(cores)

    def request(
        self,
        name: str,
        alternatives: Iterable[DeviceRequest],
        grouped: Sequence[tuple[str, ...]],
        *,
        listed: bool,
    ) -> tuple[int, int]:
        """The most devices, and the most cores of shares, of any alternative.

        A share counts as a device as well: other claims may not get the whole device any more, and a ResourceQuota
        counts it too.

        Args:
            grouped: requests whose devices must be in one group; a whole node is in no group. Empty names: all.
            listed: the request becomes an entry of `Holding.requests`.
        """
        most, of, cores = 0, "", 0
        for each in alternatives:
            amount = self._alternative(name, each, grouped)
            cores = max(cores, at_most(amount * _cores(each)))
            if amount > most or not of:
                most, of = amount, each.device_class if amount else of
        if listed and most:
            self._requests.append({"request": name, "resource": of, "amount": most})
        return most, cores

    def _alternative(self, name: str, devices: DeviceRequest, grouped: Sequence[tuple[str, ...]]) -> int:
        has = self.knowledge.has_devices(devices.device_class)
        if has is False:
            return 0
        self._classes[devices.device_class] = None
        if has is None:
            self.doubt(f"it is not known whether DeviceClass {name_text(devices.device_class)} has Neuron devices")
            return 0
        self._lncs |= dict.fromkeys(self.knowledge.class_lncs.get(devices.device_class, ()))
        if devices.admin_access and "/" not in devices.reference:
            # It looks at devices, and leaves them to others. Alternatives have no such field: the API server drops it.
            return 0
        if devices.everything:
            return self._figures.node
        if not devices.count:
            self.doubt(f"the number of devices of request {name_text(name)} is not known")
            return 0
        count = at_most(devices.count)
        return at_most(count * self._figures.node) if self._may_be_node(name, devices, grouped) else count

    def _may_be_node(self, name: str, devices: DeviceRequest, grouped: Sequence[tuple[str, ...]]) -> bool:
        """Whether one "device" of a request can be a whole UltraServer node."""
        if any(covers(each, devices.reference) for each in grouped):
            return False
        if not self._nodes.published and self._needs_more_than_a_device(devices):
            return True
        expressions = [
            *self.knowledge.class_selectors.get(devices.device_class, ()),
            *(each.expression for each in devices.selectors),
        ]
        try:
            return self._nodes.can_match(expressions, self.time)
        except SelectorTimeError:
            self.doubt(f"the selectors of request {name_text(name)} take too long to read")
            return True

    def _needs_more_than_a_device(self, devices: DeviceRequest) -> bool:
        """Whether a request consumes more than a single device has; a whole node has the capacity of all devices."""
        most = self._figures.most
        return any(
            quantities.parse_amount(text) > most.get(capacity.removeprefix(f"{names.DRIVER}/"), 0)
            for capacity, text in devices.capacity
        )


def _cores(devices: DeviceRequest) -> int:
    """Cores of the share that a request takes of every device; 0 for whole devices."""
    found = (
        math.ceil(quantities.parse_amount(text)) for name, text in devices.capacity if name in names.CORES_SPELLINGS
    )
    return at_most(next(found, 0))


def at_most(count: int) -> int:
    """The count, cut to `MOST`."""
    return min(count, MOST)


def lncs_of(configs: Iterable[Config]) -> tuple[int, ...]:
    """The logical NeuronCore settings in the configs of a claim or DeviceClass, for our driver.

    Their apiVersion and kind are not checked.
    """
    found = (mapping(_parsed(each.parameters)).items() for each in configs if each.driver == names.DRIVER)
    return tuple(
        int(value)
        for key, value in itertools.chain.from_iterable(found)
        if isinstance(value, int | float) and value in (1, 2) and len(key) <= _SHOWN
        if key.casefold() == "logicalneuroncore"
    )


def _parsed(parameters: object) -> object:
    """Opaque parameters, which are kept as raw JSON; empty if they are not JSON (the validators report that)."""
    if not isinstance(parameters, bytes):
        return parameters
    try:
        return json.loads(parameters)
    except (ValueError, RecursionError):
        return {}


_SHOWN: Final = 60


def name_text(name: str) -> str:
    """A name for a message: cut, and on one line."""
    return ascii(name if len(name) <= _SHOWN else f"{name[:_SHOWN]}...")
