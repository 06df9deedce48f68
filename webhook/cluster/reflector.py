"""A cache of one collection of API objects, kept current by list and watch.

What the API server promises, and what is relied on here, is in "Efficient detection of changes"
(https://kubernetes.io/docs/reference/using-api/api-concepts/). Lists leave `resourceVersion` unset, which asks for
the most recent state: a relist never goes back behind what a watch has shown already.
"""

import asyncio
import contextlib
import dataclasses
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Generic, TypeAlias, TypeVar

from neuron import api_objects
from webhook.cluster.api import (
    FORBIDDEN,
    GONE,
    UNAUTHORIZED,
    ApiServer,
    ApiServerError,
    Resource,
    StatusError,
    UnreachableError,
    UnreadableError,
    decoded,
    explain,
    loaded,
)
from webhook.cluster.holdings import Bounds, Holdings
from webhook.cluster.holdings import Key as Key  # noqa: PLC0414 - who uses caches needs their keys
from webhook.cluster.object_reader import Counters, ObjectReader, key_of
from webhook.cluster.pages import LONGEST_OBJECT, Pace, lines, pages

log = logging.getLogger(__name__)

T = TypeVar("T")
OnChange: TypeAlias = Callable[[Key, T | None, T | None], None]
"""Takes the key, what was known before and what is known now; None where there is nothing."""

_DELETED: Final = "DELETED"
_BRIEF: Final = 1.0
"""A watch that ends sooner, without having shown anything, is no sign of health."""
_PATIENCE: Final = 3
"""So many answers of one kind in a row are taken as chance."""


@dataclasses.dataclass(frozen=True, slots=True)
class Timing:
    """Pace of list-watch, in seconds.

    Attributes:
        list_timeout: longest wait for one page.
        watch_timeout: shortest time for which a watch is asked; jittered up to twice that, as in client-go, so that
            the watches of many clients do not end together.
        stall: longest silence on a watch. The API server sends a bookmark about once a minute.
        backoff: bound of the pause after a first failure; doubles with each further one.
        backoff_limit: bound of that bound.
    """

    list_timeout: float = 60.0
    watch_timeout: float = 300.0
    stall: float = 150.0
    backoff: float = 0.5
    backoff_limit: float = 30.0


@dataclasses.dataclass(frozen=True, slots=True)
class Effects:
    """Time and chance, so that tests can hold them still.

    Attributes:
        sleep: waits that many seconds.
        clock: monotonic seconds.
        jitter: uniform in [0, 1).
    """

    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    clock: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = random.random


