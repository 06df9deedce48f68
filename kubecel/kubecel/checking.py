"""Functions of expressions: signatures for the compiler, and dispatch by the types at run time; sizes of estimates.

Sizes and costs of an estimate are unsigned 64-bit integers that saturate instead of overflowing. Source: cel-go
checker/cost.go (SizeEstimate, CostEstimate, multiplyByCostFactor).
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from kubecel.budget import Budget
from kubecel.types import Type, Unifier
from kubecel.values import Optional, is_list, kind_of, no_overload

Implementation = Callable[..., object]
LiteralCheck = Callable[[Budget, str], object]
"""Refuses a constant argument with a `CelRuntimeError`. Charges the budget."""


@dataclasses.dataclass(frozen=True, slots=True)
class Overload:
    """One signature of one function.

    Attributes:
        name: with its namespace, e.g. `sets.contains`.
        parameters: types of the arguments; a method's receiver comes first.
        call: the implementation. Its parameters are the budget, if `budgeted`, then the arguments.
        method: it is called as `receiver.name(…)`.
        budgeted: its cost depends on its arguments.
        literal: position of an argument, and a check of constants at that position. A failed check is a compile error,
            as for regular expressions in the API server.
    """

    name: str
    parameters: tuple[Type, ...]
    result: Type
    call: Implementation
    method: bool = False
    budgeted: bool = False
    literal: tuple[int, LiteralCheck] | None = None


def function(name: str, *parameters: Type, result: Type, call: Implementation, **details: Any) -> Overload:
    """An overload that is called as `name(…)`."""
    return Overload(name, parameters, result, call, **details)


def method(name: str, *parameters: Type, result: Type, call: Implementation, **details: Any) -> Overload:
    """An overload that is called as `receiver.name(…)`."""
    return Overload(name, parameters, result, call, method=True, **details)


class Library:
    """Functions by name. Immutable."""

    def __init__(self, overloads: Iterable[Overload]) -> None:
        table: dict[tuple[str, bool], list[Overload]] = {}
        for overload in overloads:
            table.setdefault((overload.name, overload.method), []).append(overload)
        self._table: Mapping[tuple[str, bool], tuple[Overload, ...]] = {
            key: tuple(found) for key, found in table.items()
        }

    def find(self, name: str, *, method: bool) -> tuple[Overload, ...]:
        """All signatures of a function or method; empty if it does not exist."""
        return self._table.get((name, method), ())

    def names(self, *, method: bool) -> tuple[str, ...]:
        return tuple(name for name, is_method in self._table if is_method is method)


def matching(
    unifier: Unifier, candidates: tuple[Overload, ...], arguments: tuple[Type, ...]
) -> tuple[tuple[Overload, ...], Type]:
    """The signatures that accept arguments of these static types, and the type of the result (dyn if several)."""
    found, result = unifier.result(((*overload.parameters, overload.result) for overload in candidates), arguments)
    return tuple(candidates[position] for position in found), result


class Dispatcher:
    """Finds the implementation for the types of the arguments, and caches it."""

    def __init__(self, name: str, candidates: tuple[Overload, ...]) -> None:
        self._name = name
        self._candidates = candidates
        self.budgeted = any(overload.budgeted for overload in candidates)
        self.table: dict[Any, Implementation] = {}

    def resolve(self, *arguments: object) -> Implementation:
        """The implementation that accepts these arguments.

        Raises:
            CelRuntimeError: there is none.
        """
        for overload in self._candidates:
            if all(_accepts(formal, value) for formal, value in zip(overload.parameters, arguments, strict=True)):
                chosen = overload.call
                if self.budgeted and not overload.budgeted:
                    chosen = _without_budget(chosen)
                kinds = tuple(type(value) for value in arguments)
                self.table[kinds[0] if len(kinds) == 1 else kinds] = chosen
                return chosen
        raise no_overload(self._name, *arguments)


def _without_budget(call: Implementation) -> Implementation:
    def drop(_budget: Budget, *arguments: object) -> object:
        return call(*arguments)

    return drop


def _accepts(formal: Type, value: object) -> bool:
    name = formal.name
    if name == "dyn" or name.startswith("<"):
        return True
    if name == "list":
        return is_list(value)
    if name == "map":
        return isinstance(value, Mapping)
    if name == "optional_type":
        return isinstance(value, Optional)
    return kind_of(value).name == name


UNLIMITED: Final = 2**64 - 1
TRAVERSAL: Final = 0.1
"""Cost of reading one character (StringTraversalCostFactor)."""
PATTERN: Final = 0.25
"""Cost of one character of a regular expression for each character of the text (RegexStringLengthCostFactor)."""
NEW_LIST: Final = 10
NEW_MAP: Final = 30


def capped(number: int) -> int:
    """The number, at most 2^64 - 1."""
    return min(number, UNLIMITED)


def wrapped(number: int) -> int:
    """The lowest 64 bits: a few sizes overflow in cel-go, and the API server compares the result with its limit."""
    return number % 2**64


def scaled(number: int, factor: float) -> int:
    """The product, rounded up, in double precision like Go."""
    product = float(number) * factor
    return UNLIMITED if product >= 2.0**64 else math.ceil(product)


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """The lowest and the highest number of characters, bytes, elements or entries of a value."""

    least: int
    most: int

    def plus(self, other: "Size") -> "Size":
        """The size of both together."""
        return Size(capped(self.least + other.least), capped(self.most + other.most))

    def times(self, other: "Size") -> "Size":
        return Size(capped(self.least * other.least), capped(self.most * other.most))

    def union(self, other: "Size") -> "Size":
        return Size(min(self.least, other.least), max(self.most, other.most))

    def cost(self, factor: float) -> int:
        """The highest cost of reading all of it; `factor` is the cost of one part."""
        return scaled(self.most, factor)


UNKNOWN: Final = Size(0, UNLIMITED)


def fixed(size: int) -> Size:
    """The size of a value that always has this size."""
    return Size(size, size)


Path: TypeAlias = tuple[str, ...]
"""A variable, then names of fields, `@items` of a list, `@keys` and `@values` of a map; empty if unknown."""
SizeOf: TypeAlias = Callable[[Path], Size | None]
"""The declared size of the value at a path; None if there is none."""


@dataclasses.dataclass(frozen=True, slots=True)
class CostLimit:
    """The limit of an estimate.

    Attributes:
        most: the highest allowed cost, in the API server's units.
        size_of: sizes of the variables.
    """

    most: int
    size_of: SizeOf
