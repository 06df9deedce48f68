"""From a tree to closures: names are resolved, types checked and constants folded once, before any evaluation.

A closure takes the frame, a list: the budget, then a slot for every variable. What closures get is plain Python data;
what they raise is a `CelRuntimeError` with the offset of the node that failed.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kubecel import types
from kubecel.budget import Budget, Limits
from kubecel.checking.overloads import Library
from kubecel.checking.unify import Unifier
from kubecel.deadlines import Deadline, never
from kubecel.errors import CelBudgetExceededError, CelRuntimeError, CelSyntaxError, CelTypeError
from kubecel.syntax import nodes as syntax
from kubecel.types import Type

Hint = Callable[[str, Iterable[str]], str]
"""A trailing question with the known word that is nearest to an unknown one, or nothing."""
Frame = list[Any]
Run = Callable[[Frame], Any]

BUDGET: Final = 0
"""The slot of the budget."""
UNKNOWN: Final = object()
"""Stands for the constant value of what is not constant."""


@dataclasses.dataclass(frozen=True, slots=True)
class Code:
    """A compiled node.

    Attributes:
        run: computes the value.
        type: its static type.
        constant: its value where that is known, else `UNKNOWN`.
        path: slot and string keys, where the node is a chain of lookups from a variable; else None.
        cost: what running it costs for sure, in the units of Kubernetes. Who runs it charges that; what depends on
            values, on the branch taken or on the rounds of a loop is charged by `run` itself.
        lookup: whether it is a variable or a lookup, so that a further lookup extends it (cel-go: an attribute).
        saved: the part of `cost` that is not charged where it is a key or a branch of `? :`: cel-go reads an attribute
            there without evaluating it.
    """

    run: Run
    type: Type
    constant: Any = UNKNOWN
    path: tuple[int, tuple[str, ...]] | None = None
    cost: int = 0
    lookup: bool = False
    saved: int = 0

    @property
    def is_constant(self) -> bool:
        """Whether the value is known."""
        return self.constant is not UNKNOWN


def constant(value: object, described: Type, cost: int = 0) -> Code:
    """Code that always gives the same value."""
    return Code(lambda _: value, described, constant=value, cost=cost)


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
    """Where a variable lives in the frame."""

    index: int
    type: Type
    may_fail: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Failed:
    """Stands in the slot of a bound variable whose value could not be computed."""

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
    ) -> None:
        deadline = deadline or never()
        self.library = library
        self.hint = hint
        self.limits = limits
        self._variables = variables
        self._scope: dict[str, Slot] = {}
        self._loops = 0
        self.deadline = deadline
        seconds = min(limits.seconds, deadline.left)
        self.folding = Budget(deadline.clock, dataclasses.replace(limits, seconds=seconds))
        """For everything that is computed while the expression is compiled."""
        self.unfolded: CelBudgetExceededError | None = None
        """Why constants are not computed any more: they are too large. Raised when the estimate does not refuse first,
        which says the same on every machine."""
        self.mixes_types = False
        """Whether literals may mix types: only inside the arguments of `format`."""
        self.types = Unifier()
        self._known: dict[int, Type] = {}
        self._uniform: list[tuple[str, Type, Type, int]] = []
        self.slots = 1
        self.roots: dict[str, int] = {}

    def compile(self, node: syntax.Node) -> Code:
        """Compile a node and all below it.

        Raises:
            CelCompileError: with the offset of what is wrong.
            CelTimeExceededError: the deadline passed.
        """
        self.deadline.look()
        code = _HANDLERS[type(node)](self, node)
        described = self.types.resolve(code.type)
        self._known[id(node)] = described
        return code if described is code.type else dataclasses.replace(code, type=described)

    def type_of(self, node: syntax.Node) -> Type:
        """The type of a node that has been compiled; ask when all have been."""
        return self.types.final(self._known.get(id(node), types.DYN))

    def compiled(self, node: syntax.Node) -> bool:
        """Whether the node has code of its own: the parts of a dotted name of a type have none."""
        return id(node) in self._known

    def settled(self, described: Type) -> Type:
        """The type; where it, or what an optional holds, is not known yet, that is dyn from now on."""
        found = self.types.resolve(described)
        if found.name == "optional_type":
            return found.with_parameters(map(self.settled, found.parameters))
        if types.is_variable(found):
            self.types.assignable(types.DYN, found)
            return types.DYN
        return found

    def require_uniform(self, what: str, first: Type, other: Type, offset: int) -> None:
        """Ask that parts of one literal have the same type, once all types are known.

        Raises:
            CelTypeError: they already have different ones.
        """
        if not self.mixes_types:
            self._uniform.append((what, first, other, offset))
            if not _has_variables(first) and not _has_variables(other):
                self._check_uniform(what, first, other, offset)

    def check_literals(self) -> None:
        """Check what `require_uniform` asked for.

        Raises:
            CelTypeError: parts of one literal have different types.
        """
        for what, first, other, offset in self._uniform:
            self._check_uniform(what, self.types.final(first), self.types.final(other), offset)

    def _check_uniform(self, what: str, first: Type, other: Type, offset: int) -> None:
        if first != other:
            raise CelTypeError(
                f"{what} of one literal have one type: expected {first}, found {other};"
                " dyn() around each lets them differ",
                offset,
            )

    def lookup(self, node: syntax.Ident) -> Slot | None:
        """The variable that a name means, if it means one. Adds a slot at the first use of a root variable."""
        slot = None if node.rooted else self._scope.get(node.name)
        if slot is None and node.name in self._variables:
            slot = self._root(node.name)
        return slot

    def names(self) -> tuple[str, ...]:
        """All variables that may be used here."""
        return (*self._variables, *self._scope)

    def _root(self, name: str) -> Slot:
        index = self.roots.get(name)
        if index is not None:
            return Slot(index, self._variables[name])
        slot = self._new_slot(self._variables[name])
        self.roots[name] = slot.index
        return slot

    def _new_slot(self, described: Type, may_fail: bool = False) -> Slot:
        slot = Slot(self.slots, described, may_fail)
        self.slots += 1
        return slot

    def within(
        self, declared: Mapping[str, Type], *bodies: syntax.Node, may_fail: bool = False
    ) -> tuple[list[int], list[Code]]:
        """Compile bodies that see further variables.

        Args:
            declared: names and types of the variables; they hide others of the same name.
            bodies: what sees them.
            may_fail: whether their slots may hold a `Failed`.

        Returns:
            The slots of the variables, and the bodies' code.
        """
        slots = [self._new_slot(described, may_fail) for described in declared.values()]
        outer = self._scope
        self._scope = {**outer, **dict(zip(declared, slots, strict=True))}
        try:
            code = [self.compile(body) for body in bodies]
        finally:
            self._scope = outer
        return [slot.index for slot in slots], code

    def enter_loop(self, node: syntax.Node) -> None:
        """Count a loop inside a loop.

        Raises:
            CelSyntaxError: too many.
        """
        self._loops += 1
        if self._loops > self.limits.comprehension_nesting:
            raise CelSyntaxError(
                f"loops are nested more than {self.limits.comprehension_nesting} deep: split the expression",
                node.offset,
            )

    def leave_loop(self) -> None:
        """The loop has been compiled."""
        self._loops -= 1


def _has_variables(described: Type) -> bool:
    return types.is_variable(described) or any(map(_has_variables, described.parameters))


def fold(code: Code, compiler: Compiler) -> Code:
    """Compute now what depends on nothing; what fails to compute stays as it is, to fail when it is evaluated."""
    try:
        return folded(code, compiler)
    except CelRuntimeError:
        return code


def folded(code: Code, compiler: Compiler) -> Code:
    """The code's value, which costs at run time what it would cost there; the code itself once `unfolded` is set.

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
    return constant(value, code.type, code.cost + compiler.folding.spent - before)


def undeclared(compiler: Compiler, node: syntax.Ident) -> CelTypeError:
    """The error for a name that nothing declares."""
    known = dict.fromkeys((*compiler.names(), *types.NAMED))
    hint = compiler.hint(node.name, known) or (
        f" Known here: {', '.join(sorted(compiler.names()))}." if compiler.names() else ""
    )
    return CelTypeError(f"there is no variable '{'.' * node.rooted}{node.name}'.{hint}", node.offset)


_HANDLERS: dict[type, Callable[[Compiler, Any], Code]] = {}


def compiles(kind: type) -> Callable[[Callable[[Compiler, Any], Code]], Callable[[Compiler, Any], Code]]:
    """Register the compilation of one kind of node."""

    def register(handler: Callable[[Compiler, Any], Code]) -> Callable[[Compiler, Any], Code]:
        _HANDLERS[kind] = handler
        return handler

    return register
