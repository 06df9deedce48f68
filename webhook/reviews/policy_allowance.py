"""How long the policies on one namespace's objects may take on the event loop.

A review that is quick alone is not quick where many arrive at once: each of them is short, and their sum is how long
others wait. So namespaces have a token bucket of time each. Who used it up waits for the lane, like all that is long.
"""

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Final

from kubecel.budget import Clock
from webhook.reviews.lane import Lane, LaneFullError, Result, seconds_left

ON_LOOP: Final = 0.005
"""Seconds that policies may take on the event loop, on one small object; what takes longer starts again in the lane."""
MOST: Final = 0.02
"""Seconds on the event loop, for the policies on all objects of one namespace, ..."""
WINDOW: Final = 0.1
"""... in as many seconds."""
ORDINARY: Final = 0.001
"""Seconds that are not counted: as long as a review takes anyway."""
_MOST_NAMESPACES: Final = 1024
_TURN: Final = 0.02
"""Seconds after which a small review tries again to get into a full lane."""


class Allowance:
    """Time on the event loop that is left, by namespace. Used on the event loop only."""

    def __init__(self, clock: Clock = time.perf_counter, *, most: float = MOST, window: float = WINDOW) -> None:
        """Allow each namespace `most` seconds in any `window`; `clock` is monotonic, in seconds."""
        self._clock = clock
        # Waiting for the interpreter, which the lane's thread has, is no work of the namespace.
        self._worked = time.thread_time if clock is time.perf_counter else clock
        self._most = most
        self._rate = most / window
        self._used: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def lasts(self, namespace: str) -> bool:
        """Whether policies may be evaluated on the event loop for the namespace."""
        return self._owed(namespace, self._clock()) < self._most

    @contextlib.contextmanager
    def spending(self, namespace: str) -> Iterator[None]:
        """Inside the context, time counts."""
        started = self._worked()
        try:
            yield
        finally:
            now, worked = self._clock(), self._worked() - started
            if worked > ORDINARY:
                self._used[namespace] = (self._owed(namespace, now) + worked, now)
                self._used.move_to_end(namespace)
                if len(self._used) > _MOST_NAMESPACES:
                    self._used.popitem(last=False)

    def _owed(self, namespace: str, now: float) -> float:
        """Seconds that the namespace has used, less what came back since."""
        used, then = self._used.get(namespace, (0.0, now))
        return max(0.0, used - (now - then) * self._rate)


async def in_turn(lane: Lane, namespace: str, work: Callable[[], Result]) -> Result:
    """The result of work on a small object, which waits where the lane is full: alone it would not have come here.

    Raises:
        LaneError: it is not done in the time that the caller waits.
    """
    while True:
        try:
            return await lane.run(namespace, work)
        except LaneFullError:
            if seconds_left() <= 2 * _TURN:
                raise
            await asyncio.sleep(_TURN)
