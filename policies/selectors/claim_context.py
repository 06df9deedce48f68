"""Makes the context for checks of claims from the settings and the cluster's caches."""

from collections.abc import Mapping
from typing import Protocol

from msgspec import structs

from checks.claims.device_index import DeviceIndex
from checks.claims.judging import ClaimContext
from conversion.asks.conversion_context import ConversionOptions
from conversion.facts import DeviceView
from neuron.hardware.device_shapes import catalogue_shapes
from neuron.hardware.instances import Catalogue, Observation
from policies.selectors.engine import BoundedJudgedSelectors, DeviceSelectors


class ClaimPolicies(Protocol):
    """What policies set for every claim: a claim does not name its policy."""

    @property
    def unconnected(self) -> bool:
        """Whether counts that cannot be connected are allowed."""

    @property
    def network_classes(self) -> frozenset[str]:
        """DeviceClasses of EFA interfaces."""


class DevicesAndTypes(DeviceView, Protocol):
    """Devices, and the instance types that the cluster has."""

    def observations(self) -> Mapping[str, Observation]:
        """Instance types ever seen in ResourceSlices or on Nodes, by name."""


def claim_context(
    options: ConversionOptions, catalogue: Catalogue, cluster: DevicesAndTypes, policies: ClaimPolicies | None = None
) -> ClaimContext:
    """Build the context.

    Args:
        catalogue: instance types, completed by ResourceSlices.
        policies: those in force; None without policies.
    """
    classes = cluster.device_classes()
    context = ClaimContext(
        catalogue,
        DeviceIndex([*catalogue_shapes(catalogue), *cluster.device_shapes()], cluster.observations()),
        DeviceSelectors(),
        classes or {},
        classes is not None,
        options.device_class,
        memory=BoundedJudgedSelectors(),
    )
    if policies is None:
        return context
    return structs.replace(context, unconnected=policies.unconnected, network_classes=policies.network_classes)
