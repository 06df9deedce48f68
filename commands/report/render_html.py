"""A report as one HTML page that needs no other file and no network.

Every text of the cluster is escaped, and the page's Content-Security-Policy admits only its own style and script. The
page works without the script, which filters tables.
"""

import base64
import hashlib
import html
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Final

from commands.report import tables
from commands.report.model import Prospect, Reference, Report, Topic, Workload, topics
from commands.report.tables import Table
from neuron.codes import CODES
from runtime.text import counted

_MOST_NAMED: Final = 20
_FEW_ROWS: Final = 12
"""A table with no more rows gets no search."""
_WITH_CODES: Final = ("obstacles", "codes")
"""Columns in which codes are links."""
_CODE: Final = re.compile(r"NEU[0-9]{3}")
_CHART_WIDTH: Final = 1000
_PROSPECTS: Final = {
    Prospect.CONVERTED: "converted already",
    Prospect.CONVERTS: "converts and can run",
    Prospect.WAITS: "would wait for devices, nodes or quota",
    Prospect.BLOCKED: "blocked until something is changed",
    Prospect.STAYS: "stays on the device plugin",
    Prospect.UNKNOWN: "of an unknown kind",
}


def as_html(report: Report) -> str:
    title, made = f"Neuron workloads of {report.origin}", f"{report.made}, neuron-dra {report.version}"
    return whole_page(title, made, ("workloads", "Skip to the workloads"), _main(report), asset("page.js"))


def whole_page(
    title: str, made: str, skip: tuple[str, str], main: Iterable[str], script: str, style: str = "", data: bytes = b"{}"
) -> str:
    """A page with the style of reports.

    Args:
        skip: id and text of the link that skips what comes before.
        main: lines of the page, escaped.
        style: more of it.
        data: JSON that the script reads from the element `data`; `{}`: none.
    """
    style = asset("page.css") + (f"\n{style}" if style else "")
    own = f"style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    policy = f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"
    # `<` would end the script element, or begin a comment in it.
    content = data.decode().replace("<", "\\u003c")
    embedded = f'<script type="application/json" id="data">{content}</script>' if data != b"{}" else ""
    return "".join(
        f"{line}\n"
        for line in (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{as_escaped(title)}</title><style>{style}</style></head><body>",
            f'<a class="skip" href="#{skip[0]}">{skip[1]}</a>',
            f'<header><h1>{as_escaped(title)}</h1><p class="made">{as_escaped(made)}</p></header>',
            "<main>",
            *main,
            f"</main>{embedded}<script>{script}</script></body></html>",
        )
    )


def _main(report: Report) -> Iterator[str]:
    yield from head(report)
    yield from filters(report.workloads)
    yield from parts(report)
    yield from codes(codes_of(report))


def codes_of(report: Report) -> list[str]:
    """The codes that a report has."""
    found = {each.code for each in topics(report.workloads)}
    return sorted(found | {code for seen in report.shadowed for code in seen.codes})


def head(report: Report, at: str = "") -> Iterator[str]:
    """Links to the parts, the first sentences and a chart.

    Args:
        at: the beginning of every id, where a page has several reports.
    """
    found = topics(report.workloads)
    named = {
        f"{at}blocks": any(each.blocks for each in found) and "What blocks",
        f"{at}changes": any(not each.blocks for each in found) and "What changes",
        f"{at}plan": bool(report.steps) and "Order of migration",
        f"{at}workloads": "Workloads",
        f"{at}shadow": bool(report.shadowed) and "Seen by the webhook",
        f"{at}policies": report.audit is not None and "Policy results",
        "codes": bool(codes_of(report)) and "Codes",
    }
    links = (f'<a href="#{name}">{title}</a>' for name, title in named.items() if title)
    yield f'<nav aria-label="Parts of the report">{" ".join(links)}</nav>'
    yield from ("<ul>", *(f"<li>{as_escaped(each)}</li>" for each in tables.summary(report)), "</ul>")
    yield from _chart(report)


