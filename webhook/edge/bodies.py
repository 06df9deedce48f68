"""Reading request bodies: whole, within a size, a time and a memory.

Exceptions: `BodyError` > `BodyTooLargeError`, `BodyTooManyError`, `BodyTooSlowError`, `ClientGoneError`.
"""

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from starlette.types import Message, Receive

from webhook.decisions.nesting import BEGINNING
from webhook.edge.reviews import namespace_of
from webhook.edge.room import Room

Result = TypeVar("Result")


class BodyError(Exception):
    """There is no body to work with.

    Attributes:
        start: the beginning of it, as far as it was read.
    """

    start = b""


class BodyTooLargeError(BodyError):
    """The body is larger than allowed.

    Attributes:
        limit: bytes that are allowed.
        unread: whether there is more of it to come.
    """

    def __init__(self, limit: int, *, unread: bool) -> None:
        super().__init__(f"larger than {limit} bytes")
        self.limit = limit
        self.unread = unread


class BodyTooManyError(BodyError):
    """There are too many bodies, which take all the memory that there is for them.

    Attributes:
        unread: whether there is more of it to come.
        given_up: whether it made room for others, and its connection should do so as well.
    """

    def __init__(self, *, unread: bool, given_up: bool = False) -> None:
        super().__init__("too many large bodies")
        self.unread = unread
        self.given_up = given_up


