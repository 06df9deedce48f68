"""Splits a file that holds one long List, as `kubectl get -o json` and `-o yaml` print it, into its items.

A List of 20,000 pods as one document takes a hundred times the memory of its text. The file is read in chunks: the text
before the first item, the items, and the text after the last one. A file whose layout leaves a doubt is not split, and
its reader takes it as one document.
"""

import codecs
import dataclasses
import enum
import itertools
import json
import re
from array import array
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Final, NamedTuple

import orjson

from runtime.yaml_nodes import MAX_DEPTH, UNPRINTABLE, YamlError, compose, resolve

LONG: Final = 256 * 1024
"""Bytes from which a file is long."""
_CHUNK: Final = 1 << 18
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_LONGEST_KEY: Final = 1000
"""Characters: YAML reads no key above 1,024."""
_LONGEST_ITEM: Final = 1 << 20
_LONGEST_INTEGER: Final = 15
"""Characters of an integer that every reader of numbers reads alike."""
_DEEPEST: Final = MAX_DEPTH - 2
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


class Reading(enum.IntEnum):
    """How an item in JSON can be read."""

    DOUBTFUL = 0
    ALIKE = 1
    """Every reader reads it alike."""
    POD = 2
    """Likewise, and it is a Pod, which no other object depends on."""


class Piece(NamedTuple):
    """A piece of the text; all pieces together are the file.

    Attributes:
        after: text between the piece and the next one.
        reading: of an item in JSON.
        odd: of an item in JSON, whether YAML may have another reading of it.
    """

    part: ListPart
    text: str
    after: str = ""
    reading: "Reading | None" = None
    odd: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class LongList:
    """A file that can be split.

    Attributes:
        json: whether it is JSON.
        around: the List without its items.
        sample: in JSON, its beginning.
        escapes: in JSON, whether all characters are ASCII, and others are escaped.
        odd: in JSON, whether a reader of YAML could not read it.
        layout: of JSON, for each piece: bytes of its text, bytes after it, and its `Reading`.
    """

    json: bool
    around: dict[str, object]
    sample: str = ""
    escapes: bool = False
    odd: bool = False
    layout: "array[int]" = dataclasses.field(default_factory=lambda: array("Q"))


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
    return _known_pieces(file, found.layout) if found.json else _YamlReader().pieces(file)


def _known_pieces(file: BinaryIO, layout: "array[int]") -> Iterator[Piece]:
    """The pieces of JSON whose places are known."""
    last = len(layout) - 3
    for at in range(0, len(layout), 3):
        raw, after = file.read(layout[at]), file.read(layout[at + 1]).decode()
        part = ListPart.HEAD if at == 0 else ListPart.TAIL if at == last else ListPart.ITEM
        yield Piece(part, raw.decode(), after, Reading(layout[at + 2]))


