"""A cache of one collection of API objects, kept current by list and watch.

Source: "Efficient detection of changes", https://kubernetes.io/docs/reference/using-api/api-concepts/. Lists leave
`resourceVersion` unset, which requests the most recent state, so a relist is never older than the last watch event.
"""

import asyncio
import contextlib
import dataclasses
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeAlias, TypeVar

from neuron.api import objects
from runtime.api_errors import (
    FORBIDDEN,
    GONE,
    UNAUTHORIZED,
    ApiAnswerError,
    ApiServerError,
    StatusError,
    UnreachableError,
)
from runtime.media_types import JSON
from runtime.once import Problem
from webhook.cluster.api import PARTIAL, ApiServer, decoded, explain, loaded
from webhook.cluster.cached_objects import Holdings
from webhook.cluster.cached_objects import Key as Key  # noqa: PLC0414 - users of caches need their keys
from webhook.cluster.object_reader import Counters, ObjectReader, Projection, key_of
from webhook.cluster.pages import PAGE_SIZE, Collection, Pace, lines, pages

log = logging.getLogger(__name__)

T = TypeVar("T")
OnChange: TypeAlias = Callable[[Key, T | None, T | None], None]
"""Takes the key, the projection before and the projection now; None: the object is not in the cache."""

_DELETED: Final = "DELETED"
_BRIEF: Final = 1.0
"""Seconds. A watch that ends sooner, without an event, does not count as healthy."""
_TOLERATED: Final = 3
"""Consecutive answers of one kind that do not count as a lasting problem yet."""


@dataclasses.dataclass(frozen=True, slots=True)
class Timing:
    """Time-outs and pauses of list-watch, in seconds.

    Attributes:
        list_timeout: for one page.
        watch_timeout: shortest requested duration of a watch. Jitter adds up to the same again, as in client-go, so
            that the watches of many clients do not end together.
        stall: longest silence on a watch. The API server sends a bookmark about once a minute.
        backoff: bound of the pause after the first failure; doubles with each further failure.
        backoff_limit: largest bound.
    """

    list_timeout: float = 60.0
    watch_timeout: float = 300.0
    stall: float = 150.0
    backoff: float = 0.5
    backoff_limit: float = 30.0


@dataclasses.dataclass(frozen=True, slots=True)
class Effects:
    """Clock and random numbers, which tests replace.

    Attributes:
        sleep: waits a number of seconds.
        clock: monotonic seconds.
        jitter: uniform in [0, 1).
    """

    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    clock: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = random.random