class BodyTooSlowError(BodyError):
    """The body was not there in time.

    Attributes:
        seconds: how long it was waited for.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(f"not there after {seconds:g} s")
        self.seconds = seconds


class ClientGoneError(BodyError):
    """The client closed the connection before it had sent the body."""


def _current() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - coroutines run in tasks; this is for the type checker
    return task


class TimeOuts:
    """Gives up on what takes too long.

    Everything may take equally long, so the order of arrival is the order of deadlines: one timer, set for the oldest,
    serves everybody, and what is quick costs two dictionary operations instead of a timer of its own.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._since: dict[asyncio.Task[Any], float] = {}
        self._exceeded: dict[asyncio.Task[Any], BodyError] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of `work`, which runs in the calling task.

        Raises:
            BodyTooSlowError: it was not done in time, and has been cancelled.
            BodyError: it has been cancelled by `interrupt`.
        """
        task = _current()
        self._since[task] = self._clock()
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
        """The current task waits for us, not for its client."""
        self._since.pop(_current(), None)

    def resume(self) -> None:
        """The current task waits for its client, from now on."""
        self._since[_current()] = self._clock()
        if self._timer is None:
            self._arm(self._seconds)

    def interrupt(self, task: asyncio.Task[Any], error: BodyError) -> None:
        """End the `wait` of another task with an error."""
        if task not in self._exceeded:
            self._since.pop(task, None)
            self._exceeded[task] = error
            task.cancel()

    def _arm(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._interrupt)

    def _interrupt(self) -> None:
        self._timer = None
        now = self._clock()
        for task, since in list(self._since.items()):
            left = since + self._seconds - now
            if left > 0:
                self._arm(left)
                break
            self.interrupt(task, BodyTooSlowError(self._seconds))


Declared = Callable[[], int | None]
"""How many bytes a client says that a body has. Only asked of large bodies."""


def _in_chunks() -> int | None:
    return None


class _Reading:
    """One body that is being read."""

    __slots__ = ("body", "declared", "owner", "reserved", "room_within")

    def __init__(self, declared: Declared, room_within: float) -> None:
        self.declared = declared
        self.room_within = room_within
        self.body: bytes | bytearray = b""
        self.reserved = 0
        self.owner: str | None = None

    def forget(self) -> bytes:
        """Its beginning; the rest is gone, however long the frames of an exception refer to it."""
        start = bytes(memoryview(self.body)[:BEGINNING])
        if isinstance(self.body, bytearray):
            self.body.clear()
        self.body = b""
        return start


class BodyReader:
    """Reads bodies of at most `limit` bytes that arrive within `seconds`.

    Those above `SMALL` reserve what they are going to take before it is read, and wait for that if they have to, until
    they are released, when they have been answered: together the memory of `LARGE_AT_ONCE` of the largest, of one
    namespace half of that. All others together may hold `INCOMPLETE` bytes while they are not complete: beyond that,
    the one that has waited longest is given up. So no number of senders can make the kernel kill us.
    """

    SMALL: Final = 64 * 1024
    """Bytes. Hardly a review is larger; and uvicorn reads that much ahead anyway."""
    LARGE_AT_ONCE: Final = 2
    INCOMPLETE: Final = 8 * 1024 * 1024
    """Bytes of bodies whose end is not here. Their connections' buffers take about as much three times again."""
    UNCOUNTED: Final = 4 * 1024
    """Bytes. What a body has up to here is less than what its connection takes."""

    def __init__(self, limit: int, seconds: float, owner_of: Callable[[bytes], str | None] = namespace_of) -> None:
        """Take the limit in bytes; `owner_of` tells by a body's beginning whom its memory is for."""
        self._limit = limit
        self._small = min(limit, self.SMALL)
        self._room = Room(self.LARGE_AT_ONCE * limit)
        self._owner_of = owner_of
        self._large: dict[int, tuple[int, str | None]] = {}
        self._incomplete: dict[asyncio.Task[Any], int] = {}
        self._incomplete_bytes = 0
        self._patience = TimeOuts(seconds)

    @property
    def held(self) -> int:
        """Bytes that large bodies have reserved."""
        return self._room.held

    @property
    def incomplete(self) -> int:
        """Bytes of bodies that are not complete and have nothing reserved."""
        return self._incomplete_bytes

    async def read(
        self, receive: Receive, declared: Declared = _in_chunks, room_within: float = 0.0
    ) -> bytes | bytearray:
        """The whole body; `release` it when it is not needed any more.

        Args:
            receive: reads on.
            declared: tells how many bytes the client says that it has.
            room_within: seconds that it may wait for others to be answered, if it is large.

        Raises:
            BodyTooLargeError: it is larger than the limit, whatever the headers say.
            BodyTooManyError: there is no room for it, or it was given up for others.
            BodyTooSlowError: it was not there in time.
            ClientGoneError: the client closed the connection.
        """
        reading = _Reading(declared, room_within)
        try:
            body = await self._patience.wait(self._whole(reading, receive))
        except BaseException as error:
            start = reading.forget()
            if isinstance(error, BodyError):
                error.start = start
            if reading.reserved:
                self._room.give(reading.reserved, reading.owner)
            raise
        finally:
            if self._incomplete:
                self._count(0)
        if reading.reserved:
            if len(body) < reading.reserved:
                self._room.give(reading.reserved - len(body), reading.owner)
            self._large[id(body)] = len(body), reading.owner
        return body

    def release(self, body: bytes | bytearray) -> None:
        """Make room for others: this body is not needed any more."""
        if len(body) > self.SMALL:
            self._room.give(*self._large.pop(id(body)))
            # What was decided about it may hang in cycles, and a few large objects are no reason for the collector to
            # look. What exists since the start is frozen (`Server.startup`), so this looks at little.
            gc.collect(1)

    async def discard(self, receive: Receive, within: float | None = None) -> bool:
        """Read on and forget, for as long as a body may take, or `within` seconds; whether its end was seen.

        A server that closes a connection with unread data on it resets it, and the client may never see the answer.
        """
        with contextlib.suppress(BodyError, TimeoutError):
            async with asyncio.timeout(within):
                await self._patience.wait(_skip(receive))
            return True
        return False

    async def _whole(self, reading: _Reading, receive: Receive) -> bytes | bytearray:
        more = _take(reading, await receive())
        if more:
            # Not copied once more at its end: the largest would take twice its size for that moment.
            reading.body = bytearray(reading.body)
        while more:
            await self._allow(reading, more=True)
            more = _take(reading, await receive())
        if len(reading.body) > self._small:
            await self._allow(reading, more=False)
        return reading.body

    async def _allow(self, reading: _Reading, *, more: bool) -> None:
        """Count what a body has now, and pass if it may have that.

        Raises:
            BodyTooLargeError: it has, or is going to have, too much.
            BodyTooManyError: there is no room for it.
        """
        size = len(reading.body)
        if size > self._limit or (size > self.SMALL and (reading.declared() or 0) > self._limit):
            raise BodyTooLargeError(self._limit, unread=more)
        if reading.reserved:
            return
        if size > self.SMALL:
            await self._reserve(reading, size, more=more)
        elif more and (size > self.UNCOUNTED or self._incomplete):
            self._count(size if size > self.UNCOUNTED else 0)

    async def _reserve(self, reading: _Reading, size: int, *, more: bool) -> None:
        # While it waits, uvicorn reads as much ahead.
        self._count(size + self.SMALL)
        wanted = size if not more else max(size, min(reading.declared() or self._limit, self._limit))
        reading.owner = self._owner_of(bytes(memoryview(reading.body)[:BEGINNING]))
        self._patience.pause()
        try:
            await self._room.take(wanted, reading.owner, reading.room_within)
        except TimeoutError:
            raise BodyTooManyError(unread=more) from None
        reading.reserved = wanted
        self._patience.resume()
        self._count(0)

    def _count(self, size: int) -> None:
        """Note how many bytes of an incomplete body the current task holds.

        Raises:
            BodyTooManyError: that is too much, and no other has waited longer.
        """
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
            self._patience.interrupt(oldest, BodyTooManyError(unread=False, given_up=True))


def _take(reading: _Reading, message: Message) -> bool:
    """Add what has come to a body; whether there is more to come.

    Raises:
        ClientGoneError: there is not, and never will be.
    """
    if message["type"] != "http.request":
        raise ClientGoneError
    piece: bytes = message.get("body", b"")
    if isinstance(reading.body, bytearray):
        reading.body += piece
    else:
        reading.body = piece
    return bool(message.get("more_body", False))


async def _skip(receive: Receive) -> None:
    while (await receive()).get("more_body", False):
        pass
