"""The node's own Node object at the API server: follow, label and report."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Final

from cluster.resources import CORE_EVENTS, NODES
from kubeletplugin.api_store import ApiStore
from kubeletplugin.ports import JsonObject
from runtime.api_server import Collection
from runtime.media_types import MERGE_PATCH
from runtime.watching import DELETED

EVENT_NAMESPACE: Final = "default"
"""Namespace of Events about Nodes, which have no namespace."""


class NodeApi:
    """The Node of the driver. A list and a watch see it only, by a field selector."""

    def __init__(self, api: ApiStore, node_name: str) -> None:
        self._api = api
        self._path = NODES.path(name=node_name)
        self._watching = api.watching(Collection(NODES, name=node_name), page_size=0)

    async def node(self) -> JsonObject:
        """The Node object."""
        return await self._api.call("GET", self._path)

    async def follow(self) -> AsyncIterator[JsonObject]:
        """The Node object after each change, until the server ends the watch; first the present one if changes may have
        been missed since the last call."""
        # A watch cannot begin at the Node's own resourceVersion, which may be too old.
        if not self._watching.version:
            for body in await self._api.list(self._watching, "Nodes"):
                yield body
        async with contextlib.aclosing(self._api.events(self._watching, "Nodes")) as events:
            async for kind, body in events:
                if kind != DELETED:
                    yield body

    async def label(self, labels: Mapping[str, str | None]) -> JsonObject:
        """Set labels, remove those with the value None; returns the Node as stored."""
        patch = {"metadata": {"labels": dict(labels)}}
        return await self._api.call("PATCH", self._path, body=patch, content_type=MERGE_PATCH)

    async def report(self, event: Mapping[str, object]) -> None:
        """Create an Event (`v1`)."""
        await self._api.call("POST", CORE_EVENTS.path(EVENT_NAMESPACE), body=event)
