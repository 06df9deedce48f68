"""Finds what the scheduler refuses although devices are free, and what costs it seconds.

Attributes of constraints that no admitted, or no published device has, come first. Findings about requests are all
warnings. Source: the structured allocator of Kubernetes 1.36, see docs/topology.md. NEU542 estimates its search by the
counts of the requests, the devices that they can match, and the groups in which they must be
(`neuron.allocator.search_cost`), for a node of which all devices are free but one, or so many that one is missing.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from checks.claims.connections import fewest_devices, first_devices, group_size
from checks.claims.device_index import DeviceIndex
from checks.claims.selectors import attribute_label, unknown_attribute
from neuron import names
from neuron.allocator.search_cost import ANY, MOST_STEPS, Choice, beside, steps, tries
from neuron.api.claim_reader import value_text
from neuron.api.claim_specs import ClaimSpec, Leaf
from neuron.api.configs import covers
from neuron.findings import Finding, short, warning
from neuron.hardware.instances import Catalogue, InstanceType

_MOST_COMPARED: Final = 8
"""Attributes of one claim that are compared with the known ones, 0.2 ms each. The others get no hint."""
_PART: Final = 3
"""Devices of each request, in the advice to divide a request. Parts of four of a node with 16 devices cost 1 s."""


def check_scheduling(
    claim: ClaimSpec, leaves: Sequence[Leaf], index: DeviceIndex, catalogue: Catalogue
) -> list[Finding]:
    """NEU540, NEU541 and NEU542.

    Args:
        leaves: its requests, with the shapes that they can match.
    """
    found = [finding for leaf in leaves for finding in _admin(leaf, index)]
    return [*found, *_search(claim, leaves, index, catalogue), *_constraints(claim, leaves, index)]


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


def _search(claim: ClaimSpec, leaves: Sequence[Leaf], index: DeviceIndex, catalogue: Catalogue) -> Iterable[Finding]:
    """NEU542, at most once for each request, or once for the claim."""
    # One without a count has another finding.
    searched = [leaf for leaf in leaves if leaf.devices.count and not leaf.devices.admin_access]
    types = dict.fromkeys(name for leaf in searched for name in index.types(_real(leaf.mask, index)))
    entries = [entry for name in types if (entry := catalogue.get(name)) is not None and entry.devices is not None]
    if len(searched) == 1 and all(_is_short(searched[0], entry) for entry in entries):
        return ()
    found = [finding for leaf in searched for finding in _alone(leaf, index, entries)]
    return found or _together(claim, searched, index, entries)


def _is_short(leaf: Leaf, entry: InstanceType) -> bool:
    """Whether one request is quick to search for, wherever its groups are: each device begins at most one of them."""
    return (entry.devices or 0) * tries(leaf.devices.count, orders=entry.may_try_orders) <= MOST_STEPS


def _real(mask: int, index: DeviceIndex) -> int:
    """The shapes of a mask that are published, if any is."""
    return (mask & index.published) or mask


def _alone(leaf: Leaf, index: DeviceIndex, entries: Iterable[InstanceType]) -> Iterable[Finding]:
    """A request that is too long to search for by itself."""
    count = leaf.devices.count
    types = index.types(_real(leaf.mask, index))
    for entry in entries:
        orders = entry.may_try_orders
        # Other checks refuse a count above the devices of the type.
        if entry.name in types and count <= (entry.devices or 0) and tries(count, orders=orders) > MOST_STEPS:
            message = (
                f"one request for {count} devices costs the scheduler seconds on a node of {entry.name} where they are"
                f" not all free: it tries them {_how(orders=orders)}."
            )
            yield warning("NEU542", leaf.path, message, _fix(leaf), str(count))
            return


def _together(
    claim: ClaimSpec, leaves: Sequence[Leaf], index: DeviceIndex, entries: Iterable[InstanceType]
) -> Iterable[Finding]:
    """Requests that are too long to search for together: each is tried again for all ways to allocate those before."""
    for entry in entries:
        orders = entry.may_try_orders
        if _steps(claim, leaves, index, entry) > MOST_STEPS and not _is_short_run(leaves, index, entry):
            counts = " + ".join(str(leaf.devices.count) for leaf in leaves[:8]) + (" + …" if len(leaves) > 8 else "")
            message = (
                f"the requests for {counts} devices together cost the scheduler seconds on a node of {entry.name} where"
                f" one of them does not fit: it tries the devices {_how(orders=orders)}, and each request again for all"
                " ways to allocate those before it."
            )
            yield warning("NEU542", f"{claim.path}.requests", message, _fix(leaves[0]), counts)
            return


def _is_short_run(leaves: Sequence[Leaf], index: DeviceIndex, entry: InstanceType) -> bool:
    """Whether the first two requests select sets that overlap, so that few of them are free together, by device ids.

    The requests after them are for single devices.
    """
    by_request: dict[str, list[Leaf]] = {}
    for leaf in leaves:
        if leaf.mask & index.of_type(entry.name):
            by_request.setdefault(leaf.request, []).append(leaf)
    requests = list(by_request.values())
    sets = []
    for request in requests[:2]:
        # What the API server allows. More of them, which it refuses, take exponential time.
        tried = request[: names.MAX_FIRST_AVAILABLE]
        ids = [index.ids(leaf.mask, entry.name) for leaf in tried]
        if any(len(each) != leaf.devices.count for each, leaf in zip(ids, tried, strict=True)):
            return False
        sets.append(tuple(ids))
    if len(sets) < 2 or any(leaf.devices.count > 1 for request in requests[2:] for leaf in request):
        return False
    runs = tuple({one | other for one in sets[0] for other in sets[1] if not one & other})
    choices = [Choice(len(each[0]), len(each)) for each in sets]
    choices[1] = dataclasses.replace(choices[1], beside=beside(*sets, runs))
    choices += [Choice(1, 1, kind=ANY)] * len(requests[2:])
    return steps(choices, orders=entry.may_try_orders) <= MOST_STEPS


def _how(*, orders: bool) -> str:
    return "in every order (Kubernetes 1.34 and 1.35)" if orders else "in all subsets"


def _fix(leaf: Leaf) -> str:
    request = (
        f"{{name: n0, exactly: {{deviceClassName: {short(leaf.devices.device_class)}, count: {_PART}, selectors:"
        f' [{{cel: {{expression: "{_ids(range(_PART))}"}}}}]}}}}'
    )
    return f"Write requests for {_PART} devices each: {request}, and so on."


def _steps(claim: ClaimSpec, leaves: Sequence[Leaf], index: DeviceIndex, entry: InstanceType) -> int:
    """The most steps of a search on a node of a type; 0 if the claim cannot be on one."""
    orders = entry.may_try_orders
    ways_of = math.perm if orders else math.comb
    of_type = index.of_type(entry.name)
    masks = {id(leaf): leaf.mask & of_type for leaf in leaves}
    most = spent = 0
    ways = 1
    taken: list[tuple[int, int]] = []
    tied = [frozenset(each.requests) for each in claim.constraints if group_size(each.match_attribute)]
    before: set[frozenset[str]] = set()
    for request in dict.fromkeys(leaf.request for leaf in leaves):
        here = [leaf for leaf in leaves if leaf.request == request and masks[id(leaf)]]
        if not here:
            return 0
        missing = found = walked = 0
        for leaf in here:
            count, mask = leaf.devices.count, masks[id(leaf)]
            pool = index.devices(mask, entry.name)
            group = _group(claim, leaf, mask, index, entry)
            alike = sum(other.devices.count for other in leaves if masks[id(other)] == mask and not group)
            # Of requests for any of the same devices, the last one lacks a device.
            free = min(group or pool, alike - 1 if alike > count else pool)
            free = max(free - sum(amount for other, amount in taken if other == mask and not group), 0)
            # The group of an earlier request is its group, too.
            follows = any(covers(each, leaf.devices.reference) for each in before)
            places = max(1, pool // group) if group and not follows else 1
            missing += places * tries(count, orders=orders)
            if free >= count:
                found += places * ways_of(free, count)
                walked += places * sum(ways_of(free, number) for number in range(1, count + 1))
        most = max(most, spent + ways * missing)
        if most > MOST_STEPS or not found:
            return most
        spent += ways * walked
        ways *= found
        taken += [(masks[id(leaf)], leaf.devices.count) for leaf in here[:1]]
        before.update(each for each in tied if any(covers(each, leaf.devices.reference) for leaf in here))
    return most


def _group(claim: ClaimSpec, leaf: Leaf, mask: int, index: DeviceIndex, entry: InstanceType) -> int:
    """Devices of the smallest group in which a request must be; 0 if that is no fewer than it can match."""
    pool = index.devices(mask, entry.name)
    sizes = [
        size
        for each in claim.constraints
        if covers(frozenset(each.requests), leaf.devices.reference)
        and (largest := group_size(each.match_attribute))
        # Of a group, its selector may match a part.
        and leaf.devices.count <= (size := index.groups(mask, each.match_attribute, entry.name) or largest) < pool
    ]
    return min(sizes, default=0)


def check_attributes(claim: ClaimSpec, leaves: Sequence[Leaf], index: DeviceIndex) -> list[Finding]:
    """NEU523, NEU529 and NEU538: attributes of constraints that no admitted, or no published device has."""
    found = []
    unpublished: dict[str, list[Finding]] = {leaf.devices.reference: [] for leaf in leaves}
    meant: dict[str, str | None] = {}
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
            faults = _check_attribute(attribute, path, covered, index, meant)
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


def _check_attribute(
    attribute: str, path: str, covered: Sequence[Leaf], index: DeviceIndex, meant: dict[str, str | None]
) -> list[Finding]:
    """NEU523 and NEU529. `meant` gets, and gives, the known attributes that those of this claim mean."""
    if "/" not in attribute:
        full = next((name for name in sorted(index.attributes()) if name.rpartition("/")[2] == attribute), "")
        fix = f"Write {full}." if full else f"Write it with its domain, such as {names.DRIVER}/{attribute[:32]}."
        return [Finding("NEU529", path, f"attribute {value_text(attribute)} has no domain.", fix, attribute)]
    having = index.with_attribute(attribute)
    lacking = [leaf for leaf in covered if leaf.mask and not leaf.mask & having]
    if not lacking:
        return []
    if attribute not in meant and len(meant) < _MOST_COMPARED:
        meant[attribute] = unknown_attribute(attribute, index)
    known = meant.get(attribute)
    if known:
        message = f"no Neuron device has the attribute {value_text(attribute)}. Did you mean '{known}'?"
        return [Finding("NEU523", path, message, f"Write {known}.", attribute)]
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
