"""Reports requests with `adminAccess`: they get devices that other claims hold (KEP-5018)."""

from collections.abc import Iterator, Sequence

from neuron.api.claim_specs import Leaf
from neuron.findings import Finding, warning


def check_admin_access(leaves: Sequence[Leaf]) -> Iterator[Finding]:
    """NEU544. Alternatives have no such field: the API server drops it."""
    for leaf in leaves:
        if leaf.devices.admin_access and "/" not in leaf.devices.reference:
            message = "adminAccess gives its containers Neuron devices that other claims hold."
            fix = (
                "Keep it to monitoring, in a namespace of the chart's adminAccess.namespaces: elsewhere the driver"
                " refuses it."
            )
            yield warning("NEU544", f"{leaf.devices.path}.adminAccess", message, fix, "true")
