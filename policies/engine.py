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

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from policies.evaluator.size_estimates import CostLimit
from policies.evaluator.syntax import Node
from policies.evaluator.types import DYN, Type
from policies.limits import DEFAULT_LIMITS as DEFAULT_LIMITS  # noqa: PLC0414 - mypy: it is a name of this module
from policies.limits import MATCH_CONDITION_LIMITS as MATCH_CONDITION_LIMITS  # noqa: PLC0414 - mypy: it is a name of this module
from policies.limits import POLICY_LIMITS as POLICY_LIMITS  # noqa: PLC0414 - mypy: it is a name of this module
from policies.limits import SELECTOR_LIMITS as SELECTOR_LIMITS  # noqa: PLC0414 - mypy: it is a name of this module
from policies.limits import Limits as Limits  # noqa: PLC0414 - mypy: it is a name of this module

if TYPE_CHECKING:
    from policies.evaluator.deadlines import Deadline

Clock = Callable[[], float]
"""A monotonic clock in seconds."""

_COST_BETWEEN_CLOCK_READS: Final = 512
_WORK_BETWEEN_CLOCK_READS: Final = 10_000
"""About 1 ms."""
_CHARACTERS_PER_COST: Final = 10
"""cel-go common/cost.go, StringTraversalCostFactor."""
_CHARACTERS_PER_WORK: Final = 64
_FEW_CHARACTERS: Final = 1024
_PAIRS_WITHOUT_CLOCK: Final = 250_000
"""5 ms."""
_PAIRS_PER_WORK: Final = 256
_WORK_PER_MICROSECOND: Final = 10
_SECONDS_PER_PAIR: Final = 20e-9
"""Measured with RE2 where it gives up its DFA: `(a?){900}x$` on a text of `a`."""
_EXCERPT_WIDTH: Final = 100
_QUOTED: Final = 100


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


class CelSizeExceededError(CelBudgetExceededError):
    """It would build too large a value."""


class CelTimeExceededError(CelBudgetExceededError):
    """Its time was over. That says nothing of the expression: there may be more time at the next attempt."""


class CelCostExceededError(CelBudgetExceededError):
    """Its estimated cost is above the limit. That is so on every machine, whatever time there is."""


def quoted(text: str) -> str:
    """A text as messages show it: a long one is cut."""
    return f"'{text}'" if len(text) <= _QUOTED else f"'{text[:_QUOTED]}…'"


