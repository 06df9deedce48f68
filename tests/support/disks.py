"""A small file system that a test fills."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


class Disk:
    """A small file system, which a file fills."""

    def __init__(self, directory: Path) -> None:
        self._filler = directory / "filler"

    def fill(self) -> None:
        """Leave no space."""
        with self._filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4096)
        assert self._filler.stat().st_size > 0

    def free(self) -> None:
        """Give the space back."""
        self._filler.unlink()


@contextlib.contextmanager
def own_disk(directory: Path) -> Iterator[Disk]:
    """A directory as a file system of its own."""
    size = ("-o", "size=8m")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", *size, "tmpfs", directory], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"a file system of its own needs the right to mount: {done.stderr.strip()}")
    try:
        yield Disk(directory)
    finally:
        subprocess.run(["umount", "--lazy", directory], check=True)
