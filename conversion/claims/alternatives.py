"""Merges the alternatives that instance types need for one claim.

A request lists an alternative once for all types that need the same count, cores and constraints. Their device ids may
differ, because a node has one type: the alternative's selector has the ids by type.
"""

import dataclasses
import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from conversion.claims.instance_fit import Serving
from conversion.claims.layout import Place
from conversion.claims.placement_options import (
    Arrangement,
    AttributeTie,
    Member,
    Option,
    arrange,
    fits_empty_node,
    in_one_place,
    options_of,
)
from neuron import names
from neuron.hardware import windows
from neuron.hardware.windows import DeviceChoice

_Constraint: TypeAlias = tuple[str, tuple[int, ...]]
"""The attribute and the requests of a constraint."""

_Shape: TypeAlias = tuple[Option, frozenset[_Constraint]]
"""What an alternative requests on one instance type, with the constraints on it."""

_Slot: TypeAlias = tuple[int, int, frozenset[_Constraint], int]
"""What types must have in common to share an alternative: count, cores and constraints, and the number of the
alternative among those of its type with the same. The device ids may differ: the selector has them by type."""


@dataclasses.dataclass(frozen=True, slots=True)
class Alternative:
    """One alternative of a request.

    Attributes:
        name: unique in its request.
        options: what it requests, by the name of each instance type that it is for; all with one count and cores.
        constraints: attribute and requests of each constraint on it.
        others: whether the request has other alternatives.
        typed: whether it has to select its instance types, because others may have its devices and its attribute.
    """

    name: str
    options: Mapping[str, Option]
    constraints: frozenset[_Constraint]
    others: bool = False
    typed: bool = False

    @property
    def types(self) -> tuple[str, ...]:
        """Names of the instance types that it is for."""
        return tuple(self.options)

    @property
    def count(self) -> int:
        """Devices of the request."""
        return next(iter(self.options.values())).count

    @property
    def cores(self) -> int:
        """Physical cores of each device; 0 for whole devices."""
        return next(iter(self.options.values())).cores


@dataclasses.dataclass(frozen=True, slots=True)
class Merged:
    """The requests and constraints of a claim.

    Attributes:
        servings: the instance types that it serves.
        alternatives: by request id, in order.
        ties: the constraints. A position is that of an alternative here.
    """

    servings: tuple[Serving, ...]
    alternatives: Mapping[int, tuple[Alternative, ...]]
    ties: tuple[AttributeTie, ...]

    def options(self, serving: Serving, identity: int) -> list[Option]:
        """What a type gets from the alternatives of a request, in their order."""
        name = serving.entry.name
        return [each.options[name] for each in self.alternatives[identity] if name in each.options]


@dataclasses.dataclass(frozen=True, slots=True)
class TooMany:
    """Why the alternatives do not fit into a claim."""

    count: int
    what: str
    most: int


def merge(
    servings: Sequence[Serving], order: Sequence[int], most: int = names.MAX_FIRST_AVAILABLE, *, tied: bool = False
) -> Merged | TooMany | None:
    """Merge the alternatives of several instance types.

    Args:
        servings: at least one, all with the same requests; the first are preferred.
        order: request ids in the order of the claim.
        most: alternatives of a request; more only where that many types differ.
        tied: whether types keep every attribute, and no device ids replace it.

    Returns:
        The claim; or why there is none. On an empty node of each type, the alternatives that are listed fit together: a
        type on which they do not is served in one place, or not at all. None if no type is left.
    """
    found = _merge(servings, order, most, tied=tied)
    while isinstance(found, Merged) and (cramped := _cramped(found, order)) is not None:
        # Types that are arranged alike list the same alternatives, and so none of them fits.
        alike = [each.arrangement is cramped.arrangement for each in found.servings]
        if cramped.layout.shares:
            again = [each for each, is_alike in zip(found.servings, alike, strict=True) if not is_alike]
            if not again:
                return None
        else:
            # One alternative for each request: a place on the line, or device groups by attribute.
            layout, sets = cramped.layout, cramped.connected_sets
            on_line = cramped.entry.line is not None
            place = in_one_place(layout, sets) if on_line else arrange(cramped.entry, layout, sets, by_ids=False)
            again = [
                dataclasses.replace(each, arrangement=place) if is_alike else each
                for each, is_alike in zip(found.servings, alike, strict=True)
            ]
        found = _merge(again, order, most, tied=tied)
    return found


