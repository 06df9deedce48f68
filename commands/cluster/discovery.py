"""Which kinds an API server serves: its aggregated discovery document (KEP-3352), one request for all API groups."""

import dataclasses
from collections.abc import Mapping
from typing import Final

import msgspec

from neuron.api.metadata import ObjectMeta
from runtime.api_server import JSON, ApiServer, Resource, decoded

_ACCEPT: Final = f"{JSON};g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,{JSON}"
_TIMEOUT: Final = 30.0
_CLUSTER: Final = "Cluster"

Kind = tuple[str, str]
"""API group and kind."""


@dataclasses.dataclass(frozen=True, slots=True)
class ServedKind:
    """A kind that the API server serves, in the version that it prefers."""

    resource: Resource
    namespaced: bool
    verbs: frozenset[str]


class _ResponseKind(msgspec.Struct, frozen=True):
    kind: str = ""


class _Resource(msgspec.Struct, frozen=True):
    resource: str
    scope: str = ""
    verbs: list[str] = []
    responseKind: _ResponseKind | None = None  # noqa: N815 - the wire's spelling


class _Version(msgspec.Struct, frozen=True):
    version: str
    resources: list[_Resource] = []


class _ApiGroup(msgspec.Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    versions: list[_Version] = []


class _ApiGroups(msgspec.Struct, frozen=True):
    items: list[_ApiGroup] | None = None


_decode: Final = msgspec.json.Decoder(_ApiGroups).decode


async def served_kinds(server: ApiServer) -> Mapping[Kind, ServedKind]:
    """All kinds outside the core group. An aggregated API that does not answer is left out.

    Raises:
        ApiServerError: the document cannot be read.
    """
    answer = decoded(_decode, await server.request("GET", "/apis", timeout=_TIMEOUT, accept=_ACCEPT))
    found: dict[Kind, ServedKind] = {}
    for group in answer.items or ():
        # The server lists the preferred version first.
        for version in group.versions:
            for each in version.resources:
                if each.responseKind is not None and "list" in each.verbs:
                    resource = Resource(group.metadata.name, version.version, each.resource)
                    served = ServedKind(resource, each.scope != _CLUSTER, frozenset(each.verbs))
                    found.setdefault((group.metadata.name, each.responseKind.kind), served)
    return found
