"""What is logged of requests that get an HTTP error: so many lines of a kind in ten seconds, and a count of the others.

A client that is refused may try again as fast as it can; a line for each would fill the disk of the node, and hide
everything else.
"""

import dataclasses
import logging
import time
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

WINDOW: Final = 10.0
"""Seconds."""
LINES: Final = 10
"""Lines of one path and status in a window."""


@dataclasses.dataclass(slots=True)
class _Kind:
    """What was said of one path and status: since when the window is open, its lines, refusals since the last line."""

    since: float
    lines: int = 0
    refused: int = 0


class RefusalLog:
    """Logs refused requests. Belongs to the event loop's thread.

    Paths are those that this server has and statuses are ours, so what is remembered is bounded.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` tells seconds."""
        self._clock = clock
        self._kinds: dict[tuple[str, int], _Kind] = {}

    def refused(self, path: str, status: int, reason: str, client: str) -> None:
        """One request was refused.

        Args:
            path: of an endpoint; empty where there was none yet.
            status: HTTP status.
            reason: what the client was told.
            client: address and port.
        """
        now = self._clock()
        kind = self._kinds.setdefault((path, status), _Kind(now))
        kind.refused += 1
        if now - kind.since >= WINDOW:
            kind.since, kind.lines = now, 0
        if kind.lines >= LINES:
            return
        kind.lines += 1
        extra = {"path": path, "status": status, "reason": reason, "client": client, "refused": kind.refused}
        log.warning("request refused", extra=extra)
        kind.refused = 0
