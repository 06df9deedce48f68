"""Checks the number of devices that a claim requests against what one node of an admitted type has and connects.

A claim is allocated on one node. For claims that users write, only counts that can never work are errors: those that
the Neuron scheduler extension excludes for Trn1, unless a group connects them, and more devices than the node or the
group has. A container that requests cores needs fewer devices than its group has.
"""

import functools
import operator
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from checks.claims.connections import (
    Combination,
    Connections,
    connecting,
    every_allocation,
    fewest_devices,
    group_size,
    is_run,
    is_whole,
)
from checks.claims.device_index import DeviceIndex
from neuron import names
from neuron.api.claim_specs import ClaimSpec, Constraint, DeviceRequest, Leaf
from neuron.api.configs import covers
from neuron.findings import Finding, nearest, short, warning
from neuron.hardware import device_groups
from neuron.hardware.instances import Catalogue, InstanceType, Topology

_RULED_FAMILIES: Final = ("trn1", "trn1n")
"""Families with documented counts. For other types with several devices, no document excludes a count."""


class CountRules:
    """Checks the counts of one claim."""

    def __init__(
        self,
        claim: ClaimSpec,
        leaves: Sequence[Leaf],
        index: DeviceIndex,
        catalogue: Catalogue,
        *,
        unconnected: bool = False,
        network_classes: Collection[str] = (),
    ) -> None:
        self._unconnected = unconnected
        self._network_classes = network_classes
        self._claim = claim
        self._index = index
        self._catalogue = catalogue
        self._constraints = [(each, frozenset(each.requests)) for each in claim.constraints]
        self._unconstrained = list(leaves)
        self.leaves = [Leaf(leaf.devices, leaf.request, self._constrained(leaf)) for leaf in self._unconstrained]
        self._sums = _sums(self.leaves, index.most_devices)
        self._connections = Connections(claim, self.leaves, index, catalogue)

    def _constrained(self, leaf: Leaf) -> int:
        """The allocator cannot choose a device without the attribute of a constraint."""
        mask = leaf.mask
        for constraint in (each for each, requests in self._constraints if covers(requests, leaf.devices.reference)):
            for attribute in (constraint.match_attribute, constraint.distinct_attribute):
                if attribute:
                    mask &= self._index.with_attribute(attribute)
        return mask

    def findings(self) -> list[Finding]:
        """All findings about counts; at most one for each count."""
        found: list[Finding] = []
        for leaf, unconstrained in zip(self.leaves, self._unconstrained, strict=True):
            if leaf.devices.admin_access:
                continue
            if leaf.mask:
                found += self._check_leaf(leaf)
            elif unconstrained.mask:
                # No device has the attribute of its constraint, which is another finding: both are to be mended.
                found += self._check_number(unconstrained)
        if found:
            found = self._spare_alternatives(found)
            if any(finding.code in ("NEU520", "NEU521") for finding in found):
                return found
        unconnectable = self._check_constraints()
        if unconnectable:
            # NEU524 and NEU525 suggest a constraint; NEU522 says that this constraint cannot be satisfied.
            found = [finding for finding in found if finding.code not in ("NEU524", "NEU525")]
        return [*found, *unconnectable, *self._check_node()]

    # --- one request --------------------------------------------------------------------------------------------

    def _check_leaf(self, leaf: Leaf) -> list[Finding]:
        count = leaf.devices.count
        if not count:
            return []
        too_many = self._check_number(leaf)
        if too_many:
            return too_many
        index = self._index
        if not leaf.mask & ~index.whole_nodes:
            return []
        sums = [count + others for others in self._sums[leaf.request] if count + others <= index.most_devices]
        capable = index.types_with(leaf.mask, count)
        excluded = not self._unconnected and all(_is_excluded(self._catalogue, name, sums) for name in capable)
        if excluded and not self._connections.is_tied(leaf):
            return [_unsupported(self._catalogue, "NEU520", leaf.path, count, capable)]
        return self._connections.check(leaf, sums)

    def _check_number(self, leaf: Leaf) -> list[Finding]:
        """NEU521: a request for more devices than any node has."""
        index = self._index
        if index.types_with(leaf.mask, leaf.devices.count):
            return []
        most = max(index.types(leaf.mask), key=lambda name: index.devices(leaf.mask, name))
        return [self._too_many(leaf, most, index.devices(leaf.mask, most))]

    def _too_many(self, leaf: Leaf, instance_type: str, available: int) -> Finding:
        count, index = leaf.devices.count, self._index
        has = index.devices(index.of_type(instance_type), instance_type)
        if available != has:
            what = f"the selectors match {available} on a node of {instance_type}"
        elif len(index.types(leaf.mask)) > 1:
            what = f"no admitted instance type has more than {available}"
        else:
            what = f"a node of {instance_type} has {available}"
        message = f"{count} devices are requested, and {what}."
        return Finding("NEU521", leaf.path, message, f"Request {available} or fewer.", str(count))

    def _spare_alternatives(self, found: list[Finding]) -> list[Finding]:
        """NEU528 instead of NEU521: a request works as long as one of its alternatives does."""
        dead = {finding.path: place for place, finding in enumerate(found) if finding.code == "NEU521"}
        spared = list(found)
        alternatives: dict[str, list[Leaf]] = {}
        for leaf in self.leaves:
            if "/" in leaf.devices.reference:
                alternatives.setdefault(leaf.request, []).append(leaf)
        for request in self._claim.requests:
            mine = alternatives.get(request.name, ())
            failing = [leaf for leaf in mine if leaf.path in dead]
            if not failing or len(failing) == len(request.alternatives):
                continue
            for leaf in failing:
                finding = found[dead[leaf.path]]
                message = f"alternative {leaf.devices.reference[:40]} is never chosen: {finding.message}"
                spared[dead[leaf.path]] = warning("NEU528", leaf.path, message, finding.fix, finding.value)
        return spared

    # --- several requests ---------------------------------------------------------------------------------------

    def _check_constraints(self) -> list[Finding]:
        found = []
        for constraint, requests in self._constraints:
            covered = [leaf for leaf in self.leaves if covers(requests, leaf.devices.reference)]
            if constraint.match_attribute and covered and all(leaf.mask for leaf in covered):
                found += self._check_group(constraint, covered)
        return found

    def _check_group(self, constraint: Constraint, covered: Sequence[Leaf]) -> list[Finding]:
        """NEU522: more devices must agree on an attribute than any node has with one value of it. Also NEU543."""
        attribute, index = constraint.match_attribute, self._index
        together = _together(leaf.mask for leaf in covered)
        sizes = {
            name: (index.groups(together, attribute, name), self._least(covered, name))
            for name in index.types(together)
        }
        fitting_types = [name for name, (largest, wanted) in sizes.items() if wanted <= largest]
        if fitting_types:
            size = group_size(attribute)
            interfaces = tied_interfaces(self._claim, constraint, self._network_classes) if size else 0
            return check_interfaces(constraint, size, interfaces, fitting_types) if interfaces else []
        if not sizes:
            return []
        largest, wanted = max(sizes.values())
        message = f"{wanted} devices must agree on {short(attribute)}, and at most {largest} do."
        fitting = connecting(wanted, together, index)
        fix = f"Request {largest} or fewer" + (f", or use matchAttribute: {fitting}." if fitting else ".")
        return [Finding("NEU522", f"{constraint.path}.matchAttribute", message, fix, attribute)]

    def _least(self, covered: Sequence[Leaf], instance_type: str) -> int:
        """The smallest number of devices that must agree on a constraint, if it holds for a request at all.

        It holds for none of a request of which an alternative is allocated that it does not cover.
        """
        references = {leaf.devices.reference for leaf in covered}
        free = {leaf.request for leaf in self.leaves if leaf.devices.reference not in references}
        always = self._total([leaf for leaf in covered if leaf.request not in free], instance_type)
        alone = [self._total([leaf for leaf in covered if leaf.request == name], instance_type) for name in free]
        return always + max(alone, default=0)

    def _total(self, leaves: Iterable[Leaf], instance_type: str) -> int:
        """The smallest number of devices that requests need together on a node of a type."""
        smallest: dict[str, int] = {}
        for leaf in leaves:
            if leaf.devices.admin_access:
                continue
            count = leaf.devices.count
            if leaf.devices.everything:
                count = max(1, self._index.devices(leaf.mask, instance_type))
            smallest[leaf.request] = min(count, smallest.get(leaf.request, count))
        return sum(smallest.values())

    def _check_node(self) -> list[Finding]:
        """NEU521, NEU526 and NEU527: all requests of a claim must fit on one node."""
        if not self.leaves:
            return []
        by_request: dict[str, int] = {}
        for leaf in self.leaves:
            by_request[leaf.request] = by_request.get(leaf.request, 0) | leaf.mask
        path = f"{self._claim.path}.requests"
        counts = sum(
            min(each.count for each in request.alternatives) for request in self._claim.requests if request.alternatives
        )
        if counts > names.MAX_DEVICES_PER_CLAIM:
            message = f"{counts} devices are requested in all; a claim holds at most {names.MAX_DEVICES_PER_CLAIM}."
            return [Finding("NEU526", path, message, "Spread them over several claims.", str(counts))]
        if len(by_request) < 2 or not all(by_request.values()):
            return []
        shared = set.intersection(*(set(self._index.types(mask)) for mask in by_request.values()))
        if not shared:
            message = f"requests {', '.join(by_request)[:60]} have no instance type in common."
            fix = "A claim is allocated on one node: select the same type, or make two claims."
            return [Finding("NEU527", path, message, fix)]
        together = _together(by_request.values())
        spare = {name: self._index.devices(together, name) - self._total(self.leaves, name) for name in shared}
        name = max(sorted(spare), key=lambda each: spare[each])
        if spare[name] >= 0:
            return []
        total, has = self._total(self.leaves, name), self._index.devices(together, name)
        message = f"{total} devices are requested in all, and a node of {name} has {has}."
        return [Finding("NEU521", path, message, f"Request {has} or fewer, or make several claims.", str(total))]


