"""What a pod requests: the legacy resources of its containers, now or as recorded, and its claims. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from conversion.asks.claimed import Restated, restated, role_of
from conversion.asks.records import Amounts
from conversion.claims import containers as demand
from conversion.claims.containers import Ask
from conversion.objects import pods
from neuron.findings import Finding

SEVERAL: Final = "several"
"""Replaces the name of the legacy resource if a pod requests more than one."""


class ContainerDemand(Struct, frozen=True):
    """What one container requests.

    Attributes:
        resources: its `resources`; None if absent or empty.
        section: `containers` or `initContainers`.
        index: its index in the section.
        amounts: legacy resources to convert: those of the record if it has the container, else the current ones.
        findings: what is wrong with the amounts.
        sets_variables: whether it requests devices, and may set variables of the Neuron runtime.
    """

    container: pods.Container
    resources: Mapping[str, Any] | None
    section: str
    index: int
    amounts: Amounts
    ask: Ask
    findings: Sequence[Finding]
    sets_variables: bool

    @property
    def pointer(self) -> str:
        """JSON pointer of the container."""
        return f"/spec/{self.section}/{self.index}"


class PodDemand(Struct, frozen=True):
    """What one pod requests.

    Attributes:
        containers: all containers, init containers first.
        earlier: what the pod asks for by the record of an earlier conversion. It counts as limits would.
        claiming: names of claims in `spec.resourceClaims` that request our DeviceClass.
        resource: the legacy resource that the containers request, or `SEVERAL`; empty if there is none.
    """

    pod: pods.Pod
    containers: Sequence[ContainerDemand]
    earlier: Restated | None
    claiming: Sequence[str]
    resource: str

    @classmethod
    def of(cls, pod: pods.Pod, claiming: Sequence[str]) -> "PodDemand":
        """Read the containers of a pod.

        Raises:
            conversion.objects.pods.UnreadableError: a field has the wrong type.
        """
        earlier = restated(pod)
        containers = _read_containers(pod, earlier)
        resources = {resource for each in containers for resource in each.amounts}
        resource = SEVERAL if len(resources) > 1 else next(iter(resources), "")
        return cls(pod, containers, earlier, claiming, resource)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to convert, to refuse or to restore."""
        return self.earlier is None and not any([each.ask.amount or each.findings for each in self.containers])

    @property
    def findings(self) -> list[Finding]:
        """What is wrong with the amounts of all containers."""
        return [finding for each in self.containers for finding in each.findings]

    @property
    def asks(self) -> list[Ask]:
        """The asks of all containers, init containers first."""
        return [each.ask for each in self.containers]


def _read_containers(pod: pods.Pod, earlier: Restated | None) -> list[ContainerDemand]:
    """All containers, init containers first.

    A container in the record keeps its recorded amounts: a legacy resource that it names now is a LimitRange default
    that was added again between two passes. A container that is not in the record is new.
    """
    sections = (
        ("initContainers", pod.init_containers, earlier.init_containers if earlier else {}),
        ("containers", pod.containers, earlier.containers if earlier else {}),
    )
    read = []
    for section, containers, recorded in sections:
        for index, container in enumerate(containers):
            path = f"spec.{section}[{index}]"
            resources = container.decode_resources(path) or {}
            limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
            amounts = recorded.get(container.name)
            if amounts is None:
                amounts = demand.legacy_amounts(limits, requests)
            else:
                limits, requests = amounts, {}
            ask, findings = demand.read(container.name, role_of(section, container), path, limits, requests)
            sets_variables = ask.amount > 0 and container.may_set_variables
            read.append(
                ContainerDemand(container, resources or None, section, index, amounts, ask, findings, sets_variables)
            )
    return read


def legacy_now(resources: Mapping[str, Any] | None) -> dict[str, str]:
    """Legacy resources that a container's `resources` name now, with canonical amounts."""
    known = resources or {}
    return demand.legacy_amounts(known.get("limits") or {}, known.get("requests") or {})
