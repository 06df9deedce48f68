"""Reports who else offers the node's devices: a device plugin, or another driver of our name.

Each is told by a metric, a line in the log and an Event about the Node.
"""

import logging
from typing import Final

from kubeletplugin.changes import report_changes
from kubeletplugin.discover.node_events import node_event
from kubeletplugin.discover.own_node import NodeState, OwnNode
from kubeletplugin.metrics import PluginMetrics
from kubeletplugin.ports import Clock, JsonObject, KubeError
from kubeletplugin.publish.offer import DEVICE_PLUGIN_TAINT, Guard
from kubeletplugin.publish.other_driver import OtherDriver
from neuron import names

APPEARED: Final = "DevicePluginActive"
LEFT: Final = "DevicePluginGone"
OTHER: Final = "OtherDriverActive"
OTHER_LEFT: Final = "OtherDriverGone"


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


class OtherDriverReporter:
    """Reports another driver of our name when it appears and when it leaves, until cancelled."""

    def __init__(self, other: OtherDriver, node: OwnNode, *, clock: Clock, metrics: PluginMetrics) -> None:
        self._other = other
        self._node = node
        self._clock = clock
        self._metrics = metrics
        self._reported = False

    async def run(self) -> None:
        """Report until cancelled. An Event that cannot be written is tried again while it is true."""
        await report_changes(self._other, self._report, self._clock)

    async def _report(self) -> bool:
        """Whether nothing is left to report."""
        evidence = self._other.evidence
        present = bool(evidence)
        self._metrics.other_driver.set(present)
        if present is self._reported:
            self._metrics.worked("events")
            return True
        if present:
            message = (
                f"Another driver named {names.DRIVER} is on this node ({evidence}): this driver publishes no device. "
                "Prepared claims go on. Keep the other driver's DaemonSet off the nodes of this one."
            )
            _log.warning("another driver on the node", extra={"evidence": evidence})
        else:
            message = (
                f"No other driver named {names.DRIVER} is on this node any more: this driver publishes its devices."
            )
            _log.info("other driver gone")
        try:
            state = self._node.state or await self._node.read()
        except KubeError as error:
            return _unwritten(error, self._metrics)
        body = node_event(state.facts, OTHER if present else OTHER_LEFT, message, self._clock.now(), warning=present)
        if await _written(self._node, body, self._metrics):
            self._reported = present
        return self._reported is present


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
