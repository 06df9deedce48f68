"""The settings of a cluster with Trainium nodes, for tests that are not about which types there are."""

from typing import Any

from conversion.asks.conversion_context import ConversionOptions
from neuron.hardware.instances import DEFAULT_FAMILIES

ENVIRONMENT = {"NEURON_DRA_FAMILIES": ",".join(DEFAULT_FAMILIES)}
"""The same for commands."""


def trainium(**options: Any) -> ConversionOptions:
    """The settings, with the Trainium families as those of the cluster unless `families` says others."""
    return ConversionOptions(**{"families": DEFAULT_FAMILIES, **options})
