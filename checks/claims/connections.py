"""Finds requests whose devices nothing keeps connected, and says which constraint or selector connects them.

Devices are connected if they are in one published group, or consecutive on a ring or chain (Inf1, Inf2). The whole node
is a group.
"""

import functools
import itertools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from checks.claims.device_index import DeviceIndex
from neuron import names
from neuron.api.claim_specs import ClaimSpec, Constraint, Leaf
from neuron.api.configs import covers
from neuron.findings import Finding, nearest, warning
from neuron.hardware import device_groups
from neuron.hardware.device_shapes import DEVICE_ID
from neuron.hardware.instances import Catalogue, InstanceType

_GROUP: Final = re.compile(
    rf"resource\.aws\.com/devicegroup([0-9]{{1,4}})_id|{re.escape(names.DRIVER)}/window([0-9]{{1,3}})_[0-9]{{1,3}}",
    re.ASCII,
)
_WINDOW: Final = f"{names.DRIVER}/window"
_MOST_PAIRS: Final = 4
"""Pairs of requests of a claim that are looked at: tenants choose how many there are."""
_UNKNOWN_WHOLE: Final = (4, 16)
"""Devices of the Trn3 servers (AWS's hardware pages), for types whose number is not published."""


@functools.lru_cache(maxsize=256)
def group_size(attribute: str) -> int:
    """How many devices of a node have an equal value of an attribute; 0 unless it is one of a group or window."""
    found = _GROUP.fullmatch(attribute)
    return int(found[1] or found[2]) if found else 0


def connecting(count: int, mask: int, index: DeviceIndex) -> str:
    """The attribute that connects `count` devices of one of the types in a mask; empty if there is none.

    The smallest group with that many devices, and for types whose devices have an order a window of exactly that size.
    """
    ordered = functools.reduce(
        operator.or_, [index.with_attribute(name) for name in index.attributes() if _WINDOW in name], 0
    )
    found = []
    for name in index.attributes():
        size, shapes = group_size(name), mask & index.with_attribute(name)
        if shapes if size == count else size > count and shapes & ~ordered:
            found.append((size, _WINDOW in name, name))
    return min(found, default=(0, False, ""))[2]


def first_devices(count: int) -> str:
    """CEL that selects the first devices of a node."""
    return f"device.attributes['{names.DRIVER}'].deviceId < {count}"


def fewest_devices(leaves: Iterable[Leaf]) -> dict[str, int]:
    """The smallest count of each request, by name: one of its alternatives is allocated."""
    fewest: dict[str, int] = {}
    for leaf in leaves:
        fewest[leaf.request] = min(leaf.devices.count, fewest.get(leaf.request, leaf.devices.count))
    return fewest


Combination: TypeAlias = tuple[Sequence[Leaf], frozenset[object] | None]
"""Requests or alternatives that are allocated together, and the ids of their devices: None if these can differ."""

Judge: TypeAlias = Callable[[InstanceType | None, Combination], bool]
"""Says whether an allocation on an instance type is connected; None: the type is not in the catalogue."""


def every_allocation(
    leaves: Sequence[Leaf],
    constraints: Sequence[Constraint],
    index: DeviceIndex,
    catalogue: Catalogue,
    judge: Judge,
) -> bool:
    """Whether all that can be allocated together on an empty node is connected, on each type that has all requests.

    Also False if there is no such type, or if there are too many combinations of alternatives.
    """
    masks: dict[str, int] = {}
    for leaf in leaves:
        masks[leaf.request] = masks.get(leaf.request, 0) | leaf.mask
    types = set.intersection(*(set(index.types(mask)) for mask in masks.values()))
    # Values of devices that are looked at, all types together. The claims that conversion makes take 4,100 at most.
    work = _Work(10_000)
    try:
        for name in sorted(types):
            mine = [leaf for leaf in leaves if leaf.mask & index.of_type(name)]
            entry, found = catalogue.get(name), False
            for each in _allocations(mine, constraints, index, name, entry, work):
                work.spend(50)  # What it takes to compare devices with the runs of a type, in such looks.
                if not judge(entry, each):
                    return False
                found = True
            if not found:
                return False
    except _TooMuchError:
        return False
    return bool(types)


