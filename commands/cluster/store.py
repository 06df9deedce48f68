"""Reads a store of the cluster: one list of each kind, by the kinds' own descriptions (`cluster.collections`).

A list shows the most recent state (`runtime.answers`). Nothing is followed afterwards.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

import msgspec

from cluster.bounded_objects import Holdings, Key
from cluster.collections import OTHERS, RESIZERS, SUPPLIES, TEMPLATES, KeptKind
from cluster.look_ups import LookUps
from cluster.reflector import ObjectReader
from cluster.store import Store, StoredKind
from commands.cluster.reader import ClusterReader, Seen, Unseen, is_missing, items, unseen
from runtime.api_server import JSON, PARTIAL_LIST, ApiServerError, ClusterUnavailableError, explain
from runtime.watching import Counters

T = TypeVar("T")
Kept: TypeAlias = Seen[tuple[Key, T]]
"""What a store keeps of all objects of a kind, by key."""


async def read_store(
    reader: ClusterReader, address: str, have: Mapping[StoredKind[Any], Kept[Any]] | None = None
) -> Store:
    """The store of a cluster as it is now; it asks the API server for the claims that pods name (`Store.exist`).

    Args:
        address: of the API server, for messages.
        have: what the caller has read, by kind: it is not read again.

    Raises:
        ApiServerError: the cluster does not answer.
        ClusterUnavailableError: a kind without which nothing can be said cannot be listed.
    """
    known = have or {}
    store = Store(look_up=LookUps(reader.server, lambda: float("inf")).exist)
    version = await reader.version()
    store.set_kubernetes_version("" if isinstance(version, Unseen) else version)
    kept: tuple[KeptKind[Any], ...] = (RESIZERS, TEMPLATES, *OTHERS, *SUPPLIES)
    found = {**known, **await read_kinds(reader, (each for each in kept if each.kind not in known))}
    problems = {each.kind: _problem(each, found[each.kind]) for each in kept}
    fatal = dict.fromkeys(filter(None, (problems[each.kind] for each in kept if each.needed)))
    if fatal:
        raise ClusterUnavailableError(f"the cluster at {address} cannot be used: {'; '.join(fatal)}")
    fill(store, found)
    store.unseen = problems[RESIZERS.kind]
    unlisted = next(filter(None, (problems[each.kind] for each in SUPPLIES)), "")
    store.unlisted_pools(lambda: unlisted)
    return store


async def read_kinds(reader: ClusterReader, kinds: Iterable[KeptKind[Any]]) -> dict[StoredKind[Any], Kept[Any]]:
    """What is kept of all objects of some kinds. A collection that a cluster need not have is empty if it has none."""
    wanted = tuple(kinds)
    read = await asyncio.gather(*(_read(reader, each) for each in wanted))
    return {each.kind: seen for each, seen in zip(wanted, read, strict=True)}


def fill(store: Store, found: Mapping[StoredKind[Any], Kept[Any]]) -> None:
    """Put what was read of some kinds into a store. A kind that was seen is complete."""
    for kind, seen in found.items():
        for key, projection in items(seen):
            store.put(kind, key, projection)
        if not isinstance(seen, Unseen):
            store.complete(kind)


def _problem(kept: KeptKind[Any], seen: Kept[Any]) -> str:
    """Why the objects of a kind cannot be listed, as a clause; empty if they were."""
    if not isinstance(seen, Unseen):
        return ""
    return seen.why if seen.error is None else explain(seen.error, "list", kept.collection.resource)


async def _read(reader: ClusterReader, kept: KeptKind[T]) -> Kept[T]:
    """What is kept of all objects of a kind."""
    objects = ObjectReader(kept.collection.resource, kept.projection, Counters())
    found: Holdings[T] = Holdings(kept.projection.bounds)

    def restart() -> None:
        nonlocal found
        found = Holdings(kept.projection.bounds)

    def take(raw: msgspec.Raw) -> None:
        key, _, projection = objects.read(memoryview(raw))
        if projection is not None:
            found.put(key, projection)

    for served in filter(None, (kept.collection, kept.older)):
        accept = PARTIAL_LIST if served.metadata_only else JSON
        try:
            await reader.read(served.resource, take, restart, accept=accept, **served.query)
            break
        except ApiServerError as error:
            if kept.installed or not is_missing(error):
                return unseen(error, served.resource, "list")
    return tuple(found.items())
