"""What uvicorn's HTTP protocol does not do for us.

One TLS record per answer; no patience with half a request; and a bound on all that is no body: uvicorn and httptools
keep a request's line, headers and trailers in memory, however long they are.
"""

import asyncio
import ssl
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from webhook.edge.callers import NAMES, names_of

MOST_HEAD: Final = 32 * 1024
"""Bytes of a request that are no body: its line and headers, and with a chunked body the chunks' sizes, extensions and
trailers. The API server sends less than 1 KiB, plus up to 8 KiB of W3C baggage where its tracing is on."""
MOST_HEADERS: Final = 100
"""Headers of a request."""
MOST_PIPELINED: Final = 8
"""Requests of one connection that wait for the answer to the one before. Go's client sends none ahead."""
BODY_PER_FRAMING: Final = 64
"""Chunks may have one more byte of framing for so many bytes of body: Go sends chunks of 4 KiB with 7 bytes each."""

_PIECE: Final = 16 * 1024
"""Bytes that are parsed before the bounds are looked at."""
_FEW: Final = 3

_HEAD_TOO_LARGE: Final = f"The request's line and headers are larger than {MOST_HEAD} bytes."
_TOO_MANY_HEADERS: Final = f"The request has more than {MOST_HEADERS} headers."
_TOO_MUCH_FRAMING: Final = (
    f"The chunks of the body have more than {MOST_HEAD} bytes of sizes, extensions and trailers. Send larger "
    "chunks, or Content-Length."
)
_NOT_HTTP: Final = "This is not HTTP/1.1."


class Turns:
    """How busy the event loop is: answers begun in one of its turns.

    An answer that leaves at once is sooner with its client; when many are under way, letting them leave together at
    the end of the turn serves more of them, because more requests have come in by the next.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call_soon = loop.call_soon
        self._begun = 0
        self.busy = False

    def begin(self) -> None:
        """An answer begins."""
        if not self._begun:
            self._call_soon(self._end)
        self._begun += 1

    def _end(self) -> None:
        self.busy = self._begun > _FEW
        self._begun = 0


class CorkedTransport(asyncio.Transport):
    """A transport that sends an answer's head and body at once.

    uvicorn writes an answer's head and body apart. Over TLS each write is encrypted and framed by itself, which costs
    about as much as everything that a review needs.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, turns: Turns) -> None:
        super().__init__()
        self._transport = transport
        self._call_soon = loop.call_soon
        self._turns = turns
        self._pending: list[bytes | bytearray | memoryview] = []
        # Reading and state are none of our business: straight to the transport, without a call in between.
        self.pause_reading = transport.pause_reading  # type: ignore[method-assign]
        self.resume_reading = transport.resume_reading  # type: ignore[method-assign]
        self.is_closing = transport.is_closing  # type: ignore[method-assign]
        self.get_extra_info = transport.get_extra_info  # type: ignore[method-assign]

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send together with the write before it, or with the next turn."""
        self._pending.append(data)
        if len(self._pending) == 1:
            self._turns.begin()
            self._call_soon(self._flush)
        elif not self._turns.busy:
            self._flush()

    def close(self) -> None:
        """Send what is left and close."""
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        """Close and forget what is left."""
        self._pending.clear()
        self._transport.abort()

    def _flush(self) -> None:
        if self._pending and not self._transport.is_closing():
            self._transport.write(b"".join(self._pending))
        self._pending.clear()


_TURNS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, Turns]] = WeakKeyDictionary()


class _RefusedError(Exception):
    """The request is not parsed any further."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


Refused = Callable[[int, str, str], None]
"""Told of a request that is refused before any endpoint sees it: status, message, client's address."""


