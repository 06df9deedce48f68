"""What checks say."""

import dataclasses
import enum
from collections.abc import Iterable


class Verdict(enum.StrEnum):
    """How it stands with one thing."""

    WELL = "well"
    NOTE = "note"
    """It works, and an operator should know."""
    WRONG = "wrong"
    UNKNOWN = "unknown"
    """Not known: reading it is not allowed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One thing that was looked at.

    Attributes:
        check: its title; lines of one title stand together.
        verdict: how it stands.
        text: a sentence.
        fix: what to do; empty where there is nothing.
    """

    check: str
    verdict: Verdict
    text: str
    fix: str = ""


def overall(lines: Iterable[Line]) -> Verdict:
    """The verdict on everything: wrong beats unknown beats well; notes change nothing."""
    found = {line.verdict for line in lines}
    return next((each for each in (Verdict.WRONG, Verdict.UNKNOWN) if each in found), Verdict.WELL)


def blind(lines: Iterable[Line], known: str) -> bool:
    """Whether nothing could be looked at but the check of that name."""
    return all(line.verdict is Verdict.UNKNOWN for line in lines if line.check != known)


def listed(names: Iterable[str], most: int = 5) -> str:
    """Names in a sentence; of many, the first few."""
    every = sorted(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


def counted(number: int, word: str, plural: str = "") -> str:
    """A number with its noun."""
    return f"{number} {word if number == 1 else plural or word + 's'}"
