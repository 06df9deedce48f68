"""The standard library: size, type conversions, string predicates, optionals.

`or`, `orValue`, `optMap` and `optFlatMap` are in `kubecel.closures`. Source: cel-go common/stdlib/standard.go, the
conversions of common/types, and cel/library.go (OptionalTypes).
"""

import math
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

from kubecel.budget import Budget
from kubecel.checking import Overload, function, method
from kubecel.errors import CelRuntimeError, quoted
from kubecel.library import regexes
from kubecel.library.times import text_of_timestamp
from kubecel.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    STRING,
    TIMESTAMP,
    UINT,
    A,
    B,
    Type,
    list_of,
    map_of,
    optional_of,
    type_of,
)
from kubecel.values import (
    MAX_INT,
    MAX_UINT,
    MIN_INT,
    MIN_TIMESTAMP,
    NANOSECONDS,
    NONE,
    Duration,
    OpaqueValue,
    Optional,
    Timestamp,
    UInt,
    checked_int,
    checked_uint,
    kind_of,
    name_of,
    some,
    utf8,
)


def _of_non_zero(value: object) -> Optional:
    if isinstance(value, OpaqueValue | Optional | Type):
        return some(value)
    if isinstance(value, Timestamp):
        return NONE if value.nanoseconds == MIN_TIMESTAMP else some(value)
    if isinstance(value, Duration):
        return some(value) if value.nanoseconds else NONE
    return some(value) if value else NONE


def _value(value: Optional) -> object:
    if not value.present:
        raise CelRuntimeError("the optional has no value: give a default with .orValue(…)")
    return value.value


def _unwrap(budget: Budget, items: Sequence[Any]) -> list[object]:
    budget.items(len(items))
    for item in items:
        if not isinstance(item, Optional):
            raise CelRuntimeError(f"only optionals can be unwrapped, not a {name_of(item)}")
    return [item.value for item in items if item.present]


_VALUES: Final = list_of(optional_of(A))

_OPTIONALS: Final = (
    function("optional.none", result=optional_of(A), call=lambda: NONE),
    function("optional.of", A, result=optional_of(A), call=some),
    function("optional.ofNonZeroValue", A, result=optional_of(A), call=_of_non_zero),
    function("optional.unwrap", _VALUES, result=list_of(A), call=_unwrap, budgeted=True),
    method("unwrapOpt", _VALUES, result=list_of(A), call=_unwrap, budgeted=True),
    method("hasValue", optional_of(A), result=BOOL, call=lambda value: value.present),
    method("value", optional_of(A), result=A, call=_value),
)


_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_INTEGER: Final = re.compile(r"[+-]?0*[0-9]{1,20}", re.ASCII)
_UNSIGNED: Final = re.compile(r"0*[0-9]{1,20}", re.ASCII)
_DIGITS: Final = "[0-9](?:_?[0-9])*"
_HEX_DIGITS: Final = "[0-9a-fA-F](?:_?[0-9a-fA-F])*"
_FLOAT: Final = re.compile(rf"[+-]?(?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][+-]?{_DIGITS})?")
_HEX_FLOAT: Final = re.compile(
    rf"[+-]?0[xX](?:_?{_HEX_DIGITS}(?:\.(?:{_HEX_DIGITS})?)?|\.{_HEX_DIGITS})[pP][+-]?{_DIGITS}"
)
_SPECIAL: Final = re.compile(r"[+-]?(?:inf|infinity)|nan", re.ASCII | re.IGNORECASE)
_MAX_NUMBER_LENGTH: Final = 512
_LONG: Final = 1024


def _unreadable(text: str, wanted: str) -> CelRuntimeError:
    return CelRuntimeError(f"{quoted(text)} is not {wanted}")


def _int_of_text(text: str) -> int:
    if len(text) <= _MAX_NUMBER_LENGTH and _INTEGER.fullmatch(text) and MIN_INT <= int(text) <= MAX_INT:
        return int(text)
    raise _unreadable(text, "an int")


def _int_of_double(value: float) -> int:
    if not float(MIN_INT) < value < float(MAX_INT):
        raise CelRuntimeError(f"integer overflow in int(): {value} does not fit 64 bits")
    return int(value)


def _uint_of_text(text: str) -> UInt:
    if len(text) <= _MAX_NUMBER_LENGTH and _UNSIGNED.fullmatch(text) and int(text) <= MAX_UINT:
        return UInt(text)
    raise _unreadable(text, "a uint")


def _uint_of_double(value: float) -> UInt:
    if not 0 <= value < 2.0**64:
        raise CelRuntimeError(f"unsigned integer overflow in uint(): {value} does not fit 64 bits")
    return UInt(int(value))


def _double_of_text(text: str) -> float:
    """Parses like Go's strconv.ParseFloat: decimal or hexadecimal, with underscores between digits."""
    if len(text) <= _MAX_NUMBER_LENGTH:
        if _SPECIAL.fullmatch(text):
            return float(text)
        number = _finite(text)
        if number is not None:
            return number
    raise _unreadable(text, "a double")


