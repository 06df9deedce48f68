"""The interface to the API server, and the decoding of its answers. `api_transport` implements it.

Objects stay raw JSON.
"""

import contextlib
import datetime as dt
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec
import orjson

from runtime.api_errors import ApiAnswerError
from runtime.media_types import JSON


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
