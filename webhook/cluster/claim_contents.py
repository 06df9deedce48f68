"""Reads claims and templates that are not in a cache, for policies that count the devices of a pod.

ResourceClaims are not cached, and a new template is not cached yet.
"""

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from cluster.look_ups import MOST_LOOKUPS, RESOURCES, SECONDS, can_exist
from conversion.objects import nesting
from neuron.api.claim_reader import read_claim
from neuron.api.claim_specs import ClaimSpec
from runtime.api_errors import ApiServerError
from runtime.api_server import RESOURCE_GROUP, ApiServer

_LARGEST: Final = 64 * 1024
"""Bytes of an answer that is decoded on the event loop. Few claims are larger."""


class ClaimContents:
    """Reads claims and templates from the API server by name.

    `find` is a `policies.applying.knowledge.FindClaims`.
    """

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    async def find(self, kind: str, namespace: str, names: Collection[str]) -> Mapping[str, ClaimSpec]:
        """The objects that the API server returns within `SECONDS`; none if there are more than `MOST_LOOKUPS` names.

        Args:
            kind: ResourceClaim or ResourceClaimTemplate.
        """
        if len(names) > MOST_LOOKUPS:
            return {}
        found = await asyncio.gather(*(self._read(kind, namespace, name) for name in names))
        return {name: spec for name, spec in zip(names, found, strict=True) if spec is not None}

    async def _read(self, kind: str, namespace: str, name: str) -> ClaimSpec | None:
        if not can_exist(name):
            return None
        path = RESOURCES[kind].path(namespace, name)
        try:
            body = await self._server.request("GET", path, timeout=SECONDS)
            data = nesting.decode(body) if len(body) <= _LARGEST else None
        except (ApiServerError, msgspec.DecodeError):
            return None
        if not isinstance(data, dict):
            return None
        return read_claim(kind, f"{RESOURCE_GROUP}/{RESOURCES[kind].version}", data.get("spec"))[0]
