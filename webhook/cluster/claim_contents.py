"""What claims and templates say that no cache knows: policies count the devices of everything that a pod names.

ResourceClaims are not cached at all, and a template that was made a moment ago is not cached yet.
"""

import asyncio
import re
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from neuron.claim_reader import read_claim
from neuron.claim_specs import ClaimSpec
from webhook.cluster.api import RESOURCE_GROUP, ApiServer, ApiServerError, Resource
from webhook.decisions import nesting

MOST_ASKED: Final = 16
"""Objects of one kind that one review asks for, all at the same time."""

_VERSION: Final = "v1"
_RESOURCES: Final = {
    kind: Resource(RESOURCE_GROUP, _VERSION, plural)
    for kind, plural in (("ResourceClaim", "resourceclaims"), ("ResourceClaimTemplate", "resourceclaimtemplates"))
}
_SECONDS: Final = 1.0
_LARGEST: Final = 64 * 1024
"""Bytes of an answer that is read on the event loop; hardly a claim is larger."""
_LONGEST_NAME: Final = 253
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", re.ASCII)
"""What may become part of a URL. The API server refuses other names anyway (apimachinery IsDNS1123Subdomain)."""


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
            names: of the objects, at most `MOST_ASKED`.
        """
        if len(names) > MOST_ASKED:
            return {}
        found = await asyncio.gather(*(self._read(kind, namespace, name) for name in names))
        return {name: spec for name, spec in zip(names, found, strict=True) if spec is not None}

    async def _read(self, kind: str, namespace: str, name: str) -> ClaimSpec | None:
        if len(name) > _LONGEST_NAME or _NAME.fullmatch(name) is None:
            return None
        path = _RESOURCES[kind].path(namespace, name)
        try:
            body = await self._server.request("GET", path, timeout=_SECONDS)
            data = nesting.decode(body) if len(body) <= _LARGEST else None
        except (ApiServerError, msgspec.DecodeError):
            return None
        if not isinstance(data, dict):
            return None
        return read_claim(kind, f"{RESOURCE_GROUP}/{_VERSION}", data.get("spec"))[0]
