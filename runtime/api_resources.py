"""What a request to the Kubernetes API is about: a resource, or a collection that is listed and watched."""

import dataclasses
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

RESOURCE_GROUP: Final = "resource.k8s.io"
OLDEST_KUBERNETES: Final = "1.34"
"""The first release that serves `resource.k8s.io/v1` by default."""


@dataclasses.dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object in one version of the API. The core group is empty."""

    group: str
    version: str
    plural: str

    def path(self, namespace: str = "", name: str = "") -> str:
        """URL path of the collection, of its part in one namespace, or of one object.

        Names are quoted, because tenants choose some of them.
        """
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        inside = f"{root}/namespaces/{quote(namespace, safe='')}" if namespace else root
        return f"{inside}/{self.plural}/{quote(name, safe='')}" if name else f"{inside}/{self.plural}"

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


@dataclasses.dataclass(frozen=True, slots=True)
class Collection:
    """Which objects to list and watch.

    Attributes:
        resource: their resource.
        namespace: their namespace; empty: all namespaces.
        name: name of the only object; a Role may be restricted to it (`resourceNames`). Empty: all objects.
        parameters: further query parameters, such as `fieldSelector`.
        metadata_only: whether the API server sends only `metadata` of each object.
    """

    resource: Resource
    namespace: str = ""
    name: str = ""
    parameters: Mapping[str, str] = dataclasses.field(default_factory=dict)
    metadata_only: bool = False

    @property
    def path(self) -> str:
        """URL path for list and watch."""
        return self.resource.path(self.namespace)

    @property
    def query(self) -> dict[str, str]:
        """Query parameters for list and watch."""
        return {**self.parameters, **({"fieldSelector": f"metadata.name={self.name}"} if self.name else {})}
