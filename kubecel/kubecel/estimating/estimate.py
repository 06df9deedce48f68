"""Estimates the highest cost of an expression before its evaluation.

The API server refuses a device selector whose estimate is above its limit. Source: cel-go checker/cost.go (0.27), with
`PresenceTestHasCost(false)`, as Kubernetes sets it. Every expression is visited once, also if macros copy it.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final

from kubecel import types
from kubecel.budget import Deadline, never
from kubecel.checking import (
    NEW_LIST,
    NEW_MAP,
    PATTERN,
    TRAVERSAL,
    UNKNOWN,
    Path,
    Size,
    SizeOf,
    capped,
    fixed,
    wrapped,
)
from kubecel.estimating.expansion import (
    ACCUMULATOR,
    Apply,
    Constant,
    Expression,
    Field,
    Fold,
    Let,
    Listing,
    Mapping,
    Name,
    Signature,
)
from kubecel.types import BOOL, BYTES, DOUBLE, DURATION, INT, STRING, TIMESTAMP, UINT, Type


@dataclasses.dataclass(frozen=True, slots=True)
class Operand:
    """An argument of a call.

    Attributes:
        path: the path of its value, if it is a lookup.
        computed: its size; None if it is not known.
    """

    expression: Expression
    path: Path
    computed: Size | None

    @property
    def type(self) -> Type:
        return self.expression.type

    @property
    def size(self) -> Size:
        """Its size; unlimited if it is not known."""
        return self.computed or UNKNOWN


@dataclasses.dataclass(frozen=True, slots=True)
class Estimate:
    """The highest cost of a call without its arguments, and the size of its result."""

    cost: int
    size: Size | None = None


CallEstimate = Callable[[SizeOf, str, Signature, Operand | None, Sequence[Operand]], Estimate | None]
"""The estimate of a library for a call of one signature; None for the default estimate."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Entries:
    """Sizes of keys (or positions) and values of a list or map."""

    is_list: bool
    key: Size
    value: Size


@dataclasses.dataclass(frozen=True, slots=True)
class _Local:
    """A variable of a macro."""

    path: Path
    size: Size | None
    entries: _Entries | None = None


_SCALARS: Final = frozenset({BOOL, DOUBLE, DURATION, INT, TIMESTAMP, UINT})
_TEXT: Final = frozenset({STRING, BYTES})
_COMPARED: Final = frozenset({"_==_", "_!=_"})
_ORDERED: Final = frozenset({"_<_", "_<=_", "_>_", "_>=_"})


