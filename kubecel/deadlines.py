"""When reading and compiling an expression has to end."""

import math
import time
from typing import Final

from kubecel.budget import Clock
from kubecel.errors import CelTimeExceededError

_LOOKS_BETWEEN_CLOCK_READS: Final = 16
"""A node takes 20 to 100 microseconds to parse and some 10 in every later step, so the clock is read within 2 ms."""


class Deadline:
    """The end of the time for one expression, or for several that share it. Not for use by two threads."""

    __slots__ = ("_clock", "_end", "_looks")

    def __init__(self, clock: Clock, end: float) -> None:
        """End when `clock` shows `end`."""
        self._clock = clock
        self._end = end
        self._looks = 0

    @property
    def clock(self) -> Clock:
        """The clock that it looks at."""
        return self._clock

    @property
    def left(self) -> float:
        """Seconds, at least 0."""
        return max(0.0, self._end - self._clock()) if self._end < math.inf else math.inf

    def look(self) -> None:
        """Look at the clock now and then: once for every token, node or step.

        Raises:
            CelTimeExceededError: the time is over.
        """
        self._looks += 1
        if self._looks >= _LOOKS_BETWEEN_CLOCK_READS:
            self._looks = 0
            if self._clock() > self._end:
                raise CelTimeExceededError("reading and checking the expression takes too long: split it")


def never() -> Deadline:
    """A deadline for what an administrator writes: it is compiled once, when it is loaded."""
    return Deadline(time.monotonic, math.inf)
