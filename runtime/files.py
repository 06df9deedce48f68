"""Reading files that somebody else puts there: certificates, CAs, policies, settings.

A mounted directory may hold anything. A FIFO blocks its reader until somebody writes, a device file may never end, and
a file may be larger than memory. So a file is opened without waiting, has to be a regular file, and is read up to a
limit.

Exceptions: `OSError` > `NotRegularError`, `TooLargeError`. Both have `strerror` and `filename`, like the system's own.
"""

import errno
import os
import stat
from pathlib import Path
from typing import Final

LARGEST: Final = 1 << 20
"""Bytes. No Secret and no ConfigMap is larger (kubernetes/api core/v1: MaxSecretSize)."""

_CHUNK: Final = 1 << 16


class NotRegularError(OSError):
    """The path is a directory, FIFO, socket or device."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EINVAL, "it is not a regular file", str(path))


class TooLargeError(OSError):
    """The file is larger than its reader allows."""

    def __init__(self, path: Path, limit: int) -> None:
        super().__init__(errno.EFBIG, f"it is larger than {limit} bytes", str(path))


def read_regular(path: Path, limit: int = LARGEST) -> bytes:
    """The content of a regular file, links followed; never waits for a writer.

    Args:
        path: of the file.
        limit: bytes that it may have.

    Raises:
        NotRegularError: it is a directory, FIFO, socket or device.
        TooLargeError: it is larger than `limit`.
        OSError: it is not there, or cannot be read.
    """
    # Looked at before it is opened, because opening a device may have effects; and again afterwards, because the name
    # may lead somewhere else by then.
    if not stat.S_ISREG(path.stat().st_mode):
        raise NotRegularError(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise NotRegularError(path)
        if status.st_size > limit:
            raise TooLargeError(path, limit)
        content = bytearray()
        # One byte more than allowed: the file may have grown, and files of /proc say that they have no size.
        while chunk := os.read(descriptor, min(_CHUNK, limit + 1 - len(content))):
            content += chunk
            if len(content) > limit:
                raise TooLargeError(path, limit)
        return bytes(content)
    finally:
        os.close(descriptor)