def plain(text: str) -> dict[str, object] | None:
    """The object of a text in which every reader reads all values alike; None if it is none."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


# --- JSON -------------------------------------------------------------------------------------------------------


class JsonObjects:
    """Decodes JSON as YAML's rules for numbers have it, which kubectl's reader shares.

    Attributes:
        doubtful: whether a key stands twice, or is longer than YAML reads; the caller may reset it.
    """

    def __init__(self) -> None:
        self.doubtful = False
        self.decode: Final = json.JSONDecoder(
            object_pairs_hook=self._members, parse_int=resolve, parse_float=resolve, parse_constant=_refuse_constant
        ).raw_decode

    def _members(self, pairs: list[tuple[str, object]]) -> dict[str, object]:
        value = dict(pairs)
        if len(value) < len(pairs) or max(map(len, value), default=0) > _LONGEST_KEY:
            self.doubtful = True
        return value

    def certain(self, text: str) -> object:
        """The value of a text that holds one JSON value; None if it must be read as YAML to be certain."""
        if len(text) > _LONGEST_ITEM:
            return None
        self.doubtful = False
        try:
            value, _ = self.decode(text, _after_space(text, 0))
            orjson.dumps(value)
        except (ValueError, RecursionError, orjson.JSONEncodeError):
            return None
        return None if self.doubtful or _is_deep(text, value) else value


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON value")


def _may_be_deep(text: str) -> bool:
    return text.count("{") + text.count("[") >= _DEEPEST


def _is_simple(text: str) -> bool:
    """Whether JSON is neither deep nor long, and has no escape of which orjson may know no character."""
    return len(text) <= _LONGEST_ITEM and "\\u" not in text and not _may_be_deep(text)


def _is_deep(text: str, value: object) -> bool:
    """Whether a value may be nested too deeply for YAML. `text`: of the value."""
    if not _may_be_deep(text):
        return False
    level: list[object] = [value]
    for _ in range(_DEEPEST):
        inner = [each for each in level if isinstance(each, dict | list)]
        if not inner:
            return False
        level = [child for each in inner for child in (each.values() if isinstance(each, dict) else each)]
    return True


class _JsonScan:
    """Finds the end of JSON objects, and whether every reader reads their values alike, without their values.

    The decoder calls nothing but methods of lists, so that it stays as fast as C.
    """

    def __init__(self) -> None:
        self._objects: list[list[tuple[str, object]]] = []
        self._integers: list[str] = []
        self._others: list[str] = []
        self.end: Final = json.JSONDecoder(
            object_pairs_hook=self._objects.append,
            parse_int=self._integers.append,
            parse_float=self._others.append,
            parse_constant=_refuse_constant,
        ).raw_decode

    def reset(self) -> None:
        """Forget what was found."""
        for each in (self._objects, self._integers, self._others):
            each.clear()

    def is_pod(self) -> bool:
        """Whether the object is a Pod of `v1`. The decoder closes the object around all others last."""
        found = dict(self._objects[-1])
        return (found.get("apiVersion"), found.get("kind")) == ("v1", "Pod")

    def is_plain(self) -> bool:
        """Whether no key stands twice or is very long, and all numbers are integers of few digits."""
        if self._others or max(map(len, self._integers), default=0) > _LONGEST_INTEGER or "-0" in self._integers:
            return False
        unique = list(map(dict, self._objects))
        if sum(map(len, unique)) < sum(map(len, self._objects)):
            return False
        return max(map(len, itertools.chain.from_iterable(unique)), default=0) <= _LONGEST_KEY


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
        self._scan = _JsonScan()
        self._layout = array("Q")
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
            if text.next() != "{":
                raise _OtherLayoutError
            self._pass(text)
            item = text.take()
            more = text.next() == ","
            if more:
                text.expect(",")
                if text.next() == "]":
                    raise _OtherLayoutError
            yield self._item(item, text.take())
        text.expect("]")

    def _item(self, text: str, after: str) -> Piece:
        is_plain = self._scan.is_plain()
        reading = Reading.POD if is_plain and self._scan.is_pod() else Reading.ALIKE
        if is_plain and _is_simple(text):
            return Piece(ListPart.ITEM, text, after, reading)
        value = plain(text) if is_plain else None
        known = value
        if value is None:
            self._objects.doubtful = False
            decoded, _ = self._objects.decode(text, 0)
            # orjson's limits apply to all later steps.
            orjson.dumps(decoded)
            known = None if self._objects.doubtful else decoded
        odd = known is None or len(text) > _LONGEST_ITEM or _is_deep(text, known)
        return Piece(ListPart.ITEM, text, after, Reading.DOUBTFUL if odd or value is None else reading, odd)

    def _pass(self, text: _ChunkedText) -> None:
        """Pass an object."""
        while True:
            self._scan.reset()
            try:
                _, text.at = self._scan.end(text.text, text.at)
            except json.JSONDecodeError:
                if not text.more():
                    raise
            else:
                return

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
        self._layout.extend((_size(piece.text), _size(piece.after), piece.reading or Reading.DOUBTFUL))
        if len(self._sample) < _CHUNK:
            self._sample += piece.text + piece.after
        text = piece.text
        is_ascii, escapes = text.isascii(), "\\" in text
        self._ascii = self._ascii and is_ascii
        self._escapes = self._escapes or (escapes and "\\u" in text)
        # JSON has no control character but white space.
        unprintable = "\x7f" in text if is_ascii else bool(UNPRINTABLE.search(text))
        self._odd = self._odd or piece.odd or unprintable or bool(escapes and JSON_ESCAPES.search(text))

    def found(self) -> LongList | None:
        orjson.dumps(self._around)
        if self._around.get("kind") != "List" or "items" not in self._around:
            return None
        return LongList(True, self._around, self._sample, self._ascii and self._escapes, self._odd, self._layout)


def _size(text: str) -> int:
    """Bytes of a text."""
    return len(text) if text.isascii() else len(text.encode())


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
