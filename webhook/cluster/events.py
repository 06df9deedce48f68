"""Writes Events (`events.k8s.io/v1`) about refused conversions.

If a controller creates the pods, only the controller sees the refusal; `kubectl get events -n team-a` shows these
Events to the user. They are written in the background, after the answer. A repeated refusal is counted and written
later as a series, as client-go's recorder does (`k8s.io/client-go/tools/events`). Refusals above the bounds are only
counted.

An Event regards the controller in the pod's ownerReferences, or else the Namespace: the pod does not exist, and often
has no name. The API server requires `regarding.namespace` to equal the Event's namespace, for every kind of object
(pkg/apis/core/validation/events.go).
"""

import asyncio
import dataclasses
import datetime as dt
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from msgspec import Struct

from cluster.kinds.replicas import micro_time
from cluster.look_ups import Tokens
from cluster.resources import EVENTS
from conversion.objects.wire import AdmissionRequest
from conversion.patches.decision import Decision
from neuron.names import EVENT_CONTROLLER, EVENT_REASON
from runtime.api_server import MERGE_PATCH, NOT_FOUND, ApiServer, ApiServerError, StatusError
from runtime.retries import REQUEST_TIMEOUT, Once

log = logging.getLogger(__name__)

ACTION: Final = "Convert"
LONGEST_NOTE: Final = 1024
"""Bytes (NoteLengthLimit in pkg/apis/core/validation/events.go)."""

MOST_SERIES: Final = 512
"""Different refusals that are kept."""
BURST: Final = 10
REFILL: Final = 30.0
"""Seconds per new Event of a namespace, after a burst of `BURST`."""
PATCH_EVERY: Final = 30.0
"""Seconds between two writes of one series."""
SERIES_ENDS: Final = 360.0
"""Seconds without a repetition after which a series ends, as in client-go."""
_TICK: Final = 1.0
_ATTEMPTS: Final = 3
_LONGEST_NAME: Final = 253


class _Owner(Struct, frozen=True):
    kind: str
    name: str
    apiVersion: str = ""  # noqa: N815 - the wire's spelling
    uid: str = ""
    controller: bool | None = None


class _EventMetadata(Struct, frozen=True):
    ownerReferences: list[_Owner] | None = None  # noqa: N815
    name: str | None = None
    generateName: str | None = None  # noqa: N815


class _EventObject(Struct, frozen=True):
    metadata: _EventMetadata = _EventMetadata()


_decode: Final = msgspec.json.Decoder(_EventObject).decode


@dataclasses.dataclass(slots=True)
class EventCounters:
    """What happened to refusals, since the start.

    Attributes:
        patched: updates of the series of an Event.
        full: refusals without an Event because `MOST_SERIES` are kept.
        rate: refusals without an Event because of the rate limit of the namespace.
    """

    created: int = 0
    patched: int = 0
    full: int = 0
    rate: int = 0
    failed: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class RefusalSeries:
    """The key of a series: equal refusals share one Event.

    Attributes:
        namespace: of the request.
        regarding: `kind`, `name`, `apiVersion` and `uid` of the object; an empty uid is left out.
    """

    namespace: str
    regarding: tuple[str, str, str, str]
    note: str


@dataclasses.dataclass(slots=True)
class _Series:
    count: int
    last: dt.datetime
    heard: float
    name: str = ""
    written: int = 0
    tried: float = float("-inf")
    attempts: int = 0

    def due(self, now: float) -> bool:
        return self.written < self.count and (not self.written or now - self.tried >= PATCH_EVERY)

    def over(self, now: float) -> bool:
        return now - self.heard >= SERIES_ENDS and self.written >= self.count


