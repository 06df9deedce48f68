"""Each namespace has an allowance of time on the event loop."""

import asyncio
from collections.abc import Callable, Hashable

import pytest

from tests.support.callers import caller_waits
from webhook.reviews import policy_requests as allowance
from webhook.reviews.policy_requests import Allowance, run_with_retry
from webhook.reviews.worker_threads import Inline, LaneFullError, Result


class ManualClock:
    """A clock that is set by hand, in milliseconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now / 1000


def spend(subject: Allowance, clock: ManualClock, milliseconds: float, namespace: str = "a") -> None:
    with subject.spending(namespace):
        clock.now += milliseconds


def test_a_namespace_has_twenty_milliseconds_in_a_hundred() -> None:
    clock = ManualClock()
    subject = Allowance(clock)
    for _ in range(5):
        assert subject.lasts("a")
        spend(subject, clock, 4.99)
    assert not subject.lasts("a")
    assert subject.lasts("b")
    clock.now += 100
    assert subject.lasts("a")


def test_the_time_of_an_ordinary_review_is_not_counted() -> None:
    clock = ManualClock()
    subject = Allowance(clock)
    for _ in range(1000):
        spend(subject, clock, 0.9)
    assert subject.lasts("a")


def test_the_time_of_a_failed_evaluation_counts() -> None:
    clock = ManualClock()
    subject = Allowance(clock)

    def fail() -> None:
        with subject.spending("a"):
            clock.now += 30
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not subject.lasts("a")


def test_many_namespaces_take_no_more_memory() -> None:
    clock = ManualClock()
    subject = Allowance(clock)
    for number in range(5000):
        spend(subject, clock, 2, f"n{number}")
    assert len(subject._used) == allowance._MOST_NAMESPACES


def test_all_namespaces_together_have_a_common_limit() -> None:
    """After that an evaluation may take as long as an ordinary review, whatever its namespace."""
    clock = ManualClock()
    subject = Allowance(clock)
    number = 0
    while subject.limit() == allowance.ON_LOOP:
        spend(subject, clock, 4, f"n{number}")
        number += 1
        assert number < 40
    assert subject.lasts("never-seen")
    assert subject.limit().seconds == allowance.ORDINARY
    assert subject.limit().raises
    clock.now += 1
    assert subject.limit() == allowance.ON_LOOP


class FullAtFirst(Inline):
    """A lane that has room at the third try."""

    tries = 0

    async def run(
        self,
        namespace: str,
        work: Callable[[], Result],
        seconds: float = 0.0,
        key: Hashable = None,  # noqa: ARG002
    ) -> Result:
        self.tries += 1
        if self.tries < 3:
            raise LaneFullError("too many long decisions wait")
        return await super().run(namespace, work, seconds)


def test_a_small_review_waits_for_a_lane_that_is_full() -> None:
    async def run(seconds: float) -> int:
        lane = FullAtFirst()
        with caller_waits(seconds):
            assert await run_with_retry(lane, "a", lambda: 7) == 7
        return lane.tries

    assert asyncio.run(run(5)) == 3
    with pytest.raises(LaneFullError):
        asyncio.run(run(0.01))
