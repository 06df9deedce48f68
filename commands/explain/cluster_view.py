"""The store of what `explain` read once: objects of files and of a cluster, slices and Nodes."""

from collections.abc import Iterable, Sequence

from cluster.kinds.nodes import neuron_kind
from cluster.kinds.resource_slices import slice_facts
from cluster.store import DEVICE_CLASS, KINDS, NODE, RESOURCE_SLICE
from commands.cluster.reader import Object
from commands.objects.file_store import FileStore
from commands.objects.manifests import Manifest
from neuron.api.nodes import Node
from neuron.api.slices import Slice
from runtime.api_server import Resource


def store_of(
    found: Sequence[Manifest],
    slices: Iterable[Slice] = (),
    nodes: Iterable[Node] = (),
    *,
    live: bool = False,
    listed: Iterable[tuple[str, str]] = (),
    kubernetes: str = "",
    unknown_pools: str = "",
) -> FileStore:
    """Make a store.

    Args:
        found: objects; of two with one name, the later one counts.
        slices: ResourceSlices of the driver.
        live: whether `found` has all DeviceClasses of a cluster.
        listed: kinds and namespaces of which `found` has all objects.
        kubernetes: version of the cluster's API server; empty: not known.
        unknown_pools: why the pools of the cluster are not known; empty if they are.
    """
    store = FileStore(found)
    for number, item in enumerate(slices):
        facts = slice_facts(item)
        if facts is not None:
            store.put(RESOURCE_SLICE, ("", str(number)), facts)
    for node in nodes:
        kind = neuron_kind(node)
        if kind is not None:
            store.put(NODE, ("", node.name), kind)
    if live:
        store.complete(DEVICE_CLASS)
    for name, namespace in listed:
        if name in KINDS:
            store.complete(KINDS[name], namespace)
    store.set_kubernetes_version(kubernetes)
    store.unlisted_pools(lambda: unknown_pools)
    return store


def live_manifest(item: Object, resource: Resource, kind: str) -> Manifest:
    """An object of a list or answer of the API server, whose items have no kind."""
    version = f"{resource.group}/{resource.version}" if resource.group else resource.version
    metadata = item.get("metadata") or {}
    data = {"apiVersion": version, "kind": kind, **item}
    namespace, name = str(metadata.get("namespace") or ""), str(metadata.get("name") or "")
    return Manifest((), data, resource.group, kind, namespace, namespace, name)
