"""Memory that large bodies reserve before they are read, first come, first served."""

import asyncio
import contextlib
from collections import Counter
from typing import Final

_SHARE: Final = 2
"""One owner may hold at most this fraction: 1/2."""


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
