"""A rehearsal as text for a terminal: one screen; with details, every pod of every step."""

from collections.abc import Iterator

from commands.rehearse import tables
from commands.rehearse.model import Rehearsal
from commands.report.render_text import table_lines
from commands.report.tables import names
from runtime.console import BOLD, GREEN, RED, YELLOW, Style, printable, wrapped

_INDENT = "  "
_MOST = 12
"""Entries of a part. Details, JSON and the page have all."""


def as_text(rehearsal: Rehearsal, style: Style, *, details: bool = False) -> str:
    """Text for people. `style`: with the columns at which sentences break."""
    lines = [f"Rehearsal of the migration of {rehearsal.origin}, {rehearsal.made}", ""]
    told = tables.summary(rehearsal)
    lines += (wrapped(each, 0, style.width) for each in told)
    titles = {"Steps": BOLD, "What waits": YELLOW, "What is different afterwards": BOLD, "Cannot know": BOLD}
    if rehearsal.best.steps:
        lines += ["", *table_lines(tables.steps(rehearsal), style.width)]
    lines += _part("What waits", list(_waits(rehearsal)), style, details=details)
    lines += _part("What is different afterwards", list(_changes(rehearsal)), style, details=details)
    lines += _part("Cannot know", list(rehearsal.unknown), style, details=details)
    if details:
        lines += _moves(rehearsal)
    colours = {tables.outcome(rehearsal, rehearsal.best.cost): GREEN if rehearsal.well else RED}
    return "".join(f"{_painted(line, style, colours, titles)}\n" for line in lines)


def _painted(line: str, style: Style, colours: dict[str, int], titles: dict[str, int]) -> str:
    clean = "\n".join(printable(each, style.encoding) for each in line.split("\n"))
    if line in titles:
        return style.painted(clean, BOLD, titles[line])
    return style.painted(clean, colours[line]) if line in colours else clean


def _part(title: str, found: list[str], style: Style, *, details: bool) -> Iterator[str]:
    if not found:
        return
    yield from ("", title)
    shown = found if details else found[:_MOST]
    for each in shown:
        first, *rest = each.split("\n")
        yield _INDENT + wrapped(first, len(_INDENT) * 2, style.width)
        for line in rest:
            yield _INDENT * 2 + wrapped(line, len(_INDENT) * 2, style.width)
    if len(found) > len(shown):
        yield f"{_INDENT}and {len(found) - len(shown)} more: --details, -o json and -o html have all"


def _waits(rehearsal: Rehearsal) -> Iterator[str]:
    for each in tables.waits(rehearsal):
        fix = f"\n-> {each.reason.fix}" if each.reason.fix else ""
        yield f"{each.reason.cause}: {tables.wait_text(each, rehearsal)}\n{' '.join(each.reason.text.split())}{fix}"


def _changes(rehearsal: Rehearsal) -> Iterator[str]:
    for ref, before, after in rehearsal.sizes:
        yield f"{ref}: {before} before, {after} after"
    for topic in rehearsal.changes:
        fix = f"\n-> {topic.fix}" if topic.fix else ""
        yield f"{topic.cause}: {topic.code}, {names(topic)}\n{' '.join(topic.message.split())}{fix}"


def _moves(rehearsal: Rehearsal) -> Iterator[str]:
    for at, step in enumerate(rehearsal.best.steps, start=1):
        yield from ("", f"Step {at}: {step.group}")
        for each in tables.moves(step, rehearsal.pods):
            yield _INDENT + each
