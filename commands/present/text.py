"""Text for a terminal: pages of sentences, lists and tables, and findings."""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from commands.present import NOTHING, ListEntry, Located, Table
from neuron.findings import Severity, short
from runtime.console import BOLD, CYAN, RED, YELLOW, Style, printable, wrapped

INDENT: Final = "  "
_GAP: Final = 2
_LONGEST_CELL: Final = 32
"""Characters of a cell in a table that is wider than the output; longer ones are cut, and repeated below the row."""
MOST_ROWS: Final = 40
"""Rows of a table. A page or JSON has all of them."""


def page(lines: Iterable[str], style: Style, colours: Mapping[str, Sequence[int]]) -> str:
    """Printable text; line breaks of wrapping are kept. `colours`: of whole lines, such as titles."""
    return "".join(
        style.painted("\n".join(printable(part, style.encoding) for part in line.split("\n")), *colours.get(line, ()))
        + "\n"
        for line in lines
    )


def titled(
    title: str, found: Sequence[ListEntry], width: int | None, most: int | None = None, rest: str = ""
) -> Iterator[str]:
    """A titled list; nothing if it is empty. `most`: entries that are shown; `rest` says where the others are."""
    if not found:
        return
    yield from ("", title)
    for each in found[:most]:
        yield INDENT + wrapped(f"{each.tag}: {each.about}" if each.tag else each.about, len(INDENT) * 2, width)
        for line in filter(None, (each.text, f"-> {each.fix}" if each.fix else "")):
            yield INDENT * 2 + wrapped(" ".join(line.split()), len(INDENT) * 2, width)
    if most is not None and len(found) > most:
        yield f"{INDENT}and {len(found) - most} more: {rest}"


# --- tables -----------------------------------------------------------------------------------------------------------


def table(found: Table, width: int | None) -> Iterator[str]:
    """A table. Columns at its end that do not fit are below each row, without those that have nothing to say."""
    heads = [head.upper() for head in found.head]
    rows = [tuple(map(_cell, row)) for row in found.rows[:MOST_ROWS]]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    kept = len(heads)
    if width is not None and _total(widths) > width:
        widths = [min(each, _LONGEST_CELL) for each in widths]
        while kept > 1 and _total(widths[:kept]) > width:
            kept -= 1
    yield found.caption
    yield _table_line(heads, widths[:kept], found.numbers)
    for row in rows:
        yield _table_line(row, widths[:kept], found.numbers)
        below = [at for at, cell in enumerate(row) if cell != NOTHING and (at >= kept or len(cell) > widths[at])]
        if below:
            told = "; ".join(f"{found.head[at]}: {row[at]}" for at in below)
            yield INDENT * 3 + wrapped(told, len(INDENT) * 3, width)
    if len(found.rows) > MOST_ROWS:
        yield f"{INDENT}and {len(found.rows) - MOST_ROWS:,} more: -o html and -o json have all"


def _total(widths: Sequence[int]) -> int:
    return len(INDENT) + sum(widths) + _GAP * (len(widths) - 1)


def _table_line(row: Sequence[str], widths: Sequence[int], numbers: Collection[int]) -> str:
    cells = (short(cell, width) for cell, width in zip(row, widths, strict=False))
    placed = (
        cell.rjust(width) if at in numbers else cell.ljust(width)
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return INDENT + (" " * _GAP).join(placed).rstrip()


def _cell(text: str) -> str:
    """One line: a policy's message may have several."""
    return " ".join(text.split())


# --- findings ---------------------------------------------------------------------------------------------------------


MOST_PLACES: Final = 20
"""Places of one fact that text shows."""
_COLOURS: Final = {Severity.ERROR: RED, Severity.WARNING: YELLOW, Severity.NOTE: CYAN}
_BELOW: Final = f"\n{INDENT * 2}"


@dataclasses.dataclass(slots=True)
class _Places:
    """The places of one fact: the first ones, the number of all, and the last one as text."""

    places: list[Located]
    count: int = 0
    last: str = ""


def findings(found: Iterable[Located], style: Style) -> Iterator[str]:
    """All findings, in the order in which each fact is found first. Memory grows with the number of facts."""
    groups: dict[tuple[Severity, str, str, str], _Places] = {}
    for each in found:
        finding = each.finding
        fact = finding.severity, finding.code, finding.message, finding.fix
        group = groups.setdefault(fact, _Places([]))
        place = f"{_file(each)}: {_subject(each)}"
        if place == group.last:
            continue  # Several pods of one object have the same fault in a part that they share.
        group.last = place
        group.count += 1
        if len(group.places) < MOST_PLACES:
            group.places.append(each)
    for group in groups.values():
        yield "".join(f"{line}\n" for line in _lines(group, style))


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
    yield INDENT * 2 + style.lines(finding.message, len(INDENT) * 2)
    if finding.fix:
        yield INDENT * 2 + style.lines(f"Fix: {finding.fix}", len(INDENT) * 2)
    if group.count == 1:
        return
    for each in group.places:
        file, subject = f"{INDENT * 2}{_file(each)}:", _subject(each)
        fits = style.width is None or len(f"{file} {subject}") <= style.width
        yield f"{file}{' ' if fits else f'{_BELOW}  '}{subject}"
    if group.count > len(group.places):
        yield f"{INDENT * 2}and {group.count - len(group.places):,} more: -o json lists all"


def _file(each: Located) -> str:
    return f"{each.source}:{each.line}"


def _subject(each: Located) -> str:
    return f"{each.subject}: {each.finding.path}" if each.finding.path else each.subject
