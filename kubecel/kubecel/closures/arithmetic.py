"""Arithmetic: `+ - * / %` and unary `-`.

Source: cel-spec doc/langdef.md; cel-go common/types (overflow is an error, int division truncates towards zero).
"""

import math
from collections.abc import Callable
from typing import Any, Final

from kubecel.budget import Budget
from kubecel.errors import CelRuntimeError
from kubecel.types import (
    BYTES,
    DOUBLE,
    DURATION,
    INT,
    STRING,
    TIMESTAMP,
    UINT,
    A,
    Type,
    list_of,
)
from kubecel.values import (
    MIN_INT,
    Duration,
    Timestamp,
    UInt,
    checked_duration,
    checked_int,
    checked_timestamp,
    checked_uint,
    is_int,
    is_list,
    no_overload,
)

Operation = Callable[[Budget, object, object], object]

_NUMBERS: Final = ((DOUBLE, DOUBLE, DOUBLE), (INT, INT, INT), (UINT, UINT, UINT))
SIGNATURES: Final[dict[str, tuple[tuple[Type, Type, Type], ...]]] = {
    "+": (
        (BYTES, BYTES, BYTES),
        (DOUBLE, DOUBLE, DOUBLE),
        (DURATION, DURATION, DURATION),
        (DURATION, TIMESTAMP, TIMESTAMP),
        (TIMESTAMP, DURATION, TIMESTAMP),
        (INT, INT, INT),
        (list_of(A), list_of(A), list_of(A)),
        (STRING, STRING, STRING),
        (UINT, UINT, UINT),
    ),
    "-": (
        (DOUBLE, DOUBLE, DOUBLE),
        (DURATION, DURATION, DURATION),
        (INT, INT, INT),
        (TIMESTAMP, DURATION, TIMESTAMP),
        (TIMESTAMP, TIMESTAMP, DURATION),
        (UINT, UINT, UINT),
    ),
    "*": _NUMBERS,
    "/": _NUMBERS,
    "%": _NUMBERS[1:],
}
"""Left, right and result type of every arithmetic operator, in the order of cel-go's checker."""

NEGATABLE: Final = ((DOUBLE, DOUBLE), (INT, INT))
"""Operand and result type of unary `-`."""


def add(budget: Budget, a: Any, b: Any, *, charged: bool = True) -> Any:
    """`a + b`; `charged`: whether texts cost their length, see `Budget.scan_if`."""
    if is_list(a) and is_list(b):
        budget.items(len(a) + len(b))
        return [*a, *b]
    if (isinstance(a, str) and isinstance(b, str)) or (isinstance(a, bytes) and isinstance(b, bytes)):
        budget.scan_if(charged, len(a) + len(b))
        budget.text(len(a) + len(b))
        return a + b  # type: ignore[operator] # they are of one type
    if isinstance(a, Duration) and isinstance(b, Duration):
        return checked_duration(a.nanoseconds + b.nanoseconds, "'+'")
    if isinstance(a, Duration) and isinstance(b, Timestamp):
        a, b = b, a
    if isinstance(a, Timestamp) and isinstance(b, Duration):
        return checked_timestamp(a.nanoseconds + b.nanoseconds, a.offset, "'+'")
    return _numeric("+", a, b)


def subtract(_: Budget, a: object, b: object) -> object:
    """`a - b`."""
    if isinstance(a, Duration) and isinstance(b, Duration):
        return checked_duration(a.nanoseconds - b.nanoseconds, "'-'")
    if isinstance(a, Timestamp) and isinstance(b, Duration):
        return checked_timestamp(a.nanoseconds - b.nanoseconds, a.offset, "'-'")
    if isinstance(a, Timestamp) and isinstance(b, Timestamp):
        return checked_duration(a.nanoseconds - b.nanoseconds, "'-'")
    return _numeric("-", a, b)


def multiply(_: Budget, a: object, b: object) -> object:
    """`a * b`."""
    return _numeric("*", a, b)


def divide(_: Budget, a: object, b: object) -> object:
    """`a / b`."""
    return _numeric("/", a, b)


def modulo(_: Budget, a: object, b: object) -> object:
    """`a % b`; the result has the sign of `a`."""
    return _numeric("%", a, b)


def _numeric(operator: str, a: Any, b: Any) -> Any:
    if is_int(a) and is_int(b):
        if operator == "%" and (a, b) == (MIN_INT, -1):
            raise CelRuntimeError("integer overflow in '%'")
        return checked_int(_integers(operator, a, b), f"'{operator}'")
    if isinstance(a, UInt) and isinstance(b, UInt):
        return checked_uint(_integers(operator, int(a), int(b)), f"'{operator}'")
    if isinstance(a, float) and isinstance(b, float) and operator != "%":
        return _doubles(operator, a, b)
    raise no_overload(operator, a, b)


def _integers(operator: str, a: int, b: int) -> int:
    match operator:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
    if b == 0:
        raise CelRuntimeError("division by zero" if operator == "/" else "modulus by zero")
    quotient = abs(a) // abs(b) if (a < 0) is (b < 0) else -(abs(a) // abs(b))
    if operator == "/":
        return quotient
    return a - b * quotient


def _doubles(operator: str, a: float, b: float) -> float:
    match operator:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
    if b == 0:
        if a == 0 or a != a:
            return math.nan
        return math.copysign(math.inf, a) * math.copysign(1, b)
    return a / b


def negate(value: Any) -> Any:
    """`-value`."""
    if is_int(value):
        return checked_int(-value, "'-'")
    if isinstance(value, float):
        return -value
    raise no_overload("-", value)


OPERATIONS: Final[dict[str, Operation]] = {
    "+": add,
    "-": subtract,
    "*": multiply,
    "/": divide,
    "%": modulo,
}