class Reflector(Generic[T]):
    """Projections of all objects of one collection, kept current while `run` runs.

    Attributes:
        synced: set when the collection was listed and a watch is open; stays set.
        settled: set with `synced`, or when the API server keeps refusing until an operator acts.
        read: objects that lists have read so far. While it grows, a list makes progress.
        needed: whether the webhook is not ready before the first list; without the right to list, another cache does
            without its objects.
    """

    def __init__(
        self,
        server: ApiServer,
        collection: Collection,
        projection: Projection[T],
        *,
        timing: Timing | None = None,
        effects: Effects | None = None,
        page_size: int = PAGE_SIZE,
        needed: bool = True,
    ) -> None:
        self.resource = collection.resource
        self.counters = Counters()
        self.synced = asyncio.Event()
        self.settled = asyncio.Event()
        self.read = 0
        self.needed = needed
        self._server = server
        self._collection = collection
        self._page_size = page_size
        self._timing = timing or Timing()
        self._effects = effects or Effects()
        self._reader = ObjectReader(collection.resource, projection, self.counters)
        self._bounds = projection.bounds
        self._objects: Holdings[T] = Holdings(projection.bounds)
        self._problem = Problem(log)
        self._callbacks: list[OnChange[T]] = []
        self._version = ""
        self._heard = float("-inf")
        self._verb = "list"
        self._attempt = 0
        self._statuses = 0
        self._doubtful = False
        self._gone = False

    def __len__(self) -> int:
        return len(self._objects)

    @property
    def problem(self) -> str:
        """Why the cache may be behind, in words for an operator; empty while it is current."""
        return self._problem.text

    def values(self) -> tuple[T, ...]:
        return tuple(self._objects.values())

    def namespaces_of(self, name: str) -> list[str]:
        """Namespaces that have an object of this name. Takes time for each object."""
        return self._objects.namespaces_of(name)

    @property
    def age(self) -> float:
        """Seconds since the last list, event or bookmark (about one a minute); infinite before the first list."""
        return self._effects.clock() - self._heard

    def get(self, namespace: str, name: str) -> T | None:
        """The projection of one object; the same Python object until it changes."""
        return self._objects.get((namespace, name))

    def on_change(self, callback: OnChange[T]) -> None:
        """Call `callback` in the event loop for each projection that is added, changed or removed."""
        self._callbacks.append(callback)

    def observe(self, event: str, item: dict[str, Any]) -> None:
        """Apply an event of a watch: `ADDED`, `MODIFIED` or `DELETED`, with its object."""
        self._set(key_of(item), None if event == _DELETED else self._reader.project(item))

    async def run(self) -> None:
        """List and watch, again after every failure, until it is cancelled."""
        while True:
            asked_to_wait = 0.0
            try:
                if not self._version:
                    await self._list()
                if await self._watch():
                    continue
                self._attempt += 1
            except ApiServerError as error:
                self._fail(error)
                asked_to_wait = error.retry_after if isinstance(error, StatusError) else 0.0
            except Exception as error:
                log.exception("the cache of %s starts over after a defect", self.resource)
                self._fail(ApiAnswerError(f"{type(error).__name__}: {error}"))
            await self._effects.sleep(max(asked_to_wait, self._backoff()))

    async def _list(self) -> None:
        self._verb = "list"
        self.counters.lists += 1
        try:
            fresh, version = await self._collect(self._page_size)
        except StatusError as error:
            if error.code != GONE:
                raise
            # The continue token is older than the server's history. A list in one page needs no token.
            self.counters.expired += 1
            fresh, version = await self._collect(0)
        await self._replace(fresh)
        self._version = version
        self._heard = self._effects.clock()

    async def _collect(self, limit: int) -> tuple[Holdings[T], str]:
        fresh = Holdings(self._bounds)
        version, pace = "", Pace()
        time_out = self._timing.list_timeout
        async with contextlib.aclosing(pages(self._server, self._collection, limit, time_out)) as listed:
            async for page in listed:
                for raw in page.items or ():
                    key, _, projection = self._reader.read(memoryview(raw))
                    if projection is not None:
                        before = self._objects.get(key)
                        fresh.put(key, before if before == projection else projection)
                    self.read += 1
                    await pace.after(memoryview(raw).nbytes)
                version = page.metadata.resourceVersion
        return fresh, version

    async def _replace(self, fresh: Holdings[T]) -> None:
        """Replace the cache with a list, and call back for each difference."""
        known, self._objects = self._objects, fresh
        pace = Pace()
        for key in [key for key in known.keys() if key not in fresh]:  # noqa: SIM118 - not a dictionary
            self._tell(key, known.get(key), None)
            await pace.after(0)
        for key, after in fresh.items():
            before = known.get(key)
            if before is not after:
                self._tell(key, before, after)
            await pace.after(0)

    async def _watch(self) -> bool:
        """Apply changes until the stream ends.

        Returns:
            Whether the watch was healthy; the next one may then follow without a pause.
        """
        self._verb = "watch"
        self.counters.watches += 1
        query = self._collection.query | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(round(self._timing.watch_timeout * (1 + self._effects.jitter()))),
        }
        begun = self._effects.clock()
        delivered = False
        pace = Pace()
        steady: asyncio.TimerHandle | None = None
        try:
            accept = PARTIAL if self._collection.metadata_only else JSON
            stream = self._server.stream(self._collection.path, query=query, stall=self._timing.stall, accept=accept)
            async with stream as chunks:
                self.synced.set()
                self.settled.set()
                if not self._doubtful:
                    self._recover()
                self._doubtful = True
                steady = asyncio.get_running_loop().call_later(_BRIEF, self._recover)
                async with contextlib.aclosing(lines(chunks)) as events:
                    async for line in events:
                        self._take(line)
                        delivered = True
                        self._recover()
                        await pace.after(len(line))
        finally:
            if steady is not None:
                steady.cancel()
            healthy = delivered or self._effects.clock() - begun >= _BRIEF
            if healthy:
                self._attempt = self._statuses = 0
                self._doubtful = False
        return healthy

    def _take(self, line: bytes) -> None:
        cut = len(line) == objects.WINDOW and not line.endswith(b"}")  # see `lines`
        kind, raw = decoded(objects.read_beginning if cut else objects.read_event, line)
        if kind == "ERROR":
            self._version = ""
            raise StatusError.from_status(loaded(raw))
        if kind == "BOOKMARK":
            self.counters.bookmarks += 1
            self._version = loaded(raw)["metadata"]["resourceVersion"]
        else:
            self.counters.events += 1
            key, version, projection = self._reader.read(memoryview(raw), deleted=kind == _DELETED)
            self._set(key, projection)
            self._version = version or self._version
        self._heard = self._effects.clock()

    def _set(self, key: Key, projection: T | None) -> None:
        before = self._objects.get(key)
        if before == projection:
            return
        after = None
        if projection is None:
            self._objects.remove(key)
        else:
            after = self._objects.put(key, projection)
        if before != after:
            self._tell(key, before, after)

    def _tell(self, key: Key, before: T | None, after: T | None) -> None:
        for callback in self._callbacks:
            try:
                callback(key, before, after)
            except Exception:
                # A defect in a callback. The list continues, or no later object would be seen.
                log.exception("a change of %s %s was not taken in", self.resource, "/".join(filter(None, key)))

    def _recover(self) -> None:
        if self.problem:
            log.info("the cache of %s is current again", self.resource)
            self._problem.set("")

    def _fail(self, error: ApiServerError) -> None:
        gone = isinstance(error, StatusError) and error.code == GONE
        if gone and not self._gone:
            # A new API server, after an outage: it works, and the list that it asks for needs no long pause.
            self._attempt = 0
        self._gone = gone
        self._attempt += 1
        self._statuses += isinstance(error, StatusError)
        if not self._resumable(error):
            self._version = ""
        if gone:
            self.counters.expired += 1
        else:
            self.counters.failures += 1
        if self._ordinary(error):
            return
        self._problem.set(explain(error, self._verb, self.resource, self._collection.namespace, self._collection.name))
        # An API server that starts has not read all roles yet, and refuses for a moment.
        if isinstance(error, StatusError) and error.final and self._statuses >= _TOLERATED:
            self.settled.set()

    def _ordinary(self, error: ApiServerError) -> bool:
        """Whether watches end like this now and then; it is a problem only if it repeats."""
        if self._verb != "watch":
            return False
        if isinstance(error, StatusError):
            # The resourceVersion is older than the server's history.
            return error.code == GONE and self._attempt <= _TOLERATED
        # The server, or a proxy before it, was restarted.
        return isinstance(error, UnreachableError) and self._attempt == 1

    def _resumable(self, error: ApiServerError) -> bool:
        """Whether a watch may resume from the last resourceVersion."""
        if isinstance(error, StatusError):
            # A lasting error may be about this resourceVersion; a list does not use it.
            passing = error.passing and self._statuses < _TOLERATED
            return passing or error.code in (UNAUTHORIZED, FORBIDDEN)
        return isinstance(error, UnreachableError)

    def _backoff(self) -> float:
        """Seconds: full jitter, between 0 and a bound that doubles with each failure."""
        bound = self._timing.backoff * 2.0 ** min(self._attempt - 1, 32)
        return self._effects.jitter() * min(bound, self._timing.backoff_limit)
