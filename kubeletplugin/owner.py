"""Reports states of the node: who else offers its devices, a lost registration, and what its checks found.

Each is told by a metric, a line in the log and an Event about the Node.
"""

import dataclasses
import logging
from collections.abc import Callable
from typing import Final

from prometheus_client import Gauge

from kubeletplugin.changes import Changing, report_changes
from kubeletplugin.checks.node_checks import NodeChecks, event_text
from kubeletplugin.checks.table import Grade
from kubeletplugin.clock import Clock
from kubeletplugin.discover.node_events import node_event
from kubeletplugin.discover.own_node import NodeState, OwnNode
from kubeletplugin.gate import KubeletGate
from kubeletplugin.metrics import PluginMetrics
from kubeletplugin.ports import JsonObject, KubeError
from kubeletplugin.publish.offer import DEVICE_PLUGIN_TAINT, Guard
from kubeletplugin.publish.other_driver import OtherDriver
from neuron import names

APPEARED: Final = "DevicePluginActive"
LEFT: Final = "DevicePluginGone"
OTHER: Final = "OtherDriverActive"
OTHER_LEFT: Final = "OtherDriverGone"
LOST: Final = "RegistrationLost"
REGISTERED: Final = "RegistrationBack"
CHECK_FAILED: Final = "NodeCheckFailed"
CHECK_NOTE: Final = "NodeCheckNote"
CHECKS_WELL: Final = "NodeChecksWell"

OTHER_GONE: Final = "No other driver named neuron.aws.com is on this node any more: this driver publishes its devices."
REGISTERED_AGAIN: Final = "The kubelet has registered this driver: its devices are published."
ALL_WELL: Final = "The checks of this node find no fault any more."


_HELD: Final = {
    Guard.TAINT: f"new claims get none of this driver's devices (taint {DEVICE_PLUGIN_TAINT.key})",
    Guard.WITHHOLD: "this driver publishes no device",
    Guard.OFF: "both may give a device to different pods, because the guard of this driver is off",
}

_log = logging.getLogger(__name__)


def event(state: NodeState, guard: Guard, now: float) -> JsonObject:
    """The Event about the Node's present state."""
    present = bool(state.legacy)
    shown = ", ".join(f"{resource}: {amount}" for resource, amount in state.legacy.items())
    if present:
        message = (
            f"A device plugin offers this node's Neuron devices (allocatable {shown}): {_HELD[guard]}. Prepared claims "
            "go on. Keep the device plugin off the nodes of the DRA driver."
        )
    else:
        message = "No device plugin offers this node's Neuron devices any more: this driver allocates them."
    return node_event(state.facts, APPEARED if present else LEFT, message, now, warning=present)


class OwnerReporter:
    """Reports a device plugin when it appears and when it leaves, until cancelled."""

    def __init__(self, node: OwnNode, guard: Guard, *, clock: Clock, metrics: PluginMetrics) -> None:
        self._node = node
        self._guard = guard
        self._clock = clock
        self._metrics = metrics
        self._reported = False

    async def run(self) -> None:
        """Report until cancelled. An Event that cannot be written is tried again while it is true."""
        await report_changes(self._node, lambda: self._report(self._node.state), self._clock)

    async def _report(self, state: NodeState | None) -> bool:
        """Whether nothing is left to report."""
        if state is None:
            return True
        present = bool(state.legacy)
        self._metrics.device_plugin.set(present)
        if present is self._reported:
            self._metrics.worked("events")
            return True
        body = event(state, self._guard, self._clock.now())
        _log.log(
            logging.WARNING if present else logging.INFO,
            "device plugin on the node" if present else "device plugin gone",
            extra={"node": state.facts.name, "allocatable": dict(state.legacy)},
        )
        if await _written(self._node, body, self._metrics):
            self._reported = present
        return self._reported is present


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
        """Whether nothing is left to report."""
        said = self._say()
        if self._gauge is not None:
            self._gauge.set(said is not None)
        if said == self._reported:
            self._metrics.worked("events")
            return True
        told = said or self._ended
        _log.log(logging.WARNING if told.warning else logging.INFO, "node reported", extra={"reason": told.message})
        try:
            state = self._node.state or await self._node.read()
        except KubeError as error:
            return _unwritten(error, self._metrics)
        body = node_event(state.facts, told.reason, told.message, self._clock.now(), warning=told.warning)
        if not await _written(self._node, body, self._metrics):
            return False
        self._reported = said
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


async def _written(node: OwnNode, body: JsonObject, metrics: PluginMetrics) -> bool:
    """Write an Event about the Node; whether it is written. A failure is counted and logged."""
    try:
        await node.store.report(body)
    except KubeError as error:
        return _unwritten(error, metrics)
    metrics.worked("events")
    return True


def _unwritten(error: KubeError, metrics: PluginMetrics) -> bool:
    metrics.failed("events")
    _log.warning("the event cannot be written", extra={"error": str(error)})
    return False
