"""Decides which devices of the node are published, and with which taints. Pure.

A device has one owner: while a device plugin offers the node's devices, this driver keeps new claims off them. An
UltraServer node offers its devices, the whole node, or both where the cluster's shared counters keep them apart.
"""

import dataclasses
import enum
from collections.abc import Collection
from typing import Final

from kubeletplugin.discover.devices import NODE_DEVICE, device_index
from kubeletplugin.discover.health import HealthSnapshot, taints
from kubeletplugin.discover.own_node import NodeState
from kubeletplugin.publish.slices import ClusterFeatures, NodeDevices, publishes_whole_node
from neuron import names
from neuron.api.taints import Cordon, Taint
from neuron.findings import few, quoted

DEVICE_PLUGIN_TAINT: Final = Taint(names.TAINT_DEVICE_PLUGIN, "active", "NoSchedule")

DEVICES: Final = "devices"
NODE: Final = "node"
"""Values of the setting and of the label about UltraServer nodes."""


class Guard(enum.StrEnum):
    """What to do with the devices while a device plugin offers them."""

    TAINT = "Taint"
    WITHHOLD = "Withhold"
    OFF = "Off"


class UltraServerOffer(enum.StrEnum):
    """What an UltraServer node publishes."""

    DEVICES = DEVICES
    NODE = NODE
    BOTH = "both"


@dataclasses.dataclass(frozen=True, slots=True)
class OfferSettings:
    """The settings about what is published.

    Attributes:
        unhealthy_effect: effect of the taint of unhealthy devices; None for no taint.
        guard: while a device plugin offers the devices.
        ultraserver: `devices` or `node`, where both cannot be published.
    """

    unhealthy_effect: str | None = "NoSchedule"
    guard: Guard = Guard.TAINT
    ultraserver: str = DEVICES


@dataclasses.dataclass(frozen=True, slots=True)
class Offer:
    """What to publish.

    Attributes:
        found: for `desired_slices`.
        ultraserver: what an UltraServer node publishes; None on other nodes, and if nothing is published.
        problem: what an administrator should know; empty if nothing.
    """

    found: NodeDevices
    ultraserver: UltraServerOffer | None
    problem: str = ""


def needs_taints(state: NodeState, settings: OfferSettings, held: Collection[int] = ()) -> bool:
    """Whether the offer depends on the cluster's device taints."""
    return bool(held) or bool(state.cordon) or (bool(state.legacy) and settings.guard is Guard.TAINT)


def offer(
    snapshot: HealthSnapshot,
    state: NodeState,
    features: ClusterFeatures,
    settings: OfferSettings,
    *,
    keeps_taints: bool,
    held: Collection[int] = (),
) -> Offer:
    """Decide what to publish.

    Args:
        keeps_taints: whether the cluster stores device taints; used only if `needs_taints`.
        held: indices of devices that new claims must not get.
    """
    guarded = bool(state.legacy) and settings.guard is not Guard.OFF
    if guarded and (settings.guard is Guard.WITHHOLD or not keeps_taints):
        return Offer(NodeDevices(snapshot.hardware, None), None)
    wanted, problem = _wanted(state, settings)
    found = NodeDevices(
        snapshot.hardware,
        snapshot.instance,
        snapshot.vanished,
        taints(snapshot.health, settings.unhealthy_effect),
        (DEVICE_PLUGIN_TAINT,) if guarded else (),
        wanted == NODE,
        held=held,
        withhold=not keeps_taints,
    )
    found, unknown = _cordoned(found, state.cordon)
    problem = "; ".join(filter(None, (problem, unknown)))
    return Offer(found, _ultraserver(found, features), problem)


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


def _wanted(state: NodeState, settings: OfferSettings) -> tuple[str, str]:
    label = state.ultraserver_publish
    if label is None or label in (DEVICES, NODE):
        return label or settings.ultraserver, ""
    problem = (
        f"the Node's label {names.LABEL_ULTRASERVER_PUBLISH} has the value {label!r}, which is not {DEVICES} or "
        f"{NODE}: the setting ({settings.ultraserver}) is in force"
    )
    return settings.ultraserver, problem


def _ultraserver(found: NodeDevices, features: ClusterFeatures) -> UltraServerOffer | None:
    if not found.is_ultraserver:
        return None
    if not publishes_whole_node(found, features):
        return UltraServerOffer.DEVICES
    return UltraServerOffer.BOTH if features.counters else UltraServerOffer.NODE
