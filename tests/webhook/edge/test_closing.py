"""After the answer, a refused client can send a bounded number of bytes, and it receives the answer."""

import contextlib
import json
import select
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.serving import Answering, Running, eventually, review, serving
from tests.support.timing import assert_below
from webhook.edge import acceptor
from webhook.edge.bodies import BodyReader
from webhook.edge.bounds import BOUNDS

MEBIBYTE = 1 << 20


def largest_buffer(name: str) -> int:
    """The largest buffer that Linux gives a TCP socket by itself: `tcp_rmem` or `tcp_wmem`."""
    path = Path("/proc/sys/net/ipv4") / name
    return int(path.read_text().split()[2]) if path.exists() else 32 * MEBIBYTE


MOST = 2 * BodyReader.DISCARDED + largest_buffer("tcp_rmem") + largest_buffer("tcp_wmem")
"""Bytes that may go out after the answer: those of a body that are discarded, those that TLS has read ahead, and those
that the buffers of both sockets take. Without a bound it is several hundred MiB."""
CAP = 256 * 1024
POST = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
HUGE = b"Content-Length: 1000000000000\r\n\r\n"
BODY = json.dumps(review()).encode()

CASES = {
    "a long request line": (b"GET /", b"a", 431),
    "a long header": (b"GET /livez HTTP/1.1\r\nA: ", b"a", 431),
    "many headers": (b"GET /livez HTTP/1.1\r\n", b"A: b\r\n", 431),
    "a body over the cap": (POST + HUGE, b" ", 413),
    "a chunked body over the cap": (
        POST + b"Transfer-Encoding: chunked\r\n\r\n",
        b"10000\r\n" + b" " * 65536 + b"\r\n",
        413,
    ),
    "chunks that are none": (POST + b"Transfer-Encoding: chunked\r\n\r\nno\r\n", b"x", 400),
    "chunks with extensions": (POST + b"Transfer-Encoding: chunked\r\n\r\n", b"1;" + b"e" * 4096 + b"\r\n \r\n", 400),
    "another content type": (b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n" + HUGE, b"x", 415),
    "another method": (b"PUT /mutate HTTP/1.1\r\nHost: x\r\n" + HUGE, b"x", 405),
    "an unknown path": (b"POST /nothing HTTP/1.1\r\nHost: x\r\n" + HUGE, b"x", 404),
    "a body for a probe": (b"GET /livez HTTP/1.1\r\nHost: x\r\n" + HUGE, b"x", 200),
    "not HTTP": (b"", b"\x00\x01", 400),
    "input after the last request": (
        POST + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY,
        b"x",
        200,
    ),
}


@pytest.fixture(scope="module")
def running(tls_directory: Path) -> Iterator[Running]:
    with serving(tls_directory, {"/mutate": Answering()}, max_body_bytes=CAP) as started:
        yield started


def received(connection: ssl.SSLSocket) -> bytes:
    """What has arrived. Records of TLS itself are read, and are not returned."""
    if not (connection.pending() or select.select([connection], [], [], 0)[0]):
        return b""
    connection.settimeout(0)
    try:
        return connection.recv(65536)
    except ssl.SSLWantReadError:
        return b""
    finally:
        connection.settimeout(60)


def flood(connection: ssl.SSLSocket, piece: bytes) -> tuple[bytes, int]:
    """Send until the connection ends: the answer, and the bytes that went out after it."""
    block, sent, end = piece * max(1, 65536 // len(piece)), 0, time.monotonic() + 60
    answer = b""
    with contextlib.suppress(OSError):
        while time.monotonic() < end:
            if not answer:
                answer, sent = received(connection), 0
            connection.sendall(block)
            sent += len(block)
    with contextlib.suppress(OSError):
        answer = answer or connection.recv(65536)
    return answer, sent


@pytest.mark.parametrize("case", CASES)
def test_little_is_read_after_the_answer(running: Running, case: str) -> None:
    start, piece, status = CASES[case]
    with running.raw() as connection:
        connection.settimeout(60)
        connection.sendall(start)
        answer, after = flood(connection, piece)
    print(f"{case}: {after} bytes went out after the answer")  # noqa: T201
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert after < MOST
    eventually(lambda: running.acceptor.open == 0, "the connection is closed")


def test_little_is_read_after_a_time_out(tls_directory: Path) -> None:
    with (
        serving(tls_directory, {"/mutate": Answering()}, body_timeout=0.3) as running,
        running.raw() as connection,
    ):
        connection.settimeout(60)
        connection.sendall(POST + b"Content-Length: 100000\r\n\r\n{")
        assert connection.recv(65536).startswith(b"HTTP/1.1 408 ")
        assert flood(connection, b"x")[1] < MOST


def test_a_client_that_sends_all_before_it_reads_gets_the_answer(running: Running) -> None:
    """Within the bytes that are discarded; the API server reads at any time."""
    body = b" " * (CAP + BOUNDS.after_close // 2)
    with running.raw() as connection:
        connection.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")
    with running.raw() as connection:
        connection.sendall(b"GET /" + b"a" * 200_000)
        time.sleep(0.2)
        answer = b""
        while data := connection.recv(65536):
            answer += data
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["message"]


def test_the_end_of_a_connection_is_that_of_tls(running: Running) -> None:
    """A client that checks for truncation finds none."""
    with running.raw() as connection:
        connection.suppress_ragged_eofs = False
        connection.sendall(POST + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY)
        answer, end = b"", time.monotonic()
        while data := connection.recv(65536):
            answer += data
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert_below(time.monotonic() - end, 2)


def test_lingering_sockets_are_few_and_end(running: Running) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(2 * BOUNDS.lingering):
            connection = stack.enter_context(running.raw())
            connection.sendall(b"no HTTP\r\n\r\n")
        assert len(acceptor.lingering(running._loop)) <= BOUNDS.lingering
        eventually(lambda: running.acceptor.open == 0, "they do not count as connections")
        eventually(lambda: not acceptor.lingering(running._loop), "they are closed though the clients do not close")
