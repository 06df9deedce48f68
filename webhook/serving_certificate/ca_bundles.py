"""Reconciles `caBundle` of our two webhook configurations.

Charts and GitOps apply the configurations without this field; then API servers cannot verify us, and deny or admit
everything, by the failurePolicy. So both configurations are watched by name, and a different bundle is replaced
immediately. Entries that call another Service are reported, never written.
"""

import base64
import binascii
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final

from certs import material
from cluster.reflector import Projection, Reflector
from cluster.resources import MUTATING_CONFIGURATIONS, VALIDATING_CONFIGURATIONS
from runtime.api_server import (
    CONFLICT,
    JSON_PATCH,
    NOT_FOUND,
    ApiServer,
    ApiServerError,
    Collection,
    Resource,
    StatusError,
    explain,
)
from runtime.retries import REQUEST_TIMEOUT

log = logging.getLogger(__name__)

PATHS: Final = {MUTATING_CONFIGURATIONS: "/mutate", VALIDATING_CONFIGURATIONS: "/validate"}
"""Path of our server for each kind of configuration."""

_PAUSE: Final = 1.0
"""Seconds between two writes of one configuration: another controller may revert each write."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServiceReference:
    """The Service in front of this webhook."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclasses.dataclass(frozen=True, slots=True)
class ClientConfig:
    """`clientConfig` of one webhook.

    Attributes:
        name: of the webhook.
        service: the called Service; None: the entry has a URL.
        path: of the Service.
        bundle: `caBundle`, decoded; empty if it is missing or not base64.
    """

    name: str
    service: ServiceReference | None
    path: str
    bundle: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Configuration:
    """A webhook configuration: its `resourceVersion` and its webhooks in order."""

    version: str
    entries: tuple[ClientConfig, ...]


def project_configuration(item: Mapping[str, Any]) -> Configuration:
    """The fields of a configuration that are cached."""
    return Configuration(item["metadata"]["resourceVersion"], tuple(map(_entry, item.get("webhooks") or ())))


def _entry(webhook: Mapping[str, Any]) -> ClientConfig:
    client = webhook.get("clientConfig") or {}
    service = client.get("service")
    try:
        bundle = base64.b64decode(client.get("caBundle") or "", validate=True)
    except binascii.Error:
        bundle = b""
    if service is None:
        return ClientConfig(webhook["name"], None, "", bundle)
    return ClientConfig(
        webhook["name"], ServiceReference(service["namespace"], service["name"]), service.get("path") or "", bundle
    )


