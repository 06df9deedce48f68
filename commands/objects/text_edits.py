"""Changes of a text as splices, and their unified diff."""

import collections
import dataclasses
import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

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
    for splice in _in_order(splices):
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


def _in_order(splices: Iterable[Splice]) -> list[Splice]:
    return sorted(splices, key=lambda splice: (splice.start, splice.end))


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
