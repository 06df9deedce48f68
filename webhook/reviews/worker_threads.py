"""The lane: threads beside the event loop for decisions that a tenant's object can make long.

The event loop answers every client: a decision of one second on the loop delays all clients by one second. So the lane
decides about large objects, and evaluates expressions for the first time. The interpreter switches between threads
every few milliseconds, but not inside one call into C. So the input of such calls is bounded before (docs/security.md).

Decisions have three classes by estimated CPU time (`webhook.reviews.effort`), and each class has a thread and a queue.
Long decisions work in slices: between two slices they wait while shorter ones work. A decision that takes much longer
than its class allows begins again in the next class. `webhook.reviews.effort` orders the decisions of a class.

Exceptions: `LaneError` > `LaneFullError`, `LaneTimeoutError`.
"""

import asyncio
import contextlib
import contextvars
import dataclasses
import functools
import math
import sys
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from types import TracebackType
from typing import Any, Final, Protocol, TypeVar

from conversion.claims.work import TooMuchWorkError, WorkAllowance
from webhook.reviews import effort
from webhook.reviews.effort import DecisionQueue
from webhook.reviews.reviewer import before_waiting

Result = TypeVar("Result")

LARGE_OBJECT: Final = 8 * 1024
"""Bytes of an object above which its decision runs in the lane. An ordinary pod or claim has 2 to 4 KiB. Decisions
about smaller objects run on the event loop, so their sum is a delay for all clients."""
DEFAULT_TIMEOUT: Final = 10.0
"""Seconds. The API server's default `timeoutSeconds` of a webhook (admissionregistration/v1)."""
SWITCH_INTERVAL: Final = 0.0001
"""Seconds that one thread holds the interpreter while another waits (`sys.setswitchinterval`). An answer acquires the
interpreter for each read and write of TLS, and may wait this long for each running thread. Python's default: 0.005."""
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
STUCK: Final = 0.02
"""Seconds after which another idle thread takes the waiting decisions of a class whose thread has one that does not
give way."""


@dataclasses.dataclass(frozen=True, slots=True)
class DecisionClass:
    """A class of decisions.

    Attributes:
        estimate: largest estimated CPU seconds.
        most: CPU seconds after which a decision moves to the next class.
        waiting: number of decisions that may wait.
        of_one: number of decisions of one namespace that may wait.
    """

    estimate: float
    most: float
    waiting: int
    of_one: int


SIZES: Final = (
    DecisionClass(0.01, 0.02, 128, 32),
    DecisionClass(0.1, 0.2, 64, 16),
    DecisionClass(math.inf, math.inf, 16, 8),
)
"""Small, medium, long."""
_OVERRUN: Final = 4
"""A small decision moves on after so many times its estimate, if that is earlier."""
_LEAST_OVERRUN: Final = 0.004
"""But not before so many seconds."""

_deadline: contextvars.ContextVar[float | None] = contextvars.ContextVar("deadline", default=None)
_client: contextvars.ContextVar[str] = contextvars.ContextVar("client", default="")


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


def answer_within(seconds: float, waited: float = 0.0, client: str = "") -> None:
    """Set the deadline of the current task's review: time-out of the caller in seconds, and seconds already passed.

    `client` is the address of the peer.
    """
    _deadline.set(time.monotonic() - waited + usable(seconds))
    _client.set(client)


def seconds_left() -> float:
    """Seconds until the deadline of the current review; negative after it."""
    deadline = _deadline.get()
    return usable(DEFAULT_TIMEOUT) if deadline is None else deadline - time.monotonic()


def is_working() -> bool:
    """Whether a lane of this process has a running thread."""
    return any(thread.name == THREAD for thread in threading.enumerate())


# --- slices: a decision in a thread of the lane gives way to shorter ones whenever it reads its clock ---------------
#
# Expressions are bounded by a clock, which they read at least every two milliseconds. In a thread of the lane, that
# clock is `working_time`: at the end of a slice it waits for shorter decisions, or ends the decision.

