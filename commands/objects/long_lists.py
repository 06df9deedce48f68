"""Splits a file that holds one long List, as `kubectl get -o json` and `-o yaml` print it, into its items.

A List of 20,000 pods as one document takes a hundred times the memory of its text. The file is read in chunks: the text
before the first item, the items, and the text after the last one. A file whose layout leaves a doubt is not split, and
its reader takes it as one document.
"""

import codecs
import dataclasses
import enum
import json
import re
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Final, NamedTuple

import orjson

from runtime.yaml_nodes import MAX_DEPTH, UNPRINTABLE, YamlError, compose
from runtime.yaml_scalars import resolve

LONG: Final = 256 * 1024
"""Bytes from which a file is long."""
_CHUNK: Final = 1 << 18
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_LONGEST_KEY: Final = 1000
"""Characters: YAML reads no key above 1,024."""
_LONGEST_ITEM: Final = 1 << 20
# go-yaml refuses these escapes of JSON.
JSON_ESCAPES: Final = re.compile(r"\\/|\\u[dD][89a-fA-F]")
_ITEMS: Final = re.compile(r"items:[ \t]*\r?\n")
_DASH: Final = re.compile(r" *- ")
_ENDS: Final = ("---", "...", "%")
_START: Final = re.compile(r"---[ \t]*\r?\n")


class ListPart(enum.StrEnum):
    """What a piece of the text is."""

    HEAD = "head"
    ITEM = "item"
    TAIL = "tail"


class Piece(NamedTuple):
    """A piece of the text; all pieces together are the file.

    Attributes:
        after: text between the piece and the next one.
        value: of an item in JSON, if it is certain without a look at the places of its keys.
    """

    part: ListPart
    text: str
    after: str = ""
    value: dict[str, object] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class LongList:
    """A file that can be split.

    Attributes:
        json: whether it is JSON.
        around: the List without its items.
        sample: in JSON, its beginning.
        escapes: in JSON, whether all characters are ASCII, and others are escaped.
        odd: in JSON, whether a reader of YAML could not read it.
    """

    json: bool
    around: dict[str, object]
    sample: str = ""
    escapes: bool = False
    odd: bool = False


class _OtherLayoutError(ValueError):
    """The file cannot be split with certainty."""


def recognise(file: BinaryIO) -> LongList | None:
    """Read a file; None if it is not one List of a known layout."""
    reader = _JsonReader() if file.read(1) == b"{" else _YamlReader()
    file.seek(0)
    try:
        for piece in reader.pieces(file):
            reader.look_at(piece)
        return reader.found()
    except (ValueError, RecursionError, orjson.JSONEncodeError):
        return None


def pieces(file: BinaryIO, found: LongList) -> Iterator[Piece]:
    """The pieces of a file that was recognised."""
    return (_JsonReader() if found.json else _YamlReader()).pieces(file)


# --- JSON -------------------------------------------------------------------------------------------------------


class JsonObjects:
    """Decodes JSON as YAML's rules for numbers have it, which kubectl's reader shares.

    Attributes:
        doubtful: whether a key stands twice, or is longer than YAML reads; the caller may reset it.
    """

    def __init__(self) -> None:
        self.doubtful = False
        self.decode: Final = json.JSONDecoder(
            object_pairs_hook=self._members, parse_int=resolve, parse_float=resolve, parse_constant=self._constant
        ).raw_decode

    def _members(self, pairs: list[tuple[str, object]]) -> dict[str, object]:
        value = dict(pairs)
        if len(value) < len(pairs) or max(map(len, value), default=0) > _LONGEST_KEY:
            self.doubtful = True
        return value

    def _constant(self, name: str) -> object:
        raise ValueError(f"{name} is not a JSON value")

    def certain(self, text: str) -> object:
        """The value of a text that holds one JSON value; None if it must be read as YAML to be certain."""
        if len(text) > _LONGEST_ITEM or text.count("{") + text.count("[") >= MAX_DEPTH - 2:
            return None
        self.doubtful = False
        try:
            value, _ = self.decode(text, _after_space(text, 0))
            orjson.dumps(value)
        except (ValueError, RecursionError, orjson.JSONEncodeError):
            return None
        return None if self.doubtful else value


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


