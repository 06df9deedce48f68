"""No pod that hill climbing finds takes much work on the event loop, or more than its estimate."""

import asyncio
import random
from typing import Any

import pytest

from conversion.claims import making
from conversion.claims.work import WorkAllowance
from conversion.patches.decision import Outcome
from tests.attacks.worst_pods import MOST_CALLS, Shape, Work, climb
from tests.support.clusters import mutator, request
from webhook.reviews import effort
from webhook.reviews.worker_threads import Inline

CALLS_OF_A_UNIT = 600
"""24 units are decided on the loop: 14,400 calls, `MOST_CALLS`. `webhook.reviews.effort` says the same."""
TRIES = 60


@pytest.mark.parametrize("seed", range(4))
def test_no_pod_takes_much_work_on_the_event_loop(seed: int) -> None:
    draw = random.Random(seed)  # noqa: S311 - a search, no secret
    calls, shape = climb(draw, Work().on_the_loop, TRIES)
    assert calls < MOST_CALLS, shape


@pytest.mark.parametrize("seed", range(4))
def test_the_units_of_a_pod_bound_its_work(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    spent: list[int] = []

    class Counting(WorkAllowance):
        def spend(self, units: int) -> None:
            spent.append(units)

    monkeypatch.setattr(effort, "on_the_loop", Counting)
    work = Work()

    def calls_of_a_unit(shape: Shape) -> int:
        spent.clear()
        return work.in_all(shape) // (sum(spent) + 10)  # what does not plan takes as much as ten units

    draw = random.Random(seed)  # noqa: S311 - a search, no secret
    calls, shape = climb(draw, calls_of_a_unit, TRIES)
    assert calls < CALLS_OF_A_UNIT, shape


class Recording(Inline):
    """A lane that notes the estimates."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def run(self, namespace: str, work: Any, seconds: float = 0.0, key: Any = None) -> Any:
        self.seconds.append(seconds)
        return await super().run(namespace, work, seconds, key)


@pytest.mark.parametrize(("pairs", "in_lane"), [(1, False), (6, True)])
def test_a_pod_that_takes_much_work_is_decided_in_the_lane(pairs: int, in_lane: bool) -> None:
    lane = Recording()
    shape = Shape(0, (("app", "aws.amazon.com/neuroncore", 3), ("app", "aws.amazon.com/neuron", 1)) * pairs, ())
    making._remembered.cache_clear()
    decision = asyncio.run(mutator(lane=lane).review(request(shape.pod())))
    assert decision.outcome is Outcome.CONVERTED
    assert (max(lane.seconds, default=0) > 0.01) is in_lane
