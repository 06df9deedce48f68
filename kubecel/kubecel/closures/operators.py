"""Compiling operators: logic that absorbs errors, comparison, membership, arithmetic."""

import dataclasses
import functools
import operator as python
from collections.abc import Callable, Mapping
from typing import Any, Final

from kubecel import types
from kubecel.closures import arithmetic
from kubecel.closures.access import flattening, located
from kubecel.closures.compiler import BUDGET, Code, Compiler, Frame, Run, compiles, constant, fold
from kubecel.errors import CelRuntimeError, CelTypeError
from kubecel.sizes import charge_pair, size_of
from kubecel.syntax import nodes as syntax
from kubecel.types import BOOL
from kubecel.values import (
    MAX_INT,
    MIN_INT,
    Optional,
    UInt,
    contains,
    equal,
    is_list,
    key_of,
    less,
    name_of,
    no_overload,
    orderable,
)

CALL_COST: Final = 1
"""Cost of a call of a function or operator: cel-go interpreter/runtimecost.go, costCall."""
_CHARACTERS_OF_ONE_COST: Final = 10
_SCALARS: Final = frozenset({int, bool, float, type(None)})
_HASHED: Final = frozenset({bool, int, UInt, float, str})
"""Types of the literals that `in` of cel-go looks up in a set."""
_NUMBERS: Final = (types.INT, types.UINT, types.DOUBLE)
CONDITIONAL: Final = ((types.A, types.A, types.A),)
"""Signature of `_ ? then : otherwise`: types of both branches, then of the result."""
EQUALITY: Final = ((types.A, types.A, BOOL),)
ORDER: Final = (
    (BOOL, BOOL, BOOL),
    *((kind, other, BOOL) for kind in _NUMBERS for other in (kind, *(n for n in _NUMBERS if n != kind))),
    *((kind, kind, BOOL) for kind in (types.STRING, types.BYTES, types.TIMESTAMP, types.DURATION)),
)
MEMBERSHIP: Final = (
    (types.A, types.list_of(types.A), BOOL),
    (types.A, types.map_of(types.A, types.B), BOOL),
)
"""Signatures of `==`, of `< <= > >=` and of `in`, in the order of cel-go's checker."""


def not_bool(value: object, what: str, offset: int) -> CelRuntimeError:
    return CelRuntimeError(f"{what} requires bool, not {name_of(value)}", offset)


def check_bool(compiler: Compiler, code: Code, what: str, node: syntax.Node) -> None:
    """Require that code may return a bool. A type that is not known yet becomes bool.

    Raises:
        CelTypeError: its type is another.
    """
    if not compiler.types.assignable(code.type, BOOL):
        raise CelTypeError(f"{what} requires bool, not {code.type}", node.offset)


# --- logic ------------------------------------------------------------------------------------------------


@compiles(syntax.Logic)
def _logic(compiler: Compiler, node: syntax.Logic) -> Code:
    terms = [compiler.compile(term) for term in node.terms]
    for term, code in zip(node.terms, terms, strict=True):
        check_bool(compiler, code, f"'{node.operator}'", term)
    absorbing = node.operator == "||"
    runs = [(code.run, code.cost if position else 0) for position, code in enumerate(terms)]
    code = Code(_connective(absorbing, runs, node.operator, node.offset), BOOL, cost=terms[0].cost)
    return fold(code, compiler) if all(term.is_constant for term in terms) else code


def _connective(absorbing: bool, runs: list[tuple[Run, int]], name: str, offset: int) -> Run:
    """`&&` or `||`; `runs` has each term with its cost.

    The value `absorbing` ends the evaluation. An error is raised only if no later term returns `absorbing`.
    """
    neutral = not absorbing

    def connect(frame: Frame) -> bool:
        failure: CelRuntimeError | None = None
        for run, cost in runs:
            if cost:
                frame[BUDGET].left -= cost
            try:
                value = run(frame)
            except CelRuntimeError as error:
                failure = failure or error
                continue
            if value is absorbing:
                return not neutral
            if value is not neutral:
                failure = failure or not_bool(value, f"'{name}'", offset)
        if failure is not None:
            raise failure
        return neutral

    return connect


@compiles(syntax.Conditional)
def _conditional(compiler: Compiler, node: syntax.Conditional) -> Code:
    condition = compiler.compile(node.condition)
    then, otherwise = compiler.compile(node.then), compiler.compile(node.otherwise)
    check_bool(compiler, condition, "'? :'", node.condition)
    found, result = compiler.types.result(CONDITIONAL, (then.type, otherwise.type))
    if not found:
        raise CelTypeError(
            f"both sides of ':' must have the same type, not {then.type} and {otherwise.type}", node.offset
        )
    test, left, right, offset = condition.run, then.run, otherwise.run, node.offset
    left, right = flattening(left, result), flattening(right, result)
    costs = then.cost - then.saved, otherwise.cost - otherwise.saved
    left_more, right_more = costs[0] - min(costs), costs[1] - min(costs)

    def choose(frame: Frame) -> object:
        value = test(frame)
        if value is True:
            if left_more:
                frame[BUDGET].left -= left_more
            return left(frame)
        if value is False:
            if right_more:
                frame[BUDGET].left -= right_more
            return right(frame)
        raise not_bool(value, "'? :'", offset)

    return Code(choose, result, cost=condition.cost + min(costs), lookup=True)


