"""Fills a store with one list of each kind: what commands know of a cluster.

A list shows the most recent state (`runtime.paging`). Nothing is followed afterwards.
"""

import asyncio
from typing import Any, Final, TypeVar

from cluster.bounded_objects import Holdings
from cluster.collections import OTHERS, RESIZERS, SUPPLIES, TEMPLATES, KeptKind
from cluster.look_ups import LookUps
from cluster.object_reader import ObjectReader
from cluster.store import Store
from runtime.api_errors import NOT_FOUND, ApiServerError, ClusterUnavailableError, StatusError
from runtime.api_server import ApiServer
from runtime.explanations import explain
from runtime.served_versions import kubernetes_version
from runtime.watching import Counters, Watching

T = TypeVar("T")

_ANSWER_TIMEOUT: Final = 10.0
"""Seconds in which the API server must answer a user's command."""


async def read_cluster(server: ApiServer, address: str) -> Store:
    """The store of a cluster as it is now; it asks the API server for the claims that pods name (`Store.exist`).

    Args:
        address: of the API server, for messages.

    Raises:
        ApiServerError: the cluster does not answer.
        ClusterUnavailableError: a kind without which nothing can be said cannot be listed.
    """
    store = Store(look_up=LookUps(server, lambda: float("inf")).exist)
    store.set_kubernetes_version(await kubernetes_version(server, _ANSWER_TIMEOUT))
    kept: tuple[KeptKind[Any], ...] = (RESIZERS, TEMPLATES, *OTHERS, *SUPPLIES)
    store.unseen, *problems = await asyncio.gather(*(_fill(store, server, each) for each in kept))
    unseen = dict.fromkeys(problem for each, problem in zip(kept[1:], problems, strict=True) if each.needed and problem)
    if unseen:
        raise ClusterUnavailableError(f"the cluster at {address} cannot be used: {'; '.join(unseen)}")
    unlisted = next(filter(None, problems), "")
    store.unlisted_pools(lambda: unlisted)
    return store


async def _fill(store: Store, server: ApiServer, kept: KeptKind[T]) -> str:
    """Put all objects of a kind into a store. Returns why they cannot be listed, as a clause; empty if they were."""
    reader = ObjectReader(kept.collection.resource, kept.projection, Counters())
    found: Holdings[T] = Holdings(kept.projection.bounds)

    def restart() -> None:
        nonlocal found
        found = Holdings(kept.projection.bounds)

    def take(raw: memoryview) -> None:
        key, _, projection = reader.read(raw)
        if projection is not None:
            found.put(key, projection)

    for served in filter(None, (kept.collection, kept.older)):
        try:
            await Watching(server, served).list(take, restart)
            break
        except ApiServerError as error:
            if kept.installed or not isinstance(error, StatusError) or error.code != NOT_FOUND:
                return explain(error, "list", served.resource)
    for key, projection in found.items():
        store.put(kept.kind, key, projection)
    store.complete(kept.kind)
    return ""
