"""Logs requests that get an HTTP error: at most `LINES` lines per path and status in `WINDOW` seconds, with a count.

A refused client may retry without a pause. One line per request would fill the disk of the node and hide other lines.
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
"""Log lines of one path and status per window."""


@dataclasses.dataclass(slots=True)
class _RefusalKind:
    """One path and status: start of the window, lines in it, refusals since the last line."""

    since: float
    lines: int = 0
    refused: int = 0


class RefusalLog:
    """Logs refused requests. Only for the event loop's thread.

    Memory is bounded: paths are those of our endpoints, and statuses are ours.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds."""
        self._clock = clock
        self._kinds: dict[tuple[str, int], _RefusalKind] = {}

    def refused(self, path: str, status: int, reason: str, client: str) -> None:
        """Log or count one refused request.

        Args:
            path: of an endpoint; empty if the request reached no endpoint.
            reason: the message that the client got.
            client: address and port.
        """
        now = self._clock()
        kind = self._kinds.setdefault((path, status), _RefusalKind(now))
        kind.refused += 1
        if now - kind.since >= WINDOW:
            kind.since, kind.lines = now, 0
        if kind.lines >= LINES:
            return
        kind.lines += 1
        extra = {"path": path, "status": status, "reason": reason, "client": client, "refused": kind.refused}
        log.warning("request refused", extra=extra)
        kind.refused = 0
