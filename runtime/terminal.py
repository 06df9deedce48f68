"""What a command's output stream can show: colour, characters, width. Text from a cluster never controls a terminal."""

import shutil
import textwrap
from collections.abc import Mapping
from typing import Final, Protocol

NARROWEST: Final = 60
WIDEST: Final = 160


class Stream(Protocol):
    """The part of a text stream that is looked at."""

    def isatty(self) -> bool: ...


def has_colour(stream: Stream, environment: Mapping[str, str]) -> bool:
    """Whether to colour: only on a terminal, and not if $NO_COLOR has a value (https://no-color.org)."""
    return stream.isatty() and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


def width() -> int:
    """Columns of the terminal, between 60 and 160."""
    return min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST)


def printable(text: str, encoding: str) -> str:
    """The text on one line, without control characters; letters that the encoding lacks are written as escapes."""
    line = "".join(letter if letter.isprintable() else " " for letter in text)
    return line if encodable(line, encoding) else line.encode(encoding, "backslashreplace").decode(encoding)


def encodable(text: str, encoding: str) -> bool:
    """Whether the encoding has all letters; an unknown encoding has none."""
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def wrapped(text: str, indent: int, width: int | None) -> str:
    """The text with line breaks; lines after the first one are indented. `width` None: no breaks."""
    if width is None or indent + len(text) <= width:
        return text
    broken = textwrap.wrap(text, max(20, width - indent), break_long_words=False, break_on_hyphens=False)
    return ("\n" + " " * indent).join(broken)
