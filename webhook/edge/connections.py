"""Adds to uvicorn's HTTP protocol what admission reviews need.

An answer is one TLS record. A request that stays incomplete is closed after its time-out. The request line, headers,
chunk framing and trailers are bounded: uvicorn and httptools keep them in memory, whatever their length.
"""

import asyncio
import dataclasses
import functools
import ssl
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

import httptools
import orjson
from starlette.types import Scope
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from webhook.edge.acceptor import stop_reading
from webhook.edge.bounds import BOUNDS
from webhook.edge.callers import NAMES, names_of

_PIECE: Final = 16 * 1024
"""Bytes that are parsed between two checks of the bounds."""
_FEW: Final = 3
"""Answers of one iteration of the event loop that are written immediately."""

_HEAD_TOO_LARGE: Final = f"The request's line and headers are larger than {BOUNDS.head} bytes."
_TOO_MANY_HEADERS: Final = f"The request has more than {BOUNDS.headers} headers."
_TOO_MUCH_FRAMING: Final = (
    f"The chunks of the body have more than {BOUNDS.head} bytes of sizes, extensions and trailers. Send larger "
    "chunks, or Content-Length."
)
_NOT_HTTP: Final = "This is not HTTP/1.1."

AtOnce = Callable[[Scope, bytes], bytes | None]
"""Returns the JSON body of the answer (200) to a complete request; None: the application has to be called."""


