"""Reads the legacy resources (of the device plugin) that the containers of a pod request.

The rules for extended resources are those of Kubernetes: whole numbers, a limit, and an equal request
(`k8s.io/kubernetes/pkg/apis/core/validation`). They are checked here because conversion removes the resources before
the API server validates them.
"""

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import force_setattr

from neuron import names, quantities
from neuron.api.fields import mapping, mappings
from neuron.findings import Finding

_LEGACY: Final = frozenset(names.LEGACY_RESOURCES)
BASIC_RESOURCES: Final = ("cpu", "memory", "ephemeral-storage")
_SHOWN: Final = 63
"""Characters of a container's name in messages: the longest name that Kubernetes allows."""


class Role(enum.StrEnum):
    """How long a container holds its devices."""

    APP = "app"
    """An app container: it runs from start to end of the pod."""
    SIDECAR = "sidecar"
    """An init container with `restartPolicy: Always`: it runs until the end of the pod."""
    INIT = "init"
    """An init container that ends: later containers use the same devices."""


class Ask(Struct, frozen=True):
    """One container's legacy request.

    Attributes:
        container: its name, cut for messages.
        path: field path of the container, e.g. `spec.initContainers[0]`.
        resource: the legacy resource; empty if it requests none.
        amount: devices or cores, by the resource; 0 if it requests none.
        in_cores: whether `amount` counts cores rather than devices; computed.
        cores: cores that it names beside devices, and that have to be those of the devices; 0: none.
        lnc: the logical NeuronCore that its variable sets, in a pod whose containers set different ones; else None.
    """

    container: str
    role: Role
    path: str
    resource: str = ""
    amount: int = 0
    in_cores: bool = False
    cores: int = 0
    lnc: int | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "in_cores", self.resource == names.RESOURCE_NEURONCORE)

    @property
    def resource_path(self) -> str:
        """Field path of the limit."""
        return f"{self.path}.resources.limits[{self.resource}]"


def names_legacy(resources: Mapping[str, Any]) -> bool:
    """Whether a container's `resources` name a legacy resource."""
    return any(not _LEGACY.isdisjoint(resources.get(field) or ()) for field in ("limits", "requests"))


def legacy_amounts(limits: Mapping[str, object], requests: Mapping[str, object]) -> dict[str, str]:
    """The legacy resources of a container, in canonical numbers, by its limits, else by its requests."""
    return {
        resource: quantities.canonical(limits[resource] if resource in limits else requests[resource])
        for resource in names.LEGACY_RESOURCES
        if resource in limits or resource in requests
    }


def scheduled(spec: object) -> Counter[str]:
    """Legacy resources that the scheduler counts for a pod.

    Args:
        spec: of the pod, as JSON.
    """
    return _requested(mapping(spec), _counted)


def basic_requests(spec: object) -> dict[str, Decimal]:
    """CPU, memory and ephemeral storage that the scheduler counts for a pod.

    Requests of the pod itself replace those of its containers; overhead comes on top. A limit of a container counts as
    a request if there is none; one of the pod if no container has a request (`defaultPodRequests` in
    pkg/apis/core/v1/defaults.go).
    """
    pod = mapping(spec)
    own = mapping(pod.get("resources"))
    found: dict[str, Any] = {
        **_amounts(own.get("limits")),
        **_requested(pod, _basic),
        **_amounts(own.get("requests")),
    }
    for resource, amount in _amounts(pod.get("overhead")).items():
        found[resource] = found.get(resource, Decimal(0)) + amount
    return found


def _requested(pod: Mapping[str, object], of: Callable[[Mapping[str, object]], Counter[str]]) -> Counter[str]:
    """Containers and sidecars together, or an init container with the sidecars before it.

    As `k8s.io/component-helpers/resource.PodRequests`. `of`: the requests of a container.
    """
    sidecars, most = Counter[str](), Counter[str]()
    for container in mappings(pod.get("initContainers")):
        own = of(container)
        if container.get("restartPolicy") == "Always":
            sidecars.update(own)
            most |= sidecars
        else:
            most |= sidecars + own
    together = Counter(sidecars)
    for container in mappings(pod.get("containers")):
        together.update(of(container))
    return together | most


