"""Bodies of answers, read within a bound."""

import aiohttp


async def content_of(response: aiohttp.ClientResponse, most: int) -> bytes | None:
    """The whole body; None if it has more than `most` bytes, and then the connection is closed."""
    pieces, length = [], 0
    async for piece in response.content.iter_any():
        pieces.append(piece)
        length += len(piece)
        if length > most:
            response.close()
            return None
    return b"".join(pieces)