@compiles(syntax.Unary)
def _unary(compiler: Compiler, node: syntax.Unary) -> Code:
    operand = compiler.compile(node.operand)
    base, offset = operand.run, node.offset

    def invert(frame: Frame) -> bool:
        value = base(frame)
        if value is True:
            return False
        if value is False:
            return True
        raise not_bool(value, "'!'", offset)

    def negate(frame: Frame) -> object:
        try:
            return arithmetic.negate(base(frame))
        except CelRuntimeError as error:
            raise located(error, offset) from None

    if node.operator == "!":
        check_bool(compiler, operand, "'!'", node.operand)
        code = Code(invert, BOOL, cost=operand.cost + CALL_COST)
    else:
        found, result = compiler.types.result(arithmetic.NEGATABLE, (operand.type,))
        if not found:
            raise CelTypeError(f"'-' does not take ({operand.type})", offset)
        code = Code(negate, result, cost=operand.cost + CALL_COST)
    return fold(code, compiler) if operand.is_constant else code


# --- binary operators -------------------------------------------------------------------------------------


@compiles(syntax.Binary)
def _binary(compiler: Compiler, node: syntax.Binary) -> Code:
    left, right = compiler.compile(node.left), compiler.compile(node.right)
    match node.operator:
        case "==" | "!=":
            code = _equality(compiler, node, left, right)
        case "<" | "<=" | ">" | ">=":
            code = _order(compiler, node, left, right)
        case "in":
            code = _membership(compiler, node, left, right)
        case _:
            code = _arithmetic(compiler, node, left, right)
    if code.literal:
        return code
    code = dataclasses.replace(code, cost=left.cost + right.cost + CALL_COST + code.cost)
    return fold(code, compiler) if left.is_constant and right.is_constant else code


def _mismatch(node: syntax.Binary, left: Code, right: Code) -> CelTypeError:
    return CelTypeError(f"'{node.operator}' does not take ({left.type}, {right.type})", node.offset)


def _equality(compiler: Compiler, node: syntax.Binary, left: Code, right: Code) -> Code:
    if not compiler.types.result(EQUALITY, (left.type, right.type))[0]:
        raise _mismatch(node, left, right)
    a, b, offset = left.run, right.run, node.offset
    if isinstance(right.constant, str):
        return Code(
            _equals_text(a, right.constant, node.operator == "=="), BOOL, cost=0 if right.constant else -CALL_COST
        )

    def equals(frame: Frame) -> bool:
        first, second = a(frame), b(frame)
        kind = type(first)
        if kind is type(second):
            if kind is str:
                size = min(len(first), len(second))
                if not 0 < size <= _CHARACTERS_OF_ONE_COST:
                    frame[BUDGET].scan(size)
                return bool(first == second)
            if kind in _SCALARS:
                return bool(first == second)
        try:
            charge_pair(frame[BUDGET], first, second)
            return equal(frame[BUDGET], first, second)
        except CelRuntimeError as error:
            raise located(error, offset) from None

    return Code(equals if node.operator == "==" else _differs(a, b), BOOL)


def _differs(a: Run, b: Run) -> Run:
    def differs(frame: Frame) -> bool:
        first, second = a(frame), b(frame)
        if type(first) is str and type(second) is str:
            size = min(len(first), len(second))
            if not 0 < size <= _CHARACTERS_OF_ONE_COST:
                frame[BUDGET].scan(size)
            return first != second
        try:
            charge_pair(frame[BUDGET], first, second)
            return not equal(frame[BUDGET], first, second)
        except CelRuntimeError:
            # In cel-go, != means "== is not true", so values that cannot be compared differ.
            return True

    return differs


def _equals_text(base: Run, text: str, expected: bool) -> Run:
    """Comparison with a string constant: Python's `==` is the same as CEL's, except for opaque values."""

    length = len(text)
    long = length > _CHARACTERS_OF_ONE_COST

    def equals(frame: Frame) -> bool:
        value = base(frame)
        if type(value) is str:
            if long and len(value) > _CHARACTERS_OF_ONE_COST:
                # The constant is part of the expression, so it is short: no check of the limits is needed.
                size = len(value)
                frame[BUDGET].left -= ((min(length, size)) - 1) // _CHARACTERS_OF_ONE_COST
            elif length and not value:
                frame[BUDGET].left += 1
            return (value == text) is expected
        try:
            return equal(frame[BUDGET], value, text) is expected
        except CelRuntimeError:
            if expected:
                raise
            return True

    return equals


