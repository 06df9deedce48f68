"""Escapes and quotes untrusted text: for one line of a log, for a terminal, and inside a sentence of ours. Counts and
columns of text for people.

Readers split lines differently: `str.splitlines` and some log shippers split at U+0085, U+2028 and U+2029, terminals
interpret DEL and C1 controls, and bidirectional controls change the displayed order. None of these is printable
(`str.isprintable`: not in Unicode's categories "other" and "separator", except the space).
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Final

LONGEST_QUOTE: Final = 600
"""Characters of a text of the cluster that a message quotes."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:/=+-]{0,252})?")
"""Names, label values, versions, reasons, times: one word, in which a sentence cannot be hidden."""


def escaped(text: str) -> str:
    r"""The text with `\uXXXX` for every character that is not printable, as in JSON; escaped text is not changed."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def escaped_lines(text: str, keep: str = "") -> str:
    """The text with the same escapes; line feeds and the characters `keep` stay."""
    if keep:
        return "".join(letter if letter == "\n" or letter in keep else escaped(letter) for letter in text)
    return text if text.isprintable() else "\n".join(map(escaped, text.split("\n")))


def printable_json(text: str) -> str:
    """A JSON string of printable characters."""
    return escaped(json.dumps(text, ensure_ascii=False))


def cited(text: object, most: int = LONGEST_QUOTE) -> str:
    """A foreign text between quotes, on one line: the reader sees where it begins and ends.

    The same quote or a backslash inside has a backslash before it. At most about `most` characters are shown.
    """
    whole = str(text)
    cut = whole if len(whole) <= most else f"{whole[: most - 1]}…"
    one_line = " ".join(cut.split("\n")).strip()
    mark = '"' if "'" in one_line and '"' not in one_line else "'"
    inner = one_line.replace("\\", "\\\\").replace(mark, f"\\{mark}")
    return f"{mark}{escaped(inner)}{mark}"


def named(text: object) -> str:
    """A name of the cluster as it is, if it is one word; else quoted as `cited` does.

    The API server checks names of objects, but not everything that is called a name: a `schedulerName`, the reason of
    an Event and a name in a file can be sentences.
    """
    word = str(text)
    return word if _PLAIN.fullmatch(word) else cited(word, 253)


def counted(number: int, word: str, plural: str = "") -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {word if number == 1 else plural or word + 's'}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table: columns two spaces apart, as wide as their longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _escaped(letter: str) -> str:
    if letter.isprintable():
        return letter
    code = ord(letter)
    if code <= 0xFFFF:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


def number_ranges(numbers: Iterable[int]) -> list[str]:
    """Numbers as `0-3` and `9`. `numbers`: ascending."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return [str(first) if first == last else f"{first}-{last}" for first, last in runs]
