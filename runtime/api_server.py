"""The interface to the API server: what is requested, requests, decoding of answers, errors and their fix.

`api_transport` implements it. Objects stay raw JSON.

ApiServerError
  StatusError       the answer is not a success
  UnreachableError  no complete answer
    BrokenConnectionError  the connection broke after it was made
  ApiAnswerError    the answer is not the JSON of the Kubernetes API
    UnreadableAnswerError  the reader cannot take it, however often it asks
      TooLongError  the answer is longer than the bound of its reader
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
    """The API server did not do what was requested.

    Attributes:
        retry_after: seconds to wait before a retry; 0 if the server does not name any.
    """

    retry_after = 0.0

    @property
    def passing(self) -> bool:
        """Whether a retry of the same request may succeed."""
        return True


class UnreachableError(ApiServerError):
    """No complete answer: not connected, not trusted, timed out or broken off."""


class BrokenConnectionError(UnreachableError):
    """The connection broke after it was made, such as when a load balancer or an API server ends."""


class ApiAnswerError(ApiServerError):
    """The answer is not the JSON of the Kubernetes API."""


class UnreadableAnswerError(ApiAnswerError):
    """The API server has the object, and it cannot be read."""

    @property
    def passing(self) -> bool:
        """Never."""
        return False


class TooLongError(UnreadableAnswerError):
    """The answer is longer than its reader's bound; the rest was not read."""


class StatusError(ApiServerError):
    """The answer is not a success.

    Attributes:
        reason: `metav1.StatusReason`; empty if the answer is not a `metav1.Status`.
        details: `metav1.StatusDetails` as sent.
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


JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
APPLY: Final = "application/apply-patch+yaml"
COMPACT: Final = "application/yaml"
"""For objects with opaque configs: they are sent as JSON without spaces, which is YAML too.

The API server stores the text of an opaque config as it was sent, and writes it without spaces and in order when a
driver applies `status.devices`. To it, both texts differ, so it refuses the driver's change. The client puts spaces
into JSON.
"""
PARTIAL: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""`Accept` header for requests and watches that need only `metadata`."""
PARTIAL_LIST: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""The same for lists."""


RESOURCE_GROUP: Final = "resource.k8s.io"
OLDEST_KUBERNETES: Final = "1.34"
"""The first release that serves `resource.k8s.io/v1` by default."""


_S = TypeVar("_S")
_D = TypeVar("_D")
GROUP_PATH = f"/apis/{RESOURCE_GROUP}"
_ANONYMOUS: Final = "system:anonymous"


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


@dataclasses.dataclass(frozen=True, slots=True)
class Collection:
    """Which objects to list and watch.

    Attributes:
        namespace: their namespace; empty: all namespaces.
        name: name of the only object; a Role may be restricted to it (`resourceNames`). Empty: all objects.
        parameters: further query parameters, such as `fieldSelector`.
        metadata_only: whether the API server sends only `metadata` of each object.
    """

    resource: Resource
    namespace: str = ""
    name: str = ""
    parameters: Mapping[str, str] = dataclasses.field(default_factory=dict)
    metadata_only: bool = False

    @property
    def path(self) -> str:
        """URL path for list and watch."""
        return self.resource.path(self.namespace)

    @property
    def query(self) -> dict[str, str]:
        """Query parameters for list and watch."""
        return {**self.parameters, **({"fieldSelector": f"metadata.name={self.name}"} if self.name else {})}


class ApiServer(Protocol):
    """Requests to one API server; the implementation adds credentials and TLS. Times are in seconds."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        timeout: float,  # noqa: ASYNC109 - one request's share of a budget, kept by the transport
        query: Mapping[str, str] | None = None,
        body: Mapping[str, object] | Sequence[Mapping[str, object]] | None = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> bytes:
        """Body of a successful answer. `content_type` is that of `body`: an object, or a kind of patch.

        Raises:
            StatusError: the answer is not a success.
            UnreachableError: there is no complete answer within `timeout`.
            TooLongError: the answer is longer than the bound of the transport.
        """

    def stream(
        self, path: str, *, query: Mapping[str, str], stall: float, accept: str = JSON
    ) -> contextlib.AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """A GET whose body is read in pieces as they arrive; `stall` is the longest pause between two pieces.

        `accept` is the media type of the body.

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


async def served_versions(server: ApiServer, within: float) -> tuple[str, ...]:
    """The versions, the preferred one first; empty if the group is not served.

    Args:
        within: time-out in seconds.

    Raises:
        ApiServerError: they cannot be read.
    """
    try:
        group = loaded_object(await server.request("GET", GROUP_PATH, timeout=within))
    except StatusError as error:
        if error.code == NOT_FOUND:
            return ()
        raise
    try:
        return tuple(str(each["version"]) for each in group.get("versions") or ())
    except (KeyError, TypeError) as error:
        raise ApiAnswerError(f"{GROUP_PATH} has no list of versions") from error


async def kubernetes_version(server: ApiServer, within: float) -> str:
    """The version of the API server, such as `v1.36.2`; empty if it does not say.

    Raises:
        ApiServerError: it cannot be read.
    """
    try:
        return str(loaded_object(await server.request("GET", "/version", timeout=within)).get("gitVersion") or "")
    except StatusError as error:
        if error.code in (UNAUTHORIZED, FORBIDDEN, NOT_FOUND):
            return ""
        raise


def rule_text(group: str, resources: Iterable[str], verbs: Iterable[str], names: Iterable[str] = ()) -> str:
    """An RBAC rule as one line of YAML for `rules:`."""
    groups = f'["{group}"]' if not group else f"[{group}]"
    named = ", ".join(names)
    only = f", resourceNames: [{named}]" if named else ""
    return f"- {{apiGroups: {groups}, resources: [{', '.join(resources)}]{only}, verbs: [{', '.join(verbs)}]}}"


def explain(error: ApiServerError, verb: str, resource: Resource, namespace: str = "", name: str = "") -> str:
    """The error and its fix, in one sentence for an operator.

    Args:
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
