"""How tasks wait: for the next change of a value, and after a write that another writer may undo."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from kubeletplugin.ports import Clock

QUIET: Final = 60.0
"""Seconds after which a task looks again without a change, and a write is not a repetition of the last one."""

_FIRST_PAUSE: Final = 0.2
_LAST_PAUSE: Final = 30.0


class Changing:
    """Something that changes, and waiting for its changes. To be used in the event loop's thread.

    Attributes:
        generation: increases with every change.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._changed = asyncio.Event()

    async def wait(self, generation: int, timeout: float) -> int:  # noqa: ASYNC109 - not an error when it runs out
        """Return the present generation as soon as it differs from `generation`, or after `timeout` seconds."""
        if generation == self.generation:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._changed.wait()
        return self.generation

    def _count_change(self) -> None:
        """Wake what waits for a change."""
        self.generation += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


@contextlib.asynccontextmanager
async def waking(event: asyncio.Event, period: float, *sources: Changing) -> AsyncIterator[None]:
    """Set `event` at each change of a source, and after `period` seconds without one, while the context is open."""

    async def follow(source: Changing, generation: int) -> None:
        while True:
            generation = await source.wait(generation, period)
            event.set()

    followers = [asyncio.create_task(follow(source, source.generation)) for source in sources]
    try:
        yield
    finally:
        for follower in followers:
            follower.cancel()
        await asyncio.gather(*followers, return_exceptions=True)


class WritePause:
    """The pause after a write. It becomes longer while writes repeat: another writer may undo them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seconds = _FIRST_PAUSE
        self._last_write = float("-inf")

    async def sleep(self) -> None:
        """Wait after a write."""
        now = self._clock.monotonic()
        self._seconds = _FIRST_PAUSE if now - self._last_write > QUIET else min(self._seconds * 2, _LAST_PAUSE)
        self._last_write = now
        await self._clock.sleep(self._seconds)
