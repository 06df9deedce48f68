"""Closes TLS connections without reading for long what the client still sends.

The TLS layer waits for the client's own end of the connection, and reads everything until then: one client moved 1.8 GB
in the two seconds of its time-out. To close the socket at once is no alternative: the kernel resets a connection that
has unread bytes, and the client may lose the answer. So the answer and the end of TLS are sent, and then a bounded
number of bytes is read from the socket and discarded, without TLS.
"""

import asyncio
import os
import socket
from typing import Final
from weakref import WeakKeyDictionary

MOST_AFTER_CLOSE: Final = 256 * 1024
"""Bytes that are discarded. A client that sends more can still read its answer for the rest of `LINGER`."""
LINGER: Final = 1.0
"""Seconds until the socket is closed, if the client does not close it."""
MOST_LINGERING: Final = 32
"""Sockets at the same time; they are not among --max-connections. Others are closed at once."""

_lingering: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, set["_Lingering"]]] = WeakKeyDictionary()


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
    if len(lingering(loop)) < MOST_LINGERING:
        try:
            kept = socket.socket(fileno=os.dup(number))
        except OSError:  # No descriptor is free.
            kept = None
        if kept is not None:
            _Lingering(kept, loop)
    transport.abort()


class _Lingering:
    """A socket whose input is discarded."""

    def __init__(self, kept: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._socket = kept
        self._loop = loop
        self._left = MOST_AFTER_CLOSE
        kept.setblocking(False)
        try:
            kept.shutdown(socket.SHUT_WR)
        except OSError:  # The client has reset it.
            kept.close()
            return
        lingering(loop).add(self)
        self._timer = loop.call_later(LINGER, self._close)
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
