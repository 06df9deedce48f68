"""Files with the metadata of a prepared claim's devices, and where containers see them (KEP-5304).

A container that uses a request of a claim has the file of the request, read-only, at a path of Kubernetes. The host's
files are in the driver's state. They are written before the CDI spec that mounts them, and removed after it.
"""

import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

import msgspec

from kubeletplugin.files import durable_remove, durable_write, is_leftover
from kubeletplugin.ports import Files
from kubeletplugin.prepare.checkpoint import PreparedClaim
from neuron import names

CONTAINER_ROOT: Final = "/var/run/kubernetes.io/dra-device-attributes"
FOLDER: Final = "device-metadata"

_SUFFIX: Final = ".json"
_JOINT: Final = "_"
"""Neither UIDs nor names of requests contain it."""
_SAFE: Final = re.compile(r"[A-Za-z0-9-]{1,63}", re.ASCII)


def container_path(document: dict[str, Any], request: str) -> str:
    """The path of a request's file in containers.

    Args:
        request: its name without the alternative.
    """
    pod_claim = document.get("podClaimName")
    claim = f"resourceclaimtemplates/{pod_claim}" if pod_claim else f"resourceclaims/{document['metadata']['name']}"
    return f"{CONTAINER_ROOT}/{claim}/{request}/{names.DRIVER}-metadata.json"


class MetadataFiles:
    """The files of one node, one for each claim and request. All methods raise OSError."""

    def __init__(self, files: Files, state_dir: Path) -> None:
        self._files = files
        self._directory = state_dir / FOLDER

    def path(self, uid: str, request: str) -> Path:
        """The host's file of a request. Raises ValueError for names that could point outside the directory."""
        for part in (uid, request):
            if not _SAFE.fullmatch(part):
                raise ValueError(f"{part!r} is neither the UID of a claim nor the name of a request.")
        return self._directory / f"{uid}{_JOINT}{request}{_SUFFIX}"

    def mount(self, claim: PreparedClaim, request: str) -> dict[str, object] | None:
        """The mount of a request's file, as in a CDI spec; None if the claim has no metadata."""
        document = claim.metadata.get(request)
        if document is None:
            return None
        source = str(self.path(claim.uid, request))
        return {"hostPath": source, "containerPath": container_path(document, request), "options": ["ro", "bind"]}

    def ensure(self, claim: PreparedClaim) -> None:
        """Write the claim's files, unless they have this content already."""
        for request, document in claim.metadata.items():
            path = self.path(claim.uid, request)
            content = msgspec.json.format(msgspec.json.encode(document, order="sorted"), indent=2) + b"\n"
            if self._files.identity(path) is not None and self._files.read(path) == content:
                continue
            self._files.make_directory(self._directory)
            durable_write(self._files, path, content)

    def remove(self, uid: str) -> None:
        """Remove the claim's files."""
        self._remove(lambda owner: owner == uid)

    def keep(self, uids: Collection[str]) -> None:
        """Remove the files of all other claims, and temporary files that a crash left."""
        self._remove(lambda owner: owner not in uids)

    def _remove(self, chosen: Callable[[str], bool]) -> None:
        if self._files.identity(self._directory) is None:
            return
        for name in self._files.names(self._directory):
            if is_leftover(name) or (name.endswith(_SUFFIX) and chosen(name.partition(_JOINT)[0])):
                durable_remove(self._files, self._directory / name)
