"""The engine's interface: compile an expression once, evaluate it often, within a budget."""

from collections.abc import Mapping
from typing import Protocol

from kubecel.budget import Budget
from kubecel.checking.size_estimates import CostLimit
from kubecel.deadlines import Deadline
from kubecel.syntax.nodes import Node
from kubecel.types import DYN, Type


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
        """Its tree, for `policies.selectors.analysis`."""

    @property
    def references(self) -> frozenset[tuple[str, ...]]:
        """Every path that it reads, from the root variable on, e.g. `("object", "spec", "containers")`."""

    def evaluate(self, variables: Mapping[str, object], budget: Budget) -> object:
        """Evaluate.

        Args:
            variables: a value for every root variable that the expression uses: JSON-like data as `json` decodes
                it (or the values of `kubecel.values`), used as it is and never changed.
            budget: spent as it goes.

        Returns:
            None, bool, int, float, str, bytes, list, dict, or a value of `kubecel.values`,
            `kubecel.library.quantity` or `kubecel.library.semver`.

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
        deadline: Deadline | None = None,
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
