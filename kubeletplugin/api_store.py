"""Claims, and the driver's own Node and its ResourceSlices, as the API server stores them.

The transport is `runtime.api_transport`; `runtime.watching` lists and watches. Objects stay plain JSON. All callers see
`resource.k8s.io/v1`; for clusters that serve only beta versions, slices are translated here.
"""

import contextlib
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cluster.resources import CORE_EVENTS, NODES
from kubeletplugin.ports import WAITS, JsonObject
from neuron import names
from neuron.api.resource_versions import VERSIONS, converted
from runtime.answers import identity
from runtime.api_server import (
    APPLY,
    CONFLICT,
    JSON,
    MERGE_PATCH,
    NOT_FOUND,
    RESOURCE_GROUP,
    ApiAnswerError,
    ApiServerError,
    Collection,
    Resource,
    StatusError,
    UnreadableAnswerError,
    kubernetes_version,
    served_versions,
)
from runtime.api_transport import Connection, load_configuration
from runtime.retries import REQUEST_TIMEOUT
from runtime.watching import DELETED, Timing, Watching

EVENT_NAMESPACE: Final = "default"
"""Namespace of Events about Nodes, which have no namespace."""
_SLICE: Final = "ResourceSlice"
_PAGE: Final = 500
_OUTSIDE: Final = "outside a pod, name a kubeconfig with --kubeconfig"

_log = logging.getLogger(__name__)


async def connect(kubeconfig: Path | None, node_name: str) -> "ApiStore":
    """Make a client; nothing is sent yet.

    Args:
        kubeconfig: file with cluster and user; None: the pod's service account.

    Raises:
        ClusterUnavailableError: the configuration cannot be used.
    """
    connection = await Connection.open(lambda: load_configuration(kubeconfig, otherwise=_OUTSIDE), names.DRIVER_PROGRAM)
    return ApiStore(connection, node_name)


