"""Man pages of all commands, made from their help: `python -m commands.cli.man DIR` (`make man`)."""

import inspect
import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Final

import click

from commands.cli.main import NEURON_DRA, main

_WIDTH: Final = 100_000
"""Help is taken without line breaks: roff makes them."""

_LONG_DEFAULT: Final = re.compile(r"default: \S{60,}")
"""A list that fits on no line."""


def pages(command: click.Command, name: str, release: str) -> dict[str, str]:
    """File name -> page, of a command and all below it.

    Args:
        release: version of the program.
    """
    found: dict[str, str] = {}
    _add(found, click.Context(command, info_name=name, max_content_width=_WIDTH, terminal_width=_WIDTH), release)
    return found


def _add(found: dict[str, str], context: click.Context, release: str) -> None:
    command, name = context.command, context.command_path.replace(" ", "-")
    subcommands: list[click.Context] = []
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            inner = command.get_command(context, each)
            if inner is not None and not inner.hidden:
                subcommands.append(click.Context(inner, info_name=each, parent=context, terminal_width=_WIDTH))
    found[f"{name}.1"] = "".join(f"{line}\n" for line in _page(context, name, subcommands, release))
    for inside in subcommands:
        _add(found, inside, release)


def _page(context: click.Context, name: str, subcommands: list[click.Context], release: str) -> Iterator[str]:
    command = context.command
    yield f'.TH "{_text(name.upper())}" "1" "" "neuron-dra {_text(release)}" "neuron-dra Manual"'
    yield ".SH NAME"
    yield f"{_text(name)} \\- {_text(command.get_short_help_str(_WIDTH))}"
    yield ".SH SYNOPSIS"
    yield f".B {_text(context.command_path)}"
    yield _text(" ".join(command.collect_usage_pieces(context)))
    yield ".SH DESCRIPTION"
    yield from _paragraphs(command.help or "")
    options = [
        record
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option) and (record := parameter.get_help_record(context))
    ]
    if options:
        yield ".SH OPTIONS"
        for flags, text in options:
            yield from (".TP", f"\\fB{_text(flags)}\\fR", _text(text))
    if subcommands:
        yield ".SH COMMANDS"
        for each in subcommands:
            page = each.command_path.replace(" ", "-")
            yield from (".TP", f"\\fB{_text(page)}\\fR(1)", _text(each.command.get_short_help_str(_WIDTH)))
    if context.parent is not None:
        yield ".SH SEE ALSO"
        yield f"\\fB{_text(context.parent.command_path.replace(' ', '-'))}\\fR(1)"


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        lines = paragraph.split("\n")
        if lines[0].strip() == "\b":  # click's mark for lines that stay as they are
            yield from (".PP", ".nf", *map(_text, lines[1:]), ".fi")
        else:
            yield from (".PP", _text(" ".join(lines)))


def _text(text: str) -> str:
    """Text for roff: backslashes and dashes as themselves, no line that begins a request, long defaults with spaces."""
    spaced = _LONG_DEFAULT.sub(lambda found: found[0].replace(",", ", "), text)
    escaped = spaced.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def write(folder: Path) -> None:
    """Write all pages into a folder, which is made if needed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages(main, NEURON_DRA.name, version("neuron-dra")).items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
