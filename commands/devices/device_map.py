"""Makes the device map of a snapshot: which devices there are, who holds them, what is still free and connected."""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Final, TypeVar

from commands.cluster.reader import ENDED, Object, Unseen, items
from commands.cluster.snapshot import ClusterSnapshot
from commands.devices.devices import (
    ONLY_PLUGIN,
    PLUGIN_FIRST,
    Device,
    DeviceMap,
    HeldDevice,
    NodeMap,
    PluginUse,
    Stray,
    UltraServerPlace,
    connected_groups,
    connected_places,
    existing_links,
    largest_connected,
    topology_of,
)
from conversion.claims.containers import scheduled
from neuron import names
from neuron.api.nodes import Node
from neuron.api.slices import PublishedDevice, Slice, incomplete, newest
from neuron.api.stored_claims import StoredClaim
from neuron.api.taints import Taint
from neuron.hardware.instances import Catalogue, InstanceType
from neuron.quantities import NotAQuantityError, parse_amount
from runtime.text import named

_ULTRASERVER_SIZES: Final = (4, 2)
_LEAVING: Final = (
    "karpenter.sh/",
    "ToBeDeletedByClusterAutoscaler",
    "aws-node-termination-handler/",
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
)
"""Taints of nodes that are not ready for pods, or are about to go: no workload tolerates them. Sources: Karpenter
(karpenter.sh/disrupted, karpenter.sh/unregistered), Cluster Autoscaler, AWS Node Termination Handler, Kubernetes."""

T = TypeVar("T")

_Place = tuple[str, str]
"""Pool and name of a device."""


def build(snapshot: ClusterSnapshot, catalogue: Catalogue | None = None) -> DeviceMap:
    """The map of all nodes that publish Neuron devices, or on which a device plugin offers some.

    Args:
        catalogue: with the instance types of policy files, if there are any.
    """
    known = catalogue or Catalogue()
    nodes = {node.name: node for node in items(snapshot.nodes)}
    slices = newest(items(snapshot.slices))
    partial = incomplete(slices)
    by_pool: defaultdict[str, list[Slice]] = defaultdict(list)
    for each in slices:
        by_pool[each.pool].append(each)
    held, lookers = _holdings(items(snapshot.claims))
    plugin_pods = _plugin_pods(items(snapshot.pods))
    found: list[NodeMap] = []
    places: set[_Place] = set()
    for pool, parts in by_pool.items():
        published = [device for part in parts for device in part.devices]
        places.update((pool, device.name) for device in published)
        name = parts[0].node
        reader = _NodeReader(known, nodes.get(name), held, lookers)
        found.append(reader.node(pool, name, published, plugin_pods.get(name, {}), partial.get(pool)))
    drawn = {node.name for node in found}
    for name, node in nodes.items():
        if name not in drawn and node.legacy:
            found.append(_NodeReader(known, node, {}, {}).node(name, name, [], plugin_pods.get(name, {}), None))
    strays = tuple(
        Stray(holding, pool, device)
        for (pool, device), holders in sorted(held.items())
        if (pool, device) not in places
        for holding in holders
    )
    return DeviceMap(tuple(sorted(found, key=lambda node: node.name)), strays, tuple(_problems(snapshot)))


def _problems(snapshot: ClusterSnapshot) -> Iterable[str]:
    consequences = {
        "slices": "No device can be shown.",
        "claims": "Devices that claims hold are shown as free.",
        "nodes": "Cordoned nodes, UltraServers and device plugins are not shown.",
        "rules": "Devices that DeviceTaintRules taint are shown as free.",
        "pods": "What pods use through a device plugin is not shown.",
    }
    for field, consequence in consequences.items():
        seen = getattr(snapshot, field)
        if isinstance(seen, Unseen):
            yield seen.told(consequence)


# --- who holds what -----------------------------------------------------------------------------------------


def _holdings(claims: Iterable[StoredClaim]) -> tuple[dict[_Place, list[HeldDevice]], dict[_Place, list[HeldDevice]]]:
    """Holders and lookers of each device."""
    held: defaultdict[_Place, list[HeldDevice]] = defaultdict(list)
    looking: defaultdict[_Place, list[HeldDevice]] = defaultdict(list)
    for claim in claims:
        metadata = claim.metadata
        pods = tuple(sorted(each.name for each in claim.pods))
        groups = tuple(sorted(each.name for each in claim.groups))
        for result in claim.ours:
            about = metadata.namespace, metadata.name, metadata.uid
            holding = HeldDevice(*about, pods, result.request, _cores(result.cores), groups=groups)
            (looking if result.admin_access else held)[result.pool, result.device].append(holding)
    return dict(held), dict(looking)


def _plugin_pods(pods: Iterable[Object]) -> Mapping[str, Mapping[str, int]]:
    """Devices that running pods request from the device plugin: by node, by `namespace/name`."""
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for pod in pods:
        spec, metadata, status = pod["spec"], pod["metadata"], pod.get("status") or {}
        if not spec.get("nodeName") or status.get("phase") in ENDED:
            continue
        if spec.get("resourceClaims") or status.get("extendedResourceClaimStatus"):
            continue
        amounts = +scheduled(spec)
        if amounts:
            whole = sum(amount for name, amount in amounts.items() if name != names.RESOURCE_NEURONCORE)
            found[spec["nodeName"]][f"{metadata['namespace']}/{metadata['name']}"] = whole
    return found


# --- one node -----------------------------------------------------------------------------------------------


