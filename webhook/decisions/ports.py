"""What the webhook needs of the world, as it needs it. `kube` and `standalone` provide it; tests fake it."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from neuron.claim_specs import ClaimSpec, ClassSpec
from neuron.device_shapes import Shape
from neuron.findings import Finding
from neuron.instances import Observation
from neuron.templates import Template
from webhook.decisions.decision import Decision
from webhook.decisions.wire import AdmissionRequest


@dataclasses.dataclass(frozen=True, slots=True)
class LegacyQuota:
    """A ResourceQuota that counts legacy Neuron resources.

    Attributes:
        name: its name.
        resources: those that it counts, sorted.
        scoped: whether it has scopes. Such a quota counts no claim, whatever its lines are.
    """

    name: str
    resources: tuple[str, ...]
    scoped: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class NamespaceFacts:
    """What a namespace says about its pods. Hashable: it is part of what a decision depends on.

    Attributes:
        annotations: its annotations under `neuron.aws.com/`, sorted.
        quotas: its ResourceQuotas that count a legacy Neuron resource, by name.
        limit_ranges: names of its LimitRanges with a min or max for a legacy Neuron resource.
    """

    annotations: tuple[tuple[str, str], ...] = ()
    quotas: tuple[LegacyQuota, ...] = ()
    limit_ranges: tuple[str, ...] = ()


NO_FACTS = NamespaceFacts()


class ClusterView(Protocol):
    """What is known of the cluster, answered from memory: never I/O, never a wait."""

    @property
    def version(self) -> int:
        """Grows whenever `observations` or `extended_resources` changes."""

    def observations(self) -> Mapping[str, Observation]:
        """Instance types ever seen in ResourceSlices, by name. They stay when slices vanish."""

    def extended_resources(self) -> Mapping[str, str]:
        """`extendedResourceName` -> name of the DeviceClass that serves it (KEP-5004)."""

    def namespace(self, name: str) -> NamespaceFacts:
        """What the namespace says; `NO_FACTS` where it is unknown."""

    def template_device_classes(self, namespace: str, name: str) -> frozenset[str]:
        """DeviceClasses that a ResourceClaimTemplate requests; empty where it is unknown."""

    def template_ultraserver_mode(self, namespace: str, name: str) -> int | None:
        """`ultraserverMode` of a ResourceClaimTemplate's UltraServerConfig, where it has one."""


class TemplateStore(Protocol):
    """ResourceClaimTemplates, kept so that a converted pod always finds its own."""

    def holds(self, namespace: str, template: Template) -> bool:
        """Whether exactly this template is known to exist. Answered from memory."""

    async def ensure(self, namespace: str, template: Template) -> None:
        """Return when the template exists in the namespace, creating it if it does not.

        Raises:
            TemplateUnavailableError: it does not exist and cannot be made.
        """

    async def check(self, namespace: str, template: Template) -> bool:
        """Whether the template exists in the namespace, for a dry run: nothing is created or changed.

        Raises:
            TemplateUnavailableError: `ensure` would fail: another object has its name, or the API server is silent.
        """


class TemplateUnavailableError(Exception):
    """A template that a pod needs does not exist and cannot be made.

    Attributes:
        finding: cause and cure, for the user.
        status_code: what the API server answered, or what stands for it (503: unreachable).
        status_reason: the matching `metav1.StatusReason`.
    """

    def __init__(self, finding: Finding, status_code: int, status_reason: str) -> None:
        super().__init__(str(finding))
        self.finding = finding
        self.status_code = status_code
        self.status_reason = status_reason


class ClaimView(Protocol):
    """What `/validate` has to know of the cluster beyond `ClusterView`. Answered from memory, but for `exist`."""

    @property
    def claim_version(self) -> int:
        """Grows whenever `device_shapes` or `device_classes` changes."""

    def device_shapes(self) -> Sequence[Shape]:
        """The distinct devices in our driver's ResourceSlices (`neuron.device_shapes.Census`)."""

    def device_classes(self) -> Mapping[str, ClassSpec] | None:
        """Every DeviceClass by name; None where none can be known."""

    def claim_template(self, namespace: str, name: str) -> ClaimSpec | None:
        """What a ResourceClaimTemplate asks for; None where it is unknown."""

    async def exist(self, kind: str, namespace: str, names: Iterable[str]) -> Mapping[str, bool | None]:
        """Ask the API server which ResourceClaims or ResourceClaimTemplates exist.

        Needed where the caches know nothing: an object that was applied a moment ago is not in them yet. Takes a
        second at most, and not the whole time of the review (`webhook.reviews.lane.seconds_left`), however many names
        there are; those that there is no time for are not known.

        Returns:
            For every name whether it exists; None if it is not known: no cluster, no permission, too many names, no
            answer in time. Never raises.
        """


class Refusals(Protocol):
    """Receives refused conversions."""

    def refused(self, request: AdmissionRequest, decision: Decision) -> None:
        """Take notice. Called before the answer leaves: never waits, never raises."""


class NamespaceView(Protocol):
    """What policies see of namespaces. Answered from memory."""

    def namespace(self, name: str) -> NamespaceFacts:
        """What the namespace says; `NO_FACTS` where it is unknown."""

    def namespace_labels(self, name: str) -> Mapping[str, str] | None:
        """Labels of a namespace; None where it is unknown."""

    def quotas(self, name: str) -> Mapping[str, int] | None:
        """Devices that the ResourceQuotas of a namespace allow, by the resource's name in `spec.hard`.

        Empty where no quota bounds them; None if the quotas are not known.
        """


class ValidationView(ClusterView, ClaimView, Protocol):
    """Everything that `/validate` has to know of the cluster."""


class WorldView(ValidationView, NamespaceView, Protocol):
    """Everything that the server has to know of the cluster."""
