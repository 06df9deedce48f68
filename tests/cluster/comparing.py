"""Plays mixtures of claims on the real scheduler and on the allocator's model, and lists where they differ."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Final

from neuron.allocator.search import AllocatorNode, AllocatorResult
from neuron.hardware import windows
from tests.cluster.allocating import Allocating, Outcome
from tests.support import mixtures, structured
from tests.support.mixtures import Case

SETTLE: Final = 1.0
"""Seconds after claims have left until the scheduler has seen it."""


@dataclasses.dataclass(slots=True)
class Comparison:
    """What was compared.

    Attributes:
        claims: how many were decided.
        refused: how many of them the scheduler refused.
        differences: one sentence each.
        held: by case, what the scheduler's claims hold at the end.
    """

    claims: int = 0
    refused: int = 0
    differences: list[str] = dataclasses.field(default_factory=list)
    held: list[list[tuple[AllocatorResult, ...]]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class _Play:
    """One case under way: the real node, the model, and what each step's claim holds on both."""

    seed: int
    case: Case
    node: str
    model: AllocatorNode
    held: dict[int, tuple[AllocatorResult, ...]] = dataclasses.field(default_factory=dict)

    def claim_name(self, step: int) -> str:
        """Name of the claim of a step."""
        return f"case{self.seed}-{step}"


def counters_leak(allocating: Allocating) -> bool:
    """Whether this scheduler has kubernetes/kubernetes#140436: then one device in use hides all other groups."""
    hardware = next(each for each in mixtures.HARDWARE if each.whole and not each.shared)
    node = allocating.node(hardware.name, mixtures.slices(hardware))
    group = {"matchAttribute": windows.attribute(4, 0)}
    one = {"devices": {"requests": [mixtures.request("n0")]}}
    four = {"devices": {"requests": [mixtures.request("n0", count=4)], "constraints": [group]}}
    assert allocating.allocate({"leak-one": (node, one)})["leak-one"].claim is not None
    return allocating.allocate({"leak-four": (node, four)})["leak-four"].claim is None


def compare(allocating: Allocating, seeds: Sequence[int]) -> Comparison:
    """Play the cases of the seeds side by side, each on a node of its own, one step of all of them after the other."""
    found = Comparison()
    leak = counters_leak(allocating)
    plays = []
    for seed in seeds:
        case = mixtures.case(seed)
        node = allocating.node(case.hardware.name, case.slices)
        plays.append(_Play(seed, case, node, structured.node_of(case.slices, counters_leak=leak)))
    time.sleep(SETTLE)
    for number in range(mixtures.MOST_STEPS):
        _leave(allocating, plays, number)
        arriving = {
            play.claim_name(number): (play, play.case.steps[number].claim)
            for play in plays
            if number < len(play.case.steps) and play.case.steps[number].claim is not None
        }
        outcomes = allocating.allocate({name: (play.node, spec or {}) for name, (play, spec) in arriving.items()})
        for name, (play, _) in arriving.items():
            found.claims += 1
            found.refused += outcomes[name].claim is None
            difference = _decide(play, number, outcomes[name])
            if difference:
                found.differences.append(difference)
    found.held = [list(play.held.values()) for play in plays]
    return found


def _leave(allocating: Allocating, plays: Sequence[_Play], number: int) -> None:
    names = []
    for play in plays:
        if number < len(play.case.steps) and play.case.steps[number].leaves in play.held:
            leaves = play.case.steps[number].leaves
            play.model.release(play.held.pop(leaves))
            names.append(play.claim_name(leaves))
    allocating.release(names)
    if names:
        time.sleep(SETTLE)


def _decide(play: _Play, number: int, outcome: Outcome) -> str:
    """The decisions of model and scheduler; the model continues with the scheduler's allocation."""
    step = play.case.steps[number]
    expected = play.model.allocate(structured.claim_of(step.claim or {}))
    actual = structured.results_of(outcome.claim) if outcome.claim else None
    if actual is not None:
        play.held[number] = actual
    if expected == actual:
        return ""
    if expected is not None:
        play.model.release(expected)
    for result in actual or ():
        play.model.take(result)
    hardware = f"{play.case.hardware.name}{' shared' if play.case.hardware.shared else ''}"
    return (
        f"seed {play.seed}, step {number} ({step.kind} on {hardware}): the model says {_text(expected)}, "
        f"the scheduler {_text(actual) if actual else outcome.refusal[:300]}"
    )


def _text(results: tuple[AllocatorResult, ...] | None) -> str:
    if results is None:
        return "nothing"
    return ", ".join(f"{each.request}={each.device}{dict(each.consumed) or ''}" for each in results)
