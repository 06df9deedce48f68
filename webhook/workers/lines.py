"""Log lines of several processes on one pipe: whole, one after the other."""

import io
import os
from typing import Final

PIPE_BUF: Final = 4096
"""Linux writes up to so many bytes to a pipe at once; of more, other processes' writes may come in between."""


class WholeLines(io.FileIO):
    """Writes to a file descriptor that siblings write to as well. Takes text that ends with a line."""

    def __init__(self, descriptor: int) -> None:
        """Write to `descriptor`, which stays open."""
        super().__init__(descriptor, "wb", closefd=False)

    def write(self, data: bytes | bytearray | memoryview) -> int:  # type: ignore[override]  # typeshed: any buffer
        """Write all of it, as many lines at once as a pipe takes in one piece.

        Raises:
            OSError: it cannot be written; part of it may have been.
        """
        view = bytes(data)
        start = 0
        while start < len(view):
            end = len(view)
            if end - start > PIPE_BUF:
                end = view.rfind(b"\n", start, start + PIPE_BUF) + 1 or view.find(b"\n", start) + 1 or end
            start += os.write(self.fileno(), view[start:end])
        return len(view)
