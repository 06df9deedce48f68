"""The lane: long decisions leave the event loop, in turns by namespace, inside the caller's time."""

import asyncio
import threading
import time

import pytest

from webhook.reviews import lane
from webhook.reviews.lane import Inline, LaneFullError, LaneTimeoutError, ThreadLane, caller_waits


def spin(seconds: float) -> str:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    return threading.current_thread().name


def work(seconds: float) -> None:
    """Keep a processor busy, however many others want it."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_work_runs_in_the_lanes_thread() -> None:
    async def main() -> str:
        return await ThreadLane().run("a", lambda: spin(0))

    assert asyncio.run(main()) == "lane"


def test_inline_runs_in_the_calling_thread() -> None:
    assert asyncio.run(Inline().run("a", lambda: spin(0))) == threading.current_thread().name


def test_an_exception_reaches_the_caller() -> None:
    def fail() -> None:
        raise ValueError("no")

    async def main() -> None:
        await ThreadLane().run("a", fail)

    with pytest.raises(ValueError, match="no"):
        asyncio.run(main())


def test_the_loop_goes_on_while_the_lane_works() -> None:
    async def main() -> int:
        work = asyncio.create_task(ThreadLane().run("a", lambda: spin(0.5)))
        turns = 0
        while not work.done():
            await asyncio.sleep(0.005)
            turns += 1
        return turns

    assert asyncio.run(main()) > 10


def test_namespaces_take_turns() -> None:
    order: list[str] = []
    gate = threading.Event()

    async def main() -> None:
        some = ThreadLane()
        first = asyncio.create_task(some.run("a", gate.wait))
        await asyncio.sleep(0)
        many = [asyncio.create_task(some.run("a", lambda: order.append("a"))) for _ in range(5)]
        await asyncio.sleep(0)
        one = asyncio.create_task(some.run("b", lambda: order.append("b")))
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(first, one, *many)

    asyncio.run(main())
    assert "b" in order[:2]


def test_one_namespace_cannot_fill_the_lane() -> None:
    gate = threading.Event()

    async def main() -> None:
        some = ThreadLane(waiting=10, of_one=2)
        tasks = [asyncio.create_task(some.run("a", gate.wait))]
        while some.waiting:  # noqa: ASYNC110 - the lane has no event for this
            await asyncio.sleep(0.001)
        tasks.append(asyncio.create_task(some.run("a", gate.wait)))
        tasks.append(asyncio.create_task(some.run("a", gate.wait)))
        await asyncio.sleep(0)
        try:
            with pytest.raises(LaneFullError, match="too many long decisions wait"):
                await some.run("a", gate.wait)
            other = asyncio.create_task(some.run("b", gate.wait))
            await asyncio.sleep(0)
        finally:
            gate.set()
        await asyncio.gather(other, *tasks)

    asyncio.run(main())


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

    assert asyncio.run(main()) < 2


def test_work_after_the_time_out_of_its_caller_is_not_begun() -> None:
    gate, begun = threading.Event(), []

    async def main() -> None:
        some = ThreadLane()
        first = asyncio.create_task(some.run("a", gate.wait))
        await asyncio.sleep(0)
        with caller_waits(0.05), pytest.raises(LaneTimeoutError):
            await some.run("a", lambda: begun.append(1))
        gate.set()
        await first
        await some.run("a", lambda: None)

    asyncio.run(main())
    assert begun == []


def test_a_passed_deadline_is_an_immediate_error() -> None:
    async def main() -> None:
        with (
            caller_waits(0),
            pytest.raises(LaneTimeoutError, match="has waited longer than the time-out of its caller"),
        ):
            await ThreadLane().run("a", lambda: None)

    asyncio.run(main())


def test_a_closed_lane_ends_its_thread() -> None:
    async def main() -> list[threading.Thread]:
        some = ThreadLane()
        await some.run("a", lambda: None)
        some.close()
        return some._threads

    threads = asyncio.run(main())
    assert threads
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()


def test_a_namespace_has_one_thread_and_another_one_does_not_wait_for_it() -> None:
    gate = threading.Event()
    running: list[str] = []

    async def main() -> float:
        some = ThreadLane()
        many = [asyncio.create_task(some.run("a", lambda: (running.append("a"), gate.wait()))) for _ in range(8)]
        await asyncio.sleep(0.1)
        started = time.monotonic()
        for _ in range(5):
            assert await some.run("b", lambda: "b") == "b"
        taken = time.monotonic() - started
        assert running == ["a"]
        gate.set()
        await asyncio.gather(*many)
        some.close()
        return taken

    assert asyncio.run(main()) < 1


def test_namespaces_of_long_decisions_leave_a_thread_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many such namespaces there are, one of the two threads is free of them."""
    monkeypatch.setattr(lane, "LONG_AGO", 600.0)  # a busy machine may need more than 5 s for the four
    gate = threading.Event()

    async def main() -> None:
        some = ThreadLane()
        names = [f"a{number}" for number in range(4)]
        for name in names:
            await some.run(name, lambda: work(2 * lane.LONG))
        while some._working:  # noqa: ASYNC110 - the lane has no event for this
            await asyncio.sleep(0.001)
        tasks = [asyncio.create_task(some.run(name, gate.wait)) for name in names]
        await asyncio.sleep(0.1)
        assert some.waiting == 3
        assert await asyncio.wait_for(some.run("b", lambda: "b"), 2) == "b"
        gate.set()
        await asyncio.gather(*tasks)
        some.close()

    asyncio.run(main())


