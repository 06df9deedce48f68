"""Makes the context for checks of claims from the settings and the cluster's caches."""

from typing import Protocol

from msgspec import structs

from checks.claims.device_index import DeviceIndex
from checks.claims.judging import ClaimContext
from cluster.answers import ServerView
from conversion.asks.conversion_context import ConversionOptions
from neuron.hardware.device_shapes import catalogue_shapes
from neuron.hardware.instances import Catalogue
from policies.selectors.engine import DeviceSelectors, ExpressionMemory


class ClaimPolicies(Protocol):
    """What policies set for every claim: a claim does not name its policy."""

    @property
    def unconnected(self) -> bool:
        """Whether counts that cannot be connected are allowed."""

    @property
    def network_classes(self) -> frozenset[str]:
        """DeviceClasses of EFA interfaces."""


def claim_context(
    options: ConversionOptions, catalogue: Catalogue, cluster: ServerView, policies: ClaimPolicies | None = None
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
        memory=ExpressionMemory(),
    )
    if policies is None:
        return context
    return structs.replace(context, unconnected=policies.unconnected, network_classes=policies.network_classes)
