"""Asks the API server what no cache has: which of the claims and templates that a pod names exist, with a rate limit
per namespace, and the schemas of kinds.

Every pod may name objects that are not in a cache. Without a limit, a namespace that creates such pods could make the
webhook send requests all the time. The API server would throttle the webhook, and delay its writes.
"""

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Final
from urllib.parse import quote

from cluster import resources
from runtime.api_server import NOT_FOUND, PARTIAL, ApiServer, ApiServerError, StatusError, loaded

RESOURCES: Final = {
    "ResourceClaim": resources.RESOURCE_CLAIMS,
    "ResourceClaimTemplate": resources.RESOURCE_CLAIM_TEMPLATES,
}
MOST_LOOKUPS: Final = 16
"""Objects of one pod and kind that are requested, all in parallel."""
SECONDS: Final = 1.0
"""Time-out for all of them together."""

_SHARE: Final = 0.5
"""Part of the time left for the review that look-ups may use; the rest is for the decision."""
_TOO_LATE: Final = 0.05

_LONGEST_NAME: Final = 253
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", re.ASCII)
BURST: Final = 128
PER_SECOND: Final = 64.0
_MOST_NAMESPACES: Final = 4096


def can_exist(name: str) -> bool:
    """Whether an object can have this name (apimachinery IsDNS1123Subdomain). Other names are not put into a URL."""
    return len(name) <= _LONGEST_NAME and _NAME.fullmatch(name) is not None


class Tokens:
    """A token bucket per namespace; the bucket of the namespace that was not asked for longest is forgotten."""

    def __init__(self, clock: Callable[[], float], burst: int = BURST, seconds: float = 1 / PER_SECOND) -> None:
        """A namespace has `burst` tokens, and a new one after each `seconds`."""
        self._clock = clock
        self._burst = burst
        self._seconds = seconds
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, namespace: str, wanted: int = 1) -> int:
        """Take up to `wanted` tokens; returns how many there were."""
        now = self._clock()
        left, since = self._buckets.pop(namespace, (float(self._burst), now))
        left = min(self._burst, left + (now - since) / self._seconds)
        given = min(wanted, int(left))
        self._buckets[namespace] = (left - given, now)
        if len(self._buckets) > _MOST_NAMESPACES:
            self._buckets.popitem(last=False)
        return given


class LookUps:
    """Look-ups of one process."""

    def __init__(
        self,
        server: ApiServer,
        seconds_left: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`seconds_left`: for the answer to the caller."""
        self._server = server
        self._seconds_left = seconds_left
        self._tokens = Tokens(clock)

    async def exist(self, kind: str, namespace: str, names: Iterable[str]) -> Mapping[str, bool | None]:
        """Which objects exist; see `Store.exist`.

        `MOST_LOOKUPS` names are requested in parallel, within `SECONDS` and half of the time left for the review. Each
        namespace also has a budget of requests.
        """
        found: dict[str, bool | None] = {name: None if can_exist(name) else False for name in names}
        # The pods of a cluster-scoped object run in namespaces that are not known.
        unknown = [name for name, exists in found.items() if exists is None and namespace]
        within = min(SECONDS, self._seconds_left() * _SHARE)
        if not unknown or within < _TOO_LATE:
            return found
        asked = unknown[: self._tokens.take(namespace, min(len(unknown), MOST_LOOKUPS))]
        answers = await asyncio.gather(*(self._exists(kind, namespace, name, within) for name in asked))
        return found | dict(zip(asked, answers, strict=True))

    async def _exists(self, kind: str, namespace: str, name: str, within: float) -> bool | None:
        path = RESOURCES[kind].path(namespace, name)
        try:
            async with asyncio.timeout(within):
                await self._server.request("GET", path, timeout=within, accept=PARTIAL)
        except StatusError as error:
            return False if error.code == NOT_FOUND else None
        except (ApiServerError, TimeoutError):
            return None
        return True


_DOCUMENT_SECONDS: Final = 3.0
"""Time-out of one document with schemas."""


def from_thread(server: ApiServer) -> Callable[[str], object]:
    """Reads the schemas of an apiVersion (OpenAPI v3), also of CustomResourceDefinitions, for a thread beside the loop.
    Any account may read them (ClusterRole `system:discovery`).

    The function returns None for an apiVersion that is not served, and a text that says why it cannot be read.
    """
    loop = asyncio.get_running_loop()

    def document(api_version: str) -> object:
        root = "apis" if "/" in api_version else "api"
        path = f"/openapi/v3/{root}/{'/'.join(quote(part, safe='') for part in api_version.split('/'))}"
        try:
            # Decoded here, and not in the event loop: it may have megabytes.
            return loaded(asyncio.run_coroutine_threadsafe(_read(server, path), loop).result())
        except TimeoutError:
            return f"no answer within {_DOCUMENT_SECONDS:g} s"
        except StatusError as error:
            return None if error.code == NOT_FOUND else str(error)
        except ApiServerError as error:
            return str(error)

    return document


async def _read(server: ApiServer, path: str) -> bytes:
    async with asyncio.timeout(_DOCUMENT_SECONDS):
        return await server.request("GET", path, timeout=_DOCUMENT_SECONDS)
