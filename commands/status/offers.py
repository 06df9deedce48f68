"""Checks of what nodes publish: one owner for each device, and what UltraServer nodes offer."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from commands.status.lines import CheckResult, StatusLine, listed
from neuron import names
from neuron.api.slices import PublishedDevice, Slice, newest
from neuron.hardware.instances import Catalogue

NODES: Final = "nodes"

_ONE_OWNER: Final = "Exclude the nodes of the DRA driver from the device plugin's DaemonSet (nodeSelector or affinity)."
_KEPT: Final = "The Node's Events (DeviceKept) and the log of its kubelet plugin say why."
_SWITCH: Final = f"The label {names.LABEL_ULTRASERVER_PUBLISH} of the nodes chooses: devices or node."

BOTH, DEVICES, NODE = "both", "devices", "node"
_ULTRASERVERS: Final = {
    BOTH: (CheckResult.WELL, "UltraServer nodes that publish their devices and the whole node"),
    DEVICES: (CheckResult.NOTE, "UltraServer nodes that publish only single devices, where no pod gets a whole node"),
    NODE: (CheckResult.NOTE, "UltraServer nodes that publish only the whole node, where no pod gets single devices"),
}


class Offers:
    """What each node publishes in the newest generation of its pool."""

    def __init__(self, slices: Iterable[Slice]) -> None:
        self.devices: defaultdict[str, list[PublishedDevice]] = defaultdict(list)
        """The single devices, by node."""
        self.whole: dict[str, PublishedDevice] = {}
        """The device that stands for the whole node, by node."""
        self.pools: set[str] = set()
        """Nodes with slices, also with empty ones."""
        self.held: defaultdict[str, list[str]] = defaultdict(list)
        """Devices that the driver keeps from new claims, by node."""
        self._open: set[str] = set()
        for each in newest(slices):
            self.pools.add(each.node)
            for device in each.devices:
                self._take(each.node, device)

    def _take(self, node: str, device: PublishedDevice) -> None:
        if device.is_single:
            self.devices[node].append(device)
        elif device.is_whole_node:
            self.whole[node] = device
        keys = {taint.key for taint in device.taints}
        if names.TAINT_HELD in keys and not device.is_whole_node:
            self.held[node].append(device.name)
        if names.TAINT_DEVICE_PLUGIN not in keys:
            self._open.add(node)

    @property
    def nodes(self) -> set[str]:
        """Nodes that publish anything."""
        return {*self.devices, *self.whole}

    def is_open(self, node: str) -> bool:
        """Whether a new claim may get a device of the node: not all are tainted for a device plugin."""
        return node in self._open


def check_owners(offers: Offers, plugin: Collection[str]) -> Iterator[StatusLine]:
    """Check nodes whose devices a device plugin offers, too.

    Args:
        offers: what the driver publishes.
        plugin: nodes with allocatable legacy resources.
    """
    shared = {node for node in plugin if offers.is_open(node)}
    held = {node for node in plugin if node in offers.pools} - shared
    if shared:
        text = f"the same devices are offered by device plugin and DRA driver, on {listed(shared)}."
        yield StatusLine(NODES, CheckResult.WRONG, text, _ONE_OWNER)
    if held:
        text = f"the DRA driver gives no device to new claims, because a device plugin offers them, on {listed(held)}."
        yield StatusLine(NODES, CheckResult.NOTE, text, _ONE_OWNER)
    if alone := {node for node in plugin if node not in offers.pools}:
        text = f"nodes with the device plugin only, where converted pods cannot run: {listed(alone)}."
        yield StatusLine(NODES, CheckResult.NOTE, text)


def check_held(offers: Offers, partial: Collection[str]) -> Iterator[StatusLine]:
    """Report devices that new claims do not get: those that the driver holds, and those that it does not publish.

    Args:
        offers: what the driver publishes.
        partial: nodes some of whose slices are missing.
    """
    if offers.held:
        devices = [f"{node} ({listed(found)})" for node, found in offers.held.items()]
        text = f"devices of claims that no longer exist, which new claims do not get: {listed(devices)}."
        yield StatusLine(NODES, CheckResult.NOTE, text, _KEPT)
    catalogue = Catalogue()
    fewer = []
    for node, found in offers.devices.items():
        entry = catalogue.get(found[0].text(names.ATTRIBUTE_INSTANCE_TYPE))
        if node not in partial and entry is not None and len(found) < (entry.devices or 0):
            fewer.append(f"{node} ({len(found)} of {entry.devices})")
    if fewer:
        text = f"nodes that publish fewer devices than their type has: {listed(fewer)}."
        yield StatusLine(NODES, CheckResult.NOTE, text, _KEPT)


def check_ultraservers(offers: Offers) -> Iterator[StatusLine]:
    """Report what UltraServer nodes publish. Without shared counters it is the devices or the whole node."""
    catalogue = Catalogue()
    found: dict[str, list[str]] = {BOTH: [], DEVICES: [], NODE: []}
    for node in sorted(offers.nodes):
        device = offers.whole.get(node) or offers.devices[node][0]
        entry = catalogue.get(device.text(names.ATTRIBUTE_INSTANCE_TYPE))
        if entry is not None and entry.ultraserver_nodes:
            single, whole = node in offers.devices, node in offers.whole
            found[BOTH if single and whole else DEVICES if single else NODE].append(node)
    for kind, (verdict, text) in _ULTRASERVERS.items():
        if found[kind]:
            fix = _SWITCH if verdict is CheckResult.NOTE else ""
            yield StatusLine(NODES, verdict, f"{text}: {listed(found[kind])}.", fix)
