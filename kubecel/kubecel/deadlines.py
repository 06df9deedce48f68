"""The time limit for reading and compiling an expression."""

import math
import time
from typing import Final

from kubecel.budget import Clock
from kubecel.errors import CelTimeExceededError

_LOOKS_BETWEEN_CLOCK_READS: Final = 16
"""A node takes 20 to 100 microseconds to parse and about 10 in each later step: the clock is read within 2 ms."""


class Deadline:
    """The time limit of one or several expressions. Not thread-safe."""

    __slots__ = ("_clock", "_end", "_looks")

    def __init__(self, clock: Clock, end: float) -> None:
        """The deadline is when `clock` shows `end`."""
        self._clock = clock
        self._end = end
        self._looks = 0

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def left(self) -> float:
        """Remaining seconds, at least 0."""
        return max(0.0, self._end - self._clock()) if self._end < math.inf else math.inf

    def look(self) -> None:
        """Check the time. Call it for every token, node or step; it reads the clock every 16th time.

        Raises:
            CelTimeExceededError: the deadline passed.
        """
        self._looks += 1
        if self._looks >= _LOOKS_BETWEEN_CLOCK_READS:
            self._looks = 0
            if self._clock() > self._end:
                raise CelTimeExceededError("reading and checking the expression takes too long: split it")


def never() -> Deadline:
    """No time limit, for expressions of administrators: they are compiled once, when they are loaded."""
    return Deadline(time.monotonic, math.inf)
