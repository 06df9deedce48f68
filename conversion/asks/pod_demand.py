"""What a pod requests: the legacy resources of its containers, now or as recorded, and its claims. Pure."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from msgspec import Struct

from checks.claims.judging import ClaimJudgement
from conversion.asks.claimed import Restated, restated, role_of
from conversion.asks.records import Amounts
from conversion.claims import containers as demand
from conversion.claims.containers import Ask
from conversion.facts import ClusterView
from conversion.objects import pods
from conversion.objects.wire import ABSENT
from neuron.api.workloads import OBJECTS
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


# --- its claims -------------------------------------------------------------------------------------------------------

ClaimNames: TypeAlias = tuple[tuple[str, str, str], ...]
"""Name, kind and object name of the claims that a pod declares."""
_NO_LIST: Final = (b"", b"null", b"[]")
"""JSON of `resourceClaims` without entries."""


@dataclasses.dataclass(frozen=True, slots=True)
class KnownClaim:
    """What is known of one entry of `spec.resourceClaims`.

    Attributes:
        judgement: the checked claim; None if it is not known.
        missing: whether it refers to an object that does not exist.
    """

    judgement: ClaimJudgement | None = None
    missing: bool = False


UNKNOWN: Final = KnownClaim()


class Claiming(Struct, frozen=True):
    """A pod and the claims that it declares. Read once: a tenant can make the list long.

    Attributes:
        names: of the declared claims.
    """

    pod: pods.Pod
    names: ClaimNames

    @classmethod
    def of(cls, pod: pods.Pod) -> "Claiming":
        """Read the claims of a pod."""
        # Most pods declare none.
        return cls(pod, () if pod.spec.resourceClaims is ABSENT else tuple(claim_names(pod)))

    @property
    def is_empty(self) -> bool:
        """Whether the pod declares no claim, and was not converted."""
        raw = self.pod.spec.resourceClaims
        return (raw is ABSENT or bytes(raw) in _NO_LIST) and not self.pod.labelled


def claim_names(pod: pods.Pod) -> Iterator[tuple[str, str, str]]:
    """Name, kind and object name of every claim that a pod declares."""
    for entry in pod.decode_claims() or ():
        name = str(entry.get("name") or "")
        for field, kind in OBJECTS.items():
            if entry.get(field):
                yield name, kind, str(entry[field])


def readable_names(pod: pods.Pod) -> ClaimNames:
    """As `claim_names`; empty if conversion refuses the pod because its claims cannot be read or are too long."""
    try:
        return () if pod.excess() is not None else tuple(claim_names(pod))
    except pods.UnreadableError:
        return ()


def claims_from_templates(pod: pods.Pod) -> tuple[tuple[str, str], ...]:
    """Claims in `spec.resourceClaims` that use a template: names of claim and template."""
    if pod.spec.resourceClaims is ABSENT or pod.excess() is not None:
        return ()
    return tuple(
        (str(entry.get("name")), template)
        for entry in pod.decode_claims() or ()
        if (template := entry.get("resourceClaimTemplateName"))
    )


def requesting(
    named: Sequence[tuple[str, str]], namespace: str, cluster: ClusterView, device_class: str
) -> tuple[str, ...]:
    """Names of the claims whose template requests a DeviceClass. Unknown templates are ignored.

    Args:
        named: result of `claims_from_templates`.
    """
    if not named:
        return ()
    return tuple(
        claim for claim, template in named if device_class in cluster.template_device_classes(namespace, template)
    )
