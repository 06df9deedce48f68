"""Bounds the depth and size of JSON before it is decoded to Python data.

Parsers recurse in C and stop at a limit that differs between versions of Python. Code that walks decoded data recurses
in Python, where a few hundred levels raise RecursionError. So external text is checked here before it is decoded to
Python data. Text that is skipped or decoded into declared fields needs no check.

A byte of JSON can become fifty bytes of Python data, in one call of the parser during which no other thread runs. So
lists, objects and values are counted first, piece by piece.
"""

import itertools
import json
import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

MOST_LEVELS: Final = 100
"""Kubernetes' own types nest about 15 levels."""

MOST_CONTAINERS: Final = 100_000
"""Lists and objects of one text. Each takes 60 to 200 bytes of Python data. An object of 3 MiB, the most that the API
server accepts, has a quarter of that."""
MOST_VALUES: Final = 250_000
"""Values of one text, lists and objects included. Each takes up to 120 bytes with its name."""

PARSED_LEVELS: Final = 500
"""Levels of skipped text. Parsers recurse there too, and stop at their own limit."""

TOO_DEEP: Final = f"it is nested deeper than {MOST_LEVELS} levels"
_TOO_MANY: Final = f"it has more than {MOST_CONTAINERS} lists and objects"
_TOO_MANY_VALUES: Final = f"it has more than {MOST_VALUES} values"

_PIECE: Final = 32 * 1024
"""Bytes that are scanned in one step: at most a millisecond."""
BEGINNING: Final = 64 * 1024
"""Bytes of a review in which its object must begin, for `without_objects` to find it."""
_IN_REQUEST: Final = 2
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[{}\[\]]', re.DOTALL)
"""An unterminated string is a token too. Otherwise each quote in it would be tried as the start of a string."""
_DELETED: Final = bytes(set(range(256)) - set(b'"[]{},'))
_STEPS: Final = bytes(1 if byte in b"[{" else 255 for byte in range(256))
"""One level down or up, as signed bytes."""
_decode: Final = msgspec.json.Decoder().decode


class TooDeepError(msgspec.DecodeError):
    """The text exceeds `MOST_LEVELS`, `MOST_CONTAINERS` or `MOST_VALUES`."""


def decode(raw: bytes | msgspec.Raw) -> Any:
    """Decode JSON to Python data.

    Raises:
        TooDeepError: it exceeds a limit.
        msgspec.DecodeError: it is not JSON.
    """
    check(raw)
    try:
        return _decode(raw)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"it is not UTF-8: {error.reason}") from None


def check(text: bytes | msgspec.Raw) -> None:
    """Check depth and size of a text.

    Costs two counts for nearly every text: n levels need at least n opening brackets.

    Raises:
        TooDeepError: it exceeds a limit.
    """
    view = memoryview(text)
    if len(view) <= _PIECE:
        small = bytes(view)
        if len(small) <= 2 * MOST_LEVELS or small.count(b"{") + small.count(b"[") <= MOST_LEVELS:
            return
    scan = Scan(view)
    while scan.goes_on():
        pass


class Scan:
    """Scans a text piece by piece, in linear time. Copies only the current piece.

    Between pieces the caller may let other tasks run.
    """

    def __init__(self, text: bytes | bytearray | memoryview, levels: int = MOST_LEVELS) -> None:
        """Scan `text` for its size and for a depth of at most `levels`."""
        self._view = memoryview(text)
        self._levels = levels
        self._at = 0
        self._in_string = False
        self._depth = self._containers = self._values = 0

    def goes_on(self) -> bool:
        """Scan the next piece. Returns whether there is another.

        Raises:
            TooDeepError: the text exceeds a limit.
        """
        self._look(self._next())
        return self._at < len(self._view)

    def _next(self) -> bytes:
        piece = bytes(self._view[self._at : self._at + _PIECE])
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            # The piece must include the character that its last backslash escapes.
            piece = bytes(self._view[self._at : self._at + _PIECE + 1])
        self._at += len(piece)
        return piece

    def _look(self, piece: bytes) -> None:
        marks = self._outside_strings(piece)
        brackets = marks.translate(None, b",")
        containers = brackets.count(b"[") + brackets.count(b"{")
        if brackets:
            steps = memoryview(brackets.translate(_STEPS)).cast("b")
            levels = list(itertools.accumulate(steps, initial=self._depth))
            if max(levels) > self._levels:
                raise TooDeepError(TOO_DEEP)
            self._depth = levels[-1]
            if min(levels) < 0:
                # More closing than opening brackets: a parser stops there.
                self._at = len(self._view)
        self._containers += containers
        self._values += containers + len(marks) - len(brackets)
        if self._containers > MOST_CONTAINERS:
            raise TooDeepError(_TOO_MANY)
        if self._values > MOST_VALUES:
            raise TooDeepError(_TOO_MANY_VALUES)

    def _outside_strings(self, piece: bytes) -> bytes:
        """Brackets and commas that are not in strings."""
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        # Two adjacent quotes cancel out: strings without a mark vanish, and marks in strings stay in strings.
        marks = piece.translate(None, _DELETED).replace(b'""', b"")
        parts = marks.split(b'"')
        outside = b"".join(parts[self._in_string :: 2])
        self._in_string ^= len(parts) % 2 == 0
        return outside


def without_objects(review: bytes | bytearray) -> bytes | bytearray | None:
    """The beginning of a review with null in place of its object; None if the object is not found.

    The API server writes uid, kind and name before the object. So an object that is too deep for a parser can still be
    refused by name.
    """
    depth = 0
    for token in _TOKEN.finditer(review, 0, BEGINNING):
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


def key_of(value: object) -> str:
    """A text that is equal for equal JSON values that were decoded here; the order of members does not matter.

    Lists are compared by it: to compare each entry of one with each entry of another takes quadratic time, and users
    control both.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def keys_of(values: Iterable[object]) -> frozenset[str]:
    """The keys of all values."""
    return frozenset(map(key_of, values))
