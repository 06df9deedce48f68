"""What the nodes of an instance type publish now: single devices, the whole UltraServer node, or both."""

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from neuron.instances import Observation

SINGLE, WHOLE = "single", "whole"


class OfferCounts:
    """Counts the slices with single devices and with whole nodes, by instance type."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def replace(self, before: Collection[tuple[str, str]], after: Collection[tuple[str, str]]) -> frozenset[str]:
        """Replace the offers (instance type and kind) of one slice; returns the types to look at."""
        self._counts.subtract(before)
        self._counts.update(after)
        return frozenset(name for name, _ in (*before, *after))

    def observed(
        self, types: Iterable[str], observations: Mapping[str, Observation]
    ) -> Iterator[tuple[str, Observation]]:
        """The observations of some types with their present offers. Without slices of a type the last answer stays."""
        for name in types:
            single, whole = (self._counts[name, kind] > 0 for kind in (SINGLE, WHOLE))
            known = observations.get(name, Observation(0))
            # Single devices of a type of which none were observed are in an old generation of their pool.
            if whole or (single and known.devices):
                yield name, dataclasses.replace(known, single_devices=single, whole_node=whole)