class Connection(HttpToolsProtocol):
    """One connection, with the time since when its client owes us something."""

    def __init__(
        self,
        *args: Any,
        clock: Callable[[], float] = time.monotonic,
        closed: Callable[[], None] = lambda: None,
        refused: Refused = lambda _status, _message, _client: None,
        current: Callable[[ssl.SSLContext], bool] = lambda _: True,
        **kwargs: Any,
    ) -> None:
        """Like uvicorn's.

        Args:
            args: uvicorn's.
            clock: tells seconds.
            closed: called when the connection has ended.
            refused: called for a request that no endpoint sees.
            current: whether what a context trusts is trusted still.
            kwargs: uvicorn's.
        """
        super().__init__(*args, **kwargs)
        self._clock = clock
        self._closed = closed
        self._refused = refused
        self._current = current
        self._owing_since: float | None = None
        # Of the request that is being parsed: whether its end is still to come, and how many bytes were no body.
        self._unfinished = False
        self._framing = 0
        # Bytes of bodies of this connection, and what that was when this request began.
        self._bodies = self._bodies_before = 0
        # The refusal that is to end the parsing, set where httptools swallows exceptions.
        self._refusal: _RefusedError | None = None
        # Nothing more is parsed.
        self._deaf = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """uvicorn's own, on a corked transport."""
        turns = _TURNS.get(self.loop)
        if turns is None:
            turns = _TURNS[self.loop] = Turns(self.loop)
        super().connection_made(CorkedTransport(transport, self.loop, turns))
        # Once per connection: requests get a copy of this as `scope["state"]`.
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and not self._current(tls.context):
            # The client CAs changed during the handshake, so what it found out counts no more.
            self._deaf = True
            transport.close()
            return
        names = names_of(tls)
        if names is not None:
            self.app_state = {**self.app_state, NAMES: names}

    def connection_lost(self, exc: Exception | None) -> None:
        """uvicorn's own."""
        super().connection_lost(exc)
        self._closed()

    def data_received(self, data: bytes) -> None:
        """uvicorn's own, within bounds."""
        self._unset_keepalive_if_required()
        if self._deaf:
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
            # There is nothing here to upgrade to: the request is answered as it is, and nothing after it.
            self._end_after(self.cycle)
        except httptools.HttpParserError:
            if not self._deaf:
                self._refuse(self._refusal or _RefusedError(HTTPStatus.BAD_REQUEST, _NOT_HTTP))

    def on_message_begin(self) -> None:
        """uvicorn's own, for a few requests ahead."""
        if len(self.pipeline) >= MOST_PIPELINED:
            # Those that are here are answered; the last answer says that there will be no other.
            self._end_after(self.cycle)
            raise _RefusedError(HTTPStatus.TOO_MANY_REQUESTS, "Too many requests ahead.")
        self._unfinished = True
        self._framing = 0
        self._bodies_before = self._bodies
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """uvicorn's own, for as many headers as there may be."""
        if len(self.headers) > MOST_HEADERS:
            self._refusal = _RefusedError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, _TOO_MANY_HEADERS)
            raise self._refusal
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """uvicorn's own, counted."""
        self._bodies += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """uvicorn's own."""
        self._unfinished = False
        super().on_message_complete()

    def overdue(self, head_timeout: float, first_request_timeout: float) -> bool:
        """Whether the client has owed us something for too long; asked now and then.

        A client owes the rest of a request that it has begun, unless an endpoint waits for that itself, and it owes to
        read our answers. Connections without a request so far get more time than half a head: Go's client dials ahead,
        and does not repeat a review on a connection that is closed before its first answer.
        """
        unused = self.scope is None
        if not unused and not self._owes():
            self._owing_since = None
            return False
        now = self._clock()
        if self._owing_since is None:
            self._owing_since = now
        return now - self._owing_since > (first_request_timeout if unused else head_timeout)

    def _owes(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None and not cycle.response_complete:
            return self.flow.write_paused
        # uvicorn's timer ends idle connections, but whatever arrives ends the timer: blank lines, or the rest of a body
        # that was answered without.
        return self._unfinished or self.timeout_keep_alive_task is None

    def _parse(self, data: bytes | memoryview) -> None:
        bodies = self._bodies
        self.parser.feed_data(data)
        self._framing += len(data) - (self._bodies - bodies)
        if self._framing > MOST_HEAD + (self._bodies - self._bodies_before) // BODY_PER_FRAMING:
            if self._in_head():
                raise _RefusedError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, _HEAD_TOO_LARGE)
            raise _RefusedError(HTTPStatus.BAD_REQUEST, _TOO_MUCH_FRAMING)

    def _in_head(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is None or cycle.scope is not self.scope

    def _refuse(self, error: _RefusedError) -> None:
        """Answer a request that is not parsed any further; then the connection ends."""
        self._refused(error.status, error.message, f"{self.client[0]}:{self.client[1]}" if self.client else "")
        cycle = cast("RequestResponseCycle | None", self.cycle)
        self._deaf = True
        if cycle is not None and not cycle.response_complete:
            if self._in_head() or not self._unfinished or self.pipeline or cycle.response_started:
                # Answers come in the order of requests, and this one would come before its turn.
                self._end_after(cycle)
                return
            # An endpoint waits for this body: to it, the client has gone.
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
        """Parse nothing more, and close after the answer to the last request."""
        self._deaf = True
        cycle.keep_alive = False
