"""Standard output and standard error of commands: failures in one line, and a counter for long work."""

import contextlib
import errno
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TextIO

import click

UNWRITABLE: Final = 2
INTERRUPTED: Final = 130
"""128 + SIGINT, as shells report it."""

_UNWRITABLE: Final = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
_INTERVAL: Final = 0.1
_STEPS: Final = 64
"""The clock is read once in so many steps."""


class OutputError(click.ClickException):
    """The output cannot be written."""

    exit_code = UNWRITABLE


def need_stdout() -> TextIO:
    """Standard output.

    Raises:
        OutputError: the process was started with standard output closed.
    """
    # None then; its type does not say so.
    stdout: TextIO | None = sys.stdout
    if stdout is None:
        raise OutputError("Standard output is closed.")
    return stdout


def write(pieces: Iterable[str]) -> None:
    """Write to standard output as UTF-8, so that line ends of inputs are kept on every platform.

    Raises:
        OutputError: it is closed or full. A reader that closed its end, such as `head`, is no error.
    """
    stdout = need_stdout()
    with failing_in_one_line():
        for piece in pieces:
            stdout.buffer.write(piece.encode())
        stdout.buffer.flush()


@contextlib.contextmanager
def failing_in_one_line() -> Iterator[None]:
    """Turn an error of standard output into an `OutputError`."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno not in _UNWRITABLE:
            raise
        silence()
        if error.errno != errno.EPIPE:
            raise OutputError(f"Cannot write to standard output: {error.strerror}.") from error


def silence() -> None:
    """Discard what is buffered: the interpreter flushes standard output at exit, and must not fail again."""
    with contextlib.suppress(OSError, AttributeError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Counter:
    """Shows on a terminal how far a command is: one line on standard error, which other lines replace."""

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Count `what`, such as `documents`."""
        stderr: TextIO | None = sys.stderr
        self._what = what
        self._clock = clock
        self._shown = stderr is not None and stderr.isatty()
        self._count = 0
        self._next = clock() + 5 * _INTERVAL
        self._drawn = False
        self._phase = "read"

    def phase(self, done: str) -> None:
        """Begin to count anew. `done`: what is done with each, such as `converted`."""
        self._count, self._phase = 0, done

    def step(self) -> None:
        """Count one."""
        self._count += 1
        if not self._shown or self._count % _STEPS or self._clock() < self._next:
            return
        self._next = self._clock() + _INTERVAL
        self._drawn = True
        click.echo(f"\r\x1b[K{self._count:,} {self._what} {self._phase}", err=True, nl=False)

    def say(self, line: str) -> None:
        """Print a line on standard error in place of the counter."""
        with contextlib.suppress(BrokenPipeError):
            click.echo(f"\r\x1b[K{line}" if self._drawn else line, err=True)
        self._drawn = False

    def clear(self) -> None:
        """Remove the counter."""
        if self._drawn:
            click.echo("\r\x1b[K", err=True, nl=False)
            self._drawn = False
