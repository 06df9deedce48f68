"""The API server for the driver: claims and the node's ResourceSlices. Implements ports of `ports`.

The transport is `runtime.api_transport`. Objects stay plain JSON. All callers see `resource.k8s.io/v1`; for clusters
that serve only beta versions, slices are translated here.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec

from kubeletplugin.ports import JsonObject, KubeError, SliceEvent, UnreadableObjectError
from neuron import names
from runtime import answers, paging, raw_objects
from runtime.api_errors import CONFLICT, NOT_FOUND, ApiServerError, StatusError, TooLongError
from runtime.api_transport import LONGEST_ANSWER, Connection, load_configuration
from runtime.media_types import JSON
from runtime.text import cited

GROUP: Final = "resource.k8s.io"
VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
"""Versions that serve slices and claims, best first."""

_REQUEST_SECONDS: Final = 10.0
_WATCH_SECONDS: Final = 290
_WATCH_GRACE_SECONDS: Final = 30
_PAGE: Final = 500
_APPLY: Final = "application/apply-patch+yaml"
_USER_AGENT: Final = "neuron-dra-kubelet-plugin"
_OUTSIDE: Final = "outside a pod, name a kubeconfig with --kubeconfig"

_log = logging.getLogger(__name__)


async def connect(kubeconfig: Path | None, node_name: str) -> "KubeApi":
    """Make a client; nothing is sent yet.

    Args:
        kubeconfig: file with cluster and user; None: the pod's service account.
        node_name: the node of the driver.

    Raises:
        ClusterUnavailableError: the configuration cannot be used.
    """
    connection = await Connection.open(lambda: load_configuration(kubeconfig, otherwise=_OUTSIDE), _USER_AGENT)
    return KubeApi(connection, node_name)


class KubeApi:
    """Claims and the node's slices. Implements `ClaimReader`, `ClaimStatusStore` and `SliceStore` of `ports`."""

    def __init__(self, connection: Connection, node_name: str) -> None:
        self._connection = connection
        self._node_name = node_name
        self._version: str | None = None

    async def close(self) -> None:
        """Close all connections."""
        await self._connection.close()

    # --- reading ------------------------------------------------------------------------------------------

    async def claim(self, namespace: str, name: str) -> JsonObject | None:
        """See `ports.ClaimReader`."""
        path = f"{await self._root()}/namespaces/{quote(namespace)}/resourceclaims/{quote(name)}"
        try:
            return await self.call("GET", path)
        except KubeError as error:
            if error.status == NOT_FOUND and error.reason == "NotFound":
                return None
            raise

    async def claims(self) -> list[JsonObject]:
        """See `ports.ClaimReader`."""
        items, _ = await self._list("resourceclaims", {}, _allocated_by_us)
        return items

    async def apply_devices(
        self, namespace: str, name: str, uid: str, devices: Sequence[Mapping[str, Any]]
    ) -> JsonObject | None:
        """See `ports.ClaimStatusStore`."""
        root = await self._root()
        body: JsonObject = {
            "apiVersion": f"{GROUP}/{self._version}",
            "kind": "ResourceClaim",
            "metadata": {"namespace": namespace, "name": name, "uid": uid},
            "status": {"devices": list(devices)},
        }
        path = f"{root}/namespaces/{quote(namespace)}/resourceclaims/{quote(name)}/status"
        # Forced: no other client manages the entries of this driver.
        query = {"fieldManager": names.DRIVER, "force": "true"}
        try:
            return await self.call("PATCH", path, query, body, _APPLY)
        except KubeError as error:
            if error.status in (NOT_FOUND, CONFLICT):  # a conflict: a claim with another UID
                return None
            raise

    async def kubernetes(self) -> str:
        """See `ports.SliceStore`."""
        return str((await self.call("GET", "/version")).get("gitVersion") or "")

    # --- slices -------------------------------------------------------------------------------------------

    async def slices(self) -> tuple[list[JsonObject], str]:
        """See `ports.SliceStore`."""
        items, resource_version = await self._list("resourceslices", self._selector())
        return [to_v1(item) for item in items], resource_version

    async def watch(self, resource_version: str) -> AsyncIterator[SliceEvent]:
        """See `ports.SliceStore`."""
        query = self._selector() | {"resourceVersion": resource_version}
        path = f"{await self._root()}/resourceslices"
        async with contextlib.aclosing(self.events(path, query, "ResourceSlices")) as events:
            async for kind, body in events:
                yield SliceEvent(kind, to_v1(body))

    async def keeps_taints(self) -> bool:
        """See `ports.SliceStore`. A dry run: nothing is stored."""
        device = {"name": "probe", "taints": [{"key": names.DRIVER, "effect": "NoSchedule"}]}
        pool = {"name": self._node_name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": names.DRIVER, "nodeName": self._node_name, "pool": pool, "devices": [device]}
        body = {"kind": "ResourceSlice", "metadata": {"generateName": "neuron-dra-probe-"}, "spec": spec}
        root = await self._root()
        try:
            stored = await self.call("POST", f"{root}/resourceslices", {"dryRun": "All"}, body=self._from_v1(body))
        except KubeError as error:
            if error.retryable:
                raise
            _log.warning("the API server refuses a dry run", extra={"error": str(error)})
            return False
        return all("taints" in device for device in to_v1(stored)["spec"]["devices"])

    async def create(self, body: Mapping[str, Any]) -> JsonObject:
        """See `ports.SliceStore`."""
        root = await self._root()
        return to_v1(await self.call("POST", f"{root}/resourceslices", body=self._from_v1(body)))

    async def update(self, body: Mapping[str, Any]) -> JsonObject:
        """See `ports.SliceStore`."""
        path = f"{await self._root()}/resourceslices/{quote(body['metadata']['name'])}"
        return to_v1(await self.call("PUT", path, body=self._from_v1(body)))

    async def delete(self, name: str) -> None:
        """See `ports.SliceStore`."""
        try:
            await self.call("DELETE", f"{await self._root()}/resourceslices/{quote(name)}")
        except KubeError as error:
            if error.status != NOT_FOUND:
                raise

    # --- transport ----------------------------------------------------------------------------------------

    def _selector(self) -> dict[str, str]:
        return {"fieldSelector": f"spec.nodeName={self._node_name},spec.driver={names.DRIVER}"}

    def _from_v1(self, body: Mapping[str, Any]) -> JsonObject:
        return from_v1(body, self._version or VERSIONS[0])

    async def _root(self) -> str:
        """URL path of the best version that the cluster serves."""
        if self._version is None:
            try:
                group = await self.call("GET", f"/apis/{GROUP}")
            except KubeError as error:
                if error.status != NOT_FOUND:
                    raise
                group = {}
            served = {entry["version"] for entry in group.get("versions", ())}
            self._version = next((version for version in VERSIONS if version in served), None)
            if self._version is None:
                listed = ", ".join(sorted(served)) or "none"
                raise KubeError(
                    f"The cluster serves no usable version of {GROUP} (it serves {listed}): Dynamic Resource "
                    "Allocation needs Kubernetes 1.34, or 1.32 with its beta API enabled."
                )
        return f"/apis/{GROUP}/{self._version}"

    async def _list(
        self,
        plural: str,
        query: Mapping[str, str],
        project: Callable[[JsonObject], JsonObject | None] = lambda item: item,
    ) -> tuple[list[JsonObject], str]:
        """The results of `project` that are not None, and the resourceVersion. Unreadable objects are left out."""

        async def fetch(page_query: Mapping[str, str]) -> raw_objects.Page:
            path = f"{await self._root()}/{plural}"
            try:
                return _page(await self._exchange("GET", path, page_query), path)
            except KubeError as error:
                if error.status == NOT_FOUND:
                    self._version = None  # the cluster was upgraded or downgraded
                raise

        items: list[JsonObject] = []
        version = ""
        async with contextlib.aclosing(paging.pages(fetch, query, _PAGE, UnreadableObjectError)) as listed:
            async for page in listed:
                for raw in page.items or ():
                    item = _read(bytes(raw), plural)
                    kept = project(item) if item is not None else None
                    if kept is not None:
                        items.append(kept)
                    await asyncio.sleep(0)  # lets the event loop answer the kubelet
                version = page.metadata.resourceVersion
        return items, version

    async def events(
        self, path: str, query: Mapping[str, str], kind: str
    ) -> AsyncGenerator[tuple[str, JsonObject], None]:
        """Types and objects of a watch's events, until the server ends it. Raises KubeError.

        Args:
            path: URL path of the collection.
            query: parameters, with the resourceVersion from which to watch.
            kind: of the objects, for messages.
        """
        watched = {"watch": "true", "timeoutSeconds": str(_WATCH_SECONDS), "allowWatchBookmarks": "true", **query}
        stall = _WATCH_SECONDS + _WATCH_GRACE_SECONDS
        try:
            with _kube_errors(f"The watch on {kind} broke off"):
                async with (
                    self._connection.stream(path, query=watched, stall=stall) as pieces,
                    contextlib.aclosing(answers.lines(pieces, LONGEST_ANSWER, raw_objects.WINDOW)) as lines,
                ):
                    async for line in lines:
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            raise StatusError.from_status(event["object"])
                        if event["type"] != "BOOKMARK":
                            yield event["type"], event["object"]
        except (ValueError, KeyError) as error:
            raise KubeError(f"The watch on {kind} broke off: {error!r}") from error

    async def call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
    ) -> JsonObject:
        """The object that the API server answers. Raises KubeError."""
        content = await self._exchange(method, path, query or {}, body, content_type)
        try:
            answer = json.loads(content)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise KubeError(f"The API server did not answer {method} {path}: {error}") from error
        except (RecursionError, ValueError) as error:
            raise UnreadableObjectError(
                f"{path} is stored and cannot be read: it is nested too deeply, or has a number that is too long"
            ) from error
        if not isinstance(answer, dict):
            raise KubeError(f"The API server answered {method} {path} with something that is not an object.")
        return answer

    async def _exchange(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
    ) -> bytes:
        """The body of an answer that is a success.

        Raises:
            UnreadableObjectError: it is longer than the bound of the transport.
            KubeError: there is none.
        """
        try:
            with _kube_errors(f"The API server did not answer {method} {path}"):
                return await self._connection.request(
                    method, path, timeout=_REQUEST_SECONDS, query=query, body=body, content_type=content_type
                )
        except TooLongError as error:
            raise UnreadableObjectError(f"{path} cannot be read: {error}") from error


