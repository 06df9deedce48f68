"""A gathered cluster to a whole rehearsal: the order of groups that costs least, and the spare nodes with which nothing
waits. Pure.

Both searches play the migration again and again. The work is bounded by the number of nodes on which a place is looked
for, not by time: the same cluster gives the same answer on every machine.
"""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from commands.rehearse.gather import Gathering
from commands.rehearse.model import Cost, Group, Play, PlayedPod, Rehearsal, Spares
from commands.rehearse.play import Player, RehearsalScene
from commands.report.model import NO_DEVICES, Devices, Fate, Heading, Reference, topics
from runtime.text import counted

MOST_SHOTS: Final = 20_000
"""Nodes in the pictures of all steps together; with more, there are none."""
MOST_WORK: Final = 20_000
"""Placements of the plays that look for an order, and of those that look for spare nodes."""
_ALL_ORDERS: Final = 4
"""Groups of which all orders are tried."""
_MOST_SPARES: Final = 512

Told = Callable[[], None]


class Plays:
    """Plays scenes, and counts the work."""

    def __init__(self, step: Told = lambda: None) -> None:
        """`step` is called after each group that is played."""
        self.work = 0
        self._step = step

    def play(self, scene: RehearsalScene, order: Iterable[str]) -> Play:
        """One play, in brief."""
        player = Player(scene, brief=True)
        found = player.play(tuple(order))
        self.work += player.played.tries
        self._step()
        return found


def best_order(
    scene: RehearsalScene, given: tuple[str, ...], plays: Plays
) -> tuple[Play, tuple[tuple[tuple[str, ...], Cost], ...], bool]:
    """The play of the best order, the costs of the others that were tried, and whether all were tried.

    Args:
        given: an order that the user chose; the others are compared with it. Empty: none.
    """
    first, *rest = dict.fromkeys([*([given] if given else []), *_orders(scene)])
    best = plays.play(scene, first)
    costs = {first: best.cost}
    every = len(scene.groups) <= _ALL_ORDERS
    for order in rest:
        if plays.work + max(each.moved for each in costs.values()) > MOST_WORK:
            every = False
            break
        found = plays.play(scene, order)
        costs[order] = found.cost
        if not given and found.cost < costs[best.order]:
            best = found  # The others are not kept: in a large cluster each takes tens of MiB.
    others = sorted((cost, order) for order, cost in costs.items() if order != best.order)
    return best, tuple((order, cost) for cost, order in others), every


def _orders(scene: RehearsalScene) -> Iterator[tuple[str, ...]]:
    """Orders to try: the groups with the fewest devices in use first, that order turned round, by name, all others."""
    used = {
        group.name: sum(form.devices for name in group.nodes for form in scene.played.nodes[name].forms.values())
        for group in scene.groups
    }
    free = {
        group.name: sum(scene.played.nodes[name].node.legacy_devices for name in group.nodes) - used[group.name]
        for group in scene.groups
    }
    fewest = tuple(sorted(used, key=lambda each: (used[each], each)))
    yield fewest
    yield fewest[::-1]
    yield tuple(sorted(used, key=lambda each: (-free[each], each)))
    yield tuple(sorted(used))
    if len(fewest) <= _ALL_ORDERS:
        yield from itertools.permutations(fewest)


# --- spare nodes ------------------------------------------------------------------------------------------------


def needed_spares(
    gathered: Gathering, scene: RehearsalScene, best: Play, given: Mapping[str, int], plays: Plays
) -> Spares:
    """The fewest spare nodes, beside those that are given, with which nothing waits in this order.

    Pods that wait with any number of spare nodes, such as those that are denied, are left out, and said.
    """
    kinds = _types(scene, best)
    if not _waits(best):
        return Spares(given, {})
    if not kinds:
        return Spares(given, None, "the types of the nodes of pods that wait are not in the catalogue")
    start = plays.work

    def waits(counts: Mapping[str, int]) -> int:
        return _waits(plays.play(gathered.with_spares(scene, counts, "more"), best.order))

    def spent() -> bool:
        return plays.work - start > MOST_WORK

    largest = max(sum(node.instance_type == kind for node in scene.played.nodes.values()) for kind in kinds)
    counts, least = _guess(scene, best, kinds), 0
    while (least := waits(counts)) and not spent() and max(counts.values()) <= min(largest, _MOST_SPARES):
        counts = {kind: 2 * count for kind, count in counts.items()}
    if least >= _waits(best):
        return Spares(given, None, "none of the pods that wait would run with more nodes: see what waits, and why")
    for kind in kinds:
        low, high = -1, counts[kind]  # With `high` as few wait as can be, with `low` more do.
        while high - low > 1 and not spent():
            middle = (low + high) // 2
            if waits({**counts, kind: middle}) <= least:
                high = middle
            else:
                low = middle
        counts[kind] = high
    notes = (
        [f"{counted(least, 'wait')} that no spare node ends {'is' if least == 1 else 'are'} left out"] if least else []
    )
    notes += ["an upper bound: the search was ended"] if spent() else []
    return Spares(given, {kind: count for kind, count in counts.items() if count}, "; ".join(notes))


