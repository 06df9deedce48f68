"""Checks the EFA interfaces that a user's claim ties to Neuron devices by a device group.

The group has a known number of interfaces (`neuron.hardware.device_groups`), so more can never agree with its
devices. It is not known for DeviceClasses of other drivers, and for instance types without a published map.
"""

from collections.abc import Collection, Iterable

from neuron.api.claim_specs import ClaimSpec, Constraint, DeviceRequest
from neuron.api.configs import covers
from neuron.findings import Finding
from neuron.hardware import device_groups


def tied_interfaces(claim: ClaimSpec, constraint: Constraint, network_classes: Collection[str]) -> int:
    """The smallest number of EFA interfaces that must agree on the constraint's attribute."""
    named = frozenset(constraint.requests)

    def needed(alternative: DeviceRequest) -> int:
        if alternative.device_class not in network_classes or not covers(named, alternative.reference):
            return 0
        if alternative.admin_access:
            return 0
        return 1 if alternative.everything else alternative.count

    return sum(min(map(needed, request.alternatives), default=0) for request in claim.requests)


def check_interfaces(constraint: Constraint, size: int, wanted: int, types: Iterable[str]) -> list[Finding]:
    """NEU543 if no type's group has so many interfaces.

    Args:
        size: devices of the group.
        wanted: interfaces that must agree on it.
        types: instance types on which the claim's Neuron devices fit into one group.
    """
    most = {name: device_groups.interfaces(name, size) for name in types}
    if not most or not all(most.values()) or wanted <= max(most.values()):
        return []
    name = max(most, key=lambda each: most[each])
    message = (
        f"{wanted} EFA interfaces must agree on {constraint.match_attribute} with the Neuron devices, and"
        f" {device_groups.described(name, size)}."
    )
    return [
        Finding("NEU543", f"{constraint.path}.matchAttribute", message, f"Request at most {most[name]}.", str(wanted))
    ]
