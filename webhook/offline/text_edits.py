"""Changes of a text as splices, and their unified diff."""

import dataclasses
import difflib
from collections.abc import Iterable
from typing import Final

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


def unified_diff(text: str, splices: Iterable[Splice], path: str) -> str:
    """The change as a unified diff for `patch -p1` and `git apply`; empty without a change.

    Args:
        text: the old text.
        splices: the changes.
        path: the file's path, relative and with slashes.
    """
    old, new = _lines(text), _lines(apply(text, splices))
    diff = difflib.unified_diff(old, new, _header(f"a/{path}"), _header(f"b/{path}"))
    return "".join(line if line.endswith("\n") else line + _UNTERMINATED for line in diff)


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
