"""The node's own Node object at the API server: follow, label and report. Implements `ports.OwnNodeStore`."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Final
from urllib.parse import quote

from kubeletplugin.kube import KubeApi
from kubeletplugin.ports import JsonObject, KubeError
from runtime.media_types import MERGE_PATCH

EVENT_NAMESPACE: Final = "default"
"""Of Events about Nodes, which have no namespace."""

_NODES: Final = "/api/v1/nodes"


class NodeApi:
    """The Node of the driver. A list and a watch see it only, by a field selector."""

    def __init__(self, api: KubeApi, node_name: str) -> None:
        self._api = api
        self._name = node_name
        self._path = f"{_NODES}/{quote(node_name)}"

    async def node(self) -> JsonObject:
        """See `ports.OwnNodeStore`."""
        return await self._api.call("GET", self._path)

    async def follow(self) -> AsyncIterator[JsonObject]:
        """See `ports.OwnNodeStore`."""
        query = {"fieldSelector": f"metadata.name={self._name}"}
        # A watch cannot begin at the Node's own resourceVersion, which may be too old.
        found = await self._api.call("GET", _NODES, query)
        try:
            items, version = found["items"], found["metadata"]["resourceVersion"]
        except (KeyError, TypeError) as error:
            raise KubeError(f"The list of Nodes cannot be read: {error!r}") from error
        for item in items or ():
            yield item
        async with contextlib.aclosing(
            self._api.events(_NODES, query | {"resourceVersion": version}, "Nodes")
        ) as events:
            async for kind, body in events:
                if kind != "DELETED":
                    yield body

    async def label(self, labels: Mapping[str, str | None]) -> JsonObject:
        """See `ports.OwnNodeStore`."""
        patch = {"metadata": {"labels": dict(labels)}}
        return await self._api.call("PATCH", self._path, body=patch, content_type=MERGE_PATCH)

    async def report(self, event: Mapping[str, object]) -> None:
        """See `ports.OwnNodeStore`."""
        await self._api.call("POST", f"/api/v1/namespaces/{EVENT_NAMESPACE}/events", body=event)
