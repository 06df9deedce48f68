"""The interface to the API server: what is requested, requests, and the decoding of answers.

`api_transport` implements it, `api_errors` has its errors. Objects stay raw JSON.
"""

import contextlib
import dataclasses
import datetime as dt
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote

import msgspec
import orjson

from runtime.api_errors import ApiAnswerError
from runtime.media_types import JSON

RESOURCE_GROUP: Final = "resource.k8s.io"
OLDEST_KUBERNETES: Final = "1.34"
"""The first release that serves `resource.k8s.io/v1` by default."""


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
