"""The clock, and how tasks wait: for the next change of a value, after a failure, and after a write."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from kubeletplugin.ports import WAITS
from runtime.api_server import ApiServerError
from runtime.retries import RETRY, Backoff


class Clock:
    """The system's time; tests replace it."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds of a monotonic clock."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


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


async def repeat(
    session: Callable[[], Awaitable[None]],
    failed: Callable[[ApiServerError], Awaitable[None]],
    pauses: tuple[float, float],
    long: float,
    clock: Clock,
    jitter: Callable[[float, float], float],
) -> None:
    """Repeat a session with the API server until cancelled.

    Args:
        session: returns when its watch ends.
        failed: called with the error that ended a session.
        pauses: the first and the longest pause after a short session; longer if the API server asks for it.
        long: seconds; a session that took longer is followed by the next one within `WAITS.spread`.
        clock: for the pauses.
        jitter: makes a random number between two: the sessions of many nodes are spread over time.
    """
    backoff = Backoff(*pauses, lambda bound: jitter(bound / 2, bound))
    while True:
        start, pause = clock.monotonic(), 0.0
        try:
            await session()
        except ApiServerError as error:
            pause = error.retry_after
            await failed(error)
        if clock.monotonic() - start > long:
            backoff.reset()
            pause = max(pause, jitter(0.0, WAITS.spread))
        else:
            pause = max(pause, backoff.failed())
        await clock.sleep(pause)


async def report_changes(source: Changing, report: Callable[[], Awaitable[bool]], clock: Clock) -> None:
    """Call `report` at each change of a source until cancelled, and again while it returns False."""
    backoff = Backoff(*RETRY)
    while True:
        generation = source.generation
        if await report():
            backoff.reset()
            await source.wait(generation, WAITS.quiet)
        else:
            await clock.sleep(backoff.failed())


class WritePause:
    """The pause after a write. It becomes longer while writes repeat: another writer may undo them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._backoff = Backoff(0.2, 30.0)
        self._last_write = float("-inf")

    async def sleep(self) -> None:
        """Wait after a write."""
        now = self._clock.monotonic()
        if now - self._last_write > WAITS.quiet:
            self._backoff.reset()
        self._last_write = now
        await self._clock.sleep(self._backoff.failed())
