"""The API server, as far as a kubelet plugin needs it. The only module that knows the Kubernetes client.

The client contributes credentials and transport. Objects stay plain JSON: its models refuse fields that are newer
than they are. Everything above this module sees `resource.k8s.io/v1`; on older clusters the beta versions are
translated here.
"""

import json
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config
from yaml import YAMLError

from kubeletplugin.ports import JsonObject, KubeError, SliceEvent
from neuron import names

GROUP: Final = "resource.k8s.io"
VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
"""Versions that serve slices and claims, best first."""

_COUNTERS_APART_SINCE: Final = (1, 35)
_REQUEST_SECONDS: Final = 10.0
_WATCH_SECONDS: Final = 290
_WATCH_GRACE_SECONDS: Final = 30
_PAGE: Final = 500
_NOT_FOUND: Final = 404


class ConnectionSettingsError(Exception):
    """Neither kubeconfig nor service account lead to an API server; the message says why."""


async def connect(kubeconfig: Path | None, node_name: str) -> "KubeApi":
    """Make a client. Does not talk to the API server yet.

    Args:
        kubeconfig: file to use; None: the pod's service account.
        node_name: the node whose slices are ours.

    Raises:
        ConnectionSettingsError: the settings cannot be used.
    """
    configuration = Configuration()
    try:
        if kubeconfig is None:
            load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            await load_kube_config(  # type: ignore[no-untyped-call]
                str(kubeconfig), client_configuration=configuration, persist_config=False
            )
    except (ConfigException, OSError, KeyError, TypeError, ValueError, AttributeError, YAMLError) as error:
        source = "the pod's service account" if kubeconfig is None else f"kubeconfig {kubeconfig}"
        # The client takes whatever YAML it finds for a mapping; what it says then is about its own code.
        odd = kubeconfig is not None and isinstance(error, TypeError | AttributeError)
        reason = "the file is empty or is no kubeconfig" if odd else str(error).rstrip(".")
        hint = " Outside a pod, name a file with --kubeconfig." if kubeconfig is None else ""
        raise ConnectionSettingsError(f"Cannot connect to the API server with {source}: {reason}.{hint}") from error
    return KubeApi(ApiClient(configuration), node_name)


