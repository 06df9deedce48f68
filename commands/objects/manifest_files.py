"""Reads the manifests named on a command line: files, directories, standard input.

Files are read twice, so that they need not fit into memory: first to find errors and what objects mean for each other,
then to work on one document at a time. What can be read only once (a pipe) is copied to a temporary file.
"""

import dataclasses
import errno
import functools
import io
import os
import shlex
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, NoReturn, TextIO, TypeAlias, cast

from cluster.from_files import MEANT_FOR_OTHERS
from commands.objects.documents import Document, Documents, ManifestError, TextBudget
from commands.objects.long_lists import Reading
from commands.objects.manifests import Manifest, manifests
from commands.objects.shapes import Shapes
from neuron.api.claim_specs import GROUP
from runtime.files import open_regular

Opener: TypeAlias = Callable[[], BinaryIO]

_SUFFIXES: Final = (".yaml", ".yml", ".json")
KUSTOMIZATIONS: Final = ("kustomization.yaml", "kustomization.yml", "Kustomization")
"""Names of the file that tells kustomize how to build a directory."""
_BUILT: Final = "it is built by kustomize: render it first. Use neuron-dra {1} -k {0}"
_CHART: Final = "Chart.yaml"
_RENDERED: Final = "it is a Helm chart: render it first. Use helm template {0} | neuron-dra {1} -f -"
_STDIN: Final = "-"
STDIN: Final = "<stdin>"
"""Name of standard input in messages."""
_KEPT: Final = 1024 * 1024
"""Characters of documents that are parsed only once."""
_IN_MEMORY: Final = 8 * 1024 * 1024
"""Bytes of a pipe that are kept in memory; more go to a temporary file."""


@dataclasses.dataclass(frozen=True, slots=True)
class GivenManifests:
    """Manifests that are in memory. `name` stands for the file's name in messages."""

    name: str
    content: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class ReadProblem:
    """A file, or a document of it, that cannot be read.

    Attributes:
        line: of the error, counted from 1; 0 without a place.
        column: of the error, counted from 1; 0 without a place.
        problem: the error, as a clause.
    """

    source: str
    line: int
    column: int
    problem: str

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}:{self.column}" if self.line else self.source
        return f"{place}: {self.problem}."


@dataclasses.dataclass(frozen=True, slots=True)
class ManifestSource:
    """A file: its name and its documents, which are read again in each iteration."""

    name: str
    documents: Documents


@dataclasses.dataclass(frozen=True, slots=True)
class Inputs:
    """What was found.

    Attributes:
        sources: the files that can be read.
        faults: the files and documents that cannot be read.
    """

    sources: list[ManifestSource]
    faults: list[ReadProblem]


def read_sources(
    filenames: Iterable[str | GivenManifests],
    namespace: str,
    take: Callable[[Manifest], None] = lambda _: None,
    step: Callable[[], None] = lambda: None,
    command: str = "validate",
) -> Inputs:
    """Read all files, each one once.

    Args:
        filenames: files, directories (read recursively), `-` for standard input, and what another program printed.
        namespace: of objects that set none.
        take: receives each object that may mean something for others, of files without an error.
        step: is called after each document.
        command: that reads them, for messages about folders that another program builds.
    """
    reader = _FileReader(namespace, step)
    for name, opened in inputs(filenames, command):
        for manifest in reader.read(name, opened):
            take(manifest)
    return reader.inputs


class _FileReader:
    """The first reading of all files."""

    def __init__(self, namespace: str, step: Callable[[], None]) -> None:
        self._namespace = namespace
        self._step = step
        self._budget = TextBudget(_KEPT)
        self._shapes = Shapes[None]()
        self.inputs = Inputs([], [])

    def read(self, name: str, opened: Opener) -> list[Manifest]:
        """Read a file; returns its objects that may mean something for others."""
        source = ManifestSource(name, Documents(opened, self._budget))
        try:
            return self._read(source)
        except _PartError:
            source.documents.as_one()
            return self._read(source)

    def _read(self, source: ManifestSource) -> list[Manifest]:
        """Raises _PartError: a part of a long List cannot be read."""
        name = source.name
        found: list[Manifest] = []
        readable = broken = 0
        try:
            for document in source.documents:
                try:
                    found += self._check(document)
                except ManifestError as error:
                    if document.part is not None:
                        raise _PartError from error
                    # The documents after it can be read.
                    source.documents.leave_out(document)
                    self._report(name, error)
                    broken += 1
                else:
                    readable += document.number > 0
                self._step()
        except ManifestError as error:
            self._report(name, error)
            return []
        except OSError as error:
            self.inputs.faults.append(ReadProblem(name, 0, 0, str(error.strerror)))
            return []
        if readable or not broken:
            self.inputs.sources.append(source)
        return found

    def _report(self, name: str, error: ManifestError) -> None:
        self.inputs.faults.append(ReadProblem(name, error.line, error.column, error.problem))

    def _check(self, document: Document) -> list[Manifest]:
        if document.reading is Reading.POD:
            return []
        # The items of a long List have shapes of their own.
        look = None if document.part is not None else document.look
        if look is not None and self._shapes.find(look) is not None:
            return []  # A pod or workload whose text has no error, because that of another one has none.
        found = list(manifests(document, self._namespace))
        if look is not None:
            self._shapes.record(look, document, found, (), None)
        return [each for each in found if means_something(each)]


