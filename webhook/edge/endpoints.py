"""The ASGI application: the HTTP side of reviews, `/livez` and `/readyz`.

A valid review gets status 200 with a decision, any other request an HTTP error.
The API server treats an HTTP error as a failed call, to which the webhook configuration's `failurePolicy` applies. A
denial is an answer. So a fault in an object must end as a denial, and a fault of ours as an HTTP error.
"""

import asyncio
import dataclasses
import functools
import logging
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from conversion.objects import nesting, wire
from conversion.patches.decision import Decision, denied
from neuron.findings import Finding
from runtime import tracing
from runtime.tracing import trace_of
from webhook.edge import reviews
from webhook.edge.bodies import (
    BodyError,
    BodyReader,
    BodyTooLargeError,
    BodyTooManyError,
    BodyTooSlowError,
    ClientGoneError,
)
from webhook.edge.callers import Callers
from webhook.edge.logs import DecisionLog, RefusalLog
from webhook.edge.metrics import Metrics
from webhook.edge.shedding import Exempt, Gate, Lifecycle, LoopLag, caller_timeout, creates_template, never
from webhook.reviews.reviewer import FirstSteps, Reviewer
from webhook.reviews.worker_threads import LaneError, LaneFullError, answer_within, seconds_left, usable

log = logging.getLogger(__name__)

_JSON: Final = (b"content-type", b"application/json")
_CLOSE: Final = (b"connection", b"close")
_CLIENT_GONE: Final = 499
"""For metrics only, as in nginx: the client disconnected before an answer."""
_WRITES: Final = ("CREATE", "UPDATE")
_WAIT_FOR_MEMORY: Final = 0.5
"""Part of the caller's time-out that a large review may wait for memory."""
_PAUSE: Final = 1.0
"""Seconds until a review is refused for which the lane has no room. It was read already, which costs about a
millisecond per 100 KiB; a client that repeats it without a pause would take the event loop's time from others."""
_FRAMES: Final = 20
"""Logged innermost frames of an exception."""


Refusal = tuple[wire.AdmissionRequest, Decision]


@dataclasses.dataclass(eq=False)
class HTTPError(Exception):
    """A request that gets an HTTP error instead of an AdmissionReview.

    Attributes:
        message: for the client, sent as JSON.
        unread: the request may have a body that was not read: close the connection.
        discard: the request may have a body that was not read: read and discard it, and keep the connection.
        instead: the review and its denial, sent instead of the error; None: send the error.
        pause: seconds until it is sent.
    """

    status: int
    message: str
    _: dataclasses.KW_ONLY
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    unread: bool = False
    discard: bool = False
    instead: Refusal | None = None
    pause: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class RequestLimits:
    """Which requests the endpoints accept.

    Attributes:
        bodies: reads bodies within a size, a time-out and a memory limit.
        callers: the clients that may send reviews; None: every client.
        max_inflight: reviews of one path that are decided at the same time; 0: no limit.
        lag: the measured delay of the event loop; the server starts the measurement.
    """

    bodies: BodyReader
    callers: Callers | None = None
    max_inflight: int = 0
    lag: LoopLag = dataclasses.field(default_factory=LoopLag)


@dataclasses.dataclass(frozen=True, slots=True)
class Telemetry:
    """Where requests are counted and logged.

    Attributes:
        metrics: counters and histograms of all paths.
        decisions: one line per review.
        refusals: lines about requests that get an HTTP error.
    """

    metrics: Metrics
    decisions: DecisionLog
    refusals: RefusalLog = dataclasses.field(default_factory=RefusalLog)


