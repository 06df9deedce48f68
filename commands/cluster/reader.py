"""Reads a cluster for a command: lists page by page, single objects, the version, and which kinds are served.

All commands share its retries, time limits and words for what was not seen. Lists leave `resourceVersion` unset: they
show the most recent state, and all pages of one list show the same state
(https://kubernetes.io/docs/reference/using-api/api-concepts/#retrieving-large-results-sets-in-chunks).
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from neuron.api.fields import ObjectMeta, WrongFormError
from runtime import answers
from runtime.answers import Page, read_page
from runtime.api_server import (
    FORBIDDEN,
    GONE,
    JSON,
    NOT_FOUND,
    OLDEST_KUBERNETES,
    RESOURCE_GROUP,
    UNAUTHORIZED,
    ApiAnswerError,
    ApiServer,
    ApiServerError,
    Resource,
    StatusError,
    TimedApiServer,
    TooLongError,
    UnreachableError,
    decoded,
    loaded,
    loaded_object,
    rule_text,
)

_ACCEPT: Final = f"{JSON};g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,{JSON}"
_TIMEOUT: Final = 30.0
_CLUSTER: Final = "Cluster"

Kind = tuple[str, str]
"""API group and kind."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServedKind:
    """A kind that the API server serves, in the version that it prefers."""

    resource: Resource
    namespaced: bool
    verbs: frozenset[str]


class _ResponseKind(msgspec.Struct, frozen=True):
    kind: str = ""


class _Resource(msgspec.Struct, frozen=True):
    resource: str
    scope: str = ""
    verbs: list[str] = []
    responseKind: _ResponseKind | None = None  # noqa: N815 - the wire's spelling


class _Version(msgspec.Struct, frozen=True):
    version: str
    resources: list[_Resource] = []