@contextlib.contextmanager
def _kube_errors(failed: str) -> Iterator[None]:
    """Turns errors of the transport into `KubeError`, except `TooLongError`; `failed` begins those without a status."""
    try:
        yield
    except TooLongError:
        raise
    except StatusError as error:
        message = error.message or error.reason or "no reason given"
        raise KubeError(f"The API server answered {error.code}: {cited(message)}", error.code, error.reason) from error
    except ApiServerError as error:
        raise KubeError(f"{failed}: {error}") from error


def _page(body: bytes, path: str) -> raw_objects.Page:
    try:
        return raw_objects.read_page(body)
    except msgspec.DecodeError as error:
        raise KubeError(f"The API server did not answer GET {path}: {error}") from error


def _read(raw: bytes, plural: str) -> JsonObject | None:
    """An object of a list; None, with a line in the log, if it cannot be read."""
    try:
        item = json.loads(raw)
    except (RecursionError, ValueError) as error:
        found = raw_objects.identity(raw)
        name = f"{found.namespace}/{found.name}" if found.namespace else found.name
        _log.warning("object left out", extra={"object": f"{plural} {name}", "error": type(error).__name__})
        return None
    return item if isinstance(item, dict) else None


def _allocated_by_us(claim: JsonObject) -> JsonObject | None:
    """The fields of a claim that preparation needs; None if it has no devices of this driver."""
    status = claim.get("status") or {}
    devices = (status.get("allocation") or {}).get("devices") or {}
    if not any(result.get("driver") == names.DRIVER for result in devices.get("results") or ()):
        return None
    metadata = claim.get("metadata") or {}
    kept = {key: metadata[key] for key in ("namespace", "name", "uid") if key in metadata}
    constraints = ((claim.get("spec") or {}).get("devices") or {}).get("constraints") or []
    return {
        "metadata": kept,
        "spec": {"devices": {"constraints": constraints}},
        "status": {key: status.get(key) for key in ("allocation", "reservedFor")},
    }


def to_v1(body: JsonObject) -> JsonObject:
    """A ResourceSlice of any version as v1: v1beta1 wraps a device's fields into `basic`."""
    spec = body.get("spec") or {}
    if "devices" in spec and spec["devices"] is None:
        spec = spec | {"devices": []}  # Kubernetes 1.34 returns an empty list as null.
    if any("basic" in device for device in spec.get("devices") or ()):
        devices = [{"name": device["name"]} | device.get("basic", {}) for device in spec["devices"]]
        spec = spec | {"devices": devices}
    return body | {"apiVersion": f"{GROUP}/{VERSIONS[0]}", "spec": spec}


def from_v1(body: Mapping[str, Any], version: str) -> JsonObject:
    """A v1 ResourceSlice in another version."""
    spec = body["spec"]
    if version == "v1beta1" and spec.get("devices"):
        devices = [
            {"name": device["name"], "basic": {key: value for key, value in device.items() if key != "name"}}
            for device in spec["devices"]
        ]
        spec = spec | {"devices": devices}
    return {**body, "apiVersion": f"{GROUP}/{version}", "spec": spec}