def parts(report: Report, at: str = "") -> Iterator[str]:
    """The parts, without what the codes mean. `at` as for `head`."""
    found = topics(report.workloads)
    rows = {each.ref: f"{at}workload-{number}" for number, each in enumerate(report.workloads, start=1)}
    yield from _topics("What blocks", "blocks", [each for each in found if each.blocks], rows, at)
    yield from _topics("What changes", "changes", [each for each in found if not each.blocks], rows, at)
    if report.steps:
        about = [_about("", step.namespace) for step in report.steps]
        yield from as_table(f"{at}plan", tables.plan(report.steps), about)
    about = [
        _about(rows[each.ref], each.ref.namespace, {obstacle.cause for obstacle in each.obstacles})
        for each in report.workloads
    ]
    yield from as_table(f"{at}workloads", tables.workloads(report.workloads), about)
    if report.shadowed:
        about = [_about("", each.namespace) for each in report.shadowed]
        yield from as_table(f"{at}shadow", tables.shadowed(report.shadowed), about)
    if report.audit is not None:
        yield f"<p>{as_escaped(tables.audit_line(report.audit))}</p>"
        about = [_about("", each.ref.namespace) for each in report.audit.violations]
        yield from as_table(f"{at}policies", tables.audit(report.audit), about)
        yield from (f"<p>Not judged: {as_escaped(each)}</p>" for each in report.audit.unread)
    notes = [*report.notes]
    if report.finished:
        notes.append(f"Left out: {counted(report.finished, 'pod or Job', 'pods and Jobs')} that ended.")
    if notes:
        yield from ("<h2>Notes</h2><ul>", *(f"<li>{as_escaped(each)}</li>" for each in notes), "</ul>")


def _chart(report: Report) -> Iterator[str]:
    """One bar for all workloads, with a part for each prospect, and its legend."""
    counts = Counter(each.prospect for each in report.workloads)
    shown = [each for each in Prospect if counts[each]]
    if not shown:
        return
    ends = [0, *itertools.accumulate(counts[each] for each in shown)]
    places = [round(_CHART_WIDTH * end / ends[-1]) for end in ends]
    told = ", ".join(f"{counts[each]} {_PROSPECTS[each]}" for each in shown)
    box = f'viewBox="0 0 {_CHART_WIDTH} 36" preserveAspectRatio="none"'
    yield f'<svg class="chart" {box} role="img" aria-label="{told}">'
    for each, start, end in zip(shown, places, places[1:], strict=False):
        yield f'<rect class="{each}" x="{start}" y="0" width="{max(2, end - start)}" height="36"></rect>'
    yield '</svg><ul class="legend">'
    for each in shown:
        pods = sum(workload.pods or 0 for workload in report.workloads if workload.prospect is each)
        yield (
            f'<li><span class="swatch {each}"></span>{counted(counts[each], "workload")} with {counted(pods, "pod")}:'
            f" {_PROSPECTS[each]}</li>"
        )
    yield "</ul>"


def filters(workloads: Sequence[Workload]) -> Iterator[str]:
    """Menus for the whole page, which the script shows; each only if there is something to choose."""
    menus = {
        "namespace": sorted({each.ref.namespace for each in workloads if each.ref.namespace}),
        "cause": sorted({str(each.cause) for workload in workloads for each in workload.obstacles}),
    }
    menus = {name: values for name, values in menus.items() if len(values) > 1}
    if menus:
        yield '<form id="filters" hidden>'
        for name, values in menus.items():
            options = "".join(f"<option>{as_escaped(each)}</option>" for each in values)
            yield f'<label>Only {name} <select name="{name}"><option value="">all</option>{options}</select></label>'
        yield "</form>"


def _about(identifier: str, namespace: str, causes: Iterable[str] | None = None) -> str:
    """Attributes of an element: its id, and what the menus compare. Without causes, the menu of causes ignores it."""
    return (f' id="{identifier}"' if identifier else "") + _filtered([namespace], causes)


