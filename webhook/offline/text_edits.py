"""Changes to a text as splices, and the unified diff that they make."""

import dataclasses
import difflib
from collections.abc import Iterable
from typing import Final

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
    old, new = _lines(text), _lines(apply(text, splices))
    diff = difflib.unified_diff(old, new, _header(f"a/{path}"), _header(f"b/{path}"))
    return "".join(line if line.endswith("\n") else line + _UNTERMINATED for line in diff)


def _lines(text: str) -> list[str]:
    """Lines with their ends; str.splitlines knows more line ends than patch does."""
    *ended, rest = text.split("\n")
    return [f"{line}\n" for line in ended] + ([rest] if rest else [])


def _in_order(splices: Iterable[Splice]) -> list[Splice]:
    return sorted(splices, key=lambda splice: (splice.start, splice.end))


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
