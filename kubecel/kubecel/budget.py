"""Limits of an evaluation, by purpose, and the budget, which is charged before the work is done; deadlines to compile.

Costs are those of Kubernetes: cel-go's interpreter/runtimecost.go, and apiserver/pkg/cel/library/cost.go.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import Final

from kubecel.errors import CelBudgetExceededError, CelSizeExceededError, CelTimeExceededError

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
_NO_LIMIT: Final = 1 << 62


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Limits of an expression and its evaluation.

    Cost is counted in the units of Kubernetes (cel-go interpreter/runtimecost.go, k8s.io/apiserver
    pkg/cel/library/cost.go): 1 for a variable, a field or a call, and more by the size of what a function reads.
    Kubernetes charges too little for some functions: a deep `==` costs as much as a shallow one. So the values that
    are really read are counted separately, as work.

    Attributes:
        expression_bytes: UTF-8 bytes of the source; the default is that of DRA device selectors
            (`resource.k8s.io/v1` CELSelectorExpressionMaxLength).
        nesting: depth of the syntax tree.
        comprehension_nesting: depth of macros such as `all` inside each other.
        steps: cost of all evaluations that share a budget.
        call: cost of one evaluation.
        work: values that all evaluations of a budget may read; one unit is about 0.1 microseconds.
        seconds: wall-clock time of all evaluations that share a budget.
        text: characters of a new string, or bytes of a new bytes value.
        items: elements of a new list or map.
        patterns: estimated microseconds to compile all regular expressions.
        built: characters and elements (an element counts 8) of all values that evaluations of a budget build.
    """

    expression_bytes: int = 10 * 1024
    nesting: int = 100
    comprehension_nesting: int = 6
    steps: int = 1_000_000
    seconds: float = 0.25
    text: int = 1024 * 1024
    items: int = 100_000
    call: int = 1_000_000
    work: int = 10_000_000
    built: int = 32 * 1024 * 1024
    patterns: int = 200_000


DEFAULT_LIMITS: Final = Limits()
SELECTOR_LIMITS: Final = Limits(text=64 * 1024, items=10_000, work=5_000_000, built=4 * 1024 * 1024, patterns=50_000)
"""One selector on one device: `resource.k8s.io/v1` CELSelectorExpressionMaxCost is 1,000,000."""
POLICY_LIMITS: Final = Limits(steps=10_000_000, seconds=0.5, work=20_000_000)
"""All expressions of one policy: k8s.io/apiserver pkg/apis/cel/config.go, RuntimeCELCostBudget, and PerCallLimit for
each of them."""
MATCH_CONDITION_LIMITS: Final = Limits(steps=2_500_000, work=5_000_000)
"""All match conditions of one policy: RuntimeCELCostBudgetMatchConditions."""


