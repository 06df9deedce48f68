"""What conversion depends on besides the pod: the server's settings, and what the cluster knows."""

import dataclasses
from collections.abc import Mapping

from neuron import names
from neuron.instances import Catalogue
from webhook.decisions.modes import Mode
from webhook.decisions.ports import ClusterView


@dataclasses.dataclass(frozen=True, slots=True)
class ConversionOptions:
    """The server's settings that decide about conversion.

    Attributes:
        mode: what to do where neither pod nor namespace says.
        device_class: DeviceClass that generated claims request from.
        excluded_namespaces: namespaces whose pods are never touched.
        hint_toleration: whether to add the toleration of the Neuron taint.
        hint_affinity: whether to require the instance types that can serve the pod.
        hint_scheduler: whether to replace the scheduler extension's scheduler names.
        on_template_failure: `deny` or `admit`: what becomes of a pod whose template cannot be made.
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
    """What is known outside the pod and its namespace; replaced as a whole when it changes.

    Attributes:
        catalogue: instance types, with what slices told of them.
        families: families seen in ResourceSlices; None where none ever was.
        extended_resources: `extendedResourceName` -> DeviceClass (KEP-5004).
        options: the server's settings.
    """

    catalogue: Catalogue
    families: tuple[str, ...] | None
    extended_resources: Mapping[str, str]
    options: ConversionOptions


def conversion_context(options: ConversionOptions, catalogue: Catalogue, cluster: ClusterView) -> ConversionContext:
    """The world as the cluster knows it now."""
    observations = cluster.observations()
    known = catalogue.observed(observations)
    seen = {entry.family for entry in known if entry.name in observations}
    families = tuple(family for family in known.families() if family in seen) or None
    return ConversionContext(known, families, dict(cluster.extended_resources()), options)
