"""A load generator: keep-alive connections over TLS. Each sends its next review after the last answer.

It runs in a separate process, so that it can be pinned to another core than the server:
`python -m benchmarks.load PORT PATH CA REVIEWS CONNECTIONS SECONDS` prints one line of JSON.
"""

import asyncio
import itertools
import json
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import uvloop

WARM_UP = 0.5


class Connection(asyncio.Protocol):
    """One connection. Parses only the length and the success of an answer."""

    def __init__(self, requests: Iterator[bytes], done: Callable[[float, bool], bool]) -> None:
        self._requests = requests
        self._done = done
        self._buffer = b""
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not inherit from it
        self._send()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, separator, body = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        start = head.lower().index(b"content-length:") + len(b"content-length:")
        if len(body) < int(head[start:].partition(b"\r\n")[0]):
            return
        good = head.startswith(b"HTTP/1.1 200") and b'"allowed":true' in body
        self._buffer = b""
        if self._done(time.perf_counter() - self._sent, good):
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._done(0.0, False)

    def _send(self) -> None:
        self._sent = time.perf_counter()
        self._transport.write(next(self._requests))


async def run(
    port: int, path: str, ca: str, reviews: list[bytes], connections: int, seconds: float
) -> dict[str, float]:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
    requests = itertools.cycle([f"{head}{len(each)}\r\n\r\n".encode() + each for each in reviews])
    context = ssl.create_default_context(cafile=ca)
    latencies: list[float] = []
    failed = answered = 0
    running, measuring = True, False

    def done(latency: float, good: bool) -> bool:
        nonlocal failed, answered
        answered += 1
        if measuring:
            latencies.append(latency)
            failed += not good
        return running

    loop = asyncio.get_running_loop()
    for _ in range(connections):
        await loop.create_connection(lambda: Connection(requests, done), "localhost", port, ssl=context)
    await asyncio.sleep(WARM_UP)
    measuring, started = True, time.perf_counter()
    await asyncio.sleep(seconds)
    elapsed, running, measuring = time.perf_counter() - started, False, False
    latencies.sort()
    return {
        "rps": len(latencies) / elapsed,
        "p50": latencies[len(latencies) // 2],
        "p99": latencies[int(len(latencies) * 0.99)],
        "failed": failed,
        "answered": answered,
    }


def main() -> None:
    port, path, ca, reviews, connections, seconds = sys.argv[1:]
    lines = Path(reviews).read_bytes().splitlines()
    result = uvloop.run(run(int(port), path, ca, lines, int(connections), float(seconds)))
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
