"""Expressions that could not be evaluated: the full text for users, and the part that may be logged."""

import dataclasses
from typing import Final

from kubecel.errors import CelError

_LONGEST_CAUSE: Final = 300


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """One expression that could not be evaluated.

    Attributes:
        what: which expression failed, e.g. "match condition 'a' failed".
        cause: the engine's message, cut; empty if there is none. It may quote the object ("'hunter2' is not an int").
        position: " (line 1, column 4)" of the expression; empty if not known.
    """

    what: str
    cause: str = ""
    position: str = ""

    @classmethod
    def of(cls, what: str, error: CelError) -> "Failure":
        """The failure that an error of the engine causes."""
        message = error.message
        cause = message if len(message) <= _LONGEST_CAUSE else f"{message[:_LONGEST_CAUSE]}…"
        return cls(what, cause, "" if error.offset is None else f" (line {error.line}, column {error.column})")

    def within(self, owner: str) -> "Failure":
        """The same failure with the name of the policy or exception before it."""
        return dataclasses.replace(self, what=f"{owner}: {self.what}")

    @property
    def place(self) -> str:
        """Which expression failed, and where in it; for logs.

        The cause is left out: it may quote the object, which only its sender may see. `neuron-dra policy explain`
        prints the cause.
        """
        return f"{self.what}{self.position}"

    def __str__(self) -> str:
        return f"{self.what}: {self.cause}{self.position}" if self.cause else self.place
