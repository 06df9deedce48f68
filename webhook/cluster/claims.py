"""What `/validate` has to know of the cluster, kept beside the caches of `webhook.cluster.caches`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from neuron.claim_specs import ClaimSpec, ClassSpec
from neuron.device_shapes import Census, Shape, SliceShapes
from webhook.cluster.api import NOT_FOUND, RESOURCE_GROUP, ApiServer, ApiServerError, Resource, StatusError

_RESOURCES: Final = {
    kind: Resource(RESOURCE_GROUP, "v1", plural)
    for kind, plural in (("ResourceClaim", "resourceclaims"), ("ResourceClaimTemplate", "resourceclaimtemplates"))
}
_EXISTS_TIMEOUT: Final = 1.0
"""Seconds: a warning is not worth more of anybody's patience."""


class ClusterClaims:
    """A `ClaimView` that is told of every change to a ResourceSlice or DeviceClass."""

    def __init__(self, server: ApiServer, template: Callable[[str, str], ClaimSpec | None]) -> None:
        """Look for templates with `template`, which takes namespace and name, and for the rest on `server`."""
        self._server = server
        self._template = template
        self._version = 0
        self._census = Census()
        self._classes: dict[str, ClassSpec] = {}

    def slice_changed(self, before: SliceShapes | None, after: SliceShapes | None) -> None:
        """Take in a ResourceSlice; None where there was or is none."""
        self._version += self._census.replace(before, after)

    def class_changed(self, name: str, after: ClassSpec | None) -> None:
        """Take in a DeviceClass; None where there is none any more."""
        before = self._classes.pop(name, None)
        if after is not None:
            self._classes[name] = after
        self._version += before != after

    @property
    def claim_version(self) -> int:
        """Grows whenever `device_shapes` or `device_classes` changes."""
        return self._version

    def device_shapes(self) -> Sequence[Shape]:
        """The distinct devices of the cluster."""
        return self._census.shapes()

    def device_classes(self) -> Mapping[str, ClassSpec]:
        """Every DeviceClass by name."""
        return dict(self._classes)

    def claim_template(self, namespace: str, name: str) -> ClaimSpec | None:
        """What a ResourceClaimTemplate asks for; None where it is unknown."""
        return self._template(namespace, name)

    async def exists(self, kind: str, namespace: str, name: str) -> bool | None:
        """Ask the API server whether a claim or template exists; None where it does not say."""
        try:
            await self._server.request("GET", _RESOURCES[kind].path(namespace, name), timeout=_EXISTS_TIMEOUT)
        except StatusError as error:
            return False if error.code == NOT_FOUND else None
        except ApiServerError:
            return None
        return True
