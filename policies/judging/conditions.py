"""Match conditions and variables, which all kinds of policies evaluate alike, and what could not be evaluated."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Final

from kubecel.budget import Budget
from kubecel.engine import Program
from kubecel.errors import CelBudgetExceededError, CelError, quoted
from policies.judging.rules import CompiledCondition
from policies.judging.sharing import Memo, SharedExpression, evaluate

_LONGEST_CAUSE: Final = 300


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """One expression that could not be evaluated: the full text for users, and the part that may be logged.

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


NOTHING_SHARED: Final[Mapping[str, SharedExpression | None]] = {}


class Variables(dict[str, object]):
    """The CEL variable `variables`: each entry is evaluated on its first read. A failure is not cached."""

    def __init__(
        self,
        programs: Mapping[str, Program],
        activation: Mapping[str, object],
        budget: Budget,
        shared: Mapping[str, SharedExpression | None] = NOTHING_SHARED,
        memo: Memo | None = None,
    ) -> None:
        super().__init__()
        self._programs = programs
        self._activation = activation
        self._budget = budget
        self._shared = shared
        self._memo = memo

    def __missing__(self, name: str) -> object:
        program = self._programs[name]
        try:
            shared = self._shared.get(name)
            value = self[name] = evaluate(program, shared, self._activation, self._budget, self._memo)
        except CelError as error:
            raise _of_variable(name, program, error) from error
        return value


def _of_variable(name: str, program: Program, error: CelError) -> CelError:
    """The error of a variable, for the expression that reads it; the words are the API server's."""
    text = quoted(program.source.strip())
    place = f" in {text}" if error.offset is None else f" (line {error.line}, column {error.column} of {text})"
    return type(error)(f'composited variable "{name}" fails to evaluate: {error.message}{place}')


def all_hold(
    conditions: Iterable[CompiledCondition], activation: Mapping[str, object], budget: Budget, memo: Memo | None = None
) -> tuple[bool | None, list[Failure]]:
    """Whether all conditions are true; None if one fails and no other is false."""
    failures: list[Failure] = []
    for condition in conditions:
        try:
            if evaluate(condition.program, condition.shared, activation, budget, memo) is not True:
                return False, []
        except CelError as error:
            failures.append(Failure.of(f"match condition '{condition.name}' failed", error))
            if isinstance(error, CelBudgetExceededError):
                break  # The others share the budget.
    return (None if failures else True), failures