class CABundles:
    """Watches and writes the two configurations.

    Attributes:
        name: of both configurations.
        caches: the caller runs them.
        repairs: how often a bundle was restored that the configuration had before.
    """

    def __init__(self, server: ApiServer, name: str, service: ServiceReference, *, writes: bool = True) -> None:
        """Prepare; `repair` writes.

        Args:
            name: of both configurations.
            writes: whether this webhook writes `caBundle`; if not, `caBundle` may contain further CAs.
        """
        self.name = name
        self.repairs = 0
        self._server = server
        self._service = service
        self._writes = writes
        self._caches = {
            resource: Reflector(server, Collection(resource, name=name), Projection(project_configuration))
            for resource in PATHS
        }
        self.caches = tuple(self._caches.values())
        self._carried: dict[Resource, bytes] = {}
        self._written: dict[Resource, float] = {}
        self._refusals: dict[Resource, str] = {}

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever a configuration changes."""
        for cache in self.caches:
            cache.on_change(lambda *_: callback())

    def missing(self) -> list[str]:
        """Plural kinds of the configurations that do not exist."""
        return [resource.plural for resource in PATHS if self._known(resource) is None]

    def carry(self, bundle: bytes) -> bool:
        """Whether every existing configuration has this bundle; false while a cache is not synced."""
        if not all(cache.synced.is_set() and not cache.problem for cache in self.caches):
            return False
        return not any(self._wrong(resource, bundle) for resource in PATHS)

    def trust(self, accepts: Callable[[bytes], bool]) -> bool:
        """Whether `accepts` returns true for the bundle of each of our entries."""
        return all(accepts(entry.bundle) for resource in PATHS for _, entry in self._ours(resource))

    def problems(self) -> list[str]:
        """Problems for the operator, one sentence each."""
        found = [cache.problem for cache in self.caches if cache.problem]
        found += [text for text in self._refusals.values() if text]
        for resource, path in PATHS.items():
            known = self._known(resource)
            for entry in known.entries if known else ():
                found += self._misdirected(resource, entry, path)
        return list(dict.fromkeys(found))

    async def repair(self, bundle: bytes, fresh: Callable[[], Awaitable[bytes]]) -> float:
        """Write the bundle into the entries that have another one.

        Args:
            bundle: the bundle from memory.
            fresh: reads the bundle again before a write: a process that was paused must not write an old bundle.

        Returns:
            Seconds until the next attempt; 0: nothing left to do.
        """
        return max([await self._repair(resource, bundle, fresh) for resource in PATHS])

    async def _repair(self, resource: Resource, bundle: bytes, fresh: Callable[[], Awaitable[bytes]]) -> float:
        known = self._known(resource)
        if known is None:
            return 0.0
        if not self._wrong(resource, bundle):
            self._refusals.pop(resource, None)
            if any(True for _ in self._ours(resource)):
                self._carried[resource] = bundle
            return 0.0
        wait = self._written.get(resource, float("-inf")) + _PAUSE - time.monotonic()
        if wait > 0:
            return wait
        try:
            now = await fresh()
            if self._wrong(resource, now):
                await self._write(resource, known, now)
        except ApiServerError as error:
            text = explain(error, "patch", resource, name=self.name)
            if self._refusals.get(resource) != text:
                log.warning("caBundle cannot be kept: %s", text)
            self._refusals[resource] = text
            return _PAUSE
        self._refusals.pop(resource, None)
        return _PAUSE

    async def _write(self, resource: Resource, known: Configuration, bundle: bytes) -> None:
        wrong = self._wrong(resource, bundle)
        encoded = base64.b64encode(bundle).decode()
        operations = [{"op": "replace", "path": "/metadata/resourceVersion", "value": known.version}]
        operations += [
            {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": encoded} for index, _ in wrong
        ]
        self._written[resource] = time.monotonic()
        try:
            path = resource.path(name=self.name)
            await self._server.request("PATCH", path, timeout=REQUEST_TIMEOUT, body=operations, content_type=JSON_PATCH)
        except StatusError as error:
            if error.code in (CONFLICT, NOT_FOUND):
                return  # another replica was first, or the configuration was deleted: the watch reports it
            raise
        webhooks = [entry.name for _, entry in wrong]
        if self._carried.get(resource) == bundle:
            self.repairs += 1
            extra = {"configuration": f"{resource.plural}/{self.name}", "webhooks": webhooks, "repairs": self.repairs}
            log.warning("caBundle put back: another client had changed or removed it", extra=extra)
        else:
            self._carried[resource] = bundle
            extra = {"configuration": f"{resource.plural}/{self.name}", "webhooks": webhooks}
            log.info("caBundle set", extra=extra)

    def _known(self, resource: Resource) -> Configuration | None:
        return self._caches[resource].get("", self.name)

    def _ours(self, resource: Resource) -> Iterator[tuple[int, ClientConfig]]:
        known = self._known(resource)
        for index, entry in enumerate(known.entries if known else ()):
            if entry.service in (None, self._service):
                yield index, entry

    def _wrong(self, resource: Resource, bundle: bytes) -> list[tuple[int, ClientConfig]]:
        return [(index, entry) for index, entry in self._ours(resource) if not self._carries(entry, bundle)]

    def _carries(self, entry: ClientConfig, bundle: bytes) -> bool:
        if entry.bundle == bundle or self._writes:
            return entry.bundle == bundle
        try:
            theirs, ours = (set(material.certificates(pem, material.CA)) for pem in (entry.bundle, bundle))
        except material.UnusableError:
            return False
        return ours <= theirs

    def _misdirected(self, resource: Resource, entry: ClientConfig, path: str) -> Iterator[str]:
        if entry.service is None:
            return
        where = f"{resource.plural} {self.name}, webhook {entry.name}"
        if entry.service != self._service:
            yield (
                f"{where} calls Service {entry.service}, and this webhook is {self._service}: correct clientConfig, or "
                "give each release its own configurations (--webhook-configuration)"
            )
        elif entry.path != path:
            yield f"{where} calls path '{entry.path}' instead of {path}: correct clientConfig.service.path"
