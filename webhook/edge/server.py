"""Lifecycle of the server: bind, serve over TLS, drain, stop. uvicorn does the HTTP.

On the first signal readiness fails immediately, so the Service drops this replica. The listener stays open for the
drain delay, because clients learn of that later; answers carry `Connection: close`. Then the listener closes, and
requests under way are answered. A second signal stops at once.
"""

import asyncio
import contextlib
import dataclasses
import gc
import heapq
import logging
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from typing import Final, Literal, cast

import uvicorn
from starlette.types import ASGIApp

from runtime.listening import url
from runtime.retries import Interval
from webhook.edge.acceptor import Acceptor
from webhook.edge.callers import ClientAuthority
from webhook.edge.connections import AtOnce, ClientConnection
from webhook.edge.logs import RefusalLog
from webhook.edge.shedding import Lifecycle, LoopLag

log = logging.getLogger(__name__)

KEEP_ALIVE: Final = 120
"""Seconds. The API server closes idle connections after 90 s. The client must close first: otherwise it may send a
review on a connection that the server is closing."""

UNUSED: Final = 2.0
"""Seconds after which a connection without a request makes room for a new one, if there are too many."""
IDLE: Final = 10.0
"""Seconds after which one without a further request does."""
_AT_ONCE: Final = 64
"""Connections that make room at once, so that a flood of new ones does not search all each time."""
_SEARCH_AGAIN: Final = 0.5
"""Seconds until the next search, if none could make room."""

_FULL_COLLECTION: Final = 1000
"""Collections of the middle generation between two full ones (`gc.set_threshold`). Python's default is 10."""
_ABORT_GRACE: Final = 0.5
"""Seconds for cancelled requests to send their error."""
_SWEEP_EVERY: Final = 10
"""Ticks of uvicorn's main loop; 10 ticks are one second."""