def _filtered(namespaces: Iterable[str], causes: Iterable[str] | None) -> str:
    found = f' data-namespace="{as_escaped(json.dumps(sorted(set(namespaces))))}"'
    return found if causes is None else f'{found} data-cause="{as_escaped(json.dumps(sorted(map(str, causes))))}"'


def _topics(title: str, kind: str, found: Sequence[Topic], rows: Mapping[Reference, str], at: str) -> Iterable[str]:
    if not found:
        return
    yield f'<h2 id="{at}{kind}">{title}</h2><ul class="topics {kind}">'
    for each in found:
        about = _filtered((ref.namespace for ref in each.workloads), [each.cause])
        yield (
            f'<li{about}><p><span class="tag">{as_escaped(each.cause)}</span> {_linked(each.code)},'
            f" {counted(len(each.workloads), 'workload')}</p><p>{as_escaped(each.message)}</p>"
        )
        if each.fix:
            yield f'<p class="fix">{as_escaped(each.fix)}</p>'
        names = [f'<a href="#{rows[ref]}">{as_escaped(str(ref))}</a>' for ref in each.workloads[:_MOST_NAMED]]
        more = len(each.workloads) - len(names)
        yield f"<p>{', '.join(names)}{f' and {more:,} more' if more else ''}</p></li>"
    yield "</ul>"


def codes(found_codes: Sequence[str]) -> Iterator[str]:
    """What the codes of the page mean: it needs no other page."""
    if not found_codes:
        return
    yield '<h2 id="codes">Codes</h2>'
    for code in found_codes:
        found = CODES[code]
        yield f'<h3 id="{code.lower()}">{code}: {as_escaped(found.title)}</h3>'
        yield from (f"<p>{as_escaped(each)}</p>" for each in (found.why, found.fix) if each)


def _linked(text: str) -> str:
    """The text, with links for codes."""
    return _CODE.sub(lambda code: f'<a href="#{code[0].lower()}">{code[0]}</a>', as_escaped(text))


def as_table(name: str, table: Table, about: Sequence[str] = ()) -> Iterator[str]:
    """A table. `about`: attributes of each row."""
    yield f'<h2 id="{name}">{as_escaped(table.caption)}</h2>'
    if not table.rows:
        yield "<p>None.</p>"
        return
    if len(table.rows) > _FEW_ROWS:
        yield (
            f'<label hidden data-table="{name}-table">Show rows that contain <input type="search" autocomplete="off">'
            " <output></output></label>"
        )
    yield f'<div class="scroll" role="region" aria-labelledby="{name}" tabindex="0"><table id="{name}-table">'
    yield f"<caption>{counted(len(table.rows), 'row')}</caption>"
    kinds = [' class="number"' if at in table.numbers else "" for at in range(len(table.head))]
    heads = zip(kinds, table.head, strict=True)
    head = "".join(f'<th scope="col"{kind}>{as_escaped(each)}</th>' for kind, each in heads)
    yield f"<thead><tr>{head}</tr></thead><tbody>"
    for row, attributes in zip(table.rows, about or itertools.repeat("", len(table.rows)), strict=True):
        cells = (
            f'<td{kind} data-column="{as_escaped(name)}">{(_linked if name in _WITH_CODES else as_escaped)(cell)}</td>'
            for name, kind, cell in zip(table.head, kinds, row, strict=True)
        )
        yield f"<tr{attributes}>{''.join(cells)}</tr>"
    yield "</tbody></table></div>"


def as_escaped(text: str) -> str:
    """Text for an element or an attribute. Characters that could reorder other text are shown as spaces."""
    return html.escape("".join(letter if letter.isprintable() else " " for letter in text))


def asset(name: str, package: str = "commands.report") -> str:
    """A file of a package."""
    return files(package).joinpath(name).read_text(encoding="utf-8").strip()


def _hash(content: str) -> str:
    """The source expression of an inline element (CSP Level 3)."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
