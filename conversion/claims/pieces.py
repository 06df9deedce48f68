"""Divides the requests of a claim, so that the search of the scheduler's allocator stays short.

One request for N devices of which N - 1 are free costs up to N! steps. Two requests for the halves of the same devices
cost far less, if each selects its own devices by id: there are fewer orders. Three forms can be divided:

- alternatives by device ids: what they have in common is requested alone, and the rest has the alternatives. The 11
  devices of the windows 0-10, 1-11 and 2-12 are 2-10, and beside them 0-1, 1 and 11, or 11-12.
- one alternative for each instance type: every part takes some positions of each place (of each window or group), and
  the constraint holds for all parts.

- both, of different types: one device is requested alone, which is common to the ids of a type, or one of each place;
  the rest has the alternatives.

Other requests with several alternatives under constraints cannot be divided: each part would choose its alternative
alone.
"""

import bisect
import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from conversion.claims.alternatives import Alternative, Merged
from conversion.claims.instance_fit import Serving
from conversion.claims.layout import share_of
from conversion.claims.placement_options import Option
from neuron import names
from neuron.allocator import search_cost
from neuron.allocator.search_cost import ANY, Choice, PlacesLeft
from neuron.hardware import neighbours
from neuron.hardware.instances import InstanceType
from neuron.hardware.windows import Line

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
        The first division that is affordable; else the cheapest. At most one for each size of `_SIZES`, and one with
        single devices of their own, are tried.
    """
    pieces = _Pieces(merged, order)
    if not divides:
        return Division(pieces.parts(_UNDIVIDED), pieces.steps(_UNDIVIDED))
    large = any(each[0].count > _LARGEST for each in merged.alternatives.values()) and (
        _has_whole_claims(merged, order) or any(serving.entry.may_try_orders for serving in merged.servings)
    )
    found: list[tuple[int, int]] = []
    for size in _SIZES if large else (_UNDIVIDED, *_SIZES):
        if sum(map(len, pieces.parts(size).values())) > names.MAX_REQUESTS_PER_CLAIM:
            break
        steps = pieces.steps(size)
        if steps <= search_cost.MOST_STEPS:
            return Division(pieces.parts(size), steps)
        found.append((steps, size))
    steps, size = min(found, key=lambda each: each[0])
    return pieces.with_own_devices(size) or Division(pieces.parts(size), steps)


def _has_whole_claims(merged: Merged, order: Sequence[int]) -> bool:
    """Whether each container refers to the claim as a whole, so that no container shows that it is divided (NEU209)."""
    uses = {frozenset(use) for serving in merged.servings for use in serving.layout.uses if use}
    return uses == {frozenset(order)}


def divide_with_interfaces(merged: Merged, order: Sequence[int], interfaces: int) -> Division:
    """Divide a claim for a group of devices and EFA interfaces of the same group; arguments as of `divide`.

    Both are one request if the search is short. Else as many devices as interfaces get a request of their own, and each
    interface must be the one nearest to its device: with the group of the first device, all of them are determined.
    """
    pieces = _Pieces(merged, order)
    whole = Division(pieces.parts(_UNDIVIDED), pieces.steps(_UNDIVIDED, [Choice(interfaces, 1)]))
    (identity, *others) = order
    (alternative, *more) = merged.alternatives[identity]
    places = {name: _places(merged, identity, order, alternative, name) for name in alternative.options}
    count = alternative.count
    if whole.affordable or others or more or not all(places.values()) or count < 2:
        return whole
    most = max(map(len, places.values()))
    between = count // interfaces
    leaders = [number * between for number in range(interfaces)]
    rest = [number for number in range(count) if number not in leaders]
    for size in (max(1, len(rest)), *_SIZES):
        positions = [[each] for each in leaders] + [rest[start : start + size] for start in range(0, len(rest), size)]
        if len(positions) + interfaces > names.MAX_REQUESTS_PER_CLAIM:
            continue
        parts = tuple((_at(alternative, places, each),) for each in positions)
        # The first device chooses the place. From then on each request has one set of devices.
        first, *later = (Choice(len(each), 1) for each in positions)
        choices = [dataclasses.replace(first, places=most), *[Choice(1, 1)] * interfaces, *later]
        steps = max(search_cost.steps(choices, orders=each.entry.may_try_orders) for each in merged.servings)
        if steps <= search_cost.MOST_STEPS:
            return Division({identity: parts}, steps, interfaces)
    return whole


class _Pieces:
    """The ways to divide the requests of one claim, and what each costs. What several ways share is computed once.

    Types with one arrangement have the same alternatives. So the steps of a search depend on the arrangement, the
    devices, their line, the groups and the scheduler, and are counted once for all types that agree in these.
    """

    def __init__(self, merged: Merged, order: Sequence[int]) -> None:
        self._merged = merged
        self._order = order
        kinds = {
            (id(each.arrangement), entry.devices, entry.line, entry.groups, entry.may_try_orders): each
            for each in merged.servings
            for entry in (each.entry,)
        }
        self._kinds = tuple(kinds.values())
        self._of_request: dict[tuple[int, int], tuple[Part, ...]] = {}
        self._by_size: dict[int, dict[int, tuple[Part, ...]]] = {}
        self._choices: dict[tuple[int, int, int], tuple[Choice, ...]] = {}

    def parts(self, size: int) -> Mapping[int, tuple[Part, ...]]:
        """The requests by id, each divided into parts of `size` devices, if it can be."""
        found = self._by_size.get(size)
        if found is None:
            found = self._by_size[size] = {identity: self._parts(identity, size) for identity in self._order}
        return found

    def _parts(self, identity: int, size: int) -> tuple[Part, ...]:
        # One device is one part of any size.
        size = _UNDIVIDED if self._merged.alternatives[identity][0].count == 1 else size
        found = self._of_request.get((identity, size))
        if found is None:
            found = tuple(_parts(self._merged, identity, self._order, size))
            if size != _UNDIVIDED and found == self._parts(identity, _UNDIVIDED):
                found = self._parts(identity, _UNDIVIDED)
            self._of_request[identity, size] = found
        return found

    def steps(self, size: int, more: Sequence[Choice] = ()) -> int:
        """The most steps of a search, on the type on which it is longest. `more`: requests after all others."""
        return max(
            search_cost.steps([*self._all(kind, size, self._order), *more], orders=each.entry.may_try_orders)
            for kind, each in enumerate(self._kinds)
        )

    def _all(self, kind: int, size: int, order: Sequence[int]) -> Iterator[Choice]:
        """The choices of these requests on nodes of a kind."""
        for identity in order:
            parts = self._parts(identity, size)
            # Equal parts of two sizes are one object.
            key = (kind, identity, id(parts))
            found = self._choices.get(key)
            if found is None:
                found = self._choices[key] = tuple(
                    choice
                    for number, part in enumerate(parts)
                    for choice in _choices(self._kinds[kind], identity, part, number, self._order)
                )
            yield from found

    def with_own_devices(self, size: int) -> Division | None:
        """Requests for any one device, or a share of it: each gets a device of its own, and some more that all can use.

        Nine requests for any device try the free devices in every order, in every version of Kubernetes. None: there
        are no two such requests, or a type has too few devices.
        """
        merged = self._merged
        singles = [identity for identity in self._order if _is_single(merged.alternatives[identity])]
        own = _own_devices(merged, singles) if len(singles) > 1 else None
        if own is None:
            return None
        devices = min(serving.entry.devices or 0 for serving in merged.servings)
        rest = range(devices - len(set(own.values())) - 1, -1, -1)
        others = [identity for identity in self._order if identity not in own]
        shares = any(merged.alternatives[identity][0].cores for identity in singles)
        # The single requests end with one of them without a device, after all ways to place the others.
        before = [list(self._all(kind, size, others)) for kind in range(len(self._kinds))]

        def steps(more: int) -> int:
            last = Choice(2, max(1, _ways(len(singles) - 1, more, shares=shares) * (more + 1) // 2))
            return max(
                search_cost.steps([*choices, last], orders=kind.entry.may_try_orders)
                for kind, choices in zip(self._kinds, before, strict=True)
            )

        # Each further device makes the search longer: the most devices with which it is still affordable.
        more = max(0, bisect.bisect_right(range(len(rest) + 1), search_cost.MOST_STEPS, key=steps) - 1)
        parts = dict(self.parts(size))
        for identity in singles:
            (alternative,) = merged.alternatives[identity]
            option = Option(1, alternative.cores, tuple(sorted((own[identity], *rest[:more]))))
            options = dict.fromkeys(alternative.options, option)
            parts[identity] = ((dataclasses.replace(alternative, options=options),),)
        return Division(parts, steps(more))


# --- parts of one request ---------------------------------------------------------------------------------------


def _parts(merged: Merged, identity: int, order: Sequence[int], size: int) -> Iterator[Part]:
    alternatives = merged.alternatives[identity]
    count = alternatives[0].count
    alike = all(each.count == count and not each.cores for each in alternatives)
    if size == _UNDIVIDED or count == 1 or not alike:
        yield alternatives
        return
    sets = [_sets(merged, each) for each in alternatives]
    if all(sets):
        yield from _around_a_core(alternatives, sets, size)
        return
    places = [
        {name: _places(merged, identity, order, alternative, name) for name in alternative.options}
        for alternative in alternatives
    ]
    known = [bool(ids) or all(found.values()) for ids, found in zip(sets, places, strict=True)]
    if all(known) and any(sets) and not _one_for_each_type(alternatives):
        yield from _after_one_device(alternatives, sets, places)
        return
    if not all(found for each in places for found in each.values()) or not _one_for_each_type(alternatives):
        yield alternatives
        return
    # Each part chooses alone. Parts for two types would not continue each other on a node that both could match.
    several = [dataclasses.replace(each, typed=each.typed or len(alternatives) > 1) for each in alternatives]
    for start in range(0, count, size):
        positions = range(start, min(start + size, count))
        yield tuple(_at(alternative, found, positions) for alternative, found in zip(several, places, strict=True))


def _at(
    alternative: Alternative, places: Mapping[str, Sequence[Sequence[int]]], positions: Sequence[int]
) -> Alternative:
    """The devices at some positions of each place, which are given by instance type."""
    options = {
        name: Option(len(positions), ids=tuple(sorted(place[position] for place in found for position in positions)))
        for name, found in places.items()
    }
    return dataclasses.replace(alternative, options=options)


def _sets(merged: Merged, alternative: Alternative) -> dict[str, set[int]]:
    """The devices that an alternative requests by their ids or as the whole node, by type; empty if it has a choice.

    All devices of a ring but one are its first ones here (`_by_ids`).
    """
    if alternative.constraints:
        return {}
    whole = {each.entry.name: each.entry.devices for each in merged.servings}
    found = {
        name: set(option.ids or (range(option.count) if option.count == whole[name] or _is_all_but_one(option) else ()))
        for name, option in alternative.options.items()
    }
    return found if all(len(ids) == alternative.count for ids in found.values()) else {}


def _around_a_core(
    alternatives: Sequence[Alternative], sets: Sequence[Mapping[str, set[int]]], size: int
) -> Iterator[Part]:
    """What the alternatives of each type have in common, of one size for all types, and then the rest of each."""
    cores: dict[str, set[int]] = {}
    for found in sets:
        for name, ids in found.items():
            cores[name] = cores.get(name, ids) & ids
    common = min(map(len, cores.values()))
    chosen = {name: sorted(core)[:common] for name, core in cores.items()}
    loose = {name for each in alternatives for name, option in each.options.items() if _is_all_but_one(option)}
    for start in range(0, common, size):
        options = {name: _by_ids(core[start : start + size], loose=name in loose) for name, core in chosen.items()}
        yield (Alternative(alternatives[0].name, options, frozenset()),)
    if common < alternatives[0].count:
        yield tuple(
            dataclasses.replace(
                each,
                options={
                    name: _by_ids(sorted(ids.difference(chosen[name])), loose=name in loose)
                    for name, ids in found.items()
                },
            )
            for each, found in zip(alternatives, sets, strict=True)
        )


def _after_one_device(
    alternatives: Sequence[Alternative],
    sets: Sequence[Mapping[str, set[int]]],
    places: Sequence[Mapping[str, Sequence[Sequence[int]]]],
) -> Iterator[Part]:
    """One device, and then the rest, where some types have alternatives by ids and others one under a constraint.

    A type with both has one place under the constraint, which counts as one more set by ids. The request is not divided
    if it has several, or no device that all its alternatives have in common.
    """
    cores: dict[str, set[int]] = {}
    for found in sets:
        for name, ids in found.items():
            cores[name] = cores.get(name, ids) & ids
    tied = [(each, found) for each, ids, found in zip(alternatives, sets, places, strict=True) if not ids]
    both = [(name, place) for _, placed in tied for name, place in placed.items() if name in cores]
    for name, (first, *_) in both:
        cores[name] &= set(first)
    of_tied = [name for each, _ in tied for name in each.types if name not in cores]
    if not all(cores.values()) or len(set(of_tied)) < len(of_tied) or any(len(place) > 1 for _, place in both):
        yield tuple(alternatives)
        return
    leads = {name: min(core) for name, core in cores.items()}
    by_ids = next(each.name for each, ids in zip(alternatives, sets, strict=True) if ids)
    alone = [(each, {name: place for name, place in placed.items() if name not in cores}) for each, placed in tied]
    yield (
        *(dataclasses.replace(_at(each, placed, [0]), typed=True) for each, placed in alone if placed),
        Alternative(by_ids, {name: _by_ids([lead]) for name, lead in leads.items()}, frozenset(), typed=True),
    )
    rest = range(1, alternatives[0].count)
    parts = []
    for each, by_id, placed in zip(alternatives, sets, places, strict=True):
        with_lead = by_id or {name: set(place[0]) for name, place in placed.items() if name in cores}
        without = {name: place for name, place in placed.items() if not by_id and name not in cores}
        options = {name: _by_ids(sorted(devices - {leads[name]})) for name, devices in with_lead.items()}
        made = dataclasses.replace(each, options={**_at(each, without, rest).options, **options})
        parts.append(made if by_id else dataclasses.replace(made, typed=True))
    yield tuple(parts)


def _is_all_but_one(option: Option) -> bool:
    """Whether it is for any devices of a ring that are all but one, which are consecutive."""
    return not option.ids and len(option.places) > 1


def _by_ids(ids: Sequence[int], *, loose: bool = False) -> Option:
    """These devices. `loose`: each, or the one after it, if the device that is left out is before it."""
    return Option(len(ids), ids=tuple(sorted({*ids, *(each + 1 for each in ids)}) if loose else ids))


def _one_for_each_type(alternatives: Sequence[Alternative]) -> bool:
    types = [name for alternative in alternatives for name in alternative.types]
    return len(types) == len(set(types))


def _places(
    merged: Merged, identity: int, order: Sequence[int], alternative: Alternative, name: str
) -> tuple[tuple[int, ...], ...]:
    """The sets of devices of an instance type from which an alternative takes all of one; empty if they are not known.

    Requests under one constraint share its places: each has the positions after those of the requests before it.
    """
    option = alternative.options[name]
    if option.places:
        return tuple(_devices(run)[: option.count] for run, beside in option.places if not beside)
    entry = next(each.entry for each in merged.servings if each.entry.name == name)
    devices = entry.devices or max(entry.groups, default=0)
    if not alternative.constraints:
        return (tuple(range(devices)),) if option.count == devices else ()
    if len(alternative.constraints) > 1:
        return ()
    ((attribute, members),) = alternative.constraints
    group = _group(entry, attribute)
    if not group:
        return ()
    counts = {member: merged.alternatives[member][0].count for member in members}
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


def _choices(serving: Serving, identity: int, part: Part, number: int, order: Sequence[int]) -> Iterator[Choice]:
    name = serving.entry.name
    mine = [(each.options[name], each.constraints) for each in part if name in each.options]
    if not mine:
        return
    count, devices = mine[0][0].count, serving.entry.devices or names.MAX_DEVICES_PER_CLAIM
    # A constraint that all devices of the node meet excludes none.
    binding = [
        (option, [tie for tie in constraints if option.ids or _group(serving.entry, tie[0]) != devices])
        for option, constraints in mine
    ]
    if all(not option.ids and not constraints for option, constraints in binding):
        if count == 1:
            yield Choice(1, 1, kind=ANY)
        else:
            # If a later request finds no device, this one had no choice.
            yield Choice(count, 1)
        return
    places = ways = 0
    kind: object = None
    for option, constraints in binding:
        runs = len({run for run, _ in option.places})
        if not constraints:
            places += runs or 1
            ways = max(ways, 1 if runs else math.comb(len(option.ids) or devices, count))
            continue
        (attribute, members) = min(constraints)
        group = _group(serving.entry, attribute)
        first = number == 0 and members[0] == min(members, key=order.index) == identity
        # The place of a later part is that of the first one.
        of_groups = max(1, devices // group) if group else devices
        places += runs or (of_groups if first else 1)
        ways = max(ways, 1 if runs or option.ids else math.comb(group or devices, count))
        kind = attribute if number == 0 and first else kind
    split = None
    if serving.entry.line is not None and serving.layout.has_rest(lead := share_of(identity)):
        split = _beside(serving.entry.line, serving.layout.size((lead, identity)), serving.entry.windows)
    yield Choice(count, places, ways, kind, split)


def _beside(line: Line, size: int, published: bool) -> PlacesLeft | None:
    """What the first request of a run in two leaves of the second; None if it has no device ids, or is no such run."""
    split = neighbours.split(line, size, published)
    if split is None or not all(split.first):
        return None
    runs = (line.window(size, start) for start in line.starts(size))
    return search_cost.beside(*(tuple(map(frozenset, each)) for each in (split.first, split.second, runs)))


# --- single devices ---------------------------------------------------------------------------------------------


def _is_single(alternatives: Sequence[Alternative]) -> bool:
    """Whether a request is for any device, or for cores of any device."""
    (first, *others) = alternatives
    any_device = not any(option.ids for option in first.options.values())
    return not others and first.count == 1 and any_device and not first.constraints


def _own_devices(merged: Merged, singles: Sequence[int]) -> dict[int, int] | None:
    """A device for each request, the last ones of the node first; None if a type has too few."""
    devices = min(serving.entry.devices or 0 for serving in merged.servings)
    per_device = min(serving.entry.cores_per_device or 1 for serving in merged.servings)
    left = [per_device] * devices
    own: dict[int, int] = {}
    for identity in singles:
        cores = merged.alternatives[identity][0].cores or per_device
        place = next((device for device in range(devices - 1, -1, -1) if left[device] >= cores), None)
        if place is None:
            return None
        left[place] -= cores
        own[identity] = place
    return own


@functools.lru_cache(maxsize=4096)
def _ways(requests: int, more: int, *, shares: bool) -> int:
    """Ways to give so many requests a device: each its own, or one of `more` that all can use."""
    return sum(
        math.comb(requests, number) * (more**number if shares else math.perm(more, number))
        for number in range((requests if shares else min(more, requests)) + 1)
    )
