"""Facts about the cluster that conversion and checks read."""

import dataclasses
from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from conversion.claims.pools import Supply
from neuron.api.claim_specs import ClaimSpec
from neuron.hardware.instances import Observation


@dataclasses.dataclass(frozen=True, slots=True)
class LegacyQuota:
    """A ResourceQuota that counts legacy Neuron resources.

    Attributes:
        resources: the legacy resources that it counts, sorted.
        scoped: whether it has scopes. A quota with scopes counts no claim.
        classes: DeviceClasses whose devices it counts; empty with scopes.
    """

    name: str
    resources: tuple[str, ...]
    scoped: bool = False
    classes: tuple[str, ...] = ()


class NamespaceFacts(Struct, frozen=True):
    """Settings of a namespace that apply to its pods. Hashable: part of the key of cached decisions.

    Attributes:
        annotations: its annotations under `neuron.aws.com/`, sorted.
        quotas: its ResourceQuotas that count a legacy Neuron resource, by name.
        limit_ranges: names of its LimitRanges with a min or max for a legacy Neuron resource.
        unread: its keys that look like a setting and are not read (`check_keys.unread_keys`).
    """

    annotations: tuple[tuple[str, str], ...] = ()
    quotas: tuple[LegacyQuota, ...] = ()
    limit_ranges: tuple[str, ...] = ()
    unread: tuple[tuple[str, str], ...] = ()


NO_FACTS = NamespaceFacts()


class ClusterView(Protocol):
    """Facts about the cluster. Reads caches. Does not block."""

    @property
    def version(self) -> int:
        """Grows whenever an answer changes that is not about a namespace or template."""

    def kubernetes_version(self) -> str:
        """Version of the control plane, such as `v1.36.2`; the oldest, if several were seen. Empty if not known."""

    def observations(self) -> Mapping[str, Observation]:
        """Instance types ever seen in ResourceSlices or on Nodes, by name. They stay when these are deleted."""

    def extended_resources(self) -> Mapping[str, str]:
        """`extendedResourceName` -> name of the DeviceClass that serves it (KEP-5004)."""

    def class_names(self) -> frozenset[str] | None:
        """Names of all DeviceClasses; None if they are not known."""

    def supply(self) -> Supply:
        """Nodes that exist without a pool, and the pools of autoscalers; the same object until they change."""

    def namespace(self, name: str) -> NamespaceFacts:
        """Settings of a namespace; `NO_FACTS` if it is unknown."""

    def claim_template(self, namespace: str, name: str) -> ClaimSpec | None:
        """The claim spec of a ResourceClaimTemplate; None if it is unknown. May be called in another thread."""

    def template_device_classes(self, namespace: str, name: str) -> frozenset[str]:
        """DeviceClasses that a ResourceClaimTemplate requests; empty if it is unknown."""

    def template_ultraserver_mode(self, namespace: str, name: str) -> int | None:
        """`ultraserverMode` of a ResourceClaimTemplate's UltraServerConfig; None if it has none."""


class NamespaceView(Protocol):
    """Facts about namespaces for policies. Reads caches."""

    def namespace(self, name: str) -> NamespaceFacts:
        """Settings of a namespace; `NO_FACTS` if it is unknown."""

    def namespace_labels(self, name: str) -> Mapping[str, str] | None:
        """Labels of a namespace; None if it is unknown."""

    def namespace_object(self, name: str) -> Mapping[str, object] | None:
        """A Namespace with all fields that policies can read (`neuron.api.fields`); None if they are unknown."""

    def quotas(self, name: str) -> Mapping[str, int] | None:
        """Devices that the ResourceQuotas of a namespace allow, by the resource's name in `spec.hard`.

        Empty if no quota limits them; None if the quotas are not known yet.
        """
