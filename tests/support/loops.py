"""Work that threads repeat while a test does something else."""

import threading
from collections.abc import Callable
from typing import Any, Self


class Loop:
    """Calls each function again and again, in a thread of its own, from the start to the end of a `with` block.

    An exception ends its thread, and pytest reports it. Subclasses call their own methods, and note what happened.

    Attributes:
        ending: set when the block ends; for calls that wait.
    """

    def __init__(self, *turns: Callable[[], Any], pause: float = 0.0) -> None:
        """Wait `pause` seconds before each call."""
        self.ending = threading.Event()
        self._pause = pause
        self._lock = threading.Lock()
        self._done = 0
        self._threads = [
            threading.Thread(target=self._run, args=(each,), name=f"{type(self).__name__}-{number}", daemon=True)
            for number, each in enumerate(turns)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.ending.set()
        for thread in self._threads:
            thread.join()

    @property
    def done(self) -> int:
        """Number of calls that have ended."""
        return self._done

    def _run(self, turn: Callable[[], Any]) -> None:
        while not self.ending.wait(self._pause):
            turn()
            with self._lock:
                self._done += 1