def _cramped(merged: Merged, order: Sequence[int]) -> Serving | None:
    """The last type for which so many alternatives are left out that the others do not fit its empty node."""
    for serving in reversed(merged.servings):
        all_options = serving.arrangement.options
        # One request with alternatives fits beside requests that take any device.
        if sum(1 for each in all_options.values() if len(each) > 1) < 2:
            continue
        options = {identity: merged.options(serving, identity) for identity in order}
        # In device groups, requests that containers use together have no alternatives.
        connected_sets = serving.connected_sets if serving.entry.line is not None else ()
        as_arranged = all(_with_places(all_options[each]).issubset(_with_places(options[each])) for each in order)
        if not as_arranged and not fits_empty_node(serving.entry, serving.layout, connected_sets, options):
            return serving
    return None


def _with_places(options: Iterable[Option]) -> set[tuple[Option, tuple[Place, ...]]]:
    """Options with their places, which do not count where options are compared."""
    return {(option, option.places) for option in options}


def _merge(servings: Sequence[Serving], order: Sequence[int], at_most: int, *, tied: bool) -> Merged | TooMany:
    # Most types of a family are arranged alike: each arrangement is looked at once.
    alike: dict[object, list[Serving]] = {}
    same: dict[object, list[Serving]] = {}
    for serving in servings:
        arrangement, entry = serving.arrangement, serving.entry
        devices = entry.devices if arrangement.choices else None
        members = same.get((id(arrangement), entry.line, devices))
        if members is None:
            key = (tuple(arrangement.options.items()), arrangement.ties, entry.line, devices)
            members = same[id(arrangement), entry.line, devices] = alike.setdefault(key, [])
        members.append(serving)
    groups = list(alike.values())
    arrangements = [members[0].arrangement for members in groups]
    for most in range(at_most, 0, -1):
        slots = {
            identity: [
                _slots(each)
                # Where types share nothing, the shapes are those of a claim for each type alone.
                for each in _shared(arrangements, identity, most, tied=tied)
                or [_shapes(each, identity) for each in arrangements]
            ]
            for identity in order
        }
        kept = {identity: _kept([list(each) for each in slots[identity]], most) for identity in order}
        needed = max(len(each) for each in kept.values())
        if needed > names.MAX_FIRST_AVAILABLE:
            return TooMany(needed, "different requests", names.MAX_FIRST_AVAILABLE)
        ties = _ties(kept, order)
        if len(ties) <= names.MAX_CONSTRAINTS_PER_CLAIM:
            break
    else:
        return TooMany(len(ties), "constraints", names.MAX_CONSTRAINTS_PER_CLAIM)
    rank = {serving.entry.name: place for place, serving in enumerate(servings)}
    alternatives = {
        identity: tuple(_named(kept[identity], list(zip(groups, slots[identity], strict=True)), rank))
        for identity in order
    }
    return Merged(tuple(servings), alternatives, ties)


def _shapes(arrangement: Arrangement, identity: int) -> list[_Shape]:
    constraints: dict[int, set[_Constraint]] = {}
    for tie in arrangement.ties:
        for member, position in tie.members:
            if member == identity:
                requests = tuple(dict.fromkeys(each for each, _ in tie.members))
                constraints.setdefault(position, set()).add((tie.attribute, requests))
    return [
        (option, frozenset(constraints.get(position, ())))
        for position, option in enumerate(arrangement.options[identity])
    ]


