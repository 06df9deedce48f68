r"""The only module that writes to standard output and standard error.

Everything that is written is escaped: no control character but the line feed reaches a terminal, except the colours
of `painted`. `guard` escapes what other code prints: click's messages, tracebacks, warnings.
ruff refuses `print`, `click.echo`, `sys.stdout`, `sys.stderr` and `os.write` in all other modules (`pyproject.toml`).
"""

import contextlib
import dataclasses
import os
import re
import secrets
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO, Final, NamedTuple, TextIO

import orjson

from runtime import text as texts
from runtime.text import escaped_lines

NARROWEST: Final = 60
WIDEST: Final = 160

RED: Final = 31
GREEN: Final = 32
YELLOW: Final = 33
CYAN: Final = 36
BOLD: Final = 1

_KEY: Final = secrets.token_hex(8)
_MARK: Final = re.compile(rf"\x1b{_KEY}\[([0-9;]*)m")


_ERASED: Final = "\r\x1b[K"
"""Moves to the beginning of the line, and erases it."""
_AT_ONCE: Final = 1 << 16
"""Characters of a text that are escaped at once, and the rest of their line."""


class Row(NamedTuple):
    """A labelled text; `mark` stands before it, in a colour. A label that is that of the row above is not repeated."""

    label: str
    text: str
    mark: str = ""
    colour: int = 0


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

    def labelled(self, rows: Iterable[Row], room: int, label: str = "") -> str:
        """Rows with their labels, which take `room` columns, at the left. `label`: of the row before them."""
        out = []
        for row in rows:
            shown, label = row.label if row.label != label else "", row.label
            indent = room + 2 + (len(row.mark) + 1 if row.mark else 0)
            mark = self.painted(row.mark, row.colour) + " " if row.mark else ""
            line = f"  {self.painted(f'{shown:<{room}}', CYAN)}{mark}{self.lines(row.text, indent)}"
            out.append(f"{line.rstrip()}\n")
        return "".join(out)


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


class Escaping:
    """A text stream in front of another one: everything that is written is escaped.

    It has no `buffer`: click and others would write around it.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream: Final = stream

    def write(self, text: str | bytes) -> int:
        """Write the text. Bytes are decoded: click prints completions as bytes.

        Raises:
            TypeError: for empty bytes, by which click tells binary streams from others.
        """
        if not isinstance(text, str):
            if not text:
                raise TypeError("write() argument must be str, not bytes")
            text = text.decode(errors="backslashreplace")
        # Completions separate a word and its help by a tab.
        self.stream.write(escaped_lines(text, "\t") if "\t" in text else escaped_lines(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        if name == "buffer":
            raise AttributeError(name)
        return getattr(self.stream, name)


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Escape what any code of this process prints, until the context ends."""
    before = sys.stdout, sys.stderr
    guard()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def guard() -> None:
    """Escape what any code of this process prints, up to its end."""
    sys.stdout, sys.stderr = _front(sys.stdout), _front(sys.stderr)


def _front(stream: TextIO | None) -> object:
    return stream if stream is None or isinstance(stream, Escaping) else Escaping(stream)


def _behind(stream: Any) -> TextIO | None:
    """The stream itself; None if the process was started with it closed."""
    found: TextIO | None = stream.stream if isinstance(stream, Escaping) else stream
    return found


def is_open() -> bool:
    """Whether there is a standard output."""
    return sys.stdout is not None  # None in a process that was started with it closed


def encoding(fallback: str = "ascii") -> str:
    """Encoding of standard output."""
    return getattr(_behind(sys.stdout), "encoding", None) or fallback


def is_terminal() -> bool:
    """Whether standard output is a terminal."""
    stream = _behind(sys.stdout)
    return stream is not None and stream.isatty()


def has_colour(environment: Mapping[str, str]) -> bool:
    """Whether standard output shows colours: only a terminal, and not if $NO_COLOR has a value (https://no-color.org)."""
    terminal = is_terminal()
    return terminal and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


def width() -> int | None:
    """Columns at which lines are wrapped, between 60 and 160; None if standard output is no terminal."""
    return min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST) if is_terminal() else None


def style(environment: Mapping[str, str]) -> Style:
    """How standard output shows text."""
    return Style(encoding(), has_colour(environment), width())


def write(pieces: Iterable[str]) -> None:
    r"""Write text, JSON or a page as UTF-8. A character that is not printable is written as `\uXXXX`.

    JSON keeps its meaning: such characters are only inside its strings.
    """
    _write(displayed(part) for piece in pieces for part in _parts(piece))


def _parts(text: str) -> Iterator[str]:
    """Lines of a text: to escape a long one at once takes several times its memory."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + _AT_ONCE) + 1 or len(text)
        yield text[start:end]
        start = end


def write_exact(pieces: Iterable[str]) -> None:
    """Write manifests and scripts as UTF-8: byte by byte into a pipe or a file; on a terminal as `write` does."""
    if is_terminal():
        write(pieces)
    else:
        _write(pieces)


def _write(pieces: Iterable[str]) -> None:
    stream = _behind(sys.stdout)
    if stream is None:
        return
    # What other code printed before comes first.
    stream.flush()
    for piece in pieces:
        stream.buffer.write(piece.encode())
    stream.buffer.flush()


def say(line: str) -> None:
    """Write a line to standard error. A reader that closed its end is no error."""
    _say(f"{escaped_lines(line)}\n")


def _say(text: str) -> None:
    stream = _behind(sys.stderr)
    if stream is not None:
        with contextlib.suppress(BrokenPipeError):
            stream.write(text)
            stream.flush()


class ProgressLine:
    """One line on a terminal's standard error that changes, and that other lines replace."""

    def __init__(self) -> None:
        stream = _behind(sys.stderr)
        self.shown: Final = stream is not None and stream.isatty()
        self._drawn = False

    def draw(self, text: str) -> None:
        """Show a text, in place of the one before."""
        self._drawn = True
        _say(f"{_ERASED}{escaped_lines(text)}")

    def clear(self) -> None:
        """Remove the line."""
        if self._drawn:
            _say(_ERASED)
            self._drawn = False


def error_stream() -> TextIO:
    """Standard error for a log handler, whose formatter escapes each record."""
    stream = _behind(sys.stderr)
    return stream if stream is not None else open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123


def error_bytes() -> BinaryIO:
    """Standard error for the decision log, which escapes each line."""
    return error_stream().buffer


def logs_to_terminal() -> bool:
    """Whether standard error is a terminal."""
    stream = _behind(sys.stderr)
    return stream is not None and stream.isatty()


def silence() -> None:
    """Discard what is buffered: the interpreter flushes standard output at exit, and must not fail again."""
    with contextlib.suppress(OSError, AttributeError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def flush() -> None:
    """Write what is buffered of both."""
    for stream in (_behind(sys.stdout), _behind(sys.stderr)):
        if stream is not None:
            stream.flush()


def json_text(value: object, default: Callable[[Any], object] | None = None) -> str:
    """A value as an indented document that ends with a line break.

    Args:
        default: makes plain data of each dataclass when it is written; None: its fields.

    Raises:
        orjson.JSONEncodeError: a part of it is no JSON value.
    """
    option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    option |= 0 if default is None else orjson.OPT_PASSTHROUGH_DATACLASS
    return orjson.dumps(value, default, option).decode()
