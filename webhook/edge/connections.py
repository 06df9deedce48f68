"""What uvicorn's HTTP protocol does not do for us: one TLS record per answer, and no patience with half a request."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from webhook.edge.callers import NAMES, names_of

_FEW: Final = 3


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


class Connection(HttpToolsProtocol):
    """One connection, with the time since when its client owes us the rest of a request's head."""

    def __init__(
        self,
        *args: Any,
        clock: Callable[[], float] = time.monotonic,
        closed: Callable[[], None] = lambda: None,
        **kwargs: Any,
    ) -> None:
        """Like uvicorn's; `closed` is called when the connection has ended."""
        super().__init__(*args, **kwargs)
        self._clock = clock
        self._closed = closed
        self._owing_since: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """uvicorn's own, on a corked transport."""
        turns = _TURNS.get(self.loop)
        if turns is None:
            turns = _TURNS[self.loop] = Turns(self.loop)
        super().connection_made(CorkedTransport(transport, self.loop, turns))
        # Once per connection: requests get a copy of this as `scope["state"]`.
        names = names_of(transport.get_extra_info("ssl_object"))
        if names is not None:
            self.app_state = {**self.app_state, NAMES: names}

    def connection_lost(self, exc: Exception | None) -> None:
        """uvicorn's own."""
        super().connection_lost(exc)
        self._closed()

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
