"""The interfaces to files, API server and clock; tests replace them. `files`, `api_store`, `clock` implement them."""

import dataclasses
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

JsonObject = dict[str, Any]
"""A Kubernetes object as decoded JSON."""


class Files(Protocol):
    """The file operations of the driver's state. A crash may happen between any two. All raise OSError."""

    def read(self, path: Path) -> bytes:
        """The content of a file."""

    def names(self, directory: Path) -> list[str]:
        """Names in a directory, sorted."""

    def write(self, path: Path, data: bytes) -> None:
        """Create or replace a file and sync it. Not atomic."""

    def rename(self, source: Path, target: Path) -> None:
        """Replace `target` with `source`, atomically."""

    def remove(self, path: Path) -> None:
        """Remove a file if it exists."""

    def sync_directory(self, directory: Path) -> None:
        """Sync the names in the directory."""

    def make_directory(self, directory: Path) -> None:
        """Create a directory and its parents if they are missing."""

    def identity(self, path: Path) -> tuple[int, ...] | None:
        """A value that changes when the file is replaced; None if there is no file."""


class KubeError(Exception):
    """A request to the API server failed.

    Attributes:
        status: HTTP status; 0 if there was no answer.
        reason: `metav1.StatusReason`, e.g. `Conflict`; empty if unknown.
        retry_after: seconds to wait before a retry; 0 if the server does not name any.
    """

    def __init__(self, message: str, status: int = 0, reason: str = "", retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later: no answer, overload, or a failure of the server."""
        return self.status in (0, 429) or self.status >= 500


class UnreadableObjectError(KubeError):
    """The API server has the object, but it cannot be read; a retry does not help."""

    @property
    def retryable(self) -> bool:
        """Never."""
        return False


class UsageUnknownError(Exception):
    """It is not known whether a device is in use; the message has the reason."""


class NoProcessesError(UsageUnknownError):
    """The driver was not given the host's processes: it will never know."""


@dataclasses.dataclass(frozen=True, slots=True)
class SliceEvent:
    """One event of a watch on ResourceSlices: `ADDED`, `MODIFIED` or `DELETED`, with the object (v1)."""

    type: str
    slice: JsonObject


class ClaimReader(Protocol):
    """ResourceClaims. All methods raise `KubeError`."""

    async def claim(self, namespace: str, name: str) -> JsonObject | None:
        """The claim; None if it does not exist."""

    async def claims(self) -> list[JsonObject]:
        """The claims of the cluster with devices of this driver on this node: name, namespace, UID and status.

        Claims that cannot be read are left out: tenants choose their content.
        """


class ClaimStatusStore(Protocol):
    """The status of ResourceClaims. All methods raise `KubeError`."""

    async def claim(self, namespace: str, name: str) -> JsonObject | None:
        """The claim; None if it does not exist."""

    async def apply_devices(
        self,
        namespace: str,
        name: str,
        uid: str,
        devices: Sequence[Mapping[str, object]],
        *,
        resource_version: str | None = None,
    ) -> JsonObject | None:
        """Make `devices` this driver's entries in `status.devices`, and remove its others; returns the claim as stored.

        Returns None if there is no claim of that name and UID, or if it has another `resource_version`, where that is
        given. Entries of other writers stay.
        """


class OwnNodeStore(Protocol):
    """The Node object of the node on which the plugin runs. All methods raise `KubeError`."""

    async def node(self) -> JsonObject:
        """The Node object."""

    def follow(self) -> AsyncIterator[JsonObject]:
        """The Node object after each change, until the server ends the watch; first the present one if changes may have
        been missed since the last call."""

    async def label(self, labels: Mapping[str, str | None]) -> JsonObject:
        """Set labels, remove those with the value None; returns the Node as stored."""

    async def report(self, event: Mapping[str, object]) -> None:
        """Create an Event (`v1`)."""


class SliceStore(Protocol):
    """The ResourceSlices of this driver on this node, in `resource.k8s.io/v1` form. All methods raise `KubeError`."""

    async def kubernetes(self) -> str:
        """The version of the API server, such as `v1.36.2`; empty if it does not say."""

    async def keeps_taints(self) -> bool:
        """Whether the API server stores device taints: it drops them if their feature is disabled."""

    async def slices(self) -> tuple[list[JsonObject], str]:
        """The slices and the resourceVersion from which to watch."""

    def watch(self, resource_version: str) -> AsyncIterator[SliceEvent]:
        """Changes since a resourceVersion, until the server ends the watch."""

    async def create(self, body: Mapping[str, object]) -> JsonObject:
        """Create a slice; returns it as stored."""

    async def update(self, body: Mapping[str, object]) -> JsonObject:
        """Replace a slice whose resourceVersion is `body`'s; returns it as stored."""

    async def delete(self, name: str) -> None:
        """Delete a slice if it exists."""


class Clock(Protocol):
    """Time; tests replace it."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds of a monotonic clock."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""
