"""What pods and claims are judged against, made of the settings and of what the cluster knows."""

from neuron.device_shapes import catalogue_shapes
from neuron.instances import Catalogue
from neuron.selection import DeviceIndex
from neuron.validate_claims import ClaimWorld
from webhook.convert_pods import ConversionOptions, World
from webhook.device_selectors import DeviceSelectors
from webhook.ports import ClaimView, ClusterView


def conversion_world(options: ConversionOptions, catalogue: Catalogue, cluster: ClusterView) -> World:
    """What conversion is decided by."""
    observations = cluster.observations()
    known = catalogue.observed(observations)
    seen = {entry.family for entry in known if entry.name in observations}
    families = tuple(family for family in known.families() if family in seen) or None
    return World(known, families, dict(cluster.extended_resources()), options)


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
    )
