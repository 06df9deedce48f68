"""Accepts connections, with a limit on their number and a time-out for each TLS handshake, and closes them.

uvicorn uses `loop.create_server`, which accepts every connection and allows one minute per handshake: one client could
occupy all file descriptors without sending a byte.

To close a connection, the TLS layer waits for the client's own end of it, and reads everything until then: one client
moved 1.8 GB in the two seconds of its time-out. To close the socket at once is no alternative: the kernel resets a
connection that has unread bytes, and the client may lose the answer. So the answer and the end of TLS are sent, and
then a bounded number of bytes is read from the socket and discarded, without TLS.
"""

import asyncio
import logging
import os
import resource
import socket
import ssl
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

from runtime.retries import Interval
from webhook.edge.bounds import BOUNDS

log = logging.getLogger(__name__)

_AT_ONCE: Final = 64
"""Connections that are accepted in one iteration of the event loop."""
_RESERVED: Final = 64
"""File descriptors for watches, logs, listeners and metrics."""
_PAUSE: Final = 1.0
"""Seconds without accepting after the operating system had no file descriptor left; as in asyncio."""


_lingering: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, set["_Lingering"]]] = WeakKeyDictionary()


class Acceptor:
    """Accepts connections for a protocol. Belongs to the event loop's thread.

    Attributes:
        tls: the context of the next handshake.
        open: number of open connections, including those in their handshake.
        refused: connections closed because there were too many.
    """

    def __init__(
        self,
        tls: ssl.SSLContext,
        make_protocol: Callable[[], asyncio.Protocol],
        most: int,
        make_room: Callable[[], int] = lambda: 0,
    ) -> None:
        """Prepare; `start` accepts.

        Args:
            tls: the context of the next handshake.
            most: number of connections; 0: as many as there are file descriptors.
            make_room: called at the limit; closes connections that are not in use, and returns how many.
        """
        self.tls = tls
        self._make_protocol = make_protocol
        self._most = _within_descriptors(most)
        self._make_room = make_room
        self._leaving = 0
        self._line = Interval()
        self._listeners: list[socket.socket] = []
        self._handshakes: set[asyncio.Task[None]] = set()
        self.open = self.refused = self.failed = 0

    def start(self, listener: socket.socket) -> None:
        """Accept connections of a listening socket until `stop`."""
        listener.setblocking(False)
        self._listeners.append(listener)
        self._resume(listener)

    def stop(self) -> None:
        """Accept no more connections. Handshakes that have begun may finish."""
        for listener in self._listeners:
            asyncio.get_running_loop().remove_reader(listener)
        self._listeners.clear()

    def closed(self) -> None:
        """The protocol of a connection calls this when the connection has ended."""
        self.open -= 1
        self._leaving = max(0, self._leaving - 1)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log.error("cannot accept connections", extra={"reason": error.strerror})  # noqa: TRY400
                asyncio.get_running_loop().remove_reader(listener)
                asyncio.get_running_loop().call_later(_PAUSE, self._go_on, listener)
                return
            if self._full():
                self.refused += 1
                if self._line.due():
                    extra = {"open": self.open, "refused": self.refused}
                    log.warning("connections refused: there are too many (--max-connections)", extra=extra)
                connection.close()
                continue
            self.open += 1
            task = asyncio.create_task(self._shake_hands(connection), name="handshake")
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    def _full(self) -> bool:
        if not self._most or self.open - self._leaving < self._most:
            return False
        self._leaving += self._make_room()
        return self.open - self._leaving >= self._most

    def _go_on(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self._resume(listener)
            self._accept(listener)

    def _resume(self, listener: socket.socket) -> None:
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    async def _shake_hands(self, connection: socket.socket) -> None:
        client = ""
        try:
            # Read first: the socket of a handshake that failed does not tell it any more.
            client = "{}:{}".format(*connection.getpeername())
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make_protocol,
                connection,
                ssl=self.tls,
                ssl_handshake_timeout=BOUNDS.handshake,
                ssl_shutdown_timeout=BOUNDS.close,
            )
        except OSError as error:
            self.open -= 1
            self.failed += 1
            connection.close()
            reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
            log.debug("TLS handshake failed", extra={"client": client, "reason": reason or type(error).__name__})
        except asyncio.CancelledError:
            self.open -= 1
            connection.close()
            raise


def _within_descriptors(most: int) -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return most
    there_are = max(1, soft - _RESERVED)
    if most > there_are:
        log.warning("fewer connections than --max-connections", extra={"most": there_are, "file_descriptors": soft})
    return min(most, there_are) if most else there_are


def lingering(loop: asyncio.AbstractEventLoop) -> set["_Lingering"]:
    """The sockets of an event loop that are still open. Those of a loop that has ended do not count."""
    return _lingering.setdefault(loop, set())


def stop_reading(transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
    """Stop reading from a TLS transport for which `close` was called.

    uvloop writes at the end of an iteration of the event loop: after the second one, the answer is with the kernel.
    """
    loop.call_soon(loop.call_soon, _detach, transport, loop)


def _detach(transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
    """End the TLS layer, and keep the socket."""
    its_socket = transport.get_extra_info("socket")
    number = -1 if its_socket is None else its_socket.fileno()
    if number < 0:
        return  # The client has closed it.
    if len(lingering(loop)) < BOUNDS.lingering:
        try:
            kept = socket.socket(fileno=os.dup(number))
        except OSError:  # No descriptor is free.
            kept = None
        if kept is not None:
            _Lingering(kept, loop)
    transport.abort()


class _Lingering:
    def __init__(self, kept: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._socket = kept
        self._loop = loop
        self._left = BOUNDS.after_close
        kept.setblocking(False)
        try:
            kept.shutdown(socket.SHUT_WR)
        except OSError:  # The client has reset it.
            kept.close()
            return
        lingering(loop).add(self)
        self._timer = loop.call_later(BOUNDS.linger, self._close)
        loop.add_reader(kept, self._discard)

    def _discard(self) -> None:
        try:
            length = len(self._socket.recv(min(self._left, 64 * 1024)))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            length = 0
        self._left -= length
        if not length:
            self._timer.cancel()
            self._close()
        elif self._left <= 0:
            # The client may still read the answer.
            self._loop.remove_reader(self._socket)

    def _close(self) -> None:
        lingering(self._loop).discard(self)
        self._loop.remove_reader(self._socket)
        self._socket.close()
