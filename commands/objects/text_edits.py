"""Changes of a text as splices, their unified diff, and the layout in which new parts of YAML and JSON are written.

YAML libraries are not used for writing: their rules for quotes differ from kubectl's rules for reading (see
`runtime.yaml_nodes`), and they write only whole documents.
"""

import collections
import dataclasses
import difflib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import orjson

from runtime.yaml_nodes import Mapping_, Sequence_, YamlNode, escape_unprintable, write_scalar, write_string

_CONTEXT: Final = 3
"""Unchanged lines before and after a change, as `diff -u` shows."""
_UNTERMINATED: Final = "\n\\ No newline at end of file\n"


@dataclasses.dataclass(frozen=True, slots=True)
class Splice:
    """Replaces the text between two offsets with `text`."""

    start: int
    end: int
    text: str


class OverlapError(ValueError):
    """Two splices change the same characters."""


def apply(text: str, splices: Iterable[Splice]) -> str:
    """Apply all splices; insertions at one offset keep their order.

    Raises:
        OverlapError: some of them overlap.
    """
    parts = []
    position = 0
    for splice in sorted(splices, key=lambda splice: (splice.start, splice.end)):
        if splice.start < position:
            raise OverlapError(f"splices overlap at offset {splice.start}")
        parts += [text[position : splice.start], splice.text]
        position = splice.end
    return "".join(parts) + text[position:]


class UnifiedDiff:
    """The change of a file as a unified diff for `patch -p1` and `git apply`, made while the file is read."""

    def __init__(self, path: str) -> None:
        """Begin. `path`: the file's path, relative and with slashes."""
        self._header: list[str] = [f"--- {_header(f'a/{path}')}\n", f"+++ {_header(f'b/{path}')}\n"]
        self._rest: tuple[str, str] = ("", "")
        self._line = _Lines(0, 0)
        self._before: collections.deque[str] = collections.deque(maxlen=_CONTEXT)
        self._hunk: _Hunk | None = None

    def feed(self, text: str, splices: Sequence[Splice]) -> Iterator[str]:
        """The next part of the file, and its changes; returns the parts of the diff that are complete."""
        if not splices and self._rest == ("", "") and text.endswith("\n"):
            yield from self._equal(_lines(text))
            return
        old, new = self._rest[0] + text, self._rest[1] + apply(text, splices)
        if not (old.endswith("\n") and new.endswith("\n")):
            # The line may go on in the next part.
            self._rest = old, new
            return
        self._rest = "", ""
        yield from self._compare(_lines(old), _lines(new))

    def finish(self) -> Iterator[str]:
        """The rest of the diff."""
        yield from self._compare(_lines(self._rest[0]), _lines(self._rest[1]))
        yield from self._close()

    def _compare(self, old: list[str], new: list[str]) -> Iterator[str]:
        if old == new:
            yield from self._equal(old)
            return
        for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old, new).get_opcodes():
            if tag == "equal":
                yield from self._equal(old[i1:i2])
                continue
            if self._hunk is None:
                self._hunk = _Hunk(self._line.back(len(self._before)), list(self._before))
            self._hunk.change(old[i1:i2], new[j1:j2])
            self._line = _Lines(self._line.old + i2 - i1, self._line.new + j2 - j1)
            self._before.clear()

    def _equal(self, lines: list[str]) -> Iterator[str]:
        self._line = _Lines(self._line.old + len(lines), self._line.new + len(lines))
        if self._hunk is None:
            self._before.extend(lines)
            return
        self._hunk.behind += lines
        if len(self._hunk.behind) > 2 * _CONTEXT:
            yield from self._close()

    def _close(self) -> Iterator[str]:
        if self._hunk is not None:
            yield from self._header
            self._header = []
            yield from self._hunk.written()
            self._before.extend(self._hunk.behind)
            self._hunk = None


@dataclasses.dataclass(frozen=True, slots=True)
class _Lines:
    """Numbers of lines of both texts that were read."""

    old: int
    new: int

    def back(self, count: int) -> "_Lines":
        return _Lines(self.old - count, self.new - count)


