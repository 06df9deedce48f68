"""Results of checks."""

import dataclasses
import enum
from collections.abc import Iterable

from neuron.findings import few


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


def overall(lines: Iterable[StatusLine]) -> CheckResult:
    """The verdict on all lines: wrong before unknown before well; notes do not count."""
    found = {line.verdict for line in lines}
    return next((each for each in (CheckResult.WRONG, CheckResult.UNKNOWN) if each in found), CheckResult.WELL)


def blind(lines: Iterable[StatusLine], known: str) -> bool:
    """Whether every check except `known` is unknown."""
    return all(line.verdict is CheckResult.UNKNOWN for line in lines if line.check != known)


def listed(names: Iterable[str], most: int = 5) -> str:
    """Names in a sentence, at most `most` of them."""
    return few(sorted(names), most)


def counted(number: int, word: str, plural: str = "") -> str:
    return f"{number} {word if number == 1 else plural or word + 's'}"
