"""What claims and templates say that no cache knows: policies count the devices of everything that a pod names.

ResourceClaims are not cached at all, and a template that was made a moment ago is not cached yet.
"""

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from neuron.claim_reader import read_claim
from neuron.claim_specs import ClaimSpec
from webhook.cluster.api import RESOURCE_GROUP, ApiServer, ApiServerError
from webhook.cluster.lookups import MOST_LOOKUPS, RESOURCES, SECONDS, VERSION, can_exist
from webhook.decisions import nesting

_LARGEST: Final = 64 * 1024
"""Bytes of an answer that is read on the event loop; hardly a claim is larger."""


class ClaimContents:
    """Asks the API server for claims and templates by name.

    `find` is a `webhook.reviews.policy_knowledge.FindClaims`.
    """

    def __init__(self, server: ApiServer) -> None:
        """Ask `server`."""
        self._server = server

    async def find(self, kind: str, namespace: str, names: Collection[str]) -> Mapping[str, ClaimSpec]:
        """Those of these objects that the API server tells within a second; none where there are too many.

        Args:
            kind: ResourceClaim or ResourceClaimTemplate.
            namespace: theirs.
            names: of the objects, at most `MOST_LOOKUPS`.
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
        return read_claim(kind, f"{RESOURCE_GROUP}/{VERSION}", data.get("spec"))[0]
