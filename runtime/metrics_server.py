"""The plain HTTP port of `/metrics`, and a histogram with fast observations.

The port has its own threads, so that it answers while the event loop is busy. All pods of the network may connect, so
threads, sizes of requests, times and lines in the log are bounded.
"""

import bisect
import contextlib
import io
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from socketserver import BaseRequestHandler, TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from prometheus_client import make_wsgi_app
from prometheus_client.registry import CollectorRegistry

from runtime.retries import Interval

if TYPE_CHECKING:
    from _typeshed import OptExcInfo
    from _typeshed.wsgi import WSGIApplication

log = logging.getLogger(__name__)

METRICS_PATH: Final = "/metrics"

MOST_CONNECTIONS: Final = 16
"""Maximum of connections; each has a thread. Prometheus does not keep connections open."""
MOST_HEAD: Final = 16 * 1024
"""Bytes of a request's line and headers."""
HEAD_TIMEOUT: Final = 5.0
"""Time-out in seconds for the whole request to arrive."""
ANSWER_TIMEOUT: Final = 10.0
"""Time-out in seconds for the client to read the answer; Prometheus' default of `scrape_timeout`."""

_TEXT: Final = ("Content-Type", "text/plain; charset=utf-8")


@contextlib.contextmanager
def serving_metrics(registry: CollectorRegistry, listener: socket.socket) -> Iterator[None]:
    """Serve a registry at `/metrics` over plain HTTP, on a bound socket, until the context ends; then it is closed."""
    server = _Server(listener, registry)
    # The poll interval is the longest delay of the end.
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _TooLargeError(Exception):
    """The request's head is longer than `MOST_HEAD`."""


class _Handler(BaseRequestHandler):
    server: "_Server"
    request: socket.socket

    def handle(self) -> None:
        try:
            head = self._head()
        except _TooLargeError:
            answer = _answer("431 Request Header Fields Too Large", [_TEXT], b"The request is too large.\n")
        else:
            if head is None:
                return
            self.server.reading_ended(self.request)
            try:
                answer = self.server.answer(head)
            except Exception as error:  # noqa: BLE001 - a collector may raise any error
                self.server.failed(error)
                answer = _answer("500 Internal Server Error", [_TEXT], b"The log of the process says why.\n")
        self.request.settimeout(ANSWER_TIMEOUT)
        self.request.sendall(answer)

    def _head(self) -> bytes | None:
        """The request's head; None if the client closed the connection or is too slow."""
        deadline = time.monotonic() + HEAD_TIMEOUT
        head = bytearray()
        while b"\r\n\r\n" not in head and b"\n\n" not in head:
            if len(head) > MOST_HEAD:
                raise _TooLargeError
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self.request.settimeout(left)
            try:
                data = self.request.recv(4096)
            except OSError:
                return None
            if not data:
                return None
            head += data
        return bytes(head)


class _Server(ThreadingMixIn, TCPServer):
    """A server on a bound socket with at most `MOST_CONNECTIONS` threads."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, listener: socket.socket, registry: CollectorRegistry) -> None:
        TCPServer.__init__(self, listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self._exposition: WSGIApplication = make_wsgi_app(registry)
        self._generating = threading.Lock()
        self._state = threading.Lock()
        self._open = 0
        # Connections whose request has not arrived yet, oldest first.
        self._reading: dict[socket.socket, None] = {}
        self._line = Interval()
        self._failed = 0
        self.server_activate()

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002 - socketserver's signature
        """Whether to accept a connection. At the maximum, the oldest connection without a request is closed for it."""
        with self._state:
            if self._open >= MOST_CONNECTIONS:
                oldest = next(iter(self._reading), None)
                if oldest is None:
                    return False
                del self._reading[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._open += 1
            self._reading[request] = None
        return True

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle the connection in a new thread."""
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            self._ended(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._ended(request)

    def reading_ended(self, request: socket.socket) -> None:
        """The request has arrived: the connection is no longer closed for others."""
        with self._state:
            self._reading.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - socketserver's signature
        """Log unexpected errors; errors of the connection are the client's."""
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):
            self.failed(error)

    def failed(self, error: BaseException) -> None:
        """Log that metrics were not served, at most once in an interval."""
        with self._state:
            self._failed += 1
            if not self._line.due():
                return
            failed, self._failed = self._failed, 0
        log.error("metrics not served", extra={"error": type(error).__name__, "failed": failed})

    def answer(self, head: bytes) -> bytes:
        """The answer to a request, head and body."""
        line, *fields = head.decode("latin-1").splitlines()
        parts = line.split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            return _answer("400 Bad Request", [_TEXT], b"This is not HTTP/1.1.\n")
        path, _, query = parts[1].partition("?")
        if unquote(path) != METRICS_PATH:
            return _answer("404 Not Found", [_TEXT], f"Metrics are at {METRICS_PATH}.\n".encode())
        headers = {name.strip().lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        environ = {
            "REQUEST_METHOD": parts[0],
            "PATH_INFO": METRICS_PATH,
            "QUERY_STRING": query,
            "HTTP_ACCEPT": headers.get("accept", ""),
            "HTTP_ACCEPT_ENCODING": headers.get("accept-encoding", ""),
        }
        # One at a time: it takes processor time from reviews or preparations.
        if not self._generating.acquire(timeout=ANSWER_TIMEOUT):
            return _answer("503 Service Unavailable", [_TEXT], b"Too many concurrent requests for metrics.\n")
        try:
            return self._exposed(environ)
        finally:
            self._generating.release()

    def _exposed(self, environ: dict[str, Any]) -> bytes:
        status, headers = "", [("", "")]

        def start_response(
            code: str, fields: list[tuple[str, str]], _error: "OptExcInfo | None" = None, /
        ) -> Callable[[bytes], object]:
            nonlocal status, headers
            status, headers = code, fields
            return io.BytesIO().write

        body: Iterable[bytes] = self._exposition(environ, start_response)
        return _answer(status, headers, b"".join(body))

    def _ended(self, request: socket.socket) -> None:
        with self._state:
            self._open -= 1
            self._reading.pop(request, None)


def _answer(status: str, headers: list[tuple[str, str]], body: bytes) -> bytes:
    fields = [*headers, ("Content-Length", str(len(body))), ("Connection", "close")]
    head = "".join(f"{name}: {value}\r\n" for name, value in fields)
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode("latin-1") + body


class Histogram:
    """Observations in buckets. One thread may write; a copy of the counts is consistent."""

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value in the first bucket whose bound is not below it."""
        self.counts[bisect.bisect_left(self._bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound, for the text format."""
        total = 0
        cumulative: list[tuple[str, float]] = []
        bounds = (*map(str, self._bounds), "+Inf")
        for bound, count in zip(bounds, tuple(self.counts), strict=True):
            total += count
            cumulative.append((bound, total))
        return cumulative
