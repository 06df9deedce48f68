"""The pauses between the attempts of a task that is repeated until it succeeds."""

from collections.abc import Callable
from typing import Final

_MOST_DOUBLINGS: Final = 32


class Backoff:
    """The pause after a failure: doubles with each further failure, up to a bound.

    Attributes:
        failures: since the last success.
    """

    def __init__(self, first: float, last: float, spread: Callable[[float], float] = float) -> None:
        """Times are in seconds.

        Args:
            first: the pause after the first failure.
            last: the longest pause.
            spread: makes a pause of the bound for it, so that many clients do not retry together.
        """
        self.failures = 0
        self._first = first
        self._last = last
        self._spread = spread

    @property
    def pause(self) -> float:
        """The pause after the last failure."""
        doublings = min(max(self.failures - 1, 0), _MOST_DOUBLINGS)
        return self._spread(min(self._first * 2.0**doublings, self._last))

    def failed(self) -> float:
        """Count a failure; returns the pause after it."""
        self.failures += 1
        return self.pause

    def reset(self) -> None:
        """Begin again with the first pause: the task succeeded."""
        self.failures = 0
