"""Reads a folder of policy files, which may be a mounted ConfigMap, and notices changes of it."""

import base64
import binascii
import dataclasses
import datetime as dt
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final, Protocol

from policies.schema.documents import PolicyProblem
from runtime.files import TooLargeError, read_regular

_SUFFIXES: Final = (".yaml", ".yml", ".json")
_CONFIG_MAP_DATA: Final = "..data"

Fingerprint = tuple[tuple[str, int, int, int], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class FolderBounds:
    """What a folder of policies may have."""

    file: int = 1 << 20  # bytes
    folder: int = 16 << 20  # bytes of all files
    files: int = 1000
    entries: int = 10_000  # with directories and files that are no policies
    kept: int = 720 * 1024  # bytes of a kept set, compressed: a ConfigMap has at most 1 MiB, in base64


BOUNDS: Final = FolderBounds()


class PolicyError(Exception):
    """The files cannot be loaded.

    Attributes:
        problems: every problem, in the order of files and lines.
    """

    def __init__(self, problems: Iterable[PolicyProblem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: (problem.file, problem.line)))
        super().__init__("\n".join(map(str, self.problems)))


def read_folder(folder: Path) -> dict[str, bytes]:
    """The content of the policy files below a folder, by path as the user knows it; without hidden files.

    The `..data` link of a mounted ConfigMap is resolved once, so that all files are of one generation.

    Raises:
        PolicyError: the folder or a file cannot be read, or a file is too large.
    """
    files, problems = read_files(folder)
    if problems:
        raise PolicyError(problems)
    return files


def read_files(folder: Path) -> tuple[dict[str, bytes], list[PolicyProblem]]:
    """The files that can be read, and the problems of the others; see `read_folder`.

    Raises:
        PolicyError: the folder cannot be read, or is too large.
    """
    generation = folder / _CONFIG_MAP_DATA
    root = Path(os.path.realpath(generation)) if generation.is_dir() else folder
    if not root.is_dir():
        raise PolicyError(
            [PolicyProblem(str(folder), 0, "this is not a directory. Give the folder of the policy files.")]
        )
    reader = _FolderReader(folder, root)
    reader.read()
    if reader.incomplete:
        raise PolicyError(reader.problems)
    return reader.found, reader.problems


def read_file(path: Path) -> dict[str, bytes]:
    """One policy file, in the form of `read_folder`.

    Raises:
        PolicyError: it cannot be read, or is too large.
    """
    reader = _FolderReader(path.parent, path.parent)
    reader.take(path)
    if reader.problems:
        raise PolicyError(reader.problems)
    return reader.found


class _FolderReader:
    """Reads the policy files of one folder, up to limits. Regular files only: reading others could block."""

    def __init__(self, folder: Path, root: Path) -> None:
        self._folder = folder
        self._root = root
        self._size = 0
        self.found: dict[str, bytes] = {}
        self.problems: list[PolicyProblem] = []
        self.incomplete = False
        """Whether there may be files that were not seen."""

    def read(self) -> None:
        """Read all files, or as many as the limits allow."""
        seen = 0
        for directory, directories, names in os.walk(self._root, onerror=self._unreadable):
            directories[:] = sorted(name for name in directories if not name.startswith("."))
            seen += len(directories) + len(names)
            wanted = sorted(name for name in names if not name.startswith(".") and name.endswith(_SUFFIXES))
            over = len(self.found) + len(wanted) > BOUNDS.files or seen > BOUNDS.entries
            if over or not all(self.take(Path(directory, name)) for name in wanted):
                message = (
                    f"a folder of policies has at most {BOUNDS.files} policy files of {BOUNDS.folder} bytes together,"
                    f" and {BOUNDS.entries} entries; move other files out of this folder."
                )
                self.problems.append(PolicyProblem(_shown(self._folder), 0, message))
                self.incomplete = True
                return

    def take(self, path: Path) -> bool:
        """Read one file; False if the folder is too large."""
        if self._size > BOUNDS.folder:
            return False
        shown = _shown(self._folder / path.relative_to(self._root))
        try:
            content = read_regular(path, BOUNDS.file)
        except TooLargeError:
            self.problems.append(PolicyProblem(shown, 1, f"the file is larger than {BOUNDS.file} bytes; split it."))
        except OSError as error:
            self.problems.append(PolicyProblem(shown, 0, f"this cannot be read: {error.strerror}."))
        else:
            self._size += len(content)
            self.found[shown] = content
        return self._size <= BOUNDS.folder

    def _unreadable(self, error: OSError) -> None:
        self.incomplete = True
        self.problems.append(PolicyProblem(_shown(error.filename), 0, f"this cannot be read: {error.strerror}."))


def _shown(path: object) -> str:
    """A path as valid text: file names need not be UTF-8."""
    return os.fsencode(str(path)).decode("utf-8", "backslashreplace")


def digest(files: Mapping[str, bytes]) -> str:
    """SHA-256 of all names and contents, as hex.

    The directory that all files have in common does not count: replicas may have mounted it at other places.
    """
    total = hashlib.sha256()
    common = os.path.commonpath([os.path.dirname(name) for name in files]) if files else ""  # noqa: PTH120 - text
    for path, content in sorted(files.items()):
        name = path[len(common) :].lstrip("/")
        total.update(f"{len(name)}:{name}:{len(content)}:".encode(errors="surrogateescape"))
        total.update(content)
    return total.hexdigest()


def fingerprint(folder: Path) -> Fingerprint:
    """Names, times, sizes and inodes of the files, with links followed as a mounted ConfigMap needs.

    Opens no file. Stops after `BOUNDS.entries` entries; `read_folder` rejects such a folder.
    """
    found = []
    generation = os.path.realpath(folder / _CONFIG_MAP_DATA)
    for directory, directories, names in os.walk(folder):
        directories[:] = [name for name in directories if not name.startswith(".")]
        for name in names:
            path = os.path.join(directory, name)  # noqa: PTH118 - this runs every second
            try:
                status = os.stat(path)  # noqa: PTH116
            except OSError:
                found.append((path, 0, 0, 0))
            else:
                found.append((path, status.st_mtime_ns, status.st_size, status.st_ino))
        if len(found) > BOUNDS.entries:
            break
    return ((generation, 0, 0, 0), *sorted(found))


_FILE: Final = "policies.json.z"


class KeepError(Exception):
    """The set cannot be kept, or what was kept cannot be read. The message is one clause."""


@dataclasses.dataclass(frozen=True, slots=True)
class KeptSet:
    """Files that were in force.

    Attributes:
        files: content by path, relative to the folder of the policies.
        since: when they were loaded.
    """

    files: Mapping[str, bytes]
    since: dt.datetime

    @property
    def digest(self) -> str:
        return digest(self.files)

    def within(self, folder: Path) -> dict[str, bytes]:
        """The files by the name that they have in a folder."""
        return {f"{folder}/{name}": content for name, content in self.files.items()}


class PolicyKeeper(Protocol):
    """Where a set is kept."""

    async def read(self) -> bytes | None:
        """What was kept last; None if nothing was.

        Raises:
            KeepError: it cannot be read.
        """

    async def write(self, content: bytes, known: str) -> None:
        """Replace what was kept, unless it has the digest `known` already.

        Raises:
            KeepError: it cannot be written.
        """


def kept_set(files: Mapping[str, bytes], folder: Path, since: dt.datetime) -> KeptSet:
    """The files of a folder, with relative names."""
    return KeptSet({name.removeprefix(f"{folder}/"): content for name, content in files.items()}, since)


def pack(kept: KeptSet) -> bytes:
    """A set as bytes.

    Raises:
        KeepError: it is too large.
    """
    texts = {name: base64.b64encode(content).decode() for name, content in kept.files.items()}
    data = {"since": kept.since.isoformat(), "digest": kept.digest, "files": texts}
    content = zlib.compress(json.dumps(data, sort_keys=True).encode(errors="surrogateescape"), 9)
    if len(content) > BOUNDS.kept:
        raise KeepError(f"the policies have {len(content)} bytes compressed, and at most {BOUNDS.kept} are kept")
    return content


def unpack(content: bytes) -> KeptSet:
    """A set that was kept.

    Raises:
        KeepError: it is damaged, or not what `pack` makes.
    """
    try:
        stream = zlib.decompressobj()
        text = stream.decompress(content, 2 * BOUNDS.folder)  # Base64 takes a third more.
        if stream.unconsumed_tail or not stream.eof:
            raise KeepError("it is too large or cut off")
        data: Any = json.loads(text)
        files = {str(name): base64.b64decode(value, validate=True) for name, value in data["files"].items()}
        kept = KeptSet(files, dt.datetime.fromisoformat(data["since"]))
        wanted = data["digest"]
    except (zlib.error, ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error) as error:
        raise KeepError(f"it is damaged ({type(error).__name__})") from error
    if kept.since.tzinfo is None or kept.digest != wanted:
        raise KeepError("it is damaged (its digest differs)")
    for name in files:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise KeepError(f"it has a file outside of the folder: {name[:64]!r}")
    return kept


class FolderKeeper:
    """Keeps a set in a file of a directory."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE

    async def read(self) -> bytes | None:
        """See `PolicyKeeper`."""
        try:
            return read_regular(self._path, BOUNDS.kept)
        except FileNotFoundError:
            return None
        except (OSError, TooLargeError) as error:
            raise KeepError(f"{self._path} cannot be read: {error}") from error

    async def write(self, content: bytes, known: str) -> None:
        """See `PolicyKeeper`. The file is replaced as a whole."""
        try:
            if is_kept(await self.read(), known):
                return
            self._path.parent.mkdir(parents=True, exist_ok=True)
            made = self._path.with_name(f".{_FILE}.{os.getpid()}")
            made.write_bytes(content)
            made.replace(self._path)
        except OSError as error:
            raise KeepError(f"{self._path} cannot be written: {error.strerror}") from error


def is_kept(content: bytes | None, known: str) -> bool:
    """Whether kept bytes are a set with a digest."""
    try:
        return content is not None and unpack(content).digest == known
    except KeepError:
        return False
