"""What the driver's parts say to each other of files and API server: errors, and Kubernetes objects as JSON."""

import dataclasses
import datetime as dt
from typing import Any

JsonObject = dict[str, Any]
"""A Kubernetes object as decoded JSON."""


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


def version_of(body: JsonObject) -> int:
    """The object's resourceVersion; 0 if it has none.

    Comparable for objects of one kind: specified since Kubernetes 1.35 (KEP-5504), true also before.
    """
    text = body["metadata"].get("resourceVersion", "")
    return int(text) if text.isdecimal() else 0


def timestamp(now: float) -> str:
    """Seconds since the epoch as `metav1.Time`."""
    return dt.datetime.fromtimestamp(now, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
