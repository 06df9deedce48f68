"""Holds slices back until the kubelet can prepare claims, and again when it does not know the driver any more.

A pod that is scheduled before the kubelet has registered the plugin fails to start, and the kubelet tries again only
when it looks at the pod again, after 60 to 90 s.
"""

import asyncio
import logging
from typing import Final

from kubeletplugin.changes import Changing
from kubeletplugin.clock import Clock

RECENT_SECONDS: Final = 10.0
"""A kubelet that restarts registers the plugin and deletes its slices in any order, at most so long apart."""

_log = logging.getLogger(__name__)


class KubeletGate(Changing):
    """The kubelet's answers to the registration, and waiting for them.

    Attributes:
        registered: the last answer: whether the kubelet accepted the plugin; None before it, and when it is lost.
        lost: why the kubelet does not know the driver, half a sentence; empty while it does, or may.
    """

    def __init__(self, clock: Clock, bound: float) -> None:
        """`bound` is the longest wait in seconds, after which a registration is lost; 0: nothing waits for it."""
        super().__init__()
        self.lost = ""
        self.registered: bool | None = None
        self._clock = clock
        self._bound = bound
        self._until = clock.monotonic() + bound
        self._accepted_at: float | None = None
        self._accepted = asyncio.Event()

    def answered(self, *, accepted: bool) -> None:
        """Take the kubelet's answer."""
        self.registered = accepted
        if accepted:
            self._accepted_at = self._clock.monotonic()
            accepted_before, self._accepted = self._accepted, asyncio.Event()
            accepted_before.set()
            if self.lost:
                self.lost = ""
                self._count_change()

    def lose(self, why: str) -> None:
        """The kubelet does not know the driver. Ignored if nothing waits for the registration."""
        if self._bound > 0 and why != self.lost:
            self.registered, self.lost, self._accepted_at = None, why, None
            self._count_change()

    async def first(self) -> None:
        """Wait until the kubelet has accepted the plugin, at most for the bound since the start; then it is lost."""
        if self._accepted_at is None and not await self._wait(self._until - self._clock.monotonic()):
            _log.warning("the kubelet has not registered the plugin", extra={"seconds": self._bound})
            self.lose(f"the kubelet has not registered it within {self._bound:g} s")

    async def after_deletion(self) -> None:
        """Wait for a restarted kubelet, which deletes the slices and then registers the plugin anew.

        A kubelet that has lost the plugin deletes them, too; then it does not register it.
        """
        now, seconds = self._clock.monotonic(), min(self._bound, RECENT_SECONDS)
        recent = self._accepted_at is not None and now - self._accepted_at <= RECENT_SECONDS
        if not recent and not await self._wait(seconds):
            self.lose(
                f"the node's ResourceSlices were deleted, and the kubelet did not register it within {seconds:g} s"
            )

    async def _wait(self, seconds: float) -> bool:
        """Whether the kubelet accepts the plugin within some seconds."""
        if seconds <= 0:
            return False
        accepted = asyncio.create_task(self._accepted.wait())
        timer = asyncio.create_task(self._clock.sleep(seconds))
        try:
            await asyncio.wait({accepted, timer}, return_when=asyncio.FIRST_COMPLETED)
            return accepted.done()
        finally:
            accepted.cancel()
            timer.cancel()
            await asyncio.gather(accepted, timer, return_exceptions=True)
