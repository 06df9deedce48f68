"""The lane: threads beside the event loop for decisions that a tenant's object can make long.

The event loop answers every client: a decision of one second on the loop delays all clients by one second. So the lane
decides about large objects, and evaluates expressions for the first time. The interpreter switches between threads
every few milliseconds, but not inside one call into C. So the input of such calls is bounded before (docs/security.md).

Namespaces take turns (round robin): many long decisions of one namespace delay only that namespace. The lane has two
threads. One namespace uses at most one of them, and the second thread takes only namespaces whose last decisions were
short: a namespace with one new selector does not wait for the long decision of another.

Exceptions: `LaneError` > `LaneFullError`, `LaneTimeoutError`.
"""

import asyncio
import contextlib
import contextvars
import functools
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, TypeVar

Result = TypeVar("Result")
Clock = Callable[[], float]
"""Monotonic, in seconds."""

LARGE_OBJECT: Final = 8 * 1024
"""Bytes of an object above which its decision runs in the lane. An ordinary pod or claim has 2 to 4 KiB. Decisions
about smaller objects run on the event loop, so their sum is a delay for all clients."""
MOST_WAITING: Final = 64
"""Waiting decisions of all namespaces together."""
MOST_WAITING_OF_ONE: Final = 16
"""Waiting decisions of one namespace."""
DEFAULT_TIMEOUT: Final = 10.0
"""Seconds. The API server's default `timeoutSeconds` of a webhook (admissionregistration/v1)."""
SWITCH_INTERVAL: Final = 0.0005
"""Seconds that one thread holds the interpreter while another waits (`sys.setswitchinterval`). An answer acquires the
interpreter a few times and may wait this long each time. Python's default is 0.005."""
RESERVE: Final = 0.3
"""Part of the caller's time-out that is reserved for sending the answer."""
LEAST_RESERVE: Final = 0.5
"""Minimum of that reserve, in seconds."""
MOST_RESERVE: Final = 0.5
"""Maximum of that reserve, as a part of the time-out. The API server rounds `?timeout=` up to whole seconds."""
THREAD: Final = "lane"
"""Name of the threads."""
_RECENT: Final = 0.25
"""Weight of the last decision in the moving average of durations."""

LONG: Final = 0.1
"""CPU seconds of a decision from which its namespace may not use the second thread."""
LONG_AGO: Final = 5.0
"""Seconds for which that applies."""
_MOST_REMEMBERED: Final = 1024
"""Namespaces with long decisions that are kept."""

_deadline: contextvars.ContextVar[float | None] = contextvars.ContextVar("deadline", default=None)


class LaneError(Exception):
    """The decision was not made. The message says why."""


class LaneFullError(LaneError):
    """Too many decisions are waiting."""


class LaneTimeoutError(LaneError):
    """The decision was not made within the caller's time-out."""


@functools.lru_cache(maxsize=64)
def usable(seconds: float) -> float:
    """Seconds of a caller's time-out that the decision may use."""
    return seconds - min(seconds * MOST_RESERVE, max(LEAST_RESERVE, seconds * RESERVE))


def answer_within(seconds: float, waited: float = 0.0, clock: Clock = time.monotonic) -> None:
    """Set the deadline of the current task's review: time-out of the caller in seconds, and seconds already passed."""
    _deadline.set(clock() - waited + usable(seconds))


@contextlib.contextmanager
def caller_waits(seconds: float, clock: Clock = time.monotonic) -> Iterator[None]:
    """Inside the context, the caller's time-out is `seconds`."""
    token = _deadline.set(clock() + usable(seconds))
    try:
        yield
    finally:
        _deadline.reset(token)


def seconds_left(clock: Clock = time.monotonic) -> float:
    """Seconds until the deadline of the current review; negative after it."""
    deadline = _deadline.get()
    return usable(DEFAULT_TIMEOUT) if deadline is None else deadline - clock()


def is_working() -> bool:
    """Whether a lane of this process has a running thread."""
    return any(thread.name == THREAD for thread in threading.enumerate())


class Lane(Protocol):
    """Runs long decisions."""

    async def run(self, namespace: str, work: Callable[[], Result]) -> Result:
        """Run `work` and return its result.

        Args:
            namespace: of the object, for the turns; empty for cluster-scoped objects.
            work: a pure function. It may run in another thread, and may finish after the time-out of its caller.

        Raises:
            LaneFullError: too many decisions wait, or the waiting ones would exceed the caller's time-out.
            LaneTimeoutError: `work` did not finish within the caller's time-out.
        """


class Inline:
    """A lane that runs work in the calling thread, for offline commands and as the default."""

    async def run(self, namespace: str, work: Callable[[], Result]) -> Result:  # noqa: ARG002 - see `Lane`
        """See `Lane.run`."""
        return work()


