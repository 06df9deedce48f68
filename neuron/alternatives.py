"""Merges the alternatives that instance types need for one claim.

A request lists an alternative once for all types that need the same: count, cores, device ids and constraints.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from neuron import names
from neuron.arrangement import Member, Option, Tie
from neuron.serving import Serving


@dataclasses.dataclass(frozen=True, slots=True)
class Alternative:
    """One alternative of a request.

    Attributes:
        name: unique in its request.
        option: what it requests.
        types: names of the instance types that it is for.
    """

    name: str
    option: Option
    types: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Merged:
    """The requests and constraints of a claim.

    Attributes:
        alternatives: by request id, in order.
        ties: the constraints. A position is that of an alternative here.
    """

    alternatives: Mapping[int, tuple[Alternative, ...]]
    ties: tuple[Tie, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class TooMany:
    """Why the alternatives do not fit into a claim."""

    count: int
    what: str
    most: int


_Shape: TypeAlias = tuple[Option, frozenset[tuple[str, tuple[int, ...]]]]
"""What an alternative requests, with the attribute and the requests of each constraint on it."""


def merge(servings: Sequence[Serving], order: Sequence[int]) -> Merged | TooMany:
    """Merge the alternatives of several instance types.

    Args:
        servings: at least one, all with the same requests; the first are preferred.
        order: request ids in the order of the claim.
    """
    shapes = [{identity: _shapes(serving, identity) for identity in order} for serving in servings]
    for most in range(names.MAX_FIRST_AVAILABLE, 0, -1):
        kept = {identity: _kept([each[identity] for each in shapes], most) for identity in order}
        needed = max(len(each) for each in kept.values())
        if needed > names.MAX_FIRST_AVAILABLE:
            return TooMany(needed, "different requests", names.MAX_FIRST_AVAILABLE)
        ties = _ties(servings, shapes, kept, order)
        if len(ties) <= names.MAX_CONSTRAINTS_PER_CLAIM:
            break
    else:
        return TooMany(len(ties), "constraints", names.MAX_CONSTRAINTS_PER_CLAIM)
    alternatives = {
        identity: _named(
            kept[identity], [(serving, each[identity]) for serving, each in zip(servings, shapes, strict=True)]
        )
        for identity in order
    }
    return Merged(alternatives, ties)


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


def _requests(tie: Tie) -> tuple[int, ...]:
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
) -> tuple[Tie, ...]:
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
        Tie(attribute, tuple(sorted(found, key=lambda member: (rank[member[0]], member[1]))))
        for (attribute, _), found in members.items()
    ]
    # By alternative, then by request.
    ties.sort(key=lambda tie: (tie.members[0][1], sorted({rank[identity] for identity, _ in tie.members})))
    return tuple(ties)


def _named(kept: Mapping[_Shape, int], servings: Sequence[tuple[Serving, Sequence[_Shape]]]) -> tuple[Alternative, ...]:
    """Name each alternative after the family of its first type."""
    taken: dict[str, int] = {}
    found = []
    for shape in kept:
        members = [serving.entry for serving, shapes in servings if shape in shapes]
        family = members[0].family
        taken[family] = taken.get(family, 0) + 1
        name = family if taken[family] == 1 else f"{family}-{taken[family]}"
        found.append(Alternative(name, shape[0], tuple(entry.name for entry in members)))
    return tuple(found)
