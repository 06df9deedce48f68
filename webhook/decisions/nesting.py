"""How deep and how large JSON may be before it becomes Python data.

Parsers recurse in C and stop at a limit of their own, which differs between versions of Python; what works on the
parsed data recurses in Python, where a few hundred levels end in a RecursionError. So whatever turns text from outside
into Python data asks here first. Text that is skipped, or read into declared fields, is never recursed into by us.

A byte of JSON can become fifty of Python data, and the parser works them off in one call, in which the interpreter
cannot switch threads. So lists, objects and values are counted before, piece by piece.
"""

import itertools
import re
from typing import Any, Final

import msgspec

MOST_LEVELS: Final = 100
"""Kubernetes' own types nest about 15 levels."""

MOST_CONTAINERS: Final = 100_000
"""Lists and objects of one text. Each is some 60 to 200 bytes of Python data; an object of 3 MiB, which is what the API
server takes, has a quarter of that."""
MOST_VALUES: Final = 250_000
"""Values of one text, lists and objects included. Each is up to 120 bytes with its name."""

PARSED_LEVELS: Final = 500
"""Levels of what is skipped. Parsers recurse there too, and end at a limit of their own."""

TOO_DEEP: Final = f"it is nested deeper than {MOST_LEVELS} levels"
_TOO_MANY: Final = f"it has more than {MOST_CONTAINERS} lists and objects"
_TOO_MANY_VALUES: Final = f"it has more than {MOST_VALUES} values"

_PIECE: Final = 32 * 1024
"""Bytes that are looked at without a chance for others: a millisecond at most."""
BEGINNING: Final = 64 * 1024
"""Bytes of a review in which its object has to begin, for what is before it to be found."""
_IN_REQUEST: Final = 2
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[{}\[\]]', re.DOTALL)
"""A text that does not end is one too, else each quote in it would be tried as the beginning of another."""
_DELETED: Final = bytes(set(range(256)) - set(b'"[]{},'))
_STEPS: Final = bytes(1 if byte in b"[{" else 255 for byte in range(256))
"""One level down or up, as signed bytes."""
_decode: Final = msgspec.json.Decoder().decode


class TooDeepError(msgspec.DecodeError):
    """The text is deeper than `MOST_LEVELS`, or has more than `MOST_CONTAINERS` or `MOST_VALUES`."""


def decode(raw: bytes | msgspec.Raw) -> Any:
    """JSON as Python data.

    Raises:
        TooDeepError: it nests too deeply, or has too much in it.
        msgspec.DecodeError: it is not JSON.
    """
    check(raw)
    try:
        return _decode(raw)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"it is not UTF-8: {error.reason}") from None


def check(text: bytes | msgspec.Raw) -> None:
    """Pass unless the text nests too deeply, or has too much in it.

    Costs two counts for nearly everything: as many levels need as many brackets, each with its counterpart.

    Raises:
        TooDeepError: it does.
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
    """A look at a text, piece by piece, each in time proportional to its size. Nothing is copied but the piece.

    Between pieces the caller may let others have their turn.
    """

    def __init__(self, text: bytes | bytearray | memoryview, levels: int = MOST_LEVELS) -> None:
        """Look at how much is in the text, and whether it is deeper than `levels`."""
        self._view = memoryview(text)
        self._levels = levels
        self._at = 0
        self._in_string = False
        self._depth = self._containers = self._values = 0

    def goes_on(self) -> bool:
        """Look at the next piece; whether there is another.

        Raises:
            TooDeepError: there is too much.
        """
        self._look(self._next())
        return self._at < len(self._view)

    def _next(self) -> bytes:
        piece = bytes(self._view[self._at : self._at + _PIECE])
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            # What a backslash escapes comes with it.
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
                # More ends than beginnings: a parser stops there.
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
        # Two quotes that meet can go: what is inside a string stays inside, and strings without a mark vanish.
        marks = piece.translate(None, _DELETED).replace(b'""', b"")
        parts = marks.split(b'"')
        outside = b"".join(parts[self._in_string :: 2])
        self._in_string ^= len(parts) % 2 == 0
        return outside


def without_objects(review: bytes | bytearray) -> bytes | bytearray | None:
    """The beginning of a review, closed where its object would begin; None where that is not found.

    The API server writes what a review is about before the object, so an object that no parser would follow can
    still be refused in its own name.
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