SLICE: Final = 0.002
"""Seconds of work between two pauses."""
PAUSE: Final = 0.02
"""Maximum seconds of a pause: a tenth of the time is left for long decisions, however many short ones there are."""

Judge = Callable[[float], bool]
"""Returns whether the decision may go on, after so many CPU seconds."""
Pause = Callable[[float], None]
"""Waits for shorter decisions, at most so many seconds."""

_current: Final = threading.local()


class EndedError(BaseException):
    """Ends a decision that must not go on. Not an `Exception`: no handler of a decision may catch it."""


class Running:
    """The decision that the current thread works on, as a context."""

    def __init__(self, judge: Judge, pause: Pause) -> None:
        self._judge = judge
        self._pause = pause
        self._begun = time.thread_time()
        self._worked = 0.0
        self._since = time.monotonic()

    def __enter__(self) -> None:
        _current.running = self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _current.running = None

    def worked(self) -> float:
        """CPU seconds; exact at the beginning of a slice, and by the wall clock within it: that is cheaper to read.

        Raises:
            EndedError: the decision must not go on.
        """
        slice_ = time.monotonic() - self._since
        if slice_ < SLICE:
            return self._worked + slice_
        self._worked = time.thread_time() - self._begun
        if not self._judge(self._worked):
            raise EndedError
        self._pause(PAUSE)
        self._since = time.monotonic()
        return self._worked


def working_time() -> float:
    """A clock in seconds: in a thread of the lane, the CPU time of its decision; else a monotonic clock.

    Raises:
        EndedError: the decision must not go on.
    """
    running: Running | None = getattr(_current, "running", None)
    return time.monotonic() if running is None else running.worked()


# --- the lane -------------------------------------------------------------------------------------------------------


class Lane(Protocol):
    """Runs long decisions."""

    async def run(
        self, namespace: str, work: Callable[[], Result], seconds: float = 0.0, key: Hashable = None
    ) -> Result:
        """Run `work` and return its result.

        Args:
            namespace: of the object, for the turns; empty for cluster-scoped objects.
            work: a pure function. It may run in another thread, may finish after the time-out of its caller, and may be
                ended at any reading of `working_time` and begin again.
            seconds: its estimated CPU time (`webhook.reviews.effort`).
            key: equal for equal work: a caller waits for the result of such work that is under way. None: for no other.

        Raises:
            LaneFullError: too many decisions wait, or the waiting ones would exceed the caller's time-out.
            LaneTimeoutError: `work` did not finish within the caller's time-out.
        """


class Inline:
    """A lane that runs work in the calling thread, for offline commands and as the default."""

    async def run(
        self,
        namespace: str,  # noqa: ARG002 - see `Lane`
        work: Callable[[], Result],
        seconds: float = 0.0,  # noqa: ARG002
        key: Hashable = None,  # noqa: ARG002
    ) -> Result:
        """See `Lane.run`."""
        await before_waiting()
        return work()