class AdmissionEndpoint:
    """Answers reviews on one path. An ASGI application: a Starlette route calls it without a wrapper."""

    def __init__(
        self,
        path: str,
        reviewer: Reviewer,
        limits: RequestLimits,
        telemetry: Telemetry,
        lifecycle: Lifecycle,
        exempt: Exempt = never,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Never shed `exempt` reviews; `clock` returns seconds and measures the duration of reviews."""
        self._path = path
        self._reviewer = reviewer
        # Whether to deny a review that cannot be decided, by a policy that denies and fails closed: `PolicedValidator`.
        self._must_answer: Exempt = getattr(reviewer, "must_answer", never)
        self._bodies = limits.bodies
        self._callers = limits.callers
        self._metrics = telemetry.metrics.path(path)
        self._decisions = telemetry.decisions
        self._refusals = telemetry.refusals
        self._lifecycle = lifecycle
        self._gate = Gate(path, self._metrics, limits.max_inflight, limits.lag, exempt)
        self._clock = clock
        self._first_step = FirstSteps()
        self._unrecorded: list[tuple[wire.AdmissionRequest, Decision, float, int, Scope]] = []

    def at_once(self, scope: Scope, body: bytes) -> bytes | None:
        """The answer to a complete request whose decision needs no wait; None: call the application.

        Most reviews need neither a task nor a time-out nor a place in the queue. All other requests are handled by the
        application from the beginning.
        """
        started = self._clock()
        if (
            len(body) > BodyReader.SMALL
            or scope["method"] != "POST"
            or _JSON not in scope["headers"]
            or self._lifecycle.draining
            or (self._callers is not None and self._callers.refusal(scope))
            or self._gate.overload(started, scope)
        ):
            return None
        try:
            request = reviews.decode(body)
            decision = self._first_step(self._reviewer.review(request))
            if decision is None:
                return None
            payload = reviews.encode(request, decision)
        except Exception:  # noqa: BLE001 - it happens again in the application, which reports it
            return None
        # Counted and logged after the answer was sent, together with the others of this iteration. The event loop sends
        # answers at the end of an iteration, so this waits for the next one.
        if not self._unrecorded:
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._record_all)
        self._unrecorded.append((request, decision, self._clock() - started, len(body), scope))
        return payload

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request (ASGI)."""
        started = self._clock()
        self._metrics.inflight += 1
        try:
            await self._answer(started, scope, receive, send)
        except HTTPError as error:
            if error.instead is None:
                await self._refuse(error, scope, receive, send)
            else:
                await self._answer_instead(error, error.instead, started, scope, receive, send)
        except ClientGoneError:
            self._metrics.failed(_CLIENT_GONE)
        except asyncio.CancelledError:
            if not self._lifecycle.draining:
                raise
            # The drain time-out cancelled this request: with an HTTP error, the failurePolicy decides.
            await self._refuse(HTTPError(503, "The webhook is shutting down."), scope, receive, send)
        finally:
            self._metrics.inflight -= 1

    async def _answer(self, started: float, scope: Scope, receive: Receive, send: Send) -> None:
        gate = self._gate
        arrival = gate.arrival(started)
        overload = gate.overload(started, scope)
        waits = caller_timeout(scope["query_string"])
        answer_within(waits, started - arrival, client=_address(scope))
        memory_timeout = waits * _WAIT_FOR_MEMORY - (started - arrival)
        body = await self._read(scope, receive, overload if gate.early else "", memory_timeout)
        try:
            with tracing.served(f"review {self._path}", scope["headers"]) as traced:
                await self._decide(started, overload, body, scope, send, traced)
        finally:
            self._bodies.release(body)

    async def _decide(
        self, started: float, overload: str, body: bytes | bytearray, scope: Scope, send: Send, traced: Any
    ) -> None:
        gate = self._gate
        with tracing.span("decode"):
            request, decision = await _decode(body)
        if traced is not None:
            traced.set_attribute("k8s.admission.uid", request.uid)
        overload = overload or gate.busy()
        if overload and not gate.exempt(request):
            message = gate.shed(overload)
            raise HTTPError(503, message, instead=self._undecided(request, message))
        gate.deciding += 1
        try:
            if decision is None:
                with tracing.span("decide"):
                    decision = await self._reviewer.review(request)
            payload = reviews.encode(request, decision)
        except LaneError as error:
            why = "busy" if isinstance(error, LaneFullError) else "late"
            pause = min(_PAUSE, max(0.0, seconds_left() / 2)) if why == "busy" else 0.0
            raise HTTPError(503, gate.shed(why), pause=pause) from error
        except Exception as error:
            # Without the exception's text, which may quote the object.
            frames = traceback.extract_tb(error.__traceback__, limit=-_FRAMES)
            at = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
            extra = {"uid": request.uid, "path": self._path, "error": type(error).__name__, "at": at}
            log.error("review failed", extra=extra)  # noqa: TRY400
            raise HTTPError(500, "The review failed; the webhook's log has the reason under its uid.") from error
        finally:
            gate.deciding -= 1
        await self._send(payload, send, close=self._lifecycle.draining)
        self._record(request, decision, self._clock() - started, len(body), scope)

    async def _send(self, payload: bytes, send: Send, *, close: bool) -> None:
        headers = [_JSON, (b"content-length", b"%d" % len(payload))]
        if close:
            headers.append(_CLOSE)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": payload})

    def _record_all(self) -> None:
        answered, self._unrecorded = self._unrecorded, []
        for each in answered:
            self._record(*each)

    def _record(
        self, request: wire.AdmissionRequest, decision: Decision, seconds: float, size: int, scope: Scope
    ) -> None:
        self._metrics.reviewed(request, decision.rendered, seconds, size)
        self._decisions.record(request, decision.rendered, seconds, trace_of(scope["headers"]), _address(scope))

    async def _answer_instead(
        self, error: HTTPError, refusal: Refusal, started: float, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Deny a review whose body was not read, after its rest was discarded, within the caller's time-out."""
        request, decision = refusal
        left = usable(caller_timeout(scope["query_string"])) - (self._clock() - started)
        unread = error.unread and not await self._bodies.discard(receive, max(0.0, left))
        close = unread or self._lifecycle.draining or "Connection" in error.headers
        await self._send(reviews.encode(request, decision), send, close=close)
        self._record(request, decision, self._clock() - started, 0, scope)

    def _undecided(self, request: wire.AdmissionRequest | None, why: str) -> Refusal | None:
        """The denial of a review that was shed or came too slowly; None if no policy needs it to be denied."""
        if request is None or not self._must_answer(request):
            return None
        message = f"no policy was evaluated, and one may deny this {request.kind.kind:.100}: {why}"
        finding = Finding("NEU803", "", message, "Try again.")
        decision = denied("overloaded", finding)
        return request, dataclasses.replace(decision, status_code=503, status_reason="ServiceUnavailable")

    def _too_large(self, request: wire.AdmissionRequest | None, limit: int) -> Refusal | None:
        """The denial of a review that is too large; None for DELETE and CONNECT that no policy needs to be denied."""
        if request is None or not (request.operation in _WRITES or self._must_answer(request)):
            return None
        message = (
            f"the {request.kind.kind:.100} cannot be read: the review is larger than {limit} bytes (--max-body-bytes)."
        )
        finding = Finding("NEU114", "", message, "In it, <, > and & count six times. Make the object smaller.")
        decision = denied("too-large", finding)
        return request, dataclasses.replace(decision, status_code=413, status_reason="RequestEntityTooLarge")

    async def _read(self, scope: Scope, receive: Receive, overload: str, memory_timeout: float) -> bytes | bytearray:
        refusal = self._callers and self._callers.refusal(scope)
        if refusal:
            raise HTTPError(403, refusal, unread=True)
        if scope["method"] != "POST":
            raise HTTPError(405, f"Reviews are sent to {self._path} with POST.", headers={"Allow": "POST"})
        # The API server sends exactly this header; only other spellings are parsed.
        if _JSON not in scope["headers"]:
            given = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"content-type"), "")
            if given.partition(";")[0].strip().lower() != "application/json":
                raise HTTPError(415, f"Reviews are application/json; this request is {given[:100]!r}.")
        if overload:
            raise HTTPError(503, self._gate.shed(overload), discard=True)
        try:
            return await self._bodies.read(receive, functools.partial(_declared, scope), memory_timeout)
        except ClientGoneError:
            raise
        except BodyError as error:
            raise self._unread(error) from error

    def _unread(self, error: BodyError) -> HTTPError:
        request = reviews.envelope(error.start)
        # Free the memory: sending the answer may take long.
        error.start = b""
        if isinstance(error, BodyTooLargeError):
            message = f"The body is larger than {error.limit} bytes (--max-body-bytes)."
            return HTTPError(413, message, unread=error.unread, instead=self._too_large(request, error.limit))
        close = {"Connection": "close"}
        if isinstance(error, BodyTooSlowError):
            message = f"The body was not complete after {error.seconds:g} s (--body-timeout)."
            return HTTPError(408, message, headers=close, instead=self._undecided(request, message))
        given_up = isinstance(error, BodyTooManyError) and error.given_up
        unread = isinstance(error, BodyTooManyError) and error.unread
        message = self._gate.shed("memory")
        instead = self._undecided(request, message)
        return HTTPError(503, message, headers=close if given_up else {}, unread=unread, instead=instead)

    async def _refuse(self, error: HTTPError, scope: Scope, receive: Receive, send: Send) -> None:
        self._metrics.failed(error.status)
        if error.status < 500:
            client = scope.get("client")
            shown = f"{client[0]}:{client[1]}" if client else ""
            self._refusals.refused(self._path, error.status, error.message, shown)
        headers = dict(error.headers)
        if error.pause and not self._lifecycle.draining:
            await asyncio.sleep(error.pause)
        given_up = error.discard and not await self._bodies.discard(receive)
        if error.unread or given_up or self._lifecycle.draining:
            headers["Connection"] = "close"
        response = JSONResponse({"message": error.message}, error.status, headers)
        if not error.unread:
            await response(scope, receive, send)
            return
        # Answer immediately, then read the rest of the body: see `BodyReader.discard`.
        await send({"type": "http.response.start", "status": error.status, "headers": response.raw_headers})
        await send({"type": "http.response.body", "body": response.body, "more_body": True})
        await self._bodies.discard(receive)
        await send({"type": "http.response.body", "body": b""})


