"""What claims are judged against, made of the settings and of what the cluster knows."""

from neuron.device_shapes import catalogue_shapes
from neuron.instances import Catalogue
from neuron.selection import DeviceIndex
from neuron.validate_claims import ClaimWorld
from policies.selectors.engine import DeviceSelectors, JudgedSelectors
from webhook.decisions.ports import ClaimView
from webhook.decisions.world import ConversionOptions


def claim_world(options: ConversionOptions, catalogue: Catalogue, cluster: ClaimView) -> ClaimWorld:
    """What claims are judged by.

    Args:
        options: the server's settings.
        catalogue: with what was observed.
        cluster: what it publishes.
    """
    classes = cluster.device_classes()
    return ClaimWorld(
        catalogue,
        DeviceIndex([*catalogue_shapes(catalogue), *cluster.device_shapes()]),
        DeviceSelectors(),
        classes or {},
        classes is not None,
        options.device_class,
        memory=JudgedSelectors(),
    )
