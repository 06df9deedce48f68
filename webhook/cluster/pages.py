"""Reading lists and watches piece by piece, so that neither their length nor an object in them is a matter of trust."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from typing import Final

from neuron import api_objects
from webhook.cluster.api import ApiServer, Resource, TooLongError, decoded

LONGEST_OBJECT: Final = 12 * 1024 * 1024
"""Bytes of one object. etcd takes 1.5 MiB, which may be several times that as JSON; what is longer is left out."""

_SHRINK: Final = 4
_TURN_BYTES: Final = 64 * 1024
_TURN_OBJECTS: Final = 50


class Pace:
    """Gives the event loop a turn after so many objects or bytes, so that reviews are answered in between."""

    def __init__(self) -> None:
        self._objects = 0
        self._bytes = 0

    async def after(self, length: int) -> None:
        """Take note of an object of so many bytes; maybe let others have a turn."""
        self._objects += 1
        self._bytes += length
        if self._objects >= _TURN_OBJECTS or self._bytes >= _TURN_BYTES:
            self._objects = self._bytes = 0
            await asyncio.sleep(0)


async def pages(
    server: ApiServer, resource: Resource, namespace: str, query: Mapping[str, str], *, limit: int, patience: float
) -> AsyncGenerator[api_objects.Page, None]:
    """The pages of one list.

    An answer that is too long for our memory is asked for again with fewer objects.

    Args:
        server: where the objects are.
        resource: which.
        namespace: where; empty: in all.
        query: further parameters.
        limit: objects in a page; 0: all in one.
        patience: seconds for a page.

    Raises:
        ApiServerError: a page cannot be had.
    """
    path = resource.path(namespace)
    token = ""
    while True:
        asked = {**query, **({"limit": str(limit)} if limit else {}), **({"continue": token} if token else {})}
        try:
            body = await server.request("GET", path, timeout=patience, query=asked)
        except TooLongError:
            if limit <= 1:
                raise
            limit = max(1, limit // _SHRINK)
            continue
        page = await _page(body)
        del body
        yield page
        token = page.metadata.continue_
        if not token:
            return


async def _page(body: bytes) -> api_objects.Page:
    steps = api_objects.steps(body)
    page = decoded(next, steps)
    while page is None:
        await asyncio.sleep(0)
        page = decoded(next, steps)
    return page


async def lines(chunks: AsyncIterable[bytes], longest: int = LONGEST_OBJECT) -> AsyncGenerator[bytes, None]:
    """Whole, non-empty lines of a body that arrives in pieces cut anywhere.

    What follows the last newline was broken off: it is not given, and comes again when the watch resumes. Of a line
    that is longer than `longest`, only the beginning is given: enough to see what it was about.
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
                yield line[: api_objects.WINDOW]
            elif line.strip():
                yield line
