"""A report as Markdown (GitHub's dialect) for tickets and wikis."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from commands.report import tables
from commands.report.model import Report, Topic, topics
from commands.report.tables import Table
from runtime.text import counted

_SPECIAL: Final = re.compile(r"([\\`*_\[\]<>|~#!&@$]|:(?=//)|(?<=www)\.)")
"""Characters that could begin markup or a link; names in a cluster are chosen by tenants."""


def as_markdown(report: Report) -> str:
    lines = [f"# Neuron workloads of {markdown_text(report.origin)}", "", markdown_text(report.made), ""]
    lines += [f"- {markdown_text(each)}" for each in tables.summary(report)]
    found = topics(report.workloads)
    lines += _topics("What blocks", [each for each in found if each.blocks])
    lines += _topics("What changes", [each for each in found if not each.blocks])
    if report.steps:
        lines += markdown_table(tables.plan(report.steps))
    if report.workloads:
        lines += markdown_table(tables.workloads(report.workloads))
    if report.shadowed:
        lines += markdown_table(tables.shadowed(report.shadowed))
    if report.audit is not None:
        lines += ["", "## Policies", "", markdown_text(tables.audit_line(report.audit))]
        if report.audit.violations:
            lines += markdown_table(tables.audit(report.audit))
        lines += [f"- Not judged: {markdown_text(each)}" for each in report.audit.unread]
    if report.finished or report.notes:
        lines += ["", "## Notes", ""]
        lines += [f"- Left out: {counted(report.finished, 'pod or Job', 'pods and Jobs')} that ended."] * bool(
            report.finished
        )
        lines += [f"- {markdown_text(each)}" for each in report.notes]
    return "".join(f"{line}\n" for line in lines)


def markdown_text(text: str) -> str:
    """Text on one line that Markdown shows as it is."""
    line = "".join(letter if letter.isprintable() else " " for letter in text)
    return _SPECIAL.sub(r"\\\1", line)


def _topics(title: str, found: Sequence[Topic]) -> Iterable[str]:
    if not found:
        return
    yield from ("", f"## {title}", "")
    for each in found:
        workloads = markdown_text(tables.names(each))
        fix = f" *{markdown_text(each.fix)}*" if each.fix else ""
        count = counted(len(each.workloads), "workload")
        yield f"- **{each.cause}** ({each.code}, {count}): {markdown_text(each.message)}{fix}"
        yield f"  - {workloads}"


def markdown_table(table: Table) -> Iterable[str]:
    """The lines of a table, with its caption."""
    yield from ("", f"## {table.caption}", "")
    yield f"| {' | '.join(table.head)} |"
    yield f"| {' | '.join('---:' if at in table.numbers else '---' for at in range(len(table.head)))} |"
    for row in table.rows:
        yield f"| {' | '.join(map(markdown_text, row))} |"
