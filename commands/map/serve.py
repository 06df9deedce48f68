"""Serves the map's page, and keeps it current. Read only: GET and HEAD, no cookies, no parameters.

There is no login: who reaches the port sees the map. It listens on loopback by default, and then answers only requests
that name a loopback host, so that other web sites cannot read it through a browser (DNS rebinding).
"""

import asyncio
import contextlib
import dataclasses
import hashlib
import ipaddress
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from commands.cluster.reader import ClusterReader
from commands.cluster.snapshot import ClusterSnapshot, read_snapshot
from commands.devices.device_map import build
from commands.devices.devices import DeviceMap
from commands.map import page
from runtime.api_server import ApiServerError
from runtime.api_transport import Connection
from runtime.listening import listen, on_signals, url

HEADERS: Final = {
    "Content-Security-Policy": f"{page.POLICY}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}

_LOOPBACK_NAMES: Final = ["localhost", "127.0.0.1", "[::1]"]
_PATIENCE: Final = 2.0
"""Seconds that a reader of an older map waits for a new one."""
_MOST_CONNECTIONS: Final = 128
_STOP_TIMEOUT: Final = 3
_GZIP_FROM: Final = 1024

Look = Callable[[], Awaitable[ClusterSnapshot]]


@dataclasses.dataclass(frozen=True, slots=True)
class ServedPage:
    """What to serve, and where.

    Attributes:
        host: address to listen on; empty: all.
        port: 0: any free port.
        interval: seconds between reads of the cluster, at least.
        frames: origins whose pages may show the map in a frame.
    """

    host: str
    port: int
    interval: float
    draw: Callable[[ClusterSnapshot], DeviceMap] = build
    frames: tuple[str, ...] = ()


class LiveMap:
    """The map of a cluster, read again when it is requested and older than `interval`."""

    def __init__(
        self,
        look: Look,
        interval: float,
        draw: Callable[[ClusterSnapshot], DeviceMap] = build,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing is read yet.

        Args:
            interval: seconds.
            clock: monotonic seconds.
        """
        self.interval = interval
        self._look = look
        self._draw = draw
        self._clock = clock
        self._reading: asyncio.Task[None] | None = None
        self._at = float("-inf")
        self._seen: ClusterSnapshot | None = None
        self._found = DeviceMap(())
        self._stale = ""

    async def page(self) -> bytes:
        """The page with the present data.

        Raises:
            ApiServerError: the cluster has never been read, and cannot be.
        """
        seen = await self._current()
        return page.as_page(self._found, seen, self.interval).encode()

    async def data(self) -> bytes:
        """The data alone. Raises as `page`."""
        seen = await self._current()
        return orjson.dumps(page.data(self._found, seen, self._stale))

    async def close(self) -> None:
        """Cancel a read that is under way."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})

    async def _current(self) -> ClusterSnapshot:
        """The last snapshot. All readers wait for the same read; if there is an older map, not for long."""
        if self._clock() - self._at >= self.interval and (self._reading is None or self._reading.done()):
            self._reading = asyncio.create_task(self._read())
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=None if self._seen is None else _PATIENCE)
            if self._seen is None:
                self._reading.result()
        if self._seen is None:
            raise ApiServerError("it has not been read")
        return self._seen

    async def _read(self) -> None:
        try:
            seen = await self._look()
            self._found = await asyncio.to_thread(self._draw, seen)
            self._seen, self._stale = seen, ""
        except ApiServerError as error:
            if self._seen is None:
                raise
            self._stale = f"{error}."
        self._at = self._clock()


def headers(frames: Sequence[str] = ()) -> dict[str, str]:
    """The headers of every answer. Pages of the origins `frames` may show the map in a frame."""
    if not frames:
        return dict(HEADERS)
    changed = {
        **HEADERS,
        "Content-Security-Policy": f"{page.POLICY}; frame-ancestors {' '.join(frames)}",
        "Cross-Origin-Resource-Policy": "cross-origin",
    }
    # It knows no origins, and browsers that know frame-ancestors ignore it.
    del changed["X-Frame-Options"]
    return changed


def application(live: LiveMap, *, loopback: bool, frames: Sequence[str] = ()) -> Starlette:
    """The routes; `loopback`: refuse requests for other hosts; `frames`: see `headers`."""

    async def show(_: Request) -> Response:
        return await _answer(live.page, "text/html; charset=utf-8")

    async def data(request: Request) -> Response:
        answer = await _answer(live.data, "application/json")
        tag = f'"{hashlib.sha256(bytes(answer.body)).hexdigest()[:32]}"'
        if answer.status_code == 200 and request.headers.get("if-none-match", "").removeprefix("W/") == tag:
            return Response(status_code=304, headers={"ETag": tag})
        answer.headers["ETag"] = tag
        return answer

    async def alive(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    routes = [Route("/", show), Route("/data.json", data), Route("/livez", alive)]
    middleware = [Middleware(_SecurityHeaders, headers=headers(frames))]
    if loopback:
        middleware.append(Middleware(TrustedHostMiddleware, allowed_hosts=_LOOPBACK_NAMES, www_redirect=False))
    return Starlette(routes=routes, middleware=[*middleware, Middleware(GZipMiddleware, minimum_size=_GZIP_FROM)])


async def _answer(make: Callable[[], Awaitable[bytes]], media_type: str) -> Response:
    try:
        return Response(await make(), media_type=media_type)
    except ApiServerError as error:
        return PlainTextResponse(f"The cluster cannot be read: {error}.\n", status_code=503)


class _SecurityHeaders:
    """Adds headers to every answer, also to refusals."""

    def __init__(self, app: ASGIApp, headers: Mapping[str, str]) -> None:
        self._app = app
        self._extra = [(name.lower().encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *self._extra]}
            await send(message)

        await self._app(scope, receive, with_headers)


class _PageServer(uvicorn.Server):
    """Ends at the first signal, with exit code 0: a server that is stopped has done its work."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `on_signals`."""
        yield

    def stop(self) -> None:
        self.should_exit = True


async def run(
    connect: Callable[[], AbstractAsyncContextManager[Connection]],
    served: ServedPage,
    say: Callable[[str], None],
) -> None:
    """Serve until a signal.

    Raises:
        StartupError: it cannot listen there.
        ApiServerError: the cluster cannot be read.
    """
    async with contextlib.AsyncExitStack() as stack:
        connection = await stack.enter_async_context(connect())

        async def look() -> ClusterSnapshot:
            # A reader asks once which kinds there are; they may change while the page is open.
            return await read_snapshot(ClusterReader(connection), connection.address)

        live = LiveMap(look, served.interval, served.draw)
        stack.push_async_callback(live.close)
        await live.data()
        listener = listen(served.host, served.port, "--host", "--port")
        loopback = ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback
        server = _PageServer(
            uvicorn.Config(
                application(live, loopback=loopback, frames=served.frames),
                # httptools does not bound the length of headers, h11 does.
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=_MOST_CONNECTIONS,
                timeout_graceful_shutdown=_STOP_TIMEOUT,
            )
        )
        if not loopback:
            say("Everyone who can reach this port sees the map: there is no login.")
        say(f"The map is at {url(listener, 'http')}/. Ctrl-C stops.")
        with contextlib.closing(listener), on_signals(server.stop):
            await server.serve(sockets=[listener])
