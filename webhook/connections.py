"""What uvicorn's HTTP protocol does not do for us: one TLS record per answer, and no patience with half a request."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle


class CorkedTransport(asyncio.Transport):
    """A transport that sends what is written in one turn of the event loop at once.

    uvicorn writes an answer's head and body apart. Over TLS each write is encrypted and framed by itself, which costs
    about as much as everything that a review needs.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport = transport
        self._call_soon = loop.call_soon
        self._pending: list[bytes | bytearray | memoryview] = []
        # Reading and state are none of our business: straight to the transport, without a call in between.
        self.pause_reading = transport.pause_reading  # type: ignore[method-assign]
        self.resume_reading = transport.resume_reading  # type: ignore[method-assign]
        self.is_closing = transport.is_closing  # type: ignore[method-assign]
        self.get_extra_info = transport.get_extra_info  # type: ignore[method-assign]

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send with the next turn."""
        if not self._pending:
            self._call_soon(self._flush)
        self._pending.append(data)

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


class Connection(HttpToolsProtocol):
    """One connection, with the time since when its client owes us the rest of a request's head."""

    def __init__(self, *args: Any, clock: Callable[[], float] = time.monotonic, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._clock = clock
        self._owing_since: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """uvicorn's own, on a corked transport."""
        super().connection_made(CorkedTransport(transport, self.loop))

    def overdue(self, head_timeout: float, first_request_timeout: float) -> bool:
        """Whether the client has owed us a head for too long; asked now and then.

        Connections that nobody has used yet get more time than half a head: Go's client dials ahead, and does not
        repeat a review on a connection that is closed before its first answer.
        """
        cycle = cast("RequestResponseCycle | None", self.cycle)
        unused = self.scope is None
        begun = not unused and (cycle is None or cycle.scope is not self.scope)
        if not unused and not begun:
            self._owing_since = None
            return False
        now = self._clock()
        if self._owing_since is None:
            self._owing_since = now
        return now - self._owing_since > (first_request_timeout if unused else head_timeout)
