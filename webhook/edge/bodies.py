"""Reading request bodies: whole, within a size, a time and a memory.

Exceptions: `BodyError` > `BodyTooLargeError`, `BodyTooManyError`, `BodyTooSlowError`, `ClientGoneError`.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from starlette.types import Receive

Result = TypeVar("Result")


class BodyError(Exception):
    """There is no body to work with."""


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
    """The body is large, and the large ones that are here already take all the memory that there is for them.

    Attributes:
        unread: whether there is more of it to come.
    """

    def __init__(self, *, unread: bool) -> None:
        super().__init__("too many large bodies")
        self.unread = unread


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


class Patience:
    """Gives up on what takes too long.

    Everything may take equally long, so the order of arrival is the order of deadlines: one timer, set for the oldest,
    serves everybody, and what is quick costs two dictionary operations instead of a timer of its own.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._since: dict[asyncio.Task[Any], float] = {}
        self._exceeded: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of `work`, which runs in the calling task.

        Raises:
            BodyTooSlowError: it was not done in time, and has been cancelled.
        """
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - coroutines run in tasks; this is for the type checker
        self._since[task] = self._clock()
        if self._timer is None:
            self._arm(self._seconds)
        try:
            return await work
        except asyncio.CancelledError:
            if task not in self._exceeded:
                raise
            self._exceeded.discard(task)
            task.uncancel()
            raise BodyTooSlowError(self._seconds) from None
        finally:
            self._since.pop(task, None)

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
            del self._since[task]
            self._exceeded.add(task)
            task.cancel()


class BodyReader:
    """Reads bodies of at most `limit` bytes that arrive within `seconds`.

    Those above `SMALL` may together hold the memory of `LARGE_AT_ONCE` of the largest, from their first bytes until
    they are released, when they have been answered: a few dozen senders cannot make the kernel kill us.
    """

    SMALL: Final = 64 * 1024
    """Bytes. Hardly a review is larger; and uvicorn reads that much ahead anyway."""
    LARGE_AT_ONCE: Final = 3

    def __init__(self, limit: int, seconds: float) -> None:
        self._limit = limit
        self._held = 0
        self._patience = Patience(seconds)

    @property
    def held(self) -> int:
        """Bytes of large bodies that are being read or answered."""
        return self._held

    async def read(self, receive: Receive) -> bytes | bytearray:
        """The whole body; `release` it when it is not needed any more.

        Raises:
            BodyTooLargeError: it is larger than the limit, whatever the headers say.
            BodyTooManyError: it is large, and there are too many of them.
            BodyTooSlowError: it was not there in time.
            ClientGoneError: the client closed the connection.
        """
        return await self._patience.wait(self._whole(receive))

    def release(self, body: bytes | bytearray) -> None:
        """Make room for others: this body is not needed any more."""
        if len(body) > self.SMALL:
            self._held -= len(body)

    async def discard(self, receive: Receive) -> bool:
        """Read on and forget, for as long as a body may take; whether its end was seen.

        A server that closes a connection with unread data on it resets it, and the client may never see the answer.
        """
        with contextlib.suppress(BodyError):
            await self._patience.wait(_skip(receive))
            return True
        return False

    async def _whole(self, receive: Receive) -> bytes | bytearray:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGoneError
        body: bytes = message.get("body", b"")
        if message.get("more_body", False):
            # Not copied once more at its end: the largest would take twice its size for that moment.
            return await self._rest(bytearray(body), receive)
        self._hold(len(body), 0, more=False)
        return body

    async def _rest(self, body: bytearray, receive: Receive) -> bytearray:
        more, whole, held = True, False, 0
        try:
            while more:
                held = self._hold(len(body), held, more=True)
                message = await receive()
                if message["type"] != "http.request":
                    raise ClientGoneError
                body += message.get("body", b"")
                more = message.get("more_body", False)
            held = self._hold(len(body), held, more=False)
            whole = True
        finally:
            if not whole:
                self._held -= held
        return body

    def _hold(self, size: int, held: int, *, more: bool) -> int:
        """Count a body that has `size` bytes now, `held` of which are counted; what is counted now.

        Raises:
            BodyTooLargeError: it has too many.
            BodyTooManyError: there is no room for it.
        """
        if size > self._limit:
            raise BodyTooLargeError(self._limit, unread=more)
        if size <= self.SMALL:
            return held
        if self._held + size - held > self.LARGE_AT_ONCE * self._limit:
            raise BodyTooManyError(unread=more)
        self._held += size - held
        return size


async def _skip(receive: Receive) -> None:
    while (await receive()).get("more_body", False):
        pass
