"""Keeps the last good set of policy files outside of the process, where the next start finds it.

A running server keeps its last good set if a file becomes faulty. A start has no such set, and would fail. What is
restored is text of policy files, not trusted: it is parsed, compiled and tested as the files of the folder.
"""

import base64
import binascii
import dataclasses
import datetime as dt
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final, Protocol

from policies.files.folders import LARGEST_FOLDER, digest
from runtime.files import TooLargeError, read_regular

LARGEST_KEPT: Final = 720 * 1024
"""Bytes, compressed. A ConfigMap has at most 1 MiB, in base64."""
_FILE: Final = "policies.json.z"
_LARGEST_TEXT: Final = 2 * LARGEST_FOLDER
"""Bytes of the JSON: base64 takes a third more."""


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
    if len(content) > LARGEST_KEPT:
        raise KeepError(f"the policies have {len(content)} bytes compressed, and at most {LARGEST_KEPT} are kept")
    return content


def unpack(content: bytes) -> KeptSet:
    """A set that was kept.

    Raises:
        KeepError: it is damaged, or not what `pack` makes.
    """
    try:
        stream = zlib.decompressobj()
        text = stream.decompress(content, _LARGEST_TEXT)
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
            return read_regular(self._path, LARGEST_KEPT)
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