class _Job:
    __slots__ = ("_future", "_loop", "_work")

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work: Callable[[], Any] | None = work
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[Any] = self._loop.create_future()

    async def result(self, seconds: float) -> Any:
        """Wait for the result.

        Raises:
            LaneTimeoutError: no result after `seconds`.
        """
        try:
            async with asyncio.timeout(seconds):
                return await self._future
        except TimeoutError:
            raise LaneTimeoutError("this decision takes longer than its caller waits") from None
        finally:
            # Free the object of this review: the job may stay in its queue for long.
            self._work = None

    @property
    def awaited(self) -> bool:
        """Whether the caller still waits."""
        return self._work is not None

    def run(self) -> bool:
        """Run the work if the caller still waits; returns whether it ran. Called in the lane's thread."""
        work = self._work
        if work is None:
            return False
        try:
            value, error = work(), None
        except Exception as caught:  # noqa: BLE001 - raised again in `result`
            value, error = None, caught
        with contextlib.suppress(RuntimeError):  # The loop is closed: the process is ending.
            self._loop.call_soon_threadsafe(self._settle, value, error)
        return True

    def _settle(self, value: Any, error: Exception | None) -> None:
        if self._future.done():
            return
        if error is None:
            self._future.set_result(value)
        else:
            self._future.set_exception(error)


class ThreadLane:
    """A lane of two threads. `run` is for one event loop only.

    The threads are daemons: a running decision does not delay the end of the process.
    """

    def __init__(self, *, waiting: int = MOST_WAITING, of_one: int = MOST_WAITING_OF_ONE) -> None:
        """Allow `waiting` decisions in the queues, at most `of_one` of one namespace."""
        self._most = waiting
        self._most_of_one = of_one
        self._waiting = 0
        self._mean = 0.0
        self._queues: OrderedDict[str, deque[_Job]] = OrderedDict()
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._working: set[str] = set()
        self._turns: dict[str, float] = {}  # Namespace -> end of its last long decision.

    async def run(self, namespace: str, work: Callable[[], Result]) -> Result:
        """See `Lane.run`."""
        left = seconds_left()
        if left <= 0:
            raise LaneTimeoutError("this decision has waited longer than the time-out of its caller")
        job = _Job(work)
        self._put(namespace, job, left)
        result: Result = await job.result(left)
        return result

    def close(self) -> None:
        """End the threads after their current decisions."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def waiting(self) -> int:
        """Decisions in the queues."""
        return self._waiting

    def _before(self, namespace: str) -> int:
        """Decisions that would run before a new one of this namespace.

        Namespaces take turns; a namespace with short decisions does not wait for those with long ones.
        """
        short = not self._was_long(namespace)
        turns = sum(job.awaited for job in self._queues[namespace]) + 1
        others = (
            sum(job.awaited for job in queue)
            for other, queue in self._queues.items()
            if other != namespace and not (short and self._was_long(other))
        )
        return turns - 1 + sum(min(turns, many) for many in others)

    def _put(self, namespace: str, job: _Job, left: float) -> None:
        with self._changed:
            queue = self._queues.setdefault(namespace, deque())
            if self._waiting >= self._most or len(queue) >= self._most_of_one:
                if not queue:
                    del self._queues[namespace]
                raise LaneFullError("too many long decisions wait")
            if self._before(namespace) * self._mean > left:
                if not queue:
                    del self._queues[namespace]
                raise LaneFullError("the waiting long decisions take longer than the time-out of this one's caller")
            queue.append(job)
            self._waiting += 1
            self._changed.notify_all()
        if not self._threads:
            sys.setswitchinterval(SWITCH_INTERVAL)
            for short in (False, True):
                thread = threading.Thread(target=self._work, args=(short,), name=THREAD, daemon=True)
                self._threads.append(thread)
                thread.start()

    def _take(self, short: bool) -> tuple[str, _Job] | None:
        """The next job, from the namespace whose last turn is the oldest; None after `close`.

        Args:
            short: skip namespaces with recent long decisions.
        """
        with self._changed:
            while (namespace := self._next(short)) is None and not self._closed:
                self._changed.wait(LONG_AGO if self._queues else None)
            if namespace is None or self._closed:
                return None
            queue = self._queues.pop(namespace)
            job = queue.popleft()
            self._waiting -= 1
            if queue:
                self._queues[namespace] = queue
            self._working.add(namespace)
            return namespace, job

    def _next(self, short: bool) -> str | None:
        for namespace in self._queues:
            if namespace not in self._working and not (short and self._was_long(namespace)):
                return namespace
        return None

    def _was_long(self, namespace: str) -> bool:
        ended = self._turns.get(namespace)
        return ended is not None and time.monotonic() - ended < LONG_AGO

    def _done(self, namespace: str, seconds: float) -> None:
        with self._changed:
            self._working.discard(namespace)
            if seconds >= LONG:
                self._turns.pop(namespace, None)
                self._turns[namespace] = time.monotonic()
                if len(self._turns) > _MOST_REMEMBERED:
                    del self._turns[next(iter(self._turns))]
            self._changed.notify_all()

    def _work(self, short: bool) -> None:
        while (taken := self._take(short)) is not None:
            namespace, job = taken
            started, begun = time.thread_time(), time.monotonic()
            try:
                if job.run():
                    self._mean += _RECENT * (time.monotonic() - begun - self._mean)
            finally:
                self._done(namespace, time.thread_time() - started)
            del taken, job