def _slots(shapes: Iterable[_Shape]) -> dict[_Slot, Option]:
    """The shapes of one type by what other types must have in common with them."""
    found: dict[_Slot, Option] = {}
    for option, constraints in shapes:
        number = 0
        while (slot := (option.count, option.cores, constraints, number)) in found:
            number += 1
        found[slot] = option
    return found


def _kept(by_type: Sequence[Sequence[_Slot]], most: int) -> dict[_Slot, int]:
    """The slots to list with their positions: the first of each type, then the second of each, up to `most`."""
    kept: set[_Slot] = {slots[0] for slots in by_type}
    for rank in range(1, max(map(len, by_type))):
        for slots in by_type:
            if len(kept) < most and rank < len(slots):
                kept.add(slots[rank])
    found: dict[_Slot, int] = {}
    for slots in by_type:
        for slot in slots:
            if slot in kept:
                found.setdefault(slot, len(found))
    return found


def _ties(kept: Mapping[int, Mapping[_Slot, int]], order: Sequence[int]) -> tuple[AttributeTie, ...]:
    """The constraints on kept slots; one for each attribute and set of requests.

    A request picks one alternative, so alternatives of one request can be in one constraint.
    """
    members: dict[_Constraint, list[Member]] = {}
    for identity in order:
        for (_, _, constraints, _), position in kept[identity].items():
            for constraint in constraints:
                members.setdefault(constraint, []).append((identity, position))
    rank = {identity: place for place, identity in enumerate(order)}
    ties = [
        AttributeTie(attribute, tuple(sorted(found, key=lambda member: (rank[member[0]], member[1]))))
        for (attribute, requests), found in members.items()
        # Where the alternatives of one request are left out, the constraint would only restrict the others.
        if {identity for identity, _ in found}.issuperset(requests)
    ]
    # By alternative, then by request.
    ties.sort(key=lambda tie: (tie.members[0][1], sorted({rank[each] for each, _ in tie.members}), tie.attribute))
    return tuple(ties)


def _named(
    kept: Mapping[_Slot, int],
    groups: Sequence[tuple[Sequence[Serving], Mapping[_Slot, Option]]],
    rank: Mapping[str, int],
) -> Iterator[Alternative]:
    """Name each alternative after the family of its first type."""
    taken: dict[str, int] = {}
    for slot in kept:
        members = [(each.entry, slots[slot]) for servings, slots in groups if slot in slots for each in servings]
        members.sort(key=lambda member: rank[member[0].name])
        family = members[0][0].family
        taken[family] = taken.get(family, 0) + 1
        name = family if taken[family] == 1 else f"{family}-{taken[family]}"
        yield Alternative(name, {entry.name: option for entry, option in members}, slot[2], len(kept) > 1)


# --- types that need different attributes -----------------------------------------------------------------------


def _shared(arrangements: Sequence[Arrangement], identity: int, most: int, *, tied: bool) -> list[list[_Shape]] | None:
    """The shapes of a request on each type, with as few attributes as it takes to leave out the fewest sets of devices.

    Every type can have sets by device ids in the same alternatives, but an attribute is for the types that publish it,
    and an alternative for those that get the same number of devices.

    Returns:
        None if one type is enough to decide, or if other requests are connected with this one.
    """
    if len(arrangements) == 1:
        return None

    def wanted(arrangement: Arrangement) -> _Wanted:
        found = arrangement.choices.get(identity)
        return dataclasses.replace(found, named=found.groups) if tied and found and found.groups else found

    by_count: dict[int, list[_Wanted]] = {}
    for each in arrangements:
        found = wanted(each)
        (first, *others) = each.options[identity]
        if found is None and (others or any(identity == member for tie in each.ties for member, _ in tie.members)):
            return None
        by_count.setdefault(first.count, []).append(found)
    divided = _divided(tuple(tuple(each) for each in by_count.values()), most, tied=tied)
    if divided is None:
        return None
    places = dict(zip(by_count, divided, strict=True))
    shapes: list[list[_Shape]] = []
    for arrangement in arrangements:
        found, count = wanted(arrangement), arrangement.options[identity][0].count
        if found is None:
            shapes.append(_shapes(arrangement, identity))
            continue
        number, attributes = places[count]
        own = len(windows.select(found, attributes, 0))
        options, matched = options_of(found, count, attributes, number - len(attributes) + own)
        shapes.append(
            [
                (option, frozenset([(name, (identity,))] if name else ()))
                for option, name in zip(options, matched, strict=True)
            ]
        )
    return shapes