class _Hunk:
    """One hunk. `behind`: unchanged lines after its last change."""

    def __init__(self, start: _Lines, before: list[str]) -> None:
        self._start = start
        self._body = [f" {line}" for line in before]
        self._old = self._new = len(before)
        self.behind: list[str] = []

    def change(self, old: list[str], new: list[str]) -> None:
        """Add a change, after the unchanged lines before it."""
        self._body += [f" {line}" for line in self.behind]
        self._body += [f"-{line}" for line in old] + [f"+{line}" for line in new]
        self._old += len(self.behind) + len(old)
        self._new += len(self.behind) + len(new)
        self.behind = []

    def written(self) -> Iterator[str]:
        """The hunk as text."""
        shown = self.behind[:_CONTEXT]
        old, new = self._old + len(shown), self._new + len(shown)
        yield f"@@ -{_range(self._start.old, old)} +{_range(self._start.new, new)} @@\n"
        for line in (*self._body, *(f" {each}" for each in shown)):
            yield line if line.endswith("\n") else line + _UNTERMINATED


def _range(start: int, length: int) -> str:
    """A range of lines, as the format of unified diffs has it: an empty range begins at the line before it."""
    if length == 1:
        return str(start + 1)
    return f"{start + 1 if length else start},{length}"


def _lines(text: str) -> list[str]:
    """Lines with their line breaks. str.splitlines would split at more characters than patch does."""
    *ended, rest = text.split("\n")
    return [f"{line}\n" for line in ended] + ([rest] if rest else [])


def _header(path: str) -> str:
    """A path as git writes it, quoted if it contains special characters."""
    if path.isprintable() and '"' not in path and "\\" not in path:
        # Without the tab, patch ends the name at its first space.
        return f"{path}\t" if " " in path else path
    escaped = "".join(_escape(byte) for byte in path.encode("utf-8", "surrogateescape"))
    return f'"{escaped}"'


def _escape(byte: int) -> str:
    character = chr(byte)
    if character in '"\\':
        return f"\\{character}"
    return character if " " <= character <= "~" else f"\\{byte:03o}"


# --- the layout of a text, and writing of new parts in the same layout ------------------------------------------------


_COLUMNS: Final = 2
"""By which orjson indents a nested value."""
_LEVELS: Final = 256
"""More than orjson nests."""


@dataclasses.dataclass(frozen=True, slots=True)
class TextLayout:
    """The layout of a text.

    Attributes:
        indent: columns by which a nested mapping is indented.
        dash: columns by which the dashes of a list are indented under its key.
        literals: whether texts of several lines may be written as literal blocks.
    """

    indent: int = 2
    dash: int = 0
    newline: str = "\n"
    literals: bool = True

    @classmethod
    def of(cls, text: str, root: YamlNode | None) -> "TextLayout":
        """The layout of a text, as its first nested mapping and its first list show it."""
        indent = dash = None
        pending = [root] if root else []
        while pending and (indent is None or dash is None):
            node = pending.pop()
            if isinstance(node, Sequence_):
                pending += reversed(node.items)
            if not isinstance(node, Mapping_) or node.flow:
                continue
            for entry in node.entries:
                here = column(text, entry.key.start)
                child = entry.node
                if indent is None and isinstance(child, Mapping_) and not child.flow and child.entries:
                    indent = column(text, child.entries[0].key.start) - here
                elif dash is None and isinstance(child, Sequence_) and text.startswith("-", child.start):
                    dash = column(text, child.start) - here
            pending += [entry.node for entry in reversed(node.entries)]
        first, _, _ = text.partition("\n")
        newline = "\r\n" if first.endswith("\r") else "\n"
        # A literal block at the end of a text without a line break would lose its last line break.
        return cls(max(indent or 2, 1), max(dash or 0, 0), newline, literals=text.endswith("\n"))

    def document(self, value: object) -> str:
        """A document's content, with a line break at its end."""
        return self.join(self.block(value, 0)) + self.newline

    def join(self, lines: Iterator[str]) -> str:
        """Lines as text, without a line break at the end."""
        return self.newline.join(lines)

    def block(self, value: object, at: int) -> Iterator[str]:
        """Lines of a value in block style, whose first character is in column `at`."""
        pad = " " * at
        if isinstance(value, dict) and value:
            yield from self.members(value, at)
        elif isinstance(value, list) and value:
            for item in value:
                first, *rest = self.block(item, at + 2)
                yield f"{pad}- {first.lstrip(' ')}"
                yield from rest
        else:
            first, *rest = self._lines(value, at)
            yield pad + first
            yield from rest

    def members(self, members: dict[str, object], at: int) -> Iterator[str]:
        """Lines of a mapping's members, whose keys are in column `at`."""
        for key, value in members.items():
            start = f"{' ' * at}{write_string(key)}:"
            if isinstance(value, dict | list) and value:
                yield start
                yield from self.block(value, at + (self.indent if isinstance(value, dict) else self.dash))
            else:
                first, *rest = self._lines(value, at)
                yield f"{start} {first}"
                yield from rest

    def _lines(self, value: object, at: int) -> list[str]:
        """A scalar or an empty collection; a text of several lines becomes a literal block."""
        if not self.literals or not isinstance(value, str) or "\n" not in value:
            return [flow(value)]
        lines = value.split("\n")
        ended = lines[-1] == ""
        body = lines[:-1] if ended else lines
        plain = all(line.isprintable() and line == line.rstrip() for line in body)
        if not plain or not body[0] or body[0].startswith(" ") or not body[-1]:
            return [write_string(value)]
        return ["|" if ended else "|-", *((" " * (at + 2) + line).rstrip() for line in body)]


