"""A report in every format; of several clusters, a table of all clusters first, and then the report of each."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from commands.report import render_html, tables
from commands.report.model import AuditViolation, Cause, Prospect, Reference, Report, Topic, topics, total
from commands.report.render_html import as_escaped, as_table, asset, whole_page
from commands.report.render_json import as_json, document, plain
from commands.report.render_text import as_text, clean, table_lines
from commands.report.tables import NOTHING, Table
from commands.validate.check_files import Located
from commands.validate.output import sarif_log
from neuron.findings import Finding, Severity
from runtime.console import Style, json_text
from runtime.text import counted

# --- SARIF 2.1.0: obstacles and results of policies, at the line of a file or at the object in a cluster --------------

LineOf = Callable[[str, int, str], int]
"""File, line of the object and field path -> line."""

_CODES: Final = {"Deny": "NEU801", "Warn": "NEU802", "Audit": "NEU805"}
_LEVELS: Final = {"Deny": Severity.ERROR, "Warn": Severity.WARNING, "Audit": Severity.NOTE}
_JUDGED: Final = frozenset(_CODES.values()) | {"NEU803"}


def as_sarif(report: Report, line_of: LineOf, documentation: str = "") -> str:
    log = sarif_document(report, line_of, documentation)
    return json_text(log)


def sarif_document(report: Report, line_of: LineOf, documentation: str) -> dict[str, Any]:
    """The log as plain data."""
    return sarif_log(list(_located(report, line_of)), report.problems, report.version, documentation)


def _located(report: Report, line_of: LineOf) -> Iterator[Located]:
    for workload in report.workloads:
        for each in workload.obstacles:
            if each.cause is Cause.POLICY and each.finding.code in _JUDGED and report.audit is not None:
                continue  # Among the results of the audit.
            finding = dataclasses.replace(each.finding, severity=Severity.ERROR) if each.blocks else each.finding
            yield _at(workload.ref, finding, line_of)
    for violation in report.audit.violations if report.audit else ():
        if violation.result != "skip":
            yield _at(violation.ref, _finding(violation), line_of)


def _finding(violation: AuditViolation) -> Finding:
    code = "NEU803" if violation.result == "error" else _CODES[violation.action]
    message = f"policy '{violation.policy}': {violation.message}"
    return Finding(code, violation.path, message, severity=_LEVELS[violation.action])


def _at(ref: Reference, finding: Finding, line_of: LineOf) -> Located:
    if ref.source:
        return Located(ref.source, line_of(ref.source, ref.line, finding.path), str(ref), finding)
    # Code hosts want a path. An object in a cluster has this one.
    return Located("/".join(filter(None, (ref.namespace, ref.kind, ref.name))), 1, str(ref), finding)


# --- Markdown (GitHub's dialect) for tickets and wikis ----------------------------------------------------------------

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


# --- all formats, of one cluster or several ---------------------------------------------------------------------------

Reports = Mapping[str, Report]
"""The reports, by the name of their cluster: the only one has none. One that could not be read has a problem, and no
workloads."""

_HEADING: Final = re.compile(r"^#", re.MULTILINE)
_PROSPECTS: Final = {
    "converted": Prospect.CONVERTED,
    "converts": Prospect.CONVERTS,
    "waits": Prospect.WAITS,
    "refused or blocked": Prospect.BLOCKED,
    "stays": Prospect.STAYS,
    "unknown": Prospect.UNKNOWN,
}


def text(reports: Reports, style: Style) -> str:
    if "" in reports:
        return as_text(reports[""], style)
    head = [f"{_title(reports)}, {_first(reports).made}", "", *table_lines(table(reports), style.width)]
    parts = (f"\n{as_text(each, style)}" for each in reports.values())
    return "".join((*(f"{clean(line, style)}\n" for line in head), *parts))


def markdown(reports: Reports) -> str:
    if "" in reports:
        return as_markdown(reports[""])
    head = [
        f"# {markdown_text(_title(reports))}",
        "",
        next(iter(reports.values())).made,
        *markdown_table(table(reports)),
    ]
    # The headings of a part are one level below the page's: no other line of it begins with #.
    parts = (f"\n{_HEADING.sub('##', as_markdown(each))}" for each in reports.values())
    return "".join((*(f"{line}\n" for line in head), *parts))


def json(reports: Reports) -> str:
    if "" in reports:
        return as_json(reports[""])
    found = [{"cluster": name, **document(each)} for name, each in reports.items()]
    return json_text({"clusters": found}, plain)


def sarif(reports: Reports, lines: Mapping[str, LineOf], documentation: str = "") -> str:
    """One log, with a run for each cluster. `lines`: by cluster."""
    if "" in reports:
        return as_sarif(reports[""], lines[""], documentation)
    logs = {name: sarif_document(each, lines[name], documentation) for name, each in reports.items()}
    runs = [{**run, "automationDetails": {"id": f"{name}/"}} for name, log in logs.items() for run in log["runs"]]
    return json_text({**next(iter(logs.values())), "runs": runs})


def html(reports: Reports) -> str:
    if "" in reports:
        return render_html.as_html(reports[""])
    made = f"{_first(reports).made}, neuron-dra {_first(reports).version}"
    return whole_page(_title(reports), made, ("clusters", "Skip to the clusters"), _main(reports), asset("page.js"))


def _main(reports: Reports) -> Iterator[str]:
    names = {name: f"cluster-{number}" for number, name in enumerate(reports, start=1)}
    links = (f'<a href="#{at}">{as_escaped(name)}</a>' for name, at in names.items())
    yield f'<nav aria-label="Clusters">{" ".join(links)}</nav>'
    yield from as_table("clusters", table(reports))
    yield from render_html.filters([each for report in reports.values() for each in report.workloads])
    for name, at in names.items():
        yield f'<section aria-labelledby="{at}"><h2 id="{at}">{as_escaped(name)}</h2>'
        yield f'<p class="made">{as_escaped(reports[name].origin)}</p>'
        # Texts of the cluster are escaped: only headings of the page are such elements.
        for line in (*render_html.head(reports[name], f"{at}-"), *render_html.parts(reports[name], f"{at}-")):
            yield line.replace("<h2", "<h3").replace("</h2>", "</h3>")
        yield "</section>"
    yield from render_html.codes(sorted({code for each in reports.values() for code in render_html.codes_of(each)}))


def table(reports: Reports) -> Table:
    """One row for each cluster, and one for all."""
    head = ("cluster", "workloads", *_PROSPECTS, "before", "after", "driver devices", "free", "not read")
    rows = [(name, *_cells((each,)), _problem(name, each)) for name, each in reports.items()]
    rows.append(("all", *_cells(tuple(reports.values())), NOTHING))
    return Table(
        "Clusters", head, tuple(rows), frozenset({*range(1, 2 + len(_PROSPECTS)), len(head) - 3, len(head) - 2})
    )


def _cells(reports: tuple[Report, ...]) -> tuple[str, ...]:
    """The columns between name and problem; of an unread cluster, nothing is counted."""
    read = [each for each in reports if each.workloads or not each.problems]
    if not read:
        return (NOTHING,) * (5 + len(_PROSPECTS))
    found = [workload for each in read for workload in each.workloads]
    nodes = [each.neuron_nodes for each in read if each.neuron_nodes is not None]
    devices = [str(sum(sum(each(node).values()) for node in nodes)) if nodes else NOTHING for each in _DEVICES]
    return (
        str(len(found)),
        *(str(sum(workload.prospect is each for workload in found)) for each in _PROSPECTS.values()),
        str(total(each.before for each in read)),
        str(total(each.after for each in read)),
        *devices,
    )


_DEVICES: Final[tuple[Callable[..., Mapping[str, int]], ...]] = (lambda node: node.driver, lambda node: node.free)


def _problem(name: str, report: Report) -> str:
    found = (f"{each.problem}." if each.source == name else str(each) for each in report.problems)
    return " ".join(found) or NOTHING


def _first(reports: Reports) -> Report:
    return next(iter(reports.values()))


def _title(reports: Reports) -> str:
    return f"Neuron workloads of {len(reports)} clusters"
