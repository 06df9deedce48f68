"""Expressions that all kinds of policies have: match conditions and variables, and what could not be evaluated.

Libraries of policies repeat them, so those that several policies have in common are compiled once, and evaluated once
for each request. An expression is shared if it does not read `params`, and the variables that it reads are shared too.
Its cost is charged to every policy that reads it.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from kubecel.budget import Budget
from kubecel.compile import Program
from kubecel.errors import CelBudgetExceededError, CelError, CelRuntimeError, quoted
from kubecel.types import Type
from neuron.findings import short
from policies.schema.base import MatchResources


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


def shared_value(
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


@dataclasses.dataclass(frozen=True, slots=True)
class CompiledCondition:
    """A match condition; `shared`: its identity, if other policies may have it too."""

    name: str
    program: Program
    shared: SharedExpression | None = None


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
        return cls(
            what,
            short(error.message, 300),
            "" if error.offset is None else f" (line {error.line}, column {error.column})",
        )

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
    """The CEL variable `variables`: each entry is evaluated on its first read. A failure is not cached.

    The other variables do not hold it: such a cycle keeps the objects of a request until the next garbage collection.
    """

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
            known = {**self._activation, "variables": self}
            value = self[name] = shared_value(program, shared, known, self._budget, self._memo)
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
            if shared_value(condition.program, condition.shared, activation, budget, memo) is not True:
                return False, []
        except CelError as error:
            failures.append(Failure.of(f"match condition '{condition.name}' failed", error))
            if isinstance(error, CelBudgetExceededError):
                break  # The others share the budget.
    return (None if failures else True), failures