class Estimator:
    """Estimates one expression. Use once."""

    def __init__(self, size_of: SizeOf, library: CallEstimate, deadline: Deadline | None = None) -> None:
        self._size_of = size_of
        self._library = library
        self._deadline = deadline or never()
        self._paths: dict[Expression, Path] = {}
        self._sizes: dict[Expression, Size] = {}
        self._entries: dict[Expression, _Entries] = {}
        self._costs: dict[Expression, int] = {}
        self._locals: dict[str, list[_Local]] = {}

    def cost(self, expression: Expression) -> int:
        """The highest cost of an expression with all its parts."""
        known = self._costs.get(expression)
        if known is None:
            self._deadline.look()
            known = self._costs[expression] = capped(self._cost(expression))
        return known

    def _cost(self, expression: Expression) -> int:
        match expression:
            case Constant():
                return 0
            case Name():
                hidden = expression.rooted and self._locals.get(expression.name)
                # cel-go names a variable that a macro hides with its leading dot, so that its size is not known.
                self._paths[expression] = self._path(expression) or (f"{'.' * bool(hidden)}{expression.name}",)
                return 1
            case Field():
                return self._field(expression)
            case Apply():
                return self._apply(expression)
            case Listing():
                return self._list(expression)
            case Mapping():
                return self._map(expression)
            case Fold():
                return self._fold(expression)
            case Let():
                return self._let(expression)

    # --- paths, sizes and entries -------------------------------------------------------------------------

    def _local(self, expression: Expression) -> _Local | None:
        stack = self._locals.get(expression.name) if isinstance(expression, Name) and not expression.rooted else None
        return stack[-1] if stack else None

    def _path(self, expression: Expression) -> Path:
        local = self._local(expression)
        return self._paths.get(expression, ()) if local is None else local.path

    def _size(self, expression: Expression) -> Size | None:
        size = self._sizes.get(expression) or _own_size(expression)
        if size is not None:
            return size
        size = self._size_of(self._path(expression))
        if size is not None:
            self._sizes[expression] = size
            return size
        if _is_scalar(expression.type):
            return fixed(1)
        local = self._local(expression)
        return None if local is None else local.size

    def _entries_of(self, expression: Expression) -> _Entries | None:
        known = self._entries.get(expression)
        if known is not None:
            return known
        local = self._local(expression)
        return None if local is None else local.entries

    def _copy(self, to: Expression, source: Expression) -> None:
        size, entries = self._size(source), self._entries_of(source)
        if size is not None:
            self._sizes[to] = size
        if entries is not None:
            self._entries[to] = entries

    def _operand(self, expression: Expression) -> Operand:
        path = self._path(expression)
        return Operand(expression, () if path[:1] == (ACCUMULATOR,) else path, self._size(expression))

    # --- literals and lookups -----------------------------------------------------------------------------

    def _field(self, field: Field) -> int:
        cost = self.cost(field.operand)
        if field.test:
            return cost
        self._paths[field] = (*self._path(field.operand), field.name)
        described = field.operand.type
        return cost + (described.name == "map" or described.fields is not None)

    def _list(self, listing: Listing) -> int:
        cost = sum(map(self.cost, listing.elements))
        self._entries[listing] = _Entries(True, fixed(1), self._union(listing.elements))
        return cost + NEW_LIST

    def _map(self, mapping: Mapping) -> int:
        cost = sum(self.cost(key) + self.cost(value) for key, value in mapping.entries)
        keys = self._union([key for key, _ in mapping.entries])
        self._entries[mapping] = _Entries(False, keys, self._union([value for _, value in mapping.entries]))
        return cost + NEW_MAP

    def _union(self, parts: Sequence[Expression]) -> Size:
        sizes = [self._size(part) or UNKNOWN for part in parts] or [fixed(0)]
        return Size(min(size.least for size in sizes), max(size.most for size in sizes))

    # --- variables ----------------------------------------------------------------------------------------

    def _let(self, let: Let) -> int:
        # cel-go expands cel.bind to a loop over an empty list.
        cost = NEW_LIST + self.cost(let.value)
        self._declare(let.variable, self._variable(let.value))
        cost += self.cost(let.body)
        self._locals[let.variable].pop()
        self._copy(let, let.body)
        return cost

    def _variable(self, value: Expression) -> _Local:
        return _Local(self._path(value), self._size(value), self._entries_of(value))

    def _declare(self, name: str, local: _Local) -> None:
        self._locals.setdefault(name, []).append(local)

    def _fold(self, fold: Fold) -> int:
        cost = self.cost(fold.over) + self.cost(fold.init)
        self._declare(ACCUMULATOR, self._variable(fold.init))
        for name, local in zip(fold.variables, self._elements(fold), strict=True):
            self._declare(name, local)
        round_cost = capped(self.cost(fold.condition) + self.cost(fold.step))
        for name in fold.variables:
            self._locals[name].pop()
        cost += self.cost(fold.result)
        self._locals[ACCUMULATOR].pop()
        rounds = self._size(fold.over) or UNKNOWN
        self._set_size_of_fold(fold, rounds)
        return cost + capped(rounds.most * round_cost)

    def _set_size_of_fold(self, fold: Fold, rounds: Size) -> None:
        if isinstance(fold.init, Constant):
            self._sizes[fold] = fixed(1)
            return
        self._sizes[fold] = rounds
        entries = self._entries_of(fold.step)
        if entries is not None:
            self._entries[fold] = entries

    def _elements(self, fold: Fold) -> list[_Local]:
        """The loop's variables: one (element, or key), or two (position or key, then value)."""
        entries, path = self._entries_of(fold.over), self._path(fold.over)
        is_list = fold.over.type.name == "list" if entries is None else entries.is_list
        key_size, value_size = (None, None) if entries is None else (entries.key, entries.value)
        key = _Local((*path, "@indices" if is_list else "@keys"), key_size)
        value = _Local((*path, "@items" if is_list else "@values"), value_size)
        if len(fold.variables) > 1:
            return [key, value]
        return [value if is_list else key]

    # --- calls --------------------------------------------------------------------------------------------

    def _apply(self, call: Apply) -> int:
        if call.function == "dyn":
            cost = 1 + self.cost(call.arguments[0])
            self._copy(call, call.arguments[0])
            return cost
        costs = [self.cost(argument) for argument in call.arguments]
        arguments = [self._operand(argument) for argument in call.arguments]
        cost, target = 0, None
        if call.target is not None:
            cost, target = self.cost(call.target), self._operand(call.target)
        most, size = 0, None
        for signature in call.candidates:
            estimate = self._estimate(call, signature, target, arguments, costs)
            most = max(most, estimate.cost)
            size = estimate.size if size is None else size if estimate.size is None else size.union(estimate.size)
            size = self._indexed(call, signature, size)
            size = self._size(call) if size is None else size
        if size is not None:
            self._sizes[call] = size
        return cost + most

    def _indexed(self, call: Apply, signature: Signature, size: Size | None) -> Size | None:
        """The size of an element if the call is an index; else `size`."""
        if call.function != "_[_]" or signature[0].name not in {"list", "map"}:
            return size
        container = call.arguments[0]
        entries = self._entries_of(container)
        self._paths[call] = (*self._path(container), "@items" if signature[0].name == "list" else "@values")
        return None if entries is None else entries.value

    def _estimate(
        self,
        call: Apply,
        signature: Signature,
        target: Operand | None,
        arguments: Sequence[Operand],
        costs: Sequence[int],
    ) -> Estimate:
        if call.function in {"_&&_", "_||_"}:
            return Estimate(capped(sum(costs)))
        if call.function == "_?:_":
            return self._choice(call, arguments, costs)
        own = self._library(self._size_of, call.function, signature, target, arguments)
        if own is None:
            own = self._operator(call, signature, arguments) or _standard(call.function, signature, target, arguments)
        return Estimate(capped(own.cost + sum(costs)), own.size)

    def _choice(self, call: Apply, arguments: Sequence[Operand], costs: Sequence[int]) -> Estimate:
        entries = _joined(self._entries_of(call.arguments[1]), self._entries_of(call.arguments[2]))
        if entries is not None:
            self._entries[call] = entries
        return Estimate(capped(costs[0] + max(costs[1:])), arguments[1].size.union(arguments[2].size))

    def _operator(self, call: Apply, signature: Signature, arguments: Sequence[Operand]) -> Estimate | None:
        if call.function == "@in" and signature[1].name == "list":
            return Estimate(arguments[1].size.cost(1))
        if call.function in _COMPARED or (call.function in _ORDERED and signature[0] in _TEXT):
            smaller = min(arguments[0].size.most, arguments[1].size.most)
            return Estimate(Size(0, smaller).cost(TRAVERSAL))
        if call.function == "_+_" and (signature[0] in _TEXT or signature[0].name == "list"):
            return self._sum(call, signature, arguments)
        return None

    def _sum(self, call: Apply, signature: Signature, arguments: Sequence[Operand]) -> Estimate:
        size = arguments[0].size.plus(arguments[1].size)
        entries = _joined(self._entries_of(call.arguments[0]), self._entries_of(call.arguments[1]))
        if entries is not None:
            self._entries[call] = entries
        return Estimate(1 if signature[0].name == "list" else size.cost(TRAVERSAL), size)