class KubeApi:
    """Claims, the node and its slices. Implements `ports.ClaimReader`, `ports.NodeReader` and `ports.SliceStore`."""

    def __init__(self, client: ApiClient, node_name: str) -> None:
        self._client = client
        self._node_name = node_name
        self._version: str | None = None

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()  # type: ignore[no-untyped-call]

    # --- reading ------------------------------------------------------------------------------------------

    async def node(self) -> JsonObject:
        """See `ports.NodeReader`."""
        return await self._call("GET", f"/api/v1/nodes/{quote(self._node_name)}")

    async def claim(self, namespace: str, name: str) -> JsonObject | None:
        """See `ports.ClaimReader`."""
        path = f"{await self._root()}/namespaces/{quote(namespace)}/resourceclaims/{quote(name)}"
        try:
            return await self._call("GET", path)
        except KubeError as error:
            if error.status == _NOT_FOUND and error.reason == "NotFound":
                return None
            raise

    async def claims(self) -> list[JsonObject]:
        """See `ports.ClaimReader`."""
        items, _ = await self._list("resourceclaims", {})
        return items

    async def separates_counters(self) -> bool:
        """See `ports.SliceStore`."""
        version = await self._call("GET", "/version")
        parts = [re.match("[0-9]*", str(version.get(key, ""))) for key in ("major", "minor")]
        numbers = tuple(int(part[0] or 0) for part in parts if part)
        return numbers >= _COUNTERS_APART_SINCE

    # --- slices -------------------------------------------------------------------------------------------

    async def slices(self) -> tuple[list[JsonObject], str]:
        """See `ports.SliceStore`."""
        items, resource_version = await self._list("resourceslices", self._selector())
        return [to_v1(item) for item in items], resource_version

    async def watch(self, resource_version: str) -> AsyncIterator[SliceEvent]:
        """See `ports.SliceStore`."""
        query = self._selector() | {
            "watch": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(_WATCH_SECONDS),
            "allowWatchBookmarks": "true",
        }
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=_REQUEST_SECONDS, sock_read=_WATCH_SECONDS + _WATCH_GRACE_SECONDS
        )
        try:
            response = await self._send("GET", f"{await self._root()}/resourceslices", query, None, timeout)
            async with response:
                await _raise_for_status(response)
                while line := await response.content.readline():
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise _status_error(event["object"].get("code", 0), event["object"])
                    if event["type"] != "BOOKMARK":
                        yield SliceEvent(event["type"], to_v1(event["object"]))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError) as error:
            raise KubeError(f"The watch on ResourceSlices broke off: {error!r}") from error

    async def create(self, body: Mapping[str, Any]) -> JsonObject:
        """See `ports.SliceStore`."""
        root = await self._root()
        return to_v1(await self._call("POST", f"{root}/resourceslices", body=self._from_v1(body)))

    async def update(self, body: Mapping[str, Any]) -> JsonObject:
        """See `ports.SliceStore`."""
        path = f"{await self._root()}/resourceslices/{quote(body['metadata']['name'])}"
        return to_v1(await self._call("PUT", path, body=self._from_v1(body)))

    async def delete(self, name: str) -> None:
        """See `ports.SliceStore`."""
        try:
            await self._call("DELETE", f"{await self._root()}/resourceslices/{quote(name)}")
        except KubeError as error:
            if error.status != _NOT_FOUND:
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
                group = await self._call("GET", f"/apis/{GROUP}")
            except KubeError as error:
                if error.status != _NOT_FOUND:
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

    async def _list(self, plural: str, query: Mapping[str, str]) -> tuple[list[JsonObject], str]:
        items: list[JsonObject] = []
        page = dict(query) | {"limit": str(_PAGE)}
        while True:
            try:
                answer = await self._call("GET", f"{await self._root()}/{plural}", page)
            except KubeError as error:
                if error.status == _NOT_FOUND:
                    self._version = None  # the cluster was upgraded or downgraded: look again next time
                raise
            items += answer.get("items") or []
            metadata = answer.get("metadata") or {}
            if not metadata.get("continue"):
                return items, metadata.get("resourceVersion", "")
            page["continue"] = metadata["continue"]

    async def _call(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: JsonObject | None = None
    ) -> JsonObject:
        timeout = aiohttp.ClientTimeout(total=_REQUEST_SECONDS)
        try:
            response = await self._send(method, path, query or {}, body, timeout)
            async with response:
                await _raise_for_status(response)
                answer = json.loads(await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            text = str(error) or type(error).__name__
            raise KubeError(f"The API server did not answer {method} {path}: {text}") from error
        if not isinstance(answer, dict):
            raise KubeError(f"The API server answered {method} {path} with something that is not an object.")
        return answer

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: JsonObject | None,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - of the transport, for connecting and reading
    ) -> aiohttp.ClientResponse:
        try:
            serialized = await self._client.param_serialize(
                method,
                path,
                query_params=list(query.items()),
                header_params={"Accept": "application/json"},
                body=body,
                auth_settings=["BearerToken"],
            )
            method, url, headers, payload, _ = serialized
            answer = await self._client.call_api(method, url, headers, payload, _request_timeout=timeout)
        except ConfigException as error:
            raise KubeError(f"The API server's credentials cannot be read: {error}") from error
        response: aiohttp.ClientResponse = answer.response
        return response


async def _raise_for_status(response: aiohttp.ClientResponse) -> None:
    if response.ok:
        return
    text = await response.text(errors="replace")
    try:
        status = json.loads(text)
    except ValueError:
        status = None
    raise _status_error(response.status, status if isinstance(status, dict) else {"message": text[:200].strip()})


def _status_error(code: int, status: Mapping[str, Any]) -> KubeError:
    message = status.get("message") or status.get("reason") or "no reason given"
    return KubeError(f"The API server answered {code}: {message}", code, str(status.get("reason") or ""))


def to_v1(body: JsonObject) -> JsonObject:
    """A ResourceSlice of any version as v1: v1beta1 wraps what a device has into `basic`."""
    spec = body.get("spec") or {}
    if any("basic" in device for device in spec.get("devices") or ()):
        devices = [{"name": device["name"]} | device.get("basic", {}) for device in spec["devices"]]
        spec = spec | {"devices": devices}
    return body | {"apiVersion": f"{GROUP}/{VERSIONS[0]}", "spec": spec}


def from_v1(body: Mapping[str, Any], version: str) -> JsonObject:
    """A v1 ResourceSlice in another version."""
    spec = body["spec"]
    if version == "v1beta1" and "devices" in spec:
        devices = [
            {"name": device["name"], "basic": {key: value for key, value in device.items() if key != "name"}}
            for device in spec["devices"]
        ]
        spec = spec | {"devices": devices}
    return {**body, "apiVersion": f"{GROUP}/{version}", "spec": spec}
