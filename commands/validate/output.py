"""Findings as text, and as SARIF 2.1.0 (OASIS Static Analysis Results Interchange Format).

Code hosts show findings in SARIF at the line.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Final, TypeAlias
from urllib.parse import quote

from commands.objects.manifest_files import ReadProblem
from commands.validate.check_files import Located
from neuron.codes import CODES
from neuron.findings import Finding, Severity
from runtime.console import BOLD, CYAN, RED, YELLOW, Style

VERSION: Final = "2.1.0"
SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def sarif_log(
    located: Sequence[Located], faults: Sequence[ReadProblem], version: str, documentation: str = ""
) -> dict[str, object]:
    """A SARIF log with one run.

    Args:
        faults: files that cannot be read.
        version: of this program.
        documentation: URL of the book (`make docs`), for `helpUri`; or "".
    """
    codes = sorted({each.finding.code for each in located})
    return {
        "$schema": SCHEMA,
        "version": VERSION,
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "neuron-dra",
                        "version": version,
                        "rules": [_rule(code, documentation) for code in codes],
                    }
                },
                "invocations": [
                    {
                        "executionSuccessful": not faults,
                        "toolExecutionNotifications": [_notification(fault) for fault in faults],
                    }
                ],
                "columnKind": "unicodeCodePoints",
                "results": [_result(each, codes.index(each.finding.code)) for each in located],
            }
        ],
    }


def _rule(code: str, documentation: str) -> dict[str, object]:
    found = CODES[code]
    # `help` has the whole text, as there may be no page to link to.
    parts = [each for each in (found.why, found.fix) if each]
    rule: dict[str, object] = {
        "id": code,
        "shortDescription": {"text": f"{found.title}."},
        "fullDescription": {"text": _plain(found.why)},
        "help": {"text": _plain(f"{found.title}.\n\n" + "\n\n".join(parts) + f"\n\nneuron-dra explain {code}")},
    }
    if documentation:
        # A relative link would point into the repository in which the code host shows the finding.
        rule["helpUri"] = f"{documentation.rstrip('/')}/errors.html#{code.lower()}"
    return rule


def _notification(fault: ReadProblem) -> dict[str, object]:
    physical: dict[str, object] = {"artifactLocation": {"uri": _uri(fault.source)}}
    if fault.line:
        physical["region"] = {"startLine": fault.line, "startColumn": max(1, fault.column)}
    return {"level": "error", "message": {"text": _plain(str(fault))}, "locations": [{"physicalLocation": physical}]}


def _result(located: Located, rule: int) -> dict[str, object]:
    finding = located.finding
    physical = {
        "artifactLocation": {"uri": _uri(located.source)},
        "region": {"startLine": max(1, located.line)},
    }
    logical = {"fullyQualifiedName": f"{located.subject}: {finding.path}".rstrip(": "), "kind": "element"}
    return {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": finding.severity.value,
        "message": {"text": _plain(f"{finding.message} {finding.fix}".rstrip())},
        "locations": [{"physicalLocation": physical, "logicalLocations": [logical]}],
    }


def _plain(text: str) -> str:
    """Text in which viewers find no link: `[text](target)` is one in plain text, too (SARIF 2.1.0, 3.11.6)."""
    return text.replace("](", "] (")


def _uri(source: str) -> str:
    """A relative reference, or a file URI (RFC 3986)."""
    path = PurePath(source)
    return path.as_uri() if path.is_absolute() else quote(path.as_posix())


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
