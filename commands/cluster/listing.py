"""Reads whole lists of the API server page by page, for commands. Retryable errors are retried.

Lists leave `resourceVersion` unset: they show the most recent state, and all pages of one list show the same state
(https://kubernetes.io/docs/reference/using-api/api-concepts/#retrieving-large-results-sets-in-chunks).
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from runtime import paging
from runtime.api_errors import FORBIDDEN, GONE, NOT_FOUND, ApiAnswerError, ApiServerError, StatusError, TooLongError
from runtime.api_server import OLDEST_KUBERNETES, RESOURCE_GROUP, ApiServer, Resource, decoded, loaded
from runtime.explanations import rule_text
from runtime.raw_objects import Page, read_page

PAGE_SIZE: Final = 500
TIMEOUT: Final = 60.0
"""Seconds that one request may take."""

_ATTEMPTS: Final = 3
_PAUSE: Final = 1.0

Object: TypeAlias = Mapping[str, Any]
P = TypeVar("P", bound=paging.ListPage)
T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Unseen:
    """Data that could not be read.

    Attributes:
        why: the reason, one sentence.
        rule: the missing RBAC rule, as YAML; empty for other reasons.
    """

    why: str
    rule: str = ""

    @property
    def fix(self) -> str:
        return f"Add this rule to your Role or ClusterRole: {self.rule}" if self.rule else ""

    def __str__(self) -> str:
        return f"{self.why} {self.fix}".rstrip()


Seen: TypeAlias = tuple[T, ...] | Unseen
"""The objects of a list, or why they could not be read."""


def items(seen: Seen[T]) -> tuple[T, ...]:
    """The objects; none if they could not be read."""
    return () if isinstance(seen, Unseen) else seen


def unseen(error: ApiServerError, resource: Resource, verb: str, namespace: str = "") -> Unseen:
    """Why a collection or object could not be read."""
    where = f" in namespace {namespace}" if namespace else ""
    if isinstance(error, StatusError) and error.code == FORBIDDEN and error.missing_right:
        rule = rule_text(resource.group, (resource.plural,), (verb,))
        return Unseen(f"you are not allowed to {verb} {resource}{where}.", rule)
    if isinstance(error, StatusError) and error.code == NOT_FOUND and resource.group == RESOURCE_GROUP:
        return Unseen(
            f"the API server does not serve {resource.group}/{resource.version}: Kubernetes >= {OLDEST_KUBERNETES} is"
            " needed."
        )
    return Unseen(f"cannot {verb} {resource}{where}: {error}.")


class Lister:
    """Lists of one cluster. Errors that a retry does not mend are raised as `ApiServerError`."""

    def __init__(
        self,
        server: ApiServer,
        *,
        page_size: int = PAGE_SIZE,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._server = server
        self._page_size = page_size
        self._sleep = sleep

    async def objects(
        self, resource: Resource, namespace: str = "", *, absent: bool = False, **query: str
    ) -> Seen[Object]:
        """All objects of a namespace, or of the cluster, or why they cannot be read.

        Args:
            absent: whether a collection that the cluster does not serve is an empty one.
        """
        found: list[Object] = []

        def take(page: Page) -> None:
            found.extend(item for raw in page.items or () if (item := readable_object(raw)) is not None)

        try:
            await self.read(resource.path(namespace), query, read_page, take, found.clear)
        except ApiServerError as error:
            if absent and isinstance(error, StatusError) and error.code == NOT_FOUND:
                return ()
            return unseen(error, resource, "list", namespace)
        return tuple(found)

    async def read(
        self,
        path: str,
        query: Mapping[str, str],
        decode: Callable[[bytes], P],
        take: Callable[[P], None],
        restart: Callable[[], None],
    ) -> None:
        """Call `take` with each page; `restart` before the first page of every attempt."""

        async def fetch(asked: Mapping[str, str]) -> P:
            return decoded(decode, await self._get(path, asked))

        for attempt in range(1, _ATTEMPTS + 1):
            restart()
            try:
                async with contextlib.aclosing(paging.pages(fetch, query, self._page_size)) as listed:
                    async for page in listed:
                        take(page)
            except StatusError as error:
                # The continue token is older than the server's history: only a new list shows one state.
                if error.code != GONE or attempt == _ATTEMPTS:
                    raise
            else:
                return

    async def _get(self, path: str, query: Mapping[str, str]) -> bytes:
        for attempt in range(1, _ATTEMPTS):
            asked_to_wait = 0.0
            try:
                return await self._server.request("GET", path, timeout=TIMEOUT, query=query)
            except StatusError as error:
                if not error.passing:
                    raise
                asked_to_wait = error.retry_after
            except TooLongError:
                raise
            except ApiServerError:
                pass  # the last attempt raises it
            await self._sleep(max(asked_to_wait, _PAUSE * attempt))
        return await self._server.request("GET", path, timeout=TIMEOUT, query=query)


def readable_object(raw: msgspec.Raw) -> Object | None:
    """None for an object that no parser accepts: tenants choose what is in their objects."""
    try:
        item = loaded(memoryview(raw))
    except ApiAnswerError:
        return None
    return item if isinstance(item, dict) and "metadata" in item else None
