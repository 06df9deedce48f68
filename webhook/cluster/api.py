"""The interface to the API server: requests, resources, errors, decoding of answers.

    ApiServerError
      StatusError       an answer whose HTTP status is not a success
      UnreachableError  no complete answer
      ApiAnswerError   an answer that is not the API's JSON
        TooLongError    an answer of more than `LONGEST_ANSWER` bytes

`kube` implements it with the transport of the `kubernetes` client. Objects stay raw JSON, because that client's models
refuse fields of newer API servers.
"""

import contextlib
import dataclasses
import datetime as dt
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote

import msgspec
import orjson

RESOURCE_GROUP: Final = "resource.k8s.io"
OLDEST_KUBERNETES: Final = "1.34"
"""The first release that serves `resource.k8s.io/v1` by default."""

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"

UNAUTHORIZED: Final = 401
FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
CONFLICT: Final = 409
GONE: Final = 410
TOO_MANY_REQUESTS: Final = 429
SERVER_ERRORS: Final = 500

LONGEST_ANSWER: Final = 16 * 1024 * 1024
"""Bytes. One object is shorter; a list that is longer is requested with fewer objects per page."""
PARTIAL: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""`Accept` header for requests that need only `metadata`."""

_EXCERPT: Final = 200
# The API server's message for a missing permission (apiserver/pkg/endpoints/handlers/responsewriters/errors.go).
_MISSING_RIGHT: Final = re.compile(r'\S+(?: "[^"]*")? is forbidden: User "(?P<user>[^"]*)" cannot (?P<verb>[a-z]+) ')
_ANONYMOUS: Final = "system:anonymous"


class ApiServerError(Exception):
    """A request to the API server failed."""


class UnreachableError(ApiServerError):
    """No complete answer: no connection, no trust, a time-out, or a connection that broke."""


class ApiAnswerError(ApiServerError):
    """The answer is not the JSON that the Kubernetes API defines."""


class TooLongError(ApiAnswerError):
    """The answer has more than `LONGEST_ANSWER` bytes; the rest was not read."""


class StatusError(ApiServerError):
    """The API server answered with a status that is not a success.

    Attributes:
        code: HTTP status.
        reason: `metav1.StatusReason`; empty if the answer was not a `metav1.Status`.
        message: of the server.
        details: `metav1.StatusDetails` as sent.
        retry_after: seconds of the header `Retry-After`; 0 without it.
    """

    def __init__(
        self,
        code: int,
        message: str,
        reason: str = "",
        details: Mapping[str, Any] | None = None,
        retry_after: float = 0.0,
    ) -> None:
        super().__init__(f"{message} (HTTP {code})" if message else f"HTTP {code}")
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}
        self.retry_after = retry_after

    @classmethod
    def parse(cls, code: int, body: bytes, retry_after: float = 0.0) -> "StatusError":
        """Read the body of an answer. A body that is not a `metav1.Status` becomes the message, shortened."""
        try:
            status = orjson.loads(body)
        except orjson.JSONDecodeError:
            status = None
        if isinstance(status, dict) and status.get("kind") == "Status":
            return cls.from_status(status, code, retry_after)
        return cls(code, body[:_EXCERPT].decode(errors="replace").strip(), retry_after=retry_after)

    @classmethod
    def from_status(
        cls, status: Mapping[str, Any], code: int = SERVER_ERRORS, retry_after: float = 0.0
    ) -> "StatusError":
        """Read a `metav1.Status`. `code` is used if it has none."""
        details = status.get("details")
        said = status.get("code")
        return cls(
            said if isinstance(said, int) and said else code,
            str(status.get("message") or ""),
            str(status.get("reason") or ""),
            details if isinstance(details, dict) else None,
            retry_after,
        )

    @property
    def passing(self) -> bool:
        """Whether the request is retryable: the same request may succeed later."""
        return self.code == TOO_MANY_REQUESTS or self.code >= SERVER_ERRORS

    @property
    def final(self) -> bool:
        """Whether the same request fails until an operator acts."""
        return self.code in (UNAUTHORIZED, FORBIDDEN, NOT_FOUND)

    @property
    def missing_right(self) -> tuple[str, str] | None:
        """User and verb if authorization denied the request; None if admission or another server denied it."""
        match = _MISSING_RIGHT.match(self.message) if self.code == FORBIDDEN else None
        return (match["user"], match["verb"]) if match else None

    def cause(self, reason: str) -> bool:
        """Whether `details.causes` has an entry with this reason, e.g. `NamespaceTerminating`."""
        causes = self.details.get("causes")
        return isinstance(causes, list) and any(
            isinstance(cause, dict) and cause.get("reason") == reason for cause in causes
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object in one version of the API. The core group is empty."""

    group: str
    version: str
    plural: str

    def path(self, namespace: str = "", name: str = "") -> str:
        """URL path of the collection, of its part in one namespace, or of one object.

        Names are quoted, because tenants choose some of them.
        """
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        inside = f"{root}/namespaces/{quote(namespace, safe='')}" if namespace else root
        return f"{inside}/{self.plural}/{quote(name, safe='')}" if name else f"{inside}/{self.plural}"

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


