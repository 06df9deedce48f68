"""Match conditions and variables, which all kinds of policies evaluate in the same way."""

from collections.abc import Iterable, Mapping
from typing import Final

from kubecel.budget import Budget
from kubecel.engine import Program
from kubecel.errors import CelBudgetExceededError, CelError, quoted
from policies.judging.failures import Failure
from policies.judging.rules import CompiledCondition
from policies.judging.sharing import Memo, SharedExpression, evaluate

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
