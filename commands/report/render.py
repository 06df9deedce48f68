"""A report in every format; of several clusters, a table of all clusters first, and then the report of each."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from json import dumps
from typing import Any, Final

from commands.present import NOTHING, ListEntry, Located, Table
from commands.present import html as pages
from commands.present import markdown as marked
from commands.present import text as plain
from commands.present.html import escaped
from commands.present.sarif import sarif_log
from commands.report import tables
from commands.report.model import AuditViolation, Cause, Prospect, Reference, Report, Topic, Workload, topics, total
from commands.report.tables import as_json, document
from neuron.codes import CODES
from neuron.findings import Finding, Severity
from runtime.console import BOLD, RED, YELLOW, Style, json_text, wrapped
from runtime.text import counted

# --- text -------------------------------------------------------------------------------------------------------------

_TITLES: Final = {
    "What blocks": (BOLD, RED),
    "What changes": (BOLD, YELLOW),
    **dict.fromkeys(("Clusters", "Order of migration", "Workloads", "Seen by the webhook", "Policy results"), (BOLD,)),
}


def as_text(report: Report, style: Style) -> str:
    """Text for people.

    Args:
        style: with the columns at which sentences break; columns of tables that do not fit are below their row.
    """
    width = style.width
    lines = [f"Neuron workloads of {report.origin}, {report.made}", ""]
    lines += (wrapped(each, 0, width) for each in tables.summary(report))
    for title, found in _by_effect(report).items():
        shown = [
            ListEntry(each.cause, f"{each.code}, {_count(each)}: {tables.names(each)}", each.message, each.fix)
            for each in found
        ]
        lines += plain.titled(title, shown, width)
    if report.steps:
        lines += ["", *plain.table(tables.plan(report.steps), width)]
    if report.workloads:
        lines += ["", *plain.table(tables.grouped_workloads(report.workloads, plain.MOST_ROWS), width)]
    if report.shadowed:
        lines += ["", *plain.table(tables.shadowed(report.shadowed), width)]
    if report.audit is not None:
        lines += ["", wrapped(f"Policies: {tables.audit_line(report.audit)}", 0, width)]
        if report.audit.violations:
            lines += ["", *plain.table(tables.audit(report.audit), width)]
        lines += (wrapped(f"Not judged: {each}", 0, width) for each in report.audit.unread)
    lines += ["", *_left_out(report)] if report.finished else []
    lines += ["", *(wrapped(f"Note: {each}", 0, width) for each in report.notes)] if report.notes else []
    return plain.page(lines, style, _TITLES)


def _by_effect(report: Report) -> dict[str, list[Topic]]:
    """The obstacles by what they do, under a title for each."""
    found = topics(report.workloads)
    return {
        "What blocks": [each for each in found if each.blocks],
        "What changes": [each for each in found if not each.blocks],
    }


def _count(topic: Topic) -> str:
    return counted(len(topic.workloads), "workload")


def _left_out(report: Report) -> list[str]:
    """What the report leaves out, as a sentence; nothing if it has everything."""
    return [f"Left out: {counted(report.finished, 'pod or Job', 'pods and Jobs')} that ended."] * bool(report.finished)


# --- SARIF 2.1.0: obstacles and results of policies, at the line of a file or at the object in a cluster --------------

LineOf = Callable[[str, int, str], int]
"""File, line of the object and field path -> line."""

_CODES: Final = {"Deny": "NEU801", "Warn": "NEU802", "Audit": "NEU805"}
_LEVELS: Final = {"Deny": Severity.ERROR, "Warn": Severity.WARNING, "Audit": Severity.NOTE}
_JUDGED: Final = frozenset(_CODES.values()) | {"NEU803"}


def as_sarif(report: Report, line_of: LineOf, documentation: str) -> dict[str, Any]:
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


# --- Markdown ---------------------------------------------------------------------------------------------------------


def as_markdown(report: Report) -> str:
    lines = [f"# Neuron workloads of {marked.text(report.origin)}", "", marked.text(report.made), ""]
    lines += marked.bullets(tables.summary(report))
    for title, found in _by_effect(report).items():
        lines += ["", f"## {title}", ""] if found else []
        for each in found:
            fix = f" *{marked.text(each.fix)}*" if each.fix else ""
            lines.append(f"- **{each.cause}** ({each.code}, {_count(each)}): {marked.text(each.message)}{fix}")
            lines.append(f"  - {marked.text(tables.names(each))}")
    if report.steps:
        lines += marked.table(tables.plan(report.steps))
    if report.workloads:
        lines += marked.table(tables.workloads(report.workloads))
    if report.shadowed:
        lines += marked.table(tables.shadowed(report.shadowed))
    if report.audit is not None:
        lines += ["", "## Policies", "", marked.text(tables.audit_line(report.audit))]
        if report.audit.violations:
            lines += marked.table(tables.audit(report.audit))
        lines += marked.bullets(f"Not judged: {each}" for each in report.audit.unread)
    if notes := [*_left_out(report), *report.notes]:
        lines += ["", "## Notes", "", *marked.bullets(notes)]
    return "".join(f"{line}\n" for line in lines)


# --- HTML: a page that works without its script, which filters tables -------------------------------------------------

_MOST_NAMED: Final = 20
_CHART_WIDTH: Final = 1000
_TOLD: Final = {
    Prospect.CONVERTED: "converted already",
    Prospect.CONVERTS: "converts and can run",
    Prospect.WAITS: "would wait for devices, nodes or quota",
    Prospect.BLOCKED: "blocked until something is changed",
    Prospect.STAYS: "stays on the device plugin",
    Prospect.UNKNOWN: "of an unknown kind",
}


def as_html(report: Report) -> str:
    main = (*_head(report), *_filters(report.workloads), *_parts(report), *_codes(_codes_of(report)))
    title, made = f"Neuron workloads of {report.origin}", f"{report.made}, neuron-dra {report.version}"
    return pages.page(title, made, ("workloads", "Skip to the workloads"), main, _script())


def _script() -> str:
    return pages.asset("page.js", "commands.report")


def _codes_of(report: Report) -> list[str]:
    found = {each.code for each in topics(report.workloads)}
    return sorted(found | {code for seen in report.shadowed for code in seen.codes})


def _head(report: Report, at: str = "") -> Iterator[str]:
    """Links to the parts, the first sentences and a chart.

    Args:
        at: the beginning of every id, where a page has several reports.
    """
    found = _by_effect(report)
    named = {
        f"{at}blocks": bool(found["What blocks"]) and "What blocks",
        f"{at}changes": bool(found["What changes"]) and "What changes",
        f"{at}plan": bool(report.steps) and "Order of migration",
        f"{at}workloads": "Workloads",
        f"{at}shadow": bool(report.shadowed) and "Seen by the webhook",
        f"{at}policies": report.audit is not None and "Policy results",
        "codes": bool(_codes_of(report)) and "Codes",
    }
    links = (f'<a href="#{name}">{title}</a>' for name, title in named.items() if title)
    yield f'<nav aria-label="Parts of the report">{" ".join(links)}</nav>'
    yield from pages.bullets(tables.summary(report))
    yield from _chart(report)


def _parts(report: Report, at: str = "") -> Iterator[str]:
    """The parts, without what the codes mean. `at` as for `head`."""
    rows = {each.ref: f"{at}workload-{number}" for number, each in enumerate(report.workloads, start=1)}
    for title, found in _by_effect(report).items():
        yield from _topics(title, found, rows, at)
    if report.steps:
        about = [_about("", step.namespace) for step in report.steps]
        yield from pages.table(f"{at}plan", tables.plan(report.steps), about)
    about = [
        _about(rows[each.ref], each.ref.namespace, {obstacle.cause for obstacle in each.obstacles})
        for each in report.workloads
    ]
    yield from pages.table(f"{at}workloads", tables.workloads(report.workloads), about)
    if report.shadowed:
        about = [_about("", each.namespace) for each in report.shadowed]
        yield from pages.table(f"{at}shadow", tables.shadowed(report.shadowed), about)
    if report.audit is not None:
        yield f"<p>{escaped(tables.audit_line(report.audit))}</p>"
        about = [_about("", each.ref.namespace) for each in report.audit.violations]
        yield from pages.table(f"{at}policies", tables.audit(report.audit), about)
        yield from (f"<p>Not judged: {escaped(each)}</p>" for each in report.audit.unread)
    if notes := [*report.notes, *_left_out(report)]:
        yield from ("<h2>Notes</h2>", *pages.bullets(notes))


def _chart(report: Report) -> Iterator[str]:
    """One bar for all workloads, with a part for each prospect, and its legend."""
    counts = Counter(each.prospect for each in report.workloads)
    shown = [each for each in Prospect if counts[each]]
    if not shown:
        return
    ends = [0, *itertools.accumulate(counts[each] for each in shown)]
    places = [round(_CHART_WIDTH * end / ends[-1]) for end in ends]
    told = ", ".join(f"{counts[each]} {_TOLD[each]}" for each in shown)
    box = f'viewBox="0 0 {_CHART_WIDTH} 36" preserveAspectRatio="none"'
    yield f'<svg class="chart" {box} role="img" aria-label="{told}">'
    for each, start, end in zip(shown, places, places[1:], strict=False):
        yield f'<rect class="{each}" x="{start}" y="0" width="{max(2, end - start)}" height="36"></rect>'
    yield '</svg><ul class="legend">'
    for each in shown:
        pods = sum(workload.pods or 0 for workload in report.workloads if workload.prospect is each)
        yield (
            f'<li><span class="swatch {each}"></span>{counted(counts[each], "workload")} with {counted(pods, "pod")}:'
            f" {_TOLD[each]}</li>"
        )
    yield "</ul>"


def _filters(workloads: Sequence[Workload]) -> Iterator[str]:
    """Menus for the whole page, which the script shows; each only if there is something to choose."""
    menus = {
        "namespace": sorted({each.ref.namespace for each in workloads if each.ref.namespace}),
        "cause": sorted({str(each.cause) for workload in workloads for each in workload.obstacles}),
    }
    menus = {name: values for name, values in menus.items() if len(values) > 1}
    if menus:
        yield '<form id="filters" hidden>'
        for name, values in menus.items():
            options = "".join(f"<option>{escaped(each)}</option>" for each in values)
            yield f'<label>Only {name} <select name="{name}"><option value="">all</option>{options}</select></label>'
        yield "</form>"


def _about(identifier: str, namespace: str, causes: Iterable[str] | None = None) -> str:
    """Attributes of an element: its id, and what the menus compare. Without causes, the menu of causes ignores it."""
    return (f' id="{identifier}"' if identifier else "") + _filtered([namespace], causes)


def _filtered(namespaces: Iterable[str], causes: Iterable[str] | None) -> str:
    found = f' data-namespace="{escaped(dumps(sorted(set(namespaces))))}"'
    return found if causes is None else f'{found} data-cause="{escaped(dumps(sorted(map(str, causes))))}"'


def _topics(title: str, found: Sequence[Topic], rows: Mapping[Reference, str], at: str) -> Iterator[str]:
    if not found:
        return
    kind = title.rpartition(" ")[2]
    yield f'<h2 id="{at}{kind}">{title}</h2><ul class="topics {kind}">'
    for each in found:
        names = [f'<a href="#{rows[ref]}">{escaped(str(ref))}</a>' for ref in each.workloads[:_MOST_NAMED]]
        rest = len(each.workloads) - len(names)
        more = f"<p>{', '.join(names)}{f' and {rest:,} more' if rest else ''}</p>"
        about = f"{pages.linked(each.code)}, {_count(each)}"
        menus = _filtered((ref.namespace for ref in each.workloads), [each.cause])
        yield from pages.topic(each.cause, about, each.message, each.fix, menus, more)
    yield "</ul>"


def _codes(found_codes: Sequence[str]) -> Iterator[str]:
    """What the codes of the page mean: it needs no other page."""
    if not found_codes:
        return
    yield '<h2 id="codes">Codes</h2>'
    for code in found_codes:
        found = CODES[code]
        yield f'<h3 id="{code.lower()}">{code}: {escaped(found.title)}</h3>'
        yield from (f"<p>{escaped(each)}</p>" for each in (found.why, found.fix) if each)


# --- all formats, of one cluster or several ---------------------------------------------------------------------------

Reports = Mapping[str, Report]
"""The reports, by the name of their cluster: the only one has none. One that could not be read has a problem, and no
workloads."""

_PROSPECTS: Final = tuple("refused or blocked" if each is Prospect.BLOCKED else each.value for each in Prospect)
"""Columns of the table of clusters."""


def text(reports: Reports, style: Style) -> str:
    if "" in reports:
        return as_text(reports[""], style)
    head = [f"{_title(reports)}, {_first(reports).made}", "", *plain.table(table(reports), style.width)]
    parts = (f"\n{as_text(each, style)}" for each in reports.values())
    return "".join((plain.page(head, style, _TITLES), *parts))


def markdown(reports: Reports) -> str:
    if "" in reports:
        return as_markdown(reports[""])
    head = [f"# {marked.text(_title(reports))}", "", _first(reports).made, *marked.table(table(reports))]
    parts = (f"\n{marked.below(as_markdown(each))}" for each in reports.values())
    return "".join((*(f"{line}\n" for line in head), *parts))


def json(reports: Reports) -> str:
    if "" in reports:
        return as_json(reports[""])
    found = [{"cluster": name, **document(each)} for name, each in reports.items()]
    return json_text({"clusters": found}, tables.plain)


def sarif(reports: Reports, lines: Mapping[str, LineOf], documentation: str = "") -> str:
    """One log, with a run for each cluster. `lines`: by cluster."""
    if "" in reports:
        return json_text(as_sarif(reports[""], lines[""], documentation))
    logs = {name: as_sarif(each, lines[name], documentation) for name, each in reports.items()}
    runs = [{**run, "automationDetails": {"id": f"{name}/"}} for name, log in logs.items() for run in log["runs"]]
    return json_text({**next(iter(logs.values())), "runs": runs})


def html(reports: Reports) -> str:
    if "" in reports:
        return as_html(reports[""])
    made = f"{_first(reports).made}, neuron-dra {_first(reports).version}"
    return pages.page(_title(reports), made, ("clusters", "Skip to the clusters"), _main(reports), _script())


def _main(reports: Reports) -> Iterator[str]:
    names = {name: f"cluster-{number}" for number, name in enumerate(reports, start=1)}
    links = (f'<a href="#{at}">{escaped(name)}</a>' for name, at in names.items())
    yield f'<nav aria-label="Clusters">{" ".join(links)}</nav>'
    yield from pages.table("clusters", table(reports))
    yield from _filters([each for report in reports.values() for each in report.workloads])
    for name, at in names.items():
        yield f'<section aria-labelledby="{at}"><h2 id="{at}">{escaped(name)}</h2>'
        yield f'<p class="made">{escaped(reports[name].origin)}</p>'
        # Texts of the cluster are escaped: only headings of the page are such elements.
        for line in (*_head(reports[name], f"{at}-"), *_parts(reports[name], f"{at}-")):
            yield line.replace("<h2", "<h3").replace("</h2>", "</h3>")
        yield "</section>"
    yield from _codes(sorted({code for each in reports.values() for code in _codes_of(each)}))


def table(reports: Reports) -> Table:
    """One row for each cluster, and one for all."""
    head = ("cluster", "workloads", *_PROSPECTS, "before", "after", "driver devices", "free", "not read")
    rows = []
    for name, each in reports.items():
        unread = (f"{problem.problem}." if problem.source == name else str(problem) for problem in each.problems)
        rows.append((name, *_cells((each,)), " ".join(unread) or NOTHING))
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
        *(str(sum(workload.prospect is each for workload in found)) for each in Prospect),
        str(total(each.before for each in read)),
        str(total(each.after for each in read)),
        *devices,
    )


_DEVICES: Final[tuple[Callable[..., Mapping[str, int]], ...]] = (lambda node: node.driver, lambda node: node.free)


def _first(reports: Reports) -> Report:
    return next(iter(reports.values()))


def _title(reports: Reports) -> str:
    return f"Neuron workloads of {len(reports)} clusters"
