"""When a worker is started again, and when one that lives counts as hung. Pure: time comes in as seconds."""

import os
import signal
from typing import Final

LONGEST_DELAY: Final = 30.0
"""Seconds."""
STEADY_AFTER: Final = 60.0
"""Seconds after which a worker that ran counts as well: its next death is a first one."""

HUNG_AFTER: Final = 30.0
"""Seconds without a heartbeat after which a worker is killed and replaced."""


class Restarts:
    """How long to wait before a worker is started again: 0, 1, 2, 4 … s."""

    def __init__(self) -> None:
        self._next = 0.0

    def died(self, ran: float) -> float:
        """Seconds to wait, after a worker that ran so many seconds."""
        if ran >= STEADY_AFTER:
            self._next = 0.0
        delay, self._next = self._next, min(self._next * 2 or 1.0, LONGEST_DELAY)
        return delay


class Silence:
    """How long a worker has not been heard of, in time during which we were listening.

    Whoever stops a whole replica (a frozen cgroup, a paused machine) stops us as well: after that, every heartbeat is
    old, and nobody is hung. So a look that comes late counts as one that came in time.
    """

    def __init__(self, now: float, beat: int, tick: float) -> None:
        """Begin at `now` with a heartbeat; looks are expected every `tick` seconds."""
        self._looked = now
        self._beat = beat
        self._most = 2 * tick
        self.seconds = 0.0

    def look(self, now: float, beat: int) -> float:
        """Seconds of silence as of `now`, given the last heartbeat."""
        passed = min(now - self._looked, self._most)
        self._looked = now
        self.seconds = self.seconds + passed if beat == self._beat else 0.0
        self._beat = beat
        return self.seconds


def describe(status: int) -> str:
    """The end of a process in words, from `waitpid`'s status."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
