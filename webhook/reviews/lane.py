"""A lane beside the event loop, for decisions that a tenant's object can make long.

The event loop answers every client. A decision that takes a second on the loop makes every other client wait a second.
So a decision about a large object, and one that evaluates expressions for the first time, runs in one thread beside the
loop. The interpreter switches between the two threads every few milliseconds. It cannot switch inside one call into C,
so the size of what such a call walks has to be bounded before (docs/security.md).

The lane takes turns between namespaces: a namespace that sends many long decisions delays its own. It has two threads.
No namespace has more than one of them, and the second one takes only namespaces whose decisions were short lately: one
that writes its first selector does not wait for the second that another namespace's decision takes.

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
"""Bytes of an object from which on decisions about it run in the lane. An ordinary pod or claim has 2 to 4 KiB;
what the smaller ones cost, one after the other, is how long everybody waits."""
MOST_WAITING: Final = 64
"""Decisions that wait, of all namespaces together."""
MOST_WAITING_OF_ONE: Final = 16
"""Decisions that wait, of one namespace."""
DEFAULT_TIMEOUT: Final = 10.0
"""Seconds. The API server's default `timeoutSeconds` of a webhook (admissionregistration/v1)."""
SWITCH_INTERVAL: Final = 0.0005
"""Seconds that one thread of the interpreter keeps it while another waits. An answer needs the interpreter a few times,
and each time it may wait as long; Python's default is 0.005."""
RESERVE: Final = 0.3
"""Part of the caller's time-out that is kept for sending the answer, ..."""
LEAST_RESERVE: Final = 0.5
"""... the least of it, in seconds, and ..."""
MOST_RESERVE: Final = 0.5
"""... the most of it, again as a part. The API server rounds what it puts into `?timeout=` up to whole seconds."""
THREAD: Final = "lane"
"""Name of the thread."""
_RECENT: Final = 0.25
"""Weight of the last decision in the mean of what decisions take."""

LONG: Final = 0.1
"""Seconds of one decision from which on its namespace leaves the second thread to others."""
LONG_AGO: Final = 5.0
"""Seconds that it does so."""
_MOST_REMEMBERED: Final = 1024
"""Namespaces."""

_deadline: contextvars.ContextVar[float | None] = contextvars.ContextVar("deadline", default=None)


class LaneError(Exception):
    """The decision was not made. The message says why."""


class LaneFullError(LaneError):
    """Too many decisions wait already."""


class LaneTimeoutError(LaneError):
    """The decision was not made in the time that the caller waits."""


@functools.lru_cache(maxsize=64)
def usable(seconds: float) -> float:
    """The part of a caller's time-out that may go into the decision, in seconds."""
    return seconds - min(seconds * MOST_RESERVE, max(LEAST_RESERVE, seconds * RESERVE))


def answer_within(seconds: float, waited: float = 0.0, clock: Clock = time.monotonic) -> None:
    """Set how long the caller of the current task's review waits, and how much of that is over already."""
    _deadline.set(clock() - waited + usable(seconds))


@contextlib.contextmanager
def caller_waits(seconds: float, clock: Clock = time.monotonic) -> Iterator[None]:
    """Inside the context, the current review has to be answered within `seconds`."""
    token = _deadline.set(clock() + usable(seconds))
    try:
        yield
    finally:
        _deadline.reset(token)


def seconds_left(clock: Clock = time.monotonic) -> float:
    """Seconds until the current review has to be answered; negative when they are over."""
    deadline = _deadline.get()
    return usable(DEFAULT_TIMEOUT) if deadline is None else deadline - clock()


def is_working() -> bool:
    """Whether a lane of this process is in the middle of a decision, or waits for one."""
    return any(thread.name == THREAD for thread in threading.enumerate())


class Lane(Protocol):
    """Where long decisions run."""

    async def run(self, namespace: str, work: Callable[[], Result]) -> Result:
        """The result of `work`.

        Args:
            namespace: whose turn it takes; empty for cluster-scoped objects.
            work: a pure function. It may run in another thread, and may finish after its caller has given up.

        Raises:
            LaneFullError: too many decisions wait, or those before it take longer than the caller waits.
            LaneTimeoutError: it was not done in the time that the caller waits.
        """


class Inline:
    """A lane that runs everything at once, for offline commands."""

    async def run(self, namespace: str, work: Callable[[], Result]) -> Result:  # noqa: ARG002 - see `Lane`
        """The result of `work`."""
        return work()


class _Job:
    """One decision that waits."""

    __slots__ = ("_future", "_loop", "_work")

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work: Callable[[], Any] | None = work
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[Any] = self._loop.create_future()

    async def result(self, seconds: float) -> Any:
        """Wait for the result.

        Raises:
            LaneTimeoutError: it is not there after `seconds`.
        """
        try:
            async with asyncio.timeout(seconds):
                return await self._future
        except TimeoutError:
            raise LaneTimeoutError("this decision takes longer than its caller waits") from None
        finally:
            # With it goes the object that it is about: others that wait may take long.
            self._work = None

    @property
    def awaited(self) -> bool:
        """Whether the caller has not given up."""
        return self._work is not None

    def run(self) -> bool:
        """Do the work, unless the caller has given up; whether it was done. Runs in the lane's thread."""
        work = self._work
        if work is None:
            return False
        try:
            value, error = work(), None
        except Exception as caught:  # noqa: BLE001 - it is raised again where the result is waited for
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
    """A lane of two threads. Belongs to the event loop that calls `run`.

    The threads are daemons: a decision that is under way does not keep the process from ending.
    """

    def __init__(self, *, waiting: int = MOST_WAITING, of_one: int = MOST_WAITING_OF_ONE) -> None:
        """Let at most `waiting` decisions wait, `of_one` of them of one namespace."""
        self._most = waiting
        self._most_of_one = of_one
        self._waiting = 0
        self._mean = 0.0
        self._queues: OrderedDict[str, deque[_Job]] = OrderedDict()
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._working: set[str] = set()
        self._turns: dict[str, float] = {}  # Namespaces whose last decision was long -> when it ended.

    async def run(self, namespace: str, work: Callable[[], Result]) -> Result:
        """See `Lane.run`."""
        left = seconds_left()
        if left <= 0:
            raise LaneTimeoutError("this decision has waited longer than its caller does")
        job = _Job(work)
        self._put(namespace, job, left)
        result: Result = await job.result(left)
        return result

    def close(self) -> None:
        """Let the threads end after the decisions that are under way."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def waiting(self) -> int:
        """Decisions that have not begun."""
        return self._waiting

    def _before(self, namespace: str) -> int:
        """Decisions that come before one of a namespace that is added now.

        Namespaces take turns, and one whose decisions are short does not wait for those whose decisions are long.
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
                raise LaneFullError("the long decisions that wait take longer than this one's caller waits")
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
        """The next job, of the namespace whose last turn is longest ago; None when the lane is closed.

        Args:
            short: leave out namespaces whose decisions were long lately.
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