class EventRecorder:
    """Writes Events in the background."""

    def __init__(
        self,
        server: ApiServer,
        instance: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        token: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        """Prepare; `run` writes.

        Args:
            instance: `reportingInstance`, by convention the pod's name.
            clock: monotonic seconds.
            now: wall clock, aware.
            sleep: waits a number of seconds.
            token: returns a new, unique part of an Event's name.
        """
        self.counters = EventCounters()
        self._server = server
        self._instance = instance[:128] or "unknown"
        self._clock = clock
        self._now = now
        self._sleep = sleep
        self._token = token
        self._series: dict[RefusalSeries, _Series] = {}
        self._tokens = Tokens(clock, BURST, REFILL)
        self._wake = asyncio.Event()
        self._logged: Once[str] = Once()

    def refused(self, request: AdmissionRequest, decision: Decision) -> None:
        """Store a refusal for `run`. Takes microseconds; does not block and does not raise."""
        if request.dryRun or not request.namespace:
            return
        refusal = describe(request, decision)
        now = self._clock()
        series = self._series.get(refusal)
        if series is not None and not series.over(now):
            series.count += 1
            series.last, series.heard = self._now(), now
        elif series is None and len(self._series) >= MOST_SERIES:
            self.counters.full += 1
            return
        elif not self._tokens.take(refusal.namespace):
            self.counters.rate += 1
            return
        else:
            self._series[refusal] = _Series(1, self._now(), now)
        self._wake.set()

    async def run(self) -> None:
        """Write due Events until cancelled."""
        while True:
            if not self._series:
                await self._wake.wait()
            self._wake.clear()
            await self.write()
            await self._sleep(_TICK)

    async def write(self) -> None:
        """Write all due Events, and remove series that ended."""
        for refusal, series in list(self._series.items()):
            if series.due(self._clock()):
                await self._write(refusal, series)
            if series.over(self._clock()) and self._series.get(refusal) is series:
                del self._series[refusal]

    async def _write(self, refusal: RefusalSeries, series: _Series) -> None:
        series.tried = self._clock()
        count = series.count
        try:
            if series.name:
                path = EVENTS.path(refusal.namespace, series.name)
                body: dict[str, object] = {"series": _series_body(count, series.last)}
                await self._server.request("PATCH", path, timeout=REQUEST_TIMEOUT, body=body, content_type=MERGE_PATCH)
                self.counters.patched += 1
            else:
                name, path = f"neuron-dra.{self._token()}", EVENTS.path(refusal.namespace)
                body = event_body(refusal, name, self._instance, series.last, count)
                await self._server.request("POST", path, timeout=REQUEST_TIMEOUT, body=body)
                series.name = name
                self.counters.created += 1
        except ApiServerError as error:
            if isinstance(error, StatusError) and error.code == NOT_FOUND and series.name:
                # The API server deletes Events after an hour; the next write creates a new one.
                series.name, series.written, series.tried = "", 0, float("-inf")
                return
            self._fail(error, series, count)
        except Exception as error:
            # A defect must not stop the writing of other Events.
            log.exception("an Event cannot be written")
            self._fail(error, series, count)
        else:
            series.written, series.attempts = count, 0

    def _fail(self, error: Exception, series: _Series, count: int) -> None:
        """Keep the Event for a retry if the error is retryable; else drop it, and log once per kind of error."""
        series.attempts += 1
        passing = not isinstance(error, ApiServerError) or error.passing
        if passing and series.attempts < _ATTEMPTS:
            return
        self.counters.failed += 1
        series.written, series.attempts = count, 0
        kind = f"{error.code} {error.reason}" if isinstance(error, StatusError) else type(error).__name__
        if self._logged.first(kind):
            log.warning(
                "an Event about a refused conversion cannot be written; further failures like this are only counted "
                "(neuron_dra_events_total): %s",
                error,
            )


def describe(request: AdmissionRequest, decision: Decision) -> RefusalSeries:
    """The refusal of a request. Does not raise: an object that cannot be read has no controller."""
    try:
        metadata = _decode(request.object).metadata
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        metadata = _EventMetadata()
    owner = next((each for each in metadata.ownerReferences or () if each.controller), None)
    note = "; ".join(map(str, decision.errors))
    regarding = (owner.kind, owner.name, owner.apiVersion, owner.uid) if owner else ("", "", "", "")
    if not all(regarding[:2]) or max(map(len, regarding)) > _LONGEST_NAME:
        regarding = ("Namespace", request.namespace, "v1", "")
        name = metadata.name or metadata.generateName or ""
        note = f"{request.kind.kind} {name[:_LONGEST_NAME]}: {note}" if name else note
    return RefusalSeries(request.namespace, regarding, _note(note))


def event_body(refusal: RefusalSeries, name: str, instance: str, moment: dt.datetime, count: int) -> dict[str, object]:
    kind, regarding, api_version, uid = refusal.regarding
    # The `uid` of a Namespace is unknown here, and not needed to find its Events.
    about = {"kind": kind, "name": regarding, "namespace": refusal.namespace, "apiVersion": api_version, "uid": uid}
    body: dict[str, object] = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": refusal.namespace},
        "eventTime": micro_time(moment),
        "reportingController": EVENT_CONTROLLER,
        "reportingInstance": instance,
        "action": ACTION,
        "reason": EVENT_REASON,
        "type": "Warning",
        "regarding": {key: value for key, value in about.items() if value},
        "note": refusal.note,
    }
    if count > 1:
        body["series"] = _series_body(count, moment)
    return body


def _series_body(count: int, moment: dt.datetime) -> dict[str, object]:
    return {"count": count, "lastObservedTime": micro_time(moment)}


def _note(text: str) -> str:
    """Printable text of at most `LONGEST_NOTE` bytes."""
    line = "".join(letter if letter.isprintable() else " " for letter in text)
    encoded = line.encode(errors="replace")
    if len(encoded) <= LONGEST_NOTE:
        return encoded.decode()
    return encoded[: LONGEST_NOTE - len("…".encode())].decode(errors="ignore") + "…"
