"""The API server, as far as a kubelet plugin needs it. The only module that knows the Kubernetes client.

The client contributes credentials and transport. Objects stay plain JSON: its models refuse fields that are newer
than they are. Everything above this module sees `resource.k8s.io/v1`; on older clusters the beta versions are
translated here.
"""

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import msgspec
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config
from yaml import YAMLError

from kubeletplugin.ports import JsonObject, KubeError, SliceEvent, UnreadableObjectError
from neuron import api_objects, names
from runtime import answers, paging

GROUP: Final = "resource.k8s.io"
VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
"""Versions that serve slices and claims, best first."""

_COUNTERS_APART_SINCE: Final = (1, 35)
_REQUEST_SECONDS: Final = 10.0
_WATCH_SECONDS: Final = 290
_WATCH_GRACE_SECONDS: Final = 30
_PAGE: Final = 500
_LONGEST_ANSWER: Final = 16 * 1024 * 1024
_NOT_FOUND: Final = 404

_log = logging.getLogger(__name__)


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
    # Certificate authorities of clusters often lack the key identifiers that Python >= 3.13 insists on; Go, and so
    # kubectl, does not.
    configuration.disable_strict_ssl_verification = True
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
        items, _ = await self._list("resourceclaims", {}, _allocated_by_us)
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

    async def _list(
        self,
        plural: str,
        query: Mapping[str, str],
        project: Callable[[JsonObject], JsonObject | None] = lambda item: item,
    ) -> tuple[list[JsonObject], str]:
        """What `project` makes of each object, and the resourceVersion; objects that cannot be read are left out."""

        async def fetch(page_query: Mapping[str, str]) -> api_objects.Page:
            path = f"{await self._root()}/{plural}"
            try:
                return _page(await self._exchange("GET", path, page_query), path)
            except KubeError as error:
                if error.status == _NOT_FOUND:
                    self._version = None  # the cluster was upgraded or downgraded: look again next time
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
                    await asyncio.sleep(0)  # other calls of the kubelet are answered in between
                version = page.metadata.resourceVersion
        return items, version

    async def _call(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: JsonObject | None = None
    ) -> JsonObject:
        content = await self._exchange(method, path, query or {}, body)
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
        self, method: str, path: str, query: Mapping[str, str], body: JsonObject | None = None
    ) -> bytes:
        """The body of an answer that is a success.

        Raises:
            UnreadableObjectError: it is longer than our memory is for.
            KubeError: there is none.
        """
        timeout = aiohttp.ClientTimeout(total=_REQUEST_SECONDS)
        try:
            response = await self._send(method, path, query, body, timeout)
            async with response:
                await _raise_for_status(response)
                return await _content(response, path)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            text = str(error) or type(error).__name__
            raise KubeError(f"The API server did not answer {method} {path}: {text}") from error

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
                # Not compressed: little gzip may hold very much of what a tenant has stored.
                header_params={"Accept": "application/json", "Accept-Encoding": "identity"},
                body=body,
                auth_settings=["BearerToken"],
            )
            method, url, headers, payload, _ = serialized
            answer = await self._client.call_api(method, url, headers, payload, _request_timeout=timeout)
        except ConfigException as error:
            raise KubeError(f"The API server's credentials cannot be read: {error}") from error
        response: aiohttp.ClientResponse = answer.response
        return response


def _page(body: bytes, path: str) -> api_objects.Page:
    try:
        return api_objects.read_page(body)
    except msgspec.DecodeError as error:
        raise KubeError(f"The API server did not answer GET {path}: {error}") from error


def _read(raw: bytes, plural: str) -> JsonObject | None:
    """An object of a list; None, with a line in the log, for one that cannot be read."""
    try:
        item = json.loads(raw)
    except (RecursionError, ValueError) as error:
        who = api_objects.identity(raw)
        name = f"{who.namespace}/{who.name}" if who.namespace else who.name
        _log.warning("object left out", extra={"object": f"{plural} {name}", "error": type(error).__name__})
        return None
    return item if isinstance(item, dict) else None


def _allocated_by_us(claim: JsonObject) -> JsonObject | None:
    """What is kept of a claim that has devices of our driver; None for others."""
    status = claim.get("status") or {}
    devices = (status.get("allocation") or {}).get("devices") or {}
    if not any(result.get("driver") == names.DRIVER for result in devices.get("results") or ()):
        return None
    metadata = claim.get("metadata") or {}
    kept = {key: metadata[key] for key in ("namespace", "name", "uid") if key in metadata}
    return {"metadata": kept, "status": {key: status.get(key) for key in ("allocation", "reservedFor")}}


async def _content(response: aiohttp.ClientResponse, path: str) -> bytes:
    content = await answers.content_of(response, _LONGEST_ANSWER)
    if content is None:
        raise UnreadableObjectError(f"{path} is longer than {_LONGEST_ANSWER} bytes")
    return content


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
