"""The manifests that somebody names on a command line: files, directories, standard input."""

import errno
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NoReturn, TextIO, TypeAlias

from webhook.offline.convert_files import Source
from webhook.offline.manifests import ManifestError, read

Reader: TypeAlias = Callable[[], bytes]

_SUFFIXES: Final = (".yaml", ".yml", ".json")
_STDIN: Final = "-"


def read_sources(filenames: Iterable[str], say: Callable[[str], None]) -> tuple[list[Source], bool]:
    """Read everything that is named, each file once.

    Args:
        filenames: files, directories with all that is below them, and `-` for standard input.
        say: takes a sentence about everything that cannot be read, with file, line and column.

    Returns:
        What could be read, and whether that was all.
    """
    sources = []
    complete = True
    for name, content in _inputs(filenames):
        try:
            mark, documents = read(content())
        except ManifestError as error:
            say(f"{name}:{error.line}:{error.column}: {error.problem}.")
            complete = False
        except OSError as error:
            say(f"{name}: {error.strerror}.")
            complete = False
        else:
            sources.append(Source(name, mark, documents))
    return sources, complete


def _inputs(filenames: Iterable[str]) -> Iterator[tuple[str, Reader]]:
    """Every file once, with the way to read it."""
    seen = set()
    for filename in filenames:
        if filename == _STDIN:
            found: Iterable[tuple[str, Reader]] = [("<stdin>", _read_stdin)]
        elif filename and Path(filename).is_dir():
            found = _directory(filename)
        else:
            found = [(filename, functools.partial(_read_file, filename))]
        for name, content in found:
            identity = name if filename == _STDIN else os.path.realpath(name)
            if identity not in seen:
                seen.add(identity)
                yield name, content


def _directory(top: str) -> Iterator[tuple[str, Reader]]:
    """The manifests below a directory, sorted; what is hidden is left out."""
    faults: list[OSError] = []
    names = []
    for directory, directories, files in os.walk(top, onerror=faults.append):
        directories[:] = [name for name in directories if not name.startswith(".")]
        visible = (name for name in files if name.endswith(_SUFFIXES) and not name.startswith("."))
        names += [str(Path(directory, name)) for name in visible]
    if not names and not faults:
        faults.append(OSError(errno.ENOENT, f"No file {', '.join(f'*{suffix}' for suffix in _SUFFIXES)} is in it", top))
    for name in sorted(names):
        yield name, functools.partial(_read_file, name)
    for fault in faults:
        yield str(fault.filename), functools.partial(_fail, fault)


def _read_file(name: str) -> bytes:
    return Path(name).read_bytes() if name else _fail(OSError(errno.ENOENT, "A file name must not be empty"))


def _read_stdin() -> bytes:
    # None where the process was started without one, whatever its type says.
    stdin: TextIO | None = sys.stdin
    if stdin is None:
        raise OSError(errno.EBADF, "Standard input is closed")
    return stdin.buffer.read()


def _fail(error: OSError) -> NoReturn:
    raise error