def _together(masks: Iterable[int]) -> int:
    """The shapes of all masks."""
    return functools.reduce(operator.or_, masks, 0)


def _sums(leaves: Iterable[Leaf], most: int) -> dict[str, list[int]]:
    """For each request, the possible numbers of devices of the other requests, from 0 to `most`.

    A container may use a request or not, and one of its alternatives. A set of numbers is a bit mask: adding a count to
    all numbers is one shift, so the cost grows with the number of alternatives and not of sums.
    """
    options: dict[str, set[int]] = {}
    for leaf in leaves:
        counts = options.setdefault(leaf.request, set())
        if not leaf.devices.admin_access and leaf.devices.count <= most:
            counts.add(leaf.devices.count)
    if len(options) == 1:
        return {request: [0] for request in options}
    limit = (1 << most + 1) - 1
    before = [1]
    for counts in options.values():
        before.append(_plus(before[-1], counts, limit))
    sums: dict[str, list[int]] = {}
    after = 1
    for place, (request, counts) in reversed(list(enumerate(options.items()))):
        together = _plus(before[place], _members(after), limit)
        sums[request] = _members(together)
        after = _plus(after, counts, limit)
    return sums


def _plus(sums: int, counts: Iterable[int], limit: int) -> int:
    """The sums, and each sum plus each count, up to the limit."""
    made = sums
    for count in counts:
        made |= sums << count & limit
    return made


