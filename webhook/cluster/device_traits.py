"""What the nodes of an instance type publish now: single devices, whole nodes, shares of cores, windows, counters.

Unlike the number of devices this follows the slices: if a driver no longer shares cores, claims for shares would
never be allocated.
"""

import dataclasses
import enum
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from neuron import names
from neuron.api.slices import PublishedDevice
from neuron.hardware import windows
from neuron.hardware.instances import Observation

_CONNECTS: Final = re.compile(
    rf"{re.escape(names.DRIVER)}/window[0-9]{{1,3}}_[0-9]{{1,3}}|resource\.aws\.com/devicegroup[0-9]{{1,3}}_id",
    re.ASCII,
)

_OWN_NAME: Final = windows.attribute(6, 0, 16)
"""Of inf1.24xlarge, for windows that inf2.48xlarge has by another name."""
_COMMON_NAME: Final = windows.attribute(6, 1, 16)


class Trait(enum.StrEnum):
    """Something that a ResourceSlice publishes of one instance type."""

    SINGLE = "single"
    """Single devices."""
    WHOLE = "whole"
    """The whole UltraServer node as a device."""
    SHARES = "shares"
    """Single devices whose cores claims can share."""
    WINDOWS = "windows"
    """Single devices with attributes of windows or groups, or with the capacity that drivers with windows publish for
    devices that are alone on their node. Without windows, consecutive devices are requested by device id."""
    COMMON_NAMES = "common-names"
    """Single devices that do not lack names of windows that they have in common with other types, as those of an older
    driver of inf1.24xlarge do."""
    LNC_1 = "lnc-1"
    """Single devices of nodes whose file of defaults sets logical NeuronCores of one physical core."""
    COUNTERS = "counters"
    """Single devices that consume shared counters. Device groups are requested by device id."""


TypeTraits: TypeAlias = tuple[tuple[str, Trait], ...]
"""The traits of one slice with their instance types, each pair once."""


def traits_of(device: PublishedDevice) -> Iterator[Trait]:
    """The traits of a single device. A driver publishes all devices of a node alike."""
    yield Trait.SINGLE
    cores = device.cores is not None
    if cores and device.shared:
        yield Trait.SHARES
    if cores or any(map(_CONNECTS.fullmatch, device.attributes)):
        yield Trait.WINDOWS
    if _OWN_NAME not in device.attributes or _COMMON_NAME in device.attributes:
        yield Trait.COMMON_NAMES
    if device.counters:
        yield Trait.COUNTERS
    if device.attribute(names.ATTRIBUTE_DEFAULT_LNC) == 1:
        yield Trait.LNC_1


class TraitCounts:
    """Counts the slices with each trait, by instance type."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, Trait]] = Counter()

    def replace(self, before: TypeTraits, after: TypeTraits) -> Collection[str]:
        """Replace the traits of one slice; empty before a creation and after a deletion. Returns its types."""
        self._counts.subtract(before)
        self._counts.update(after)
        for each in before:
            if not self._counts[each]:
                del self._counts[each]
        return {name for name, _ in (*before, *after)}

    def observed(self, observations: Mapping[str, Observation], types: Iterable[str]) -> Mapping[str, Observation]:
        """The observations with the present traits of some types: what any of their slices has.

        During an upgrade, pods wait for the nodes that have a trait. Without slices of a type the last traits stay.
        """
        seen = dict(observations)
        for name in types:
            has = {trait for trait in Trait if (name, trait) in self._counts}
            single, whole = Trait.SINGLE in has, Trait.WHOLE in has
            known = observations.get(name, Observation(0))
            # Single devices of a type of which none were observed are in an old generation of their pool.
            if whole or (single and known.devices):
                seen[name] = dataclasses.replace(known, single_devices=single, whole_node=whole)
            if single and name in seen:
                seen[name] = dataclasses.replace(
                    seen[name],
                    shares_cores=Trait.SHARES in has,
                    windows=Trait.WINDOWS in has,
                    common_names=Trait.COMMON_NAMES in has,
                    counters=Trait.COUNTERS in has,
                    # Where only some nodes have it, no setting is right for all of them.
                    default_lnc=1 if self._counts[name, Trait.LNC_1] == self._counts[name, Trait.SINGLE] else None,
                )
        return seen
