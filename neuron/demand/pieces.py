"""Divides the requests of a claim, so that the search of the scheduler's allocator stays short.

One request for N devices of which N - 1 are free costs up to N! steps. Two requests for the halves of the same devices
cost far less, if each selects its own devices by id: there are fewer orders. Two forms can be divided:

- alternatives by device ids: what they have in common is requested alone, and the rest has the alternatives. The 11
  devices of the windows 0-10, 1-11 and 2-12 are 2-10, and beside them 0-1, 1 and 11, or 11-12.
- one alternative for each instance type: every part takes some positions of each place (of each window or group), and
  the constraint holds for all parts.

Requests with several alternatives under constraints cannot be divided: each part would choose its alternative alone.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from neuron import names
from neuron.demand import search_cost
from neuron.demand.alternatives import Alternative, Merged
from neuron.demand.instance_fit import Serving
from neuron.demand.placement_options import Option
from neuron.demand.search_cost import ANY, Choice
from neuron.hardware.instances import InstanceType

_SIZES: Final = (4, 3, 2, 1)
"""Devices of one part, in the order in which they are tried."""
_UNDIVIDED: Final = 0
_LARGEST: Final = 8
"""Devices of a request that is divided only where it must be. The subsets of 15 free devices of 16 take 50 ms on each
node: 5.7 s on a hundred nodes, and 0.1 s for requests for 4 of them by device ids."""

Part: TypeAlias = tuple[Alternative, ...]
"""One request: its alternatives, or what it requests."""


@dataclasses.dataclass(frozen=True, slots=True)
class Division:
    """The requests of a claim.

    Attributes:
        parts: the requests by id, in the order of the claim.
        steps: upper bound of the search, on the type on which it is longest.
        pairs: EFA interfaces that are requested one by one, each nearest to the device of one of the first parts; 0: in
            one request.
    """

    parts: Mapping[int, tuple[Part, ...]]
    steps: int
    pairs: int = 0

    @property
    def affordable(self) -> bool:
        """Whether the search is short enough."""
        return self.steps <= search_cost.MOST_STEPS


def divide(merged: Merged, order: Sequence[int], *, divides: bool = True) -> Division:
    """Divide the requests of a claim as little as is needed.

    Args:
        order: request ids in the order of the claim.
        divides: False: each stays one request, however long the search is.

    Returns:
        The first division that is affordable; else the cheapest.
    """
    if not divides:
        undivided = {identity: (merged.alternatives[identity],) for identity in order}
        return Division(undivided, max(_steps(serving, undivided, order) for serving in merged.servings))
    found: list[Division] = []
    large = any(each[0].option.count > _LARGEST for each in merged.alternatives.values()) and (
        _has_whole_claims(merged, order) or any(serving.entry.may_try_orders for serving in merged.servings)
    )
    for size in _SIZES if large else (_UNDIVIDED, *_SIZES):
        parts = {identity: tuple(_parts(merged, identity, order, size)) for identity in order}
        if sum(map(len, parts.values())) > names.MAX_REQUESTS_PER_CLAIM:
            break
        cost = max(_steps(serving, parts, order) for serving in merged.servings)
        found.append(Division(parts, cost))
        if found[-1].affordable:
            return found[-1]
    best = min(found, key=lambda division: division.steps)
    return _with_own_devices(merged, best, order)


def _has_whole_claims(merged: Merged, order: Sequence[int]) -> bool:
    """Whether each container refers to the claim as a whole, so that no container shows that it is divided (NEU209)."""
    uses = {frozenset(use) for serving in merged.servings for use in serving.layout.uses if use}
    return uses == {frozenset(order)}


def divide_with_interfaces(merged: Merged, order: Sequence[int], interfaces: int) -> Division:
    """Divide a claim for a group of devices and EFA interfaces of the same group; arguments as of `divide`.

    Both are one request if the search is short. Else as many devices as interfaces get a request of their own, and each
    interface must be the one nearest to its device: with the group of the first device, all of them are determined.
    """
    undivided = {identity: (merged.alternatives[identity],) for identity in order}
    steps = max(_steps(serving, undivided, order, interfaces) for serving in merged.servings)
    whole = Division(undivided, steps)
    (identity, *others) = order
    (alternative, *more) = merged.alternatives[identity]
    places = _places(merged, identity, order, alternative)
    count = alternative.option.count
    if whole.affordable or others or more or not places or count < 2:
        return whole
    between = count // interfaces
    leaders = [number * between for number in range(interfaces)]
    rest = [number for number in range(count) if number not in leaders]
    for size in (max(1, len(rest)), *_SIZES):
        positions = [[each] for each in leaders] + [rest[start : start + size] for start in range(0, len(rest), size)]
        if len(positions) + interfaces > names.MAX_REQUESTS_PER_CLAIM:
            continue
        parts = tuple((dataclasses.replace(alternative, option=_some_of(places, each)),) for each in positions)
        # The first device chooses the place. From then on each request has one set of devices.
        first, *later = (Choice(len(each), 1) for each in positions)
        choices = [dataclasses.replace(first, places=len(places)), *[Choice(1, 1)] * interfaces, *later]
        steps = max(search_cost.steps(choices, orders=each.entry.may_try_orders) for each in merged.servings)
        if steps <= search_cost.MOST_STEPS:
            return Division({identity: parts}, steps, interfaces)
    return whole


# --- parts of one request ---------------------------------------------------------------------------------------


def _parts(merged: Merged, identity: int, order: Sequence[int], size: int) -> Iterator[Part]:
    alternatives = merged.alternatives[identity]
    count = alternatives[0].option.count
    alike = all(each.option.count == count and not each.option.cores for each in alternatives)
    if size == _UNDIVIDED or count == 1 or not alike:
        yield alternatives
        return
    by_ids = all(each.option.ids and len(each.option.ids) == count and not each.constraints for each in alternatives)
    if by_ids:
        yield from _around_a_core(merged, alternatives, size)
        return
    places = [_places(merged, identity, order, alternative) for alternative in alternatives]
    if not all(places) or not _one_for_each_type(alternatives):
        yield alternatives
        return
    for start in range(0, count, size):
        yield tuple(
            dataclasses.replace(alternative, option=_at(found, start, min(start + size, count)))
            for alternative, found in zip(alternatives, places, strict=True)
        )


def _at(places: Sequence[Sequence[int]], start: int, end: int) -> Option:
    """The devices at some positions of each place."""
    ids = sorted(device for place in places for device in place[start:end])
    return Option(end - start, ids=tuple(ids))


def _some_of(places: Sequence[Sequence[int]], positions: Sequence[int]) -> Option:
    """The devices at these positions of each place."""
    ids = sorted(place[position] for place in places for position in positions)
    return Option(len(positions), ids=tuple(ids))


def _around_a_core(merged: Merged, alternatives: Sequence[Alternative], size: int) -> Iterator[Part]:
    core = sorted(frozenset.intersection(*(frozenset(each.option.ids) for each in alternatives)))
    if core:
        rank = {serving.entry.name: place for place, serving in enumerate(merged.servings)}
        types = sorted({name for each in alternatives for name in each.types}, key=lambda name: rank.get(name, 0))
        for start in range(0, len(core), size):
            ids = tuple(core[start : start + size])
            yield (Alternative(alternatives[0].name, Option(len(ids), ids=ids), frozenset(), tuple(types)),)
    left = [tuple(device for device in each.option.ids if device not in core) for each in alternatives]
    if left[0]:
        yield tuple(
            dataclasses.replace(each, option=Option(len(ids), ids=ids))
            for each, ids in zip(alternatives, left, strict=True)
        )


def _one_for_each_type(alternatives: Sequence[Alternative]) -> bool:
    types = [name for alternative in alternatives for name in alternative.types]
    return len(types) == len(set(types))


def _places(
    merged: Merged, identity: int, order: Sequence[int], alternative: Alternative
) -> tuple[tuple[int, ...], ...]:
    """The sets of devices from which an alternative takes all of one; empty if they are not known.

    Requests under one constraint share its places: each has the positions after those of the requests before it.
    """
    option = alternative.option
    if option.places:
        return tuple(_devices(run)[: option.count] for run, beside in option.places if not beside)
    entry = next(each.entry for each in merged.servings if each.entry.name in alternative.types)
    devices = entry.devices or max(entry.groups, default=0)
    if not alternative.constraints:
        return (tuple(range(devices)),) if option.count == devices else ()
    if len(alternative.constraints) > 1:
        return ()
    ((attribute, members),) = alternative.constraints
    group = _group(entry, attribute)
    if not group:
        return ()
    counts = {member: merged.alternatives[member][0].option.count for member in members}
    before = sum(counts[member] for member in order if member in counts and order.index(member) < order.index(identity))
    if sum(counts.values()) != group:
        return ()
    return tuple(tuple(range(start + before, start + before + option.count)) for start in range(0, devices, group))


def _group(entry: InstanceType, attribute: str) -> int:
    """Size of the device groups that an attribute names; 0 if it names none of the type."""
    return next((size for size in entry.groups if names.device_group_attribute(size) == attribute), 0)


@functools.cache
def _devices(mask: int) -> tuple[int, ...]:
    return tuple(device for device in range(mask.bit_length()) if mask >> device & 1)


# --- what a search costs ----------------------------------------------------------------------------------------


def _steps(serving: Serving, parts: Mapping[int, Sequence[Part]], order: Sequence[int], interfaces: int = 0) -> int:
    """The most steps of a search on nodes of a type; `interfaces`: of EFA, requested last."""
    choices = [
        choice
        for identity in order
        for number, part in enumerate(parts[identity])
        for choice in _choices(serving, identity, part, number, order)
    ]
    choices += [Choice(interfaces, 1)] if interfaces else []
    return search_cost.steps(choices, orders=serving.entry.may_try_orders)


def _choices(serving: Serving, identity: int, part: Part, number: int, order: Sequence[int]) -> Iterator[Choice]:
    mine = [each for each in part if serving.entry.name in each.types]
    if not mine:
        return
    count, devices = mine[0].option.count, serving.entry.devices or names.MAX_DEVICES_PER_CLAIM
    # A constraint that all devices of the node meet excludes none.
    binding = [
        [tie for tie in each.constraints if each.option.ids or _group(serving.entry, tie[0]) != devices]
        for each in mine
    ]
    if all(not each.option.ids and not constraints for each, constraints in zip(mine, binding, strict=True)):
        if count == 1:
            yield Choice(1, 1, kind=ANY)
        else:
            # If a later request finds no device, this one had no choice.
            yield Choice(count, 1)
        return
    places = ways = 0
    kind: object = None
    for each, constraints in zip(mine, binding, strict=True):
        if not constraints:
            places += 1
            ways = max(ways, math.comb(len(each.option.ids) or devices, count))
            continue
        (attribute, members) = min(constraints)
        group = _group(serving.entry, attribute)
        first = number == 0 and members[0] == min(members, key=order.index) == identity
        if each.option.places:
            places += len(each.option.places)
            ways = max(ways, 1)
        elif first:
            places += max(1, devices // group) if group else devices
            ways = max(ways, 1 if each.option.ids else math.comb(group or devices, count))
        else:
            # The place is that of the first part.
            places += 1
            ways = max(ways, 1 if each.option.ids else math.comb(group or devices, count))
        kind = attribute if number == 0 and first else kind
    yield Choice(count, places, ways, kind)


# --- single devices ---------------------------------------------------------------------------------------------


def _with_own_devices(merged: Merged, division: Division, order: Sequence[int]) -> Division:
    """Requests for any one device, or for a share of it: each gets a device of its own, and some more that all can use.

    Nine requests for any device try the free devices in every order, in every version of Kubernetes.
    """
    singles = [identity for identity in order if _is_single(merged.alternatives[identity])]
    own = _own_devices(merged, singles)
    if len(singles) < 2 or own is None:
        return division
    devices = min(serving.entry.devices or 0 for serving in merged.servings)
    rest = range(devices - len(set(own.values())) - 1, -1, -1)
    best = division
    for more in range(len(rest), -1, -1):
        parts = dict(division.parts)
        for identity in singles:
            (alternative,) = merged.alternatives[identity]
            ids = tuple(sorted((own[identity], *rest[:more])))
            parts[identity] = ((dataclasses.replace(alternative, option=Option(1, alternative.option.cores, ids)),),)
        steps = max(_steps_with_more(serving, parts, order, singles, more) for serving in merged.servings)
        best = Division(parts, steps)
        if best.affordable:
            break
    return best


def _is_single(alternatives: Sequence[Alternative]) -> bool:
    """Whether a request is for any device, or for cores of any device."""
    (first, *others) = alternatives
    return not others and first.option.count == 1 and not first.option.ids and not first.constraints


def _own_devices(merged: Merged, singles: Sequence[int]) -> dict[int, int] | None:
    """A device for each request, the last ones of the node first; None if a type has too few."""
    devices = min(serving.entry.devices or 0 for serving in merged.servings)
    per_device = min(serving.entry.cores_per_device or 1 for serving in merged.servings)
    left = [per_device] * devices
    own: dict[int, int] = {}
    for identity in singles:
        cores = merged.alternatives[identity][0].option.cores or per_device
        place = next((device for device in range(devices - 1, -1, -1) if left[device] >= cores), None)
        if place is None:
            return None
        left[place] -= cores
        own[identity] = place
    return own


def _steps_with_more(
    serving: Serving,
    parts: Mapping[int, Sequence[Part]],
    order: Sequence[int],
    singles: Sequence[int],
    more: int,
) -> int:
    """As `_steps`; the single requests end with one of them without a device, after all ways to place the others."""
    others = [identity for identity in order if identity not in singles]
    shares = any(part[0].option.cores for identity in singles for part in parts[identity])
    others_of_all = len(singles) - 1
    ways = sum(
        math.comb(others_of_all, number) * (more**number if shares else math.perm(more, number))
        for number in range((others_of_all if shares else min(more, others_of_all)) + 1)
    )
    last = Choice(2, max(1, ways * (more + 1) // 2))
    choices = [
        choice
        for identity in others
        for number, part in enumerate(parts[identity])
        for choice in _choices(serving, identity, part, number, order)
    ]
    return search_cost.steps([*choices, last], orders=serving.entry.may_try_orders)