def _members(mask: int) -> list[int]:
    return [number for number in range(mask.bit_length()) if mask >> number & 1]


def _is_excluded(catalogue: Catalogue, instance_type: str, sums: Iterable[int]) -> bool:
    """Whether the documented rules of a type exclude all of these counts."""
    entry = catalogue.get(instance_type)
    if entry is None or entry.family not in _RULED_FAMILIES or entry.topology is not Topology.TORUS:
        return False
    return not any(each in entry.counts for each in sums)


def _unsupported(catalogue: Catalogue, code: str, path: str, count: int, types: Sequence[str]) -> Finding:
    # The exact text of the Neuron scheduler extension, so that users find its documentation.
    message = (
        f"Instance type {types[0]} does not support requests for device: {count}."
        " Please request a different number of devices."
    )
    valid = {each for name in types if (entry := catalogue.get(name)) for each in entry.counts}
    return Finding(code, path, message, f"Nearest valid counts: {nearest(count, valid)}.", str(count))


def _are_connected(
    claim: ClaimSpec, leaves: Sequence[Leaf], index: DeviceIndex, catalogue: Catalogue, *, whole: bool
) -> bool:
    """Whether constraints or selectors connect all requests, whichever alternatives are allocated.

    Args:
        whole: whether so many devices are enough that any of the node are connected.
    """
    groups = [frozenset(each.requests) for each in claim.constraints if group_size(each.match_attribute)]
    covering = {
        reference: sum(1 << place for place, named in enumerate(groups) if covers(named, reference))
        for reference in (leaf.devices.reference for leaf in leaves)
    }

    def covered(chosen: Sequence[Leaf]) -> bool:
        each = (covering[leaf.devices.reference] for leaf in chosen)
        return functools.reduce(operator.and_, each, (1 << len(groups)) - 1) > 0

    def connected(entry: InstanceType | None, allocation: Combination) -> bool:
        chosen, _ = allocation
        total = sum(leaf.devices.count for leaf in chosen)
        return covered(chosen) or is_run(entry, allocation) or (whole and entry is not None and is_whole(entry, total))

    return covered(leaves) or every_allocation(leaves, claim.constraints, index, catalogue, connected)


