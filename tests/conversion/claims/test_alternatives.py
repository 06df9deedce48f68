"""Alternatives of several types in one claim: within the limits of the API, and together on an empty node."""

import dataclasses
from collections.abc import Mapping, Sequence

from conversion.claims.alternatives import Merged, TooMany, merge
from conversion.claims.instance_fit import Serving
from conversion.claims.layout import Layout, mask
from conversion.claims.placement_options import Arrangement, AttributeTie, Option
from neuron.hardware.instances import InstanceType, Topology

RING = InstanceType("odd.large", "odd", 18, 4, (1,), 1, None, Topology.RING)


def pair(start: int) -> Option:
    ids = (start, start + 1)
    return Option(2, ids=ids, places=((mask(ids), 0),))


def serving(
    options: Mapping[int, Sequence[Option]],
    *,
    ties: Sequence[AttributeTie] = (),
    entry: InstanceType = RING,
    shared: int = 0,
) -> Serving:
    """A type that serves a container for each request; the last `shared` of them are shares of cores."""
    ids = tuple(options)
    whole, shares = ids[: len(ids) - shared], ids[len(ids) - shared :]
    layout = Layout(dict.fromkeys(whole, 2), tuple((each,) for each in ids), dict.fromkeys(shares, 1))
    arrangement = Arrangement({key: tuple(each) for key, each in options.items()}, tuple(ties))
    return Serving(entry, layout, (), arrangement, False, (2,) * len(ids))


def ids(merged: Merged | TooMany | None) -> dict[int, list[tuple[int, ...]]]:
    assert isinstance(merged, Merged)
    (serving,) = merged.servings
    return {request: [each.ids for each in merged.options(serving, request)] for request in merged.alternatives}


def tied(requests: int, places: int) -> Serving:
    """Each request has as many places, each with a constraint."""
    options = {request: [pair((request + place) % 9 * 2) for place in range(places)] for request in range(requests)}
    ties = [AttributeTie(f"a{place}", ((request, place),)) for request in range(requests) for place in range(places)]
    return serving(options, ties=ties)


def test_a_request_has_fewer_alternatives_if_constraints_would_be_too_many() -> None:
    merged = merge([tied(9, 4)], range(9))
    assert isinstance(merged, Merged)
    assert {len(each) for each in merged.alternatives.values()} == {3}
    assert len(merged.ties) == 27
    as_many = merge([tied(8, 4)], range(8))
    assert isinstance(as_many, Merged)
    assert len(as_many.ties) == 32, "the limit of the API"


def test_constraints_that_are_too_many_with_one_alternative_are_refused() -> None:
    ties = [AttributeTie(f"a{number}", ((0, 0),)) for number in range(33)]
    assert merge([serving({0: [pair(0)]}, ties=ties)], (0,)) == TooMany(33, "constraints", 32)


def test_alternatives_that_do_not_fit_together_give_way_to_one_place() -> None:
    options = {0: [pair(0), pair(2)], 1: [pair(0), pair(4)]}
    assert ids(merge([serving(options)], (0, 1))) == {0: [(0, 1), (2, 3)], 1: [(0, 1), (4, 5)]}
    fixed = merge([serving(options)], (0, 1), most=1)
    assert isinstance(fixed, Merged)
    assert fixed.servings[0].arrangement.fixed
    assert not {*ids(fixed)[0]} & {*ids(fixed)[1]}


def test_one_request_with_alternatives_keeps_those_of_its_type() -> None:
    options = {0: [pair(0), pair(2)], 1: [Option(2)]}
    assert ids(merge([serving(options)], (0, 1), most=1)) == {0: [(0, 1)], 1: [()]}


def test_a_type_with_shares_that_does_not_fit_is_left_out() -> None:
    core = {2: [Option(1, 1)]}
    cramped = serving({0: [pair(0), pair(2)], 1: [pair(0), pair(4)], **core}, shared=1)
    assert merge([cramped], (0, 1, 2), most=1) is None
    other = dataclasses.replace(RING, name="even.large", family="even")
    roomy = serving({0: [pair(6), pair(8)], 1: [pair(8), pair(6)], **core}, shared=1, entry=other)
    merged = merge([cramped, roomy], (0, 1, 2), most=1)
    assert isinstance(merged, Merged)
    assert [each.entry.name for each in merged.servings] == ["even.large"]
