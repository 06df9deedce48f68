"""Follows one collection of API objects: lists it, and watches it from where the last list or watch ended.

What follows it keeps the objects: the webhook's caches, the driver's view of its Node and of its ResourceSlices.
Source: "Efficient detection of changes", https://kubernetes.io/docs/reference/using-api/api-concepts/. A list is never
older than the last watch event (see `answers`).
"""

import asyncio
import contextlib
import dataclasses
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Final

from runtime import answers
from runtime.answers import Pace, pages
from runtime.api_server import (
    FORBIDDEN,
    GONE,
    JSON,
    PARTIAL,
    PARTIAL_LIST,
    UNAUTHORIZED,
    ApiServer,
    ApiServerError,
    Collection,
    StatusError,
    UnreachableError,
    decoded,
    loaded_object,
)
from runtime.retries import Backoff

DELETED: Final = "DELETED"
"""The type of an event about an object that no longer exists."""

LONGEST_OBJECT: Final = 12 * 1024 * 1024
"""Bytes of one object. etcd stores 1.5 MiB, which may be several times that as JSON. A longer object is left out."""

PAGE_SIZE: Final = 250
"""Objects per page of a list."""

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


@dataclasses.dataclass(slots=True)
class Counters:
    """Counters since the start, for metrics."""

    lists: int = 0
    watches: int = 0
    events: int = 0
    bookmarks: int = 0
    expired: int = 0
    failures: int = 0
    unreadable: int = 0


