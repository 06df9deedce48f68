"""Overload: which reviews are not begun, so that those that are get an answer in time.

A shed review is HTTP 503 without Retry-After: the webhook configuration's failurePolicy decides at once, while with
Retry-After the API server would repeat the call until its time-out. Two things pile up, and each has its own sign:
reviews that wait for the API server (how many are being decided), and work for the processor (how long a request has
waited for its turn). Senders that are slow count in neither: they are `BodyReader`'s business.
"""

import asyncio
import functools
import logging
import math
import re
import time
from collections.abc import Callable
from typing import Final

from starlette.types import Scope

from runtime.histogram import Histogram
from webhook.decisions import wire
from webhook.edge.metrics import PathMetrics

log = logging.getLogger(__name__)

LAG_BOUNDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

DEFAULT_TIMEOUT: Final = 10.0
"""Seconds that the API server waits for a webhook that does not say (`timeoutSeconds`, admissionregistration/v1)."""

_NEVER_TOO_LONG: Final = 0.5
"""Seconds. No webhook may have a timeout below one second, so shorter waits need no look at the caller's."""
_TIMEOUT: Final = re.compile(rb"(?:^|&)timeout=(?:(\d{1,4})m)?(?:(\d{1,6}(?:\.\d{1,9})?)(m?)s)?(?:&|$)")
_SAY_EVERY: Final = 10.0
"""Seconds between two log lines about what is shed."""

Exempt = Callable[[wire.AdmissionRequest], bool]
"""Tells whether a review is taken under every load."""

TEMPLATE: Final = ("resource.k8s.io", "ResourceClaimTemplate")


def never(request: wire.AdmissionRequest) -> bool:  # noqa: ARG001 - one of two rules
    """No review is exempt."""
    return False


def creates_template(request: wire.AdmissionRequest) -> bool:
    """Whether a review on `/validate` has to be answered whatever the load.

    `/mutate` creates templates while its own review waits, and each creation is reviewed here, maybe by another
    replica: shed it, and work that was taken in is lost to work that was not. Whose creation it is makes no
    difference: it is decided from memory, waits for no other request, and the answer for one spec is remembered.
    """
    return request.operation == "CREATE" and (request.kind.group, request.kind.kind) == TEMPLATE


class LoopLag:
    """How late the event loop is: the delay of a timer that is due ten times a second.

    One turn of the loop runs due timers, then what was read at the end of the turn before, then reads again. So
    whatever is begun now has been here since this turn began, and in its socket for some part of the turn before.

    Attributes:
        delays: of the timer, in seconds.
        since: the time, by `clock`, since when a request that is begun now is likely to have waited; too early by the
            timer's interval at most. Infinite before the first measurement.
    """

    INTERVAL: Final = 0.1

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.delays = Histogram(LAG_BOUNDS)
        self.since = math.inf

    def start(self) -> None:
        """Measure the running loop until `stop`."""
        self._again(self._clock())

    def stop(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()
        self.since = math.inf

    def _tick(self) -> None:
        now = self._clock()
        delay = max(0.0, now - self._due)
        self.delays.observe(delay)
        self.since = now - delay / 2
        self._again(now)

    def _again(self, now: float) -> None:
        self._due = now + self.INTERVAL
        self._timer = asyncio.get_running_loop().call_later(self.INTERVAL, self._tick)


class Gate:
    """Whether one path takes a review. Belongs to the event loop's thread.

    Attributes:
        deciding: reviews that are being decided.
        early: whether a review can be refused before its body is read; not where some are exempt for what they are.
    """

    def __init__(
        self,
        path: str,
        metrics: PathMetrics,
        most: int,
        lag: LoopLag,
        exempt: Exempt = never,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Let `most` reviews be decided at once (0: any number), and `exempt` ones always."""
        self._path = path
        self._metrics = metrics
        self._most = most
        self._lag = lag
        self._exempt = exempt
        self._clock = clock
        self._shed = 0
        self._said: float | None = None
        self.deciding = 0
        self.early = exempt is never

    def since(self, now: float) -> float:
        """Since when the caller of a request that is begun `now` waits, both as `LoopLag` tells time."""
        return min(now, self._lag.since)

    def overload(self, now: float, scope: Scope) -> str:
        """Why a request that is begun `now` (as `LoopLag` tells time) cannot be taken: "busy" or "late"; else empty."""
        waited = now - self._lag.since
        if waited > _NEVER_TOO_LONG and waited > caller_timeout(scope["query_string"]):
            return "late"
        return "busy" if self._most and self.deciding >= self._most else ""

    def busy(self) -> str:
        """The same where only the number counts."""
        return "busy" if self._most and self.deciding >= self._most else ""

    def exempt(self, request: wire.AdmissionRequest) -> bool:
        """Whether a review is taken all the same."""
        return self._exempt(request)

    def shed(self, why: str) -> str:
        """Count a review that is not taken; what to tell the caller."""
        self._metrics.shed[why] += 1
        self._shed += 1
        now = self._clock()
        if self._said is None or now - self._said >= _SAY_EVERY:
            log.warning("shedding reviews", extra={"path": self._path, "reason": why, "shed": self._shed})
            self._said, self._shed = now, 0
        return _MESSAGES[why].format(path=self._path, most=self._most)


_MESSAGES: Final = {
    "busy": "Overloaded: {most} reviews of {path} are being decided (--max-inflight).",
    "late": "Overloaded: this review has waited longer than its caller does.",
    "memory": "Overloaded: too many large reviews are being read.",
}


@functools.lru_cache(maxsize=64)
def caller_timeout(query: bytes) -> float:
    """Seconds that the caller waits: the API server puts a webhook's `timeoutSeconds` into `?timeout=5s`."""
    found = _TIMEOUT.search(query)
    if found is None or not (found[1] or found[2]):
        return DEFAULT_TIMEOUT
    seconds = float(found[2] or 0)
    return 60 * int(found[1] or 0) + (seconds / 1000 if found[3] else seconds)
