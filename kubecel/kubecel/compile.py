"""The engine: compiles an expression once, and evaluates it within a budget.

cel-python's interpreter takes 0.1 to 4 ms per expression, converts every object first, and has neither optional access
nor the libraries of Kubernetes. So only its grammar is used (`kubecel.grammar`), and `kubecel.closures` compiles the
tree. Tests compare the results with cel-python and with a real API server.
"""

import dataclasses
import functools
import threading
from collections.abc import Mapping
from typing import Any, Final

from kubecel import grammar
from kubecel.budget import DEFAULT_LIMITS, Budget, Deadline, Limits, never
from kubecel.checking import CostLimit, Library, SizeOf
from kubecel.closures import access, aggregates, calls, comprehensions, operators
from kubecel.closures.compiler import BUDGET, Code, Compiler, Hint, no_hint
from kubecel.errors import (
    CelBudgetExceededError,
    CelCostExceededError,
    CelError,
    CelRuntimeError,
    CelSyntaxError,
    CelTypeError,
)
from kubecel.estimating.estimate import Estimator
from kubecel.estimating.expansion import Expander
from kubecel.library import (
    authorization,
    formats,
    formatting,
    kubernetes,
    lists,
    network,
    standard,
    strings,
    times,
    urls,
)
from kubecel.library.estimates import library_estimate
from kubecel.syntax.nodes import Node, references
from kubecel.syntax.tree import TreeBuilder
from kubecel.types import DYN, Type, mutation_type, no_objects
from kubecel.values import kind_of

_OVERLOADS: Final = (
    *standard.OVERLOADS,
    *times.OVERLOADS,
    *lists.OVERLOADS,
    *strings.OVERLOADS,
    *formatting.OVERLOADS,
    *formats.OVERLOADS,
    *kubernetes.OVERLOADS,
    *network.OVERLOADS,
    *urls.OVERLOADS,
    *authorization.OVERLOADS,
)
LIBRARY: Final = Library(_OVERLOADS)
"""All functions of expressions: the CEL standard library and the libraries of Kubernetes 1.36. Calls of others are
compile errors."""
MUTATION_LIBRARY: Final = Library((*_OVERLOADS, *strings.OF_MUTATIONS))
"""Of expressions that make patches."""


COMPILED_BY: Final = (access, aggregates, calls, comprehensions, operators)
"""These modules register a compile function for each kind of node."""

_BUILDING: Final = threading.Lock()


@functools.cache
def _parser() -> tuple[Any, TreeBuilder]:
    """Lark's parser, made at the first use: importing Lark takes 30 ms."""
    builder = TreeBuilder()
    return grammar.parser(builder), builder


def parse(source: str, limits: Limits = DEFAULT_LIMITS, deadline: Deadline | None = None) -> Node:
    """Read an expression.

    Raises:
        CelSyntaxError: it is not CEL, too long, or nested too deeply.
        CelTimeExceededError: the deadline passed.
    """
    size = len(source.encode(errors="surrogatepass"))
    if size > limits.expression_bytes:
        raise CelSyntaxError(f"the expression has {size} bytes, {limits.expression_bytes} are allowed")
    try:
        tree = _parse(source, deadline or never())
    except CelError as error:
        error.source = source
        raise
    if tree.depth > limits.nesting:
        raise CelSyntaxError(
            f"the expression is nested {tree.depth} levels deep, {limits.nesting} are allowed", tree.offset, source
        )
    return tree


def _parse(source: str, deadline: Deadline) -> Node:
    with _BUILDING:
        parser, builder = _parser()
    import lark

    try:
        with builder.until(deadline):
            tree: Node = parser.parse(source)
    except lark.UnexpectedToken as error:
        if error.token.type == "$END":
            raise CelSyntaxError("the expression ends too early", len(source)) from None
        raise CelSyntaxError(f"unexpected '{error.token}'", error.pos_in_stream) from None
    except lark.UnexpectedCharacters as error:
        raise CelSyntaxError(_bad_character(error.char), error.pos_in_stream) from None
    return tree


def _bad_character(character: str) -> str:
    if character in "\"'":
        return "a string does not end, or contains an unknown escape"
    if character == "`":
        return "fields in backquotes are not supported: write map['a.b']"
    return f"unexpected '{character}'"