_Wanted: TypeAlias = DeviceChoice | None
"""What a request can get on a type; None: one alternative without an attribute is all that it needs."""


@functools.lru_cache(maxsize=256)
def _divided(
    kinds: tuple[tuple[_Wanted, ...], ...], most: int, *, tied: bool
) -> tuple[tuple[int, tuple[str, ...]], ...] | None:
    """How many alternatives the types of each number of devices get, and their attributes; None if not all have one.

    The division that leaves out the fewest sets of devices of the type that it treats worst, then of all types.
    """
    best: tuple[tuple[int, int], tuple[tuple[int, tuple[str, ...]], ...]] | None = None
    for numbers in _divisions(most, len(kinds)):
        found = []
        for number, kind in zip(numbers, kinds, strict=True):
            choices = tuple(each for each in kind if each is not None)
            attributes = best_attributes(choices, None in kind, number, tied=tied)
            if attributes is None:
                break
            found.append((number, attributes, [untried(each, attributes, number) for each in choices]))
        if len(found) < len(kinds):
            continue
        lost = [each for _, _, of_kind in found for each in of_kind]
        score = max(lost, default=0), sum(lost)
        if best is None or score < best[0]:
            best = score, tuple((number, attributes) for number, attributes, _ in found)
    return None if best is None else best[1]


def _divisions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to divide a number into so many positive numbers."""
    if parts == 1:
        yield (total,)
        return
    for first in range(total - parts + 1, 0, -1):
        for rest in _divisions(total - first, parts - 1):
            yield (first, *rest)


def untried(choice: DeviceChoice, attributes: Collection[str], most: int) -> int:
    """Sets that are left out with these attributes, and device ids in the other alternatives."""
    left = len(choice.sets) - len(_covered(choice, attributes))
    return max(0, left - max(0, most - len(attributes)))


@functools.lru_cache(maxsize=256)
def best_attributes(
    choices: tuple[DeviceChoice, ...], others: bool, most: int, *, tied: bool = False
) -> tuple[str, ...] | None:
    """The attributes under which the types of a claim leave out the fewest sets of devices.

    The rest of the alternatives are for sets by device ids. Attributes are removed one by one while that is better:
    few steps, as there are at most some ten, and enough for the types of the catalogue.

    Args:
        choices: of each kind of type.
        others: whether there are types that need one alternative without an attribute.
        most: alternatives of the request.
        tied: whether none is removed.

    Returns:
        None if there is no way to serve all types.
    """

    def judge(attributes: tuple[str, ...]) -> tuple[int, int, int]:
        """Alternatives that are missing, and the sets that are left out: of the type with the most, of all types."""
        unserved = others or not all(_covered(each, attributes) for each in choices)
        lost = [untried(each, attributes, most) for each in choices]
        return (max(0, len(attributes) + unserved - most), max(lost, default=0), sum(lost))

    best = tuple(dict.fromkeys(name for each in choices for name, _ in each.named))
    while best and not tied:
        fewer = min((tuple(each for each in best if each != name) for name in best), key=judge)
        if judge(fewer) >= judge(best):
            break
        best = fewer
    return None if judge(best)[0] else best


def _covered(choice: DeviceChoice, attributes: Collection[str]) -> frozenset[int]:
    return frozenset().union(*(places for name, places in choice.named if name in attributes))
