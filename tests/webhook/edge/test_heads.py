"""Request lines, headers, chunk framing and trailers are bounded: real TLS, against a real process."""

import itertools
import json
import signal
import socket
import ssl
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support import memory
from tests.support.serving import Answering, Client, Process, Running, eventually, review, serving
from tests.support.timing import assert_below
from webhook.edge.bounds import BOUNDS

MEBIBYTE = 1 << 20
SENT = 64 * MEBIBYTE
"""Bytes that each attack would send; the issue's sent 1 GB."""
GROWTH = 24 * MEBIBYTE
"""What the process may grow by, with all that the allocator keeps."""
POST = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


class Attacked:
    """A separate server process, with its memory."""

    def __init__(self, process: Process, ca: Path) -> None:
        self.process = process
        self.url = process.event("serving")["url"][0].replace("0.0.0.0", "127.0.0.1")
        self.ca = ca
        with self.client() as client:
            assert client.review(review()).status == 200

    def client(self) -> Client:
        return Client(self.url, self.ca, timeout=60)

    def connect(self) -> ssl.SSLSocket:
        parts = urlsplit(self.url)
        context = ssl.create_default_context(cafile=str(self.ca))
        plain = socket.create_connection((parts.hostname, parts.port), timeout=60)
        return context.wrap_socket(plain, server_hostname="localhost")

    @property
    def rss(self) -> int:
        """Bytes."""
        return memory.resident(self.process.process.pid)

    def send(self, pieces: Iterable[bytes]) -> tuple[int, bytes]:
        """Send until the server ends it, or there is nothing left; how much went out, and what came back."""
        sent, answer = 0, b""
        with self.connect() as connection:
            try:
                for piece in pieces:
                    connection.sendall(piece)
                    sent += len(piece)
            except OSError:
                pass
            try:
                while data := connection.recv(65536):
                    answer += data
            except OSError:
                pass
        return sent, answer


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    directory = tmp_path_factory.mktemp("attacked")
    arguments = ["-m", "webhook", "webhook", "--standalone", "--host=127.0.0.1", "--port=0", "--metrics-port=0"]
    with Process([*arguments, f"--tls-dir={directory}", "--log-format=json"], cwd=directory) as process:
        yield Attacked(process, directory / "ca.crt")