def _finite(text: str) -> float | None:
    """The double of a text; None if the text is not a number, or the number is too large."""
    if _FLOAT.fullmatch(text):
        number = float(text)
        return number if math.isfinite(number) else None
    if _HEX_FLOAT.fullmatch(text):
        try:
            return float.fromhex(text.replace("_", ""))
        except OverflowError:
            return None
    return None


def _bool_of_text(text: str) -> bool:
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise _unreadable(text, "a bool")


def _bytes_of_text(budget: Budget, text: str) -> bytes:
    budget.scan(len(text))
    budget.text(len(text))
    return utf8(text)


def _text_of_bytes(budget: Budget, data: bytes) -> str:
    budget.scan(len(data))
    budget.text(len(data))
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise CelRuntimeError("the bytes are not UTF-8") from None


def text_of_double(value: float) -> str:
    """Writes like Go's `%g`: the shortest text that parses to the same number."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'+' if value > 0 else '-'}Inf"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    if value == 0 or not isinstance(exponent, int):
        return "-0" if math.copysign(1, value) < 0 else "0"
    point = len(digits) + exponent - 1
    if -4 <= point < 6:
        return plain_decimal(value)
    mantissa = "".join(map(str, digits))
    fraction = f".{mantissa[1:]}" if len(mantissa) > 1 else ""
    return f"{'-' if sign else ''}{mantissa[0]}{fraction}e{point:+03d}"


def plain_decimal(value: float) -> str:
    """The shortest text of a finite number, without exponent and without `.0`."""
    text = format(Decimal(repr(value)), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def text_of_duration(value: Duration) -> str:
    """Seconds, e.g. `1.5s`."""
    return f"{plain_decimal(value.nanoseconds / NANOSECONDS)}s"


def _identity(value: object) -> object:
    return value


def _starts_with(budget: Budget, text: str, prefix: str) -> bool:
    if len(text) > 10 or not text:
        budget.scan(len(text))
    return text.startswith(prefix)


def _ends_with(budget: Budget, text: str, suffix: str) -> bool:
    if len(text) > 10 or not text:
        budget.scan(len(text))
    return text.endswith(suffix)


def _contains(budget: Budget, text: str, part: str) -> bool:
    if len(text) > 10 or len(part) > 10 or not text or not part:
        budget.spend(-(-len(text) // 10) * -(-len(part) // 10) - 1)
        if len(text) > _LONG:
            budget.read(len(text) + len(part))
    return part in text


def _sizes() -> list[Overload]:
    kinds: tuple[Type, ...] = (BYTES, list_of(A), map_of(A, B), STRING)
    return [make("size", kind, result=INT, call=len) for kind in kinds for make in (function, method)]


OVERLOADS: Final = (
    *_sizes(),
    *_OPTIONALS,
    function("type", A, result=type_of(A), call=kind_of),
    function("dyn", A, result=DYN, call=_identity),
    function("bool", BOOL, result=BOOL, call=_identity),
    function("bool", STRING, result=BOOL, call=_bool_of_text),
    function("bytes", BYTES, result=BYTES, call=_identity),
    function("bytes", STRING, result=BYTES, call=_bytes_of_text, budgeted=True),
    function("double", DOUBLE, result=DOUBLE, call=_identity),
    function("double", INT, result=DOUBLE, call=float),
    function("double", STRING, result=DOUBLE, call=_double_of_text),
    function("double", UINT, result=DOUBLE, call=float),
    function("int", INT, result=INT, call=_identity),
    function("int", DOUBLE, result=INT, call=_int_of_double),
    function("int", DURATION, result=INT, call=lambda value: value.nanoseconds),
    function("int", STRING, result=INT, call=_int_of_text),
    function("int", TIMESTAMP, result=INT, call=lambda value: value.nanoseconds // NANOSECONDS),
    function("int", UINT, result=INT, call=lambda value: checked_int(int(value), "int()")),
    function("uint", UINT, result=UINT, call=_identity),
    function("uint", DOUBLE, result=UINT, call=_uint_of_double),
    function("uint", INT, result=UINT, call=lambda value: checked_uint(value, "uint()")),
    function("uint", STRING, result=UINT, call=_uint_of_text),
    function("string", STRING, result=STRING, call=_identity),
    function("string", BOOL, result=STRING, call=lambda value: "true" if value else "false"),
    function("string", BYTES, result=STRING, call=_text_of_bytes, budgeted=True),
    function("string", DOUBLE, result=STRING, call=text_of_double),
    function("string", DURATION, result=STRING, call=text_of_duration),
    function("string", INT, result=STRING, call=int.__repr__),
    function("string", TIMESTAMP, result=STRING, call=text_of_timestamp),
    function("string", UINT, result=STRING, call=int.__repr__),
    method("startsWith", STRING, STRING, result=BOOL, call=_starts_with, budgeted=True),
    method("endsWith", STRING, STRING, result=BOOL, call=_ends_with, budgeted=True),
    method("contains", STRING, STRING, result=BOOL, call=_contains, budgeted=True),
    *regexes.OVERLOADS,
)