class ApiServer(Protocol):
    """Requests to one API server; the implementation adds credentials and TLS. Times are in seconds."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        timeout: float,  # noqa: ASYNC109 - one request's share of a budget, kept by the transport
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> bytes:
        """Body of a successful answer. `content_type` is that of `body`: an object, or a kind of patch.

        Raises:
            StatusError: the answer is not a success.
            UnreachableError: there is no complete answer within `timeout`.
            TooLongError: the answer is longer than `LONGEST_ANSWER`.
        """

    def stream(
        self, path: str, *, query: Mapping[str, str], stall: float
    ) -> contextlib.AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """A GET whose body is read in pieces as they arrive; `stall` is the longest pause between two pieces.

        Raises:
            StatusError: on entering: the answer is not a success.
            UnreachableError: on entering or reading.
        """


class TimedApiServer(ApiServer, Protocol):
    """An API server whose clock is known: it verifies certificates by its own clock."""

    @property
    def skew(self) -> dt.timedelta:
        """How far its clock is ahead of the local clock, as of its last answer."""

    def now(self) -> dt.datetime:
        """The time by its clock."""


_S = TypeVar("_S")
_D = TypeVar("_D")


def decoded(decode: Callable[[_S], _D], body: _S) -> _D:
    """A body as `decode`, a decoder of msgspec, reads it.

    Raises:
        ApiAnswerError: it is not what `decode` expects, or is nested too deeply.
    """
    try:
        return decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiAnswerError(f"the answer is not the API's JSON: {error}") from error


def loaded(body: bytes | memoryview, what: str = "the answer") -> Any:
    """A body as plain data; `what` names it in the error.

    Raises:
        ApiAnswerError: it is not JSON.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiAnswerError(f"{what} is not JSON: {error}") from error


def loaded_object(body: bytes | memoryview, what: str = "the answer") -> dict[str, Any]:
    """A body as a JSON object; `what` names it in the error.

    Raises:
        ApiAnswerError: it is not a JSON object.
    """
    item = loaded(body, what)
    if not isinstance(item, dict):
        raise ApiAnswerError(f"{what} is not a JSON object")
    return item


def rule_text(group: str, resources: Iterable[str], verbs: Iterable[str], names: Iterable[str] = ()) -> str:
    """An RBAC rule as one line of YAML for `rules:`."""
    groups = f'["{group}"]' if not group else f"[{group}]"
    named = ", ".join(names)
    only = f", resourceNames: [{named}]" if named else ""
    return f"- {{apiGroups: {groups}, resources: [{', '.join(resources)}]{only}, verbs: [{', '.join(verbs)}]}}"


def explain(error: ApiServerError, verb: str, resource: Resource, namespace: str = "", name: str = "") -> str:
    """The error and its fix, in one sentence for an operator.

    Args:
        error: the error.
        verb: of the request.
        resource: of the request.
        namespace: of the request; empty: all namespaces, or a cluster-scoped resource.
        name: of the only object; empty: all objects.
    """
    group = resource.group or "core"
    what = f"{resource} {name}" if name else str(resource)
    if isinstance(error, StatusError):
        if error.code == UNAUTHORIZED:
            return f"cannot {verb} {what}: the API server does not accept the webhook's credentials"
        if error.code == FORBIDDEN and error.missing_right:
            user, said = error.missing_right
            none = ", the request carried no credentials" if user == _ANONYMOUS else ""
            return _missing_rule(said, verb, resource, namespace, name, user, none)
        if error.code == NOT_FOUND and resource.group == RESOURCE_GROUP:
            return (
                f"the API server does not serve {resource.plural} in {group}/{resource.version}: Kubernetes >= "
                f"{OLDEST_KUBERNETES} with Dynamic Resource Allocation is needed"
            )
        return f"cannot {verb} {what}: the API server says: {error}"
    return f"cannot {verb} {what}: {error}"


def _missing_rule(said: str, verb: str, resource: Resource, namespace: str, name: str, user: str, none: str) -> str:
    verbs = ("list", "watch") if verb in ("list", "watch") else (said,)
    named = f" named {name}" if name else ""
    if namespace:
        where, role = f"in namespace {namespace}", f"Role in namespace {namespace}"
    else:
        where, role = "in the cluster" if name else "in all namespaces", "ClusterRole"
    # A rule for `create` cannot be restricted to a name (Kubernetes docs, RBAC, "Referring to resources").
    rule = rule_text(resource.group, (resource.plural,), verbs, (name,) if name and said != "create" else ())
    return (
        f"not allowed to {said} {resource.plural}{named} (API group {resource.group or 'core'}) {where}{none}: give "
        f'"{user}" a {role} with this rule: {rule}'
    )
