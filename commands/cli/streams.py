"""Standard output and standard error of commands: failures in one line, and a counter for long work."""

import contextlib
import dataclasses
import datetime as dt
import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

import click

from runtime import console

if TYPE_CHECKING:
    from commands.report.model import Heading
    from runtime.console import Style

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


def output_option(
    *formats: str, told: str = "text: for people; json: for programs."
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """`-o` / `--output`, passed to the command as `output`.

    Args:
        formats: the first one is the default; none: text and JSON.
        told: what each is for.
    """
    choices = formats or ("text", "json")
    kind = click.Choice(choices)
    return click.option("-o", "--output", type=kind, default=choices[0], show_default=True, help=told)


def need_stdout() -> None:
    """Check that there is a standard output.

    Raises:
        OutputError: the process was started with standard output closed.
    """
    if not console.is_open():
        raise OutputError("Standard output is closed.")


def write(*pieces: str) -> None:
    """Write text, JSON or a page to standard output, escaped (`console.write`).

    Raises:
        OutputError: it is closed or full. A reader that closed its end, such as `head`, is no error.
    """
    write_all(pieces)


def write_all(pieces: Iterable[str]) -> None:
    """The same for pieces that are made while they are written."""
    need_stdout()
    with failing_in_one_line():
        console.write(pieces)


def write_exact(pieces: Iterable[str]) -> None:
    """Write manifests or scripts to standard output; line ends of inputs are kept on every platform.

    Raises:
        OutputError: as `write`.
    """
    need_stdout()
    with failing_in_one_line():
        console.write_exact(pieces)


def page_style(columns: int) -> "Style":
    """How text is written, also in a pipe: `| less` shows what the terminal would. `columns`: where none is known."""
    width = console.width() or columns
    return dataclasses.replace(console.style(os.environ), encoding=console.encoding("utf-8"), width=width)


def heading(origin: str) -> "Heading":
    """The heading of a report that is made now. `origin`: files, or the address of the API server."""
    from importlib.metadata import version

    from commands.report.model import Heading

    return Heading(origin, dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), version("neuron-dra"))


def say(line: str) -> None:
    """Write a line to standard error."""
    console.say(line)


@contextlib.contextmanager
def failing_in_one_line() -> Iterator[None]:
    """Turn an error of standard output into an `OutputError`."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno not in _UNWRITABLE:
            raise
        console.silence()
        if error.errno != errno.EPIPE:
            raise OutputError(f"Cannot write to standard output: {error.strerror}.") from error


class Counter:
    """Shows on a terminal how far a command is: one line on standard error, which other lines replace."""

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Count `what`, such as `documents`."""
        self._what = what
        self._clock = clock
        self._line = console.ProgressLine()
        self._count = 0
        self._next = clock() + 5 * _INTERVAL
        self._phase = "read"
        self._listed: dict[object, int] = {}

    def phase(self, done: str) -> None:
        """Begin to count anew. `done`: what is done with each, such as `converted`."""
        self._count, self._phase = 0, done

    def step(self) -> None:
        """Count one."""
        self._count += 1
        if not self._line.shown or self._count % _STEPS or self._clock() < self._next:
            return
        self._next = self._clock() + _INTERVAL
        self._line.draw(f"{self._count:,} {self._what} {self._phase}")

    def listed(self, of: object, count: int) -> None:
        """Count objects that are read page by page. `count`: those of one collection so far."""
        for _ in range(count - self._listed.get(of, 0)):
            self.step()
        self._listed[of] = count

    def say(self, line: str) -> None:
        """Print a line on standard error in place of the counter."""
        self._line.clear()
        say(line)

    def clear(self) -> None:
        """Remove the counter."""
        self._line.clear()
