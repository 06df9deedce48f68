"""Reads lists and watches in pieces, with bounds on the length of a page and of an object."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from typing import Final

from neuron.api import objects
from runtime import answers, paging
from runtime.api_errors import TooLongError
from runtime.media_types import JSON
from webhook.cluster.api import PARTIAL_LIST, ApiServer, Resource, decoded

LONGEST_OBJECT: Final = 12 * 1024 * 1024
"""Bytes of one object. etcd stores 1.5 MiB, which may be several times that as JSON. A longer object is left out."""

PAGE_SIZE: Final = 250
"""Objects per page of a list."""

_TURN_BYTES: Final = 64 * 1024
_TURN_OBJECTS: Final = 50


@dataclasses.dataclass(frozen=True, slots=True)
class Collection:
    """Which objects to list and watch.

    Attributes:
        namespace: their namespace; empty: all namespaces.
        name: name of the only object; a Role may be restricted to it (`resourceNames`). Empty: all objects.
        parameters: further query parameters, such as `fieldSelector`.
        metadata_only: whether the API server sends only `metadata` of each object.
    """

    resource: Resource
    namespace: str = ""
    name: str = ""
    parameters: Mapping[str, str] = dataclasses.field(default_factory=dict)
    metadata_only: bool = False

    @property
    def path(self) -> str:
        """URL path for list and watch."""
        return self.resource.path(self.namespace)

    @property
    def query(self) -> dict[str, str]:
        """Query parameters for list and watch."""
        return {**self.parameters, **({"fieldSelector": f"metadata.name={self.name}"} if self.name else {})}


class Pace:
    """Yields to the event loop after a number of objects or bytes, so that reviews are answered in between."""

    def __init__(self) -> None:
        self._objects = 0
        self._bytes = 0

    async def after(self, length: int) -> None:
        """Count an object of `length` bytes; yield to the event loop if it is time."""
        self._objects += 1
        self._bytes += length
        if self._objects >= _TURN_OBJECTS or self._bytes >= _TURN_BYTES:
            self._objects = self._bytes = 0
            await asyncio.sleep(0)


async def pages(
    server: ApiServer, collection: Collection, limit: int, time_out: float
) -> AsyncGenerator[objects.Page, None]:
    """The pages of one list.

    Args:
        limit: objects per page; 0: all objects in one page.
        time_out: seconds for one page.

    Raises:
        ApiServerError: a page cannot be read.
    """

    async def fetch(query: Mapping[str, str]) -> objects.Page:
        accept = PARTIAL_LIST if collection.metadata_only else JSON
        answer = await server.request("GET", collection.path, timeout=time_out, query=query, accept=accept)
        steps = objects.steps(answer)
        page = decoded(next, steps)
        while page is None:
            await asyncio.sleep(0)
            page = decoded(next, steps)
        return page

    async with contextlib.aclosing(paging.pages(fetch, collection.query, limit, TooLongError)) as listed:
        async for page in listed:
            yield page


def lines(chunks: AsyncIterable[bytes], longest: int = LONGEST_OBJECT) -> AsyncGenerator[bytes, None]:
    """Lines of a watch; of a line longer than `longest`, only the beginning, which names the object."""
    return answers.lines(chunks, longest, objects.WINDOW)