class _ApiGroup(msgspec.Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    versions: list[_Version] = []


class _ApiGroups(msgspec.Struct, frozen=True):
    items: list[_ApiGroup] | None = None


_decode: Final = msgspec.json.Decoder(_ApiGroups).decode


async def served_kinds(server: ApiServer) -> Mapping[Kind, ServedKind]:
    """All kinds outside the core group. An aggregated API that does not answer is left out.

    Raises:
        ApiServerError: the document cannot be read.
    """
    answer = decoded(_decode, await server.request("GET", "/apis", timeout=_TIMEOUT, accept=_ACCEPT))
    found: dict[Kind, ServedKind] = {}
    for group in answer.items or ():
        # The server lists the preferred version first.
        for version in group.versions:
            for each in version.resources:
                if each.responseKind is not None and "list" in each.verbs:
                    resource = Resource(group.metadata.name, version.version, each.resource)
                    served = ServedKind(resource, each.scope != _CLUSTER, frozenset(each.verbs))
                    found.setdefault((group.metadata.name, each.responseKind.kind), served)
    return found


PAGE_SIZE: Final = 500
TIMEOUT: Final = 60.0
"""Seconds that one request may take."""

_ATTEMPTS: Final = 3
_PAUSE: Final = 1.0
_AT_A_TIME: Final = 8

Object: TypeAlias = Mapping[str, Any]

ENDED: Final = ("Succeeded", "Failed")
"""Phases of a pod that has ended."""

T = TypeVar("T")
Progress: TypeAlias = Callable[[Resource, int], None]
"""Is called after each page: what is read, and how many objects of it have been read."""


@dataclasses.dataclass(frozen=True, slots=True)
class Unseen:
    """Data that could not be read.

    Attributes:
        why: the reason, one sentence.
        rule: the missing RBAC rule, as YAML; empty for other reasons.
        error: the error, if a request failed.
    """

    why: str
    rule: str = ""
    error: ApiServerError | None = dataclasses.field(default=None, compare=False, repr=False)

    @property
    def fix(self) -> str:
        return f"Add this rule to your Role or ClusterRole: {self.rule}" if self.rule else ""

    def __str__(self) -> str:
        return f"{self.why} {self.fix}".rstrip()

    def told(self, consequence: str) -> str:
        """The reason, its consequence and the fix, as sentences."""
        return " ".join(filter(None, (f"{self.why[:1].upper()}{self.why[1:]}", consequence, self.fix)))


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
        return Unseen(f"you are not allowed to {verb} {resource}{where}.", rule, error)
    if is_missing(error) and resource.group == RESOURCE_GROUP:
        return Unseen(
            f"the API server does not serve {resource.group}/{resource.version}: Kubernetes >= {OLDEST_KUBERNETES} is"
            " needed.",
            error=error,
        )
    return Unseen(f"cannot {verb} {resource}{where}: {error}.", error=error)


def is_missing(error: ApiServerError) -> bool:
    """Whether the API server has no such object, or does not serve the collection."""
    return isinstance(error, StatusError) and error.code == NOT_FOUND


def answered(seen: Seen[T]) -> Seen[T]:
    """The same, if the cluster answered at all.

    Raises:
        ApiServerError: it does not answer, or refuses the credentials: nothing else can be read either.
    """
    error = seen.error if isinstance(seen, Unseen) else None
    if isinstance(error, UnreachableError):
        raise error
    if isinstance(error, StatusError) and error.code == UNAUTHORIZED:
        raise ApiServerError("the API server does not accept these credentials: renew them") from error
    return seen


def whole(item: Object) -> Object:
    """What a list keeps of an object, if nothing is left out."""
    return item


class ClusterReader:
    """Reads one cluster for one run of a command. Retryable errors are retried.

    Attributes:
        server: the API server, for what a command writes.
    """

    def __init__(
        self,
        server: TimedApiServer,
        *,
        progress: Progress = lambda *_: None,
        timeout: float = TIMEOUT,
        attempts: int = _ATTEMPTS,
        page_size: int = PAGE_SIZE,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            timeout: seconds that one request may take.
            attempts: how often a request is sent, at most.
            page_size: objects per page of a list.
            sleep: waits a number of seconds.
        """
        self.server = server
        self._progress = progress
        self._timeout = timeout
        self._attempts = attempts
        self._page_size = page_size
        self._sleep = sleep
        self._turns = asyncio.Semaphore(_AT_A_TIME)
        self._served: Mapping[Kind, ServedKind] | None = None

    async def version(self) -> str | Unseen:
        """The version of the API server, such as `v1.36.2`; empty if it does not say. To be asked first.

        Raises:
            ApiServerError: the cluster does not answer, or refuses the credentials.
        """
        try:
            return str(loaded_object(await self._body("/version"), "/version").get("gitVersion") or "")
        except ApiAnswerError:
            raise  # What answers is no API server.
        except ApiServerError as error:
            why = Unseen(f"/version cannot be read: {error}.", error=error)
            answered(why)
            return why

    async def served(self) -> Mapping[Kind, ServedKind]:
        """The kinds outside the core group that the API server serves. Asked once.

        Raises:
            ApiServerError: they cannot be read.
        """
        if self._served is None:
            self._served = await served_kinds(self.server)
        return self._served

    async def get(self, resource: Resource, namespace: str, name: str) -> Seen[Object]:
        """An object, as a tuple of one; empty if it does not exist."""
        path = resource.path(namespace, name)
        try:
            return (loaded_object(await self._body(path), path),)
        except ApiServerError as error:
            return () if is_missing(error) else unseen(error, resource, "get", namespace)

    async def review(self, resource: Resource, body: Mapping[str, object]) -> Object:
        """The answer to a review, such as a SubjectAccessReview. It is sent once.

        Raises:
            ApiServerError: there is no answer, or it is an error.
        """
        path = resource.path()
        async with self._turns:
            return loaded_object(await self.server.request("POST", path, timeout=self._timeout, body=body), path)

    async def list(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        keep: Callable[[Object], T | None],
        marks: tuple[bytes, ...] = (),
        absent: bool = False,
        again: Callable[[], None] = lambda: None,
        **query: str,
    ) -> Seen[T]:
        """What is kept of all objects of a namespace, or of the cluster. One page at a time is in memory.

        An object that cannot be read is left out: tenants choose what is in their objects.

        Args:
            keep: what is kept of an object; None: nothing.
            marks: an object without any of these bytes is left out unread.
            absent: whether a collection that the cluster does not serve is an empty one.
            again: is called when the list begins, also for the second time.
        """
        found: list[T] = []

        def take(raw: msgspec.Raw) -> None:
            body = bytes(raw)
            kept = _kept(body, keep) if not marks or any(mark in body for mark in marks) else None
            if kept is not None:
                found.append(kept)

        def restart() -> None:
            found.clear()
            again()

        try:
            await self.read(resource, take, restart, namespace, **query)
        except ApiServerError as error:
            return () if absent and is_missing(error) else unseen(error, resource, "list", namespace)
        return tuple(found)

    async def read(
        self,
        resource: Resource,
        take: Callable[[msgspec.Raw], None],
        restart: Callable[[], None],
        namespace: str = "",
        *,
        accept: str = JSON,
        **query: str,
    ) -> None:
        """Call `take` with each object of a list; `restart` before the first one of every attempt.

        Raises:
            ApiServerError: the list cannot be read.
        """
        path = resource.path(namespace)

        async def fetch(asked: Mapping[str, str]) -> Page:
            return decoded(read_page, await self._body(path, asked, accept))

        for attempt in range(1, _ATTEMPTS + 1):
            restart()
            count = 0
            try:
                async with contextlib.aclosing(answers.pages(fetch, query, self._page_size)) as listed:
                    async for page in listed:
                        for raw in page.items or ():
                            take(raw)
                        count += len(page.items or ())
                        self._progress(resource, count)
            except StatusError as error:
                # The continue token is older than the server's history: only a new list shows one state.
                if error.code != GONE or attempt == _ATTEMPTS:
                    raise
            else:
                return

    async def _body(self, path: str, query: Mapping[str, str] | None = None, accept: str = JSON) -> bytes:
        for attempt in range(1, self._attempts):
            asked_to_wait = 0.0
            try:
                return await self._request(path, query, accept)
            except StatusError as error:
                if not error.passing:
                    raise
                asked_to_wait = error.retry_after
            except TooLongError:
                raise  # The next answer would be as long.
            except ApiServerError:
                pass  # the last attempt raises it
            await self._sleep(max(asked_to_wait, _PAUSE * attempt))
        return await self._request(path, query, accept)

    async def _request(self, path: str, query: Mapping[str, str] | None, accept: str) -> bytes:
        async with self._turns:
            return await self.server.request("GET", path, timeout=self._timeout, query=query, accept=accept)


def _kept(body: bytes, keep: Callable[[Object], T | None]) -> T | None:
    try:
        item = loaded(body)
        return keep(item) if isinstance(item, dict) and "metadata" in item else None
    except (ApiAnswerError, WrongFormError, KeyError, TypeError, AttributeError, ValueError):
        return None
