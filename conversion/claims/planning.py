"""Plans the requests of a claim: as many placements as the scheduler can search in the time that a claim may cost.

Alternatives are left out, the last first, until the search is short enough (`neuron.allocator.search_cost`).
"""

import bisect
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import structs

from conversion.claims import work
from conversion.claims.alternatives import Merged, TooMany, merge, untried
from conversion.claims.instance_fit import DeviceConfig, Serving
from conversion.claims.layout import EXTRA, Layout, share_of
from conversion.claims.pieces import Division, divide, divide_with_interfaces
from conversion.claims.placement_options import (
    Arrangement,
    ConnectedSet,
    arrange,
    in_one_place,
    one_after_the_other,
    shares_in_one_place,
)
from neuron import names
from neuron.hardware import neighbours

_FEWER: Final = (1, 2, 3, 4, 5, 6)
"""Alternatives of a request, where 8 cost too much."""

MOST_TRIED: Final = 7
"""Plans that are made for one claim: with all alternatives, with groups by attribute, one run after the other, with one
alternative, two between them, and in one place."""


MOST_PLANS: Final = 256
"""Plans that are remembered, 20 KiB each with all types. A workload has one."""
PLANS_OF_LISTS: Final = 2048
"""Likewise, for lists: 20,000 pods that all differ have about 1,700."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The requests of a claim."""

    merged: Merged
    division: Division


class Numbered:
    """A key of plans: servings without what their plan does not depend on. Pods with the same requests have one plan.

    Ids of requests become ranks, each use of requests stands once, and nothing says which container has it.

    Attributes:
        servings: in the same order.
        places: for each ask, the position of its use; None if it requests no devices.
    """

    def __init__(self, servings: Sequence[Serving]) -> None:
        """Number servings that have equal uses."""
        uses = servings[0].layout.uses
        positions = {use: position for position, use in enumerate(dict.fromkeys(filter(None, uses)))}
        self.places = tuple(map(positions.get, uses))
        identities = {identity for use in positions for identity in use}
        shares = [identity for identity in identities if identity < EXTRA]
        owners = sorted({identity for identity in identities if identity >= 0}.union(map(share_of, shares)))
        ids = {EXTRA: EXTRA} | {owner: rank for rank, owner in enumerate(owners)}
        ids |= {identity: share_of(ids[share_of(identity)]) for identity in shares}
        others = any(identity != rank for identity, rank in ids.items())
        numbered = tuple(tuple(map(ids.__getitem__, use)) for use in positions)
        # Types of one kind share what they are given.
        known: dict[int, tuple[Layout, tuple[ConnectedSet, ...], Arrangement]] = {}
        found = []
        for each in servings:
            layout, arrangement = each.layout, each.arrangement
            alike = known.get(id(arrangement))
            if alike is None:
                sets = each.connected_sets
                if others:
                    arrangement = arrangement.renumbered(ids)
                    sets = tuple(ConnectedSet(tuple(map(ids.__getitem__, one.requests)), one.group) for one in sets)
                lncs = layout.lncs
                lncs = lncs and {ids[identity]: lnc for identity, lnc in lncs.items()}
                layout = Layout(_with(ids, layout.counts), numbered, _with(ids, layout.shares), lncs)
                alike = known[id(each.arrangement)] = layout, sets, arrangement
            found.append(Serving(each.entry, *alike, each.sets_lnc, (), ()))
        self.servings = tuple(found)
        # Of little: hashing all fields of the types costs more than the servings that it would tell apart.
        counts = [count for layout, _, _ in known.values() for count in layout.counts.values()]
        self._hash = hash((numbered, *counts, *[each.entry.name for each in servings]))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Numbered) and self.servings == other.servings

    def of_pod(self, planned: Sequence[Serving], servings: Sequence[Serving]) -> list[Serving]:
        """Planned servings with the uses and devices that the containers have in those that were numbered."""
        numbered = {each.entry.name: each for each in servings}
        layouts: dict[int, Layout] = {}
        found = []
        for each in planned:
            given = numbered[each.entry.name]
            layout = layouts.get(id(each.layout))
            if layout is None:
                uses = tuple(() if place is None else each.layout.uses[place] for place in self.places)
                layout = layouts[id(each.layout)] = structs.replace(each.layout, uses=uses)
            sets, arrangement = each.connected_sets, each.arrangement
            found.append(Serving(given.entry, layout, sets, arrangement, given.sets_lnc, given.devices, given.pools))
        return found


def _with(ids: Mapping[int, int], found: Mapping[int, int]) -> dict[int, int]:
    return {ids[identity]: number for identity, number in found.items()}


