"""What all kinds of policies share when they are evaluated: conditions, variables, and what their errors say."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kubecel.budget import Budget
from kubecel.engine import Program
from kubecel.errors import CelBudgetExceededError, CelError
from policies.judging.rules import Condition

_LONGEST_ERROR: Final = 300


class Variables(dict[str, Any]):
    """`variables`: each is evaluated when it is read first; one that fails, fails again."""

    def __init__(self, programs: Mapping[str, Program], activation: Mapping[str, Any], budget: Budget) -> None:
        super().__init__()
        self._programs = programs
        self._activation = activation
        self._budget = budget

    def __missing__(self, name: str) -> Any:
        value = self[name] = self._programs[name].evaluate(self._activation, self._budget)
        return value


def all_hold(
    conditions: Iterable[Condition], activation: Mapping[str, Any], budget: Budget
) -> tuple[bool | None, list[str]]:
    """Whether all conditions are true; None where one fails and none is false."""
    failures = []
    for condition in conditions:
        try:
            if condition.program.evaluate(activation, budget) is not True:
                return False, []
        except CelError as error:
            failures.append(f"match condition '{condition.name}' failed: {said(error)}")
            if isinstance(error, CelBudgetExceededError):
                break  # nothing is left for those that follow
    return (None if failures else True), failures


def said(error: CelError) -> str:
    """What an error says, cut to what anybody would read; it may quote what a tenant wrote."""
    text, message = str(error), error.message
    return text if len(message) <= _LONGEST_ERROR else text.replace(message, f"{message[:_LONGEST_ERROR]}…", 1)
