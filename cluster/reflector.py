"""A cache of one collection of API objects, kept current by list and watch (`runtime.watching`).

Objects are read one at a time: one that cannot be read does not affect the others.
"""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeAlias, TypeVar

from cluster.bounded_objects import Bounds, Holdings
from cluster.bounded_objects import Key as Key  # noqa: PLC0414 - users of caches need their keys
from runtime.answers import WINDOW, Pace, identity
from runtime.api_server import (
    NOT_FOUND,
    ApiAnswerError,
    ApiServer,
    ApiServerError,
    Collection,
    Resource,
    StatusError,
    explain,
    loaded,
)
from runtime.retries import Once, RetryProblem
from runtime.watching import DELETED, LONGEST_OBJECT, PAGE_SIZE, Counters, Effects, Timing, Watching

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Projection(Generic[T]):
    """What a cache keeps of each object.

    Attributes:
        project: returns a value that compares by content; None: the object is not kept.
        unreadable: is kept for an object that cannot be read; None: nothing is kept.
        longest: bytes of an object; a longer one counts as unreadable.
        bounds: how many bytes are kept in all; None: no bound.
    """

    project: Callable[[dict[str, object]], T | None]
    unreadable: T | None = None
    longest: int = LONGEST_OBJECT
    bounds: Bounds[T] | None = None


class ObjectReader(Generic[T]):
    """Makes projections of objects.

    Tenants choose the content of their objects: depth, length, numbers and characters that parsers refuse. One such
    object must not keep all others out of the cache.
    """

    def __init__(self, resource: Resource, projection: Projection[T], counters: Counters) -> None:
        self._resource = resource
        self._projection = projection
        self._counters = counters
        self._named: Once[Key] = Once()

    def read(self, raw: memoryview, *, deleted: bool = False) -> tuple[Key, str, T | None]:
        """Key, resourceVersion and projection of an object; no projection of a deleted object.

        Key and resourceVersion are empty if they cannot be read.
        """
        try:
            if raw.nbytes > self._projection.longest:
                raise ApiAnswerError(f"it is longer than {self._projection.longest} bytes")
            item = loaded(raw)
            key, version = key_of(item), item["metadata"].get("resourceVersion", "")
        except (ApiServerError, KeyError, TypeError, AttributeError) as error:
            found = identity(bytes(raw[:WINDOW]))
            key = found.namespace, found.name
            return key, found.version, None if deleted or not found.name else self._left_out(key, error)
        return key, version, None if deleted else self.project(item)

    def project(self, item: dict[str, object]) -> T | None:
        """The projection of a decoded object."""
        try:
            return self._projection.project(item)
        except Exception as error:  # noqa: BLE001 - see the class
            return self._left_out(key_of(item), error)

    def _left_out(self, key: Key, error: Exception) -> T | None:
        """Count and log an object that cannot be read: its name, without its content."""
        self._counters.unreadable += 1
        if self._named.first(key):
            why = str(error) if isinstance(error, ApiAnswerError) else type(error).__name__
            log.warning("cannot read %s %s: %s", self._resource, "/".join(filter(None, key)), why)
        return self._projection.unreadable


