"""What can go wrong with a request to the Kubernetes API server.

ApiServerError
  StatusError       the answer is not a success
  UnreachableError  no complete answer
    BrokenConnectionError  the connection broke after it was made
  ApiAnswerError    the answer is not the JSON of the Kubernetes API
    TooLongError    the answer is longer than the bound of its reader
"""

import re
from collections.abc import Mapping
from typing import Final

import orjson

from runtime.text import cited

UNAUTHORIZED: Final = 401
FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
CONFLICT: Final = 409
GONE: Final = 410
TOO_MANY_REQUESTS: Final = 429
SERVER_ERRORS: Final = 500

_EXCERPT: Final = 200
# The API server's words for a missing permission (apiserver/pkg/endpoints/handlers/responsewriters/errors.go).
_MISSING_RIGHT: Final = re.compile(r'\S+(?: "[^"]*")? is forbidden: User "(?P<user>[^"]*)" cannot (?P<verb>[a-z]+) ')


class ClusterUnavailableError(Exception):
    """There is no usable configuration or cluster; the message says why and what to do."""


class ApiServerError(Exception):
    """The API server did not do what was requested."""


class UnreachableError(ApiServerError):
    """No complete answer: not connected, not trusted, timed out or broken off."""


class BrokenConnectionError(UnreachableError):
    """The connection broke after it was made, such as when a load balancer or an API server ends."""


class ApiAnswerError(ApiServerError):
    """The answer is not the JSON of the Kubernetes API."""


class TooLongError(ApiAnswerError):
    """The answer is longer than its reader's bound; the rest was not read."""


class StatusError(ApiServerError):
    """The answer is not a success.

    Attributes:
        reason: `metav1.StatusReason`; empty if the answer is not a `metav1.Status`.
        details: `metav1.StatusDetails` as sent.
        retry_after: seconds to wait before a retry; 0 if the server does not name any.
    """

    def __init__(
        self,
        code: int,
        message: str,
        reason: str = "",
        details: Mapping[str, object] | None = None,
        retry_after: float = 0.0,
    ) -> None:
        # The server passes on what admission webhooks of others answer.
        super().__init__(f"HTTP {code}, {cited(message)}" if message else f"HTTP {code}")
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}
        self.retry_after = retry_after

    @classmethod
    def parse(cls, code: int, body: bytes, retry_after: float = 0.0) -> "StatusError":
        """Read the body of an answer. If it is not a `metav1.Status`, its beginning is the message."""
        try:
            status = orjson.loads(body)
        except orjson.JSONDecodeError:
            status = None
        if isinstance(status, dict) and status.get("kind") == "Status":
            return cls.from_status(status, code, retry_after)
        return cls(code, body[:_EXCERPT].decode(errors="replace").strip(), retry_after=retry_after)

    @classmethod
    def from_status(
        cls, status: Mapping[str, object], code: int = SERVER_ERRORS, retry_after: float = 0.0
    ) -> "StatusError":
        """Read a `metav1.Status`; `code` is used if the status has no code."""
        details = status.get("details")
        own_code = status.get("code")
        return cls(
            own_code if isinstance(own_code, int) and own_code else code,
            str(status.get("message") or ""),
            str(status.get("reason") or ""),
            details if isinstance(details, dict) else None,
            retry_after,
        )

    @property
    def passing(self) -> bool:
        """Whether a retry of the same request may succeed."""
        return self.code == TOO_MANY_REQUESTS or self.code >= SERVER_ERRORS

    @property
    def final(self) -> bool:
        """Whether the same request fails until an operator changes something."""
        return self.code in (UNAUTHORIZED, FORBIDDEN, NOT_FOUND)

    @property
    def missing_right(self) -> tuple[str, str] | None:
        """User and verb, if authorization denied the request; None if admission or another server did."""
        match = _MISSING_RIGHT.match(self.message) if self.code == FORBIDDEN else None
        return (match["user"], match["verb"]) if match else None

    def cause(self, reason: str) -> bool:
        """Whether the details have a cause with that reason, e.g. `NamespaceTerminating`."""
        causes = self.details.get("causes")
        return isinstance(causes, list) and any(
            isinstance(cause, dict) and cause.get("reason") == reason for cause in causes
        )