class _ChunkedText:
    """Text that is read in chunks.

    Attributes:
        text: what was read; what was taken is forgotten when more is read.
        at: offset of the next character.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._start = 0
        self.text = ""
        self.at = 0

    def more(self) -> bool:
        """Read more: twice as much each time, so that a long value is not decoded too often."""
        kept = self.text[self._start :]
        chunk = self._file.read(max(_CHUNK, len(kept)))
        self.text = kept + self._decode(chunk, final=not chunk)
        self._start, self.at = 0, self.at - self._start
        return bool(chunk)

    def next(self) -> str:
        """The next character that is no white space; empty at the end."""
        while True:
            self.at = _after_space(self.text, self.at)
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more():
                return ""

    def expect(self, character: str) -> None:
        """Pass a character."""
        if self.next() != character:
            raise _OtherLayoutError
        self.at += 1

    def take(self) -> str:
        """The text between what was taken before and the next character."""
        start, self._start = self._start, self.at
        return self.text[start : self.at]


class _JsonReader:
    def __init__(self) -> None:
        self._objects = JsonObjects()
        self._around: dict[str, object] = {}
        self._sample = ""
        self._ascii = True
        self._escapes = False
        self._odd = False

    def pieces(self, file: BinaryIO) -> Iterator[Piece]:
        text = _ChunkedText(file)
        text.expect("{")
        while True:
            name = self._value(text)
            if not isinstance(name, str) or name in self._around:
                raise _OtherLayoutError
            text.expect(":")
            if name == "items":
                self._around[name] = []
                text.expect("[")
                text.next()
                yield Piece(ListPart.HEAD, text.take())
                yield from self._items(text)
            else:
                self._objects.doubtful = False
                self._around[name] = self._value(text)
                if self._objects.doubtful:
                    raise _OtherLayoutError
            if text.next() != ",":
                break
            text.expect(",")
        text.expect("}")
        if text.next():
            raise _OtherLayoutError
        yield Piece(ListPart.TAIL, text.take())

    def _items(self, text: _ChunkedText) -> Iterator[Piece]:
        more = text.next() != "]"
        while more:
            self._objects.doubtful = False
            value = self._value(text)
            if not isinstance(value, dict):
                raise _OtherLayoutError
            item = text.take()
            more = text.next() == ","
            if more:
                text.expect(",")
                if text.next() == "]":
                    raise _OtherLayoutError
            certain = not self._objects.doubtful and item.count("{") + item.count("[") < MAX_DEPTH - 2
            yield Piece(ListPart.ITEM, item, text.take(), value if certain and len(item) < _LONGEST_ITEM else None)
        text.expect("]")

    def _value(self, text: _ChunkedText) -> object:
        text.next()
        while True:
            try:
                value, end = self._objects.decode(text.text, text.at)
            except json.JSONDecodeError:
                if not text.more():
                    raise
                continue
            # A number may go on in the next chunk.
            if end < len(text.text) or not text.more():
                text.at = end
                return value

    def look_at(self, piece: Piece) -> None:
        # orjson's limits apply to all later steps.
        orjson.dumps(piece.value)
        if len(self._sample) < _CHUNK:
            self._sample += piece.text + piece.after
        self._ascii = self._ascii and piece.text.isascii()
        self._escapes = self._escapes or "\\u" in piece.text
        odd = piece.part is ListPart.ITEM and piece.value is None
        self._odd = self._odd or odd or bool(JSON_ESCAPES.search(piece.text) or UNPRINTABLE.search(piece.text))

    def found(self) -> LongList | None:
        orjson.dumps(self._around)
        if self._around.get("kind") != "List" or "items" not in self._around:
            return None
        return LongList(True, self._around, self._sample, self._ascii and self._escapes, self._odd)


# --- YAML -------------------------------------------------------------------------------------------------------


class _YamlReader:
    """Splits the list `items` in block style at its dashes.

    A dash in the column of the list begins an item, unless it is inside a quoted text of several lines. In that case
    the text before the dash is not valid YAML, and parsing that item fails.
    """

    def __init__(self) -> None:
        self._around = ""

    def pieces(self, file: BinaryIO) -> Iterator[Piece]:
        lines = (line.decode("utf-8") for line in file)
        head, dash = self._head(lines)
        yield Piece(ListPart.HEAD, "".join(head[:-1]))
        item, inside = [head[-1]], len(dash) - 1
        rest: Iterable[str] = ()
        for line in lines:
            if line.startswith(dash):
                yield Piece(ListPart.ITEM, "".join(item))
                item = [line]
            elif line[:inside].isspace() or line.lstrip().startswith("#") or not line.strip():
                item.append(line)
            elif line.startswith((" ", "-")):
                raise _OtherLayoutError
            else:
                rest = (line, *lines)
                break
        yield Piece(ListPart.ITEM, "".join(item))
        tail = list(rest)
        if any(line.startswith(_ENDS) for line in tail):
            raise _OtherLayoutError
        yield Piece(ListPart.TAIL, "".join(tail))

    def _head(self, lines: Iterator[str]) -> tuple[list[str], str]:
        """The lines up to the first item, and the spaces and dash with which it begins."""
        head: list[str] = []
        inside = False
        for line in lines:
            is_start = not head and bool(_START.fullmatch(line))
            head.append(line)
            if inside and line.strip() and not line.lstrip().startswith("#"):
                found = _DASH.match(line)
                if found is None:
                    break
                return head, found[0]
            if line.startswith(_ENDS) and not is_start:
                break
            inside = inside or bool(_ITEMS.fullmatch(line))
        raise _OtherLayoutError

    def look_at(self, piece: Piece) -> None:
        if piece.part is not ListPart.ITEM:
            self._around += piece.text

    def found(self) -> LongList | None:
        try:
            root = compose(self._around)
        except YamlError:
            return None
        around = root.value if root else None
        if not isinstance(around, dict) or around.get("kind") != "List" or around.get("items", 0) is not None:
            return None
        return LongList(False, around)
