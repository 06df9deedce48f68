"""What a command's output stream can show: colour, characters, width. Text from a cluster never controls a terminal."""

import dataclasses
import re
import secrets
import shutil
import textwrap
from collections.abc import Mapping
from typing import Final, Protocol

from runtime import text as texts

NARROWEST: Final = 60
WIDEST: Final = 160

RED: Final = 31
GREEN: Final = 32
YELLOW: Final = 33
CYAN: Final = 36
BOLD: Final = 1

_KEY: Final = secrets.token_hex(8)
_MARK: Final = re.compile(rf"\x1b{_KEY}\[([0-9;]*)m")


class Stream(Protocol):
    """The part of a text stream that is looked at."""

    def isatty(self) -> bool: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Style:
    """How text is printed.

    Attributes:
        encoding: of the output; characters that it lacks are escaped.
        colour: whether to colour.
        width: columns at which lines break; None: no breaks.
    """

    encoding: str = "utf-8"
    colour: bool = False
    width: int | None = None

    def painted(self, text: str, *codes: int) -> str:
        return painted(text, *codes) if self.colour and codes else text

    def lines(self, text: str, indent: int = 0) -> str:
        """A text in printable characters, broken at the width; lines after the first one are indented."""
        return wrapped(printable(text, self.encoding), indent, self.width)


def has_colour(stream: Stream, environment: Mapping[str, str]) -> bool:
    """Whether to colour: only on a terminal, and not if $NO_COLOR has a value (https://no-color.org)."""
    return stream.isatty() and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


def width() -> int:
    """Columns of the terminal, between 60 and 160."""
    return min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST)


def painted(text: str, *codes: int) -> str:
    """The text with marks around it that `displayed` replaces by these SGR codes.

    The marks contain a key of this process, so that text of a cluster cannot contain them.
    """
    return f"\x1b{_KEY}[{';'.join(map(str, codes))}m{text}\x1b{_KEY}[0m"


def displayed(text: str) -> str:
    r"""The text for a terminal: marks of `painted` as SGR codes; `\uXXXX` for all else that is not printable."""
    parts = _MARK.split(text)
    return "".join(
        f"\x1b[{part}m" if place % 2 else texts.escaped_lines(part) for place, part in enumerate(parts) if part
    )


def printable(text: str, encoding: str) -> str:
    """The text on one line, without control characters; letters that the encoding lacks are written as escapes."""
    line = text if text.isprintable() else "".join(letter if letter.isprintable() else " " for letter in text)
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