def flow(value: object) -> str:
    """A value in flow style, on one line."""
    match value:
        case dict():
            return "{" + ", ".join(f"{write_string(key)}: {flow(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ", ".join(flow(item) for item in value) + "]"
        case _:
            return write_scalar(value)


def column(text: str, offset: int) -> int:
    """The column of an offset, counted from 0."""
    return offset - line_start(text, offset)


def line_start(text: str, offset: int) -> int:
    """Offset of the first character of a line."""
    return text.rfind("\n", 0, offset) + 1


def line_end(text: str, offset: int) -> int:
    found = text.find("\n", offset)
    if found < 0:
        return len(text)
    return found - 1 if text[offset:found].endswith("\r") else found


def next_line(text: str, offset: int) -> int:
    """Offset after the line break of a line, or the end of the text."""
    found = text.find("\n", offset)
    return len(text) if found < 0 else found + 1


@dataclasses.dataclass(frozen=True, slots=True)
class JsonLayout:
    """The layout of JSON.

    Attributes:
        indent: columns or text by which a nested value is indented; None: all is on one line.
        escapes: whether characters that are not ASCII are escaped.
    """

    indent: int | str | None
    escapes: bool

    @classmethod
    def of(cls, sample: str, *, escapes: bool) -> "JsonLayout":
        """The layout that the second line of a text shows."""
        lines = sample.strip().split("\n", 2)
        if len(lines) == 1:
            return cls(None, escapes)
        margin = lines[1][: len(lines[1]) - len(lines[1].lstrip())]
        return cls(margin if "\t" in margin else len(margin) or 2, escapes)

    def text(self, value: object) -> str:
        """A value as JSON."""
        return escape_unprintable(
            self._indented(value) or json.dumps(value, indent=self.indent, ensure_ascii=self.escapes)
        )

    def _indented(self, value: object) -> str:
        """The same in a third of the time, with another spelling of 1e-05; empty if orjson does not write it."""
        if not self.indent:
            return ""
        try:
            text = orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
        except orjson.JSONEncodeError:  # such as integers of more than 64 bits
            return ""
        if self.escapes and (not text.isascii() or "\x7f" in text):
            return ""
        # JSON has no line break in a text.
        unit = self.deeper(1)[1:]
        margins = [level * unit for level in range(_LEVELS)]
        lines = [(line, line.lstrip(" ")) for line in text.split("\n")]
        return "\n".join([margins[(len(line) - len(rest)) // _COLUMNS] + rest for line, rest in lines])

    def deeper(self, levels: int) -> str:
        """What stands between the values of a nested list, in place of a line break."""
        if self.indent is None:
            return " "
        return "\n" + levels * (self.indent if isinstance(self.indent, str) else " " * self.indent)


def json_text(value: object, sample: str, *, for_yaml: bool = False) -> str:
    """A document as JSON, with the indentation and escapes of the sample, or escaped for every YAML parser."""
    return JsonLayout.of(sample, escapes=not for_yaml and sample.isascii() and "\\u" in sample).text(value)