def _waits(play: Play) -> int:
    """Waits of pods in all steps, without denied pods. A pod that cannot be evicted keeps a group from moving."""
    found = sum(step.paused + len(step.waiting) - step.denied for step in play.steps)
    return found + sum(bool(step.stalled) for step in play.steps)


def _guess(scene: RehearsalScene, play: Play, kinds: Iterable[str]) -> dict[str, int]:
    """Spare nodes with as many devices as the pods have that wait in one step."""
    sizes = {node.instance_type: node.after.count for node in scene.played.nodes.values() if node.after is not None}
    most: Counter[str] = Counter()
    for step in play.steps:
        waiting = {each.pod for each in step.moves if each.paused} | {number for number, _ in step.waiting}
        now: Counter[str] = Counter()
        for number in waiting:
            state = scene.played.nodes.get(scene.pods[number].node)
            if state is not None:
                now[state.instance_type] += scene.pods[number].kind.plugin.devices
        most |= now
    return {kind: max(1, min(_MOST_SPARES, -(-most[kind] // sizes[kind]))) for kind in kinds}


def _types(scene: RehearsalScene, play: Play) -> list[str]:
    """Instance types of the nodes from which pods come that wait."""
    found = set()
    kinds = {scene.pods[each.pod].kind for step in play.steps for each in step.moves if each.paused}
    kinds |= {scene.pods[number].kind for step in play.steps for number, _ in step.waiting}
    for pod in scene.pods:
        state = scene.played.nodes.get(pod.node) if pod.kind in kinds else None
        if state is not None and state.after is not None:
            found.add(state.instance_type)
    known = {node.instance_type for node in scene.played.nodes.values() if node.after is not None}
    stalled = {step.group for step in play.steps if step.stalled}
    for group in scene.groups:
        found |= known.intersection(group.types) if group.name in stalled else set()
    return sorted(found)


# --- all of it ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class RehearsalChoice:
    """What the user chose to play.

    Attributes:
        spares: spare nodes by instance type.
        order: names of groups; empty: the best order is searched.
        pictures: whether steps have pictures of the nodes.
    """

    spares: Mapping[str, int] = dataclasses.field(default_factory=dict)
    order: tuple[str, ...] = ()
    pictures: bool = False


class UnknownGroupError(Exception):
    """A group of `--order` does not exist; the message has the name, and those that do."""


def rehearse(
    gathered: Gathering,
    choice: RehearsalChoice,
    heading: Heading,
    problems: Iterable[str] = (),
    step: Told = lambda: None,
) -> Rehearsal:
    """Play the migration.

    Args:
        step: is called after each group that is played.

    Raises:
        UnknownGroupError: `choice.order` names a group that does not exist.
        NoSuchTypeError: a spare node has a type that is not in the catalogue.
    """
    scene = gathered.with_spares(gathered.scene(), choice.spares, "spare")
    plays = Plays(step)
    best, others, every = best_order(scene, _order(choice.order, scene.groups), plays)
    spares = needed_spares(gathered, scene, best, choice.spares, plays)
    pictures = choice.pictures and len(scene.played.nodes) * (len(best.steps) + 1) <= MOST_SHOTS
    player, start = Player(scene, shots=pictures), Player(scene)
    told = [each for each in gathered.told() if each.fate in (Fate.CONVERTS, Fate.REFUSED)]
    best = player.play(best.order)
    return Rehearsal(
        heading.origin,
        heading.made,
        heading.version,
        scene.groups,
        scene.pods,
        start.figures(),
        best,
        others,
        every,
        spares,
        tuple(each for each in topics(told) if not each.blocks),
        tuple(_sizes(scene.pods, player)),
        gathered.unknown(scene),
        tuple(problems),
        scene.shots() if pictures else (),
        tuple(
            (number, reason, player.reasons[number][1] if number in player.reasons else None)
            for number, reason in start.reasons.values()
        ),
        gathered.assumed,
    )


def _order(chosen: tuple[str, ...], groups: Iterable[Group]) -> tuple[str, ...]:
    """The order by full names; groups that the user left out come last, by name."""
    known = {group.name: group.name for group in groups}
    short = {name.partition("=")[2]: name for name in known}
    found = []
    for each in chosen:
        name = known.get(each) or short.get(each)
        if name is None:
            raise UnknownGroupError(f"there is no node group {each!r}: the groups are {', '.join(known) or 'none'}")
        found.append(name)
    return tuple(dict.fromkeys([*found, *known])) if chosen else ()


def _sizes(played: Iterable[PlayedPod], player: Player) -> Iterable[tuple[Reference, str, str]]:
    """Workloads whose devices differ after conversion: cores become devices, for example."""
    found: dict[Reference, tuple[Devices, Devices]] = {}
    for number, pod in enumerate(played):
        kind = pod.kind
        if kind.after is not None and not pod.converted:
            before, after = found.get(kind.workload, (NO_DEVICES, NO_DEVICES))
            found[kind.workload] = before + kind.before, after + (player.devices_of(number) or kind.after)
    return ((ref, str(before), str(after)) for ref, (before, after) in found.items() if before != after)
