"""Reads a folder of policy files, which may be a mounted ConfigMap, and notices changes of it."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from policies.schema.documents import PolicyProblem
from runtime.files import TooLargeError, read_regular

_SUFFIXES: Final = (".yaml", ".yml", ".json")
_LARGEST_FILE: Final = 1 << 20
LARGEST_FOLDER: Final = 16 << 20
_MOST_FILES: Final = 1000
_MOST_ENTRIES: Final = 10_000
_CONFIG_MAP_DATA: Final = "..data"

Fingerprint = tuple[tuple[str, int, int, int], ...]


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
            over = len(self.found) + len(wanted) > _MOST_FILES or seen > _MOST_ENTRIES
            if over or not all(self.take(Path(directory, name)) for name in wanted):
                message = (
                    f"a folder of policies has at most {_MOST_FILES} policy files of {LARGEST_FOLDER} bytes together,"
                    f" and {_MOST_ENTRIES} entries; move other files out of this folder."
                )
                self.problems.append(PolicyProblem(_shown(self._folder), 0, message))
                self.incomplete = True
                return

    def take(self, path: Path) -> bool:
        """Read one file; False if the folder is too large."""
        if self._size > LARGEST_FOLDER:
            return False
        shown = _shown(self._folder / path.relative_to(self._root))
        try:
            content = read_regular(path, _LARGEST_FILE)
        except TooLargeError:
            self.problems.append(PolicyProblem(shown, 1, f"the file is larger than {_LARGEST_FILE} bytes; split it."))
        except OSError as error:
            self.problems.append(PolicyProblem(shown, 0, f"this cannot be read: {error.strerror}."))
        else:
            self._size += len(content)
            self.found[shown] = content
        return self._size <= LARGEST_FOLDER

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

    Opens no file. Stops after `_MOST_ENTRIES` entries; `read_folder` rejects such a folder.
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
        if len(found) > _MOST_ENTRIES:
            break
    return ((generation, 0, 0, 0), *sorted(found))
