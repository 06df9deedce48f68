"""Reads files, such as manifests, certificates and policies, without blocking and within a limit.

A FIFO blocks its reader, a device file may have no end, and a file may be larger than memory. So only regular files are
read, up to a limit. All errors are `OSError`s with `strerror` and `filename`.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

LARGEST: Final = 1 << 20
"""Bytes: the maximum of a Secret and of a ConfigMap (kubernetes/api core/v1: MaxSecretSize)."""


class NotRegularError(OSError):
    """The path is a FIFO, socket or device."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EINVAL, "it is not a regular file", str(path))


class OutsideError(OSError):
    """The path is a link out of the folder in which it was found."""

    def __init__(self, path: Path, folder: Path) -> None:
        super().__init__(errno.EXDEV, f"it is a link out of the folder {folder}", str(path))


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
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise TooLargeError(path, limit)
        # One byte above the limit: the file may have grown, and files in /proc have size 0.
        content = file.read(limit + 1)
        if len(content) > limit:
            raise TooLargeError(path, limit)
        return content


def open_regular(path: Path, *, within: Path | None = None, pipes: bool = False) -> BinaryIO:
    """Open a regular file, or a link to one, for reading.

    Args:
        within: a folder that must have the file, after all links.
        pipes: whether it may be a FIFO, too, as shells make for `<(command)`.

    Raises:
        NotRegularError: it is a FIFO, socket or device.
        OutsideError: it is not in `within`.
        IsADirectoryError: it is a directory.
        OSError: it does not exist or cannot be read.
    """
    if within is not None and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(within)):
        raise OutsideError(path, within)
    status = path.stat()
    if pipes and stat.S_ISFIFO(status.st_mode):
        return path.open("rb")
    # Checked before opening, because opening a device may have effects, and again after it, because the name may point
    # to another file by then.
    _check_kind(path, status)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _check_kind(path, os.fstat(descriptor))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _check_kind(path: Path, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise NotRegularError(path)
