"""Holds slices back until the kubelet can prepare claims, while it does not know the driver, and beside another driver.

A pod that is scheduled before the kubelet has registered the plugin fails to start, and the kubelet tries again only
when it looks at the pod again, after 60 to 90 s. Another driver of our name, such as AWS's, has its slices in the same
pool: both would replace each other's slices without end, because every change makes the other's generation obsolete.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Collection, Iterable
from typing import Final

from kubeletplugin.changes import Changing, Clock
from kubeletplugin.ports import WAITS
from kubeletplugin.publish.slices import slice_name

_MAX_SLICES: Final = 1000
"""`slice_name` numbers slices with three digits."""

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
        now, seconds = self._clock.monotonic(), min(self._bound, WAITS.recent)
        recent = self._accepted_at is not None and now - self._accepted_at <= WAITS.recent
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


@dataclasses.dataclass(frozen=True, slots=True)
class Served:
    """Registration sockets of our driver's name that other processes serve.

    Attributes:
        names: of all; some may be of other instances of this driver, during an upgrade.
        other: of those that no instance of this driver makes.
    """

    names: tuple[str, ...] = ()
    other: tuple[str, ...] = ()


class OtherDriver(Changing):
    """Whether another driver of our name publishes on the node.

    Attributes:
        evidence: what shows it, for people; empty without another driver.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.evidence = ""
        self._clock = clock
        self._removed_at = float("-inf")
        self._left_until = float("-inf")

    def look(self, node: str, slices: Iterable[str], served: Served) -> frozenset[str]:
        """Decide by the names of the node's slices and by sockets; returns the names of slices that are not ours.

        The Node owns the slices, so they stay when their driver is gone. If no driver serves a socket, they are
        removed; if they come back after that, another driver makes them.
        """
        ours = _own_names(node)
        foreign = frozenset(name for name in slices if name not in ours)
        now = self._clock.monotonic()
        alive = bool(served.names) or now < self._left_until
        if foreign and not alive and now - self._removed_at < WAITS.other_stays:
            alive, self._left_until = True, now + WAITS.other_stays
        evidence = []
        if foreign and alive:
            evidence.append(f"ResourceSlices {', '.join(sorted(foreign)[:3])}")
        if served.other or evidence:
            evidence += [f"the registration socket {name}" for name in served.other or served.names]
        self._tell(" and ".join(evidence))
        return foreign

    def removed(self) -> None:
        """Slices of another driver were deleted, because no driver seemed to serve them."""
        self._removed_at = self._clock.monotonic()

    def _tell(self, evidence: str) -> None:
        if evidence != self.evidence:
            self.evidence = evidence
            self._count_change()


def _own_names(node: str) -> Collection[str]:
    return {slice_name(node, number) for number in range(_MAX_SLICES)}
