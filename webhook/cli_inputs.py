"""What the commands on manifests have in common: the files to read, and the settings that decide about pods."""

import os
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from webhook import settings

if TYPE_CHECKING:
    from webhook.convert_files import Source
    from webhook.convert_pods import ConversionOptions

REFUSED: Final = 1
UNREADABLE: Final = 2
_SUFFIXES: Final = (".yaml", ".yml", ".json")
_STDIN: Final = "-"


def filename_option(verb: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """`-f`: which manifests to `verb`."""
    return click.option(
        "-f",
        "--filename",
        "filenames",
        multiple=True,
        required=True,
        metavar="FILE|DIR|-",
        help=f"What to {verb}: a file, a directory with all below it (*.yaml, *.yml, *.json), or - for standard input;"
        " may be repeated.",
    )


def setting_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Settings of the webhook as options. All values arrive as text: `settings` judges them."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        for setting in reversed(_declarations(names)):
            flags = f"{setting.flag}/--no-{setting.flag[2:]}" if setting.switch else setting.flag
            default = f"default: {setting.default}" if setting.default else ""
            notes = "; ".join(filter(None, (setting.variable, default)))
            attributes: dict[str, Any] = {"help": f"{setting.description} [{notes}]", "default": None}
            if not setting.switch:
                attributes |= {"metavar": setting.metavar, "multiple": setting.repeated, "type": str}
            command = click.option(flags, setting.name, **attributes)(command)
        return command

    return add


def _declarations(names: Collection[str]) -> list[settings.Declaration]:
    return [setting for setting in settings.declarations() if setting.name in names]


def conversion_options(flags: dict[str, Any]) -> "ConversionOptions":
    """What flags of `setting_options`, the environment and the config file say.

    Raises:
        click.UsageError: a setting has a value it cannot have.
    """
    variables = {setting.variable for setting in _declarations(flags)}
    environment = {name: value for name, value in os.environ.items() if name in variables}
    try:
        return settings.load(flags, environment).conversion()
    except settings.SettingsError as error:
        raise click.UsageError(str(error)) from error


def read_sources(filenames: tuple[str, ...], say: Callable[[str], None]) -> tuple[list["Source"], bool]:
    """Read everything once.

    Args:
        filenames: files, directories, and `-`.
        say: takes a sentence for everything that cannot be read.

    Returns:
        What could be read, and whether that was all.
    """
    from webhook.convert_files import Source
    from webhook.manifests import UnreadableError, read

    sources = []
    complete = True
    for name, content in _inputs(filenames):
        shown = click.format_filename(name)
        try:
            mark, documents = read(content())
        except UnreadableError as error:
            place = f":{error.line}:{error.column}" if error.line else ""
            say(f"{shown}{place}: {error.problem}.")
            complete = False
        except OSError as error:
            say(f"{shown}: cannot be read: {error.strerror}.")
            complete = False
        else:
            sources.append(Source(shown, mark, documents))
    return sources, complete


def _inputs(filenames: tuple[str, ...]) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Every file once, with the way to read it."""
    seen = set()
    for filename in filenames:
        for name in [filename] if filename == _STDIN else _files(Path(filename)):
            identity = name if name == _STDIN else os.path.realpath(name)
            if identity in seen:
                continue
            seen.add(identity)
            if name == _STDIN:
                yield "<stdin>", sys.stdin.buffer.read
            else:
                yield str(name), Path(name).read_bytes


def _files(path: Path) -> list[str]:
    """The file, or the manifests below a directory, sorted; hidden files and directories are left out."""
    if not path.is_dir():
        return [str(path)]
    found = []
    for directory, directories, files in os.walk(path):
        directories[:] = [name for name in directories if not name.startswith(".")]
        visible = [name for name in files if name.endswith(_SUFFIXES) and not name.startswith(".")]
        found += [str(Path(directory, name)) for name in visible]
    return sorted(found)
