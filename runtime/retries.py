"""Work that is repeated, in both programs: the pauses between attempts, and what is logged once.

A problem is logged until it changes, a key until the process ends, and a line of a kind in an interval.
"""

import logging
import time
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

REQUEST_TIMEOUT: Final = 10.0
"""Seconds for a request to the API server for which no review and no pod waits."""
RETRY: Final = (1.0, 60.0)
"""Seconds: the first and the longest pause of a task that fails again and again, and for which nothing waits."""


K = TypeVar("K", bound=Hashable)
MOST_KEYS: Final = 256
"""Keys that are remembered, and so lines in the log: users choose some keys, and may choose thousands."""


class Backoff:
    """The pause after a failure: doubles with each further failure, up to a bound.

    Attributes:
        failures: since the last success.
    """

    def __init__(self, first: float, last: float, spread: Callable[[float], float] = float) -> None:
        """Times are in seconds.

        Args:
            first: the pause after the first failure.
            last: the longest pause.
            spread: makes a pause of the bound for it, so that many clients do not retry together.
        """
        self.failures = 0
        self._first = first
        self._last = last
        self._spread = spread

    @property
    def pause(self) -> float:
        """The pause after the last failure."""
        doublings = min(max(self.failures - 1, 0), 32)
        return self._spread(min(self._first * 2.0**doublings, self._last))

    def failed(self) -> float:
        """Count a failure; returns the pause after it."""
        self.failures += 1
        return self.pause

    def reset(self) -> None:
        """Begin again with the first pause: the task succeeded."""
        self.failures = 0


class RetryProblem:
    """The present problem of a task that is retried.

    Attributes:
        text: the problem; empty if there is none.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self.text = ""

    def set(self, text: str) -> None:
        """Log a problem as a warning if it differs from the last one."""
        if text and text != self.text:
            self._log.warning("%s", text)
        self.text = text


class Interval:
    """Tells when the next log line of one kind is due: clients cause such lines as often as they like."""

    def __init__(self, seconds: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._last: float | None = None

    def due(self) -> bool:
        """Return True at the first call, and at the first call after each interval since the last True."""
        now = self._clock()
        if self._last is not None and now - self._last < self._seconds:
            return False
        self._last = now
        return True


class Once(Generic[K]):
    """Remembers which keys were logged, up to a bound."""

    def __init__(self, most: int = MOST_KEYS) -> None:
        self._most = most
        self._seen: set[K] = set()

    def first(self, key: K) -> bool:
        """Return True at the first call with this key; always False for a new key beyond the bound."""
        if key in self._seen or len(self._seen) >= self._most:
            return False
        self._seen.add(key)
        return True
