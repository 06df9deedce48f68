"""What the plugin needs of the world, as it needs it. `files` and `kube` provide it; tests fake or break it."""

import dataclasses
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Protocol

JsonObject = dict[str, Any]
"""A Kubernetes object as decoded JSON."""


class Files(Protocol):
    """The file operations that state is made of, each one a step at which a crash may come. All raise OSError."""

    def read(self, path: Path) -> bytes:
        """The content of a file."""

    def names(self, directory: Path) -> list[str]:
        """Names in a directory, sorted."""

    def write(self, path: Path, data: bytes) -> None:
        """Make or replace a file and return when its content is on the disk. Not atomic."""

    def rename(self, source: Path, target: Path) -> None:
        """Replace `target` with `source`, atomically."""

    def remove(self, path: Path) -> None:
        """Remove a file; one that is not there is no error."""

    def sync_directory(self, directory: Path) -> None:
        """Return when the names in the directory are on the disk."""

    def make_directory(self, directory: Path) -> None:
        """Make a directory and its parents; one that is there is no error."""

    def identity(self, path: Path) -> tuple[int, ...] | None:
        """Something that changes whenever the file is replaced; None if there is no file."""


class KubeError(Exception):
    """The API server could not do what was asked.

    Attributes:
        status: HTTP status; 0 if there was no answer.
        reason: `metav1.StatusReason`, e.g. `Conflict`; empty if unknown.
    """

    def __init__(self, message: str, status: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later: no answer, overload, or the server's own failure."""
        return self.status in (0, 429) or self.status >= 500


class UnreadableObjectError(KubeError):
    """The API server has the object, and nothing can be done with it; asking again changes nothing."""

    @property
    def retryable(self) -> bool:
        """Never."""
        return False


@dataclasses.dataclass(frozen=True, slots=True)
class SliceEvent:
    """One event of a watch on ResourceSlices: `ADDED`, `MODIFIED` or `DELETED`, with the object (v1)."""

    type: str
    slice: JsonObject


class ClaimReader(Protocol):
    """ResourceClaims. All methods raise `KubeError`."""

    async def claim(self, namespace: str, name: str) -> JsonObject | None:
        """The claim, or None if there is none of that name."""

    async def claims(self) -> list[JsonObject]:
        """All claims of the cluster that have devices of our driver, with name, namespace, UID and status.

        Those that cannot be read are left out: tenants decide what is in a claim.
        """


class NodeReader(Protocol):
    """The node on which the plugin runs."""

    async def node(self) -> JsonObject:
        """The Node object. Raises `KubeError`."""


class SliceStore(Protocol):
    """The ResourceSlices of this driver on this node, in `resource.k8s.io/v1` form. All methods raise `KubeError`."""

    async def separates_counters(self) -> bool:
        """Whether shared counters need a slice of their own (Kubernetes 1.35 and later)."""

    async def slices(self) -> tuple[list[JsonObject], str]:
        """The slices and the resourceVersion from which to watch."""

    def watch(self, resource_version: str) -> AsyncIterator[SliceEvent]:
        """Changes after a resourceVersion, until the server ends the watch."""

    async def create(self, body: Mapping[str, Any]) -> JsonObject:
        """Create a slice; returns it as stored."""

    async def update(self, body: Mapping[str, Any]) -> JsonObject:
        """Replace a slice whose resourceVersion is `body`'s; returns it as stored."""

    async def delete(self, name: str) -> None:
        """Delete a slice; one that is not there is no error."""


class Clock(Protocol):
    """Time, so that tests need not wait for it."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds that never go back."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""
