"""Quantities and semantic versions.

Source: k8s.io/apiserver/pkg/cel/library/quantity.go and semverlib.go.
"""

import math
from collections.abc import Callable
from typing import Any, Final

from kubecel.budget import Budget
from kubecel.checking.overloads import function, method
from kubecel.errors import CelRuntimeError
from kubecel.library import quantity, semver
from kubecel.library.quantity import Quantity
from kubecel.library.semver import Semver
from kubecel.types import BOOL, DOUBLE, INT, QUANTITY, SEMVER, STRING
from kubecel.values import checked_int


def _read(parse: Callable[..., object]) -> Callable[..., object]:
    """Adds the cost of reading the text to a parse function."""

    def read(budget: Budget, text: str, *details: bool) -> object:
        budget.scan(len(text))
        return parse(text, *details)

    return read


def _readable(parse: Callable[[str], object]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            parse(text)
        except CelRuntimeError:
            return False
        return True

    return check


def _semver(text: str, normalize: bool) -> Semver:
    return semver.parse(text, normalize=normalize)


def _is_semver(text: str, normalize: bool) -> bool:
    return _readable(lambda given: semver.parse(given, normalize=normalize))(text)


def _as_integer(value: Quantity) -> int:
    number = value.as_int64()
    if number is None:
        raise CelRuntimeError("the quantity is not a whole number of 64 bits: check isInteger() first")
    return number


def _is_integer(value: Quantity) -> bool:
    return value.as_int64() is not None


def _as_float(value: Quantity) -> float:
    try:
        return float(value.unscaled) * 10.0**value.scale
    except OverflowError:
        return _sign(value) * math.inf


def _sign(value: Quantity) -> int:
    return (value.unscaled > 0) - (value.unscaled < 0)


def _compare(a: Any, b: Any) -> int:
    return int(b < a) - int(a < b)


def _compare_quantities(a: Quantity, b: Quantity) -> int:
    return _compare(a.value, b.value)


def _add_int(value: Quantity, number: int) -> Quantity:
    return value.plus(quantity.of_int(number))


def _subtract(a: Quantity, b: Quantity) -> Quantity:
    return a.plus(b.negated())


def _subtract_int(value: Quantity, number: int) -> Quantity:
    return value.plus(quantity.of_int(number).negated())


def _number(part: Callable[[Semver], int]) -> Callable[[Semver], int]:
    return lambda version: checked_int(part(version), "a version number")


OVERLOADS: Final = (
    function("quantity", STRING, result=QUANTITY, call=_read(quantity.parse), budgeted=True),
    function("isQuantity", STRING, result=BOOL, call=_read(_readable(quantity.parse)), budgeted=True),
    function("sign", QUANTITY, result=INT, call=_sign),
    method("isInteger", QUANTITY, result=BOOL, call=_is_integer),
    method("asInteger", QUANTITY, result=INT, call=_as_integer),
    method("asApproximateFloat", QUANTITY, result=DOUBLE, call=_as_float),
    method("add", QUANTITY, QUANTITY, result=QUANTITY, call=Quantity.plus),
    method("add", QUANTITY, INT, result=QUANTITY, call=_add_int),
    method("sub", QUANTITY, QUANTITY, result=QUANTITY, call=_subtract),
    method("sub", QUANTITY, INT, result=QUANTITY, call=_subtract_int),
    method("isGreaterThan", QUANTITY, QUANTITY, result=BOOL, call=lambda a, b: a.value > b.value),
    method("isLessThan", QUANTITY, QUANTITY, result=BOOL, call=lambda a, b: a.value < b.value),
    method("compareTo", QUANTITY, QUANTITY, result=INT, call=_compare_quantities),
    function("semver", STRING, result=SEMVER, call=_read(semver.parse), budgeted=True),
    function("semver", STRING, BOOL, result=SEMVER, call=_read(_semver), budgeted=True),
    function("isSemver", STRING, result=BOOL, call=_read(_readable(semver.parse)), budgeted=True),
    function("isSemver", STRING, BOOL, result=BOOL, call=_read(_is_semver), budgeted=True),
    method("major", SEMVER, result=INT, call=_number(lambda version: version.major)),
    method("minor", SEMVER, result=INT, call=_number(lambda version: version.minor)),
    method("patch", SEMVER, result=INT, call=_number(lambda version: version.patch)),
    method("isGreaterThan", SEMVER, SEMVER, result=BOOL, call=lambda a, b: a > b),
    method("isLessThan", SEMVER, SEMVER, result=BOOL, call=lambda a, b: a < b),
    method("compareTo", SEMVER, SEMVER, result=INT, call=_compare),
)
