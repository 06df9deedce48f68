"""The port for Prometheus, against clients that do not behave."""

import contextlib
import http.client
import logging
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from runtime import metrics_server
from runtime.metrics_server import MOST_CONNECTIONS, MOST_HEAD, serving_metrics
from tests.support.timing import assert_below


@pytest.fixture
def registry() -> CollectorRegistry:
    made = CollectorRegistry()
    Counter("tests", "For a test.", registry=made).inc()
    return made


@pytest.fixture
def server(registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr(metrics_server, "HEAD_TIMEOUT", 1.0)
    listener = socket.create_server(("127.0.0.1", 0))
    with serving_metrics(registry, listener):
        yield listener.getsockname()


def connect(server: tuple[str, int]) -> socket.socket:
    return socket.create_connection(server, timeout=60)


def scrape(server: tuple[str, int], path: str = "/metrics", headers: Any = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*server, timeout=60)
    connection.request("GET", path, headers=headers or {})
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def drained(connection: socket.socket) -> bytes:
    answer = b""
    with contextlib.suppress(OSError):
        while data := connection.recv(65536):
            answer += data
    return answer


def test_a_registry_is_served(server: tuple[str, int]) -> None:
    status, text = scrape(server)
    assert status == 200
    assert [family.name for family in text_string_to_metric_families(text.decode())] == ["tests", "tests_created"]
    assert scrape(server, headers={"Accept-Encoding": "gzip"})[1].startswith(b"\x1f\x8b")
    assert scrape(server, "/metrics?name[]=nothing") == (200, b"")


def test_thousands_of_connections_use_few_threads(server: tuple[str, int]) -> None:
    before = threading.active_count()
    connections = [connect(server) for _ in range(300)]
    try:
        assert threading.active_count() <= before + MOST_CONNECTIONS + 5
        started = time.monotonic()
        assert scrape(server)[0] == 200
        assert_below(time.monotonic() - started, 5)
    finally:
        for connection in connections:
            connection.close()


def test_a_slow_request_head_is_closed_after_its_time_out(server: tuple[str, int]) -> None:
    with connect(server) as connection:
        started = time.monotonic()
        connection.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        with contextlib.suppress(OSError):
            while time.monotonic() - started < 15:
                connection.sendall(b"a")
                time.sleep(0.1)
        assert drained(connection) == b""
        assert_below(time.monotonic() - started, 10)


def test_a_request_head_has_a_size_limit(server: tuple[str, int]) -> None:
    with connect(server) as connection:
        with contextlib.suppress(OSError):
            for _ in range(1000):
                connection.sendall(b"a" * MOST_HEAD)
        assert drained(connection) in (
            b"",
            b"".join(
                [
                    b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: text/plain; charset=utf-8\r\n",
                    b"Content-Length: 26\r\nConnection: close\r\n\r\nThe request is too large.\n",
                ]
            ),
        )
    assert scrape(server)[0] == 200


@pytest.mark.parametrize(
    "sent",
    [b"\r\n\r\n", b"\n\n", b"GET\r\n\r\n", b"\xff\x00\x16\r\n\r\n", b"GET /metrics HTTP/2\r\n\r\n", b"a b c d\r\n\r\n"],
)
def test_input_that_is_not_http_logs_no_traceback(
    server: tuple[str, int], sent: bytes, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with connect(server) as connection:
        connection.sendall(sent)
        assert drained(connection).startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert capfd.readouterr().err == ""
    assert not caplog.records


def test_a_client_that_disconnects_logs_no_line(
    server: tuple[str, int], capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        connection = connect(server)
        connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        connection.close()
    assert scrape(server)[0] == 200
    assert capfd.readouterr().err == ""
    assert not caplog.records


class Broken(Collector):
    """Cannot be read."""

    def collect(self) -> Iterator[Metric]:
        raise ValueError("of many\nlines")
        yield

    def describe(self) -> list[Metric]:
        return []


def test_exceptions_of_collectors_are_logged_at_a_limited_rate(
    server: tuple[str, int],
    registry: CollectorRegistry,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry.register(Broken())
    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            assert scrape(server) == (500, b"The log of the process says why.\n")
    assert capfd.readouterr().err == ""
    assert [(record.getMessage(), vars(record)["error"], record.exc_info) for record in caplog.records] == [
        ("metrics not served", "ValueError", None)
    ]