def check_together(
    claim: ClaimSpec,
    leaves: Sequence[Leaf],
    path: str,
    index: DeviceIndex,
    catalogue: Catalogue,
    *,
    unconnected: bool = False,
) -> list[Finding]:
    """NEU709: check all devices that one container uses of a claim as one number.

    Args:
        leaves: the requests for Neuron devices to which the container refers.
        path: field path of the container's references.
        unconnected: whether a policy allows devices that are not connected.
    """
    mine = [leaf for leaf in leaves if leaf.mask and not leaf.devices.admin_access]
    fewest = fewest_devices(mine)
    requests = list(fewest)
    if len(requests) < 2 or any(leaf.devices.everything or not leaf.mask & ~index.whole_nodes for leaf in mine):
        return []
    total = sum(fewest.values())
    types = set.intersection(*(set(index.types(leaf.mask)) for leaf in mine))
    capable = [name for name in index.types(index.everything) if name in types]
    excluded = not unconnected and capable and all(_is_excluded(catalogue, name, {total}) for name in capable)
    if _are_connected(claim, mine, index, catalogue, whole=not excluded):
        return []
    if excluded:
        return [_unsupported(catalogue, "NEU709", path, total, capable)]
    message = (
        f"one container uses {total} devices of requests {', '.join(requests)[:32]}; nothing keeps them connected."
    )
    group = connecting(total, _together(leaf.mask for leaf in mine), index)
    fix = f"Add constraints: [{{matchAttribute: {group}}}]" if group else "Use one request."
    return [warning("NEU709", path, message, fix, str(total))]


# --- interfaces -------------------------------------------------------------------------------------------------------


# The group has a known number of interfaces (`neuron.hardware.device_groups`), so more can never agree with its
# devices. It is not known for DeviceClasses of other drivers, and for instance types without a published map.
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
