"""Reads request bodies completely, with a limit on size, time and memory, which large bodies reserve.

Exceptions: `BodyError` > `BodyTooLargeError`, `BodyTooManyError`, `BodyTooSlowError`, `ClientGoneError`.
"""

import asyncio
import contextlib
import dataclasses
import gc
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Final, TypeVar

from starlette.types import Message, Receive

from conversion.objects.nesting import BEGINNING
from webhook.edge.reviews import namespace_of

Result = TypeVar("Result")


Declared = Callable[[], int | None]
"""Returns the declared size of a body in bytes (Content-Length); None if chunked. Called for large bodies only."""
_SHARE: Final = 2
"""One owner may hold at most this fraction: 1/2."""


class BodyError(Exception):
    """The body was not read completely.

    Attributes:
        start: the beginning of the body, as far as it was read.
    """

    start = b""


@dataclasses.dataclass(eq=False)
class BodyTooLargeError(BodyError):
    """The body is larger than `limit` bytes. `unread`: whether more of it is expected."""

    limit: int
    _: dataclasses.KW_ONLY
    unread: bool


@dataclasses.dataclass(eq=False, kw_only=True)
class BodyTooManyError(BodyError):
    """Too many bodies are being read: their memory is used up.

    Attributes:
        unread: whether more of the body is expected.
        given_up: whether the body was discarded to free memory; then its connection should close too.
    """

    unread: bool
    given_up: bool = False


@dataclasses.dataclass(eq=False)
class BodyTooSlowError(BodyError):
    """The body was not complete within `seconds`."""

    seconds: float


class ClientGoneError(BodyError):
    """The client closed the connection before the body was complete."""


def _current() -> asyncio.Task[object]:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - coroutines run in tasks; this is for the type checker
    return task


