"""Load shedding: refuses reviews under overload, so that accepted reviews get their answer in time; and the end.

A shed review gets HTTP 503 without Retry-After: the webhook configuration's failurePolicy decides immediately. With
Retry-After the API server would repeat the call until its time-out. Overload has two signs: the number of reviews that
are being decided (they may wait for the API server), and the time that a request has waited for the event loop (CPU).
Slow senders count in neither; `BodyReader` limits them.
"""

import asyncio
import dataclasses
import functools
import logging
import math
import re
import time
from collections.abc import Callable
from typing import Final

from starlette.types import Scope

from conversion.objects import wire
from runtime.metrics_server import Histogram
from runtime.retries import Interval
from webhook.edge.metrics import PathMetrics

log = logging.getLogger(__name__)

LAG_BOUNDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_ALWAYS_IN_TIME: Final = 0.5
"""Seconds. The API allows no `timeoutSeconds` below 1, so shorter waits are not compared with the caller's."""
_TIMEOUT: Final = re.compile(rb"(?:^|&)timeout=(?:(\d{1,4})m)?(?:(\d{1,6}(?:\.\d{1,9})?)(m?)s)?(?:&|$)")

Exempt = Callable[[wire.AdmissionRequest], bool]
"""Returns whether a review is accepted under every load."""

TEMPLATE: Final = ("resource.k8s.io", "ResourceClaimTemplate")


def never(request: wire.AdmissionRequest) -> bool:  # noqa: ARG001 - the signature of `Exempt`
    """No review is exempt."""
    return False


def creates_template(request: wire.AdmissionRequest) -> bool:
    """Exempts the creation of a ResourceClaimTemplate on `/validate`.

    A review on `/mutate` waits until its templates are created, and each creation is reviewed on `/validate`, maybe by
    another replica. Shedding that would fail a review that was already accepted. Creations by others are exempt too:
    the decision reads memory only, waits for no other request, and is cached per spec.
    """
    return request.operation == "CREATE" and (request.kind.group, request.kind.kind) == TEMPLATE


@dataclasses.dataclass(slots=True)
class Lifecycle:
    """State of the process; written by the server, read by endpoints.

    Attributes:
        serving: the listener accepts connections.
        draining: the process was told to stop. Answers carry `Connection: close`, so clients reconnect elsewhere.
    """

    serving: bool = False
    draining: bool = False

    def check_serving(self) -> tuple[bool, str]:
        """Passes while the listener is open."""
        return self.serving, "" if self.serving else "not listening"

    def check_shutdown(self) -> tuple[bool, str]:
        """Fails after the process was told to stop. The API server has a check of the same name."""
        return not self.draining, "shutting down" if self.draining else ""


class LoopLag:
    """Measures the delay of the event loop with a timer that is due ten times a second.

    One iteration of the loop runs due timers, then handles what it read at the end of the last iteration, then reads
    again. So a request that begins now was read before this iteration, and was in its socket for a part of the last.

    Attributes:
        delays: histogram of the timer's delays, in seconds.
        arrival: estimated arrival time, by `clock`, of a request that begins now; at most the timer's interval too
            early. Infinite before the first measurement.
    """

    INTERVAL: Final = 0.1

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.delays = Histogram(LAG_BOUNDS)
        self.arrival = math.inf

    def start(self) -> None:
        """Start measuring the running loop."""
        self._again(self._clock())

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.arrival = math.inf

    def _tick(self) -> None:
        now = self._clock()
        delay = max(0.0, now - self._due)
        self.delays.observe(delay)
        self.arrival = now - delay / 2
        self._again(now)

    def _again(self, now: float) -> None:
        self._due = now + self.INTERVAL
        self._timer = asyncio.get_running_loop().call_later(self.INTERVAL, self._tick)


class Gate:
    """Decides whether one path accepts a review. Only for the event loop's thread.

    Attributes:
        exempt: whether a review is accepted under every load.
        deciding: reviews that are being decided.
        early: whether a review can be refused before its body is read: true if no review is exempt.
    """

    def __init__(self, path: str, metrics: PathMetrics, most: int, lag: LoopLag, exempt: Exempt = never) -> None:
        """Allow `most` reviews at the same time (0: no limit), and `exempt` ones always."""
        self._path = path
        self._metrics = metrics
        self._most = most
        self._lag = lag
        self.exempt = exempt
        self._shed = 0
        self._line = Interval()
        self.deciding = 0
        self.early = exempt is never

    def arrival(self, now: float) -> float:
        """Estimated arrival time of a request that begins `now`; both by the clock of `LoopLag`."""
        return min(now, self._lag.arrival)

    def overload(self, now: float, scope: Scope) -> str:
        """Why a request that begins `now` (by the clock of `LoopLag`) is shed: "busy" or "late"; else empty."""
        waited = now - self._lag.arrival
        if waited > _ALWAYS_IN_TIME and waited > caller_timeout(scope["query_string"]):
            return "late"
        return "busy" if self._most and self.deciding >= self._most else ""

    def busy(self) -> str:
        """As `overload`, by the number of reviews only."""
        return "busy" if self._most and self.deciding >= self._most else ""

    def shed(self, why: str) -> str:
        """Count and log a shed review. Returns the message for the caller."""
        self._metrics.shed[why] += 1
        self._shed += 1
        if self._line.due():
            log.warning("shedding reviews", extra={"path": self._path, "reason": why, "shed": self._shed})
            self._shed = 0
        return _MESSAGES[why].format(path=self._path, most=self._most)


_MESSAGES: Final = {
    "busy": "Overloaded: {most} reviews of {path} are being decided (--max-inflight).",
    "late": "Overloaded: this review has waited longer than the time-out of its caller.",
    "memory": "Overloaded: too many large reviews are being read.",
}


@functools.lru_cache(maxsize=64)
def caller_timeout(query: bytes) -> float:
    """Time-out of the caller in seconds: the API server sends a webhook's `timeoutSeconds` as `?timeout=5s`."""
    found = _TIMEOUT.search(query)
    if found is None or not (found[1] or found[2]):
        return 10.0  # the default of `timeoutSeconds` (admissionregistration/v1), for callers that send no time-out
    seconds = float(found[2] or 0)
    return 60 * int(found[1] or 0) + (seconds / 1000 if found[3] else seconds)
