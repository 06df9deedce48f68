"""A report as text for a terminal."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from commands.report import tables
from commands.report.model import Report, Topic, topics
from commands.report.tables import NOTHING, Table
from neuron.findings import short
from runtime.console import BOLD, RED, YELLOW, Style, printable, wrapped
from runtime.text import counted

_INDENT: Final = "  "
_GAP: Final = 2
_LONGEST_CELL: Final = 32
"""Characters of a cell in a table that is wider than the output; longer ones are cut, and repeated below the row."""
MOST_ROWS: Final = 40
"""Rows of a table. A page or JSON has all of them."""


def as_text(report: Report, style: Style) -> str:
    """Text for people.

    Args:
        style: with the columns at which sentences break; columns of tables that do not fit are below their row.
    """
    width = style.width
    lines = [f"Neuron workloads of {report.origin}, {report.made}", ""]
    lines += (wrapped(each, 0, width) for each in tables.summary(report))
    found = topics(report.workloads)
    lines += _topics("What blocks", [each for each in found if each.blocks], width)
    lines += _topics("What changes", [each for each in found if not each.blocks], width)
    if report.steps:
        lines += ["", *table_lines(tables.plan(report.steps), width)]
    if report.workloads:
        lines += ["", *table_lines(tables.grouped_workloads(report.workloads, MOST_ROWS), width)]
    if report.shadowed:
        lines += ["", *table_lines(tables.shadowed(report.shadowed), width)]
    if report.audit is not None:
        lines += ["", wrapped(f"Policies: {tables.audit_line(report.audit)}", 0, width)]
        if report.audit.violations:
            lines += ["", *table_lines(tables.audit(report.audit), width)]
        lines += (wrapped(f"Not judged: {each}", 0, width) for each in report.audit.unread)
    if report.finished:
        lines += ["", f"Left out: {counted(report.finished, 'pod or Job', 'pods and Jobs')} that ended."]
    lines += ["", *(wrapped(f"Note: {each}", 0, width) for each in report.notes)] if report.notes else []
    return "".join(f"{clean(line, style)}\n" for line in lines)


def clean(text: str, style: Style) -> str:
    """Printable text; line breaks of wrapping are kept. A title is painted."""
    codes = _TITLES.get(text, ())
    return style.painted("\n".join(printable(line, style.encoding) for line in text.split("\n")), *codes)


_TITLES: Final = {
    "What blocks": (BOLD, RED),
    "What changes": (BOLD, YELLOW),
    **dict.fromkeys(("Clusters", "Order of migration", "Workloads", "Seen by the webhook", "Policy results"), (BOLD,)),
}


def _topics(title: str, found: Sequence[Topic], width: int | None) -> Iterable[str]:
    if not found:
        return
    yield from ("", title)
    for each in found:
        about = f"{each.cause}: {each.code}, {counted(len(each.workloads), 'workload')}: {tables.names(each)}"
        yield _INDENT + wrapped(about, len(_INDENT) * 2, width)
        for line in (each.message, f"-> {each.fix}" if each.fix else ""):
            if line:
                yield _INDENT * 2 + wrapped(" ".join(line.split()), len(_INDENT) * 2, width)


# --- tables -----------------------------------------------------------------------------------------------------


def table_lines(table: Table, width: int | None) -> Iterator[str]:
    """A table. Columns at its end that do not fit are below each row, without those that have nothing to say."""
    heads = [head.upper() for head in table.head]
    rows = [tuple(map(_cell, row)) for row in table.rows[:MOST_ROWS]]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    kept = len(heads)
    if width is not None and _total(widths) > width:
        widths = [min(each, _LONGEST_CELL) for each in widths]
        while kept > 1 and _total(widths[:kept]) > width:
            kept -= 1
    yield table.caption
    yield _line(heads, widths[:kept], table.numbers)
    for row in rows:
        yield _line(row, widths[:kept], table.numbers)
        below = [at for at, cell in enumerate(row) if cell != NOTHING and (at >= kept or len(cell) > widths[at])]
        if below:
            told = "; ".join(f"{table.head[at]}: {row[at]}" for at in below)
            yield _INDENT * 3 + wrapped(told, len(_INDENT) * 3, width)
    if len(table.rows) > MOST_ROWS:
        yield f"{_INDENT}and {len(table.rows) - MOST_ROWS:,} more: -o html and -o json have all"


def _total(widths: Sequence[int]) -> int:
    return len(_INDENT) + sum(widths) + _GAP * (len(widths) - 1)


def _line(row: Sequence[str], widths: Sequence[int], numbers: Collection[int]) -> str:
    cells = (short(cell, width) for cell, width in zip(row, widths, strict=False))
    placed = (
        cell.rjust(width) if at in numbers else cell.ljust(width)
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return _INDENT + (" " * _GAP).join(placed).rstrip()


def _cell(text: str) -> str:
    """One line: a policy's message may have several."""
    return " ".join(text.split())