class TimeOuts:
    """Cancels waits after one common time-out.

    All waits have the same time-out, so the order of arrival is the order of deadlines: one timer for the oldest wait
    is enough, and a short wait costs two dictionary operations instead of a timer.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: dict[asyncio.Task[object], float] = {}
        self._exceeded: dict[asyncio.Task[object], BodyError] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, work: Coroutine[object, object, Result]) -> Result:
        """Run `work` in the calling task and return its result.

        Raises:
            BodyTooSlowError: `work` was cancelled after the time-out.
            BodyError: `interrupt` cancelled `work`.
        """
        task = _current()
        self._since[task] = time.monotonic()
        if self._timer is None:
            self._arm(self._seconds)
        try:
            return await work
        except asyncio.CancelledError:
            if task not in self._exceeded:
                raise
            task.uncancel()
            raise self._exceeded.pop(task) from None
        finally:
            self._since.pop(task, None)

    def pause(self) -> None:
        """Stop the clock of the current task: it does not wait for its client."""
        self._since.pop(_current(), None)

    def resume(self) -> None:
        """Start the clock of the current task again: it waits for its client."""
        self._since[_current()] = time.monotonic()
        if self._timer is None:
            self._arm(self._seconds)

    def interrupt(self, task: asyncio.Task[object], error: BodyError) -> None:
        """End the `wait` of another task with an error."""
        if task not in self._exceeded:
            self._since.pop(task, None)
            self._exceeded[task] = error
            task.cancel()

    def _arm(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._interrupt)

    def _interrupt(self) -> None:
        self._timer = None
        now = time.monotonic()
        for task, since in list(self._since.items()):
            left = since + self._seconds - now
            if left > 0:
                self._arm(left)
                break
            self.interrupt(task, BodyTooSlowError(self._seconds))


class _Reading:
    __slots__ = ("body", "declared", "memory_timeout", "owner", "reserved")

    def __init__(self, declared: Declared, memory_timeout: float) -> None:
        self.declared = declared
        self.memory_timeout = memory_timeout
        self.body: bytes | bytearray = b""
        self.reserved = 0
        self.owner: str | None = None

    def forget(self) -> bytes:
        """Free the body and return its beginning. Frames of an exception may refer to this object for long."""
        start = bytes(memoryview(self.body)[:BEGINNING])
        if isinstance(self.body, bytearray):
            self.body.clear()
        self.body = b""
        return start


class BodyReader:
    """Reads bodies of at most `limit` bytes that arrive within `seconds`.

    A body above `SMALL` reserves its memory before it is read, waits for it if necessary, and keeps it until `release`
    after the answer: in total `LARGE_AT_ONCE` times `limit`, per namespace half of that. All other incomplete bodies
    together hold at most `INCOMPLETE` bytes; beyond that, the oldest is discarded. So the number of senders cannot
    exhaust the container's memory.
    """

    SMALL: Final = 64 * 1024
    """Bytes. Few reviews are larger, and uvicorn reads this much ahead in any case."""
    LARGE_AT_ONCE: Final = 2
    INCOMPLETE: Final = 8 * 1024 * 1024
    """Bytes of incomplete bodies. The buffers of their connections take about three times as much in addition."""
    DISCARDED: Final = 8 * 1024 * 1024
    """Bytes of the rest of a body that was refused."""
    UNCOUNTED: Final = 4 * 1024
    """Bytes. A body up to this size takes less memory than its connection."""

    def __init__(self, limit: int, seconds: float, owner_of: Callable[[bytes], str | None] = namespace_of) -> None:
        """`limit` is in bytes; `owner_of` returns the namespace that pays for a body, from its beginning."""
        self._limit = limit
        self._small = min(limit, self.SMALL)
        self._memory = MemoryBudget(self.LARGE_AT_ONCE * limit)
        self._owner_of = owner_of
        self._large: dict[int, tuple[int, str | None]] = {}
        self._incomplete: dict[asyncio.Task[object], int] = {}
        self._incomplete_bytes = 0
        self._time_outs = TimeOuts(seconds)

    @property
    def held(self) -> int:
        """Bytes that large bodies have reserved."""
        return self._memory.held

    @property
    def incomplete(self) -> int:
        """Bytes of bodies that are not complete and have nothing reserved."""
        return self._incomplete_bytes

    async def read(
        self, receive: Receive, declared: Declared = lambda: None, memory_timeout: float = 0.0
    ) -> bytes | bytearray:
        """Return the whole body; call `release` when it is not needed any more.

        Args:
            declared: returns the declared size.
            memory_timeout: seconds that a large body may wait for memory.

        Raises:
            BodyTooLargeError: the body is larger than the limit, by its header or in fact.
            BodyTooManyError: no memory became free, or the body was discarded to free memory.
            BodyTooSlowError: the body was not complete in time.
            ClientGoneError: the client closed the connection.
        """
        reading = _Reading(declared, memory_timeout)
        try:
            body = await self._time_outs.wait(self._whole(reading, receive))
        except BaseException as error:
            start = reading.forget()
            if isinstance(error, BodyError):
                error.start = start
            if reading.reserved:
                self._memory.release(reading.reserved, reading.owner)
            raise
        finally:
            if self._incomplete:
                self._count(0)
        if reading.reserved:
            if len(body) < reading.reserved:
                self._memory.release(reading.reserved - len(body), reading.owner)
            self._large[id(body)] = len(body), reading.owner
        return body

    def release(self, body: bytes | bytearray) -> None:
        """Free the memory that a body has reserved."""
        if len(body) > self.SMALL:
            self._memory.release(*self._large.pop(id(body)))
            # The decision may be part of reference cycles, and few large objects do not trigger a collection. Objects
            # from the start are frozen (`Server.startup`), so this collection is short.
            gc.collect(1)

    async def discard(self, receive: Receive, within: float | None = None) -> bool:
        """Read and discard the rest of a body. Returns whether it ended.

        At most `DISCARDED` bytes are read, or as many as a body may have, up to the time-out or `within` seconds.
        Closing a connection with unread data resets it, and the client may lose the answer.
        """
        with contextlib.suppress(BodyError, TimeoutError):
            async with asyncio.timeout(within):
                return await self._time_outs.wait(_skip(receive, max(self._limit, self.DISCARDED)))
        return False

    async def _whole(self, reading: _Reading, receive: Receive) -> bytes | bytearray:
        more = _take(reading, await receive())
        if more:
            # The bytearray is returned without a copy: a copy of the largest body would double its memory.
            reading.body = bytearray(reading.body)
        while more:
            await self._allow(reading, more=True)
            more = _take(reading, await receive())
        if len(reading.body) > self._small:
            await self._allow(reading, more=False)
        return reading.body

    async def _allow(self, reading: _Reading, *, more: bool) -> None:
        """Account for the bytes that a body has now. Raises BodyTooLargeError, BodyTooManyError."""
        size = len(reading.body)
        if size > self._limit or (size > self.SMALL and (reading.declared() or 0) > self._limit):
            raise BodyTooLargeError(self._limit, unread=more)
        if reading.reserved:
            return
        if size > self.SMALL:
            # While this body waits, uvicorn reads up to `SMALL` bytes ahead.
            self._count(size + self.SMALL)
            wanted = size if not more else max(size, min(reading.declared() or self._limit, self._limit))
            reading.owner = self._owner_of(bytes(memoryview(reading.body)[:BEGINNING]))
            self._time_outs.pause()
            try:
                await self._memory.reserve(wanted, reading.owner, reading.memory_timeout)
            except TimeoutError:
                raise BodyTooManyError(unread=more) from None
            reading.reserved = wanted
            self._time_outs.resume()
            self._count(0)
        elif more and (size > self.UNCOUNTED or self._incomplete):
            self._count(size if size > self.UNCOUNTED else 0)

    def _count(self, size: int) -> None:
        """Set the bytes of the current task's incomplete body. Raises BodyTooManyError if it is the one to give up."""
        task = _current()
        self._incomplete_bytes += size - self._incomplete.get(task, 0)
        if size:
            self._incomplete[task] = size
        else:
            self._incomplete.pop(task, None)
        while self._incomplete_bytes > self.INCOMPLETE:
            oldest = next(iter(self._incomplete))
            self._incomplete_bytes -= self._incomplete.pop(oldest)
            if oldest is task:
                raise BodyTooManyError(unread=False, given_up=True)
            self._time_outs.interrupt(oldest, BodyTooManyError(unread=False, given_up=True))


