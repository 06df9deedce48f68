"""Files with the metadata of a prepared claim's devices, and where containers see them (KEP-5304).

A container that uses a request of a claim has the file of the request, read-only, at a path of Kubernetes. The host's
files are in the driver's state. They are written before the CDI spec that mounts them, and removed after it. By them a
container also names its claim (`claim_files`).
"""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

import msgspec

from kubeletplugin.claim_files import ClaimFile, read_name
from kubeletplugin.files import DiskFiles, durable_remove, durable_write, is_leftover
from kubeletplugin.prepare.checkpoint import PreparedClaim
from neuron import names

CONTAINER_ROOT: Final = "/var/run/kubernetes.io/dra-device-attributes"
FOLDER: Final = "device-metadata"
API_VERSION: Final = "metadata.resource.k8s.io/v1alpha1"
KIND: Final = "DeviceMetadata"


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

    def __init__(self, files: DiskFiles, state_dir: Path) -> None:
        self._files = files
        self._directory = state_dir / FOLDER

    def path(self, claim: PreparedClaim, request: str) -> Path:
        """The host's file of a request. Raises ValueError for names that could point outside the directory."""
        return self._directory / ClaimFile(claim.uid, request, claim.number).name

    def mount(self, claim: PreparedClaim, request: str) -> dict[str, object]:
        """The mount of a request's file, as in a CDI spec."""
        place = container_path(_document(claim, request), request)
        return {"hostPath": str(self.path(claim, request)), "containerPath": place, "options": ["ro", "bind"]}

    def ensure(self, claim: PreparedClaim) -> None:
        """Write the claim's files, unless they have this content already."""
        for request in dict.fromkeys(device.parent_request for device in claim.devices):
            path, document = self.path(claim, request), _document(claim, request)
            content = msgspec.json.format(msgspec.json.encode(document, order="sorted"), indent=2) + b"\n"
            if self._files.identity(path) is not None and self._files.read(path) == content:
                continue
            self._files.make_directory(self._directory)
            durable_write(self._files, path, content)

    def remove(self, uid: str) -> None:
        """Remove the claim's files. Containers that still run keep their mounts, which show the names."""
        self._remove(lambda owner: owner == uid)

    def keep(self, uids: Collection[str]) -> None:
        """Remove the files of all other claims, and temporary files that a crash left."""
        self._remove(lambda owner: owner not in uids)

    def _remove(self, chosen: Callable[[str], bool]) -> None:
        if self._files.identity(self._directory) is None:
            return
        for name in self._files.names(self._directory):
            file = read_name(name)
            if is_leftover(name) or (file is not None and chosen(file.uid)):
                durable_remove(self._files, self._directory / name)


def _document(claim: PreparedClaim, request: str) -> dict[str, Any]:
    """The metadata of a request; of a claim that was restored without it, only its name."""
    about = {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid, "generation": 0}
    bare = {"kind": KIND, "apiVersion": API_VERSION, "metadata": about, "requests": []}
    return claim.metadata.get(request) or bare
