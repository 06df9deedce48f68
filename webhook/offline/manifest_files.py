"""Reads the manifests named on a command line: files, directories, standard input."""

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
    """Read all files, each one once.

    Args:
        filenames: files, directories (read recursively), and `-` for standard input.
        say: receives an error with file, line and column for each file that cannot be read.

    Returns:
        The files, and whether all files could be read.
    """
    sources = []
    complete = True
    for name, content in inputs(filenames):
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


def inputs(filenames: Iterable[str]) -> Iterator[tuple[str, Reader]]:
    """Every file once: its name, and a function that reads it and may raise OSError."""
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
    """The manifests below a directory, sorted, without hidden files and directories."""
    faults: list[OSError] = []
    names = []
    for directory, directories, files in os.walk(top, onerror=faults.append):
        directories[:] = [name for name in directories if not name.startswith(".")]
        visible = (name for name in files if name.endswith(_SUFFIXES) and not name.startswith("."))
        names += [str(Path(directory, name)) for name in visible]
    if not names and not faults:
        faults.append(
            OSError(errno.ENOENT, f"It contains no file {', '.join(f'*{suffix}' for suffix in _SUFFIXES)}", top)
        )
    for name in sorted(names):
        yield name, functools.partial(_read_file, name)
    for fault in faults:
        yield str(fault.filename), functools.partial(_fail, fault)


def _read_file(name: str) -> bytes:
    return Path(name).read_bytes() if name else _fail(OSError(errno.ENOENT, "A file name must not be empty"))


def _read_stdin() -> bytes:
    # None if the process was started with standard input closed; its type does not say so.
    stdin: TextIO | None = sys.stdin
    if stdin is None:
        raise OSError(errno.EBADF, "Standard input is closed")
    return stdin.buffer.read()


def _fail(error: OSError) -> NoReturn:
    raise error
