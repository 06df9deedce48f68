"""What one worker says to its siblings and reads of them. A replica of one process is a set of one."""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable
from typing import Final, Self

from webhook.workers.page import DIGEST_BYTES, DRAINING, READY, SERVED, Page, Slot

log = logging.getLogger(__name__)

BEAT_EVERY: Final = 0.5
"""Seconds between heartbeats."""

STALE_AFTER: Final = 5.0
"""Seconds without a heartbeat after which a sibling counts as not ready."""

_SECOND: Final = 1_000_000_000


class Member:
    """A worker among its siblings.

    Attributes:
        index: which worker this is, from 0.
        slot: where it speaks.
    """

    def __init__(self, page: Page, index: int, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """Be worker `index`; `clock` gives monotonic nanoseconds."""
        self.index = index
        self.slot = page.slots[index]
        self._slots = page.slots
        self._clock = clock

    @classmethod
    def alone(cls) -> Self:
        """The only process of a replica."""
        member = cls(Page(1), 0)
        member.slot.prepare(time.monotonic_ns())
        member.slot.pid = os.getpid()
        return member

    @property
    def leads(self) -> bool:
        """Whether this worker does what one process of a replica has to do: its Lease, its Events."""
        return self.index == 0

    @property
    def size(self) -> int:
        """Workers of the replica."""
        return len(self._slots)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Everybody's slots, to be read."""
        return self._slots

    def beat(self, *, ready: bool, serving: bool, draining: bool) -> None:
        """Say that the event loop runs, and where this worker stands."""
        served = SERVED if serving else self.slot.flags & SERVED
        self.slot.flags = (READY if ready else 0) | (DRAINING if draining else 0) | served
        self.slot.beat = self._clock()

    def serves(self) -> None:
        """Say at once that connections are accepted: the supervisor and siblings need not wait for a heartbeat."""
        self.slot.flags |= SERVED

    def take(self, digest: bytes) -> None:
        """Say that this worker works with the state of that SHA-256 digest from now on."""
        if len(digest) != DIGEST_BYTES or not any(digest):
            raise ValueError(f"a digest has {DIGEST_BYTES} bytes that are not all zero, not {digest.hex()!r}")
        self.slot.digest = digest

    def taken_by_all(self, digest: bytes) -> bool:
        """Whether every worker of the replica has taken that state. One that is being started again has not."""
        return all(slot.pid and slot.digest == digest for slot in self._slots)

    def check(self) -> tuple[bool, str]:
        """A readiness check: whether every worker has said that it is ready, and who has not.

        This one is asked as well: if it passed before its siblings have heard of it, they would still contradict.
        """
        now = self._clock()
        faults = [f"worker {index} {fault}" for index, slot in enumerate(self._slots) if (fault := _fault(slot, now))]
        return not faults, "; ".join(faults) or f"{self.size} of {self.size}, this is worker {self.index}"

    def holds(self, connections: int) -> None:
        """Say how many connections this worker has."""
        self.slot.connections = connections

    def least_connections(self) -> int | None:
        """Open connections of the sibling that has fewest, of those that accept; None if there is none."""
        now = self._clock()
        return min((slot.connections for slot in self._accepting(now)), default=None)

    def _accepting(self, now: int) -> Iterable[Slot]:
        for index, slot in enumerate(self._slots):
            accepts = slot.pid and slot.flags & (SERVED | DRAINING) == SERVED
            if index != self.index and accepts and now - slot.beat < STALE_AFTER * _SECOND:
                yield slot


def _fault(slot: Slot, now: int) -> str:
    """Why a sibling is not ready; empty if it is."""
    if not slot.pid:
        return "is being started again"
    silent = (now - slot.beat) / _SECOND
    if silent > STALE_AFTER:
        return f"has not been heard of for {silent:.0f} s"
    if slot.flags & DRAINING:
        return "is shutting down"
    return "" if slot.flags & READY else "is not ready"


class Pulse:
    """The heartbeat: proves that the event loop turns, and tells siblings whether this worker is ready."""

    def __init__(
        self,
        member: Member,
        *,
        ready: Callable[[], bool],
        serving: Callable[[], bool],
        draining: Callable[[], bool],
        state: Callable[[], bytes],
    ) -> None:
        """Beat for `member`, and say what the others answer by then.

        Args:
            member: whose heart it is.
            ready: whether its own checks pass.
            serving: whether it accepts connections.
            draining: whether it was told to stop.
            state: SHA-256 of what it works with, see `Member.take`.
        """
        self._member = member
        self._state = state
        self._ready = ready
        self._serving = serving
        self._draining = draining
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._beat()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(BEAT_EVERY, self._beat)
        ready = False
        try:
            ready = self._ready()
        except Exception:
            log.exception("readiness check failed")
        self._member.take(self._state())
        self._member.beat(ready=ready, serving=self._serving(), draining=self._draining())
