"""Finds requests that the scheduler refuses although devices are free, or that cost it seconds. All are warnings.

Source: the structured allocator of Kubernetes 1.36, see docs/topology.md.
"""

from collections.abc import Iterable, Sequence

from neuron import names
from neuron.api.claim_specs import ClaimSpec, Leaf
from neuron.api.configs import covers
from neuron.check.connections import fewest_devices, group_size
from neuron.check.device_index import DeviceIndex
from neuron.check.search import check_search
from neuron.findings import Finding, short, warning
from neuron.hardware.instances import Catalogue


def check_scheduling(
    claim: ClaimSpec, leaves: Sequence[Leaf], index: DeviceIndex, catalogue: Catalogue
) -> list[Finding]:
    """NEU540, NEU541 and NEU542.

    Args:
        leaves: its requests, with the shapes that they can match.
    """
    found = [finding for leaf in leaves for finding in _admin(leaf, index)]
    return [*found, *check_search(claim, leaves, index, catalogue), *_constraints(claim, leaves, index)]


def _admin(leaf: Leaf, index: DeviceIndex) -> Iterable[Finding]:
    counted = leaf.mask & index.counted
    if not (counted and leaf.devices.admin_access):
        return
    (instance_type, *_) = index.types(counted)
    message = (
        f"adminAccess waits for devices that no claim holds on {instance_type}, because they consume shared counters"
        " (kubernetes#140729)."
    )
    fix = f'Exclude such nodes: device.attributes["{names.DRIVER}"].instanceType != "{instance_type}".'
    yield warning("NEU540", f"{leaf.devices.path}.adminAccess", message, fix, "true")


def _constraints(claim: ClaimSpec, leaves: Sequence[Leaf], index: DeviceIndex) -> list[Finding]:
    found: list[Finding] = []
    if not index.counted:
        return found
    for constraint in claim.constraints:
        size, requests = group_size(constraint.match_attribute), frozenset(constraint.requests)
        covered = [leaf for leaf in leaves if covers(requests, leaf.devices.reference)]
        counted = index.everything & index.counted
        for leaf in covered:
            counted &= leaf.mask
        wanted = sum(fewest_devices(covered).values())
        types = [name for name in index.types(counted) if index.devices(counted, name) > max(wanted, size)]
        if size < 2 or wanted < 2 or not types:
            continue
        message = (
            f"up to Kubernetes 1.36.2, {short(constraint.match_attribute)} is refused on a node of {types[0]} if one of"
            " its devices is in use, because they consume shared counters (kubernetes#140436)."
        )
        fix = f"List an alternative for each group, with a selector such as: {_ids(range(size))}."
        path = f"{constraint.path}.matchAttribute"
        found.append(warning("NEU541", path, message, fix, constraint.match_attribute))
    return found


def _ids(ids: Iterable[int]) -> str:
    """CEL that selects devices by id, with single quotes."""
    listed = ", ".join(map(str, ids))
    return f"device.attributes['{names.DRIVER}'].?{names.ATTRIBUTE_DEVICE_ID}.orValue(-1) in [{listed}]"
