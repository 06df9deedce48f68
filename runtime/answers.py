"""Reads answers of the API server within bounds: bodies, lines of watches, and lists page by page.

Lists leave `resourceVersion` unset: they show the most recent state, and all pages of one list show the same state.
Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#retrieving-large-results-sets-in-chunks
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from runtime.api_errors import TooLongError

if TYPE_CHECKING:  # a webhook without a cluster does not load it: it takes 8 MiB
    import aiohttp


_SHRINK: Final = 4


async def content_of(response: "aiohttp.ClientResponse", most: int) -> bytes | None:
    """The whole body; None if it is longer than `most` bytes, and then the connection is closed."""
    pieces, length = [], 0
    async for piece in response.content.iter_any():
        pieces.append(piece)
        length += len(piece)
        if length > most:
            response.close()
            return None
    return b"".join(pieces)


async def lines(chunks: AsyncIterable[bytes], longest: int, window: int) -> AsyncGenerator[bytes, None]:
    """Whole, non-empty lines of a body that arrives in pieces.

    Text after the last newline is dropped: it was cut off, and the API server sends it again when the watch resumes.
    Of a line longer than `longest` bytes, only the first `window` bytes are returned.
    """
    pending: list[bytes] = []
    length = 0
    async for chunk in chunks:
        first, *others = chunk.split(b"\n")
        if length <= longest:
            pending.append(first)
        length += len(first)
        for other in others:
            line = b"".join(pending)
            long = length > longest
            pending, length = [other], len(other)
            if long:
                yield line[:window]
            elif line.strip():
                yield line


class PageMetadata(Protocol):
    """The field of `metav1.ListMeta` that paging needs."""

    @property
    def continue_(self) -> str:
        """Token of the next page; empty on the last page."""


class ListPage(Protocol):
    """One decoded page."""

    @property
    def metadata(self) -> PageMetadata: ...


P = TypeVar("P", bound=ListPage)


async def pages(
    fetch: Callable[[Mapping[str, str]], Awaitable[P]], query: Mapping[str, str], limit: int
) -> AsyncGenerator[P, None]:
    """The pages of one list.

    Args:
        fetch: requests one page with these query parameters, and decodes it. If it raises `TooLongError`, the page is
            requested with fewer objects; with a limit of 0 or 1 the error is passed on.
        query: further query parameters.
        limit: objects per page; 0: all objects in one page.
    """
    token = ""
    while True:
        asked = {**query, **({"limit": str(limit)} if limit else {}), **({"continue": token} if token else {})}
        try:
            page = await fetch(asked)
        except TooLongError:
            if limit <= 1:
                raise
            limit = max(1, limit // _SHRINK)
            continue
        token = page.metadata.continue_
        yield page
        if not token:
            return


class Pace:
    """Yields to the event loop after a number of objects or bytes, so that other tasks work in between."""

    def __init__(self) -> None:
        self._objects = 0
        self._bytes = 0

    async def after(self, length: int) -> None:
        """Count an object of `length` bytes; yield to the event loop if it is time."""
        self._objects += 1
        self._bytes += length
        if self._objects >= 50 or self._bytes >= 64 * 1024:
            self._objects = self._bytes = 0
            await asyncio.sleep(0)
