"""The store of what `explain` read once: objects of files and of a cluster."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cluster.store import KINDS, StoredKind
from commands.cluster.reader import Object
from commands.cluster.store import Kept, fill
from commands.objects.file_store import FileStore
from commands.objects.manifests import Manifest
from runtime.api_server import Resource


def store_of(
    found: Sequence[Manifest],
    seen: Mapping[StoredKind[Any], Kept[Any]] | None = None,
    *,
    listed: Iterable[tuple[str, str]] = (),
    kubernetes: str = "",
    unknown_pools: str = "",
) -> FileStore:
    """Make a store.

    Args:
        found: objects; of two with one name, the later one counts. They count before `seen`.
        seen: what was read of kinds (`commands.devices.snapshot.stored`).
        listed: kinds and namespaces of which `found` has all objects.
        kubernetes: version of the cluster's API server; empty: not known.
        unknown_pools: why the pools of the cluster are not known; empty if they are.
    """
    store = FileStore()
    fill(store, seen or {})
    for each in found:
        store.take(each)
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
