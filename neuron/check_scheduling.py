"""Finds requests that the scheduler refuses although devices are free, or that cost it seconds. All are warnings.

Source: the structured allocator of Kubernetes 1.36, see docs/topology.md.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from neuron import names
from neuron.check_connections import fewest_devices, group_size
from neuron.claim_specs import ClaimSpec, Leaf
from neuron.configs import covers
from neuron.findings import Finding, short, warning
from neuron.instances import Catalogue, InstanceType
from neuron.search_cost import MOST_STEPS, tries
from neuron.selection import DeviceIndex

PART: Final = 4
"""Devices of each request, in the advice to divide a request."""


def check_scheduling(
    claim: ClaimSpec, leaves: Sequence[Leaf], index: DeviceIndex, catalogue: Catalogue
) -> list[Finding]:
    """NEU540, NEU541 and NEU542.

    Args:
        claim: the claim.
        leaves: its requests, with the shapes that they can match.
        index: the devices that exist.
        catalogue: instance types.
    """
    found = [finding for leaf in leaves for finding in (*_admin(leaf, index), *_long_search(leaf, index, catalogue))]
    return found + _constraints(claim, leaves, index)


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
    found = []
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


def _long_search(leaf: Leaf, index: DeviceIndex, catalogue: Catalogue) -> Iterable[Finding]:
    """NEU542: a request for so many devices that the search for them is long where some are in use."""
    count = leaf.devices.count
    if tries(count, orders=True) <= MOST_STEPS or leaf.devices.admin_access or leaf.devices.everything:
        return
    types = index.types((leaf.mask & index.published) or leaf.mask)
    entries = [entry for name in types if (entry := catalogue.get(name)) is not None]
    slow = next((entry for entry in entries if _is_long(count, entry)), None)
    if slow is None:
        return
    message = (
        f"one request for {count} devices costs the scheduler seconds on a node of {slow.name} where they are not all"
        " free: it tries them in every order (Kubernetes 1.34 and 1.35), or all subsets."
    )
    device_class = short(leaf.devices.device_class)
    request = (
        f"{{name: n0, exactly: {{deviceClassName: {device_class}, count: {PART}, selectors: [{{cel:"
        f' {{expression: "{_ids(range(PART))}"}}}}]}}}}'
    )
    fix = f"Write requests for {PART} devices each: {request}, and so on."
    yield warning("NEU542", leaf.path, message, fix, str(count))


def _is_long(count: int, entry: InstanceType) -> bool:
    """Whether a node of a type can have so many free devices that the search for `count` is long."""
    if entry.devices is None or count > entry.devices:
        return False  # other checks refuse it
    if entry.shares_cores:
        # Shares came with 1.36, which tries subsets. It costs most to find that one device of the node is in use.
        return count == entry.devices
    return True


def _ids(ids: Iterable[int]) -> str:
    """CEL that selects devices by id, with single quotes."""
    listed = ", ".join(map(str, ids))
    return f"device.attributes['{names.DRIVER}'].?{names.ATTRIBUTE_DEVICE_ID}.orValue(-1) in [{listed}]"
