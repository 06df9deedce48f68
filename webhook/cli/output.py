"""Writes the result of a command to standard output, or ends the command with one line."""

import errno
import os
import sys
from typing import TextIO

import click

from webhook.cli.inputs import UNREADABLE


class OutputError(click.ClickException):
    """The output cannot be written."""

    exit_code = UNREADABLE


def write_output(text: str) -> None:
    """Write bytes, so that the text is UTF-8 and line endings are kept on every platform. A closed pipe is no error.

    Raises:
        OutputError: it cannot be written.
    """
    # None if the process was started with standard output closed; its type does not say so.
    stdout: TextIO | None = sys.stdout
    if stdout is None:
        raise OutputError("Standard output is closed.")
    try:
        stdout.buffer.write(text.encode(errors="backslashreplace"))
        stdout.buffer.flush()
    except OSError as error:
        # The interpreter flushes the buffer at exit, and must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.fileno())
        if error.errno != errno.EPIPE:
            raise OutputError(f"Cannot write to standard output: {error.strerror}.") from error
