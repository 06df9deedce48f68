"""The view of the cluster that `/validate` needs, updated by the caches of `webhook.cluster.caches`."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from neuron.api.claim_specs import ClaimSpec, ClassSpec
from neuron.api.slice_shapes import Census, SliceShapes
from neuron.hardware.device_shapes import DeviceShape
from runtime.api_errors import NOT_FOUND, ApiServerError, StatusError
from runtime.api_server import ApiServer
from runtime.media_types import PARTIAL
from webhook.cluster.lookups import MOST_LOOKUPS, RESOURCES, SECONDS, Lookups, can_exist
from webhook.reviews.worker_threads import seconds_left

_SHARE: Final = 0.5
"""Part of the time left for the review that look-ups may use; the rest is for the decision."""
_TOO_LATE: Final = 0.05


class KnownTemplate(Protocol):
    """What is kept of a ResourceClaimTemplate."""

    @property
    def spec(self) -> ClaimSpec | None:
        """Its requests; None if unknown."""


class ClusterClaims:
    """A `ClaimView`. The caches report every change of a ResourceSlice or DeviceClass to it."""

    def __init__(
        self,
        server: ApiServer,
        template: Callable[[str, str], KnownTemplate | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`template` reads the cache by namespace and name; `server` is asked for other objects."""
        self._server = server
        self._template = template
        self._lookups = Lookups(clock)
        self._version = 0
        self._census = Census()
        self._classes: dict[str, ClassSpec] = {}

    def slice_changed(self, before: SliceShapes | None, after: SliceShapes | None) -> None:
        """Apply a change of a ResourceSlice; None before a creation and after a deletion."""
        self._version += self._census.replace(before, after)

    def class_changed(self, name: str, after: ClassSpec | None) -> None:
        """Apply a change of a DeviceClass; None after a deletion."""
        before = self._classes.pop(name, None)
        if after is not None:
            self._classes[name] = after
        self._version += before != after

    @property
    def claim_version(self) -> int:
        """Increases when `device_shapes` or `device_classes` changes."""
        return self._version

    def device_shapes(self) -> Sequence[DeviceShape]:
        """The distinct devices of the cluster."""
        return self._census.shapes()

    def device_classes(self) -> Mapping[str, ClassSpec]:
        """Every DeviceClass by name."""
        return dict(self._classes)

    def claim_template(self, namespace: str, name: str) -> ClaimSpec | None:
        """Requests of a ResourceClaimTemplate; None if unknown."""
        known = self._template(namespace, name)
        return known.spec if known is not None else None

    async def exist(self, kind: str, namespace: str, names: Iterable[str]) -> Mapping[str, bool | None]:
        """Which objects exist; see `ClaimView.exist`.

        Templates in the cache need no request. Of the other names, `MOST_LOOKUPS` are requested in parallel, within
        `SECONDS` and half of the time left for the review. Each namespace also has a budget of requests.
        """
        found: dict[str, bool | None] = {name: None if can_exist(name) else False for name in names}
        if kind == "ResourceClaimTemplate":
            found |= {name: True for name in found if self._template(namespace, name) is not None}
        # The pods of a cluster-scoped object run in namespaces that are not known.
        unknown = [name for name, exists in found.items() if exists is None and namespace]
        within = min(SECONDS, seconds_left() * _SHARE)
        if not unknown or within < _TOO_LATE:
            return found
        asked = unknown[: self._lookups.take(namespace, min(len(unknown), MOST_LOOKUPS))]
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
