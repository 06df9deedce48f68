"""Where policies are evaluated: on the event loop for a bounded time, else in the lane.

Many short evaluations together delay other reviews as much as one long evaluation. So each namespace has a token bucket
of event-loop time. When it is empty, the policies on the namespace's objects run in the lane. All namespaces together
have one more, because a client that reaches the port can send reviews of any number of namespaces. When it is empty, an
evaluation that takes longer than an ordinary review is repeated in the lane.
"""

import asyncio
import contextlib
import dataclasses
import functools
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

from kubecel.budget import Clock
from policies.judging.evaluate import REVIEW_LIMIT, TakesLongError, TimeLimit
from webhook.reviews import effort
from webhook.reviews.worker_threads import LARGE_OBJECT, Inline, Lane, LaneFullError, Result, seconds_left

_NEW_SELECTORS: Final = 2
"""Compiling one takes one or two milliseconds. A claim with more of them is evaluated in the lane at once: an attempt
that is given up costs the event loop as much as a review."""
ON_LOOP: Final = TimeLimit(0.005, raises=True, selectors=_NEW_SELECTORS)
"""For the policies on one small object on the event loop; a longer evaluation is repeated in the lane."""
MOST: Final = 0.02
"""Seconds on the event loop for the policies on all objects of one namespace, within `WINDOW`."""
WINDOW: Final = 0.1
"""Seconds."""
ORDINARY: Final = 0.001
"""Seconds that one evaluation may take without being counted: a review takes as long without policies."""
OF_ALL: Final = 2
"""All namespaces together may use so many times the time of one."""
_MOST_NAMESPACES: Final = 1024
_BRIEF: Final = TimeLimit(ORDINARY, raises=True, selectors=_NEW_SELECTORS)
_TURN: Final = 0.02
"""Seconds between two attempts of a small review to enter a full lane."""


class Allowance:
    """The remaining event-loop time by namespace. Used on the event loop only."""

    def __init__(self, clock: Clock = time.perf_counter, *, most: float = MOST, window: float = WINDOW) -> None:
        """Allow each namespace `most` seconds in any `window`; `clock` is monotonic, in seconds."""
        self._clock = clock
        # Wall-clock time includes waiting for the interpreter lock while the lane's thread has it.
        self._worked = time.thread_time if clock is time.perf_counter else clock
        self._most = most
        self._rate = most / window
        self._used: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._of_all = (0.0, 0.0)

    def lasts(self, namespace: str) -> bool:
        """Whether policies may be evaluated on the event loop for the namespace."""
        return self._owed(namespace, self._clock()) < self._most

    def limit(self) -> TimeLimit:
        """The time limit of one evaluation on the event loop."""
        used, then = self._of_all
        if not used or used - (self._clock() - then) * self._rate * OF_ALL < self._most * OF_ALL:
            return ON_LOOP
        return _BRIEF

    @contextlib.contextmanager
    def spending(self, namespace: str) -> Iterator[None]:
        """Count the time inside the context."""
        started = self._worked()
        try:
            yield
        finally:
            now, worked = self._clock(), self._worked() - started
            if worked > ORDINARY:
                self._used[namespace] = (self._owed(namespace, now) + worked, now)
                used, then = self._of_all
                self._of_all = (max(0.0, used - (now - then) * self._rate * OF_ALL) + worked, now)
                self._used.move_to_end(namespace)
                if len(self._used) > _MOST_NAMESPACES:
                    self._used.popitem(last=False)

    def _owed(self, namespace: str, now: float) -> float:
        """Seconds that the namespace has used, minus the seconds refilled since."""
        used, then = self._used.get(namespace, (0.0, now))
        return max(0.0, used - (now - then) * self._rate)


@dataclasses.dataclass(frozen=True, slots=True)
class Execution:
    """Where policies are evaluated, and the clock that bounds them.

    Attributes:
        clock: monotonic, in seconds.
        allowance: the time for policies on the event loop.
    """

    clock: Clock = time.perf_counter
    lane: Lane = dataclasses.field(default_factory=Inline)
    allowance: Allowance = dataclasses.field(default_factory=Allowance)

    async def read(self, namespace: str, size: int, work: Callable[[], Result]) -> Result:
        """What a request of `size` bytes has, read on the event loop or in the lane.

        Raises:
            LaneError: it is not done before the caller's time-out.
        """
        return work() if size <= LARGE_OBJECT else await self.lane.run(namespace, work, effort.of_reading(size))

    async def run(
        self,
        namespace: str,
        size: int,
        work: Callable[[TimeLimit], Result],
        estimate: Callable[[], float],
        expected: Callable[[], float] = float,
    ) -> Result:
        """The result of policies on a request of `size` bytes: on the event loop if that takes milliseconds, else in
        the lane.

        Args:
            work: evaluates within a time limit; with one that raises on the event loop. Pure.
            estimate: seconds in the lane.
            expected: seconds that such work took before.

        Raises:
            LaneError: it is not done before the caller's time-out.
        """
        run = self.lane.run
        if size <= LARGE_OBJECT:
            limit = self.allowance.limit()
            if self.allowance.lasts(namespace) and (limit is ON_LOOP or expected() <= limit.seconds):
                with self.allowance.spending(namespace), contextlib.suppress(TakesLongError):
                    return work(limit)
            run = functools.partial(run_with_retry, self.lane)
        until = self.clock() + seconds_left()

        def in_turn() -> Result:
            return work(TimeLimit(min(REVIEW_LIMIT.seconds, max(0.0, until - self.clock()))))

        return await run(namespace, in_turn, estimate())


async def run_with_retry(lane: Lane, namespace: str, work: Callable[[], Result], seconds: float = 0.0) -> Result:
    """Run work on a small object in the lane; retry while the lane is full.

    Raises:
        LaneError: it is not done before the caller's time-out.
    """
    while True:
        try:
            return await lane.run(namespace, work, seconds)
        except LaneFullError:
            if seconds_left() <= 2 * _TURN:
                raise
            await asyncio.sleep(_TURN)