def key_of(item: Mapping[str, Any]) -> Key:
    """Namespace and name of an object."""
    metadata = item["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


_ABSENT_SECONDS: Final = 300.0
"""Between two looks for a collection that the API server does not serve."""

OnChange: TypeAlias = Callable[[Key, T | None, T | None], None]
"""Takes the key, the projection before and the projection now; None: the object is not in the cache."""


class Reflector(Generic[T]):
    """Projections of all objects of one collection, kept current while `run` runs.

    Attributes:
        synced: set when the collection was listed and a watch is open; stays set.
        settled: set with `synced`, or when the API server keeps refusing until an operator acts.
        read: objects that lists have read so far. While it grows, a list makes progress.
        needed: whether the webhook is not ready before the first list; without the right to list, another cache does
            without its objects.
        installed: whether the API server always serves the collection. If not, it is empty while it is not served.
        resource: in the version that is read.
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
        installed: bool = True,
        older: Collection | None = None,
    ) -> None:
        """Prepare; `run` fills it. `older`: a version that is read where that of `collection` is not served."""
        self._effects = effects or Effects()
        self._watching = Watching(server, collection, timing=timing, effects=self._effects, page_size=page_size)
        self.counters = self._watching.counters
        self.synced = asyncio.Event()
        self.settled = asyncio.Event()
        self.read = 0
        self.needed = needed
        self.installed = installed
        self._versions = [collection, *([older] if older else [])]
        """In the order in which they are tried, from the one that is read."""
        self._missing = 0
        self._reader = ObjectReader(collection.resource, projection, self.counters)
        self._bounds = projection.bounds
        self._objects: Holdings[T] = Holdings(projection.bounds)
        self._problem = RetryProblem(log)
        self._callbacks: list[OnChange[T]] = []
        self._synced_callbacks: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._objects)

    @property
    def resource(self) -> Resource:
        return self._watching.collection.resource

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
        return self._effects.clock() - self._watching.heard

    def get(self, namespace: str, name: str) -> T | None:
        """The projection of one object; the same Python object until it changes."""
        return self._objects.get((namespace, name))

    def on_change(self, callback: OnChange[T]) -> None:
        """Call `callback` in the event loop for each projection that is added, changed or removed."""
        self._callbacks.append(callback)

    def on_synced(self, callback: Callable[[], None]) -> None:
        """Call `callback` in the event loop when all objects have been listed, and again after each later list."""
        self._synced_callbacks.append(callback)

    def observe(self, event: str, item: dict[str, object]) -> None:
        """Apply an event of a watch: `ADDED`, `MODIFIED` or `DELETED`, with its object."""
        self._set(key_of(item), None if event == DELETED else self._reader.project(item))

    async def run(self) -> None:
        """List and watch, again after every failure, until it is cancelled."""
        while True:
            try:
                if not self._watching.version:
                    await self._list()
                await self._watch()
                if self._watching.healthy:
                    continue
            except ApiServerError as error:
                # Its CustomResourceDefinition is not installed.
                if not self.installed and isinstance(error, StatusError) and error.code == NOT_FOUND:
                    if self._moved():
                        continue
                    await self._replace(Holdings(self._bounds))
                    self._opened()
                    self._recover()
                    await self._effects.sleep(_ABSENT_SECONDS)
                    continue
                self._fail(error)
            except Exception as error:
                log.exception("the cache of %s starts over after a defect", self.resource)
                self._fail(ApiAnswerError(f"{type(error).__name__}: {error}"))
            await self._effects.sleep(self._watching.pause)

    async def _list(self) -> None:
        fresh: Holdings[T] = Holdings(self._bounds)

        def restart() -> None:
            nonlocal fresh
            fresh = Holdings(self._bounds)

        def take(raw: memoryview) -> None:
            key, _, projection = self._reader.read(raw)
            if projection is not None:
                before = self._objects.get(key)
                fresh.put(key, before if before == projection else projection)
            self.read += 1

        await self._watching.list(take, restart)
        await self._replace(fresh)

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

    async def _watch(self) -> None:
        """Apply changes until the watch ends."""
        async with contextlib.aclosing(self._watching.events(self._opened, self._recover)) as events:
            async for kind, raw in events:
                self._take(kind, raw)

    def _take(self, kind: str, raw: bytes) -> None:
        key, version, projection = self._reader.read(memoryview(raw), deleted=kind == DELETED)
        self._set(key, projection)
        self._watching.version = version or self._watching.version

    def _opened(self) -> None:
        self._missing = 0
        self.synced.set()
        self.settled.set()
        for callback in self._synced_callbacks:
            callback()

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

    def _moved(self) -> bool:
        """Go on to another version of the collection; False if none of them is served."""
        self._missing += 1
        self._versions = [*self._versions[1:], self._versions[0]]
        self._watching.collection = self._versions[0]
        self._watching.version = ""
        if self._missing < len(self._versions):
            return True
        self._missing = 0
        return False

    def _fail(self, error: ApiServerError) -> None:
        if self._watching.failed(error):
            return
        watched = self._watching.collection
        self._problem.set(explain(error, self._watching.verb, self.resource, watched.namespace, watched.name))
        if self._watching.lasting(error):
            self.settled.set()
