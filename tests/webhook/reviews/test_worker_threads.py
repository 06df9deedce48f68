"""The lane: long decisions leave the event loop, short ones first, inside the caller's time."""

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable

import pytest

from tests.support.callers import caller_waits
from tests.support.timing import assert_below
from webhook.reviews import worker_threads as lane
from webhook.reviews.worker_threads import (
    PAUSE,
    SIZES,
    SLICE,
    Inline,
    LaneFullError,
    LaneTimeoutError,
    ThreadLane,
    working_time,
)

MEDIUM, LONG = 2 * SIZES[0].estimate, 2 * SIZES[1].estimate
"""Estimates, in seconds."""


def spin(seconds: float) -> str:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    return threading.current_thread().name


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the lane has no event for this
            await asyncio.sleep(0.001)


async def begun(some: ThreadLane) -> None:
    """Wait until a thread has taken the work that was given to the lane."""
    await asyncio.sleep(0)
    await until(lambda: some.waiting == 0)


def work(seconds: float) -> None:
    """Keep a processor busy, however many others want it, and read the clock as expressions do."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        working_time()


async def test_work_runs_in_the_lanes_thread() -> None:
    assert await ThreadLane().run("a", lambda: spin(0)) == "lane"


def test_inline_runs_in_the_calling_thread() -> None:
    assert asyncio.run(Inline().run("a", lambda: spin(0))) == threading.current_thread().name


def test_an_exception_reaches_the_caller() -> None:
    def fail() -> None:
        raise ValueError("no")

    async def main() -> None:
        await ThreadLane().run("a", fail)

    with pytest.raises(ValueError, match="no"):
        asyncio.run(main())


def test_the_event_loop_is_not_blocked_by_the_lane() -> None:
    turns = 0

    def spin_until_turns() -> bool:
        end = time.monotonic() + 60
        while turns <= 10 and time.monotonic() < end:
            pass
        return turns > 10

    async def main() -> bool:
        nonlocal turns
        work = asyncio.create_task(ThreadLane().run("a", spin_until_turns))
        while not work.done():
            await asyncio.sleep(0.005)
            turns += 1
        return await work

    with caller_waits(600):
        assert asyncio.run(main())


async def test_namespaces_take_turns() -> None:
    order: list[str] = []
    gate = threading.Event()

    some = ThreadLane()
    first = asyncio.create_task(some.run("a", gate.wait, LONG))
    await begun(some)
    many = [asyncio.create_task(some.run("a", lambda: order.append("a"), LONG)) for _ in range(5)]
    await asyncio.sleep(0)
    one = asyncio.create_task(some.run("b", lambda: order.append("b"), LONG))
    while some.waiting < len(many) + 1:  # noqa: ASYNC110 - the lane has no event for this
        await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(first, one, *many)
    assert "b" in order[:2]


async def test_one_namespace_cannot_fill_the_lane() -> None:
    gate = threading.Event()

    some = ThreadLane([*SIZES[:2], dataclasses.replace(SIZES[2], waiting=10, of_one=2)])
    tasks = [asyncio.create_task(some.run("a", gate.wait, LONG))]
    await begun(some)
    tasks.append(asyncio.create_task(some.run("a", gate.wait, LONG)))
    tasks.append(asyncio.create_task(some.run("a", gate.wait, LONG)))
    await asyncio.sleep(0)
    try:
        with pytest.raises(LaneFullError, match="too many long decisions wait"):
            await some.run("a", gate.wait, LONG)
        other = asyncio.create_task(some.run("b", gate.wait, LONG))
        await asyncio.sleep(0)
    finally:
        gate.set()
    await asyncio.gather(other, *tasks)


def test_the_caller_is_answered_in_its_time() -> None:
    gate = threading.Event()

    async def main() -> float:
        some, started = ThreadLane(), time.monotonic()
        with caller_waits(0.2), pytest.raises(LaneTimeoutError, match="takes longer than its caller waits"):
            await some.run("a", gate.wait)
        ended = time.monotonic() - started
        gate.set()
        assert await some.run("a", lambda: 1) == 1
        return ended

    assert_below(asyncio.run(main()), 2)


async def test_work_after_the_time_out_of_its_caller_is_not_started() -> None:
    gate, begun = threading.Event(), []

    some = ThreadLane()
    first = asyncio.create_task(some.run("a", gate.wait, LONG))
    await asyncio.sleep(0)
    with caller_waits(0.05), pytest.raises(LaneTimeoutError):
        await some.run("a", lambda: begun.append(1), LONG)
    assert some.waiting == 0
    gate.set()
    await first
    await some.run("a", lambda: None, LONG)
    assert begun == []


async def test_work_whose_caller_has_left_ends() -> None:
    ended = threading.Event()

    def endless() -> None:
        try:
            work(60)
        finally:
            ended.set()

    some = ThreadLane()
    with caller_waits(0.1), pytest.raises(LaneTimeoutError):
        await some.run("a", endless, LONG)
    assert await asyncio.to_thread(ended.wait, 60)


async def test_callers_with_equal_work_share_its_result() -> None:
    begun: list[str] = []

    def note(name: str) -> str:
        begun.append(name)
        spin(0.05)
        return name

    lane = ThreadLane()
    keys = ("one", "one", "other", None, None)
    assert await asyncio.gather(*(lane.run("a", lambda key=key: note(str(key)), key=key) for key in keys)) == [
        "one",
        "one",
        "other",
        "None",
        "None",
    ]
    assert sorted(begun) == ["None", "None", "one", "other"]


async def test_shared_work_continues_after_its_first_caller_leaves() -> None:
    lane = ThreadLane()
    first = asyncio.create_task(lane.run("a", lambda: spin(0.1), key="one"))
    second = asyncio.create_task(lane.run("a", lambda: spin(0.1), key="one"))
    await asyncio.sleep(0.02)
    first.cancel()
    assert (await second, lane.waiting) == ("lane", 0)


def test_an_exception_reaches_all_callers_of_shared_work_and_is_not_kept() -> None:
    def fail() -> None:
        time.sleep(0.02)
        raise ValueError("no")

    async def main() -> tuple[list[object], str]:
        lane = ThreadLane()
        failures = await asyncio.gather(*(lane.run("a", fail, key="one") for _ in range(2)), return_exceptions=True)
        return failures, await lane.run("a", lambda: spin(0), key="one")

    failures, after = asyncio.run(main())
    assert [type(each) for each in failures] == [ValueError, ValueError]
    assert after == "lane"


async def test_a_passed_deadline_is_an_immediate_error() -> None:
    with (
        caller_waits(0),
        pytest.raises(LaneTimeoutError, match="has waited longer than the time-out of its caller"),
    ):
        await ThreadLane().run("a", lambda: None)


async def test_a_closed_lane_ends_its_thread() -> None:
    some = ThreadLane()
    await some.run("a", lambda: None)
    some.close()
    threads = some._threads
    assert threads
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


async def test_a_small_decision_does_not_wait_for_any_number_of_longer_ones() -> None:
    """Each long one is of a namespace that was never seen."""
    gate = threading.Event()

    some = ThreadLane()
    tasks = [
        asyncio.create_task(some.run(f"{seconds}-{at}", gate.wait, seconds))
        for seconds in (MEDIUM, LONG)
        for at in range(10)
    ]
    await asyncio.sleep(0.1)
    for at in range(5):
        assert await asyncio.wait_for(some.run(f"b{at}", lambda: "b"), 60) == "b"
    gate.set()
    await asyncio.gather(*tasks)
    some.close()


async def test_a_decision_that_takes_longer_than_estimated_moves_on() -> None:
    """It begins again in the thread of its true class, and those behind it do not wait for its end."""
    begun: list[int] = []

    some, order = ThreadLane(), []

    async def one(name: str, seconds: float) -> None:
        await some.run(name, lambda: (begun.append(threading.get_ident()), work(seconds)), 0.001)
        order.append(name)

    with caller_waits(600):
        await asyncio.gather(one("underestimated", 0.3), *(one(f"small-{at}", 0.001) for at in range(5)))
    some.close()
    assert order[-1] == "underestimated"
    assert len(begun) >= 5 + 3


async def test_long_work_yields_to_short_work_and_completes() -> None:
    """The share of the long decision is a tenth while a short one runs that does not end, and it completes."""
    gate = threading.Event()

    # It pauses after every slice of its work. A busy machine makes that longer, never shorter.
    some = ThreadLane()
    with caller_waits(600):
        short = asyncio.create_task(some.run("short", gate.wait))
        await begun(some)
        started = time.monotonic()
        await some.run("long", lambda: work(0.05), LONG)
        seconds = time.monotonic() - started
        assert not short.done()
        gate.set()
        await short
    some.close()
    assert seconds > 0.05 / SLICE * PAUSE * 0.8


async def test_a_full_class_refuses_the_larger_decision_of_one_client_first() -> None:
    gate = threading.Event()

    some = ThreadLane([dataclasses.replace(each, waiting=2) for each in SIZES])
    tasks = [asyncio.create_task(some.run("x", gate.wait, LONG))]
    await begun(some)
    tasks += [asyncio.create_task(some.run(f"{at}", gate.wait, at * LONG)) for at in (2, 9)]
    await until(lambda: some.waiting == 2)
    tasks.append(asyncio.create_task(some.run("smaller", gate.wait, LONG)))
    with pytest.raises(LaneFullError):
        await tasks[2]
    with pytest.raises(LaneFullError):
        await some.run("larger", gate.wait, 9 * LONG)
    gate.set()
    await asyncio.gather(tasks[0], tasks[1], tasks[3])
    some.close()


async def test_a_client_with_many_decisions_makes_room_for_another_client() -> None:
    gate = threading.Event()

    async def one(some: ThreadLane, client: str, at: int) -> None:
        lane.answer_within(10.0, client=client)
        await some.run(f"{at}", gate.wait, LONG)

    some = ThreadLane([dataclasses.replace(each, waiting=4) for each in SIZES])
    tasks = [asyncio.create_task(one(some, "10.0.0.1", 0))]
    await begun(some)
    tasks += [asyncio.create_task(one(some, "10.0.0.1", at)) for at in range(1, 6)]
    await until(lambda: sum(task.done() for task in tasks) == 1)
    other = asyncio.create_task(one(some, "10.0.0.2", 7))
    await until(lambda: sum(task.done() for task in tasks) == 2)
    gate.set()
    await other
    refused = [each for each in await asyncio.gather(*tasks, return_exceptions=True) if each is not None]
    assert [type(each) for each in refused] == [LaneFullError] * 2
    some.close()


async def test_an_exception_handler_in_a_decision_does_not_stop_its_time_out() -> None:
    def stubborn() -> str:
        with contextlib.suppress(Exception):
            work(60)
        return "stubborn"

    some = ThreadLane()
    with caller_waits(0.2), pytest.raises(LaneTimeoutError):
        await some.run("a", stubborn, LONG)
    assert await asyncio.wait_for(some.run("b", lambda: "b", LONG), 60) == "b"
    some.close()


def test_the_default_time_out_is_that_of_the_api_server() -> None:
    assert lane.seconds_left() == pytest.approx(7.0)


@pytest.mark.parametrize(
    ("told", "left"), [(1.0, 0.5), (1.2, 0.7), (2.0, 1.4), (10.0, 7.0), (30.0, 21.0), (0.4, 0.2), (0.0, 0.0)]
)
def test_part_of_the_time_is_kept_for_the_answer(told: float, left: float) -> None:
    assert lane.usable(told) == pytest.approx(left)


async def test_time_that_a_review_has_waited_counts() -> None:
    lane.answer_within(10.0, 4.0)
    assert 0 < lane.seconds_left() <= 3.0


def test_work_that_cannot_be_done_in_time_is_refused_at_once() -> None:
    """Six decisions of 0.2 s wait: a seventh of that namespace comes too late, one of another namespace does not."""

    async def main() -> float:
        some = ThreadLane()
        for _ in range(8):
            await some.run("a", lambda: spin(0.2), LONG)
        many = [asyncio.create_task(some.run("a", lambda: spin(0.2), LONG)) for _ in range(7)]
        await asyncio.sleep(0.05)
        asked = time.monotonic()
        with (
            caller_waits(1.5),
            pytest.raises(LaneFullError, match="take longer than the time-out of this one's caller"),
        ):
            await some.run("a", lambda: None, LONG)
        said = time.monotonic() - asked
        with caller_waits(60.0):
            await some.run("b", lambda: None, LONG)
        assert not all(task.done() for task in many)
        await asyncio.gather(*many)
        return said

    assert_below(asyncio.run(main()), 0.2)


async def test_abandoned_work_does_not_count_as_waiting() -> None:
    some = ThreadLane()
    for _ in range(8):
        await some.run("a", lambda: spin(0.2), LONG)
    first = asyncio.create_task(some.run("a", lambda: spin(0.5), LONG))
    await asyncio.sleep(0.05)
    given_up = [asyncio.create_task(some.run("a", lambda: spin(0.2), LONG)) for _ in range(6)]
    await asyncio.sleep(0)
    for task in given_up:
        task.cancel()
    await asyncio.gather(*given_up, return_exceptions=True)
    with caller_waits(1.5):
        await some.run("a", lambda: None, LONG)
    await first
