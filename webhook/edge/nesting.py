"""How deep JSON may nest before it becomes Python data.

Parsers recurse in C and stop at a limit of their own, which differs between versions of Python; what works on the
parsed data recurses in Python, where a few hundred levels end in a RecursionError. So whatever turns text from outside
into Python data asks here first. Text that is skipped, or read into declared fields, is never recursed into by us.
"""

import itertools
import re
from typing import Any, Final

import msgspec

MOST_LEVELS: Final = 100
"""Kubernetes' own types nest about 15 levels."""

MOST_CONTAINERS: Final = 250_000
"""Lists and objects of one text. Each is some 60 to 200 bytes of Python data; an object of 3 MiB, which is what the API
server takes, has a tenth of that."""

TOO_DEEP: Final = f"it is nested deeper than {MOST_LEVELS} levels"
_TOO_MANY: Final = f"it has more than {MOST_CONTAINERS} lists and objects"

_LONGEST_ENVELOPE: Final = 64 * 1024
_IN_REQUEST: Final = 2
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
_DELETED: Final = bytes(set(range(256)) - set(b'"[]{}'))
_STEPS: Final = bytes(1 if byte in b"[{" else 255 for byte in range(256))
"""One level down or up, as signed bytes."""
_decode: Final = msgspec.json.Decoder().decode


class TooDeepError(msgspec.DecodeError):
    """The text nests deeper than `MOST_LEVELS`, or has more than `MOST_CONTAINERS`; the message says which."""


def decode(raw: bytes | msgspec.Raw) -> Any:
    """JSON as Python data.

    Raises:
        TooDeepError: it nests too deeply.
        msgspec.DecodeError: it is not JSON.
    """
    text = bytes(raw)
    check(text)
    try:
        return _decode(text)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"it is not UTF-8: {error.reason}") from None


def check(text: bytes) -> None:
    """Pass unless the text nests too deeply.

    Costs two counts for nearly everything: as many levels need as many brackets, each with its counterpart.

    Raises:
        TooDeepError: it does.
    """
    if len(text) <= 2 * MOST_LEVELS or text.count(b"{") + text.count(b"[") <= MOST_LEVELS:
        return
    brackets = _brackets(text)
    if _is_deep(brackets):
        raise TooDeepError(TOO_DEEP)
    if len(brackets) > 2 * MOST_CONTAINERS:
        raise TooDeepError(_TOO_MANY)


def _brackets(text: bytes) -> bytes:
    """The brackets that are not in strings, in time proportional to the text."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Two quotes that meet can go: what is inside a string stays inside, and strings without a bracket vanish.
    brackets = text.translate(None, _DELETED).replace(b'""', b"")
    if b'"' in brackets:
        brackets = b"".join(brackets.split(b'"')[::2])
    return brackets


def _is_deep(brackets: bytes) -> bool:
    """Whether they nest too deeply. Looks at as many as are allowed: more are refused anyway."""
    steps = memoryview(brackets[: 2 * MOST_CONTAINERS].translate(_STEPS)).cast("b")
    return any(map(MOST_LEVELS.__lt__, itertools.accumulate(steps)))


def without_objects(review: bytes) -> bytes | None:
    """The beginning of a review, closed where its object would begin; None where that is not found.

    The API server writes what a review is about before the object, so an object that no parser would follow can
    still be refused in its own name.
    """
    depth = 0
    for token in _TOKEN.finditer(review, 0, _LONGEST_ENVELOPE):
        text = token[0]
        if text in (b"{", b"["):
            depth += 1
            if depth > MOST_LEVELS:
                return None
        elif text in (b"}", b"]"):
            depth -= 1
        elif depth == _IN_REQUEST and text == b'"object"' and review[token.end() : token.end() + 1] == b":":
            return review[: token.end()] + b":null}}"
    return None