def _own_size(expression: Expression) -> Size | None:
    """The size of a literal; None for other expressions."""
    match expression:
        case Constant(value=str() | bytes() as value):
            return fixed(len(value))
        case Constant():
            return fixed(1)
        case Listing():
            return fixed(len(expression.elements))
        case Mapping():
            return fixed(len(expression.entries))
        case _:
            return None


def _is_scalar(described: Type) -> bool:
    if described.name == "optional_type":
        return _is_scalar(described.parameters[0])
    return described in _SCALARS


def _joined(first: _Entries | None, second: _Entries | None) -> _Entries | None:
    if first is None or second is None:
        return None
    return _Entries(first.is_list, first.key.union(second.key), first.value.union(second.value))


def _standard(function: str, signature: Signature, target: Operand | None, arguments: Sequence[Operand]) -> Estimate:
    """The estimate of a standard function without its arguments. The default is 1."""
    size = arguments[0].size if arguments else UNKNOWN
    if target is None:
        match function, signature:
            case "bytes", (types.STRING,):
                return Estimate(size.cost(TRAVERSAL), Size(size.least, wrapped(size.most * 4)))
            case "string", (types.BYTES,):
                return Estimate(size.cost(TRAVERSAL), Size(size.least // 4, size.most))
            case "strings.quote", _:
                return Estimate(size.cost(TRAVERSAL), Size(wrapped(size.least + 2), wrapped(size.most * 2 + 2)))
        return Estimate(1)
    match function:
        case "format":
            return Estimate(target.size.cost(TRAVERSAL))
        case "startsWith" | "endsWith":
            return Estimate(size.cost(TRAVERSAL))
        case "contains":
            return Estimate(capped(target.size.cost(TRAVERSAL) * size.cost(TRAVERSAL)))
        case "matches":
            return Estimate(capped(target.size.plus(fixed(1)).cost(TRAVERSAL) * size.cost(PATTERN)))
    return Estimate(1)