class _NodeReader:
    def __init__(
        self,
        catalogue: Catalogue,
        node: Node | None,
        held: Mapping[_Place, list[HeldDevice]],
        looking: Mapping[_Place, list[HeldDevice]],
    ) -> None:
        self._catalogue = catalogue
        self._node = node
        self._held = held
        self._looking = looking

    def node(
        self,
        pool: str,
        name: str,
        published: Collection[PublishedDevice],
        plugin_pods: Mapping[str, int],
        missing: tuple[int, int] | None,
    ) -> NodeMap:
        single = [each for each in published if each.is_single]
        wholes = [each for each in published if each.is_whole_node]
        said = next((each.text(names.ATTRIBUTE_INSTANCE_TYPE) for each in published), "")
        instance_type = said or (self._node.instance_type if self._node else "")
        entry = self._catalogue.get(instance_type)
        whole = self._device(pool, wholes[0], -1) if wholes else None
        everything = (
            tuple(dataclasses.replace(each, cores=None, whole_node=True) for each in whole.holders)
            if whole is not None
            else ()
        )
        devices = sorted(
            (self._device(pool, each, position, everything) for position, each in enumerate(single)),
            key=lambda device: device.index,
        )
        plugin: PluginUse | None = None
        if self._node is not None and self._node.legacy:
            plugin = PluginUse(self._node.legacy_devices, sum(plugin_pods.values()), tuple(sorted(plugin_pods)))
        if not devices:
            devices = _unpublished(entry, whole, everything, plugin)
        sets = connected_groups(
            {each.index: each.published.attributes for each in devices if each.published is not None}
        )
        indices = [device.index for device in devices]
        free = [device.index for device in devices if device.free]
        pairs = existing_links(entry, indices, sets)
        return NodeMap(
            name,
            instance_type,
            topology_of(entry, len(devices)),
            tuple(devices),
            whole,
            sets,
            pairs,
            largest_connected(entry, indices, free, sets, pairs),
            connected_places(entry, indices, free, sets, pairs),
            self._closed(missing, devices, whole),
            self._ultraserver(published),
            plugin,
            self._node.labels if self._node else {},
            tuple(taint.key for taint in self._taints() if not taint.key.startswith(_LEAVING)),
        )

    def _taints(self) -> list[Taint]:
        """Those that keep pods away, but the one that conversion tolerates."""
        taints = self._node.taints if self._node else ()
        return [taint for taint in taints if taint.prevents and taint.key != names.NEURON_TAINT_KEY]

    def _device(
        self, pool: str, published: PublishedDevice, position: int, everything: tuple[HeldDevice, ...] = ()
    ) -> Device:
        name, index = published.name, published.attribute(names.ATTRIBUTE_DEVICE_ID)
        return Device(
            name,
            index if isinstance(index, int) else position,
            published.taints,
            (*everything, *self._held.get((pool, name), ())),
            tuple(self._looking.get((pool, name), ())),
            _cores(None if published.cores is None else published.cores.value),
            published.shared,
            published,
        )

    def _closed(self, missing: tuple[int, int] | None, devices: list[Device], whole: Device | None) -> str:
        if not any(device.published is not None for device in devices) and whole is None:
            return ONLY_PLUGIN if devices else "the driver publishes no device"
        if all(device.with_plugin for device in ([whole] if whole else devices)):
            return PLUGIN_FIRST
        if missing is not None:
            return f"incomplete pool: {missing[0]} of {missing[1]} ResourceSlices"
        if self._node is not None and self._node.cordoned:
            return "cordoned"
        if self._node is not None and not self._node.ready:
            return "not ready"
        leaving = (taint.key for taint in self._taints() if taint.key.startswith(_LEAVING))
        return next((f"taint {named(key)}" for key in leaving), "")

    def _ultraserver(self, published: Iterable[PublishedDevice]) -> UltraServerPlace | None:
        """The place by the node's labels, else by the attributes of devices that AWS's UltraServer operator manages."""
        labels = self._node.labels if self._node else {}
        devices = list(published)
        workload = next(filter(None, (each.text(names.ATTRIBUTE_WORKLOAD) for each in devices)), "")
        for size in _ULTRASERVER_SIZES:
            server = labels.get(names.ultraserver_topology_label(size))
            if server:
                position = labels.get(f"{names.ULTRASERVER_LABELS}node-id-{size}", "")
                return UltraServerPlace(server, size, int(position) if position.isdecimal() else None, workload)
        operated = next(filter(None, (each.text(names.ATTRIBUTE_ULTRASERVER) for each in devices)), "")
        return UltraServerPlace(operated, 0, None, workload) if operated or workload else None


def _unpublished(
    entry: InstanceType | None, whole: Device | None, everything: tuple[HeldDevice, ...], plugin: PluginUse | None
) -> list[Device]:
    """Devices of a node that publishes none of them: they are part of a whole node, or a device plugin has them."""
    if whole is not None:
        count = (entry.devices if entry else None) or whole.index
        taints = whole.taints
    elif plugin is not None:
        count = plugin.devices or (entry.devices if entry else None) or 0
        taints = (Taint(names.TAINT_DEVICE_PLUGIN, "", "NoSchedule"),)
    else:
        return []
    cores = entry.cores_per_device if entry else None
    return [Device(f"device {index}", index, taints, everything, cores=cores, offered=False) for index in range(count)]


def _cores(amount: str | int | None) -> int | None:
    """Physical cores, rounded up; None if the capacity is missing or unreadable."""
    try:
        return None if amount is None else math.ceil(parse_amount(amount))
    except NotAQuantityError:
        return None