class _TooMuchError(Exception):
    """The search takes more than it may: tenants choose the number of alternatives and constraints."""


class _Work:
    """What is left of a number of looks."""

    def __init__(self, left: int) -> None:
        self._left = left

    def spend(self, looks: int) -> None:
        """Raises: _TooMuchError."""
        self._left -= looks
        if self._left < 0:
            raise _TooMuchError


def _allocations(
    leaves: Sequence[Leaf],
    constraints: Sequence[Constraint],
    index: DeviceIndex,
    name: str,
    entry: InstanceType | None,
    work: _Work,
) -> Iterator[Combination]:
    """What the allocator can choose on an empty node: a constraint holds for the alternatives of it that are chosen.

    Raises: _TooMuchError.
    """
    ties = [(frozenset(each.requests), each.match_attribute) for each in constraints if each.match_attribute]
    requests: dict[str, list[tuple[Leaf, Sequence[int], Mapping[Any, tuple[object, ...]]]]] = {}
    # Most requests admit the same devices.
    known: dict[tuple[int, ...], Mapping[Any, tuple[object, ...]]] = {}
    for leaf in leaves:
        covering = [place for place, (named, _) in enumerate(ties) if covers(named, leaf.devices.reference)]
        mask = leaf.mask & index.of_type(name)
        work.spend(len(ties) + mask.bit_count() * (1 + len(covering)))
        values = known.get((mask, *covering))
        if values is None:
            values = known[mask, *covering] = {
                shape.fixed.get(DEVICE_ID): tuple([shape.fixed.get(ties[place][1]) for place in covering])
                for shape in index.members(mask)
            }
        requests.setdefault(leaf.request, []).append((leaf, covering, values))
    spare = _spare(entry, sum(fewest_devices(leaves).values()))

    def search(
        chosen: tuple[Leaf, ...], taken: frozenset[object] | None, agreed: Mapping[int, object]
    ) -> Iterator[Combination]:
        if len(chosen) == len(requests):
            yield chosen, taken
            return
        for leaf, covering, values in list(requests.values())[len(chosen)]:
            work.spend(len(requests) + (0 if taken is None else len(values) * (1 + len(covering))))
            if taken is None:
                yield from search((*chosen, leaf), None, agreed)
                continue
            sets: dict[tuple[object, ...], set[object]] = {}
            for device, found in values.items():
                if (spare or device not in taken) and all(map(_agrees, map(agreed.get, covering), found)):
                    sets.setdefault(found, set()).add(device)
            for found, devices in sets.items():
                more = len(devices) - leaf.devices.count
                if more >= 0:
                    now = {**agreed, **dict(zip(covering, found, strict=True))}
                    yield from search((*chosen, leaf), taken | devices if more <= spare else None, now)

    return search((), frozenset(), {})


def _agrees(agreed: object, value: object) -> bool:
    return agreed is None or agreed == value


def _spare(entry: InstanceType | None, count: int) -> int:
    """Devices that a run of a ring leaves out, if any so many are consecutive."""
    line = None if entry is None else entry.line
    return line.devices - count if line is not None and line.connects_any(count) else 0


