"""Compiles a tree to closures: resolves names, checks types and folds constants once, before the evaluations.

A closure takes the frame, a list: the budget, then a slot for every variable. It returns plain Python data, or raises a
`CelRuntimeError` with the offset of the node that failed.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kubecel import types
from kubecel.budget import Budget, Deadline, Limits, never
from kubecel.checking import Library
from kubecel.errors import CelBudgetExceededError, CelRuntimeError, CelSyntaxError, CelTypeError
from kubecel.syntax import nodes as syntax
from kubecel.syntax.nodes import references
from kubecel.types import Type, Unifier

Hint = Callable[[str, Iterable[str]], str]
"""Takes an unknown word and the known words. Returns a question with the nearest known word, or an empty text."""
ObjectTypes = Callable[[str], Type | None]
"""Takes the name of a type. Returns the type, if an expression can make objects of it."""
Frame = list[Any]
Run = Callable[[Frame], Any]

BUDGET: Final = 0
"""The index of the budget in the frame."""
UNKNOWN: Final = object()
"""Marks code that is not constant."""


@dataclasses.dataclass(frozen=True, slots=True)
class Code:
    """A compiled node.

    Attributes:
        constant: its value if it is constant, else `UNKNOWN`.
        path: slot and string keys if the node is a chain of lookups that starts at a variable; else None.
        cost: the fixed cost, in the units of Kubernetes, which the caller of `run` charges. `run` itself charges costs
            that depend on values, on the chosen branch or on the rounds of a loop.
        lookup: it is a variable or a lookup, which a further lookup extends (cel-go: an attribute).
        saved: the part of `cost` that is not charged if it is a key or a branch of `? :`: cel-go reads an attribute
            there without evaluating it.
        literal: cel-go knows its value when it plans the evaluation (interpreter/decorators.go, decOptimize): it is a
            literal, or a list, a map or a conversion of these. It costs nothing, and a conversion that fails is an
            error of the compilation. Other constants are computed here, but cel-go computes them in each evaluation.
    """

    run: Run
    type: Type
    constant: Any = UNKNOWN
    path: tuple[int, tuple[str, ...]] | None = None
    cost: int = 0
    lookup: bool = False
    saved: int = 0
    literal: bool = False

    @property
    def is_constant(self) -> bool:
        """Is the value known?"""
        return self.constant is not UNKNOWN


def constant(value: object, described: Type, cost: int = 0, *, literal: bool = False) -> Code:
    return Code(lambda _: value, described, constant=value, cost=cost, literal=literal)


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
    """The place of a variable in the frame."""

    index: int
    type: Type
    pending: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Pending:
    """The value of a slot that is computed, and charged `cost`, when it is read first."""

    run: Run
    cost: int

    def computed(self, frame: Frame) -> Any:
        """The value, or `Failed`."""
        budget = frame[BUDGET]
        before = budget.once + budget.left
        budget.left -= self.cost
        try:
            return self.run(frame)
        except CelRuntimeError as error:
            return Failed(error)
        finally:
            budget.once = before - budget.left


@dataclasses.dataclass(frozen=True, slots=True)
class Failed:
    """The value of a slot if its computation failed."""

    error: CelRuntimeError


def no_hint(word: str, known: Iterable[str]) -> str:  # noqa: ARG001 - see `Hint`
    """Suggest nothing."""
    return ""


class Compiler:
    """Compiles one expression. Use once."""

    def __init__(
        self,
        variables: Mapping[str, Type],
        library: Library,
        limits: Limits,
        hint: Hint = no_hint,
        deadline: Deadline | None = None,
        *,
        source: str = "",
        shared: frozenset[str] = frozenset(),
        objects: ObjectTypes = types.no_objects,
    ) -> None:
        """`shared`: variables with the same values in all evaluations that share `Budget.results`."""
        deadline = deadline or never()
        self._source = source
        self._shared = shared
        self.library = library
        self.objects = objects
        self.hint = hint
        self.limits = limits
        self._variables = variables
        self._scope: dict[str, Slot] = {}
        self._loops = 0
        self.deadline = deadline
        seconds = min(limits.seconds, deadline.left)
        self.folding = Budget(deadline.clock, dataclasses.replace(limits, seconds=seconds))
        """Budget for constants, which are computed at compile time."""
        self.unfolded: CelBudgetExceededError | None = None
        """The error of a constant that is too large; after it, constants are not computed. It is raised after the
        estimate, because the result of the estimate is the same on every machine."""
        self.mixes_types = False
        """Are literals of mixed types allowed? Only in the arguments of `format`."""
        self.types = Unifier()
        self._known: dict[int, Type] = {}
        self._uniform: list[tuple[str, Type, Type, int]] = []
        self.at_end: list[Callable[[], None]] = []
        """Checks of static types that `check_literals` makes, when all types are known."""
        self.slots = 1
        self.roots: dict[str, int] = {}

    def compile(self, node: syntax.Node) -> Code:
        """Compile a node and all nodes below it.

        Raises:
            CelCompileError: the expression is wrong; with the offset.
            CelTimeExceededError: the deadline passed.
        """
        self.deadline.look()
        code = _HANDLERS[type(node)](self, node)
        self._known[id(node)] = code.type
        return code

    def type_of(self, node: syntax.Node) -> Type:
        """The type of a compiled node. Call it after all nodes are compiled."""
        return self.types.final(self._known.get(id(node), types.DYN))

    def compiled(self, node: syntax.Node) -> bool:
        """Does the node have code? The parts of a dotted type name do not."""
        return id(node) in self._known

    def settled(self, described: Type) -> Type:
        """The type. If it, or the inner type of an optional, is not known yet, it becomes dyn."""
        found = self.types.resolve(described)
        if found.name == "optional_type":
            return found.with_parameters(map(self.settled, found.parameters))
        if types.is_variable(found):
            self.types.assignable(types.DYN, found)
            return types.DYN
        return found

    def require_uniform(self, what: str, first: Type, other: Type, offset: int) -> None:
        """Require the same type for parts of a literal. `check_literals` checks types that are not known yet.

        Raises:
            CelTypeError: the types are known and different.
        """
        if not self.mixes_types:
            self._uniform.append((what, first, other, offset))
            if not has_variables(first) and not has_variables(other):
                self._check_uniform(what, first, other, offset)

    def check_literals(self) -> None:
        """Check the requirements of `require_uniform`, when all types are known.

        Raises:
            CelTypeError: parts of a literal have different types, or a check of `at_end` fails.
        """
        for what, first, other, offset in self._uniform:
            self._check_uniform(what, self.types.final(first), self.types.final(other), offset)
        for check in self.at_end:
            check()

    def _check_uniform(self, what: str, first: Type, other: Type, offset: int) -> None:
        if first != other:
            raise CelTypeError(
                f"all {what} of a literal must have the same type: expected {first}, found {other};"
                " wrap each in dyn() to mix",
                offset,
            )

    def lookup(self, node: syntax.Ident) -> Slot | None:
        """The variable that a name means, if it means one. Adds a slot at the first use of a root variable."""
        slot = None if node.rooted else self._scope.get(node.name)
        if slot is None and node.name in self._variables:
            slot = self._root(node.name)
        return slot

    def names(self) -> tuple[str, ...]:
        """All variables in scope."""
        return (*self._variables, *self._scope)

    def _root(self, name: str) -> Slot:
        index = self.roots.get(name)
        if index is not None:
            return Slot(index, self._variables[name])
        slot = self._new_slot(self._variables[name])
        self.roots[name] = slot.index
        return slot

    def _new_slot(self, described: Type, pending: bool = False) -> Slot:
        slot = Slot(self.slots, described, pending)
        self.slots += 1
        return slot

    def within(
        self, declared: Mapping[str, Type], *bodies: syntax.Node, pending: bool = False
    ) -> tuple[list[int], list[Code]]:
        """Compile bodies with more variables in scope.

        Args:
            declared: names and types of the variables; they hide others of the same name.
            bodies: the nodes in which the variables are in scope.
            pending: their slots are set to a value `Pending`.

        Returns:
            The slots of the variables, and the code of the bodies.
        """
        slots = [self._new_slot(described, pending) for described in declared.values()]
        outer = self._scope
        self._scope = {**outer, **dict(zip(declared, slots, strict=True))}
        try:
            code = [self.compile(body) for body in bodies]
        finally:
            self._scope = outer
        return [slot.index for slot in slots], code

    def shared_text(self, node: syntax.Node) -> str:
        """The text of a node, if it reads no other variables than shared ones; else empty."""
        if self._scope or not self._shared:
            return ""
        read = {path[0] for path in references(node, self._variables)}
        return self._source[node.start : node.end] if read <= self._shared else ""

    def enter_loop(self, node: syntax.Node) -> None:
        """Count a nested loop.

        Raises:
            CelSyntaxError: too many loops are nested.
        """
        self._loops += 1
        if self._loops > self.limits.comprehension_nesting:
            raise CelSyntaxError(
                f"loops are nested more than {self.limits.comprehension_nesting} deep: split the expression",
                node.offset,
            )

    def leave_loop(self) -> None:
        """End the loop of `enter_loop`."""
        self._loops -= 1


def has_variables(described: Type) -> bool:
    return types.is_variable(described) or any(map(has_variables, described.parameters))


def fold(code: Code, compiler: Compiler) -> Code:
    """Compute a constant expression at compile time. If it fails, the code stays, and fails at run time."""
    try:
        return folded(code, compiler)
    except CelRuntimeError:
        return code


def folded(code: Code, compiler: Compiler) -> Code:
    """The value of constant code, with the cost of the computation. Returns the code itself if `unfolded` is set.

    Raises:
        CelRuntimeError: it cannot be computed.
    """
    if compiler.unfolded is not None:
        return code
    before = compiler.folding.spent
    try:
        value = code.run([compiler.folding])
    except CelBudgetExceededError as error:
        compiler.unfolded = error
        return code
    if code.literal:
        return constant(value, code.type, literal=True)
    return constant(value, code.type, code.cost + compiler.folding.spent - before)


def undeclared(compiler: Compiler, node: syntax.Ident) -> CelTypeError:
    known = dict.fromkeys((*compiler.names(), *types.NAMED))
    hint = compiler.hint(node.name, known) or (
        f" Known here: {', '.join(sorted(compiler.names()))}." if compiler.names() else ""
    )
    return CelTypeError(f"there is no variable '{'.' * node.rooted}{node.name}'.{hint}", node.offset)


_HANDLERS: dict[type, Callable[[Compiler, object], Code]] = {}


def compiles(kind: type) -> Callable[[Callable[[Compiler, Any], Code]], Callable[[Compiler, Any], Code]]:
    """Register a compile function for one kind of node."""

    def register(handler: Callable[[Compiler, Any], Code]) -> Callable[[Compiler, Any], Code]:
        _HANDLERS[kind] = handler
        return handler

    return register
