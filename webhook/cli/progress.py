"""A counter on standard error while a command works for long; only on a terminal."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self, TextIO

_EVERY: Final = 0.1
"""Seconds between two updates."""
_DELAY: Final = 0.5
"""Seconds before the first one: short work shows nothing."""
_ERASE: Final = "\r\x1b[K"


class Counter:
    """Writes `assessed 1200 of 10000` over itself, and erases it at the end."""

    def __init__(self, stream: TextIO | None, clock: Callable[[], float] = time.monotonic) -> None:
        """Write to `stream` if it is a terminal. `clock`: monotonic seconds."""
        self._stream = stream if stream is not None and stream.isatty() else None
        self._plain = stream
        self._clock = clock
        self._next = clock() + _DELAY
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._erase()

    def show(self, what: str, count: int, total: int | None = None) -> None:
        """Show how much is done, at most ten times a second."""
        if self._stream is None or self._clock() < self._next:
            return
        self._next = self._clock() + _EVERY
        text = f"{what} {count}" if total is None else f"{what} {count} of {total}"
        self._write(self._stream, f"{_ERASE}{text}")
        self._shown = True

    def say(self, line: str) -> None:
        """Write a line that stays."""
        self._erase()
        if self._plain is not None:
            self._write(self._plain, f"{line}\n")

    def _erase(self) -> None:
        if self._shown and self._stream is not None:
            self._write(self._stream, _ERASE)
            self._shown = False

    def _write(self, stream: TextIO, text: str) -> None:
        try:
            stream.write(text)
            stream.flush()
        except (OSError, ValueError):
            # A counter is not worth the failure of the command.
            self._stream = None
