"""What commands print, format by format: they hand over headings, tables, lists and findings.

Here is what they hand over; `text`, `html`, `markdown` and `sarif` know one format each. JSON is
`runtime.console.json_text` of plain data, with findings by `finding_fields`.
"""

import dataclasses
from collections.abc import Iterable
from typing import Final, NamedTuple

from neuron.findings import Finding, few

NOTHING: Final = "-"
"""A cell that has nothing to say."""


class Table(NamedTuple):
    """A table with a caption. `numbers`: columns with numbers, which are aligned right."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[int] = frozenset()


class ListEntry(NamedTuple):
    """An entry of a titled list: what it is about, and what to do; `tag` is its kind, or empty."""

    tag: str
    about: str
    text: str = ""
    fix: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Located:
    """A finding and the place of its object.

    Attributes:
        line: line of the file, counted from 1.
        subject: kind and name of the object.
        finding: its path is that in the object.
    """

    source: str
    line: int
    subject: str
    finding: Finding


def finding_fields(finding: Finding) -> dict[str, str]:
    """A finding as JSON has it, without its value."""
    return {
        "code": finding.code,
        "severity": finding.severity.value,
        "path": finding.path,
        "message": finding.message,
        "fix": finding.fix,
    }


def listed(names: Iterable[str], most: int = 5) -> str:
    """Names in a sentence, at most `most` of them."""
    return few(sorted(names), most)
