"""Markdown (GitHub's dialect) for tickets and wikis."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from commands.present import Table

_SPECIAL: Final = re.compile(r"([\\`*_\[\]<>|~#!&@$]|:(?=//)|(?<=www)\.)")
"""Characters that could begin markup or a link; names in a cluster are chosen by tenants."""
_HEADING: Final = re.compile(r"^#", re.MULTILINE)


def text(words: str) -> str:
    """Text on one line that Markdown shows as it is."""
    line = "".join(letter if letter.isprintable() else " " for letter in words)
    return _SPECIAL.sub(r"\\\1", line)


def bullets(sentences: Iterable[str]) -> Iterator[str]:
    return (f"- {text(each)}" for each in sentences)


def table(found: Table) -> Iterator[str]:
    """The lines of a table, with its caption."""
    yield from ("", f"## {found.caption}", "")
    yield f"| {' | '.join(found.head)} |"
    yield f"| {' | '.join('---:' if at in found.numbers else '---' for at in range(len(found.head)))} |"
    for row in found.rows:
        yield f"| {' | '.join(map(text, row))} |"


def below(page: str) -> str:
    """A page as a part of another: its headings are one level below. No other line of it begins with #."""
    return _HEADING.sub("##", page)