class Budget:
    """What is left for one evaluation, or for several that share it. Not for use by two threads.

    Attributes:
        left: cost that is left. What is known when an expression is compiled is taken from it directly; the next
            `spend` or `enter` looks whether it was enough.
    """

    __slots__ = (
        "_built",
        "_clock",
        "_deadline",
        "_floor",
        "_limits",
        "_mark",
        "_patterns",
        "_work",
        "_work_mark",
        "left",
    )

    def __init__(self, clock: Clock, limits: Limits = DEFAULT_LIMITS) -> None:
        self._clock = clock
        self._limits = limits
        self._deadline = clock() + limits.seconds
        self.left = limits.steps
        self._floor = 0
        self._mark = limits.steps - _COST_BETWEEN_CLOCK_READS
        self._work = limits.work
        self._work_mark = limits.work - _WORK_BETWEEN_CLOCK_READS
        self._built = limits.built
        self._patterns = limits.patterns

    @property
    def spent(self) -> int:
        """Cost so far, in the units of Kubernetes."""
        return self._limits.steps - self.left

    @property
    def worked(self) -> int:
        """Work so far."""
        return self._limits.work - self._work

    def enter(self, cost: int) -> None:
        """Begin one evaluation, and take the part of its cost that is known before.

        Raises:
            CelBudgetExceededError: as `spend`.
        """
        self._floor = max(0, self.left - self._limits.call)
        if self._mark < self._floor:
            self._mark = self._floor
        self.left -= cost
        if self.left < self._mark:
            self._check()

    def spend(self, cost: int) -> None:
        """Take cost, and look at the clock now and then.

        Raises:
            CelBudgetExceededError: cost or time are used up.
        """
        self.left -= cost
        if self.left < self._mark:
            self._check()

    def _check(self) -> None:
        if self.left < self._floor:
            allowed = self._limits.call if self._floor else self._limits.steps
            raise CelBudgetExceededError(
                f"evaluation needs more than {allowed} steps: loop over less, or split the expression"
            )
        self._read_clock()
        self._mark = max(self._floor, self.left - _COST_BETWEEN_CLOCK_READS)

    def _read_clock(self) -> None:
        if self._clock() > self._deadline:
            raise self._late()

    def _late(self) -> CelTimeExceededError:
        return CelTimeExceededError(
            f"evaluation takes longer than {self._limits.seconds:g} s: loop over less, or split the expression"
        )

    def work(self, amount: int) -> None:
        """Take work: before values are walked, by as much as will be walked.

        Raises:
            CelBudgetExceededError: work or time are used up.
        """
        self._work -= amount
        if self._work < self._work_mark:
            if self._work < 0:
                raise CelBudgetExceededError(
                    f"evaluation walks more than {self._limits.work} values: loop over less, or compare less"
                )
            self._read_clock()
            self._work_mark = max(0, self._work - _WORK_BETWEEN_CLOCK_READS)

    def read(self, length: int) -> None:
        """Take the work of looking through a text of that many characters."""
        if length >= _CHARACTERS_PER_WORK:
            self.work(length // _CHARACTERS_PER_WORK)

    def scan(self, length: int) -> None:
        """Take the cost of one look through a text of that many characters, beyond the 1 of every call."""
        if length > _FEW_CHARACTERS:
            self.spend((length - 1) // _CHARACTERS_PER_COST)
            self.read(length)
        elif length > _CHARACTERS_PER_COST:
            self.left -= (length - 1) // _CHARACTERS_PER_COST

    def match(self, length: int, size: int) -> None:
        """Ask to run a regular expression of `size` instructions on a text of `length` bytes.

        At worst that takes 20 ns for each pair of them, in one call that nothing can stop.

        Raises:
            CelBudgetExceededError: it may take longer than the time that is left.
        """
        pairs = length * size
        if pairs <= _PAIRS_WITHOUT_CLOCK:
            self.work(2 + pairs // _PAIRS_PER_WORK)
            return
        if pairs * _SECONDS_PER_PAIR > self._deadline - self._clock():
            raise CelBudgetExceededError(
                f"a regular expression of {size} instructions on a text of {length} bytes may take longer than the"
                f" {self._limits.seconds:g} s of an evaluation: match less text, or repeat less in the pattern"
            )
        self.work(pairs // _PAIRS_PER_WORK)

    def pattern(self, microseconds: int) -> None:
        """Ask to compile a regular expression that takes about as long.

        Raises:
            CelBudgetExceededError: the time for regular expressions, or all time, is used up.
        """
        self._patterns -= microseconds
        if self._patterns < 0:
            raise CelBudgetExceededError(
                f"compiling the regular expressions takes longer than {self._limits.patterns // 1000} ms: repeat less"
                " in them, or use fewer"
            )
        self._read_clock()
        self.work(_WORK_PER_MICROSECOND * microseconds)

    def text(self, length: int, added: int | None = None) -> None:
        """Ask to build a text of that many characters; `added` of them are new, all if it is None.

        Raises:
            CelSizeExceededError: it would be too long.
            CelBudgetExceededError: work or time are used up.
        """
        if length > self._limits.text:
            raise CelSizeExceededError(
                f"evaluation builds a text of {length} characters, {self._limits.text} are allowed"
            )
        new = length if added is None else added
        self._built -= new
        if self._built < 0:
            raise self._too_much()
        if new >= _CHARACTERS_PER_WORK:
            self.work(new // _CHARACTERS_PER_WORK)

    def items(self, count: int, added: int | None = None) -> None:
        """Ask to build a list or map of that many elements; `added` of them are new, all if it is None.

        Raises:
            CelSizeExceededError: it would be too long.
            CelBudgetExceededError: work or time are used up.
        """
        if count > self._limits.items:
            raise CelSizeExceededError(
                f"evaluation builds a list or map of {count} elements, {self._limits.items} are allowed"
            )
        new = count if added is None else added
        self._built -= 8 * new
        if self._built < 0:
            raise self._too_much()
        self.work(new)

    def _too_much(self) -> CelSizeExceededError:
        return CelSizeExceededError(
            f"evaluation builds values of more than {self._limits.built} characters together: build less"
        )


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
        self,
        source: str,
        variables: Mapping[str, Type],
        *,
        result: Type = DYN,
        limit: CostLimit | None = None,
        deadline: "Deadline | None" = None,
    ) -> Program:
        """Parse, check and compile.

        Args:
            source: the expression.
            variables: root variables by name; use `types.record` where the fields are known, so that a misspelt
                one is found here.
            result: what the value has to be, e.g. BOOL.
            limit: the highest estimated cost that is accepted, where there is one.
            deadline: when reading, checking and estimating have to end; None: when they are done.

        Raises:
            CelCompileError: with the place that is wrong.
            CelCostExceededError: the estimated cost is above the limit.
            CelTimeExceededError: the time was over before.
            CelBudgetExceededError: a part that depends on nothing is too large to compute.
        """