def estimate(tree: Node, compiler: Compiler, source: str, size_of: SizeOf) -> int:
    """The estimated highest cost, in the API server's units (`kubecel.estimating.estimate`)."""
    return Estimator(size_of, library_estimate, compiler.deadline).cost(Expander(compiler, source).expand(tree))


def _check_estimate(cost: int, most: int) -> None:
    if cost > most:
        raise CelCostExceededError(
            f"too complex, exceeds cost limit: the estimated cost is {cost}, {most} is allowed: loop over less, compare"
            " or search shorter texts, or split the expression"
        )


class Program:
    """A compiled expression. Immutable and thread-safe.

    Attributes:
        source: the text of the expression.
        syntax: its syntax tree, for analyses.
        references: every path that it reads, starting at a variable, e.g. `("object", "spec", "containers")`.
    """

    __slots__ = ("_blank", "_code", "_roots", "_wanted", "references", "source", "syntax")

    def __init__(self, source: str, tree: Node, compiler: Compiler, code: Code, wanted: Type) -> None:
        self.source = source
        self.syntax = tree
        self.references: frozenset[tuple[str, ...]] = references(tree, compiler.roots)
        self._code = code
        self._roots = tuple((index, name) for name, index in compiler.roots.items())
        self._blank: tuple[object, ...] = (None,) * compiler.slots
        # The type of a dyn value is known only at run time.
        self._wanted = wanted if wanted != DYN and code.type == DYN else None

    @property
    def result(self) -> Type:
        """The static type of its value."""
        return self._code.type

    def evaluate(self, variables: Mapping[str, object], budget: Budget) -> object:
        """Evaluate.

        Args:
            variables: a value for every variable that the expression uses: data as `json` decodes it, or values of
                `kubecel.values`. They are not copied and not changed.

        Returns:
            None, bool, int, float, str, bytes, list, dict, or a value of `kubecel.values` or
            `kubecel.library.kubernetes`.

        Raises:
            CelRuntimeError: the evaluation failed; with the position.
            CelBudgetExceededError: a limit is reached.
        """
        frame: list[object] = [*self._blank]
        frame[BUDGET] = budget
        for index, name in self._roots:
            try:
                frame[index] = variables[name]
            except KeyError:
                raise CelRuntimeError(f"no value is given for the variable '{name}'", None, self.source) from None
        try:
            budget.enter(self._code.cost)
            value = self._code.run(frame)
            if self._wanted is not None and kind_of(value).name != self._wanted.name:
                raise CelRuntimeError(
                    f"the expression returns {kind_of(value).name}, but must return {self._wanted}", self.syntax.offset
                )
        except CelError as error:
            if not error.source:
                error.source = self.source
            raise
        except RecursionError:
            raise CelBudgetExceededError(
                "evaluation is nested too deeply: nest less, or loop over values that are nested less",
                None,
                self.source,
            ) from None
        return value


class Cel:
    """Compiles expressions. Thread-safe."""

    def __init__(
        self,
        limits: Limits = DEFAULT_LIMITS,
        library: Library = LIBRARY,
        hint: Hint = no_hint,
        shared: frozenset[str] = frozenset(),
    ) -> None:
        """Prepare.

        Args:
            limits: of every expression.
            hint: suggests a known name for an unknown one.
            shared: variables with the same values in all evaluations that share `Budget.results`. Loops that read only
                these are evaluated once for all of them.
        """
        self._shared = shared
        self._limits = limits
        self._hint = hint
        self._library = library
        self._mutating = MUTATION_LIBRARY

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
        deadline = deadline or never()
        tree = parse(source, self._limits, deadline)
        compiler = Compiler(
            variables,
            self._mutating if mutates else self._library,
            self._limits,
            self._hint,
            deadline,
            source=source,
            shared=self._shared,
            objects=mutation_type if mutates else no_objects,
        )
        try:
            code = compiler.compile(tree)
            if not compiler.types.assignable(code.type, result):
                raise CelTypeError(f"the expression returns {code.type}, but must return {result}", tree.offset)
            compiler.check_literals()
            code = dataclasses.replace(code, type=compiler.types.final(code.type))
            if limit is not None:
                _check_estimate(estimate(tree, compiler, source, limit.size_of), limit.most)
            if compiler.unfolded is not None:
                raise compiler.unfolded
        except CelError as error:
            error.source = source
            raise
        except RecursionError:
            raise CelSyntaxError("the expression is nested too deeply", tree.offset, source) from None
        return Program(source, tree, compiler, code, result)