def is_run(entry: InstanceType | None, allocation: Combination) -> bool:
    """Whether requests get exactly the devices of one run, or devices of one group.

    So do claims whose requests divide a run, because a search for many devices costs the scheduler too much.
    """
    chosen, devices = allocation
    total = sum(leaf.devices.count for leaf in chosen)
    if entry is None or devices is None:
        return False
    if _spare(entry, total):
        return True
    if entry.line is None:
        group = group_for(entry, total)
        return bool(group) and len({each // group if isinstance(each, int) else None for each in devices}) == 1
    starts = entry.line.starts(total) if total <= entry.line.devices else ()
    return any(devices == set(entry.line.window(total, start)) for start in starts)


def is_whole(entry: InstanceType, count: int) -> bool:
    """Whether any so many devices of a node are connected: no smaller group than the whole node has as many."""
    if entry.devices is None:
        return count in _UNKNOWN_WHOLE
    if count == entry.devices or (entry.line is not None and entry.line.connects_any(count)):
        return True
    return entry.grouped and group_for(entry, count) == entry.devices


def group_for(entry: InstanceType, count: int) -> int:
    """Size of the smallest group with so many devices, the whole node included; 0 if that is not known."""
    devices = entry.devices or 0
    if not entry.groups_known and any(count <= size < devices for size in device_groups.GROUP_SIZES):
        return 0
    found = next((size for size in entry.groups if size >= count), devices)
    return found if found >= count else 0


class Connections:
    """Checks the requests of one claim."""

    def __init__(self, claim: ClaimSpec, leaves: Sequence[Leaf], index: DeviceIndex, catalogue: Catalogue) -> None:
        """Args: `leaves` have the shapes that they can match, constraints included."""
        self._claim = claim
        self._index = index
        self._catalogue = catalogue
        self._leaves = leaves
        groups = [each for each in claim.constraints if group_size(each.match_attribute)]
        self._groups = [(frozenset(each.requests), _is_filled(each, leaves)) for each in groups]
        # A claim has at most a thousand alternatives, and few combinations of devices and counts.
        self._known: dict[tuple[int, int, bool, bool], list[InstanceType]] = {}
        self._attributes: dict[tuple[str, int], str] = {}

    def check(self, leaf: Leaf, sums: Iterable[int]) -> list[Finding]:
        """NEU524 and NEU525 about one request.

        Args:
            sums: numbers of devices that a container can use of it and of other requests.
        """
        count = leaf.devices.count
        if count == 1:
            return []
        loose = self._loose(leaf)
        if not loose or self._is_part_of_a_run or leaf.request in self._runs_of_two:
            return []
        grouped = [entry for entry in loose if count in entry.groups]
        lines = [entry for entry in loose if entry.line is not None]
        if grouped or len(lines) == len(loose):
            return [self._unconstrained(leaf, (grouped or lines)[0], loose)]
        if any(each in entry.counts for entry in loose for each in sums):
            return []
        entry = next(entry for entry in loose if entry not in lines)
        message = f"{count} devices of {entry.name} are not sure to be connected with each other."
        listed = ", ".join(map(str, entry.counts)) + (" and all devices of the node" if entry.devices is None else "")
        fix = f"Connected counts: {listed}; nearest: {nearest(count, entry.counts)}."
        if lines:
            fix += f" For {lines[0].name}: {self._advice(leaf, lines[0])}"
        return [warning("NEU525", leaf.path, message, fix, str(count))]

    @functools.cached_property
    def _is_part_of_a_run(self) -> bool:
        """Whether the requests of the claim take consecutive devices together, whichever alternative is allocated.

        Or those for several devices: a share of one more device can be anywhere beside them.
        """
        several = [leaf for leaf in self._leaves if leaf.devices.count > 1]
        return self._are_one_run(self._leaves) or (len(several) < len(self._leaves) and self._are_one_run(several))

    @functools.cached_property
    def _runs_of_two(self) -> frozenset[str]:
        """The requests for several devices that take consecutive devices with the one before or after, in pairs."""
        several: dict[str, list[Leaf]] = {}
        for leaf in self._leaves:
            if leaf.devices.count > 1:
                several.setdefault(leaf.request, []).append(leaf)
        pairs = itertools.islice(itertools.pairwise(several), _MOST_PAIRS)
        return frozenset(
            each for pair in pairs if self._are_one_run([*several[pair[0]], *several[pair[1]]]) for each in pair
        )

    def _are_one_run(self, leaves: Sequence[Leaf]) -> bool:
        if len({leaf.request for leaf in leaves}) < 2 or not all(leaf.mask for leaf in leaves):
            return False
        return every_allocation(leaves, self._claim.constraints, self._index, self._catalogue, is_run)

    def _likely(self, mask: int) -> list[InstanceType]:
        """Types to which the request will probably be allocated: published ones, or else all released ones."""
        admitted = self._index.types(mask)
        published = self._index.types(mask & self._index.published)
        entries = [entry for name in published or admitted if (entry := self._catalogue.get(name)) is not None]
        return [entry for entry in entries if entry.released] or entries

    def _loose(self, leaf: Leaf) -> list[InstanceType]:
        """The types on which nothing connects the devices of a request."""
        mask, count = leaf.mask, leaf.devices.count
        covering = [filled for requests, filled in self._groups if covers(requests, leaf.devices.reference)]
        key = (mask, count, bool(covering), any(covering))
        if key not in self._known:
            self._known[key] = [
                entry
                for entry in self._likely(mask)
                if self._index.devices(mask, entry.name) >= count
                # Any devices of a group can work together. Of a window, only all of them are sure to be consecutive.
                and not (any(covering) if entry.consecutive else covering)
                and not is_whole(entry, count)
                and not self._are_selected(mask, entry, count)
            ]
        return self._known[key]

    def is_tied(self, leaf: Leaf) -> bool:
        """Whether a constraint or the selectors keep the devices of a request in one group."""
        if any(covers(requests, leaf.devices.reference) for requests, _ in self._groups):
            return True
        entries = self._likely(leaf.mask)
        return bool(entries) and all(self._are_selected(leaf.mask, entry, leaf.devices.count) for entry in entries)

    def _are_selected(self, mask: int, entry: InstanceType, count: int) -> bool:
        """Whether the selectors leave exactly the devices of one group, or of one consecutive run."""
        index = self._index
        if index.devices(mask, entry.name) > count:
            return False
        if entry.line is None:
            return any(
                index.groups(mask, names.device_group_attribute(size), entry.name) >= count for size in entry.groups
            )
        ids = index.ids(mask, entry.name)
        return any(ids == set(entry.line.window(count, start)) for start in entry.line.starts(count))

    def _unconstrained(self, leaf: Leaf, entry: InstanceType, loose: Sequence[InstanceType]) -> Finding:
        """NEU524 with the YAML to add."""
        count = leaf.devices.count
        # Another finding says that the name is missing or has a wrong type.
        which = f"request {leaf.request[:30]}" if leaf.request else "a request without a name"
        message = f"nothing keeps the {count} devices of {which} connected."
        fix = self._advice(leaf, entry)
        attribute = self._attribute(entry, count)
        lacking = [each.name for each in loose if attribute and self._attribute(each, count) != attribute]
        if lacking:
            fix += f" This excludes {lacking[0]}, which needs an alternative of its own."
        return warning("NEU524", leaf.path, message, fix, str(count))

    def _advice(self, leaf: Leaf, entry: InstanceType) -> str:
        count = leaf.devices.count
        attribute = self._attribute(entry, count)
        if not attribute:
            # AWS's own driver, and sizes without a window attribute.
            return f"Select neighbours, such as: {first_devices(count)}."
        yaml = f"constraints: [{{requests: [{leaf.devices.reference}], matchAttribute: {attribute}}}]"
        if len(yaml) > 100 or not all(leaf.devices.reference.split("/")):
            yaml = f"constraints: [{{matchAttribute: {attribute}}}]"
        return f"Add {yaml}"

    def _attribute(self, entry: InstanceType, count: int) -> str:
        """The attribute of groups of that size on a type, as the cluster publishes it; empty if it has none."""
        known = self._attributes.get((entry.name, count))
        if known is None:
            index = self._index
            shapes = index.of_type(entry.name)
            shapes = shapes & index.published or shapes
            found = [
                name for name in index.attributes() if group_size(name) == count and shapes & index.with_attribute(name)
            ]
            known = min(found, key=lambda name: (_WINDOW in name, name), default="")
            self._attributes[entry.name, count] = known
        return known


def _is_filled(constraint: Constraint, leaves: Iterable[Leaf]) -> bool:
    """Whether the requests under a constraint take all devices of its group; `CountRules` reports more."""
    requests = frozenset(constraint.requests)
    fewest = fewest_devices(leaf for leaf in leaves if covers(requests, leaf.devices.reference))
    return sum(fewest.values()) >= group_size(constraint.match_attribute)