class _PartError(Exception):
    """A part of a long List cannot be read: the whole List is reported then."""


def means_something(manifest: Manifest) -> bool:
    """Whether an object may mean something for others."""
    return manifest.group == GROUP or (manifest.group, manifest.kind) in MEANT_FOR_OTHERS


def inputs(filenames: Iterable[str | GivenManifests], command: str) -> Iterator[tuple[str, Opener]]:
    """Every file once: its name, and a function that opens it and may raise OSError. `command`: see `read_sources`."""
    seen = set()
    for filename in filenames:
        if isinstance(filename, GivenManifests):
            yield filename.name, functools.partial(io.BytesIO, filename.content)
            continue
        if filename == _STDIN:
            found: Iterable[tuple[str, Opener]] = [(STDIN, _Once(_stdin))]
        elif filename and Path(filename).is_dir():
            found = _directory(filename, command)
        else:
            found = [(filename, _opener(filename))]
        for name, opened in found:
            identity = name if filename == _STDIN else os.path.realpath(name)
            if identity not in seen:
                seen.add(identity)
                yield name, opened


def _directory(top: str, command: str) -> Iterator[tuple[str, Opener]]:
    """The manifests below a directory, sorted, without hidden files and directories.

    A directory that kustomize or Helm builds is an error: some of its files are patches or templates, which are no
    objects, and name prefixes would break the names of generated templates.
    """
    faults: list[OSError] = []
    names = []
    for directory, directories, files in os.walk(top, onerror=faults.append):
        directories[:] = [name for name in directories if not name.startswith(".")]
        built = next((name for name in (*KUSTOMIZATIONS, _CHART) if name in files), None)
        if built is not None:
            advice = _RENDERED if built == _CHART else _BUILT
            problem = advice.format(shlex.quote(directory), command)
            faults.append(OSError(errno.EINVAL, problem, str(Path(directory, built))))
            directories.clear()
            continue
        visible = (name for name in files if name.endswith(_SUFFIXES) and not name.startswith("."))
        names += [str(Path(directory, name)) for name in visible]
    if not names and not faults:
        faults.append(
            OSError(errno.ENOENT, f"It contains no file {', '.join(f'*{suffix}' for suffix in _SUFFIXES)}", top)
        )
    for name in sorted(names):
        yield name, functools.partial(open_regular, Path(name), within=Path(top))
    for fault in faults:
        yield str(fault.filename), functools.partial(_fail, fault)


def _opener(name: str) -> Opener:
    if not name:
        return functools.partial(_fail, OSError(errno.ENOENT, "A file name must not be empty"))

    def opened() -> BinaryIO:
        return open_regular(Path(name), pipes=True)

    return _Once(opened) if Path(name).is_fifo() else opened


def _stdin() -> BinaryIO:
    # None if the process was started with standard input closed; its type does not say so.
    stdin: TextIO | None = sys.stdin
    if stdin is None:
        raise OSError(errno.EBADF, "Standard input is closed")
    return stdin.buffer


class _Once:
    """Opens what can be read only once: its content is copied when it is opened first."""

    def __init__(self, opened: Opener) -> None:
        self._open = opened
        self._copy: BinaryIO | None = None

    def __call__(self) -> BinaryIO:
        """The content, from its beginning. Closing it keeps the copy."""
        if self._copy is None:
            self._copy = self._copied()
        self._copy.seek(0)
        return cast("BinaryIO", _OpenFile(self._copy))

    def _copied(self) -> BinaryIO:
        given = self._open()
        try:
            head = given.read(_IN_MEMORY)
            if len(head) < _IN_MEMORY:
                return io.BytesIO(head)
            copy = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115 - it is closed with this object
            weakref.finalize(self, copy.close)
            copy.write(head)
            shutil.copyfileobj(given, copy)
            return copy
        finally:
            if given is not getattr(sys.stdin, "buffer", None):
                given.close()


class _OpenFile:
    """A file that stays open after a `with` statement."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def __enter__(self) -> BinaryIO:
        """The file itself."""
        return self._file

    def __exit__(self, *_: object) -> None:
        """Nothing: the next reader seeks to the beginning."""


def _fail(error: OSError) -> NoReturn:
    raise error
