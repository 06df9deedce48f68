"""A report as text for a terminal."""

from collections.abc import Iterable, Sequence

from commands.report import tables
from commands.report.model import Report, Topic, topics
from commands.report.tables import Table
from commands.status.lines import counted
from runtime.terminal import printable, wrapped

_INDENT = "  "


def as_text(report: Report, *, encoding: str, width: int | None) -> str:
    """Text for people.

    Args:
        width: columns at which sentences are wrapped; None: no wrapping. Tables are not wrapped.
    """
    lines = [f"Neuron workloads of {report.origin}, {report.made}", ""]
    lines += (wrapped(each, 0, width) for each in tables.summary(report))
    found = topics(report.workloads)
    lines += _topics("What blocks", [each for each in found if each.blocks], width)
    lines += _topics("What changes", [each for each in found if not each.blocks], width)
    if report.steps:
        lines += ["", *_table(tables.plan(report.steps))]
    if report.workloads:
        lines += ["", *_table(tables.workloads(report.workloads))]
    if report.shadowed:
        lines += ["", *_table(tables.shadowed(report.shadowed))]
    if report.audit is not None:
        lines += ["", wrapped(f"Policies: {tables.audit_line(report.audit)}", 0, width)]
        if report.audit.violations:
            lines += ["", *_table(tables.audit(report.audit))]
        lines += (wrapped(f"Not judged: {each}", 0, width) for each in report.audit.unread)
    if report.finished:
        lines += ["", f"Left out: {counted(report.finished, 'pod or Job', 'pods and Jobs')} that ended."]
    lines += ["", *(wrapped(f"Note: {each}", 0, width) for each in report.notes)] if report.notes else []
    return "".join(f"{clean_lines(line, encoding)}\n" for line in lines)


def clean_lines(text: str, encoding: str) -> str:
    """Printable text; line breaks of wrapping are kept."""
    return "\n".join(printable(line, encoding) for line in text.split("\n"))


def _topics(title: str, found: Sequence[Topic], width: int | None) -> Iterable[str]:
    if not found:
        return
    yield from ("", title)
    for each in found:
        yield f"{_INDENT}{each.cause}: {each.code}, {counted(len(each.workloads), 'workload')}: {tables.names(each)}"
        for line in (each.message, f"-> {each.fix}" if each.fix else ""):
            if line:
                yield _INDENT * 2 + wrapped(" ".join(line.split()), len(_INDENT) * 2, width)


def _table(table: Table) -> list[str]:
    rows = [tuple(head.upper() for head in table.head), *(tuple(map(_cell, row)) for row in table.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (
            cell.rjust(width) if at in table.numbers else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append(("  ".join(cells)).rstrip())
    return [table.caption, *(f"{_INDENT}{line}" for line in lines)]


def _cell(text: str) -> str:
    """One line: a policy's message may have several."""
    return " ".join(text.split())
