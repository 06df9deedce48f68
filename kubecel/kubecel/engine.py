"""The interface of the engine: compile an expression once, then evaluate it within a budget."""

from collections.abc import Mapping
from typing import Protocol

from kubecel.budget import Budget
from kubecel.checking.size_estimates import CostLimit
from kubecel.deadlines import Deadline
from kubecel.syntax.nodes import Node
from kubecel.types import DYN, Type


class Program(Protocol):
    """A compiled expression. Immutable and thread-safe."""

    @property
    def source(self) -> str:
        """The text of the expression."""

    @property
    def result(self) -> Type:
        """The static type of its value."""

    @property
    def syntax(self) -> Node:
        """Its syntax tree, for analyses."""

    @property
    def references(self) -> frozenset[tuple[str, ...]]:
        """Every path that it reads, starting at a variable, e.g. `("object", "spec", "containers")`."""

    def evaluate(self, variables: Mapping[str, object], budget: Budget) -> object:
        """Evaluate.

        Args:
            variables: a value for every variable that the expression uses: data as `json` decodes it, or values of
                `kubecel.values`. They are not copied and not changed.

        Returns:
            None, bool, int, float, str, bytes, list, dict, or a value of `kubecel.values`,
            `kubecel.library.quantity` or `kubecel.library.semver`.

        Raises:
            CelRuntimeError: the evaluation failed; with the position.
            CelBudgetExceededError: a limit is reached.
        """


class CelEngine(Protocol):
    """Compiles expressions to programs."""

    def compile(
        self,
        source: str,
        variables: Mapping[str, Type],
        *,
        result: Type = DYN,
        limit: CostLimit | None = None,
        deadline: Deadline | None = None,
        mutates: bool = False,
    ) -> Program:
        """Parse, check and compile.

        Args:
            variables: types of the variables by name; with `types.record`, an unknown field is an error here.
            result: the required type of the value, e.g. BOOL.
            limit: the highest accepted estimate of the cost; None for no limit.
            deadline: time limit for reading, checking and estimating; None for no limit.
            mutates: whether the expression makes patches: it has `Object{}`, `JSONPatch{}` and `jsonpatch.escapeKey`.

        Raises:
            CelCompileError: the expression is wrong; with the position.
            CelCostExceededError: the estimated cost is above the limit.
            CelTimeExceededError: the deadline passed.
            CelBudgetExceededError: a constant part is too large to compute.
        """
