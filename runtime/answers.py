"""Reads answers of the API server within bounds: lists page by page, lines of watches, and each object as bytes.

A tenant controls depth and content of the objects in a namespace: `opaque.parameters` of a claim may nest 5,000 levels
and contain strings (a single surrogate) that Go accepts as JSON. Parsers fail at about 1,000 levels or at such a
string, even if they only skip it, and then the whole list or event would be lost. So each object is cut out as bytes
first, without recursion, and decoded separately.

Lists leave `resourceVersion` unset: they show the most recent state, and all pages of one list show the same state.
Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#retrieving-large-results-sets-in-chunks
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterator, Mapping
from typing import Final

import msgspec

from runtime.api_server import TooLongError

WINDOW: Final = 64 * 1024
"""Bytes at the beginning of an object that contain its name: kube-apiserver writes `metadata` first, and in it the name
before all fields that a user can make long (field order of `metav1.ObjectMeta`)."""

_SHRINK: Final = 4
_PAUSE_EVERY: Final = 4096
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]', re.DOTALL)
_OPEN: Final = frozenset(b"{[")
_QUOTE: Final = ord('"')
_COLON: Final = ord(":")
_EVENT: Final = re.compile(rb'\s*\{\s*"type"\s*:\s*"([A-Z]{1,16})"\s*,\s*"object"\s*:\s*(?=\{)')
_FIELDS: Final = {b'"name"': "name", b'"namespace"': "namespace", b'"uid"': "uid", b'"resourceVersion"': "version"}


class ListMeta(msgspec.Struct, frozen=True):
    """`metav1.ListMeta`."""

    resourceVersion: str = ""  # noqa: N815 - the wire's spelling
    continue_: str = msgspec.field(default="", name="continue")


class Identity(msgspec.Struct, frozen=True):
    """Identity of an object. Fields that were not found are empty."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    version: str = ""


class Page(msgspec.Struct, frozen=True):
    """A list, or a part of one.

    Attributes:
        metadata: of the list.
        items: the objects, each as JSON; None: there are none. An answer without this field is not a list.
    """

    metadata: ListMeta
    items: list[msgspec.Raw] | None


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


_NOT_TAKEN: Final = (RecursionError, msgspec.DecodeError, UnicodeDecodeError)
"""Errors of the parser for objects that it cannot skip."""
_decode_page: Final = msgspec.json.Decoder(Page).decode
_decode_event: Final = msgspec.json.Decoder(_Event).decode
_decode_meta: Final = msgspec.json.Decoder(ListMeta).decode
_decode_text: Final = msgspec.json.Decoder(str).decode


def read_page(body: bytes) -> Page:
    """Split a list into its objects. It may block for long: on the event loop use `steps`.

    Raises:
        msgspec.DecodeError: it is not a list.
    """
    return next(page for page in steps(body) if page is not None)


def steps(body: bytes) -> Iterator[Page | None]:
    """Split a list into its objects in bounded steps: yields None after each step but the last, which is the page.

    A page without deep objects takes one step, in C.

    Raises:
        msgspec.DecodeError: it is not a list.
    """
    try:
        yield _decode_page(body)
    except _NOT_TAKEN as error:
        yield from _cut(body, error)


def _cut(body: bytes, reason: Exception) -> Iterator[Page | None]:
    """The same for a page with an object that the parser cannot skip: counts brackets. `reason`: the parser's error."""
    items: list[msgspec.Raw] | None = None
    metadata: ListMeta | None = None
    depth, start, key = 0, 0, b""
    for number, token in enumerate(_TOKEN.finditer(body), start=1):
        if number % _PAUSE_EVERY == 0:
            yield None
        letter = body[token.start()]
        if letter == _QUOTE:
            if depth == 1 and body[token.end() : token.end() + 1] == b":":
                key = token[0]
        elif letter in _OPEN:
            depth += 1
            if depth == 2 and key == b'"items"':
                items = []
            if depth == (3 if key == b'"items"' else 2):
                start = token.start()
        else:
            depth -= 1
            if depth == 2 and items is not None and key == b'"items"':
                items.append(msgspec.Raw(body[start : token.end()]))
            elif depth == 1 and key == b'"metadata"':
                metadata = _decode_meta(body[start : token.end()])
    if depth or items is None or metadata is None:
        raise msgspec.DecodeError(str(reason))
    yield Page(metadata, items)