class Budget:
    """The remaining cost, work and time of one or several evaluations. Not thread-safe.

    Attributes:
        results: value and cost of loops over shared variables, by their text (`closures.comprehensions`).
        left: remaining cost. Compiled code subtracts costs that are known in advance directly; the next `spend` or
            `enter` checks the limit.
        once: cost of variables that were computed when they were read first.
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
        "once",
        "results",
    )

    def __init__(
        self, clock: Clock, limits: Limits = DEFAULT_LIMITS, results: dict[str, tuple[bool, int]] | None = None
    ) -> None:
        """`results` are those of loops that several expressions have in common; None: they are not remembered."""
        self.results = results
        self._clock = clock
        self._limits = limits
        self._deadline = clock() + limits.seconds
        self.left = limits.steps
        self.once = 0
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
        """Begin one evaluation, and charge the part of its cost that is known in advance.

        Raises:
            CelBudgetExceededError: see `spend`.
        """
        self._floor = max(0, self.left - self._limits.call)
        if self._mark < self._floor:
            self._mark = self._floor
        self.left -= cost
        if self.left < self._mark:
            self._check()

    def spend(self, cost: int) -> None:
        """Charge cost. Reads the clock every 512 units.

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
        """Charge work, before the values are read.

        Raises:
            CelBudgetExceededError: work or time are used up.
        """
        self._work -= amount
        if self._work < self._work_mark:
            if self._work < 0:
                raise CelBudgetExceededError(
                    f"evaluation reads more than {self._limits.work} values: loop over less, or compare less"
                )
            self._read_clock()
            self._work_mark = max(0, self._work - _WORK_BETWEEN_CLOCK_READS)

    def read(self, length: int) -> None:
        """Charge the work of reading a text of `length` characters."""
        if length >= _CHARACTERS_PER_WORK:
            self.work(length // _CHARACTERS_PER_WORK)

    def scan(self, length: int) -> None:
        """Charge the cost of reading a text of `length` characters once, without the 1 of the call."""
        if length > _FEW_CHARACTERS:
            self.spend((length - 1) // _CHARACTERS_PER_COST)
            self.read(length)
        elif length > _CHARACTERS_PER_COST:
            self.left -= (length - 1) // _CHARACTERS_PER_COST
        elif not length:
            # A call that reads nothing costs nothing.
            self.left += 1

    @contextlib.contextmanager
    def free(self) -> Iterator[None]:
        """A context in which costs are not charged; work is."""
        before = self.left
        self.left += _NO_LIMIT
        try:
            yield
        finally:
            self.left = before

    def scan_if(self, charged: bool, length: int) -> None:
        """Charge reading a text of `length` characters: its cost if `charged`, in any case its work.

        cel-go charges the call only, if the types of the arguments are known at run time only and several signatures
        accept them.
        """
        if charged:
            self.scan(length)
        else:
            self.read(length)

    def match(self, length: int, size: int) -> None:
        """Charge a match of a regular expression of `size` instructions with a text of `length` bytes.

        The worst case is 20 ns for each pair of instruction and byte, in one call that cannot be interrupted.

        Raises:
            CelBudgetExceededError: it may take longer than the time that is left.
        """
        pairs = length * size
        if pairs <= _PAIRS_WITHOUT_CLOCK:
            self.work(2 + pairs // _PAIRS_PER_WORK)
            return
        # 20 ns: measured with RE2 when it cannot use its DFA, `(a?){900}x$` on a text of `a`.
        if pairs * 20e-9 > self._deadline - self._clock():
            raise CelBudgetExceededError(
                f"a regular expression of {size} instructions on a text of {length} bytes may take longer than the"
                f" {self._limits.seconds:g} s of an evaluation: match less text, or repeat less in the pattern"
            )
        self.work(pairs // _PAIRS_PER_WORK)

    def pattern(self, microseconds: int) -> None:
        """Charge the estimated time to compile a regular expression.

        Raises:
            CelBudgetExceededError: the time for regular expressions, or the time of the evaluation, is used up.
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
        """Charge a new text of `length` characters; `added` is how many are new, None for all.

        Raises:
            CelSizeExceededError: it is too long.
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
        """Charge a new list or map of `count` elements; `added` is how many are new, None for all.

        Raises:
            CelSizeExceededError: it is too long.
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


class Deadline:
    """The time limit of one or several expressions. Not thread-safe."""

    __slots__ = ("_clock", "_end", "_looks")

    def __init__(self, clock: Clock, end: float) -> None:
        """The deadline is when `clock` shows `end`."""
        self._clock = clock
        self._end = end
        self._looks = 0

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def left(self) -> float:
        """Remaining seconds, at least 0."""
        return max(0.0, self._end - self._clock()) if self._end < math.inf else math.inf

    def look(self) -> None:
        """Check the time. Call it for every token, node or step; it reads the clock every 16th time.

        Raises:
            CelTimeExceededError: the deadline passed.
        """
        self._looks += 1
        # A node takes 20 to 100 microseconds to parse and about 10 in each later step: this is within 2 ms.
        if self._looks >= 16:
            self._looks = 0
            if self._clock() > self._end:
                raise CelTimeExceededError("reading and checking the expression takes too long: split it")


def never() -> Deadline:
    """No time limit, for expressions of administrators: they are compiled once, when they are loaded."""
    return Deadline(time.monotonic, math.inf)
