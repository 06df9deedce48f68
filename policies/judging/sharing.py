"""Expressions that several policies have in common: compiled once, and evaluated once for each request.

Libraries of policies repeat matchConditions and variables. An expression is shared if it does not read `params`, and
the variables that it reads are shared too. Its cost is charged to every policy that reads it.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TypeAlias

from kubecel.budget import Budget
from kubecel.engine import Program
from kubecel.errors import CelRuntimeError
from kubecel.types import Type
from policies.schema.constraints import MatchResources


@dataclasses.dataclass(slots=True, eq=False)
class SharedExpression:
    """Identity of an expression with the variables that it reads.

    Attributes:
        uses: how many policies have it.
    """

    uses: int = 0


@dataclasses.dataclass(slots=True)
class Memo:
    """The results of shared expressions for one request.

    Attributes:
        results: value, error and cost, by expression.
        nested: cost of the shared expressions inside of the one that is evaluated.
    """

    results: dict[SharedExpression, tuple[object, CelRuntimeError | None, int]] = dataclasses.field(
        default_factory=dict
    )
    nested: int = 0


def evaluate(
    program: Program,
    shared: SharedExpression | None,
    activation: Mapping[str, object],
    budget: Budget,
    memo: Memo | None,
) -> object:
    """The value of an expression, computed or remembered.

    Raises:
        CelError: as `Program.evaluate`.
    """
    if memo is None or shared is None or shared.uses < 2:
        return program.evaluate(activation, budget)
    known = memo.results.get(shared)
    if known is not None:
        found, error, cost = known
        budget.enter(cost)
        memo.nested += cost
        if error is not None:
            raise error.with_traceback(None)
        return found
    outer, memo.nested, before = memo.nested, 0, budget.left
    failure: CelRuntimeError | None = None
    value: object = None
    try:
        value = program.evaluate(activation, budget)
    except CelRuntimeError as caught:
        failure = caught
    # An evaluation that was stopped is not remembered: another policy may have more budget left.
    total = before - budget.left
    memo.results[shared] = (value, failure, max(0, total - memo.nested))
    memo.nested = outer + total
    if failure is not None:
        raise failure
    return value


Key: TypeAlias = tuple[str, str, frozenset[tuple[str, SharedExpression]]]


class Sharing:
    """Finds shared expressions while one set of policies is loaded."""

    def __init__(self) -> None:
        self._programs: dict[tuple[str, str, frozenset[str], tuple[tuple[str, str], ...]], Program] = {}
        self._shared: dict[Key, SharedExpression] = {}
        self._matches: dict[str, MatchResources] = {}

    def compiled(
        self, source: str, result: Type, known: Mapping[str, Type], compile_it: Callable[[], Program]
    ) -> Program:
        """The program of an expression; the same one for equal expressions with the same known variables.

        Raises:
            CelError: it does not compile.
        """
        own = known["variables"].fields or {}
        declared = tuple((name, str(each)) for name, each in own.items()) if "variables" in source else ()
        key = (source, str(result), frozenset(known), declared)
        found = self._programs.get(key)
        if found is None:
            found = self._programs[key] = compile_it()
        return found

    def identity(
        self, program: Program, result: Type, variables: Mapping[str, SharedExpression | None]
    ) -> SharedExpression | None:
        """The identity of an expression; None if it cannot be shared. Counts a use.

        Args:
            result: its wanted type.
        """
        read: set[tuple[str, SharedExpression]] = set()
        for path in program.references:
            if path[0] == "params":
                return None
            if path[0] == "variables":
                variable = variables.get(path[1]) if len(path) > 1 else None
                if variable is None:
                    return None
                read.add((path[1], variable))
        shared = self._shared.setdefault((program.source, str(result), frozenset(read)), SharedExpression())
        shared.uses += 1
        return shared

    def match(self, match: MatchResources) -> MatchResources:
        """One object for equal constraints, so that their result can be remembered by identity."""
        return self._matches.setdefault(match.model_dump_json(), match)
