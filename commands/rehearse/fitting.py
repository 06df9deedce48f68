"""Where one more pod fits: now, after the fewest pods end, after the fewest pods move. Pure; nothing is changed.

Moves are a list for people: a pod that is moved is deleted, and its controller creates it again elsewhere.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Final

from commands.rehearse.model import Form, Maker, PlayedPod, Reason
from commands.rehearse.play import RehearsalScene
from commands.rehearse.played_nodes import PlayedNode, PlayedNodes

MOST_TRIES: Final = 60_000
"""Sets of pods that are looked at before the search for a larger set ends."""
_LARGEST: Final = 6
"""Pods of a set at most."""
_MOST_PODS: Final = 1_000
"""Equal pods that are counted."""


@dataclasses.dataclass(frozen=True, slots=True)
class Spot:
    """A node, and the devices that the pod would get there; none for the device plugin."""

    node: str
    devices: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class MadePlace:
    """A node that has place after a change.

    Attributes:
        pods: numbers of the pods that end or move.
        to: where each of them goes; empty if they end.
    """

    node: str
    pods: tuple[int, ...]
    to: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Fitting:
    """The answers for one form of the pod.

    Attributes:
        now: nodes with place.
        at_once: how many such pods fit at the same time, at most 1,000.
        ends: nodes with place after the fewest pods end; empty if it fits now, or no set was found.
        moves: the same after the fewest pods move.
        why: why it does not fit now; None if it does.
        complete: whether all sets of up to 6 pods were looked at.
    """

    now: tuple[Spot, ...]
    at_once: int
    ends: tuple[MadePlace, ...] = ()
    moves: tuple[MadePlace, ...] = ()
    why: Reason | None = None
    complete: bool = True


def fit(scene: RehearsalScene, form: Form) -> Fitting:
    """Where a pod of this form fits."""
    played = scene.played.copy()
    now = tuple(_spots(played, form))
    if now:
        counted = scene.played.copy()
        number = len(scene.pods)
        at_once = sum(
            1 for _ in itertools.takewhile(bool, (counted.place(number + each, form) for each in range(_MOST_PODS)))
        )
        return Fitting(now, at_once)
    search = _FewestPods(played, scene.pods, form)
    ends = search.first(moving=False)
    moves = search.first(moving=True)
    return Fitting((), 0, ends, moves, played.why(form), search.complete)


def _spots(played: PlayedNodes, form: Form) -> Iterator[Spot]:
    for name, node in sorted(played.nodes.items()):
        found = played.would_fit(node, form)
        if found is not None:
            yield Spot(name, tuple(each.device for each in found))


class _FewestPods:
    def __init__(self, played: PlayedNodes, pods: tuple[PlayedPod, ...], form: Form) -> None:
        self._played = played
        self._pods = pods
        self._form = form
        self._tries = 0
        self.complete = True

    def first(self, *, moving: bool) -> tuple[MadePlace, ...]:
        """The changes with the fewest pods: of each node the one that takes the fewest devices."""
        self._tries = 0
        nodes = [node for _, node in sorted(self._played.nodes.items()) if self._played.may_serve(node, self._form)]
        for size in range(1, _LARGEST + 1):
            found = [change for node in nodes if (change := self._on(node, size, moving=moving)) is not None]
            if found:
                return tuple(found)
            if self._tries > MOST_TRIES:
                self.complete = False
                break
        return ()

    def _on(self, node: PlayedNode, size: int, *, moving: bool) -> MadePlace | None:
        candidates = [each for each in node.forms if 0 <= each < len(self._pods)]
        if moving:
            candidates = [each for each in candidates if self._may_move(self._pods[each])]
        candidates.sort(key=lambda each: (node.forms[each].devices, each))
        for pods in itertools.combinations(candidates, size):
            self._tries += 1
            if self._tries > MOST_TRIES:
                return None
            trial = node.copy()
            for each in pods:
                trial.remove(each)
            if self._played.would_fit(trial, self._form) is None:
                continue
            if not moving:
                return MadePlace(node.node.name, pods)
            to = self._elsewhere(node, pods)
            if to is not None:
                return MadePlace(node.node.name, pods, to)
        return None

    @staticmethod
    def _may_move(pod: PlayedPod) -> bool:
        return pod.maker is Maker.CONTROLLER and not pod.keeps

    def _elsewhere(self, node: PlayedNode, pods: tuple[int, ...]) -> tuple[str, ...] | None:
        """Where pods go that leave a node for others; None if one finds no place."""
        was, node.open = node.open, False
        shadows: list[tuple[int, str]] = []
        for each in pods:
            name = self._played.place(-2 - each, node.forms[each])
            if not name:
                break
            shadows.append((-2 - each, name))
        for shadow, name in shadows:
            self._played.release(shadow, name)
        node.open = was
        self._played.opened([node.node.name])
        return tuple(name for _, name in shadows) if len(shadows) == len(pods) else None