def endless(piece: bytes, start: bytes = b"") -> Iterator[bytes]:
    yield start
    block = piece * (MEBIBYTE // 4 // len(piece) or 1)
    for _ in range(SENT // len(block)):
        yield block


ATTACKS = {
    "one-value": (endless(b"a" * 1000, POST + b"X-Large: "), 431),
    "one-name": (endless(b"a" * 1000, POST), 431),
    "headers": (endless(b"a: b\r\n", POST), 431),
    "target": (endless(b"a" * 1000, b"GET /"), 431),
    "query": (endless(b"timeout=5s&", b"GET /livez?"), 431),
    "folded": (endless(b" a\r\n", POST + b"X-Folded: a\r\n"), 400),
    "method": (endless(b"A" * 1000), 400),
    "blank-lines": (endless(b"\r\n"), 431),
    "chunk-extension": (endless(b"a" * 1000, CHUNKED + b"1;"), 400),
    "chunk-size": (endless(b"0" * 1000, CHUNKED), 400),
    "small-chunks": (endless(b"1\r\n \r\n", CHUNKED), 400),
    "trailers": (endless(b"a: b\r\n", CHUNKED + b"1\r\n \r\n0\r\n"), 400),
    "no-http": (endless(b"\x16\x03\x01\x00"), 400),
    "http-2": (endless(b"\x00" * 9, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 400),
    "second-head": (endless(b"a: b\r\n", b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n" + POST), None),
    "pipelined": (endless(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"), None),
    "pipelined-large": (endless(b"GET /livez HTTP/1.1\r\nHost: " + b"x" * 20_000 + b"\r\n\r\n"), None),
    "pipelined-bodies": (endless(POST + b"Content-Length: 60000\r\n\r\n" + b" " * 60_000), None),
    "websocket": (
        endless(b"a" * 1000, b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"),
        200,
    ),
    "connect": (endless(b"a" * 1000, b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n"), 400),
    "expect": (endless(b"a: b\r\n", POST + b"Expect: 100-continue\r\n"), 431),
    "body-after-the-answer": (
        endless(b"a" * 1000, b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999\r\n\r\n"),
        200,
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_large_heads_take_no_memory(attacked: Attacked, name: str) -> None:
    pieces, status = ATTACKS[name]
    before = attacked.rss
    started = time.monotonic()
    sent, answer = attacked.send(pieces)
    grown = attacked.rss - before
    assert grown < GROWTH, f"{sent >> 10} KiB in {time.monotonic() - started:.1f} s, then {answer[:100]!r}"
    if status is not None and answer:  # A client that goes on sending may lose the answer.
        assert answer.startswith(b"HTTP/1.1 %d " % status)
    with attacked.client() as neighbour:
        asked = time.monotonic()
        assert neighbour.review(review()).status == 200
        assert_below(time.monotonic() - asked, 1)


def test_many_large_heads_take_no_memory(attacked: Attacked) -> None:
    before = attacked.rss
    connections = [attacked.connect() for _ in range(100)]
    try:
        for connection in connections:
            connection.sendall(POST + b"X-Large: " + b"a" * (BOUNDS.head - 2000))
        grown = attacked.rss - before
        assert grown < 64 * MEBIBYTE
        with attacked.client() as neighbour:
            assert neighbour.review(review()).status == 200
    finally:
        for connection in connections:
            connection.close()


def test_the_answer_names_the_exceeded_bound(attacked: Attacked) -> None:
    _, answer = attacked.send([POST + b"X-Large: " + b"a" * BOUNDS.head])
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
    assert b"connection: close" in head
    assert json.loads(body) == {"message": "The request's line and headers are larger than 32768 bytes."}
    _, answer = attacked.send([POST + b"a: b\r\n" * (BOUNDS.headers - 1) + b"\r\n"])
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"message": "The request has more than 100 headers."}


def test_heads_within_the_bounds_are_served(attacked: Attacked) -> None:
    body = json.dumps(review()).encode()
    with attacked.client() as client:
        headers = {"Content-Type": "application/json", "Baggage": "a" * 24_000}
        headers |= {f"X-{number}": "b" for number in range(BOUNDS.headers - 6)}
        for _ in range(3):
            assert client.ask("POST", "/mutate", body, headers).status == 200
        # Chunks as Go writes them, and smaller ones.
        padded = body + b" " * 300_000
        for size in (4096, 700):
            chunks = (padded[at : at + size] for at in range(0, len(padded), size))
            reply = client.ask("POST", "/mutate", chunks, {"Content-Type": "application/json"})
            assert reply.status == 200


def test_pipelined_requests_are_answered_in_order_up_to_the_bound(
    attacked: Attacked,
) -> None:
    asked = [b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n" % path for path in (b"livez", b"nowhere")]
    _, answer = attacked.send([b"".join(itertools.islice(itertools.cycle(asked), 50))])
    statuses = [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert statuses == list(itertools.islice(itertools.cycle([b"200", b"404"]), BOUNDS.pipelined + 1))
    assert answer.count(b"connection: close") == 1
    assert b"connection: close" in answer.split(b"HTTP/1.1 ")[-1]


@pytest.mark.parametrize(
    "rest",
    [b"\r\n", b"GET /li", b"GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n1"],
    ids=["blank-line", "half-a-head", "half-an-unread-body"],
)
def test_a_byte_after_the_answer_does_not_keep_the_connection_open(tls_directory: Path, rest: bytes) -> None:
    with serving(tls_directory, {"/mutate": Answering()}, body_timeout=0.3) as running, running.raw() as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        connection.sendall(rest)
        connection.settimeout(60)
        while connection.recv(4096):
            pass


def test_refusals_are_logged_in_few_lines(tmp_path: Path) -> None:
    arguments = ["-m", "webhook", "webhook", "--standalone", "--host=127.0.0.1", "--port=0", "--metrics-port=0"]
    with Process([*arguments, f"--tls-dir={tmp_path}", "--log-format=json"], cwd=tmp_path) as process:
        attacked = Attacked(process, tmp_path / "ca.crt")
        with attacked.client() as client:
            for _ in range(200):
                assert client.review(b"no json", content_type="application/json").status == 400
        for _ in range(40):
            attacked.send([b"no http\r\n\r\n"])
            attacked.send([b"GET /livez HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n\x00"])
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
        lines = [json.loads(line) for line in process.seen]
    refused = [line for line in lines if line["event"] == "request refused"]
    assert 2 <= len(refused) <= 45
    assert {(line["path"], line["status"]) for line in refused} == {("/mutate", 400), ("", 400)}
    assert all(line["level"] == "info" for line in lines if line["event"] != "request refused")


def test_refused_connections_are_counted(tls_directory: Path) -> None:
    with serving(tls_directory, {"/mutate": Answering()}) as running:
        _break(running)
        eventually(lambda: running.acceptor.open == 0, "they are closed")
        assert running.refused == 2


def _break(running: Running) -> None:
    for sent in (b"no http\r\n\r\n", b"GET /" + b"a" * BOUNDS.head):
        with running.raw() as connection:
            connection.sendall(sent)
            while connection.recv(4096):
                pass
