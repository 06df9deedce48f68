"""Reports states of the node: who else offers its devices, a lost registration, what its checks found, kept devices.

Each is told by a metric, a line in the log and an Event about the Node.
"""

import dataclasses
import logging
import secrets
from collections.abc import Callable
from typing import Final

from prometheus_client import Gauge

from kubeletplugin.api_store import EVENT_NAMESPACE
from kubeletplugin.changes import Changing, Clock, report_changes
from kubeletplugin.checks.node_checks import NodeChecks, event_text
from kubeletplugin.checks.table import Grade
from kubeletplugin.discover.health import NodeFacts
from kubeletplugin.discover.own_node import NodeState, OwnNode
from kubeletplugin.metrics import PluginMetrics
from kubeletplugin.ports import JsonObject, timestamp
from kubeletplugin.prepare.usage import Hold, Holds
from kubeletplugin.publish.offer import DEVICE_PLUGIN_TAINT, KubeletGate, OtherDriver
from kubeletplugin.settings import Guard
from neuron import names
from runtime.api_server import ApiServerError

APPEARED: Final = "DevicePluginActive"
OTHER: Final = "OtherDriverActive"
LOST: Final = "RegistrationLost"
CHECK_FAILED: Final = "NodeCheckFailed"
CHECK_NOTE: Final = "NodeCheckNote"
_HELD: Final = {
    Guard.TAINT: f"new claims get none of this driver's devices (taint {DEVICE_PLUGIN_TAINT.key})",
    Guard.WITHHOLD: "this driver publishes no device",
    Guard.OFF: "both may give a device to different pods, because the guard of this driver is off",
}
KEPT: Final = "DeviceKept"
FREED: Final = "KeptDeviceFree"

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Said:
    """What is said of a state, or of its end.

    Attributes:
        reason: of the Event.
        message: of Event and log.
        warning: whether an administrator has to act.
    """

    reason: str
    message: str
    warning: bool = False


LEFT: Final = Said(
    "DevicePluginGone", "No device plugin offers this node's Neuron devices any more: this driver allocates them."
)
OTHER_LEFT: Final = Said(
    "OtherDriverGone",
    "No other driver named neuron.aws.com is on this node any more: this driver publishes its devices.",
)
REGISTERED: Final = Said("RegistrationBack", "The kubelet has registered this driver: its devices are published.")
CHECKS_WELL: Final = Said("NodeChecksWell", "The checks of this node find no fault any more.")


def node_event(facts: NodeFacts, said: Said, now: float) -> JsonObject:
    """An Event about the Node; `now` is in seconds since the epoch."""
    time = timestamp(now)
    name = facts.name
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name[: 253 - 17]}.{secrets.token_hex(8)}", "namespace": EVENT_NAMESPACE},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": name, "uid": facts.uid},
        "reason": said.reason,
        "message": said.message[:1024],  # the API server accepts no more
        "type": "Warning" if said.warning else "Normal",
        "source": {"component": names.DRIVER_PROGRAM, "host": name},
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }


def device_plugin(state: NodeState | None, guard: Guard) -> Said | None:
    """What is said of a device plugin on the node."""
    if state is None or not state.legacy:
        return None
    shown = ", ".join(f"{resource}: {amount}" for resource, amount in state.legacy.items())
    message = (
        f"A device plugin offers this node's Neuron devices (allocatable {shown}): {_HELD[guard]}. Prepared claims go "
        "on. Keep the device plugin off the nodes of the DRA driver."
    )
    return Said(APPEARED, message, warning=True)


def lasting(say: Callable[[], Said | None]) -> Callable[[], Said | None]:
    """What was said first, for as long as the state lasts: its values may change again and again."""
    first: Said | None = None

    def told() -> Said | None:
        nonlocal first
        now = say()
        first = None if now is None else first or now
        return first

    return told


class StateReporter:
    """Reports a state when it begins, when it becomes another one, and when it ends, until cancelled."""

    def __init__(
        self,
        source: Changing,
        say: Callable[[], Said | None],
        ended: Said,
        node: OwnNode,
        *,
        gauge: Gauge | None = None,
        clock: Clock,
        metrics: PluginMetrics,
    ) -> None:
        """`say` tells the present state of the source; None without one. `gauge` is 1 while there is one."""
        self._source = source
        self._say = say
        self._ended = ended
        self._node = node
        self._gauge = gauge
        self._clock = clock
        self._metrics = metrics
        self._reported: Said | None = None

    async def run(self) -> None:
        """Report until cancelled. An Event that cannot be written is tried again while it is true."""
        await report_changes(self._source, self._report, self._clock)

    async def _report(self) -> bool:
        said = self._say()
        if self._gauge is not None:
            self._gauge.set(said is not None)
        if said == self._reported:
            self._metrics.worked("events")
            return True
        told = said or self._ended
        _log.log(logging.WARNING if told.warning else logging.INFO, "node reported", extra={"reason": told.message})
        if not await _written(self._node, told, self._clock, self._metrics):
            return False
        self._reported = said
        self._metrics.worked("events")
        return True


def other_driver(other: OtherDriver) -> Said | None:
    """What is said of another driver of our name."""
    if not other.evidence:
        return None
    message = (
        f"Another driver named {names.DRIVER} is on this node ({other.evidence}): this driver publishes no device. "
        "Prepared claims go on. Keep the other driver's DaemonSet off the nodes of this one."
    )
    return Said(OTHER, message, warning=True)


def lost_registration(gate: KubeletGate) -> Said | None:
    """What is said of a kubelet that does not know the driver."""
    if not gate.lost:
        return None
    message = (
        f"The kubelet does not know this driver: {gate.lost}. No device is published, and the registration socket is "
        "made again until the kubelet registers it. Prepared claims go on. If it lasts, look into the kubelet's log."
    )
    return Said(LOST, message, warning=True)


def node_checks(checks: NodeChecks) -> Said | None:
    """What is said of the node's checks."""
    faults = checks.faults
    if not faults:
        return None
    wrong = any(each.result is Grade.WRONG for each in faults)
    return Said(CHECK_FAILED if wrong else CHECK_NOTE, event_text(faults), warning=wrong)


async def _written(node: OwnNode, said: Said, clock: Clock, metrics: PluginMetrics) -> bool:
    """Write an Event about the Node; whether it is written. A failure is counted and logged."""
    try:
        state = node.state or await node.read()
        await node.store.report(node_event(state.facts, said, clock.now()))
    except ApiServerError as error:
        metrics.failed("events")
        _log.warning("the event cannot be written", extra={"error": str(error)})
        return False
    return True


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
        kept = {uid: hold for uid, hold in self._holds.claims.items() if hold.known is not None}
        for known, series in ((True, "in-use"), (False, "unknown")):
            number = sum(hold.known is known for hold in kept.values())
            self._metrics.kept_claims.labels(series).set(number)
        self._metrics.held_devices.set(len(self._holds.indices))
        complete = True
        for uid, hold in kept.items():
            before = self._reported.get(uid)
            if before is None or before.known is not hold.known:
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
            _log.info("kept claim released", extra={"claim": str(hold.claim)})
        else:
            message = (
                f"ResourceClaim {hold.claim} {hold.claim.ended}, and its devices stay with it ({devices}): {hold.why}. "
                "No other claim gets them until no process has them."
            )
            _log.warning("claim kept", extra={"claim": str(hold.claim), "reason": hold.why})
        said = Said(FREED if freed else KEPT, message, warning=not freed)
        if not await _written(self._node, said, self._clock, self._metrics):
            return False
        if freed:
            del self._reported[uid]
        else:
            self._reported[uid] = hold
        return True