def test_only_some_namespaces_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "LONG", 0.0)
    monkeypatch.setattr(lane, "_MOST_REMEMBERED", 3)

    async def main() -> list[str]:
        some = ThreadLane()
        for number in range(10):
            await some.run(str(number), lambda: None)
            # Its end is noted a moment after its result, and another thread could note that of the next one first.
            while some._working:  # noqa: ASYNC110 - the lane has no event for this
                await asyncio.sleep(0.001)
        some.close()
        return list(some._turns)

    assert asyncio.run(main()) == ["7", "8", "9"]


def test_a_namespace_may_use_both_threads_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "LONG_AGO", 0.05)
    gate = threading.Event()

    async def main() -> None:
        some = ThreadLane()
        await some.run("a", lambda: work(2 * lane.LONG))
        other = asyncio.create_task(some.run("b", gate.wait))
        await asyncio.sleep(0.1)
        assert await asyncio.wait_for(some.run("a", lambda: "a"), 2) == "a"
        gate.set()
        await other
        some.close()

    asyncio.run(main())


def test_the_default_time_out_is_that_of_the_api_server() -> None:
    assert lane.seconds_left() == pytest.approx(7.0)


@pytest.mark.parametrize(
    ("told", "left"), [(1.0, 0.5), (1.2, 0.7), (2.0, 1.4), (10.0, 7.0), (30.0, 21.0), (0.4, 0.2), (0.0, 0.0)]
)
def test_part_of_the_time_is_kept_for_the_answer(told: float, left: float) -> None:
    assert lane.usable(told) == pytest.approx(left)


def test_time_that_a_review_has_waited_counts() -> None:
    async def main() -> float:
        lane.answer_within(10.0, 4.0)
        return lane.seconds_left()

    assert asyncio.run(main()) == pytest.approx(3.0, abs=0.1)


def test_work_that_cannot_be_done_in_time_is_refused_at_once() -> None:
    """Six decisions of 0.2 s wait: a seventh of that namespace comes too late, one of another namespace does not."""

    async def main() -> float:
        some = ThreadLane()
        for _ in range(8):
            await some.run("a", lambda: spin(0.2))
        many = [asyncio.create_task(some.run("a", lambda: spin(0.2))) for _ in range(7)]
        await asyncio.sleep(0.05)
        asked = time.monotonic()
        with (
            caller_waits(1.5),
            pytest.raises(LaneFullError, match="take longer than the time-out of this one's caller"),
        ):
            await some.run("a", lambda: None)
        said = time.monotonic() - asked
        with caller_waits(2.0):
            await some.run("b", lambda: None)
        assert not all(task.done() for task in many)
        await asyncio.gather(*many)
        return said

    assert asyncio.run(main()) < 0.2


def test_abandoned_work_does_not_count_as_waiting() -> None:
    async def main() -> None:
        some = ThreadLane()
        for _ in range(8):
            await some.run("a", lambda: spin(0.2))
        first = asyncio.create_task(some.run("a", lambda: spin(0.5)))
        await asyncio.sleep(0.05)
        given_up = [asyncio.create_task(some.run("a", lambda: spin(0.2))) for _ in range(6)]
        await asyncio.sleep(0)
        for task in given_up:
            task.cancel()
        await asyncio.gather(*given_up, return_exceptions=True)
        with caller_waits(1.5):
            await some.run("a", lambda: None)
        await first

    asyncio.run(main())
