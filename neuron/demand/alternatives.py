"""Merges the alternatives that instance types need for one claim.

A request lists an alternative once for all types that need the same: count, cores, device ids and constraints.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from neuron import names
from neuron.demand.instance_fit import Serving
from neuron.demand.placement_options import (
    Arrangement,
    AttributeTie,
    Member,
    Option,
    arrange,
    fits_empty_node,
    in_one_place,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Alternative:
    """One alternative of a request.

    Attributes:
        name: unique in its request.
        constraints: attribute and requests of each constraint on it.
        types: names of the instance types that it is for.
        others: whether the request has other alternatives.
    """

    name: str
    option: Option
    constraints: frozenset[tuple[str, tuple[int, ...]]]
    types: tuple[str, ...]
    others: bool = False


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


@dataclasses.dataclass(frozen=True, slots=True)
class TooMany:
    """Why the alternatives do not fit into a claim."""

    count: int
    what: str
    most: int


_Shape: TypeAlias = tuple[Option, frozenset[tuple[str, tuple[int, ...]]]]
"""What an alternative requests, with the attribute and the requests of each constraint on it."""


def merge(
    servings: Sequence[Serving], order: Sequence[int], most: int = names.MAX_FIRST_AVAILABLE
) -> Merged | TooMany | None:
    """Merge the alternatives of several instance types.

    Args:
        servings: at least one, all with the same requests; the first are preferred.
        order: request ids in the order of the claim.
        most: alternatives of a request; more only where that many types differ.

    Returns:
        The claim; or why there is none. On an empty node of each type, the alternatives that are listed fit together: a
        type on which they do not is served in one place, or not at all. None if no type is left.
    """
    found = _merge(servings, order, most)
    while isinstance(found, Merged) and (cramped := _cramped(found, order)) is not None:
        again = list(found.servings)
        place = again.index(cramped)
        if cramped.layout.shares:
            del again[place]
            if not again:
                return None
        else:
            again[place] = dataclasses.replace(cramped, arrangement=_with_one_option(cramped))
        found = _merge(again, order, most)
    return found


def _with_one_option(serving: Serving) -> Arrangement:
    """The arrangement with one alternative for each request: a place on the line, or device groups by attribute."""
    if serving.entry.line is not None:
        return in_one_place(serving.layout, serving.connected_sets)
    return arrange(serving.entry, serving.layout, serving.connected_sets, by_ids=False)


def _cramped(merged: Merged, order: Sequence[int]) -> Serving | None:
    """The last type for which so many alternatives are left out that the others do not fit its empty node."""
    for serving in reversed(merged.servings):
        all_options = serving.arrangement.options
        # One request with alternatives fits beside requests that take any device.
        if sum(1 for each in all_options.values() if len(each) > 1) < 2:
            continue
        options = {
            identity: [
                option
                for option, shape in zip(all_options[identity], _shapes(serving, identity), strict=True)
                if any((each.option, each.constraints) == shape for each in merged.alternatives[identity])
            ]
            for identity in order
        }
        left_out = any(len(options[identity]) < len(all_options[identity]) for identity in order)
        # In device groups, requests that containers use together have no alternatives.
        connected_sets = serving.connected_sets if serving.entry.line is not None else ()
        if left_out and not fits_empty_node(serving.entry, serving.layout, connected_sets, options):
            return serving
    return None


def _merge(servings: Sequence[Serving], order: Sequence[int], at_most: int) -> Merged | TooMany:
    # Most types of a family are arranged alike: each arrangement is looked at once.
    alike: dict[object, list[Serving]] = {}
    for serving in servings:
        arrangement = serving.arrangement
        alike.setdefault((tuple(arrangement.options.items()), arrangement.ties), []).append(serving)
    groups = list(alike.values())
    shapes = [{identity: _shapes(members[0], identity) for identity in order} for members in groups]
    for most in range(at_most, 0, -1):
        kept = {identity: _kept([each[identity] for each in shapes], most) for identity in order}
        needed = max(len(each) for each in kept.values())
        if needed > names.MAX_FIRST_AVAILABLE:
            return TooMany(needed, "different requests", names.MAX_FIRST_AVAILABLE)
        ties = _ties([members[0] for members in groups], shapes, kept, order)
        if len(ties) <= names.MAX_CONSTRAINTS_PER_CLAIM:
            break
    else:
        return TooMany(len(ties), "constraints", names.MAX_CONSTRAINTS_PER_CLAIM)
    rank = {serving.entry.name: place for place, serving in enumerate(servings)}
    alternatives = {
        identity: tuple(
            _named(
                kept[identity],
                [(members, each[identity]) for members, each in zip(groups, shapes, strict=True)],
                rank,
            )
        )
        for identity in order
    }
    return Merged(tuple(servings), alternatives, ties)


def _shapes(serving: Serving, identity: int) -> list[_Shape]:
    arrangement = serving.arrangement
    constraints: dict[int, set[tuple[str, tuple[int, ...]]]] = {}
    for tie in arrangement.ties:
        for member, position in tie.members:
            if member == identity:
                constraints.setdefault(position, set()).add((tie.attribute, _requests(tie)))
    return [
        (option, frozenset(constraints.get(position, ())))
        for position, option in enumerate(arrangement.options[identity])
    ]


def _requests(tie: AttributeTie) -> tuple[int, ...]:
    return tuple(identity for identity, _ in tie.members)


def _kept(by_type: Sequence[Sequence[_Shape]], most: int) -> dict[_Shape, int]:
    """The shapes to list with their positions: the first of each type, then the second of each, up to `most`."""
    kept: set[_Shape] = {shapes[0] for shapes in by_type}
    for rank in range(1, max(map(len, by_type))):
        for shapes in by_type:
            if len(kept) < most and rank < len(shapes):
                kept.add(shapes[rank])
    found: dict[_Shape, int] = {}
    for shapes in by_type:
        for shape in shapes:
            if shape in kept:
                found.setdefault(shape, len(found))
    return found


def _ties(
    servings: Sequence[Serving],
    shapes: Sequence[Mapping[int, Sequence[_Shape]]],
    kept: Mapping[int, Mapping[_Shape, int]],
    order: Sequence[int],
) -> tuple[AttributeTie, ...]:
    """The constraints on kept alternatives; one for each attribute and set of requests.

    A request picks one alternative, so alternatives of one request can be in one constraint.
    """
    members: dict[tuple[str, tuple[int, ...]], dict[Member, None]] = {}
    for serving, by_request in zip(servings, shapes, strict=True):
        for tie in serving.arrangement.ties:
            places = [
                (identity, kept[identity].get(by_request[identity][position])) for identity, position in tie.members
            ]
            found = [(identity, place) for identity, place in places if place is not None]
            if len(found) == len(places):
                members.setdefault((tie.attribute, _requests(tie)), {}).update(dict.fromkeys(found))
    rank = {identity: place for place, identity in enumerate(order)}
    ties = [
        AttributeTie(attribute, tuple(sorted(found, key=lambda member: (rank[member[0]], member[1]))))
        for (attribute, _), found in members.items()
    ]
    # By alternative, then by request.
    ties.sort(key=lambda tie: (tie.members[0][1], sorted({rank[identity] for identity, _ in tie.members})))
    return tuple(ties)


def _named(
    kept: Mapping[_Shape, int],
    groups: Sequence[tuple[Sequence[Serving], Sequence[_Shape]]],
    rank: Mapping[str, int],
) -> Iterator[Alternative]:
    """Name each alternative after the family of its first type."""
    taken: dict[str, int] = {}
    for shape in kept:
        members = [serving.entry for servings, shapes in groups if shape in shapes for serving in servings]
        members.sort(key=lambda entry: rank[entry.name])
        family = members[0].family
        taken[family] = taken.get(family, 0) + 1
        name = family if taken[family] == 1 else f"{family}-{taken[family]}"
        yield Alternative(name, *shape, tuple(entry.name for entry in members), len(kept) > 1)
