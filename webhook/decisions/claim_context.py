"""Makes the context for checks of claims from the settings and the cluster's caches."""

import dataclasses

from neuron.device_shapes import catalogue_shapes
from neuron.instances import Catalogue
from neuron.selection import DeviceIndex
from neuron.validate_claims import ClaimContext
from policies.selectors.engine import DeviceSelectors, JudgedSelectors
from webhook.decisions.conversion_context import ConversionOptions
from webhook.decisions.ports import DeviceView


def claim_context(options: ConversionOptions, catalogue: Catalogue, cluster: DeviceView) -> ClaimContext:
    """Build the context.

    Args:
        options: the server's settings.
        catalogue: instance types, completed by ResourceSlices.
        cluster: the caches.
    """
    classes = cluster.device_classes()
    return ClaimContext(
        catalogue,
        DeviceIndex([*catalogue_shapes(catalogue), *cluster.device_shapes()]),
        DeviceSelectors(),
        classes or {},
        classes is not None,
        options.device_class,
        memory=JudgedSelectors(),
    )


def for_one_object(context: ClaimContext) -> ClaimContext:
    """The same facts with a new engine, whose time limit is for one object."""
    return dataclasses.replace(context, engine=DeviceSelectors())
