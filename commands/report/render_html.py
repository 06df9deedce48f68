"""A report as one HTML page that needs no other file and no network.

Every text of the cluster is escaped, and the page's Content-Security-Policy admits only its own style and script. The
page works without the script, which filters tables.
"""

import base64
import hashlib
import html
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from typing import Final

from commands.report import tables
from commands.report.model import Report, Topic, topics
from commands.report.tables import Table
from commands.status.lines import counted

_MOST_NAMED: Final = 20
_FEW_ROWS: Final = 12
"""A table with no more rows gets no filter."""


def as_html(report: Report) -> str:
    style, script = _asset("page.css"), _asset("page.js")
    own = f"style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    policy = f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"
    made = _text(f"{report.made}, neuron-dra {report.version}")
    title = _text(f"Neuron workloads of {report.origin}")
    return "".join(
        f"{line}\n"
        for line in (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title><style>{style}</style></head><body>",
            '<a class="skip" href="#workloads">Skip to the workloads</a>',
            f'<header><h1>{title}</h1><p class="made">{made}</p></header>',
            "<main>",
            *_main(report),
            f"</main><script>{script}</script></body></html>",
        )
    )


def _main(report: Report) -> Iterator[str]:
    yield from ("<ul>", *(f"<li>{_text(each)}</li>" for each in tables.summary(report)), "</ul>")
    found = topics(report.workloads)
    yield from _topics("What blocks", "blocks", [each for each in found if each.blocks])
    yield from _topics("What changes", "changes", [each for each in found if not each.blocks])
    if report.steps:
        yield from _table("plan", tables.plan(report.steps))
    yield from _table("workloads", tables.workloads(report.workloads))
    if report.shadowed:
        yield from _table("shadow", tables.shadowed(report.shadowed))
    if report.audit is not None:
        yield f"<p>{_text(tables.audit_line(report.audit))}</p>"
        yield from _table("policies", tables.audit(report.audit))
        yield from (f"<p>Not judged: {_text(each)}</p>" for each in report.audit.unread)
    notes = [*report.notes]
    if report.finished:
        notes.append(f"Left out: {counted(report.finished, 'pod or Job', 'pods and Jobs')} that ended.")
    if notes:
        yield from ("<h2>Notes</h2><ul>", *(f"<li>{_text(each)}</li>" for each in notes), "</ul>")


def _topics(title: str, kind: str, found: Sequence[Topic]) -> Iterable[str]:
    if not found:
        return
    yield f'<h2 id="{kind}">{title}</h2><ul class="topics {kind}">'
    for each in found:
        yield (
            f'<li><p><span class="tag">{_text(each.cause)}</span> {_text(each.code)},'
            f" {counted(len(each.workloads), 'workload')}</p><p>{_text(each.message)}</p>"
        )
        if each.fix:
            yield f'<p class="fix">{_text(each.fix)}</p>'
        yield f"<p>{_text(tables.names(each, _MOST_NAMED))}</p></li>"
    yield "</ul>"


def _table(name: str, table: Table) -> Iterator[str]:
    yield f'<h2 id="{name}">{_text(table.caption)}</h2>'
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
    head = "".join(f'<th scope="col"{kind}>{_text(each)}</th>' for kind, each in zip(kinds, table.head, strict=True))
    yield f"<thead><tr>{head}</tr></thead><tbody>"
    for row in table.rows:
        cells = (
            f'<td{kind} data-column="{_text(name)}">{_text(cell)}</td>'
            for name, kind, cell in zip(table.head, kinds, row, strict=True)
        )
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table></div>"


def _text(text: str) -> str:
    """Text for an element or an attribute. Characters that could reorder other text are shown as spaces."""
    return html.escape("".join(letter if letter.isprintable() else " " for letter in text))


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8").strip()


def _hash(content: str) -> str:
    """The source expression of an inline element (CSP Level 3)."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
