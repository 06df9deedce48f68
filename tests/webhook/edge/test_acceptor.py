"""Limits on connections: their number, and the time of a handshake."""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import errno
import logging
import resource
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_api import eventually as reached
from tests.support.serving import Answering, Running, eventually, review, serving
from webhook.edge import acceptor, server
from webhook.edge.acceptor import Acceptor
from webhook.edge.bounds import BOUNDS

MOST = 4


@pytest.fixture
def running(tls_directory: Path) -> Iterator[Running]:
    with serving(tls_directory, {"/mutate": Answering()}, max_connections=MOST) as started:
        yield started


def plain(running: Running) -> socket.socket:
    host, port = running.url.removeprefix("https://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_new_connections_above_the_cap_are_closed_and_existing_ones_continue(running: Running) -> None:
    with contextlib.ExitStack() as stack:
        old = stack.enter_context(running.client())
        assert old.review(review()).status == 200
        for _ in range(MOST - 1):
            stack.enter_context(running.raw())
        assert running.acceptor.open == MOST
        with plain(running) as refused:
            assert closed(refused)
        assert (running.acceptor.refused, running.acceptor.open) == (1, MOST)
        assert old.review(review()).status == 200
    eventually(lambda: running.acceptor.open == 0, "all are closed")
    with running.client() as new:
        assert new.review(review()).status == 200


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle connections make room at once."""
    monkeypatch.setattr(server, "UNUSED", 0.0)
    monkeypatch.setattr(server, "IDLE", 0.0)
    monkeypatch.setattr(server, "_AT_ONCE", 1)


@pytest.mark.usefixtures("impatient")
def test_unused_and_then_longest_idle_connections_are_closed_at_the_cap(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.ExitStack() as stack, caplog.at_level(logging.WARNING):
        used = [stack.enter_context(running.client()) for _ in range(2)]
        for each in used:
            assert each.review(review()).status == 200
        unused = [stack.enter_context(running.raw()) for _ in range(MOST - 2)]
        eventually(lambda: running.acceptor.open == MOST, "all are open")
        for gone in unused:
            assert stack.enter_context(running.client()).review(review()).status == 200
            assert closed(gone)
        # All have had a request now: the first of them has been idle for longest.
        assert stack.enter_context(running.client()).review(review()).status == 200
        assert closed(used[0].connection.sock)
        assert used[1].review(review()).status == 200
        assert running.acceptor.refused == 0
        eventually(lambda: running.acceptor.open == MOST, "closed ones are counted out")
    said = [vars(record) for record in caplog.records if "idle connections closed" in record.getMessage()]
    assert [(each["open"], each["closed"]) for each in said] == [(MOST, 1)]


@pytest.mark.usefixtures("impatient")
def test_a_connection_with_a_request_in_progress_is_not_closed_at_the_cap(tls_directory: Path) -> None:
    reviewer = Answering(delay=1.0)
    with (
        serving(tls_directory, {"/mutate": reviewer}, max_connections=1) as busy,
        busy.client() as client,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        answer = pool.submit(client.review, review())
        eventually(lambda: reviewer.requests, "the review is being decided")
        with plain(busy) as refused:
            assert closed(refused)
        assert answer.result().status == 200


def test_connections_without_a_handshake_count_and_are_closed_in_time(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "BOUNDS", dataclasses.replace(BOUNDS, handshake=0.2))
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(plain(running)) for _ in range(MOST)]
        eventually(lambda: running.acceptor.open == MOST, "they are accepted")
        with plain(running) as refused:
            assert closed(refused)
        assert all(closed(connection) for connection in silent)
    eventually(lambda: (running.acceptor.open, running.acceptor.failed) == (0, MOST), "they are counted out")
    with running.client() as client:
        assert client.review(review()).status == 200


def test_clients_that_disconnect_in_their_handshake_are_no_longer_counted(running: Running) -> None:
    for gone in range(1, 3 * MOST + 1):
        plain(running).close()
        eventually(lambda gone=gone: running.acceptor.failed == gone, "it is counted out")
        assert running.acceptor.open == 0


def test_refused_connections_are_logged_at_an_interval(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    with contextlib.ExitStack() as stack, caplog.at_level(logging.WARNING):
        for _ in range(MOST):
            stack.enter_context(running.raw())
        for _ in range(10):
            assert closed(stack.enter_context(plain(running)))
    said = [record for record in caplog.records if "--max-connections" in record.getMessage()]
    assert [(vars(record)["open"], vars(record)["refused"]) for record in said] == [(MOST, 1)]


def limits(monkeypatch: pytest.MonkeyPatch, soft: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))


@pytest.mark.parametrize(
    ("asked", "soft", "most"),
    [(2000, 1024, 960), (100, 1024, 100), (0, 1024, 960), (0, resource.RLIM_INFINITY, 0), (5, 10, 1)],
    ids=["more-than-there-are", "fewer", "any", "no-limit-at-all", "hardly-any"],
)
def test_the_connection_cap_is_reduced_to_the_file_descriptor_limit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, asked: int, soft: int, most: int
) -> None:
    limits(monkeypatch, soft)
    assert acceptor._within_descriptors(asked) == most
    assert ("fewer connections than --max-connections" in caplog.text) == (asked > most)


class OutOfDescriptors(socket.socket):
    """A listener that fails once."""

    failures = 1

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


async def test_accepting_pauses_without_file_descriptors_and_continues(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(acceptor, "_PAUSE", 0.05)

    with OutOfDescriptors() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        accepting = Acceptor(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), asyncio.Protocol, 0)
        accepting.start(listener)
        with socket.create_connection(listener.getsockname()[:2]):
            await reached(lambda: accepting.open == 1)
        await reached(lambda: accepting.open == 0)
        accepting.stop()
    assert "cannot accept connections" in caplog.text
