"""Arranges the requests of a claim on one instance type: the alternatives of each request, and what ties them together.

On rings and chains devices are consecutive (`neuron.hardware.windows`); elsewhere device groups connect them.
"""

import dataclasses
import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from conversion.claims.layout import Layout, Place, fits, mask
from neuron import names
from neuron.hardware import neighbours, windows
from neuron.hardware.instances import InstanceType
from neuron.hardware.windows import DeviceChoice, Line, Placement

LEAST_COVERED: Final = 0.5
"""Share of the placements that a claim for whole devices and cores beside them has to allow. With fewer, whole devices
are the better choice: they find a place."""


MOST_SEARCHED: Final = 7
"""Devices of the largest request of which the allocator can try the devices in every order for eight windows."""


_LARGEST_OF_ANY: Final = 12
"""Devices of the largest request for any devices of a node, if the allocator tries every set once: 2,048 steps where
one device is missing, and twice as many for each device more."""


@dataclasses.dataclass(frozen=True, slots=True)
class ConnectedSet:
    """Requests whose devices must be connected with each other, because one container uses them together.

    Attributes:
        requests: request ids, ascending.
        group: size of the device group that must contain them all; None if they are the whole node, or consecutive.
    """

    requests: tuple[int, ...]
    group: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """One alternative of a request.

    Attributes:
        cores: physical cores of each device; 0 for whole devices.
        ids: device ids to choose from; empty for any.
        places: the sets of consecutive devices that it allows; empty where no others are consecutive with them.
    """

    count: int
    cores: int = 0
    ids: tuple[int, ...] = ()
    places: tuple[Place, ...] = dataclasses.field(default=(), compare=False)


Member: TypeAlias = tuple[int, int]
"""Id of a request, and the position of one of its alternatives."""


