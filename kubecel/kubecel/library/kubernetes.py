"""Quantities (`resource.Quantity`) and semantic versions.

A Go quantity is an int64 with a decimal scale, or a big decimal if that is not enough. The result of `isInteger`
depends on the representation, so `wide` has it here. Compared with a Kubernetes 1.36.2 API server.

Source: k8s.io/apiserver/pkg/cel/library/quantity.go and semverlib.go (normalisation);
k8s.io/apimachinery/pkg/api/resource (quantity.go, amount.go, suffix.go); semver.org 2.0.0 (precedence ignores build
metadata).
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any, ClassVar, Final

from kubecel.budget import Budget
from kubecel.checking import function, method
from kubecel.errors import CelRuntimeError, quoted
from kubecel.types import BOOL, DOUBLE, INT, QUANTITY, SEMVER, STRING, Type
from kubecel.values import MAX_INT, MAX_UINT, MIN_INT, OpaqueValue, checked_int

_NUMBER: Final = r"(?:0|[1-9][0-9]*)"
_SEMVER: Final = re.compile(
    rf"(?P<major>{_NUMBER})\.(?P<minor>{_NUMBER})\.(?P<patch>{_NUMBER})"
    r"(?:-(?P<pre>[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+(?P<build>[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?",
    re.ASCII,
)

Identifier = int | str


@functools.total_ordering
@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Semver(OpaqueValue):
    """A semantic version without its build metadata, which has no effect on comparisons."""

    major: int
    minor: int
    patch: int
    pre: tuple[Identifier, ...] = ()
    cel_type: ClassVar[Type] = SEMVER

    @property
    def _precedence(self) -> tuple[object, ...]:
        # A release comes after its pre-releases; numbers come before words.
        pre = tuple((isinstance(part, str), part) for part in self.pre)
        return (self.major, self.minor, self.patch, not self.pre, pre)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Semver) and self._precedence == other._precedence

    def __lt__(self, other: "Semver") -> bool:
        return self._precedence < other._precedence

    def __hash__(self) -> int:
        return hash(self._precedence)


def parse_semver(text: str, *, normalize: bool = False) -> Semver:
    """Parse a version.

    Args:
        text: e.g. `1.2.3-rc.1`.
        normalize: accept `v1.2` and `01.02.03` too.

    Raises:
        CelRuntimeError: the text is not a version.
    """
    match = None
    if len(text) <= 256:
        match = _SEMVER.fullmatch(_normalized(text) if normalize else text)
    if match is None:
        raise _not_a_version(text)
    major, minor, patch = int(match["major"]), int(match["minor"]), int(match["patch"])
    pre = tuple(_identifier(part, text) for part in match["pre"].split(".")) if match["pre"] else ()
    if max(major, minor, patch) > MAX_UINT:
        raise _not_a_version(text)
    return Semver(major, minor, patch, pre)


def _not_a_version(text: str) -> CelRuntimeError:
    return CelRuntimeError(f"{quoted(text)} is not a semantic version: write major.minor.patch, e.g. 1.2.3")


def _identifier(part: str, text: str) -> Identifier:
    if not part.isdigit():
        return part
    if part != "0" and part.startswith("0"):
        raise _not_a_version(text)
    return int(part)


def _normalized(text: str) -> str:
    parts = text.removeprefix("v").split(".", 2)
    parts = [_without_zeros(part) for part in parts]
    if len(parts) < 3 and not set(parts[-1]) & set("+-"):
        parts += ["0"] * (3 - len(parts))
    return ".".join(parts)


def _without_zeros(part: str) -> str:
    if len(part) < 2:
        return part
    stripped = part.lstrip("0")
    return stripped if stripped[:1].isdigit() else f"0{stripped}"


_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_QUANTITY: Final = re.compile(
    r"(?P<sign>[+-]?)0*(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*))?"
    r"(?P<suffix>[KMGTPE]i|[numkMGTPE]?|[eE](?P<exponent>[+-]?[0-9]{1,9}))",
    re.ASCII,
)
_NANO: Final = -9


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Quantity(OpaqueValue):
    """`unscaled` times ten to the power of `scale`.

    Attributes:
        wide: Go represents it as a big decimal.
    """

    unscaled: int
    scale: int
    wide: bool
    cel_type: ClassVar[Type] = QUANTITY

    @property
    def value(self) -> Fraction:
        return Fraction(self.unscaled) * Fraction(10) ** self.scale

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def as_int64(self) -> int | None:
        """The value as an int64, if Go can convert it without rounding; else None."""
        if self.wide or self.scale < 0:
            return None
        value = self.unscaled * 10**self.scale
        return value if MIN_INT <= value <= MAX_INT else None

    def plus(self, other: "Quantity") -> "Quantity":
        if not self.wide and not other.wide:
            if self.unscaled == 0:
                return other
            scale = min(self.scale, other.scale)
            total = self.unscaled * 10 ** (self.scale - scale) + other.unscaled * 10 ** (other.scale - scale)
            if MIN_INT <= total <= MAX_INT:
                return Quantity(total, scale, False)
        scale = min(self.scale, other.scale)
        total = self.unscaled * 10 ** (self.scale - scale) + other.unscaled * 10 ** (other.scale - scale)
        return Quantity(total, scale, True)

    def negated(self) -> "Quantity":
        """The value with the opposite sign."""
        return Quantity(-self.unscaled, self.scale, self.wide)


def parse_quantity(text: str) -> Quantity:
    """Parse a quantity.

    Raises:
        CelRuntimeError: the text is not a quantity.
    """
    match = _QUANTITY.fullmatch(text) if 0 < len(text) <= 128 else None
    if match is None:
        raise CelRuntimeError(
            f"{quoted(text)} is not a quantity: write a number with an optional suffix: 500m, 2, 1Gi, 1e3"
        )
    whole, part, suffix = match["whole"], match["part"] or "", match["suffix"]
    sign = -1 if match["sign"] == "-" else 1
    if suffix in _BINARY:
        return _binary(sign, whole, part, _BINARY[suffix])
    exponent = int(match["exponent"]) if match["exponent"] else _DECIMAL[suffix]
    if abs(exponent) > 1000:
        raise CelRuntimeError(f"{quoted(text)} is not a quantity: its exponent is out of range")
    return _decimal(sign, whole, part, exponent)


def _decimal(sign: int, whole: str, part: str, exponent: int) -> Quantity:
    digits = int(whole + part or "0")
    scale = exponent - len(part)
    # 18 digits fit an int64.
    if len(whole or "0") + len(part) <= 18 and scale >= _NANO:
        return Quantity(sign * digits, scale, False)
    return _rounded(sign, Fraction(digits) * Fraction(10) ** scale)


def _binary(sign: int, whole: str, part: str, bits: int) -> Quantity:
    # 1Mi has about six decimal digits: Go reserves exponent * 3 / 10 of them.
    if not part and 15 - len(whole or "0") - int(bits * 3 / 10) - 1 >= 0:
        return Quantity(sign * int(whole or "0") << bits, 0, False)
    value = Fraction(int(whole + part or "0"), 10 ** len(part)) * 2**bits
    return _rounded(sign, min(value, Fraction(MAX_INT)))


def _rounded(sign: int, value: Fraction) -> Quantity:
    """Rounds away from zero to a whole number of nano units, so that a small request does not become 0."""
    nanos = value * 10**9
    return Quantity(sign * -(-nanos.numerator // nanos.denominator), _NANO, True)


def quantity_of_int(value: int) -> Quantity:
    """A whole number as a quantity."""
    return Quantity(value, 0, False)


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
    return parse_semver(text, normalize=normalize)


def _is_semver(text: str, normalize: bool) -> bool:
    return _readable(lambda given: parse_semver(given, normalize=normalize))(text)


def _as_integer(value: Quantity) -> int:
    number = value.as_int64()
    if number is None:
        raise CelRuntimeError("the quantity is not a whole number of 64 bits: check isInteger() first")
    return number


def _as_float(value: Quantity) -> float:
    try:
        return float(value.unscaled) * 10.0**value.scale
    except OverflowError:
        return _sign(value) * math.inf


def _sign(value: Quantity) -> int:
    return (value.unscaled > 0) - (value.unscaled < 0)


def _compare(a: Any, b: Any) -> int:
    return int(b < a) - int(a < b)


def _number(part: Callable[[Semver], int]) -> Callable[[Semver], int]:
    return lambda version: checked_int(part(version), "a version number")


OVERLOADS: Final = (
    function("quantity", STRING, result=QUANTITY, call=_read(parse_quantity), budgeted=True),
    function("isQuantity", STRING, result=BOOL, call=_read(_readable(parse_quantity)), budgeted=True),
    function("sign", QUANTITY, result=INT, call=_sign),
    method("isInteger", QUANTITY, result=BOOL, call=lambda value: value.as_int64() is not None),
    method("asInteger", QUANTITY, result=INT, call=_as_integer),
    method("asApproximateFloat", QUANTITY, result=DOUBLE, call=_as_float),
    method("add", QUANTITY, QUANTITY, result=QUANTITY, call=Quantity.plus),
    method("add", QUANTITY, INT, result=QUANTITY, call=lambda value, number: value.plus(quantity_of_int(number))),
    method("sub", QUANTITY, QUANTITY, result=QUANTITY, call=lambda a, b: a.plus(b.negated())),
    method(
        "sub", QUANTITY, INT, result=QUANTITY, call=lambda value, number: value.plus(quantity_of_int(number).negated())
    ),
    method("isGreaterThan", QUANTITY, QUANTITY, result=BOOL, call=lambda a, b: a.value > b.value),
    method("isLessThan", QUANTITY, QUANTITY, result=BOOL, call=lambda a, b: a.value < b.value),
    method("compareTo", QUANTITY, QUANTITY, result=INT, call=lambda a, b: _compare(a.value, b.value)),
    function("semver", STRING, result=SEMVER, call=_read(parse_semver), budgeted=True),
    function("semver", STRING, BOOL, result=SEMVER, call=_read(_semver), budgeted=True),
    function("isSemver", STRING, result=BOOL, call=_read(_readable(parse_semver)), budgeted=True),
    function("isSemver", STRING, BOOL, result=BOOL, call=_read(_is_semver), budgeted=True),
    method("major", SEMVER, result=INT, call=_number(lambda version: version.major)),
    method("minor", SEMVER, result=INT, call=_number(lambda version: version.minor)),
    method("patch", SEMVER, result=INT, call=_number(lambda version: version.patch)),
    method("isGreaterThan", SEMVER, SEMVER, result=BOOL, call=lambda a, b: a > b),
    method("isLessThan", SEMVER, SEMVER, result=BOOL, call=lambda a, b: a < b),
    method("compareTo", SEMVER, SEMVER, result=INT, call=_compare),
)
