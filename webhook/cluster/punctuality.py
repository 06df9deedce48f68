"""Watches how late the event loop runs. A time-out says nothing about a server if this process did not come to read."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final

_TICK: Final = 0.02
"""Seconds between two looks at the clock."""
_LATE: Final = 0.5
"""Share of the time by which the loop was late, above which an answer may have waited in this process."""


class Punctuality:
    """How late the event loop runs while a request is under way."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun = self._due = clock()
        self._lost = 0.0

    async def watch(self) -> None:
        """Look at the clock until cancelled."""
        while True:
            self._due = self._clock() + _TICK
            await asyncio.sleep(_TICK)
            self._lost += max(0.0, self._clock() - self._due)

    @property
    def late(self) -> bool:
        """Whether this process was late for most of the time, so that an answer may have waited in it."""
        now = self._clock()
        lost = self._lost + max(0.0, now - self._due)
        return lost > _LATE * (now - self._begun)


@contextlib.contextmanager
def punctuality() -> Iterator[Punctuality]:
    """Watch the running event loop inside the context."""
    found = Punctuality()
    watching = asyncio.get_running_loop().create_task(found.watch(), name="punctuality")
    try:
        yield found
    finally:
        watching.cancel()