@dataclasses.dataclass(frozen=True, slots=True)
class AttributeTie:
    """An attribute that all devices of these alternatives must have with the same value."""

    attribute: str
    members: tuple[Member, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Arrangement:
    """The requests of a claim on one instance type.

    Attributes:
        options: alternatives by request id, in order; at most 8.
        fixed: whether the claim fits in one place of a node only.
        choices: by request id, everything that a request can get that no other request is connected with. `options`
            has as much of it as a claim for this type alone can list.
    """

    options: Mapping[int, tuple[Option, ...]]
    ties: tuple[AttributeTie, ...]
    fixed: bool = False
    choices: Mapping[int, DeviceChoice] = dataclasses.field(default_factory=dict)

    def renumbered(self, ids: Mapping[int, int]) -> "Arrangement":
        """The same with other request ids."""
        ties = tuple(
            AttributeTie(tie.attribute, tuple((ids[identity], position) for identity, position in tie.members))
            for tie in self.ties
        )
        options = {ids[identity]: found for identity, found in self.options.items()}
        return Arrangement(options, ties, self.fixed, {ids[each]: choice for each, choice in self.choices.items()})


def arrange(
    entry: InstanceType, layout: Layout, connected_sets: Sequence[ConnectedSet], *, by_ids: bool = True
) -> Arrangement:
    """Arrange a layout. `by_ids`: whether requests in device groups may have alternatives by device ids."""
    if entry.line is not None:
        beside = all(
            len(each.requests) == 2
            and (
                layout.has_rest(max(each.requests))
                or may_be_beside(entry, *(layout.size((identity,)) for identity in each.requests)) > 0
            )
            for each in connected_sets
        )
        found = _consecutive(entry, entry.line, layout, connected_sets) if beside else None
        if found is not None and fits_empty_node(entry, layout, connected_sets, found.options):
            return found
        return in_one_place(layout, connected_sets)
    return _grouped(entry, layout, connected_sets, by_ids=by_ids)


def _grouped(
    entry: InstanceType, layout: Layout, connected_sets: Sequence[ConnectedSet], *, by_ids: bool
) -> Arrangement:
    """Sets in device groups: by the attribute of the group, or by alternatives with device ids.

    The latter is for nodes whose devices consume counters, one for each group. There, up to Kubernetes 1.36.2, a
    constraint fails if one device of the node is in use (kubernetes/kubernetes#140436). Requests that several
    containers use together keep the attribute: each request chooses its alternative alone. And it is for most of the
    devices of a node, whose subsets are too many to search: one for each run.
    """
    options, ties = _untied(layout), []
    choices: dict[int, DeviceChoice] = {}
    spanned = [identity for each in connected_sets for identity in each.requests if len(each.requests) > 1]
    devices = entry.devices or 0
    most_of_any = MOST_SEARCHED if entry.may_try_orders else _LARGEST_OF_ANY
    for each in connected_sets:
        (first, *others) = each.requests
        count = layout.counts.get(first, 1)
        shared = bool(others) and all(identity in layout.shares for identity in others)
        if by_ids and most_of_any < count < devices == (each.group or devices):
            runs = _runs_of_node(count, devices, entry.groups)
            if not others or shared:
                options[first] = tuple(option_of(count, ids) for ids in runs[: names.MAX_FIRST_AVAILABLE])
            if not others:
                choices[first] = DeviceChoice(runs)
                continue
        if each.group is None:
            continue
        attribute = names.device_group_attribute(each.group)
        groups = tuple(tuple(range(start, start + each.group)) for start in range(0, devices, each.group))
        alone = first not in spanned
        in_groups = by_ids and entry.counters and alone and 1 < len(groups) <= names.MAX_FIRST_AVAILABLE
        if alone:
            choices[first] = DeviceChoice(groups, () if in_groups else ((attribute, frozenset(range(len(groups)))),))
        if in_groups:
            options[first] = tuple(option_of(count, ids) for ids in groups)
        else:
            if others and layout.has_rest(first) and layout.size(each.requests) == each.group:
                # Of each group the first devices and the others: fewer ways to choose them.
                options[first] = (Option(count, ids=tuple(device for ids in groups for device in ids[:count])),)
                rest = tuple(device for ids in groups for device in ids[count:])
                options[others[0]] = (Option(each.group - count, ids=rest),)
            members = [(identity, place) for identity in each.requests for place, _ in enumerate(options[identity])]
            ties.append(AttributeTie(attribute, tuple(members)))
    return Arrangement(options, tuple(ties), choices=choices)


def option_of(count: int, ids: tuple[int, ...]) -> Option:
    """The alternative for `count` of these devices, by their ids."""
    return Option(count, ids=tuple(sorted(ids)), places=_whole(count, [ids]))


def _whole(count: int, sets: Sequence[Sequence[int]]) -> tuple[Place, ...]:
    """The places of a request that gets all devices of one of these sets; empty if it gets some of them."""
    return tuple((mask(ids), 0) for ids in sets) if all(len(ids) == count for ids in sets) else ()


def _overlap(first: int, size: int, run: range) -> bool:
    return first < run.stop and run.start < first + size


@functools.lru_cache(maxsize=64)
def _runs_of_node(count: int, devices: int, groups: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Consecutive devices of a node, each run by its ids: first those that leave the most groups whole."""

    def broken(start: int) -> tuple[int, int]:
        run = range(start, start + count)
        return sum(size for size in groups for first in range(0, devices, size) if _overlap(first, size, run)), start

    starts = sorted(range(devices - count + 1), key=broken)
    return tuple(tuple(range(start, start + count)) for start in starts)


def fits_empty_node(
    entry: InstanceType,
    layout: Layout,
    connected_sets: Sequence[ConnectedSet],
    options: Mapping[int, Sequence[Option]],
) -> bool:
    """Whether these alternatives have place on an empty node of a ring or chain, all requests together."""
    pairs = dict(_ordered(layout, each.requests) for each in connected_sets)
    seconds = set(pairs.values())
    runs = []
    for identity in sorted(layout.counts.keys() - seconds, key=lambda each: (-layout.counts[each], each)):
        places = tuple(place for option in options[identity] for place in option.places)
        if places:
            runs.append((places, layout.shares.get(pairs.get(identity, identity), 0)))
    singles = len(layout.counts.keys() - seconds) - len(runs)
    shares = tuple(sorted(cores for identity, cores in layout.shares.items() if identity not in seconds))
    return fits(entry.devices or 0, entry.cores_per_device or 1, tuple(runs), singles, shares)


def in_one_place(layout: Layout, connected_sets: Sequence[ConnectedSet]) -> Arrangement:
    """One request after the other from device 0, the requests of a set beside each other: it fits an empty node.

    The layout has no shares.
    """
    together = [identity for each in connected_sets for identity in each.requests]
    others = sorted(layout.counts.keys() - set(together), key=lambda identity: (-layout.counts[identity], identity))
    options = _untied(layout)
    start = 0
    for identity in (*together, *others):
        count = layout.size((identity,))
        if count > 1 or identity in together:
            options[identity] = (Option(count, ids=tuple(range(start, start + count))),)
        start += count
    return Arrangement(options, (), fixed=True)


def shares_in_one_place(
    entry: InstanceType, layout: Layout, connected_sets: Sequence[ConnectedSet]
) -> Arrangement | None:
    """As `in_one_place`, with shares: each is beside the devices of its set, and two are on one device if they fit.

    None elsewhere than on rings and chains, and where the line is too short.
    """
    line, per_device = entry.line, entry.cores_per_device or 1
    if line is None or any(len(each.requests) != 2 for each in connected_sets):
        return None
    options = _untied(layout)
    # The next free device, and the cores that are free on the one before it.
    start = left = 0

    def run(identity: int) -> None:
        nonlocal start, left
        count = layout.counts[identity]
        options[identity] = (Option(count, ids=tuple(range(start, start + count))),)
        start, left = start + count, 0

    def share(identity: int) -> None:
        nonlocal start, left
        cores = layout.shares[identity]
        if left < cores:
            start, left = start + 1, per_device
        options[identity] = (Option(1, cores, ids=(start - 1,)),)
        left -= cores

    pairs = [_ordered(layout, each.requests) for each in connected_sets]
    for first, second in pairs:
        # The share of every other pair is before its devices, on the device of the share before.
        steps = [(run, first), (share if second in layout.shares else run, second)]
        if layout.shares.get(second, per_device + 1) <= left:
            steps.reverse()
        for place, identity in steps:
            place(identity)
    paired = {identity for pair in pairs for identity in pair}
    for identity in sorted(layout.shares.keys() - paired, key=lambda each: (-layout.shares[each], each)):
        share(identity)
    for identity in sorted(layout.counts.keys() - paired, key=lambda each: (-layout.counts[each], each)):
        run(identity)
    return Arrangement(options, (), fixed=True) if start <= line.devices else None


def one_after_the_other(
    entry: InstanceType, layout: Layout, connected_sets: Sequence[ConnectedSet]
) -> Arrangement | None:
    """Runs in their order on a ring or chain, each at every start that leaves place for those before and after it.

    The starts of a run are consecutive, so that its windows have devices in common, which one request can name.
    None where requests have to be beside each other, and elsewhere than on rings and chains.
    """
    if entry.line is None or connected_sets or layout.shares:
        return None
    options = _untied(layout)
    slack = entry.line.devices - layout.total
    start = 0
    for identity in sorted(layout.counts, key=lambda each: (-layout.counts[each], each)):
        count = layout.counts[identity]
        if count > 1:
            windows_ = [entry.line.window(count, start + shift) for shift in range(slack + 1)]
            options[identity] = tuple(option_of(count, ids) for ids in windows_[: names.MAX_FIRST_AVAILABLE])
        start += count
    return Arrangement(options, ())


def _untied(layout: Layout) -> dict[int, tuple[Option, ...]]:
    whole: dict[int, tuple[Option, ...]] = {identity: (Option(count),) for identity, count in layout.counts.items()}
    return whole | {identity: (Option(1, cores),) for identity, cores in layout.shares.items()}


def _consecutive(
    entry: InstanceType, line: Line, layout: Layout, connected_sets: Sequence[ConnectedSet]
) -> Arrangement:
    """Every window of every request, as far as 8 alternatives go."""
    options, ties = _untied(layout), []
    paired: set[int] = set()
    for each in connected_sets:
        first, second = _ordered(layout, each.requests)
        paired.update(each.requests)
        if layout.has_rest(first):
            run = neighbours.split(line, layout.size((first, second)), entry.windows)
            if run is None:
                continue  # all devices of the node
            options[first] = tuple(
                Option(run.size, ids=ids, places=_masks(places))
                for ids, places in zip(run.first, run.places, strict=True)
            )
            options[second] = tuple(Option(layout.counts[second], ids=ids) for ids in run.second)
            for attribute, firsts, seconds in run.ties:
                members = (*((first, place) for place in firsts), *((second, place) for place in seconds))
                ties.append(AttributeTie(attribute, members))
            continue
        found = neighbours.beside(line, layout.size((first,)), layout.size((second,))).alternatives
        options[first] = _beside(line, layout.counts[first], layout.size((first,)), layout.size((second,)))
        for position, alternative in enumerate(found):
            ties.append(AttributeTie(alternative.union, ((first, position), (second, 0))))
            ties += _own_tie(alternative.own, (first, position))
    choices: dict[int, DeviceChoice] = {}
    for identity, count in layout.counts.items():
        if identity in paired or count == 1:
            continue
        if line.connects_any(count):
            runs = [line.window(count, start) for start in line.starts(count)]
            options[identity] = (Option(count, places=_whole(count, runs[: None if count < line.devices else 1])),)
            continue
        choices[identity] = choice = _choice(entry, line, count)
        attributes = tuple(name for name, _ in choice.named)
        options[identity], tied = options_of(choice, count, attributes, names.MAX_FIRST_AVAILABLE)
        ties += [AttributeTie(name, ((identity, position),)) for position, name in enumerate(tied) if name]
    return Arrangement(options, tuple(ties), choices=choices)


def _choice(entry: InstanceType, line: Line, count: int) -> DeviceChoice:
    """Where a run can be.

    Up to Kubernetes 1.35 the allocator tries the devices of a request in every order, so large runs are listed in a
    form that can be divided.
    """
    if count > MOST_SEARCHED and 2 * count >= line.devices and entry.may_try_orders:
        return windows.adjacent(line, count, entry.windows)
    return windows.choice(line, count, entry.windows)


@functools.lru_cache(maxsize=1024)
def options_of(
    found: DeviceChoice, count: int, attributes: Collection[str], most: int
) -> tuple[tuple[Option, ...], tuple[str, ...]]:
    """At most `most` alternatives of a request, and for each the attribute that its devices must match, or "".

    Args:
        count: devices of the request.
        attributes: those that may be used, of all that are published.
    """
    options: list[Option] = []
    tied: list[str] = []
    sets = dict(found.named)
    for place in windows.select(found, attributes, most):
        options.append(
            option_of(count, place.ids)
            if place.ids
            else Option(count, places=_whole(count, [found.sets[each] for each in sorted(sets[place.attribute])]))
        )
        tied.append(place.attribute)
    return tuple(options), tuple(tied)


@functools.lru_cache(maxsize=256)
def _beside(line: Line, count: int, first: int, second: int) -> tuple[Option, ...]:
    """The alternatives of the larger of two requests beside each other, of the sizes `first` and `second`."""
    return tuple(
        Option(count, ids=_sorted(alternative.own), places=_masks(alternative.places))
        for alternative in neighbours.beside(line, first, second).alternatives
    )


def _masks(places: Iterable[tuple[frozenset[int], frozenset[int]]]) -> tuple[Place, ...]:
    return tuple(sorted((mask(first), mask(second)) for first, second in places))


def may_be_beside(entry: InstanceType, first: int, second: int) -> float:
    """Share of the placements of two runs beside each other that alternatives can allow; 0 if none."""
    line = entry.line
    if line is None or first + second > line.devices:
        return 0
    if first + second == line.devices:
        return 1
    if not entry.windows:
        return 0
    return neighbours.beside(line, max(first, second), min(first, second)).covered


def _ordered(layout: Layout, pair: Sequence[int]) -> tuple[int, int]:
    """The larger request first, or the one whose rest the other is. A share is one device, and never the first."""
    if layout.has_rest(max(pair)):
        return max(pair), min(pair)
    one, other = sorted(pair, key=lambda identity: (identity in layout.shares, -layout.size((identity,)), identity))
    return one, other


def _sorted(place: Placement) -> tuple[int, ...]:
    return tuple(sorted(place.ids))


def _own_tie(place: Placement, member: Member) -> list[AttributeTie]:
    return [AttributeTie(place.attribute, (member,))] if place.attribute else []
