"""Requests to the API server and the bodies of its answers, read within bounds."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

import aiohttp

from runtime import answers
from webhook.cluster.api import JSON, LONGEST_ANSWER, StatusError, TooLongError

_LONGEST_RETRY_AFTER: Final = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Sent:
    """A request."""

    method: str
    path: str
    query: Mapping[str, str]
    body: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    content_type: str = JSON
    accept: str = JSON


async def content_of(response: aiohttp.ClientResponse) -> bytes:
    """The whole body, up to `LONGEST_ANSWER` bytes.

    Raises:
        TooLongError: it is longer; the connection is closed.
    """
    content = await answers.content_of(response, LONGEST_ANSWER)
    if content is None:
        raise TooLongError(f"the answer is longer than {LONGEST_ANSWER} bytes")
    return content


def status_of(response: aiohttp.ClientResponse, content: bytes) -> StatusError:
    """The error in an answer whose status is not a success."""
    try:
        retry_after = min(float(response.headers.get("Retry-After", "0")), _LONGEST_RETRY_AFTER)
    except ValueError:  # the other form of the header, a date; the API server does not send it
        retry_after = 0.0
    return StatusError.parse(response.status, content, retry_after)
