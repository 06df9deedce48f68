"""Reads the bodies of HTTP answers within bounds."""

from collections.abc import AsyncGenerator, AsyncIterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a webhook without a cluster does not load it: it takes 8 MiB
    import aiohttp


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
