"""What the ResourceSlices of an instance type have in common beside attributes: shares of cores, and windows.

Unlike the number of devices this follows the slices: if a driver no longer shares cores, claims for shares would wait
for ever.
"""

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from typing import Any, Final, TypeAlias

from neuron import names

_CAPACITIES: Final = frozenset(names.CORES_SPELLINGS)
_CONNECTS: Final = re.compile(
    rf"({re.escape(names.DRIVER)}/)?window[0-9]{{1,3}}_[0-9]{{1,3}}|resource\.aws\.com/devicegroup[0-9]{{1,3}}_id",
    re.ASCII,
)


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Traits:
    """Of the devices of one type in one ResourceSlice.

    Attributes:
        shares_cores: whether claims can share the cores of a device.
        windows: whether the driver publishes windows: the devices have attributes of windows or groups, or the
            capacity that drivers with windows publish for devices that are alone on their node. Without windows,
            consecutive devices are requested by device id.
    """

    shares_cores: bool = False
    windows: bool = False


TypeTraits: TypeAlias = tuple[tuple[str, Traits], ...]
"""Traits by instance type, sorted."""


def read_traits(device: Mapping[str, Any]) -> Traits:
    """The traits of one device of a ResourceSlice. A driver publishes all devices of a node alike."""
    cores = not _CAPACITIES.isdisjoint(device.get("capacity") or ())
    connected = any(map(_CONNECTS.fullmatch, device.get("attributes") or ()))
    return Traits(cores and device.get("allowMultipleAllocations") is True, connected or cores)


class TraitCounts:
    """Counts the slices with each combination of traits, by instance type."""

    def __init__(self) -> None:
        self._counts: defaultdict[str, Counter[Traits]] = defaultdict(Counter)

    def replace(self, before: TypeTraits, after: TypeTraits) -> Collection[str]:
        """Replace the traits of one slice; empty before a creation and after a deletion.

        Returns:
            The types whose traits may have changed. A type without slices is not among them: it keeps its last traits.
        """
        if before == after:
            return ()
        for instance_type, traits in before:
            self._counts[instance_type][traits] -= 1
        for instance_type, traits in after:
            self._counts[instance_type][traits] += 1
        for instance_type in {name for name, _ in (*before, *after)}:
            counts = self._counts[instance_type]
            for traits in [each for each, count in counts.items() if not count]:
                del counts[traits]
            if not counts:
                del self._counts[instance_type]
        return {name for name, _ in (*before, *after) if name in self._counts}

    def of(self, instance_type: str) -> Traits:
        """What any slice of a type has: during an upgrade, pods wait for the nodes that have it."""
        counts = self._counts[instance_type]
        return Traits(any(each.shares_cores for each in counts), any(each.windows for each in counts))
