"""How connections spread over workers: `python -m benchmarks.spread`.

Opens some TLS connections, keeps them, and counts who has how many, for three ways to share a port. API servers do the
same: a few connections, kept for minutes.
"""

import asyncio
import collections
import contextlib
import os
import signal
import socket
import ssl
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import uvloop

from tests.support.serving import make_certificates
from webhook.edge.acceptor import Acceptor
from webhook.workers.member import Member
from webhook.workers.page import Page

Way = Callable[[int, socket.socket, ssl.SSLContext, Page], object]


class Named(asyncio.Protocol):
    """Says which worker it is, and stays."""

    def __init__(self, index: int, closed: Callable[[], None]) -> None:
        self._index = index
        self._closed = closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(bytes([self._index]))  # type: ignore[attr-defined]

    def connection_lost(self, _exc: Exception | None) -> None:
        self._closed()


async def _serve(way: str, index: int, listener: socket.socket, tls: ssl.SSLContext, page: Page) -> None:
    loop, member = asyncio.get_running_loop(), Member(page, index)
    if way == "shared, by turns":
        acceptor = Acceptor(tls, lambda: Named(index, acceptor.closed), 0, member)
        acceptor.start(listener)
    else:
        await loop.create_server(lambda: Named(index, lambda: None), sock=listener, ssl=tls)
    while True:
        member.beat(ready=True, serving=True, draining=False)
        await asyncio.sleep(0.1)


def _listener(port: int = 0) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(2048)
    return listener


@contextlib.contextmanager
def _workers(way: str, size: int, tls: ssl.SSLContext) -> Iterator[int]:
    page = Page(size)
    listeners = [_listener()]
    port: int = listeners[0].getsockname()[1]
    if way == "SO_REUSEPORT":
        listeners += [_listener(port) for _ in range(size - 1)]
    pids = []
    for index in range(size):
        page.slots[index].prepare(time.monotonic_ns())
        pid = os.fork()
        if not pid:
            uvloop.run(_serve(way, index, listeners[index % len(listeners)], tls, page))
        page.slots[index].pid = pid
        pids.append(pid)
    for listener in listeners:
        listener.close()
    try:
        while not all(slot.flags for slot in page.slots):
            time.sleep(0.01)
        yield port
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


async def _connect(port: int, ca: Path, count: int, *, at_once: bool) -> list[int]:
    context = ssl.create_default_context(cafile=str(ca))

    async def one() -> tuple[int, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("localhost", port, ssl=context)
        return (await reader.readexactly(1))[0], writer

    if at_once:
        made = await asyncio.gather(*(one() for _ in range(count)))
    else:
        made = [await one() for _ in range(count)]
    for _, writer in made:
        writer.transport.abort()
    return [index for index, _ in made]


@click.command()
@click.option("--workers", default=2, show_default=True)
@click.option("--rounds", default=20, show_default=True)
def main(workers: int, rounds: int) -> None:
    """Show the share of connections that the busiest worker has: median and worst of the rounds."""
    click.echo(f"{workers} workers, {rounds} rounds: connections of the busiest worker, median (worst)\n")
    click.echo(f"{'way':<20} {'opened':<14} {'2':>9} {'4':>9} {'8':>9} {'64':>9} {'64: ms':>7}")
    with tempfile.TemporaryDirectory(prefix="neuron-dra-spread-") as name:
        certificates = make_certificates(Path(name))
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificates.certificate, certificates.key)
        for way in ("shared, first wins", "SO_REUSEPORT", "shared, by turns"):
            for at_once in (False, True):
                cells = []
                for count in (2, 4, 8, 64):
                    most, took = [], []
                    for _ in range(rounds):
                        with _workers(way, workers, tls) as port:
                            started = time.perf_counter()
                            made = uvloop.run(_connect(port, certificates.ca, count, at_once=at_once))
                            took.append(time.perf_counter() - started)
                        most.append(max(collections.Counter(made).values()))
                    cells.append(f"{statistics.median(most):.0f} ({max(most)})")
                click.echo(
                    f"{way:<20} {'at once' if at_once else 'one by one':<14} "
                    + " ".join(f"{cell:>9}" for cell in cells)
                    + f" {statistics.median(took) * 1000:>7.0f}"
                )


if __name__ == "__main__":
    main()
