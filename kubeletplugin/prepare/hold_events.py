"""Reports claims that hold devices after their end: metrics, the log, and Events about the Node."""

import logging
from typing import Final

from kubeletplugin.changes import report_changes
from kubeletplugin.clock import Clock
from kubeletplugin.discover.node_events import node_event
from kubeletplugin.discover.own_node import OwnNode
from kubeletplugin.metrics import PluginMetrics
from kubeletplugin.ports import KubeError
from kubeletplugin.prepare.holds import Hold, Holds

KEPT: Final = "DeviceKept"
FREED: Final = "KeptDeviceFree"

_log = logging.getLogger(__name__)


class HoldReporter:
    """Reports until cancelled. A claim is reported again if it becomes known, or unknown, that it is in use."""

    def __init__(self, holds: Holds, node: OwnNode, *, clock: Clock, metrics: PluginMetrics) -> None:
        self._holds = holds
        self._node = node
        self._clock = clock
        self._metrics = metrics
        self._reported: dict[str, Hold] = {}

    async def run(self) -> None:
        """Report until cancelled. An Event that cannot be written is tried again while it is true."""
        await report_changes(self._holds, self.report, self._clock)

    async def report(self) -> bool:
        """Report every difference once; returns whether nothing is left to report."""
        kept = {uid: hold for uid, hold in self._holds.claims.items() if hold.use is not None}
        for known, series in ((True, "in-use"), (False, "unknown")):
            number = sum(hold.use is not None and hold.use.known is known for hold in kept.values())
            self._metrics.kept_claims.labels(series).set(number)
        self._metrics.held_devices.set(len(self._holds.indices))
        complete = True
        for uid, hold in kept.items():
            before = self._reported.get(uid)
            if before is None or _kind(before) != _kind(hold):
                complete &= await self._tell(uid, hold, freed=False)
        # Not those that the next search releases: they are held until then.
        for uid in self._reported.keys() - self._holds.claims.keys():
            complete &= await self._tell(uid, self._reported[uid], freed=True)
        if complete:
            self._metrics.worked("events")
        return complete

    async def _tell(self, uid: str, hold: Hold, *, freed: bool) -> bool:
        devices = ", ".join(device.device for device in hold.claim.devices if not device.admin_access) or "no device"
        if freed:
            message = f"ResourceClaim {hold.claim}, which {hold.claim.ended}, was released: {devices}."
        else:
            message = (
                f"ResourceClaim {hold.claim} {hold.claim.ended}, and its devices stay with it ({devices}): {hold.why}. "
                "No other claim gets them until no process has them."
            )
        if freed:
            _log.info("kept claim released", extra={"claim": str(hold.claim)})
        else:
            _log.warning("claim kept", extra={"claim": str(hold.claim), "reason": hold.why})
        try:
            state = self._node.state or await self._node.read()
            reason = FREED if freed else KEPT
            await self._node.store.report(
                node_event(state.facts, reason, message, self._clock.now(), warning=not freed)
            )
        except KubeError as error:
            self._metrics.failed("events")
            _log.warning("the event cannot be written", extra={"error": str(error)})
            return False
        if freed:
            del self._reported[uid]
        else:
            self._reported[uid] = hold
        return True


def _kind(hold: Hold) -> bool:
    return hold.use is not None and hold.use.known