async def _decode(body: bytes | bytearray) -> tuple[wire.AdmissionRequest, Decision | None]:
    """The review, and its denial if its object is unreadable. Raises HTTPError for a body that is no review."""
    try:
        if len(body) > BodyReader.SMALL:
            await _scan(body)
        return reviews.decode(body), None
    except reviews.BadReviewError as error:
        raise HTTPError(400, str(error)) from error
    except reviews.UnreadableReviewError as error:
        message = f"the object is not a readable {error.request.kind.kind:.100}: {error}."
        finding = Finding("NEU114", "", message, "Compare it with the API reference of its kind.")
        return error.request, denied("unreadable", finding)


async def _scan(body: bytes | bytearray) -> None:
    """Raise as `reviews.decode` for more levels and values than may be decoded; yields to the event loop in between."""
    scan = nesting.Scan(body, nesting.PARSED_LEVELS)
    goes_on = True
    try:
        while goes_on:
            goes_on = scan.goes_on()
            await asyncio.sleep(0)
    except nesting.TooDeepError as error:
        raise reviews.unreadable(body, str(error)) from error


def _declared(scope: Scope) -> int | None:
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return int(length) if length.isdigit() and len(length) < 19 else None  # beyond 18 digits nothing is sent


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


# --- health, and the application --------------------------------------------------------------------------------------
#
# Readiness is a table of named checks, which read memory and do not block. Liveness has no checks: an answer shows that
# the event loop runs. The text has the format of the API server's own endpoints (`[+]name ok`), also with `?verbose`.

