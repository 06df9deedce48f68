"""Memory for large bodies, handed out in the order of asking."""

import asyncio
import contextlib
from collections import Counter
from typing import Final

_SHARE: Final = 2
"""One owner may hold one part in so many."""


class Room:
    """Bytes that are reserved before they are read. Belongs to the event loop's thread.

    A request gets all of its room at once, so a body that holds some never waits for more. One owner gets half of
    everything at most: what it asks beyond that waits, and lets the others pass.
    """

    def __init__(self, size: int) -> None:
        """Hand out `size` bytes."""
        self._size = size
        self._held: Counter[str | None] = Counter()
        self._total = 0
        self._waiting: dict[asyncio.Future[None], tuple[int, str | None]] = {}

    @property
    def held(self) -> int:
        """Bytes that are reserved."""
        return self._total

    async def take(self, size: int, owner: str | None, seconds: float) -> None:
        """Reserve bytes.

        Args:
            size: bytes; at most half of the room.
            owner: the namespace that they are for; empty for cluster-scoped objects, None where it is not known.
            seconds: how long to wait for them.

        Raises:
            TimeoutError: there is no room.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = size, owner
        self._hand_out()
        if future.done():
            return
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await future
        except BaseException:
            if self._waiting.pop(future, None) is None:
                # Reserved in the same turn of the event loop.
                self.give(size, owner)
            else:
                self._hand_out()
            raise

    def give(self, size: int, owner: str | None) -> None:
        """Give bytes back."""
        self._total -= size
        self._held[owner] -= size
        if not self._held[owner]:
            del self._held[owner]
        self._hand_out()

    def _hand_out(self) -> None:
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
