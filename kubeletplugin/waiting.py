"""What the driver's parts share: how long they wait for what, in one table; the clock; how tasks wait for the next
change of a value, after a failure, and after a write; Kubernetes objects as JSON.
"""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from runtime.api_server import ApiServerError
from runtime.retries import RETRY, Backoff

JsonObject = dict[str, Any]
"""A Kubernetes object as decoded JSON."""


class UsageUnknownError(Exception):
    """It is not known whether a device is in use; the message has the reason."""


class NoProcessesError(UsageUnknownError):
    """The driver was not given the host's processes: it will never know."""


def version_of(body: JsonObject) -> int:
    """The object's resourceVersion; 0 if it has none.

    Comparable for objects of one kind: specified since Kubernetes 1.35 (KEP-5504), true also before.
    """
    text = body["metadata"].get("resourceVersion", "")
    return int(text) if text.isdecimal() else 0


def timestamp(now: float) -> str:
    """Seconds since the epoch as `metav1.Time`."""
    return dt.datetime.fromtimestamp(now, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclasses.dataclass(frozen=True, slots=True)
class Waits:
    """How long the driver waits for what, in seconds; requests to the API server are in `runtime.retries`."""

    # --- The calls of the kubelet, which end after 45 s (KEP-4381).
    call: float = 40.0  # retries within one call: an answer has the reason, a call that ends has none
    answer: float = 3.0  # what is left of the kubelet's time-out when the retries end
    held: float = 15.0  # for devices of another claim; the pod's event, which names that claim, comes after them
    unprepare: float = 5.0  # for a look at the processes; after that the device stays held
    health_resent: float = 10.0  # the kubelet sets a device's health to unknown if no update arrives in time
    health_lost: int = 30  # until it does so

    # --- The state that two instances of the driver share, and the node.
    state_lock: float = 10.0
    sysfs: float = 5.0  # for the UltraServer files, which claims for several nodes need
    scan: float = 10.0  # for the processes of the node
    scan_and_queue: float = 15.0  # for a scan and the one before it
    kubelet_answer: float = 5.0  # of the PodResources API
    probe: float = 3.0  # for a call of an own socket
    sweep_retry: float = 10.0  # until a failed sweep is repeated
    sweep_look: float = 10.0  # between two looks at the CDI specs, and at claims that were refused
    look: float = 15.0  # between two looks at the containers of claims, and at the use of devices
    files: float = 600.0  # until the node's files are checked again, if the hardware did not change

    # --- Registration, and who publishes.
    sockets_look: float = 2.0  # between two looks at the own sockets
    first_renewal: float = 5.0  # until a registration socket that the kubelet does not use is made again
    last_renewal: float = 60.0
    recent: float = 10.0  # a restarted kubelet registers the plugin and deletes its slices in any order, so far apart
    other_look: float = 5.0  # between two looks at the sockets of another driver
    other_stays: float = 300.0  # how long slices without a socket stay that came back after their deletion
    publish_lock: float = 1.0  # between two looks whether another instance has ended
    restored: float = 10.0  # for the devices that are held, before the first slices

    # --- The end.
    withdrawn: float = 5.0  # for the deletion of the slices
    placed: float = 1.0  # for pods that the scheduler places here before it sees that the slices are withdrawn
    deregistered: float = 1.5  # the kubelet looks once a second for registration sockets that have gone
    grace: float = 5.0  # for the last calls

    # --- Writes and watches.
    spread: float = 5.0  # a server that ends cuts the watches of all nodes at once: they come back within this time
    quiet: float = 60.0  # without a change: then a task looks again, and a write is not a repetition of the last one
    watch: float = 200.0  # the shortest watch, jitter adds up to the same: after it the features are asked for again
    refused: float = 600.0  # for a claim whose status the API server refused: only an admin can change that


WAITS: Final = Waits()


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
