"""Slices: a decision in a thread of the lane gives way to shorter ones whenever it reads its clock.

Expressions are bounded by a clock, which they read at least every two milliseconds. In a thread of the lane, that clock
is `working_time`: at the end of a slice it waits for shorter decisions, or ends the decision.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

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