class _Job:
    """One decision, for one caller or for several with equal work. Created and awaited on the event loop.

    Attributes:
        client, namespace, estimate: of the first caller, see `webhook.reviews.effort.Waiting`.
        size: index of its class in `SIZES`.
        key: see `Lane.run`.
    """

    __slots__ = ("_loop", "_waiters", "_work", "client", "estimate", "key", "namespace", "size")

    def __init__(self, namespace: str, work: Callable[[], object], estimate: float, key: Hashable) -> None:
        self.client = _client.get()
        self.namespace = namespace
        self.estimate = estimate
        self.size = next(index for index, each in enumerate(SIZES) if estimate <= each.estimate)
        self.key = key
        self._work: Callable[[], object] | None = work
        self._loop = asyncio.get_running_loop()
        self._waiters: list[asyncio.Future[object]] = []

    @property
    def most(self) -> float:
        """CPU seconds after which it moves to the next class."""
        most = SIZES[self.size].most
        return most if self.size else min(most, max(_LEAST_OVERRUN, _OVERRUN * self.estimate))

    async def result(self, seconds: float) -> Any:
        """Wait for the result.

        Raises:
            LaneFullError: a shorter decision took its place.
            LaneTimeoutError: no result after `seconds`.
        """
        # One future for each caller, instead of a shielded task for all: after the result, each caller goes on in the
        # next iteration of the event loop. Under load an iteration takes long.
        future: asyncio.Future[object] = self._loop.create_future()
        self._waiters.append(future)
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            raise LaneTimeoutError("this decision takes longer than its caller waits") from None
        finally:
            self._waiters.remove(future)
            # The future has the exception, and its traceback has this frame: without this, a refused review, with its
            # object, would stay until the next full garbage collection.
            del future
            if not self._waiters:
                # Free the object of this review: the job may be in its thread for long.
                self._work = None

    @property
    def awaited(self) -> bool:
        """Whether a caller still waits."""
        return self._work is not None

    def run(self) -> tuple[object, Exception | None] | None:
        """Run the work if a caller still waits: its value, or its exception. Called in the lane's threads."""
        work = self._work
        if work is None:
            return None
        try:
            return work(), None
        except Exception as caught:  # noqa: BLE001 - raised again in `result`
            return None, caught

    def settle(self, value: object, error: Exception | None) -> None:
        """Give all callers the result. On the event loop."""
        for future in self._waiters:
            if future.done():
                continue
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

    def call(self, function: Callable[..., None], *arguments: object) -> None:
        """Call a function on the event loop, from any thread."""
        with contextlib.suppress(RuntimeError):  # The loop is closed: the process is ending.
            self._loop.call_soon_threadsafe(function, *arguments)


async def on_loop_or_in(lane: Lane, namespace: str, work: Callable[[], Result], size: int) -> Result:
    """Decide about an object of `size` bytes: on the event loop if it is small and takes little work, else in the lane.

    Raises:
        LaneFullError, LaneTimeoutError: as `Lane.run`.
    """
    seconds = effort.of_deciding(size)
    if size <= LARGE_OBJECT:
        try:
            with effort.on_the_loop():
                return work()
        except TooMuchWorkError as error:
            seconds = effort.of_planning(error.units, size)
    return await lane.run(namespace, work, seconds)


_FULL: Final = "too many long decisions wait"


