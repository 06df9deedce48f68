"""Checks attributes of constraints against the devices that the requests can match."""

from collections.abc import Mapping, Sequence

from checks.claims.connections import first_devices, group_size
from checks.claims.device_index import DeviceIndex
from checks.claims.selectors import attribute_label, unknown_attribute
from neuron import names
from neuron.api.claim_reader import value_text
from neuron.api.claim_specs import ClaimSpec, Leaf
from neuron.api.configs import covers
from neuron.findings import Finding, short, warning


def check_attributes(claim: ClaimSpec, leaves: Sequence[Leaf], index: DeviceIndex) -> list[Finding]:
    """NEU523, NEU529 and NEU538: attributes of constraints that no admitted, or no published device has."""
    found = []
    unpublished: dict[str, list[Finding]] = {leaf.devices.reference: [] for leaf in leaves}
    for constraint in claim.constraints:
        requests = frozenset(constraint.requests)
        covered = [leaf for leaf in leaves if covers(requests, leaf.devices.reference)]
        for field, attribute in (
            ("matchAttribute", constraint.match_attribute),
            ("distinctAttribute", constraint.distinct_attribute),
        ):
            if not attribute or not covered:
                continue
            path = f"{constraint.path}.{field}"
            faults = _check_attribute(attribute, path, covered, index)
            found += faults
            for leaf in covered if not faults else ():
                unpublished[leaf.devices.reference] += _check_published(attribute, path, leaf, index)
    return found + _of_whole_requests(claim, leaves, unpublished, index)


def _of_whole_requests(
    claim: ClaimSpec, leaves: Sequence[Leaf], unpublished: Mapping[str, list[Finding]], index: DeviceIndex
) -> list[Finding]:
    """The findings about requests of which no alternative can be allocated now: those of one alternative."""
    by_path: dict[str, Finding] = {}
    for request in claim.requests:
        own = [leaf for leaf in leaves if leaf.request == request.name]
        works = (leaf.mask & index.published and not unpublished[leaf.devices.reference] for leaf in own)
        if len(own) < len(request.alternatives) or any(works):
            continue
        first = next((found for leaf in own if (found := unpublished[leaf.devices.reference])), ())
        for each in first:
            by_path.setdefault(each.path, each)
    return list(by_path.values())


def _check_attribute(attribute: str, path: str, covered: Sequence[Leaf], index: DeviceIndex) -> list[Finding]:
    if "/" not in attribute:
        full = next((name for name in sorted(index.attributes()) if name.rpartition("/")[2] == attribute), "")
        fix = f"Write {full}." if full else f"Write it with its domain, such as {names.DRIVER}/{attribute[:32]}."
        return [Finding("NEU529", path, f"attribute {value_text(attribute)} has no domain.", fix, attribute)]
    having = index.with_attribute(attribute)
    lacking = [leaf for leaf in covered if leaf.mask and not leaf.mask & having]
    if not lacking:
        return []
    meant = unknown_attribute(attribute, index)
    if meant:
        message = f"no Neuron device has the attribute {value_text(attribute)}. Did you mean '{meant}'?"
        return [Finding("NEU523", path, message, f"Write {meant}.", attribute)]
    if not having:
        message = f"no known Neuron device has the attribute {attribute_label(attribute)[:48]}."
        fix = "A device without it is never chosen."
        return [warning("NEU523", path, message, fix, attribute)]
    types = index.types(lacking[0].mask)
    message = f"no device of {types[0]} has the attribute {short(attribute)}, and it is the only type admitted."
    if len(types) > 1:
        others = len(types) - 1
        message = f"no device of {types[0]} and the {others} other types admitted has the attribute {short(attribute)}."
    fix = f"Drop the constraint, or select a type such as {index.types(having)[0]}."
    if attribute.startswith(names.STANDARD_DOMAIN):
        # Whether a node has it depends on what its sysfs tells the driver, and not on its type alone.
        return [warning("NEU523", path, message, fix, attribute)]
    return [Finding("NEU523", path, message, fix, attribute)]


def _check_published(attribute: str, path: str, leaf: Leaf, index: DeviceIndex) -> list[Finding]:
    """NEU538: the cluster's driver does not publish an attribute that others publish for these types."""
    having = index.with_attribute(attribute)
    published = leaf.mask & index.published
    if not published or published & having:
        return []
    name = index.types(published)[0]
    message = f"no device of {name} that the cluster publishes now has the attribute {attribute_label(attribute)}."
    fix = "Pods wait until a node's driver publishes it."
    size = group_size(attribute)
    if size and name in index.types(having):
        # AWS's own driver publishes no windows.
        fix = f"The driver there may be AWS's: select by device id, such as {first_devices(size)}."
    return [warning("NEU538", path, message, fix, attribute)]