def _plan(numbered: Numbered, config: DeviceConfig) -> Plan | TooMany:
    """The plan with runs in two requests if there is one, else that of `plan`."""
    return plan_split(numbered.servings, config) or plan(numbered.servings, config)


remembered_plans: Final = work.Results(_plan, MOST_PLANS, PLANS_OF_LISTS)


def plan(servings: Sequence[Serving], config: DeviceConfig, most_tried: int = MOST_TRIED) -> Plan | TooMany:
    """Plan the claim of a pod.

    Args:
        servings: at least one, all with the same requests; the first are preferred.
        most_tried: plans that may be made.

    Returns:
        The plan with the most placements of those that cost the scheduler little, else the cheapest; or why there is no
        claim.
    """
    plans = _Plans(servings, config, most_tried)
    if plans.affordable(servings):
        return plans.made[-1]
    mixed = _is_mixed(servings)
    # Groups by attribute can be requested beside the device that all runs have in common.
    if mixed and plans.affordable(servings, tied=True):
        return plans.made[-1]
    if len(servings[0].layout.counts) > 1:
        servings = _each(_shifted, servings)
        if plans.affordable(servings):
            return plans.made[-1]
    fewer = _FEWER[: bisect.bisect_left(_FEWER, plans.most_alternatives(servings))]
    if fewer and plans.affordable(servings, fewer[0]):
        return plans.with_most(servings, fewer)
    if any(serving.entry.line is not None and not serving.layout.shares for serving in servings):
        plans.affordable(_each(_fixed, servings), 1)
    return min(plans.made, key=lambda each: each.division.steps) if plans.made else plans.refused[0]


def _is_mixed(servings: Sequence[Serving]) -> bool:
    """Whether types have runs and others groups of the same number of devices, for a scheduler that tries orders."""
    topologies = {serving.entry.line is None for serving in servings}
    counts = {tuple(serving.layout.counts.items()) for serving in servings}
    orders = any(serving.entry.may_try_orders for serving in servings)
    return orders and len(topologies) > 1 and len(counts) == 1


class _Plans:
    """The plans that were made for one claim.

    Attributes:
        made: in that order.
        refused: why there were no others.
    """

    def __init__(self, servings: Sequence[Serving], config: DeviceConfig, most: int) -> None:
        self.made: list[Plan] = []
        self.refused: list[TooMany] = []
        self._order = ordered(servings[0])
        self._config = config
        self._left = most

    def affordable(
        self, servings: Sequence[Serving], most: int = names.MAX_FIRST_AVAILABLE, *, tied: bool = False
    ) -> bool:
        """Make a plan with at most so many alternatives of a request. Returns whether it costs the scheduler little.

        `tied`: as of `merge`.
        """
        if not self._left:
            return False
        self._left -= 1
        work.current().pause()
        merged = merge(servings, self._order, most, tied=tied)
        if isinstance(merged, TooMany):
            self.refused.append(merged)
            return False
        if merged is None or (self.made and len(merged.servings) < len(self.made[0].merged.servings)):
            return False  # a type would be left out
        self.made.append(Plan(merged, _division(merged, self._order, self._config)))
        return self.made[-1].division.affordable or self._config.efa is not None

    def most_alternatives(self, servings: Sequence[Serving]) -> int:
        """Alternatives of a request in the last plan for these servings: with as many, it would be the same again."""
        if not self.made or self.made[-1].merged.servings != tuple(servings):
            return names.MAX_FIRST_AVAILABLE
        return max(map(len, self.made[-1].merged.alternatives.values()))

    def with_most(self, servings: Sequence[Serving], fewer: Sequence[int]) -> Plan:
        """The plan with the most alternatives that is affordable. `fewer`: ascending; the first was affordable."""
        best, low, high = self.made[-1], 0, len(fewer) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.affordable(servings, fewer[middle]):
                best, low = self.made[-1], middle
            else:
                high = middle - 1
        return best


def _division(merged: Merged, order: Sequence[int], config: DeviceConfig) -> Division:
    if config.ultraserver_mode is not None:
        return Division({identity: (merged.alternatives[identity],) for identity in order}, 0)
    if config.efa is not None:
        return divide_with_interfaces(merged, order, config.efa.count)
    return divide(merged, order, divides=config.divides)


def plan_in_one_place(servings: Sequence[Serving], config: DeviceConfig) -> Plan | TooMany | None:
    """A plan for whole devices and shares in one place of a node; None if a type has none."""
    fixed = []
    for serving in servings:
        found = shares_in_one_place(serving.entry, serving.layout, serving.connected_sets)
        if found is None:
            return None
        fixed.append(dataclasses.replace(serving, arrangement=found))
    return plan(fixed, config)