def bare_context(minimum_version: Literal["1.2", "1.3"]) -> ssl.SSLContext:
    """A TLS context without a certificate: each handshake fails until one is loaded."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if minimum_version == "1.3" else ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    # The API server uses HTTP/1.1 for webhooks that are Services: kubernetes/kubernetes#82090.
    context.set_alpn_protocols(["http/1.1"])
    return context


@dataclasses.dataclass(frozen=True, slots=True)
class ServerLimits:
    """Time-outs and bounds of one server.

    Attributes:
        head_timeout: seconds for the head of a request.
        drain_delay: seconds in which connections are still accepted after `Server.stop`.
        drain_timeout: seconds for the requests that are then under way.
        max_connections: connections at the same time; 0: as many as there are file descriptors.
    """

    head_timeout: float
    drain_delay: float
    drain_timeout: int
    max_connections: int = 0


class Server(uvicorn.Server):
    """Serves an application over TLS until `stop`.

    Attributes:
        refused: requests that no endpoint saw: not HTTP, or a head above its bounds.
    """

    def __init__(
        self,
        app: ASGIApp,
        tls: ssl.SSLContext,
        lifecycle: Lifecycle,
        limits: ServerLimits,
        *,
        authority: ClientAuthority | None = None,
        lag: LoopLag | None = None,
        refusals: RefusalLog | None = None,
    ) -> None:
        """Prepare the server; `serve` runs it.

        Args:
            app: answers requests; its method `at_once`, if it has one, those that need no wait (`AtOnce`).
            tls: context of the handshakes until `authority` makes another.
            lifecycle: `serving` and `draining` are set here.
            limits: time-outs and bounds.
            authority: its file is followed while the server runs.
            lag: measures while the server runs.
            refusals: logs requests that are refused before an endpoint sees them.
        """
        super().__init__(
            uvicorn.Config(
                app,
                interface="asgi3",
                http=ClientConnection,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=limits.drain_timeout,
                ssl_context_factory=lambda *_: tls,
            )
        )
        self._lifecycle = lifecycle
        self._head_timeout = limits.head_timeout
        self._drain_delay = limits.drain_delay
        self._authority = authority
        self._lag = lag or LoopLag()
        self._refusals = refusals or RefusalLog()
        self.refused = 0
        at_once: AtOnce = getattr(app, "at_once", lambda _scope, _body: None)
        self._room = Interval()
        self._search_after = 0.0
        self.acceptor = Acceptor(
            tls,
            lambda: ClientConnection(
                config=self.config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
                closed=self.acceptor.closed,
                refused=self._refuse,
                current=lambda tls: tls is self.acceptor.tls,
                at_once=at_once,
            ),
            limits.max_connections,
            self._make_room,
        )

    def stop(self) -> None:
        """Drain; the second call stops at once."""
        if self._lifecycle.draining:
            log.warning("stopping at once")
            self.should_exit = self.force_exit = True
            return
        log.info("draining", extra={"delay": self._drain_delay, "timeout": self.config.timeout_graceful_shutdown})
        self._lifecycle.draining = True
        asyncio.get_running_loop().call_later(self._drain_delay, self._stop_accepting)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `on_signals`: uvicorn's handlers would close the listener without the drain delay."""
        yield

    async def startup(self, sockets: Sequence[socket.socket] | None = None) -> None:
        """Accept connections, then report ready."""
        listeners = list(sockets or ())
        # uvicorn gets no sockets: it would accept connections without a limit.
        await super().startup([])
        for listener in listeners:
            self.acceptor.start(listener)
        self._lag.start()
        # These objects live as long as the process: exclude them from garbage collection.
        gc.collect()
        gc.freeze()
        # A full collection stops all threads: 150 ms where many selectors are remembered, once a second while new ones
        # are judged. It finds little, because reviews leave few cycles, so it comes a hundred times less often.
        gc.set_threshold(*gc.get_threshold()[:2], _FULL_COLLECTION)
        self._lifecycle.serving = True
        log.info("serving", extra={"url": [url(listener, "https") for listener in listeners]})

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Extend uvicorn's method: cancel the requests that exceed the drain time-out, and close their connections."""
        self.acceptor.stop()
        await super().shutdown(sockets)
        tasks = list(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_ABORT_GRACE)
        if self.server_state.connections and not self.force_exit:
            # Closing TLS needs the client; one that does not respond must not delay the end of the process.
            await asyncio.sleep(_ABORT_GRACE)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        self._lag.stop()
        await asyncio.sleep(0)

    async def on_tick(self, counter: int) -> bool:
        """Extend uvicorn's method: once a second, follow the client CA file and close overdue connections."""
        if counter % _SWEEP_EVERY == 0:
            if self._authority is not None and self._authority.follow():
                self.acceptor.tls = self._authority.tls
                # These connections were verified by the earlier CAs.
                for connection in list(self.server_state.connections):
                    connection.shutdown()
            for connection in list(self.server_state.connections):
                if isinstance(connection, ClientConnection) and connection.overdue(self._head_timeout, KEEP_ALIVE):
                    connection.transport.close()
        return await super().on_tick(counter)

    def _make_room(self) -> int:
        """Close connections without a request in progress: those without any first, then the longest idle."""
        now = time.monotonic()
        if now < self._search_after:
            return 0
        idle: list[tuple[bool, float, ClientConnection]] = []
        for connection in self.server_state.connections:
            found = connection.idle_since() if isinstance(connection, ClientConnection) else None
            if found is not None and now - found[1] > (IDLE if found[0] else UNUSED):
                idle.append((*found, cast("ClientConnection", connection)))
        chosen = heapq.nsmallest(_AT_ONCE, idle, key=lambda each: each[:2])
        for _used, _since, connection in chosen:
            connection.transport.abort()
        if not chosen:
            self._search_after = now + _SEARCH_AGAIN
        elif self._room.due():
            extra = {"open": self.acceptor.open, "closed": len(chosen)}
            log.warning("idle connections closed: there are too many (--max-connections)", extra=extra)
        return len(chosen)

    def _refuse(self, status: int, message: str, client: str) -> None:
        self.refused += 1
        self._refusals.refused("", status, message, client)

    def _stop_accepting(self) -> None:
        self._lifecycle.serving = False
        self.should_exit = True