Check = Callable[[], tuple[bool, str]]
"""Returns whether the check passes, and a detail for the answer; the detail may be empty."""

Endpoint = Callable[[Scope, Receive, Send], Coroutine[object, object, None]]


class HealthEndpoint:
    """Answers 200 if every check passes, else 503 with the list of checks."""

    def __init__(self, name: str, checks: Mapping[str, Check], lifecycle: Lifecycle) -> None:
        """`name` is "livez" or "readyz"; checks are listed in their order."""
        self._name = name
        self._checks = checks
        self._lifecycle = lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request (ASGI)."""
        headers = {"Connection": "close"} if self._lifecycle.draining else {}
        if scope["method"] not in ("GET", "HEAD"):
            message = f"/{self._name} is read with GET."
            refusal = JSONResponse({"message": message}, 405, {"Allow": "GET, HEAD", **headers})
            await refusal(scope, receive, send)
            return
        verbose = "verbose" in parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        status, text = self.report(verbose=verbose)
        await PlainTextResponse(text, status, {"Cache-Control": "no-store", **headers})(scope, receive, send)

    def report(self, *, verbose: bool) -> tuple[int, str]:
        """HTTP status and text of the answer."""
        lines = []
        well = True
        for name, check in self._checks.items():
            passed, detail = check()
            well = well and passed
            verdict = f"[+]{name} ok" if passed else f"[-]{name} failed"
            lines.append(f"{verdict}: {detail}" if detail else verdict)
        if well and not verbose:
            return 200, "ok"
        lines.append(f"{self._name} check {'passed' if well else 'failed'}")
        return 200 if well else 503, "\n".join(lines) + "\n"


class Application(Starlette):
    """Starlette without its middleware, with a dictionary of fixed paths in front of its router.

    Every endpoint is an ASGI application that handles its own errors and methods, so error middleware and route
    matching are not needed. Together they would cost more than the decision about a pod.
    """

    def __init__(self, endpoints: Mapping[str, Endpoint]) -> None:
        super().__init__(routes=[Route(path, endpoint) for path, endpoint in endpoints.items()])
        self.router.redirect_slashes = False
        self.router.default = _not_found
        self._endpoints = dict(endpoints)
        admission = {path: each for path, each in endpoints.items() if isinstance(each, AdmissionEndpoint)}
        # Spans are made by the application, so with traces every review goes there.
        self._at_once = {} if tracing.enabled() else {path: each.at_once for path, each in admission.items()}

    def at_once(self, scope: Scope, body: bytes) -> bytes | None:
        """The answer to a complete request, as JSON; None: call the application."""
        endpoint = self._at_once.get(scope["path"])
        return None if endpoint is None else endpoint(scope, body)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[object, object, None]:
        """Call the endpoint of the path, or Starlette's router if there is none."""
        if scope["type"] == "http":
            endpoint = self._endpoints.get(scope["path"])
            if endpoint is not None:
                return endpoint(scope, receive, send)
        return super().__call__(scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        """Return the router without middleware."""
        return self.router


def build(
    reviewers: Mapping[str, Reviewer],
    checks: Mapping[str, Check],
    lifecycle: Lifecycle,
    limits: RequestLimits,
    telemetry: Telemetry,
) -> Application:
    """The application: one admission endpoint per reviewer, `/livez`, and `/readyz` with these checks."""

    def endpoint(path: str, reviewer: Reviewer) -> Endpoint:
        exempt = creates_template if path == "/validate" else never
        return AdmissionEndpoint(path, reviewer, limits, telemetry, lifecycle, exempt)

    admission = {path: endpoint(path, reviewer) for path, reviewer in reviewers.items()}
    health = {"/livez": HealthEndpoint("livez", {}, lifecycle), "/readyz": HealthEndpoint("readyz", checks, lifecycle)}
    return Application({**admission, **health})


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    paths = ", ".join(route.path for route in scope["app"].routes)
    message = f"No endpoint at {scope['path'][:100]!r}. This server has {paths}."
    await JSONResponse({"message": message}, 404)(scope, receive, send)
