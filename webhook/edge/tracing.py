"""W3C Trace Context: reads the `traceparent` header, which the API server sends if its tracing is enabled."""

import re
from collections.abc import Sequence
from operator import itemgetter
from typing import Final

NO_TRACE: Final = ("", "")

_NAME: Final = itemgetter(0)
_PARENT: Final = re.compile(
    rb"(?!ff)(?!00.{54})[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?"
)
"""https://www.w3.org/TR/trace-context/#traceparent-header: version 00 has exactly these parts, later versions may have
more. Version ff and ids of only zeros are invalid."""


def trace_of(headers: Sequence[tuple[bytes, bytes]]) -> tuple[str, str]:
    """Trace id and the caller's span id in hexadecimal; empty if the header is absent, invalid or repeated."""
    if b"traceparent" not in map(_NAME, headers):
        return NO_TRACE
    values = [value for name, value in headers if name == b"traceparent"]
    match = _PARENT.fullmatch(values[0]) if len(values) == 1 else None
    return NO_TRACE if match is None else (match[1].decode(), match[2].decode())
