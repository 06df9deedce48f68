"""Who takes the next connection.

API servers open few connections and keep them, so chance does not spread them: with one listener, whoever wakes first
takes what is there, and with one per worker (`SO_REUSEPORT`) the kernel rolls dice, and goes on rolling when a worker
hangs. Here there is one listener, and a worker that has more connections than a sibling leaves the next to it; if
nobody has come for it after a moment, it takes it after all.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any, Final

from webhook.workers.member import Member

log = logging.getLogger(__name__)

WAIT: Final = 0.001
"""Seconds that a worker waits for a sibling that has fewer connections."""
WAITS: Final = 25
"""So many times, then it takes the connection itself: the sibling is busy, or hangs."""
RETRY: Final = 1.0
"""Seconds to wait when there are no more file descriptors."""


class Acceptor:
    """Accepts connections of a listener that siblings accept from as well. To uvicorn, it is an `asyncio.Server`."""

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext,
        member: Member,
        established: Callable[[], int],
    ) -> None:
        """Accept in the running event loop, at once.

        Args:
            listener: listening; it stays open until somebody else closes it.
            protocol: makes the protocol of one connection.
            tls: used for every handshake.
            member: how many connections who has.
            established: connections of this worker after their handshake.
        """
        listener.setblocking(False)
        self._listener = listener
        self._protocol = protocol
        self._tls = tls
        self._member = member
        self._established = established
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._listen()

    def close(self) -> None:
        """Accept no more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._listener)

    async def wait_closed(self) -> None:
        """Nothing is left to wait for: connections belong to whoever made their protocols."""

    def count(self) -> int:
        """Connections of this worker, told to siblings on the way."""
        self._member.slot.connections = count = len(self._handshakes) + self._established()
        return count

    def _listen(self) -> None:
        self._timer = None
        self._loop.add_reader(self._listener, self._readable, 0)

    def _readable(self, waited: int) -> None:
        """Somebody may be waiting: take them one by one, as long as it is our turn."""
        self._timer = None
        while True:
            count, least = self.count(), self._member.least_connections()
            if least is not None and count > least and waited < WAITS:
                self._later(WAIT, self._readable, waited + 1)
                return
            waited = 0
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                self._listen()
                return
            except OSError as error:
                log.error("cannot accept connections", extra={"error": str(error)})  # noqa: TRY400 - no trace needed
                self._later(RETRY, self._listen)
                return
            connection.setblocking(False)
            self._begin(self._handshake(connection))

    def _later(self, seconds: float, then: Callable[..., None], *arguments: Any) -> None:
        self._loop.remove_reader(self._listener)
        self._timer = self._loop.call_later(seconds, then, *arguments)

    def _begin(self, handshake: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(handshake)
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _handshake(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol, connection, ssl=self._tls)
        except OSError as error:
            # Clients that do not trust us, probes that only connect, scanners: as common as connections.
            connection.close()
            log.debug("no TLS connection", extra={"error": str(error)})
