"""Reads files from mounted directories, such as certificates and policies, without blocking and within a limit.

A FIFO blocks its reader, a device file may have no end, and a file may be larger than memory. So only regular files are
read, up to a limit. All errors are `OSError`s with `strerror` and `filename`.
"""

import errno
import os
import stat
from pathlib import Path
from typing import Final

LARGEST: Final = 1 << 20
"""Bytes: the maximum of a Secret and of a ConfigMap (kubernetes/api core/v1: MaxSecretSize)."""

_CHUNK: Final = 1 << 16


class NotRegularError(OSError):
    """The path is a FIFO, socket or device."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EINVAL, "it is not a regular file", str(path))


class TooLargeError(OSError):
    """The file is larger than the limit."""

    def __init__(self, path: Path, limit: int) -> None:
        super().__init__(errno.EFBIG, f"it is larger than {limit} bytes", str(path))


def read_regular(path: Path, limit: int = LARGEST) -> bytes:
    """The content of a regular file or of a link to one.

    Args:
        limit: maximum size in bytes.

    Raises:
        NotRegularError: it is a FIFO, socket or device.
        IsADirectoryError: it is a directory.
        TooLargeError: it is larger than `limit`.
        OSError: it does not exist or cannot be read.
    """
    # Checked before opening, because opening a device may have effects, and again after it, because the name may point
    # to another file by then.
    _check_kind(path, path.stat())
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        _check_kind(path, status)
        if status.st_size > limit:
            raise TooLargeError(path, limit)
        content = bytearray()
        # Up to one byte above the limit: the file may have grown, and files in /proc have size 0.
        while chunk := os.read(descriptor, min(_CHUNK, limit + 1 - len(content))):
            content += chunk
            if len(content) > limit:
                raise TooLargeError(path, limit)
        return bytes(content)
    finally:
        os.close(descriptor)


def _check_kind(path: Path, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise NotRegularError(path)