class ApiStore:
    """ResourceClaims, and the ResourceSlices of this driver on this node, in `resource.k8s.io/v1` form; and the Node.

    Of Nodes and slices, lists and watches see only its own, by field selectors. All methods raise `ApiServerError`.
    """

    def __init__(self, connection: Connection, node_name: str) -> None:
        self._connection = connection
        self._node_name = node_name
        self._node_path = NODES.path(name=node_name)
        self._node_watching = self._watching(Collection(NODES, name=node_name), page_size=0)
        self._version: str | None = None

    def skew(self) -> float:
        """By how many seconds the API server's clock is ahead of ours."""
        return self._connection.skew.total_seconds()

    async def close(self) -> None:
        """Close all connections."""
        await self._connection.close()

    # --- reading ------------------------------------------------------------------------------------------

    async def claim(self, namespace: str, name: str) -> JsonObject | None:
        """The claim; None if it does not exist."""
        try:
            return await self._call("GET", (await self._resource("resourceclaims")).path(namespace, name))
        except StatusError as error:
            if error.code == NOT_FOUND and error.reason == "NotFound":
                return None
            raise

    async def apply_devices(
        self,
        namespace: str,
        name: str,
        uid: str,
        devices: Sequence[Mapping[str, object]],
        *,
        resource_version: str | None = None,
    ) -> JsonObject | None:
        """Make `devices` this driver's entries in `status.devices`, and remove its others; returns the claim as stored.

        Returns None if there is no claim of that name and UID, or if it has another `resource_version`, where that is
        given. Entries of other writers stay.
        """
        claims = await self._resource("resourceclaims")
        metadata = {"namespace": namespace, "name": name, "uid": uid}
        if resource_version is not None:
            metadata["resourceVersion"] = resource_version
        body: JsonObject = {
            "apiVersion": f"{RESOURCE_GROUP}/{claims.version}",
            "kind": "ResourceClaim",
            "metadata": metadata,
            "status": {"devices": list(devices)},
        }
        path = f"{claims.path(namespace, name)}/status"
        # Forced: no other client manages the entries of this driver.
        query = {"fieldManager": names.DRIVER, "force": "true"}
        try:
            return await self._call("PATCH", path, query, body, APPLY)
        except StatusError as error:
            if error.code in (NOT_FOUND, CONFLICT):  # a conflict: another UID or resourceVersion
                return None
            raise

    async def kubernetes(self) -> str:
        """The version of the API server, such as `v1.36.2`; empty if it does not say."""
        return await kubernetes_version(self._connection, REQUEST_TIMEOUT)

    # --- the Node -------------------------------------------------------------------------------------------

    async def node(self) -> JsonObject:
        """The Node object."""
        return await self._call("GET", self._node_path)

    async def follow(self) -> AsyncIterator[JsonObject]:
        """The Node object after each change, until the server ends the watch; first the present one if changes may have
        been missed since the last call."""
        # A watch cannot begin at the Node's own resourceVersion, which may be too old.
        if not self._node_watching.version:
            for body in await self._list(self._node_watching):
                yield body
        async with contextlib.aclosing(self._events(self._node_watching)) as events:
            async for kind, body in events:
                if kind != DELETED:
                    yield body

    async def label(self, labels: Mapping[str, str | None]) -> JsonObject:
        """Set labels, remove those with the value None; returns the Node as stored."""
        patch = {"metadata": {"labels": dict(labels)}}
        return await self._call("PATCH", self._node_path, body=patch, content_type=MERGE_PATCH)

    async def report(self, event: Mapping[str, object]) -> None:
        """Create an Event (`v1`) about the Node."""
        await self._call("POST", CORE_EVENTS.path(EVENT_NAMESPACE), body=event)

    # --- slices -------------------------------------------------------------------------------------------

    async def slices(self) -> tuple[list[JsonObject], str]:
        """The slices and the resourceVersion from which to watch."""
        collection = await self._slices()
        watching = self._watching(collection)
        found = await self._list(watching)
        return [to_v1(body, collection.resource.version) for body in found], watching.version

    async def watch(self, resource_version: str) -> AsyncIterator[tuple[str, JsonObject]]:
        """Types and slices of the changes since a resourceVersion, until the server ends the watch."""
        collection = await self._slices()
        watching = self._watching(collection)
        watching.version = resource_version
        async with contextlib.aclosing(self._events(watching)) as events:
            async for kind, body in events:
                yield kind, to_v1(body, collection.resource.version)

    async def keeps_taints(self) -> bool:
        """Whether the API server keeps device taints: it drops them if their feature is disabled. Nothing is stored."""
        device = {"name": "probe", "taints": [{"key": names.DRIVER, "effect": "NoSchedule"}]}
        pool = {"name": self._node_name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": names.DRIVER, "nodeName": self._node_name, "pool": pool, "devices": [device]}
        body = {"kind": "ResourceSlice", "metadata": {"generateName": "neuron-dra-probe-"}, "spec": spec}
        slices = await self._resource("resourceslices")
        try:
            stored = await self._call("POST", slices.path(), {"dryRun": "All"}, body=from_v1(body, slices.version))
        except ApiServerError as error:
            if error.passing:
                raise
            _log.warning("the API server refuses a dry run", extra={"error": str(error)})
            return False
        return all("taints" in device for device in to_v1(stored, slices.version)["spec"]["devices"])

    async def create(self, body: Mapping[str, object]) -> JsonObject:
        """Create a slice; returns it as stored."""
        slices = await self._resource("resourceslices")
        return to_v1(await self._call("POST", slices.path(), body=from_v1(body, slices.version)), slices.version)

    async def update(self, body: Mapping[str, Any]) -> JsonObject:
        """Replace a slice whose resourceVersion is `body`'s; returns it as stored."""
        slices = await self._resource("resourceslices")
        path = slices.path(name=body["metadata"]["name"])
        return to_v1(await self._call("PUT", path, body=from_v1(body, slices.version)), slices.version)

    async def delete(self, name: str) -> None:
        """Delete a slice if it exists."""
        try:
            await self._call("DELETE", (await self._resource("resourceslices")).path(name=name))
        except StatusError as error:
            if error.code != NOT_FOUND:
                raise

    # --- transport ----------------------------------------------------------------------------------------

    async def _slices(self) -> Collection:
        """The slices of this driver on this node: it may see no others."""
        selector = f"spec.nodeName={self._node_name},spec.driver={names.DRIVER}"
        return Collection(await self._resource("resourceslices"), parameters={"fieldSelector": selector})

    async def _resource(self, plural: str) -> Resource:
        """A resource of Dynamic Resource Allocation in the best version that the cluster serves."""
        if self._version is None:
            served = await served_versions(self._connection, REQUEST_TIMEOUT)
            self._version = next((version for version in VERSIONS if version in served), None)
            if self._version is None:
                listed = ", ".join(sorted(served)) or "none"
                raise ApiServerError(
                    f"The cluster serves no usable version of {RESOURCE_GROUP} (it serves {listed}): Dynamic Resource "
                    "Allocation needs Kubernetes 1.34, or 1.32 with its beta API enabled."
                )
        return Resource(RESOURCE_GROUP, self._version, plural)

    def _watching(self, collection: Collection, *, page_size: int = _PAGE) -> Watching:
        """Lists and watches of a collection, for `_list` and `_events`."""
        timing = Timing(list_timeout=REQUEST_TIMEOUT, watch_timeout=WAITS.watch)
        return Watching(self._connection, collection, timing=timing, page_size=page_size)

    async def _list(self, watching: Watching) -> list[JsonObject]:
        """The objects of a collection. Unreadable ones are left out. Raises ApiServerError.

        A watch can begin where the list ends.
        """
        items: list[JsonObject] = []

        def take(raw: memoryview) -> None:
            if (item := _read(bytes(raw), watching.collection.resource.plural)) is not None:
                items.append(item)

        try:
            await watching.list(take, items.clear)
        except ApiServerError as error:
            watching.failed(error)
            if isinstance(error, StatusError) and error.code == NOT_FOUND:
                self._version = None  # the cluster was upgraded or downgraded
            raise
        return items

    async def _events(self, watching: Watching) -> AsyncGenerator[tuple[str, JsonObject], None]:
        """Types and objects of a watch's events, until the server ends it. Raises ApiServerError.

        The next watch resumes where this one ends, unless that cannot work.
        """
        try:
            async with contextlib.aclosing(watching.events()) as events:
                async for change, raw in events:
                    body = _read(raw, watching.collection.resource.plural)
                    if body is None:
                        raise ApiAnswerError("an object cannot be read")
                    yield change, body
                    watching.version = (body.get("metadata") or {}).get("resourceVersion") or watching.version
        except ApiServerError as error:
            watching.failed(error)
            raise

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
    ) -> JsonObject:
        """The object that the API server answers. Raises ApiServerError."""
        content = await self._connection.request(
            method, path, timeout=REQUEST_TIMEOUT, query=query, body=body, content_type=content_type
        )
        try:
            answer = json.loads(content)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ApiAnswerError(f"the answer to {method} {path} is not JSON: {error}") from error
        except (RecursionError, ValueError) as error:
            raise UnreadableAnswerError(
                f"{path} is stored and cannot be read: it is nested too deeply, or has a number that is too long"
            ) from error
        if not isinstance(answer, dict):
            raise ApiAnswerError(f"the answer to {method} {path} is not a JSON object")
        return answer


def _read(raw: bytes, plural: str) -> JsonObject | None:
    """An object of a list; None, with a line in the log, if it cannot be read."""
    try:
        item = json.loads(raw)
    except (RecursionError, ValueError) as error:
        found = identity(raw)
        name = f"{found.namespace}/{found.name}" if found.namespace else found.name
        _log.warning("object left out", extra={"object": f"{plural} {name}", "error": type(error).__name__})
        return None
    return item if isinstance(item, dict) else None


def to_v1(body: JsonObject, version: str) -> JsonObject:
    """A ResourceSlice of a version as v1. The items of a list have no `apiVersion` of their own."""
    made: JsonObject = converted(_SLICE, {**body, "apiVersion": f"{RESOURCE_GROUP}/{version}"}, VERSIONS[0])
    spec = made.get("spec") or {}
    if "devices" in spec and spec["devices"] is None:
        made["spec"] = {**spec, "devices": []}  # Kubernetes 1.34 returns an empty list as null.
    return made


def from_v1(body: Mapping[str, object], version: str) -> JsonObject:
    """A v1 ResourceSlice in another version."""
    made: JsonObject = converted(_SLICE, {**body, "apiVersion": f"{RESOURCE_GROUP}/{VERSIONS[0]}"}, version)
    return made
