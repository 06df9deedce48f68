"""Who takes the next connection: a worker beside a sibling that is what a test says it is."""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from certs import files
from webhook.edge import acceptor, server
from webhook.edge.acceptor import WAIT, WAITS, Acceptor
from webhook.workers.member import Member
from webhook.workers.page import Page

PATIENCE = WAIT * WAITS


class Counted(asyncio.Protocol):
    def __init__(self, closed: Callable[[], None]) -> None:
        self._closed = closed

    def connection_lost(self, _exc: Exception | None) -> None:
        self._closed()


class Bench:
    """An acceptor, its sibling's slot, and clients."""

    def __init__(self, directory: Path) -> None:
        page = Page(2)
        self.member, self.sibling = Member(page, 0), Member(page, 1)
        for member in (self.member, self.sibling):
            member.slot.prepare(time.monotonic_ns())
            member.slot.pid = 1
            member.beat(ready=True, serving=True, draining=False)
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen()
        self.clients: list[asyncio.StreamWriter] = []
        tls = server.tls_context(directory / files.CERTIFICATE_FILE, directory / files.KEY_FILE, "1.3")
        self._trust = ssl.create_default_context(cafile=str(directory / files.CA_FILE))
        self.acceptor = Acceptor(tls, lambda: Counted(self.acceptor.closed), 0, self.member)
        self.acceptor.start(self.listener)

    async def connect(self) -> float:
        """Seconds that a connection took, handshake and all. It stays open."""
        started = time.monotonic()
        port = self.listener.getsockname()[1]
        _, writer = await asyncio.open_connection("localhost", port, ssl=self._trust)
        self.clients.append(writer)
        return time.monotonic() - started


@contextlib.asynccontextmanager
async def bench(directory: Path) -> AsyncIterator[Bench]:
    made = Bench(directory)
    with made.listener:
        try:
            yield made
        finally:
            made.acceptor.stop()
            for client in made.clients:
                client.transport.abort()
            await until(lambda: not made.acceptor.open)


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for is no event of ours
            await asyncio.sleep(0.001)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    uvloop.run(asyncio.wait_for(scenario, 30))


def test_who_has_no_more_than_its_sibling_takes_the_connection_and_says_so(tls_directory: Path) -> None:
    async def scenario() -> None:
        async with bench(tls_directory) as it:
            it.sibling.slot.connections = 1
            for count in (1, 2):
                await it.connect()
                await until(lambda count=count: it.acceptor.open == count == it.member.slot.connections)
            it.clients[0].transport.abort()
            await until(lambda: it.acceptor.open == 1)

    run(scenario())


def test_who_has_more_leaves_it_to_the_sibling_for_a_moment(tls_directory: Path) -> None:
    async def scenario() -> None:
        async with bench(tls_directory) as it:
            await it.connect()
            assert await it.connect() >= PATIENCE * 0.9
            assert it.acceptor.open == 2

    run(scenario())


def test_the_turn_comes_back_when_the_sibling_has_caught_up(tls_directory: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(acceptor, "WAITS", 1_000_000)

    async def scenario() -> None:
        async with bench(tls_directory) as it:
            await it.connect()
            waiting = asyncio.create_task(it.connect())
            done, _ = await asyncio.wait([waiting], timeout=0.1)
            assert not done
            it.sibling.slot.connections = 1
            await asyncio.wait_for(waiting, 10)

    run(scenario())


@pytest.mark.parametrize("absent", ["gone", "hangs", "drains", "starts"])
def test_a_sibling_that_does_not_accept_is_not_waited_for(tls_directory: Path, monkeypatch: Any, absent: str) -> None:
    monkeypatch.setattr(acceptor, "WAITS", 1_000_000)

    async def scenario() -> None:
        async with bench(tls_directory) as it:
            if absent == "gone":
                it.sibling.slot.pid = 0
            elif absent == "hangs":
                it.sibling.slot.beat -= 10**10
            elif absent == "drains":
                it.sibling.beat(ready=False, serving=True, draining=True)
            else:
                it.sibling.slot.flags = 0
            for _ in range(3):
                await asyncio.wait_for(it.connect(), 10)

    run(scenario())


def test_what_is_no_tls_is_dropped_and_harms_nobody(tls_directory: Path) -> None:
    async def scenario() -> None:
        async with bench(tls_directory) as it:
            reader, writer = await asyncio.open_connection(*it.listener.getsockname())
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert await reader.read() is not None
            writer.close()
            await until(lambda: it.acceptor.open == 0)
            await it.connect()

    run(scenario())


def test_closed_it_accepts_no_more(tls_directory: Path) -> None:
    async def scenario() -> None:
        async with bench(tls_directory) as it:
            it.acceptor.stop()
            connecting = asyncio.create_task(it.connect())
            done, _ = await asyncio.wait([connecting], timeout=0.1)
            assert not done
            connecting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await connecting

    run(scenario())
