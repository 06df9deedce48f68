"""The engine's face: compile an expression once, evaluate it often, within a budget.

Exceptions:

    CelError
      CelCompileError          the expression can never be evaluated
        CelSyntaxError         it is not CEL
        CelTypeError           an unknown name or field, or operands that never fit
        CelUnsupportedError    CEL that this engine does not evaluate
      CelRuntimeError          it could not be evaluated on these values
      CelBudgetExceededError   it was stopped: too many steps, too much time or too large values
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from policies.evaluator.size_estimates import CostLimit
from policies.evaluator.syntax import Node
from policies.evaluator.types import DYN, Type

Clock = Callable[[], float]
"""A monotonic clock in seconds."""

_STEPS_BETWEEN_CLOCK_READS: Final = 512
_CHARACTERS_PER_STEP: Final = 64
_EXCERPT_WIDTH: Final = 100


class CelError(Exception):
    """What is wrong with an expression, and where.

    Attributes:
        message: one sentence without position.
        source: the expression; empty while nobody has said which.
        offset: character offset into `source`, or None where no place is to blame.
    """

    def __init__(self, message: str, offset: int | None = None, source: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset
        self.source = source

    @property
    def line(self) -> int:
        """Line, from 1."""
        return self.source.count("\n", 0, self.offset or 0) + 1

    @property
    def column(self) -> int:
        """Column in characters, from 1."""
        offset = self.offset or 0
        return offset - (self.source.rfind("\n", 0, offset) + 1) + 1

    @property
    def excerpt(self) -> str:
        """The offending line with a caret under the offending place; empty where either is unknown."""
        if self.offset is None or not self.source:
            return ""
        text = self.source.split("\n")[self.line - 1]
        start = max(0, self.column - 1 - _EXCERPT_WIDTH // 2)
        shown = text[start : start + _EXCERPT_WIDTH].replace("\t", " ")
        return f" | {shown}\n | {'.' * (self.column - 1 - start)}^"

    def __str__(self) -> str:
        """Message and position on one line."""
        if self.offset is None:
            return self.message
        return f"{self.message} (line {self.line}, column {self.column})"


class CelCompileError(CelError):
    """The expression can never be evaluated."""


class CelSyntaxError(CelCompileError):
    """It is not CEL."""


class CelTypeError(CelCompileError):
    """It uses an unknown name or field, or operands that never fit."""


class CelUnsupportedError(CelCompileError):
    """It uses CEL that this engine does not evaluate."""


class CelRuntimeError(CelError):
    """It could not be evaluated on these values. `&&`, `||`, `all` and `exists` may absorb it, as in CEL."""


class CelBudgetExceededError(CelError):
    """It was stopped. Nothing absorbs this."""


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """How large an expression and its evaluation may get.

    Attributes:
        expression_bytes: UTF-8 bytes of the source; the default is that of DRA device selectors
            (`resource.k8s.io/v1` CELSelectorExpressionMaxLength).
        nesting: depth of the syntax tree.
        comprehension_nesting: macros such as `all` inside each other.
        steps: tree nodes evaluated in loops, plus what functions charge for long arguments.
        seconds: wall-clock time of one evaluation.
        text: characters of a string that is built, bytes of bytes.
        items: elements of a list or map that is built.
    """

    expression_bytes: int = 10 * 1024
    nesting: int = 100
    comprehension_nesting: int = 6
    steps: int = 1_000_000
    seconds: float = 0.25
    text: int = 1024 * 1024
    items: int = 100_000


DEFAULT_LIMITS: Final = Limits()


class Budget:
    """What is left for one evaluation, or for several that share it. Not for use by two threads."""

    __slots__ = ("_clock", "_deadline", "_limits", "_mark", "_steps")

    def __init__(self, clock: Clock, limits: Limits = DEFAULT_LIMITS) -> None:
        self._clock = clock
        self._limits = limits
        self._deadline = clock() + limits.seconds
        self._steps = limits.steps
        self._mark = max(0, limits.steps - _STEPS_BETWEEN_CLOCK_READS)

    def spend(self, steps: int) -> None:
        """Take steps, and look at the clock now and then.

        Raises:
            CelBudgetExceededError: steps or time are used up.
        """
        self._steps -= steps
        if self._steps < self._mark:
            self._check()

    def _check(self) -> None:
        if self._steps < 0:
            raise CelBudgetExceededError(
                f"evaluation needs more than {self._limits.steps} steps: loop over less, or split the expression"
            )
        if self._clock() > self._deadline:
            raise CelBudgetExceededError(
                f"evaluation takes longer than {self._limits.seconds:g} s: loop over less, or split the expression"
            )
        self._mark = max(0, self._steps - _STEPS_BETWEEN_CLOCK_READS)

    def read(self, length: int) -> None:
        """Charge for looking through a text of that many characters."""
        if length >= _CHARACTERS_PER_STEP:
            self.spend(length // _CHARACTERS_PER_STEP)

    def text(self, length: int) -> None:
        """Ask to build a text of that many characters.

        Raises:
            CelBudgetExceededError: it would be too long.
        """
        if length > self._limits.text:
            raise CelBudgetExceededError(
                f"evaluation builds a text of {length} characters, {self._limits.text} are allowed"
            )
        self.read(length)

    def items(self, count: int) -> None:
        """Ask to build a list or map of that many elements.

        Raises:
            CelBudgetExceededError: it would be too long.
        """
        if count > self._limits.items:
            raise CelBudgetExceededError(
                f"evaluation builds a list or map of {count} elements, {self._limits.items} are allowed"
            )
        self.spend(count)


class Program(Protocol):
    """A compiled expression. Immutable; may be evaluated by several threads at once."""

    @property
    def source(self) -> str:
        """The expression as it was written."""

    @property
    def result(self) -> Type:
        """The static type of its value."""

    @property
    def syntax(self) -> Node:
        """Its tree, for `policies.analysis`."""

    @property
    def references(self) -> frozenset[tuple[str, ...]]:
        """Every path that it reads, from the root variable on, e.g. `("object", "spec", "containers")`."""

    def evaluate(self, variables: Mapping[str, object], budget: Budget) -> object:
        """Evaluate.

        Args:
            variables: a value for every root variable that the expression uses: JSON-like data as `json` decodes
                it (or the values of `policies.evaluator.values`), used as it is and never changed.
            budget: spent as it goes.

        Returns:
            None, bool, int, float, str, bytes, list, dict, or a value of `policies.evaluator.values`,
            `policies.quantity` or `policies.semver`.

        Raises:
            CelRuntimeError: with the place that failed.
            CelBudgetExceededError: it was stopped.
        """


class CelEngine(Protocol):
    """Turns source text into programs."""

    def compile(
        self, source: str, variables: Mapping[str, Type], *, result: Type = DYN, limit: CostLimit | None = None
    ) -> Program:
        """Parse, check and compile.

        Args:
            source: the expression.
            variables: root variables by name; use `types.record` where the fields are known, so that a misspelt
                one is found here.
            result: what the value has to be, e.g. BOOL.
            limit: the highest estimated cost that is accepted, where there is one.

        Raises:
            CelCompileError: with the place that is wrong.
            CelBudgetExceededError: a part that depends on nothing is too large to compute, or the estimated cost is
                above the limit.
        """
