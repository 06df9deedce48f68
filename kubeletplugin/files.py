"""Durable files and locks for the plugin's state: after a crash a file has its old content or its new one."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_TEMPORARY: Final = ".tmp"


class DiskFiles:
    """The file operations of the driver's state. A crash may happen between any two. All raise OSError."""

    def read(self, path: Path) -> bytes:
        """The content of a file."""
        return path.read_bytes()

    def names(self, directory: Path) -> list[str]:
        """Names in a directory, sorted."""
        return sorted(entry.name for entry in directory.iterdir())

    def write(self, path: Path, data: bytes) -> None:
        """Create or replace a file and sync it. Not atomic."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            view = memoryview(data)
            try:
                while view:
                    view = view[file.write(view) or 0 :]
                os.fsync(descriptor)
            except OSError as error:
                # A write, as on a full disk, names no file.
                error.filename = str(path)
                raise

    def rename(self, source: Path, target: Path) -> None:
        """Replace `target` with `source`, atomically."""
        source.replace(target)

    def remove(self, path: Path) -> None:
        """Remove a file if it exists."""
        path.unlink(missing_ok=True)

    def sync_directory(self, directory: Path) -> None:
        """Sync the names in the directory."""
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def make_directory(self, directory: Path) -> None:
        """Create a directory and its parents if they are missing."""
        directory.mkdir(parents=True, exist_ok=True)

    def identity(self, path: Path) -> tuple[int, ...] | None:
        """A value that changes when the file is replaced; None if there is no file."""
        try:
            status = path.stat()
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def durable_write(files: DiskFiles, path: Path, data: bytes) -> None:
    """Replace a file so that after a crash it has either the old content or the new.

    Writers of a path hold a lock (`locked`), so one temporary name is enough; a file that a crash left is overwritten.
    The name ends neither in `.json` nor in `.yaml`, so that container runtimes do not load it as a CDI spec.

    Raises:
        OSError: the file has its old content.
    """
    temporary = path.with_name(f".{path.name}{_TEMPORARY}")
    try:
        files.write(temporary, data)
        files.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            files.remove(temporary)
        raise
    files.sync_directory(path.parent)


def durable_update(files: DiskFiles, path: Path, data: bytes) -> bool:
    """As `durable_write`, unless the file has this content already; returns whether it was written."""
    if files.identity(path) is not None and files.read(path) == data:
        return False
    files.make_directory(path.parent)
    durable_write(files, path, data)
    return True


def durable_remove(files: DiskFiles, path: Path) -> None:
    """Remove a file and sync its directory. Raises OSError."""
    files.remove(path)
    files.sync_directory(path.parent)


def is_leftover(name: str) -> bool:
    """Whether this is the name of a temporary file, which a crash left."""
    return name.startswith(".") and name.endswith(_TEMPORARY)


@contextlib.contextmanager
def lock_file(path: Path) -> Iterator[int]:
    """The descriptor of a lock file. It is created if it is missing, and not removed. Raises OSError.

    The kernel releases the lock when the descriptor is closed, also at the end of the process.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(path: Path, timeout: float, *, waits: bool = True) -> Iterator[None]:
    """Hold an exclusive lock.

    During an upgrade two instances of the driver run and share all state.

    Args:
        path: the lock file.
        timeout: seconds to wait.
        waits: False: that has been waited already.

    Raises:
        TimeoutError: another process held the lock until the time-out.
        OSError: the lock file cannot be opened.
    """
    with lock_file(path) as descriptor:
        deadline = time.monotonic() + timeout * waits
        while not try_lock(descriptor):
            if time.monotonic() >= deadline:
                raise TimeoutError(f"Another instance of the driver has held {path} for {timeout:g} s.")
            time.sleep(0.01)
        yield


def try_lock(descriptor: int) -> bool:
    """Try to take an exclusive `flock(2)`; returns whether it was free."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