def _take(reading: _Reading, message: Message) -> bool:
    """Add a message to a body. Returns whether more messages follow. Raises ClientGoneError."""
    if message["type"] != "http.request":
        raise ClientGoneError
    piece: bytes = message.get("body", b"")
    if isinstance(reading.body, bytearray):
        reading.body += piece
    else:
        reading.body = piece
    return bool(message.get("more_body", False))


async def _skip(receive: Receive, most: int) -> bool:
    """Discard at most so many bytes. Returns whether the body ended."""
    while (message := await receive()).get("more_body", False):
        most -= len(message.get("body", b""))
        if most < 0:
            return False
    return True


class MemoryBudget:
    """A bounded number of bytes to reserve. Only for the event loop's thread.

    A request reserves all of its bytes at once, so a body that holds memory never waits for more (no deadlock). One
    owner holds at most half of the bytes; its further requests wait and do not block other owners.
    """

    def __init__(self, size: int) -> None:
        """Reserve at most `size` bytes in total."""
        self._size = size
        self._held: Counter[str | None] = Counter()
        self._total = 0
        self._waiting: dict[asyncio.Future[None], tuple[int, str | None]] = {}

    @property
    def held(self) -> int:
        """Reserved bytes."""
        return self._total

    async def reserve(self, size: int, owner: str | None, seconds: float) -> None:
        """Reserve bytes.

        Args:
            size: bytes; at most half of the total.
            owner: namespace of the review; empty for cluster-scoped objects, None if it is not known.
            seconds: time-out of the wait.

        Raises:
            TimeoutError: not enough bytes became free.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = size, owner
        self._grant()
        if future.done():
            return
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await future
        except BaseException:
            if self._waiting.pop(future, None) is None:
                # It was reserved in the same iteration of the event loop.
                self.release(size, owner)
            else:
                self._grant()
            raise

    def release(self, size: int, owner: str | None) -> None:
        """Release reserved bytes."""
        self._total -= size
        self._held[owner] -= size
        if not self._held[owner]:
            del self._held[owner]
        self._grant()

    def _grant(self) -> None:
        for future, (size, owner) in list(self._waiting.items()):
            if self._total + size > self._size:
                return
            if self._held.get(owner, 0) + size > self._size // _SHARE:
                continue
            del self._waiting[future]
            self._total += size
            self._held[owner] += size
            with contextlib.suppress(asyncio.InvalidStateError):
                future.set_result(None)
