"""HTML pages that need no other file and no network.

Every text of the cluster is escaped, and a page's Content-Security-Policy admits only its own style and script.
"""

import base64
import hashlib
import html
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from typing import Final

from commands.present import Table
from runtime.text import counted

_FEW_ROWS: Final = 12
"""A table with no more rows gets no search."""
_WITH_CODES: Final = ("obstacles", "codes")
"""Columns in which codes are links."""
_CODE: Final = re.compile(r"NEU[0-9]{3}")


def page(
    title: str, made: str, skip: tuple[str, str], main: Iterable[str], script: str, style: str = "", data: bytes = b""
) -> str:
    """A page that needs no other file and no network.

    Args:
        skip: id and text of the link that skips what comes before.
        main: lines of the page, escaped.
        style: more of it.
        data: JSON that the script reads from the element `data`; empty: none.
    """
    style = asset("page.css", "commands.present") + (f"\n{style}" if style else "")
    own = f"style-src {source_of(style)}; script-src {source_of(script)}"
    policy = f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"
    return "".join(
        f"{line}\n"
        for line in (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escaped(title)}</title><style>{style}</style></head><body>",
            f'<a class="skip" href="#{skip[0]}">{skip[1]}</a>',
            f'<header><h1>{escaped(title)}</h1><p class="made">{escaped(made)}</p></header>',
            "<main>",
            *main,
            f"</main>{embedded(data) if data else ''}<script>{script}</script></body></html>",
        )
    )


def bullets(sentences: Iterable[str]) -> Iterator[str]:
    yield from ("<ul>", *(f"<li>{escaped(each)}</li>" for each in sentences), "</ul>")


def topic(tag: str, about: str, text: str, fix: str, attributes: str = "", more: str = "") -> Iterator[str]:
    """An entry of a list of topics. `about`, `attributes` and `more` are HTML."""
    yield f'<li{attributes}><p><span class="tag">{escaped(tag)}</span> {about}</p><p>{escaped(text)}</p>'
    if fix:
        yield f'<p class="fix">{escaped(fix)}</p>'
    yield f"{more}</li>"


def linked(text: str) -> str:
    """The text, with links for codes."""
    return _CODE.sub(lambda code: f'<a href="#{code[0].lower()}">{code[0]}</a>', escaped(text))


def table(name: str, found: Table, about: Sequence[str] = ()) -> Iterator[str]:
    """A table. `about`: attributes of each row."""
    yield f'<h2 id="{name}">{escaped(found.caption)}</h2>'
    if not found.rows:
        yield "<p>None.</p>"
        return
    if len(found.rows) > _FEW_ROWS:
        yield (
            f'<label hidden data-table="{name}-table">Show rows that contain <input type="search" autocomplete="off">'
            " <output></output></label>"
        )
    yield f'<div class="scroll" role="region" aria-labelledby="{name}" tabindex="0"><table id="{name}-table">'
    yield f"<caption>{counted(len(found.rows), 'row')}</caption>"
    kinds = [' class="number"' if at in found.numbers else "" for at in range(len(found.head))]
    heads = zip(kinds, found.head, strict=True)
    head = "".join(f'<th scope="col"{kind}>{escaped(each)}</th>' for kind, each in heads)
    yield f"<thead><tr>{head}</tr></thead><tbody>"
    for row, attributes in zip(found.rows, about or itertools.repeat("", len(found.rows)), strict=True):
        cells = (
            f'<td{kind} data-column="{escaped(name)}">{(linked if name in _WITH_CODES else escaped)(cell)}</td>'
            for name, kind, cell in zip(found.head, kinds, row, strict=True)
        )
        yield f"<tr{attributes}>{''.join(cells)}</tr>"
    yield "</tbody></table></div>"


def escaped(text: str) -> str:
    """Text for an element or an attribute. Characters that could reorder other text are shown as spaces."""
    return html.escape("".join(letter if letter.isprintable() else " " for letter in text))


def asset(name: str, package: str) -> str:
    """A file of a package."""
    return files(package).joinpath(name).read_text(encoding="utf-8").strip()


def embedded(data: bytes) -> str:
    """JSON that the page's script reads from the element `data`."""
    # `<` would end the script element, or begin a comment in it.
    content = data.decode().replace("<", "\\u003c")
    return f'<script type="application/json" id="data">{content}</script>'


def source_of(content: str) -> str:
    """The source expression of an inline element (CSP Level 3)."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
