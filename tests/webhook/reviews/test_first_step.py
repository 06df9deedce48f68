"""The first step of a review: an answer at once, or nothing, without effects."""

import asyncio

import pytest

from conversion.patches.decision import Decision, unchanged
from tests.support.clusters import first_step
from webhook.reviews.reviewer import before_waiting
from webhook.reviews.worker_threads import Inline, ThreadLane

DECISION = unchanged("done")


async def at_once() -> Decision:
    return DECISION


def test_a_review_without_a_wait_is_answered() -> None:
    assert first_step(at_once()) is DECISION


def test_a_review_that_would_wait_ends_before_its_effects() -> None:
    effects: list[str] = []

    async def review() -> Decision:
        await before_waiting()
        effects.append("written")
        return DECISION

    assert first_step(review()) is None
    assert effects == []
    assert asyncio.run(review()) is DECISION
    assert effects == ["written"]


def test_a_review_in_a_task_does_not_wait_for_the_event_loop() -> None:
    order: list[str] = []

    async def review() -> None:
        await before_waiting()
        order.append("review")

    async def main() -> None:
        asyncio.get_running_loop().call_soon(order.append, "next iteration")
        await review()

    assert first_step(at_once()) is DECISION
    asyncio.run(main())
    assert order[0] == "review"


def test_what_a_review_has_open_is_closed() -> None:
    closed: list[str] = []

    async def review() -> Decision:
        try:
            await before_waiting()
        finally:
            closed.append("closed")
        return DECISION

    assert first_step(review()) is None
    assert closed == ["closed"]


def test_an_error_of_the_first_step_is_raised() -> None:
    async def review() -> Decision:
        raise ValueError("text")

    with pytest.raises(ValueError, match="text"):
        first_step(review())
    assert first_step(at_once()) is DECISION


@pytest.mark.parametrize("lane", [Inline(), ThreadLane()], ids=["inline", "threads"])
def test_work_for_the_lane_is_not_begun(lane: Inline | ThreadLane) -> None:
    done: list[str] = []

    async def review() -> Decision:
        await lane.run("team", lambda: done.append("work"))
        return DECISION

    assert first_step(review()) is None
    assert done == []
