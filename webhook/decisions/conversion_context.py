"""Inputs of conversion other than the pod: the server's settings and facts about the cluster."""

import dataclasses
from collections.abc import Mapping

from neuron import names
from neuron.instances import Catalogue
from webhook.decisions.modes import Mode
from webhook.decisions.ports import ClusterView


@dataclasses.dataclass(frozen=True, slots=True)
class ConversionOptions:
    """The server's settings for conversion.

    Attributes:
        mode: used if neither pod, namespace nor policy sets one.
        device_class: DeviceClass of generated requests.
        excluded_namespaces: namespaces whose pods are not changed.
        hint_toleration: whether to add the toleration of the Neuron taint.
        hint_affinity: whether to require the instance types that can serve the pod.
        hint_scheduler: whether to replace the scheduler names of the scheduler extension.
        on_template_failure: `deny` or `admit` a pod whose template cannot be created.
    """

    mode: str = Mode.CONVERT
    device_class: str = names.DEVICE_CLASS
    excluded_namespaces: frozenset[str] = frozenset({"kube-system"})
    hint_toleration: bool = True
    hint_affinity: bool = True
    hint_scheduler: bool = True
    on_template_failure: str = "deny"


@dataclasses.dataclass(frozen=True, slots=True)
class ConversionContext:
    """Settings of the server and facts about the cluster. Replaced when they change.

    Attributes:
        catalogue: instance types, completed by ResourceSlices.
        families: families seen in ResourceSlices; None if none was ever seen.
        extended_resources: `extendedResourceName` -> DeviceClass (KEP-5004).
        options: the server's settings.
    """

    catalogue: Catalogue
    families: tuple[str, ...] | None
    extended_resources: Mapping[str, str]
    options: ConversionOptions


def conversion_context(options: ConversionOptions, catalogue: Catalogue, cluster: ClusterView) -> ConversionContext:
    """The context by the current state of the cluster's caches."""
    observations = cluster.observations()
    known = catalogue.observed(observations)
    seen = {entry.family for entry in known if entry.name in observations}
    families = tuple(family for family in known.families() if family in seen) or None
    return ConversionContext(known, families, dict(cluster.extended_resources()), options)
