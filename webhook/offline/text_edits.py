"""Changes to a text as splices, and the unified diff that they make."""

import bisect
import dataclasses
import difflib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

_CONTEXT: Final = 3
_UNTERMINATED: Final = "\n\\ No newline at end of file\n"


@dataclasses.dataclass(frozen=True, slots=True)
class Splice:
    """`text` in place of what is between two offsets."""

    start: int
    end: int
    text: str


class OverlapError(ValueError):
    """Two splices want to change the same characters."""


def apply(text: str, splices: Iterable[Splice]) -> str:
    """The text with all splices applied; insertions at one place keep their order.

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


def unified_diff(text: str, splices: Iterable[Splice], path: str) -> str:
    """The change as a unified diff that `patch -p1` and `git apply` take; empty where nothing changes.

    Args:
        text: the old text.
        splices: what changes in it.
        path: the file's path, relative and with slashes.
    """
    lines = _lines(text)
    changes = list(_changes(text, lines, splices))
    if not changes:
        return ""
    parts = [f"--- {_header(f'a/{path}')}\n+++ {_header(f'b/{path}')}\n"]
    growth = 0
    for hunk in _hunks(changes):
        parts += _hunk(lines, hunk, growth)
        growth += sum(len(change.lines) - (change.end - change.start) for change in hunk)
    return "".join(parts)


@dataclasses.dataclass(frozen=True, slots=True)
class _Change:
    """Old lines `start` to `end` become `lines`."""

    start: int
    end: int
    lines: Sequence[str]


def _in_order(splices: Iterable[Splice]) -> list[Splice]:
    return sorted(splices, key=lambda splice: (splice.start, splice.end))


def _lines(text: str) -> list[str]:
    """Lines with their ends; str.splitlines knows more line ends than patch does."""
    *ended, rest = text.split("\n")
    return [f"{line}\n" for line in ended] + ([rest] if rest else [])


def _changes(text: str, lines: Sequence[str], splices: Iterable[Splice]) -> Iterator[_Change]:
    offsets = list(itertools.accumulate(map(len, lines), initial=0))
    last = len(lines) - (0 if text.endswith("\n") or not text else 1)
    group: list[Splice] = []
    start = end = 0
    for splice in _in_order(splices):
        first = min(bisect.bisect_right(offsets, splice.start) - 1, last)
        behind = min(bisect.bisect_right(offsets, splice.end), len(lines))
        if group and first >= end:
            yield from _line_changes(text, offsets, start, end, group)
            group = []
        start = start if group else first
        end = max(end if group else 0, behind)
        group.append(splice)
    if group:
        yield from _line_changes(text, offsets, start, end, group)


def _line_changes(
    text: str, offsets: Sequence[int], start: int, end: int, splices: Sequence[Splice]
) -> Iterator[_Change]:
    """What splices do to the lines that hold them."""
    base = offsets[start]
    old = text[base : offsets[end]]
    shifted = [Splice(splice.start - base, splice.end - base, splice.text) for splice in splices]
    before, after = _lines(old), _lines(apply(old, shifted))
    matcher = difflib.SequenceMatcher(None, before, after)
    for tag, first, behind, new_first, new_behind in matcher.get_opcodes():
        if tag != "equal":
            yield _Change(start + first, start + behind, after[new_first:new_behind])


def _hunks(changes: Iterable[_Change]) -> Iterator[list[_Change]]:
    """Changes whose context would touch go into one hunk."""
    hunk: list[_Change] = []
    for change in changes:
        if hunk and change.start - hunk[-1].end > 2 * _CONTEXT:
            yield hunk
            hunk = []
        hunk.append(change)
    yield hunk


def _hunk(lines: Sequence[str], changes: Sequence[_Change], growth: int) -> Iterator[str]:
    start = max(0, changes[0].start - _CONTEXT)
    end = min(len(lines), changes[-1].end + _CONTEXT)
    grown = sum(len(change.lines) - (change.end - change.start) for change in changes)
    yield f"@@ -{_range(start, end - start)} +{_range(start + growth, end - start + grown)} @@\n"
    position = start
    for change in changes:
        yield from _marked(" ", lines[position : change.start])
        yield from _marked("-", lines[change.start : change.end])
        yield from _marked("+", change.lines)
        position = change.end
    yield from _marked(" ", lines[position:end])


def _range(start: int, count: int) -> str:
    # An empty range names the line before it.
    return f"{start + 1 if count else start},{count}"


def _marked(mark: str, lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield f"{mark}{line}" if line.endswith("\n") else f"{mark}{line}{_UNTERMINATED}"


def _header(path: str) -> str:
    """A path as git writes it: quoted where it would end the line or the name early."""
    if path.isprintable() and '"' not in path and "\\" not in path:
        # Without the tab, patch takes the name to end at its first space.
        return f"{path}\t" if " " in path else path
    escaped = "".join(_escape(byte) for byte in path.encode("utf-8", "surrogateescape"))
    return f'"{escaped}"'


def _escape(byte: int) -> str:
    character = chr(byte)
    if character in '"\\':
        return f"\\{character}"
    return character if " " <= character <= "~" else f"\\{byte:03o}"