def plan_split(servings: Sequence[Serving], config: DeviceConfig) -> Plan | None:
    """A plan where runs that have more starts than alternatives are two requests each, so that they can start anywhere.

    Returns:
        None if there are no such runs, if a type cannot divide its request, or if the search costs too much. All
        alternatives are listed: the constraints that keep the two requests together count on it.
    """
    sizes = {
        identity: run.size
        for serving in servings
        if serving.entry.line is not None and config.divides
        for identity, choice in serving.arrangement.choices.items()
        if (run := neighbours.split(serving.entry.line, serving.layout.counts[identity], serving.entry.windows))
        and untried(choice, [name for name, _ in choice.named], names.MAX_FIRST_AVAILABLE)
    }
    divided = [each for serving in servings if (each := _split(serving, sizes)) is not None] if sizes else []
    if len(divided) < len(servings) or len({each.layout.uses for each in divided}) > 1:
        return None
    planned = plan(divided, config, 1)
    if not isinstance(planned, Plan) or not planned.division.affordable:
        return None
    listed = len(planned.merged.servings) == len(divided) and all(
        len(planned.merged.options(each, identity)) == len(options)
        for each in divided
        for identity, options in each.arrangement.options.items()
    )
    return planned if listed else None


def _split(serving: Serving, sizes: Mapping[int, int]) -> Serving | None:
    """The serving with two requests for each of these; None if it is served in one only.

    Args:
        sizes: devices of the first of the two, by request id, on a ring or chain. On types with device groups the two
            are in one group, and any division is as good.
    """
    entry, layout = serving.entry, serving.layout
    counts = dict(layout.counts)
    uses = layout.uses
    sets = {each.requests: each for each in serving.connected_sets}
    for identity, size in sizes.items():
        count, pair = counts.get(identity, 0), (identity, share_of(identity))
        line, together = entry.line, any(identity in use and len(use) > 1 for use in uses)
        whole = line is not None and count < line.devices and neighbours.split(line, count, entry.windows) is None
        if whole or together or count < 2 or identity < 0:
            return None
        counts[identity] = min(size, count - 1)
        counts[pair[1]] = count - counts[identity]
        uses = tuple(pair if use == (identity,) else use for use in uses)
        alone = sets.pop((identity,), None)
        sets[pair] = ConnectedSet(pair, None if alone is None else alone.group)
    divided = structs.replace(layout, counts=counts, uses=uses)
    arrangement = arrange(entry, divided, tuple(sets.values()))
    if arrangement.fixed:
        return None
    return dataclasses.replace(serving, layout=divided, connected_sets=tuple(sets.values()), arrangement=arrangement)


def _each(change: Callable[[Serving], Arrangement | None], servings: Sequence[Serving]) -> list[Serving]:
    """The servings with other arrangements. What types of one arrangement have in common is arranged once."""
    changed: dict[object, Arrangement | None] = {}
    found = []
    for serving in servings:
        key = id(serving.arrangement), serving.entry.line
        if key not in changed:
            changed[key] = change(serving)
        arrangement = changed[key]
        found.append(serving if arrangement is None else dataclasses.replace(serving, arrangement=arrangement))
    return found


def _fixed(serving: Serving) -> Arrangement | None:
    if serving.entry.line is None or serving.layout.shares:
        return None
    return in_one_place(serving.layout, serving.connected_sets)


def _shifted(serving: Serving) -> Arrangement | None:
    return one_after_the_other(serving.entry, serving.layout, serving.connected_sets)


def ordered(serving: Serving) -> tuple[int, ...]:
    """Request ids in the order of the claim.

    Connected requests first, the largest first: the allocator searches depth first. With single devices first,
    backtracking on a fragmented node took seconds. What is beside other devices follows them.
    """
    layout = serving.layout
    spanned = {identity for each_set in serving.connected_sets for identity in each_set.requests}
    spanned |= {identity for identity, count in layout.counts.items() if serving.entry.line and count > 1}
    leader = {identity: identity for identity in (*layout.counts, *layout.shares)}
    leader |= {share_of(identity): identity for identity in layout.counts if identity >= 0}

    def rank(identity: int) -> tuple[bool, int, bool, int, int]:
        count = layout.counts.get(identity, 0)
        return (identity not in spanned, -count, identity == EXTRA, -layout.shares.get(identity, 0), abs(identity))

    return tuple(
        sorted(
            (*layout.counts, *layout.shares),
            key=lambda identity: (rank(leader[identity]), identity != leader[identity]),
        )
    )
