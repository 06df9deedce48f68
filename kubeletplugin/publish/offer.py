"""Decides which devices of the node are published, with which taints, and when.

A device has one owner: while a device plugin offers the node's devices, this driver keeps new claims off them. An
UltraServer node offers its devices, the whole node, or both where the cluster's shared counters keep them apart.

Slices are held back until the kubelet can prepare claims, while it does not know the driver, and beside another driver.
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
from kubeletplugin.discover.devices import NODE_DEVICE, device_index
from kubeletplugin.discover.health import HealthSnapshot, taints
from kubeletplugin.discover.own_node import NodeState
from kubeletplugin.ports import WAITS
from kubeletplugin.publish.slices import NodeDevices, is_slice_name
from kubeletplugin.settings import DriverSettings, Guard
from neuron import names
from neuron.api.taints import Cordon, Taint
from neuron.findings import few, quoted

DEVICE_PLUGIN_TAINT: Final = Taint(names.TAINT_DEVICE_PLUGIN, "active", "NoSchedule")

DEVICES: Final = "devices"
NODE: Final = "node"
"""Values of the setting and of the label about UltraServer nodes."""


def needs_taints(state: NodeState, settings: DriverSettings, held: Collection[int] = ()) -> bool:
    """Whether the offer depends on the cluster's device taints."""
    return bool(held) or bool(state.cordon) or (bool(state.legacy) and settings.device_plugin_guard is Guard.TAINT)


def offer(
    snapshot: HealthSnapshot,
    state: NodeState,
    settings: DriverSettings,
    *,
    keeps_taints: bool,
    held: Collection[int] = (),
) -> tuple[NodeDevices, str]:
    """Decide what to publish, for `desired_slices`; and what an administrator should know, empty if nothing.

    Args:
        keeps_taints: whether the cluster stores device taints; used only if `needs_taints`.
        held: indices of devices that new claims must not get.
    """
    guarded = bool(state.legacy) and settings.device_plugin_guard is not Guard.OFF
    if guarded and (settings.device_plugin_guard is Guard.WITHHOLD or not keeps_taints):
        return NodeDevices(snapshot.hardware, None), ""
    label, problem = state.ultraserver_publish, ""
    wanted: str = settings.ultraserver_publish
    if label in (DEVICES, NODE):
        wanted = label
    elif label is not None:
        problem = (
            f"the Node's label {names.LABEL_ULTRASERVER_PUBLISH} has the value {label!r}, which is not {DEVICES} or "
            f"{NODE}: the setting ({wanted}) is in force"
        )
    found = NodeDevices(
        snapshot.hardware,
        snapshot.instance,
        snapshot.vanished,
        taints(snapshot.health, settings.taint_effect),
        (DEVICE_PLUGIN_TAINT,) if guarded else (),
        wanted == NODE,
        held=held,
        withhold=not keeps_taints,
    )
    found, unknown = _cordoned(found, state.cordon)
    return found, "; ".join(filter(None, (problem, unknown)))


def _cordoned(found: NodeDevices, cordon: Cordon) -> tuple[NodeDevices, str]:
    """The devices with the cordon, and what it names that the node does not have."""
    indices = {index for name in cordon.devices if (index := device_index(name)) is not None}
    named = dataclasses.replace(
        found,
        cordoned=frozenset(found.indices if cordon.node else indices.intersection(found.indices)),
        whole_cordoned=cordon.node or NODE_DEVICE in cordon.devices,
    )
    unknown = [name for name in cordon.devices if name != NODE_DEVICE and device_index(name) not in found.indices]
    if not unknown or found.instance is None:
        return named, ""
    shown = few(list(map(quoted, unknown)), 3)
    return named, (
        f"the Node's annotation {names.ANNOTATION_CORDONED} names {shown}, which the node does not have: the other "
        "devices that it names are cordoned"
    )


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


_FIXED_SOCKET: Final = f"{names.DRIVER}-reg.sock"
"""An instance of this driver without a pod's UID has it, too, and runs beside another one of that kind only."""


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

    def look(self, node: str, slices: Iterable[str], served: Collection[str]) -> frozenset[str]:
        """Decide by the names of the node's slices and by sockets; returns the names of slices that are not ours.

        `served` are the registration sockets of our driver's name that others serve; during an upgrade, also other
        instances of this driver. The Node owns the slices, so they stay when their driver is gone. If no driver serves
        a socket, they are removed; if they come back after that, another driver makes them.
        """
        foreign = frozenset(name for name in slices if not is_slice_name(node, name))
        now = self._clock.monotonic()
        alive = bool(served) or now < self._left_until
        if foreign and not alive and now - self._removed_at < WAITS.other_stays:
            alive, self._left_until = True, now + WAITS.other_stays
        evidence = []
        if foreign and alive:
            evidence.append(f"ResourceSlices {', '.join(sorted(foreign)[:3])}")
        shown = served if _FIXED_SOCKET not in served else (_FIXED_SOCKET,)
        if evidence or _FIXED_SOCKET in served:
            evidence += [f"the registration socket {name}" for name in shown]
        if (told := " and ".join(evidence)) != self.evidence:
            self.evidence = told
            self._count_change()
        return foreign

    def removed(self) -> None:
        """Slices of another driver were deleted, because no driver seemed to serve them."""
        self._removed_at = self._clock.monotonic()