class ThreadLane:
    """A lane with one thread for each class of decisions. `run` is for one event loop only.

    The threads are daemons: a running decision does not delay the end of the process.
    """

    def __init__(self, sizes: Sequence[DecisionClass] = SIZES) -> None:
        """`sizes` sets the bounds of the queues."""
        self._sizes = sizes
        self._queues = [DecisionQueue[_Job]() for _ in SIZES]
        self._means = [0.0 for _ in SIZES]
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._running: list[tuple[_Job, float] | None] = [None for _ in SIZES]  # By thread: the job and its start.
        self._under_way: dict[Hashable, _Job] = {}  # By key; for the event loop only.
        self._closed = False

    async def run(
        self, namespace: str, work: Callable[[], Result], seconds: float = 0.0, key: Hashable = None
    ) -> Result:
        """See `Lane.run`."""
        await before_waiting()
        left = seconds_left()
        if left <= 0:
            raise LaneTimeoutError("this decision has waited longer than the time-out of its caller")
        job = None if key is None else self._under_way.get(key)
        if job is None:
            job = _Job(namespace, work, seconds, key)
            self._put(job, left)
            if key is not None:
                self._under_way[key] = job
        try:
            result: Result = await job.result(left)
        finally:
            if not job.awaited:  # it has ended, or its callers have
                if self._under_way.get(job.key) is job:
                    del self._under_way[job.key]
                with self._changed:
                    self._queues[job.size].remove(job)
        return result

    def close(self) -> None:
        """End the threads after their current decisions."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def waiting(self) -> int:
        """Decisions in the queues."""
        return sum(map(len, self._queues))

    def _finish(self, job: _Job, value: object, error: Exception | None) -> None:
        """Answer its callers. On the event loop."""
        if self._under_way.get(job.key) is job:
            del self._under_way[job.key]
        job.settle(value, error)

    def _refuse(self, job: _Job) -> None:
        """End it with `LaneFullError`, from any thread."""
        job.call(self._finish, job, None, LaneFullError(_FULL))

    def _put(self, job: _Job, left: float) -> None:
        with self._changed:
            queue = self._queues[job.size]
            running = sum(each is not None and each[0].namespace == job.namespace for each in self._running)
            if queue.of_namespace(job.namespace) >= self._sizes[job.size].of_one:
                raise LaneFullError(_FULL)
            if queue.ahead(job, running) * self._means[job.size] > left:
                raise LaneFullError("the waiting long decisions take longer than the time-out of this one's caller")
            if not self._admit(job, running):
                raise LaneFullError(_FULL)
        if not self._threads:
            sys.setswitchinterval(SWITCH_INTERVAL)
            for size in range(len(SIZES)):
                thread = threading.Thread(target=self._work, args=(size,), name=THREAD, daemon=True)
                self._threads.append(thread)
                thread.start()

    def _admit(self, job: _Job, running: int = 0) -> bool:
        """Add it to its queue, if necessary in place of another one."""
        queue = self._queues[job.size]
        if len(queue) >= self._sizes[job.size].waiting:
            other = queue.last()
            if other is None or not queue.precedes(job, other):
                return False
            queue.remove(other)
            self._refuse(other)
        queue.add(job, running)
        self._changed.notify_all()
        return True

    def _take(self, size: int) -> _Job | None:
        """The next job for the thread of a class; None after `close`."""
        with self._changed:
            self._running[size] = None
            self._changed.notify_all()
            while (job := self._next(size)) is None and not self._closed:
                self._changed.wait(STUCK if any(map(len, self._queues[:size])) else None)
            if job is None or self._closed:
                return None
            self._running[size] = job, time.monotonic()
            return job

    def _next(self, size: int) -> _Job | None:
        """The next job of the class's own queue, or of a shorter class whose thread does not yield."""
        job = self._queues[size].take()
        if job is not None:
            return job
        for shorter in reversed(range(size)):
            busy = self._running[shorter]
            if busy is not None and time.monotonic() - busy[1] > STUCK:
                job = self._queues[shorter].take()
                if job is not None:
                    return job
        return None

    def _work(self, size: int) -> None:
        while (job := self._take(size)) is not None:
            begun = time.monotonic()
            running = Running(functools.partial(self._judge, job, size), functools.partial(self._pause, job))
            try:
                with running, WorkAllowance(pause=working_time):
                    ended = job.run()
                if ended is not None:
                    job.call(self._finish, job, *ended)
                    self._means[job.size] += _RECENT * (time.monotonic() - begun - self._means[job.size])
                del ended
            except EndedError:
                self._move(job)
            del job, running

    def _judge(self, job: _Job, size: int, seconds: float) -> bool:
        """Whether a job in the thread of class `size` may go on, after `seconds` of CPU time."""
        if not job.awaited:
            return False
        if seconds > job.most:
            if job.size >= size:
                return False
            job.size += 1  # It is in the thread of a longer class already.
        return True

    def _pause(self, job: _Job, seconds: float) -> None:
        """Wait until no shorter decision waits or runs, at most so many seconds."""
        if not self._is_shorter(job):
            return
        end = time.monotonic() + seconds
        with self._changed:
            while self._is_shorter(job) and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)

    def _is_shorter(self, job: _Job) -> bool:
        return any(map(len, self._queues[: job.size])) or any(
            each is not None and each[0].size < job.size for each in self._running
        )

    def _move(self, job: _Job) -> None:
        if not job.awaited:
            return
        with self._changed:
            job.size += 1
            job.estimate = max(job.estimate, SIZES[job.size - 1].most)
            if not self._admit(job):
                self._refuse(job)