class Watching:
    """Lists and watches of one collection.

    The user calls `list` while `version` is empty, then `events`, and again after each end. It passes errors of both to
    `failed`, and waits for `pause` seconds if the last watch was not healthy.

    Attributes:
        version: the resourceVersion at which the next watch begins; empty: a list is needed first. The user sets it to
            the version of each object that it has taken in from `events`.
        verb: `list` or `watch`: the last call.
        healthy: whether the last watch delivered something or lasted. The next one may then follow without a pause.
        heard: time of the last list, event or bookmark by the clock of `effects`; -inf before.
    """

    def __init__(
        self,
        server: ApiServer,
        collection: Collection,
        *,
        timing: Timing | None = None,
        effects: Effects | None = None,
        page_size: int = PAGE_SIZE,
    ) -> None:
        self.collection = collection
        self.version = ""
        self.verb = "list"
        self.healthy = False
        self.heard = float("-inf")
        self.counters = Counters()
        self._server = server
        self._page_size = page_size
        self._timing = timing or Timing()
        self._effects = effects or Effects()
        # Full jitter: between 0 and the bound.
        jitter = self._effects.jitter
        self._backoff = Backoff(self._timing.backoff, self._timing.backoff_limit, lambda bound: jitter() * bound)
        self._asked_to_wait = 0.0
        self._statuses = 0
        self._doubtful = False
        self._gone = False

    # --- reading --------------------------------------------------------------------------------------------

    async def list(self, take: Callable[[memoryview], None], restart: Callable[[], None]) -> None:
        """Read the whole collection.

        Args:
            take: gets each object as JSON.
            restart: called if the list begins again: what `take` got so far is void.

        Raises:
            ApiServerError: it cannot be read.
        """

        self.verb = "list"
        self.counters.lists += 1
        try:
            version = await self._read(take, self._page_size)
        except StatusError as error:
            if error.code != GONE:
                raise
            # The continue token is older than the server's history. A list in one page needs no token.
            self.counters.expired += 1
            restart()
            version = await self._read(take, 0)
        self.version = version
        self.heard = self._effects.clock()

    async def _read(self, take: Callable[[memoryview], None], limit: int) -> str:
        version, pace = "", Pace()
        async with contextlib.aclosing(pages(self._page, self.collection.query, limit)) as listed:
            async for page in listed:
                for raw in page.items or ():
                    view = memoryview(raw)
                    take(view)
                    await pace.after(view.nbytes)
                version = page.metadata.resourceVersion
        return version

    async def _page(self, query: Mapping[str, str]) -> answers.Page:
        answer = await self._server.request(
            "GET",
            self.collection.path,
            timeout=self._timing.list_timeout,
            query=query,
            accept=PARTIAL_LIST if self.collection.metadata_only else JSON,
        )
        steps = answers.steps(answer)
        page = decoded(next, steps)
        while page is None:
            await asyncio.sleep(0)
            page = decoded(next, steps)
        return page

    async def events(
        self, opened: Callable[[], None] = lambda: None, sound: Callable[[], None] = lambda: None
    ) -> AsyncGenerator[tuple[str, bytes], None]:
        """Type and object of each change since `version`, until the server ends the watch. Close it after use.

        Of an object longer than `LONGEST_OBJECT`, only the beginning is returned, which names it.

        Args:
            opened: called when the server has accepted the watch.
            sound: called when the watch turns out to work: with each event or bookmark, after a second without one,
                and when it is accepted, unless the last one was accepted and then failed.

        Raises:
            ApiServerError: the watch is refused, breaks off, or delivers an error.
        """
        self.verb = "watch"
        self.counters.watches += 1
        query = self.collection.query | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self.version,
            "timeoutSeconds": str(round(self._timing.watch_timeout * (1 + self._effects.jitter()))),
        }
        accept = PARTIAL if self.collection.metadata_only else JSON
        begun = self._effects.clock()
        delivered = False
        pace = Pace()
        steady: asyncio.TimerHandle | None = None
        try:
            stream = self._server.stream(self.collection.path, query=query, stall=self._timing.stall, accept=accept)
            async with stream as chunks:
                opened()
                if not self._doubtful:
                    sound()
                self._doubtful = True
                steady = asyncio.get_running_loop().call_later(_BRIEF, sound)
                lines = answers.lines(chunks, LONGEST_OBJECT, answers.WINDOW)
                async with contextlib.aclosing(lines):
                    async for line in lines:
                        kind, raw = self._event(line)
                        if kind == "BOOKMARK":
                            self.counters.bookmarks += 1
                            self.version = answers.identity(raw).version or self.version
                        else:
                            self.counters.events += 1
                            yield kind, raw
                        self.heard = self._effects.clock()
                        delivered = True
                        sound()
                        await pace.after(len(line))
        finally:
            if steady is not None:
                steady.cancel()
            self.healthy = delivered or self._effects.clock() - begun >= _BRIEF
            if self.healthy:
                self._backoff.reset()
                self._statuses = 0
                self._doubtful = False
        self._asked_to_wait = 0.0
        if not self.healthy:
            self._backoff.failed()

    def _event(self, line: bytes) -> tuple[str, bytes]:
        cut = len(line) == answers.WINDOW and not line.endswith(b"}")  # see `answers.lines`
        kind, raw = decoded(answers.read_beginning if cut else answers.read_event, line)
        if kind == "ERROR":
            self.version = ""
            raise StatusError.from_status(loaded_object(raw))
        return kind, raw

    # --- failures -------------------------------------------------------------------------------------------

    @property
    def pause(self) -> float:
        """Seconds to wait before the next attempt: as long as the server asked for, if it did, or longer."""
        return max(self._asked_to_wait, self._backoff.pause)

    def failed(self, error: ApiServerError) -> bool:
        """Note an error of a list or watch, and decide whether the next watch resumes or a list is needed.

        Returns:
            Whether watches end like this now and then: it is a problem only if it repeats.
        """
        gone = isinstance(error, StatusError) and error.code == GONE
        if gone and not self._gone:
            # A new API server, after an outage: it works, and the list that it asks for needs no long pause.
            self._backoff.reset()
        self._gone = gone
        self._backoff.failed()
        self._asked_to_wait = error.retry_after
        self._statuses += isinstance(error, StatusError)
        if not self._resumable(error):
            self.version = ""
        if gone:
            self.counters.expired += 1
        else:
            self.counters.failures += 1
        return self._ordinary(error)

    def lasting(self, error: ApiServerError) -> bool:
        """Whether the API server keeps refusing until an operator acts.

        An API server that starts has not read all roles yet, and refuses for a moment.
        """
        return isinstance(error, StatusError) and error.final and self._statuses >= _TOLERATED

    def _ordinary(self, error: ApiServerError) -> bool:
        if self.verb != "watch":
            return False
        if isinstance(error, StatusError):
            # The resourceVersion is older than the server's history.
            return error.code == GONE and self._backoff.failures <= _TOLERATED
        # The server, or a proxy before it, was restarted.
        return isinstance(error, UnreachableError) and self._backoff.failures == 1

    def _resumable(self, error: ApiServerError) -> bool:
        """Whether a watch may resume from the last resourceVersion."""
        if isinstance(error, StatusError):
            # A lasting error may be about this resourceVersion; a list does not use it.
            passing = error.passing and self._statuses < _TOLERATED
            return passing or error.code in (UNAUTHORIZED, FORBIDDEN)
        return isinstance(error, UnreachableError)