def read_event(line: bytes) -> tuple[str, bytes]:
    """Type and object of one line of a watch.

    Raises:
        msgspec.DecodeError: it is not an event.
    """
    try:
        event = _decode_event(line)
    except _NOT_TAKEN as error:
        return _cut_event(line, error)
    return event.type, bytes(event.object)


def _cut_event(line: bytes, reason: Exception) -> tuple[str, bytes]:
    """The same for an object that the parser cannot skip. kube-apiserver writes the type first, and nothing after the
    object."""
    kind, begun = read_beginning(line)
    end = begun.rstrip()
    if not end.endswith(b"}}"):
        raise msgspec.DecodeError(str(reason))
    return kind, end[:-1]


def read_beginning(line: bytes) -> tuple[str, bytes]:
    """Type of an event whose line may be incomplete, and the existing part of the object.

    Raises:
        msgspec.DecodeError: it is not an event.
    """
    start = _EVENT.match(line, 0, WINDOW)
    if start is None:
        raise msgspec.DecodeError("the line is no event of a watch")
    return start[1].decode(), line[start.end() :]


def identity(raw: bytes) -> Identity:
    """Identity of an object, read from its first `WINDOW` bytes. The rest may be unreadable."""
    found: dict[str, str] = {}
    depth, section, field = 0, b"", ""
    for token in _TOKEN.finditer(raw, 0, WINDOW):
        letter = raw[token.start()]
        if letter in _OPEN:
            depth, field = depth + 1, ""
        elif letter != _QUOTE:
            if depth == 2 and section == b'"metadata"':
                break
            depth, field = depth - 1, ""
        elif token.end() < len(raw) and raw[token.end()] == _COLON:
            field = _FIELDS.get(token[0], "") if depth == 2 and section == b'"metadata"' else ""
            section = token[0] if depth == 1 else section
        elif field and field not in found:
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                found[field] = _decode_text(token[0])
            if len(found) == len(_FIELDS):
                break
    return Identity(**found)


async def lines(chunks: AsyncIterable[bytes], longest: int, window: int) -> AsyncGenerator[bytes, None]:
    """Whole, non-empty lines of a body that arrives in pieces.

    Text after the last newline is dropped: it was cut off, and the API server sends it again when the watch resumes.
    Of a line longer than `longest` bytes, only the first `window` bytes are returned.
    """
    pending: list[bytes] = []
    length = 0
    async for chunk in chunks:
        first, *others = chunk.split(b"\n")
        if length <= longest:
            pending.append(first)
        length += len(first)
        for other in others:
            line = b"".join(pending)
            long = length > longest
            pending, length = [other], len(other)
            if long:
                yield line[:window]
            elif line.strip():
                yield line


async def pages(
    fetch: Callable[[Mapping[str, str]], Awaitable[Page]], query: Mapping[str, str], limit: int
) -> AsyncGenerator[Page, None]:
    """The pages of one list.

    Args:
        fetch: requests one page with these query parameters, and decodes it. If it raises `TooLongError`, the page is
            requested with fewer objects; with a limit of 0 or 1 the error is passed on.
        query: further query parameters.
        limit: objects per page; 0: all objects in one page.
    """
    token = ""
    while True:
        asked = {**query, **({"limit": str(limit)} if limit else {}), **({"continue": token} if token else {})}
        try:
            page = await fetch(asked)
        except TooLongError:
            if limit <= 1:
                raise
            limit = max(1, limit // _SHRINK)
            continue
        token = page.metadata.continue_
        yield page
        if not token:
            return


class Pace:
    """Yields to the event loop after a number of objects or bytes, so that other tasks work in between."""

    def __init__(self) -> None:
        self._objects = 0
        self._bytes = 0

    async def after(self, length: int) -> None:
        """Count an object of `length` bytes; yield to the event loop if it is time."""
        self._objects += 1
        self._bytes += length
        if self._objects >= 50 or self._bytes >= 64 * 1024:
            self._objects = self._bytes = 0
            await asyncio.sleep(0)
