"""Results of checks, and how they are printed."""

import dataclasses
import enum
from collections.abc import Iterable, Sequence
from typing import Final

from commands.cluster.reader import Unseen
from runtime.console import CYAN, GREEN, RED, YELLOW, Style, encodable, json_text, printable


class CheckResult(enum.StrEnum):
    """The result of one check."""

    WELL = "well"
    NOTE = "note"
    """It works, but an operator should know."""
    WRONG = "wrong"
    UNKNOWN = "unknown"
    """It could not be read, for example without permission."""


@dataclasses.dataclass(frozen=True, slots=True)
class StatusLine:
    """One result.

    Attributes:
        check: title of the check; lines of one check are adjacent.
        fix: what to do; empty if nothing.
    """

    check: str
    verdict: CheckResult
    text: str
    fix: str = ""


class StatusCheck(str):
    """The title of a check, which makes its lines."""

    __slots__ = ()

    def well(self, text: str) -> StatusLine:
        return StatusLine(self, CheckResult.WELL, text)

    def note(self, text: str, fix: str = "") -> StatusLine:
        return StatusLine(self, CheckResult.NOTE, text, fix)

    def wrong(self, text: str, fix: str = "") -> StatusLine:
        return StatusLine(self, CheckResult.WRONG, text, fix)

    def unknown(self, text: str, fix: str = "") -> StatusLine:
        return StatusLine(self, CheckResult.UNKNOWN, text, fix)

    def unseen(self, part: Unseen) -> StatusLine:
        """What cannot be read, with the rule that would allow it."""
        return StatusLine(self, CheckResult.UNKNOWN, part.why, part.fix)


def overall(lines: Iterable[StatusLine]) -> CheckResult:
    """The verdict on all lines: wrong before unknown before well; notes do not count."""
    found = {line.verdict for line in lines}
    return next((each for each in (CheckResult.WRONG, CheckResult.UNKNOWN) if each in found), CheckResult.WELL)


def blind(lines: Iterable[StatusLine], known: str) -> bool:
    """Whether every check except `known` is unknown."""
    return all(line.verdict is CheckResult.UNKNOWN for line in lines if line.check != known)


MARKS: Final = {CheckResult.WELL: "✓", CheckResult.NOTE: "!", CheckResult.WRONG: "✗", CheckResult.UNKNOWN: "?"}
ASCII_MARKS: Final = {**MARKS, CheckResult.WELL: "+", CheckResult.WRONG: "x"}
_COLOURS: Final = {CheckResult.WELL: GREEN, CheckResult.NOTE: YELLOW, CheckResult.WRONG: RED, CheckResult.UNKNOWN: CYAN}


def as_text(headline: str, lines: Sequence[StatusLine], style: Style) -> str:
    """Text for people. Marks that the encoding lacks become ASCII."""
    marks = MARKS if encodable("".join(MARKS.values()), style.encoding) else ASCII_MARKS
    room = max((len(line.check) for line in lines), default=0)
    out = [printable(headline, style.encoding)]
    title = ""
    for line in lines:
        shown = line.check if line.check != title else ""
        title = line.check
        mark = style.painted(marks[line.verdict], _COLOURS[line.verdict])
        indent = room + 4
        out.append(f"{mark} {shown:<{room}}  {style.lines(line.text, indent)}")
        if line.fix:
            out.append(" " * indent + style.lines(f"-> {line.fix}", indent))
    out.append(_summary(lines))
    return "".join(f"{each}\n" for each in out)


def _summary(lines: Iterable[StatusLine]) -> str:
    every = tuple(lines)
    counts = {verdict: sum(line.verdict is verdict for line in every) for verdict in CheckResult}
    rest = {"to note": counts[CheckResult.NOTE], "unknown": counts[CheckResult.UNKNOWN]}
    told = ", ".join(f"{count} {word}" for word, count in rest.items() if count)
    wrong = counts[CheckResult.WRONG]
    start = f"{wrong} wrong" if wrong else "Nothing wrong was seen" if counts[CheckResult.UNKNOWN] else "All is well"
    return f"{start}{', ' if told else ''}{told}."


def as_json(address: str, namespace: str, lines: Sequence[StatusLine]) -> str:
    return json_text({"cluster": address, "namespace": namespace, "verdict": overall(lines), "checks": lines})
