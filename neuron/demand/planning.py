"""Plans the requests of a claim: as many placements as the scheduler can search in the time that a claim may cost.

Alternatives are left out, the last first, until the search is short enough (`neuron.demand.search_cost`).
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Final

from neuron import names
from neuron.demand.alternatives import Merged, TooMany, merge
from neuron.demand.instance_fit import DeviceConfig, Serving
from neuron.demand.layout import EXTRA, share_of
from neuron.demand.pieces import Division, divide, divide_with_interfaces
from neuron.demand.placement_options import in_one_place, one_after_the_other, shares_in_one_place

_FEWER: Final = (names.MAX_FIRST_AVAILABLE, 6, 5, 4, 3, 2, 1)
"""Alternatives of a request."""


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """The requests of a claim."""

    merged: Merged
    division: Division


def plan(servings: Sequence[Serving], config: DeviceConfig) -> Plan | TooMany:
    """Plan the claim of a pod.

    Args:
        servings: at least one, all with the same requests; the first are preferred.

    Returns:
        The first plan that costs the scheduler little, of those with fewer and fewer placements; or why there is no
        claim.
    """
    order = ordered(servings[0])
    refused: TooMany | None = None
    plans: list[Plan] = []
    for tried, most in _attempts(servings):
        merged = merge(tried, order, most)
        if isinstance(merged, TooMany):
            refused = refused or merged
            continue
        if merged is None or (plans and len(merged.servings) < len(plans[0].merged.servings)):
            continue  # a type would be left out
        if config.ultraserver_mode is not None:
            return Plan(merged, Division({identity: (merged.alternatives[identity],) for identity in order}, 0))
        if config.efa is not None:
            return Plan(merged, divide_with_interfaces(merged, order, config.efa.count))
        plans.append(Plan(merged, divide(merged, order, divides=config.divides)))
        if plans[-1].division.affordable:
            return plans[-1]
    if refused is not None and not plans:
        return refused
    return min(plans, key=lambda each: each.division.steps)


def plan_in_one_place(servings: Sequence[Serving], config: DeviceConfig) -> Plan | TooMany | None:
    """A plan for whole devices and shares in one place of a node; None if a type has none."""
    fixed = []
    for serving in servings:
        found = shares_in_one_place(serving.entry, serving.layout, serving.connected_sets)
        if found is None:
            return None
        fixed.append(dataclasses.replace(serving, arrangement=found))
    return plan(fixed, config)


def _attempts(servings: Sequence[Serving]) -> Iterator[tuple[Sequence[Serving], int]]:
    yield servings, names.MAX_FIRST_AVAILABLE
    shifted = [_shifted(serving) for serving in servings]
    several = len(servings[0].layout.counts) > 1
    for most in _FEWER:
        yield shifted if several else servings, most
    if any(serving.entry.line is not None and not serving.layout.shares for serving in servings):
        yield [_fixed(serving) for serving in servings], 1


def _fixed(serving: Serving) -> Serving:
    if serving.entry.line is None or serving.layout.shares:
        return serving
    return dataclasses.replace(serving, arrangement=in_one_place(serving.layout, serving.connected_sets))


def _shifted(serving: Serving) -> Serving:
    found = one_after_the_other(serving.entry, serving.layout, serving.connected_sets)
    return serving if found is None else dataclasses.replace(serving, arrangement=found)


def ordered(serving: Serving) -> tuple[int, ...]:
    """Request ids in the order of the claim.

    Connected requests first, the largest first: the allocator searches depth first. With single devices first,
    backtracking on a fragmented node took seconds. A share follows the devices beside which it is.
    """
    layout = serving.layout
    spanned = {identity for each_set in serving.connected_sets for identity in each_set.requests}
    spanned |= {identity for identity, count in layout.counts.items() if serving.entry.line and count > 1}
    leader = {identity: identity for identity in (*layout.counts, *layout.shares)}
    if layout.shares:
        leader |= {share_of(identity): identity for identity in layout.counts}

    def rank(identity: int) -> tuple[bool, int, bool, int, int]:
        count = layout.counts.get(identity, 0)
        return (identity not in spanned, -count, identity == EXTRA, -layout.shares.get(identity, 0), abs(identity))

    return tuple(
        sorted(
            (*layout.counts, *layout.shares),
            key=lambda identity: (rank(leader[identity]), identity not in layout.counts),
        )
    )