def _basic(holder: Mapping[str, object]) -> Counter[str]:
    resources = mapping(holder.get("resources"))
    return Counter(_amounts(resources.get("limits")) | _amounts(resources.get("requests")))


def _amounts(given_: object) -> dict[str, object]:
    given = mapping(given_)
    return {each: quantities.amount_of(given[each]) for each in BASIC_RESOURCES if each in given}


def _counted(container: Mapping[str, object]) -> Counter[str]:
    resources = mapping(container.get("resources"))
    found = legacy_amounts(mapping(resources.get("limits")), mapping(resources.get("requests")))
    return Counter({resource: quantities.count_of(amount) for resource, amount in found.items()})


def read(
    container: str, role: Role, path: str, limits: Mapping[str, object], requests: Mapping[str, object]
) -> tuple[Ask, list[Finding]]:
    """Read one container's `resources`.

    Returns:
        The ask, and errors NEU101 to NEU104. With errors the ask is empty. Names for the same devices are one ask.
    """
    container = container[:_SHOWN]
    amounts: dict[str, int] = {}
    findings: list[Finding] = []
    for resource in [each for each in names.LEGACY_RESOURCES if each in limits or each in requests]:
        given = {
            field: values[resource]
            for field, values in (("limits", limits), ("requests", requests))
            if resource in values
        }
        if len(given) > 1 and given["requests"] == given["limits"]:
            # The API server copies limits to requests: report the error once.
            given.pop("requests", None)
        counts: dict[str, int] = {}
        for field, value in given.items():
            where = f"{path}.resources.{field}[{resource}]"
            try:
                counts[field] = quantities.parse_count(value)
            except quantities.NotACountError as error:
                findings.append(
                    Finding(
                        "NEU101",
                        where,
                        f"container {container} asks for {resource}: {quantities.amount_text(value)!r}, which {error}.",
                        "Use a whole number such as 4.",
                        quantities.amount_text(value),
                    )
                )
        if len(counts) < len(given) or not counts:
            continue
        findings.extend(_limit_rules(container, path, resource, counts))
        amounts[resource] = counts.get("limits", 0)
    asked = {resource: amount for resource, amount in amounts.items() if amount}
    cores = asked.pop(names.RESOURCE_NEURONCORE, 0) if len(asked) > 1 else 0
    if len(set(asked.values())) > 1:
        first, second, *_ = asked
        findings.append(contradiction(container, path, (first, asked[first]), (second, asked[second])))
    if findings or not asked:
        return Ask(container, role, path), findings
    resource, amount = next(iter(asked.items()))
    return Ask(container, role, path, resource, amount, cores=cores), findings


def are_devices_of(cores: int, devices: int, per_device: int, lncs: Iterable[int]) -> bool:
    """Whether so many cores are those of so many devices, with `per_device` physical cores and one of these LNCs."""
    return any(cores * lnc == devices * per_device for lnc in lncs)


def contradiction(container: str, path: str, one: tuple[str, int], other: tuple[str, int], on: str = "") -> Finding:
    """NEU104: two names for different amounts of the same hardware. `on`: the instance type on which they differ."""
    (first, count), (second, amount) = one, other
    where = f" on {on}" if on else ""
    return Finding(
        "NEU104",
        f"{path}.resources.limits",
        f"container {container} asks for {first}: {count} and {second}: {amount}, which name different amounts of the"
        f" same hardware{where}.",
        "Keep one of them.",
        f"{first}={count}, {second}={amount}",
    )


def _limit_rules(container: str, path: str, resource: str, counts: Mapping[str, int]) -> list[Finding]:
    """NEU102 and NEU103: a limit is required, and a request must equal it."""
    if "limits" not in counts:
        return [
            Finding(
                "NEU102",
                f"{path}.resources.requests[{resource}]",
                f"container {container} requests {resource}: {counts['requests']} without a limit.",
                f"Put {resource} under limits; Kubernetes does not overcommit extended resources.",
                str(counts["requests"]),
            )
        ]
    if counts.get("requests", counts["limits"]) != counts["limits"]:
        return [
            Finding(
                "NEU103",
                f"{path}.resources.requests[{resource}]",
                f"container {container} requests {resource}: {counts['requests']} but its limit is {counts['limits']}.",
                "Make them equal, or leave the request out.",
                str(counts["requests"]),
            )
        ]
    return []