class AnswerTurns:
    """Counts the answers that begin in one iteration of the event loop.

    With few answers, writing immediately gives the lowest latency. With many, writing all of them at the end of the
    iteration gives more throughput, because more requests have arrived by the next one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call_soon = loop.call_soon
        self._begun = 0
        self.busy = False

    def begin(self) -> None:
        """Count an answer that begins."""
        if not self._begun:
            self._call_soon(self._end)
        self._begun += 1

    def _end(self) -> None:
        self.busy = self._begun > _FEW
        self._begun = 0


class CorkedTransport(asyncio.Transport):
    """A transport that sends the head and body of an answer in one write.

    uvicorn writes them separately. Over TLS each write is encrypted and framed separately, which costs about as much
    as the review itself.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, turns: AnswerTurns) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._call_soon = loop.call_soon
        self._turns = turns
        self._pending: list[bytes | bytearray | memoryview] = []
        # Methods that need no change: bound directly, which saves one call each.
        self.pause_reading = transport.pause_reading  # type: ignore[method-assign]
        self.resume_reading = transport.resume_reading  # type: ignore[method-assign]
        self.is_closing = transport.is_closing  # type: ignore[method-assign]
        self.get_extra_info = transport.get_extra_info  # type: ignore[method-assign]

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send together with the write before it, or at the end of this iteration of the event loop."""
        self._pending.append(data)
        if len(self._pending) == 1:
            self._turns.begin()
            self._call_soon(self._flush)
        elif not self._turns.busy:
            self._flush()

    def write_whole(self, data: bytes) -> None:
        """Send an answer with its head, after the answers before it, at the end of this iteration of the event loop.

        A write while uvloop still reads from the connection is sent by a path of its TLS layer that halves the
        throughput.
        """
        self._pending.append(data)
        if len(self._pending) == 1:
            self._call_soon(self._flush)

    def close(self) -> None:
        """Send pending writes, close, and discard a bounded rest of the input."""
        self._flush()
        if not self._transport.is_closing():
            self._transport.close()
            stop_reading(self._transport, self._loop)

    def abort(self) -> None:
        """Discard pending writes and close."""
        self._pending.clear()
        self._transport.abort()

    def _flush(self) -> None:
        if self._pending and not self._transport.is_closing():
            self._transport.write(b"".join(self._pending))
        self._pending.clear()


@functools.lru_cache(maxsize=2)
def _head(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """The head of an answer with these headers, which change once a second, up to its length."""
    lines = [b"%b: %b\r\n" % header for header in headers]
    return b"".join((STATUS_LINE[HTTPStatus.OK], *lines, b"content-type: application/json\r\ncontent-length: "))


_TURNS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, AnswerTurns]] = WeakKeyDictionary()


@dataclasses.dataclass(eq=False)
class _RefusedError(Exception):
    """Ends the parsing of a connection."""

    status: HTTPStatus
    message: str


Refused = Callable[[int, str, str], None]
"""Called for a request that is refused before an endpoint sees it: status, message, client address."""


class ClientConnection(HttpToolsProtocol):
    """One connection. Measures since when it waits for its client."""

    def __init__(
        self,
        *args: Any,
        closed: Callable[[], None] = lambda: None,
        refused: Refused = lambda _status, _message, _client: None,
        current: Callable[[ssl.SSLContext], bool] = lambda _: True,
        at_once: AtOnce = lambda _scope, _body: None,
        **kwargs: Any,
    ) -> None:
        """Prepare a connection.

        Args:
            args: as in uvicorn.
            closed: called when the connection has ended.
            refused: called for a request that no endpoint sees.
            current: returns whether the client CAs of a context are still in force.
            at_once: answers requests that need no wait, without a task.
            kwargs: as in uvicorn.
        """
        super().__init__(*args, **kwargs)
        self._closed = closed
        self._refused = refused
        self._current = current
        self._at_once = at_once
        self._corked: CorkedTransport | None = None
        self._waiting_since: float | None = None
        self._clock: Callable[[], float] = time.monotonic
        self._heard = self._clock()
        # Since when it has been idle: no input has come since the last answer.
        self._idle_since: float | None = None
        # While headers end: whether uvicorn starts the request. Then the application that it is waiting for.
        self._starts = False
        self._unstarted: ASGI3Application | None = None
        # The request that is being parsed: whether its end is missing, and its bytes that are not body.
        self._unfinished = False
        self._framing = 0
        # Bytes of all bodies of this connection: now, and when this request began.
        self._bodies = self._bodies_before = 0
        # The refusal that ends the parsing; kept here because httptools replaces exceptions of callbacks.
        self._refusal: _RefusedError | None = None
        self._ignores_input = False
        # Bytes that were not used: after a refusal, or of a body after its answer.
        self._ignored = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Extend uvicorn's method: wrap the transport, and read the names of the client certificate."""
        turns = _TURNS.get(self.loop)
        if turns is None:
            turns = _TURNS[self.loop] = AnswerTurns(self.loop)
        self._corked = CorkedTransport(transport, self.loop, turns)
        super().connection_made(self._corked)
        # Once per connection: requests get a copy of this as `scope["state"]`.
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and not self._current(tls.context):
            # The client CAs changed during the handshake, so its verification is not valid.
            self._ignores_input = True
            transport.close()
            return
        names = names_of(tls)
        if names is not None:
            self.app_state = {**self.app_state, NAMES: names}

    def connection_lost(self, exc: Exception | None) -> None:
        """Extend uvicorn's method: report the end."""
        super().connection_lost(exc)
        self._closed()

    def data_received(self, data: bytes) -> None:
        """Replace uvicorn's method: parse within the bounds."""
        self._idle_since = None
        self._heard = self._clock()
        if self._ignores_input:
            self._ignored += len(data)
            if self._ignored > BOUNDS.after_close:
                # An earlier answer is not sent yet: wait for it without reading.
                self.transport.pause_reading()
            return
        try:
            if len(data) <= _PIECE:
                self._parse(data)
            else:
                view = memoryview(data)
                for start in range(0, len(view), _PIECE):
                    self._parse(view[start : start + _PIECE])
        except _RefusedError as error:
            self._refuse(error)
        except httptools.HttpParserUpgrade:
            # No protocol to upgrade to: this request gets an ordinary answer, then the connection closes.
            self._end_after(self.cycle)
        except httptools.HttpParserError:
            if not self._ignores_input:
                self._refuse(self._refusal or _RefusedError(HTTPStatus.BAD_REQUEST, _NOT_HTTP))
        if self._unstarted is not None:
            self._start()

    def on_message_begin(self) -> None:
        """Extend uvicorn's method: bound the pipelined requests."""
        if len(self.pipeline) >= BOUNDS.pipelined:
            # Requests that are here get their answers; the last answer carries `Connection: close`.
            self._end_after(self.cycle)
            raise _RefusedError(HTTPStatus.TOO_MANY_REQUESTS, "Too many pipelined requests.")
        self._unfinished = True
        self._framing = 0
        self._bodies_before = self._bodies
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Extend uvicorn's method: bound the number of headers."""
        if len(self.headers) > BOUNDS.headers:
            self._refusal = _RefusedError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, _TOO_MANY_HEADERS)
            raise self._refusal
        self._starts = True
        super().on_headers_complete()
        self._starts = False

    def on_body(self, body: bytes) -> None:
        """Extend uvicorn's method: count the bytes."""
        self._bodies += len(body)
        if self.cycle.response_complete:
            self._ignored += len(body)
            if self._ignored > BOUNDS.unread:
                self._ignores_input = True
                self.transport.close()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Extend uvicorn's method: note the end of the request, and answer it at once if possible."""
        self._unfinished = False
        super().on_message_complete()
        if self._unstarted is not None:
            self._start()

    def on_response_complete(self) -> None:
        """Replace uvicorn's method: it sets a timer after each answer. Here, `overdue` finds idle connections."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._idle_since = self._clock()

    def idle_since(self) -> tuple[bool, float] | None:
        """Whether it has had a request, and when its client last sent data; None while a request is in progress."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if self._unfinished or self.pipeline or not (cycle is None or cycle.response_complete):
            return None
        return self.scope is not None, self._heard

    def overdue(self, head_timeout: float, first_request_timeout: float) -> bool:
        """Whether the connection has waited for its client too long; called every few seconds.

        It waits for the rest of a request, unless an endpoint waits for the body, and for the client to read answers.
        A connection without a request gets the longer time-out: Go's client opens connections ahead, and does not
        retry a review on a connection that is closed before its first answer.
        """
        unused = self.scope is None
        if not unused and not self._waits_for_client():
            self._waiting_since = None
            return self._idle_since is not None and self._clock() - self._idle_since > self.timeout_keep_alive
        now = self._clock()
        if self._waiting_since is None:
            self._waiting_since = now
        return now - self._waiting_since > (first_request_timeout if unused else head_timeout)

    def _waits_for_client(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None and not cycle.response_complete:
            return self.flow.write_paused
        # An idle connection has a longer time-out. It is not idle after input that is no request: blank lines, or the
        # rest of a body after its answer.
        return self._unfinished or self._idle_since is None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """Extend uvicorn's method: wait for the rest of the request if that may be here."""
        if self._starts:
            self._unstarted = app
        else:
            super()._start_asgi_task(cycle, app)

    def _start(self) -> None:
        app, self._unstarted = self._unstarted, None
        cycle = self.cycle
        if not self._unfinished and cycle.keep_alive and not self.flow.write_paused and not self._ignores_input:
            payload = self._at_once(cast("Scope", self.scope), bytes(cycle.body))
            if payload is not None and self._corked is not None:
                cycle.response_started = cycle.response_complete = True
                # The connection keeps its last cycle: without the body, and without a reference back to the connection,
                # so that both are freed when it ends.
                cycle.body = bytearray()
                cycle.on_response = lambda: None
                head = _head(tuple(cycle.default_headers))
                self._corked.write_whole(b"%b%d\r\n\r\n%b" % (head, len(payload), payload))
                self.on_response_complete()
                return
        super()._start_asgi_task(cycle, cast("ASGI3Application", app))

    def _parse(self, data: bytes | memoryview) -> None:
        bodies = self._bodies
        self.parser.feed_data(data)
        self._framing += len(data) - (self._bodies - bodies)
        if self._framing > BOUNDS.head + (self._bodies - self._bodies_before) // BOUNDS.body_per_framing:
            if self._in_head():
                raise _RefusedError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, _HEAD_TOO_LARGE)
            raise _RefusedError(HTTPStatus.BAD_REQUEST, _TOO_MUCH_FRAMING)

    def _in_head(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is None or cycle.scope is not self.scope

    def _refuse(self, error: _RefusedError) -> None:
        """Answer a request whose parsing has ended, and close the connection."""
        self._refused(error.status, error.message, f"{self.client[0]}:{self.client[1]}" if self.client else "")
        cycle = cast("RequestResponseCycle | None", self.cycle)
        self._ignores_input = True
        if cycle is not None and not cycle.response_complete:
            if self._in_head() or not self._unfinished or self.pipeline or cycle.response_started:
                # Answers have the order of requests, and an earlier one is not sent yet.
                self._end_after(cycle)
                return
            # An endpoint waits for this body: tell it that the client has disconnected.
            cycle.disconnected = True
            cycle.message_event.set()
        body = orjson.dumps({"message": error.message})
        self.transport.write(
            STATUS_LINE[error.status]
            + b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
            + body
        )
        self.transport.close()

    def _end_after(self, cycle: RequestResponseCycle) -> None:
        """Ignore further input, and close after the answer to the last request."""
        self._ignores_input = True
        cycle.keep_alive = False
