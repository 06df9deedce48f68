"""Findings as text for people: each fact once, with the places that it is about."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from commands.validate.check_files import Located
from neuron.findings import Finding, Severity
from runtime.console import BOLD, CYAN, RED, YELLOW, Style

MOST_PLACES: Final = 20
"""Places of one fact that text shows."""
_COLOURS: Final = {Severity.ERROR: RED, Severity.WARNING: YELLOW, Severity.NOTE: CYAN}
_INDENT: Final = 4
_BELOW: Final = f"\n{' ' * _INDENT}"

_Fact: TypeAlias = tuple[Severity, str, str, str]
"""Severity, code, message, fix."""


@dataclasses.dataclass(slots=True)
class _Places:
    """The places of one fact: the first ones, the number of all, and the last one as text."""

    places: list[Located]
    count: int = 0
    last: str = ""


def as_text(found: Iterable[Located], style: Style) -> Iterator[str]:
    """All findings, in the order in which each fact is found first. Memory grows with the number of facts."""
    groups: dict[_Fact, _Places] = {}
    for each in found:
        group = groups.setdefault(_fact(each.finding), _Places([]))
        place = f"{_file(each)}: {_subject(each)}"
        if place == group.last:
            continue  # Several pods of one object have the same fault in a part that they share.
        group.last = place
        group.count += 1
        if len(group.places) < MOST_PLACES:
            group.places.append(each)
    for group in groups.values():
        yield "".join(f"{line}\n" for line in _lines(group, style))


def _fact(finding: Finding) -> _Fact:
    return finding.severity, finding.code, finding.message, finding.fix


def _lines(group: _Places, style: Style) -> Iterator[str]:
    """One place: before the finding, as compilers print it. Several: below it."""
    finding = group.places[0].finding
    what = style.painted(f"{finding.severity} {finding.code}", BOLD, _COLOURS[finding.severity])
    if group.count == 1:
        file, subject = _file(group.places[0]), _subject(group.places[0])
        fits = style.width is None or len(f"{file}: {finding.severity} {finding.code} {subject}") <= style.width
        yield f"{file}: {what}{' ' if fits else _BELOW}{subject}"
    else:
        yield f"{what} at {group.count:,} places"
    yield " " * _INDENT + style.lines(finding.message, _INDENT)
    if finding.fix:
        yield " " * _INDENT + style.lines(f"Fix: {finding.fix}", _INDENT)
    if group.count == 1:
        return
    for each in group.places:
        file, subject = f"{' ' * _INDENT}{_file(each)}:", _subject(each)
        fits = style.width is None or len(f"{file} {subject}") <= style.width
        yield f"{file}{' ' if fits else f'{_BELOW}  '}{subject}"
    if group.count > len(group.places):
        yield f"{' ' * _INDENT}and {group.count - len(group.places):,} more: -o json lists all"


def _file(each: Located) -> str:
    return f"{each.source}:{each.line}"


def _subject(each: Located) -> str:
    return f"{each.subject}: {each.finding.path}" if each.finding.path else each.subject
