"""The listening sockets of a server, and the signals that end it."""

import asyncio
import contextlib
import errno
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Final

from runtime.startup import StartupError

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_BACKLOG: Final = 2048


def listen(host: str, port: int, host_flag: str, port_flag: str) -> socket.socket:
    """A listening socket; connections queue until they are accepted.

    Args:
        host: name or address; empty: every address, IPv4 and IPv6.
        port: 0: any free port.
        host_flag: the flag that sets the host, for messages.
        port_flag: the flag that sets the port, for messages.

    Raises:
        StartupError: the server cannot listen on this address.
    """
    try:
        dual = socket.has_dualstack_ipv6()
        found = socket.getaddrinfo(
            host or ("::" if dual else None), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        # A name with both families, such as localhost: most users mean IPv4.
        family, *_, address = min(found, key=lambda info: info[0] != socket.AF_INET)
        return socket.create_server(
            address[:2], family=family, backlog=_BACKLOG, dualstack_ipv6=dual and family == socket.AF_INET6
        )
    except OSError as error:
        raise StartupError(_cannot_listen(error, host, port, host_flag, port_flag)) from error


def _cannot_listen(error: OSError, host: str, port: int, host_flag: str, port_flag: str) -> str:
    where = f"Cannot listen on {host or 'any address'}, port {port}"
    if error.errno == errno.EADDRINUSE:
        return f"{where}: it is in use. Stop the process that listens there, or choose another port with {port_flag}."
    if error.errno == errno.EACCES:
        return f"{where}: permission denied. Choose a port above 1023 with {port_flag}."
    why = error.strerror if isinstance(error, socket.gaierror) or not error.errno else os.strerror(error.errno)
    return f"{where}: {why}. Choose an address of this machine with {host_flag}."


def url(listener: socket.socket, scheme: str, path: str = "") -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{path}"


@contextlib.contextmanager
def on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` for every SIGTERM and SIGINT. Only the main thread gets signals; in another this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