class Reflector(Generic[T]):
    """Projections of all objects of one collection, kept current while `run` runs.

    Attributes:
        resource: what is watched.
        counters: what happened so far.
        synced: set once the collection was listed and a watch stands; from then on for good.
        settled: set with `synced`, or once the API server keeps refusing what only an operator can mend.
        problem: why the cache may be behind, in words for an operator; empty while it is current.
        read: objects of the first list that were read so far; it goes on where this grows.
    """

    def __init__(
        self,
        server: ApiServer,
        resource: Resource,
        project: Callable[[dict[str, Any]], T | None],
        *,
        namespace: str = "",
        name: str = "",
        query: Mapping[str, str] | None = None,
        page_size: int = 250,
        longest: int = LONGEST_OBJECT,
        unreadable: T | None = None,
        bounds: Bounds[T] | None = None,
        timing: Timing | None = None,
        effects: Effects | None = None,
    ) -> None:
        """Prepare the cache; `run` fills it.

        Args:
            server: where the objects are.
            resource: what to watch.
            project: makes what is kept of an object, a value that compares by content; None: not of interest.
            namespace: where; empty: in all namespaces.
            name: the only object to watch; a role may be bound to it. Empty: all.
            query: further query parameters of list and watch, such as `fieldSelector`.
            page_size: objects in a page of the list.
            longest: bytes of an object; a longer one counts as unreadable.
            unreadable: what is kept of an object that cannot be read; None: nothing.
            bounds: how much is kept in all; None: everything.
            timing: pace.
            effects: time and chance.
        """
        self.resource = resource
        self.counters = Counters()
        self.synced = asyncio.Event()
        self.settled = asyncio.Event()
        self.problem = ""
        self.read = 0
        self._server = server
        self._namespace = namespace
        self._name = name
        self._query = dict(query or {}) | ({"fieldSelector": f"metadata.name={name}"} if name else {})
        self._page_size = page_size
        self._timing = timing or Timing()
        self._effects = effects or Effects()
        self._reader = ObjectReader(resource, project, self.counters, longest, unreadable)
        self._bounds = bounds
        self._objects: Holdings[T] = Holdings(bounds)
        self._callbacks: list[OnChange[T]] = []
        self._version = ""
        self._heard = float("-inf")
        self._verb = "list"
        self._attempt = 0
        self._statuses = 0
        self._doubtful = False

    def __len__(self) -> int:
        return len(self._objects)

    def values(self) -> tuple[T, ...]:
        """All projections."""
        return tuple(self._objects.values())

    @property
    def age(self) -> float:
        """Seconds since the API server last said what there is: a list, an event, or the bookmark of each minute.

        Infinite before the first list.
        """
        return self._effects.clock() - self._heard

    def get(self, namespace: str, name: str) -> T | None:
        """The projection of one object: the very same for as long as it does not change."""
        return self._objects.get((namespace, name))

    def on_change(self, callback: OnChange[T]) -> None:
        """Have `callback` called, in the event loop, for each projection that appears, changes or goes."""
        self._callbacks.append(callback)

    def observe(self, event: str, item: dict[str, Any]) -> None:
        """Take in an object as a watch shows it: `ADDED`, `MODIFIED` or `DELETED`."""
        self._set(key_of(item), None if event == _DELETED else self._reader.project(item))

    async def run(self) -> None:
        """List, watch, and start over as often as it takes. Ends only when it is cancelled."""
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
                self._fail(UnreadableError(f"{type(error).__name__}: {error}"))
            await self._effects.sleep(max(asked_to_wait, self._backoff()))

    async def _list(self) -> None:
        self._verb = "list"
        self.counters.lists += 1
        try:
            fresh, version = await self._collect(self._page_size)
        except StatusError as error:
            if error.code != GONE:
                raise
            # The continue token outlived the history it points into; one piece is consistent in itself.
            self.counters.expired += 1
            fresh, version = await self._collect(0)
        await self._replace(fresh)
        self._version = version
        self._heard = self._effects.clock()

    async def _collect(self, limit: int) -> tuple[Holdings[T], str]:
        fresh = Holdings(self._bounds)
        version, pace = "", Pace()
        source = (self._server, self.resource, self._namespace, self._query)
        async with contextlib.aclosing(pages(*source, limit=limit, patience=self._timing.list_timeout)) as listed:
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
        """Take a whole list in, and tell what it changed."""
        known, self._objects = self._objects, fresh
        pace = Pace()
        for key in [key for key in known.keys() if key not in fresh]:  # noqa: SIM118 - it is no dictionary
            self._tell(key, known.get(key), None)
            await pace.after(0)
        for key, after in list(fresh.items()):
            before = known.get(key)
            if before is not after:
                self._tell(key, before, after)
            await pace.after(0)

    async def _watch(self) -> bool:
        """Follow changes until the stream ends; whether it looked healthy, so that the next may follow at once."""
        self._verb = "watch"
        self.counters.watches += 1
        query = self._query | {
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
            async with self._server.stream(
                self.resource.path(self._namespace), query=query, stall=self._timing.stall
            ) as chunks:
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
        cut = len(line) == api_objects.WINDOW and not line.endswith(b"}")  # see `lines`
        kind, raw = decoded(api_objects.read_beginning if cut else api_objects.read_event, line)
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
                # A defect of ours; the list goes on, or no object after this one would ever be seen.
                log.exception("a change of %s %s was not taken in", self.resource, "/".join(filter(None, key)))

    def _recover(self) -> None:
        if self.problem:
            log.info("the cache of %s is current again", self.resource)
            self.problem = ""

    def _fail(self, error: ApiServerError) -> None:
        self._attempt += 1
        self._statuses += isinstance(error, StatusError)
        if not self._resumable(error):
            self._version = ""
        if isinstance(error, StatusError) and error.code == GONE:
            self.counters.expired += 1
        else:
            self.counters.failures += 1
        if self._ordinary(error):
            return
        problem = explain(error, self._verb, self.resource, self._namespace, self._name)
        if problem != self.problem:
            self.problem = problem
            log.warning("%s", problem)
        # An API server that starts refuses for a moment what it has not read the roles for yet.
        if isinstance(error, StatusError) and error.final and self._statuses >= _PATIENCE:
            self.settled.set()

    def _ordinary(self, error: ApiServerError) -> bool:
        """Whether this is how a watch ends now and then, and no problem unless it goes on."""
        if self._verb != "watch":
            return False
        if isinstance(error, StatusError):
            # It was away for longer than the server keeps history.
            return error.code == GONE and self._attempt <= _PATIENCE
        # Something on the way, or the server itself, was restarted.
        return isinstance(error, UnreachableError) and self._attempt == 1

    def _resumable(self, error: ApiServerError) -> bool:
        """Whether the last resourceVersion can still be good for a watch."""
        if isinstance(error, StatusError):
            # An error that stays may be about this very version; a list is free of it.
            passing = error.passing and self._statuses < _PATIENCE
            return passing or error.code in (UNAUTHORIZED, FORBIDDEN)
        return isinstance(error, UnreachableError)

    def _backoff(self) -> float:
        """Full jitter: anything between nothing and a bound that doubles."""
        bound = self._timing.backoff * 2.0 ** min(self._attempt - 1, 32)
        return self._effects.jitter() * min(bound, self._timing.backoff_limit)
