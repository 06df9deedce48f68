"""Prints lines as text for a terminal, or as JSON."""

from collections.abc import Iterable, Sequence
from typing import Final

from commands.status.lines import CheckResult, StatusLine, overall
from runtime.console import encodable, json_text, painted, printable, wrapped

MARKS: Final = {CheckResult.WELL: "✓", CheckResult.NOTE: "!", CheckResult.WRONG: "✗", CheckResult.UNKNOWN: "?"}
ASCII_MARKS: Final = {**MARKS, CheckResult.WELL: "+", CheckResult.WRONG: "x"}
_COLOURS: Final = {CheckResult.WELL: 32, CheckResult.NOTE: 33, CheckResult.WRONG: 31, CheckResult.UNKNOWN: 36}


def as_text(headline: str, lines: Sequence[StatusLine], *, encoding: str, colour: bool, width: int | None) -> str:
    """Text for people.

    Args:
        encoding: of the terminal; marks that it lacks become ASCII.
        colour: whether marks are coloured.
        width: columns at which lines are wrapped; None: no wrapping.
    """
    marks = MARKS if encodable("".join(MARKS.values()), encoding) else ASCII_MARKS
    room = max((len(line.check) for line in lines), default=0)
    out = [printable(headline, encoding)]
    title = ""
    for line in lines:
        shown = line.check if line.check != title else ""
        title = line.check
        mark = marks[line.verdict]
        shown_mark = painted(mark, _COLOURS[line.verdict]) if colour else mark
        indent = " " * (room + 4)
        words = wrapped(printable(line.text, encoding), len(indent), width)
        out.append(f"{shown_mark} {shown:<{room}}  {words}")
        if line.fix:
            out.append(f"{indent}{wrapped('-> ' + printable(line.fix, encoding), len(indent), width)}")
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
    checks = [
        {"check": line.check, "verdict": line.verdict.value, "text": line.text, "fix": line.fix} for line in lines
    ]
    document = {"cluster": address, "namespace": namespace, "verdict": overall(lines).value, "checks": checks}
    return json_text(document)
