r"""Estimates the time that RE2 needs to compile a regular expression, from its text.

Compiling is one call into C, which cannot be interrupted. RE2 unrolls every repetition: `.{9,999}` becomes a thousand
times as long as `.`, and nested repetitions multiply. Measured with RE2 on one core: 7 microseconds for a `.` or
`[^a]` (sequences of bytes of UTF-8), 2,400 for `\pL`, 1 or less for a character of ASCII.
"""

import dataclasses
import re
from typing import Final

_WIDE: Final = 7
"""Cost of a class that contains nearly all characters."""
_UNICODE_CLASS: Final = 2_500
_FURTHER_UNICODE_CLASS: Final = 500
"""Cost of each further Unicode class in the same brackets."""
_OTHER_CHARACTER: Final = 2
_FOLDED: Final = 3
"""Factor if upper and lower case are equal (flag i)."""
MOST_REPEATS: Final = 1000
"""Limit of the product of nested repetitions. RE2 and Go refuse more at once (Go regexp/syntax, maxRepeat)."""

_PART: Final = re.compile(
    r"""\\Q (?P<text>.*?) (?:\\E|\Z)
      | \\[pP](?:\{[^}]*\}|.) (?P<unicode>)
      | \\x\{[^}]*\} | \\[0-9]{1,3} | \\x..
      | \\[WDS] (?P<wide>)
      | \\.
      | \[(?P<class>\^?\]?(?:\[:[^\]]*:\]|\\.|[^\]\\])*)\]
      | (?P<open>\()(?:\?P?<[^>]*>|\?(?P<flags>[a-zA-Z-]*)(?P<alone>\))?:?)?
      | (?P<close>\))
      | \{(?P<least>[0-9]+)(?P<range>,(?P<most>[0-9]*))?\}
      | (?P<any>\.)
      | .
    """,
    re.VERBOSE | re.DOTALL,
)
_UNICODE_IN_CLASS: Final = re.compile(r"\\[pP]")
_NEGATED_IN_CLASS: Final = re.compile(r"\\[WDS]|\[:\^")


@dataclasses.dataclass(slots=True)
class _PatternGroup:
    """The parts of a group that are read so far.

    Attributes:
        cost: cost of all parts except the last.
        last: cost of the last part, to which a repetition belongs.
        repeats: the highest product of nested repetitions.
        last_repeats: the product of the last part.
    """

    cost: int = 1
    last: int = 0
    repeats: int = 1
    last_repeats: int = 1

    def add(self, cost: int, repeats: int = 1) -> None:
        self.cost += self.last
        self.repeats = max(self.repeats, self.last_repeats)
        self.last, self.last_repeats = cost, repeats

    def repeat(self, times: int) -> None:
        # Every round of an optional part needs one more instruction.
        self.last = (self.last + 1) * max(1, times)
        self.last_repeats *= max(1, times)

    def closed(self) -> tuple[int, int]:
        return self.cost + self.last, max(self.repeats, self.last_repeats)


def estimate(pattern: str) -> tuple[int, int]:
    """Estimate the compilation of a pattern, in time linear in its length.

    Returns:
        Microseconds, and the highest product of nested repetitions.
    """
    groups, folded = [_PatternGroup()], 1
    for part in _PART.finditer(pattern):
        if part["open"]:
            if part["flags"] and "i" in part["flags"]:
                folded = _FOLDED
            if not part["alone"]:
                groups.append(_PatternGroup())
        elif part["close"]:
            if len(groups) > 1:
                inner = groups.pop().closed()
                groups[-1].add(*inner)
        elif part["least"]:
            groups[-1].repeat(_times(part["least"], part["most"]))
        else:
            groups[-1].add(_single(part))
    while len(groups) > 1:
        inner = groups.pop().closed()
        groups[-1].add(*inner)
    cost, repeats = groups[0].closed()
    return cost * folded, repeats


def _times(least: str, most: str | None) -> int:
    # RE2 and Go read a number with more digits as plain text, or refuse it.
    return max(int(count) if len(count) <= 4 else MOST_REPEATS + 1 for count in (least, most or "0"))


def _single(part: re.Match[str]) -> int:
    if part["unicode"] is not None:
        return _UNICODE_CLASS
    if part["wide"] is not None or part["any"]:
        return _WIDE
    inside = part["class"]
    if inside is not None:
        return _of_class(inside)
    text = part["text"] if part["text"] is not None else part[0]
    return len(text) if text.isascii() else _OTHER_CHARACTER * len(text)


def _of_class(inside: str) -> int:
    unicode = len(_UNICODE_IN_CLASS.findall(inside))
    cost = 1 + (_UNICODE_CLASS if unicode else 0) + _FURTHER_UNICODE_CLASS * max(0, unicode - 1)
    if inside.startswith("^") or _NEGATED_IN_CLASS.search(inside):
        cost += _WIDE
    if not inside.isascii() or "\\x{" in inside:
        cost += _WIDE * (sum(not each.isascii() for each in inside) + inside.count("\\x{"))
    # Most characters of a class need no instruction: RE2 joins adjacent ranges.
    return cost + len(inside) // 4