_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": python.lt,
    "<=": python.le,
    ">": python.gt,
    ">=": python.ge,
}


def _order(compiler: Compiler, node: syntax.Binary, left: Code, right: Code) -> Code:
    found, _ = compiler.types.result(ORDER, (left.type, right.type))
    if not found:
        raise _mismatch(node, left, right)
    a, b, offset, name = left.run, right.run, node.offset, node.operator
    compare, charged = _COMPARISONS[name], len(found) == 1

    def ordered(frame: Frame) -> bool:
        first, second = a(frame), b(frame)
        kind = type(first)
        if kind is type(second):
            if kind is int:
                return compare(first, second)
            if kind is str:
                size = min(len(first), len(second))
                if not 0 < size <= _CHARACTERS_OF_ONE_COST:
                    frame[BUDGET].scan_if(charged, size)
                return compare(first, second)
        try:
            frame[BUDGET].scan_if(charged, min(size_of(first), size_of(second)))
            return _compared(name, first, second)
        except CelRuntimeError as error:
            raise located(error, offset) from None

    return Code(ordered, BOOL)


def _compared(name: str, first: object, second: object) -> bool:
    match name:
        case "<":
            return less(first, second, name)
        case ">":
            return less(second, first, name) if orderable(second, first) else less(first, second, name)
        case "<=":
            return not less(second, first, name) if orderable(second, first) else less(first, second, name)
        case _:
            return not less(first, second, name)


def _membership(compiler: Compiler, node: syntax.Binary, left: Code, right: Code) -> Code:
    found, _ = compiler.types.result(MEMBERSHIP, (left.type, right.type))
    if not found:
        raise _mismatch(node, left, right)
    a, b, offset, charged = left.run, right.run, node.offset, found == [0]
    if charged and right.literal and is_list(right.constant):
        # cel-go looks up the element in a set of the literals, without the cost of a call (maybeOptimizeSetMembership).
        if not right.constant:
            return constant(False, BOOL, literal=True)
        if all(type(item) is str for item in right.constant):
            return Code(_one_of(a, frozenset(right.constant), right.constant), BOOL, cost=-CALL_COST)
        if all(type(item) in _HASHED for item in right.constant):
            return Code(lambda frame: contains(frame[BUDGET], right.constant, a(frame)), BOOL, cost=-CALL_COST)

    def member(frame: Frame) -> bool:
        value, within = a(frame), b(frame)
        if type(value) is str and type(within) is dict and not charged:
            return value in within
        try:
            return is_member(frame, value, within, charged=charged)
        except CelRuntimeError as error:
            raise located(error, offset) from None

    return Code(member, BOOL)


def _one_of(base: Run, texts: frozenset[str], items: list[str]) -> Run:
    def member(frame: Frame) -> bool:
        value = base(frame)
        return value in texts if type(value) is str else contains(frame[BUDGET], items, value)

    return member


def is_member(frame: Frame, value: Any, within: Any, *, charged: bool = True) -> bool:
    """CEL's `value in within`; `charged`: each element costs 1, else the call does.

    Raises:
        CelRuntimeError: `within` is no list and no map.
    """
    if charged and (isinstance(within, Mapping) or is_list(within)):
        # cel-go charges the size if it takes the signature of a list, or 1 if its type is known only at run time.
        frame[BUDGET].spend(len(within) - 1)
    if isinstance(within, Mapping):
        try:
            return key_of(value) in within
        except CelRuntimeError:
            return False
    if is_list(within):
        return contains(frame[BUDGET], within, value)
    if isinstance(within, Optional):
        raise CelRuntimeError("'in' requires a list or a map, not an optional: use .orValue([]) first")
    raise no_overload("in", value, within)


def _arithmetic(compiler: Compiler, node: syntax.Binary, left: Code, right: Code) -> Code:
    found, result = compiler.types.result(arithmetic.SIGNATURES[node.operator], (left.type, right.type))
    if not found:
        raise _mismatch(node, left, right)
    a, b, offset = left.run, right.run, node.offset
    operation = arithmetic.OPERATIONS[node.operator]
    if node.operator == "+" and len(found) > 1:
        operation = functools.partial(arithmetic.add, charged=False)
    quick = {"+": python.add, "-": python.sub, "*": python.mul}.get(node.operator)

    def compute(frame: Frame) -> object:
        try:
            return operation(frame[BUDGET], a(frame), b(frame))
        except CelRuntimeError as error:
            raise located(error, offset) from None

    def compute_quickly(frame: Frame) -> object:
        first, second = a(frame), b(frame)
        if type(first) is int and type(second) is int:
            number = quick(first, second)  # type: ignore[misc] # only used where quick is not None
            if MIN_INT <= number <= MAX_INT:
                return number
        try:
            return operation(frame[BUDGET], first, second)
        except CelRuntimeError as error:
            raise located(error, offset) from None

    return Code(compute if quick is None else compute_quickly, result)
