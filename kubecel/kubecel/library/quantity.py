"""`resource.Quantity` for CEL.

Source: k8s.io/apimachinery/pkg/api/resource (quantity.go, amount.go, suffix.go). A Go quantity is an int64 with a
decimal scale, or a big decimal if that is not enough. The result of `isInteger` depends on the representation, so
`wide` has it here. Compared with a Kubernetes 1.36.2 API server.
"""

import dataclasses
import re
from fractions import Fraction
from typing import ClassVar, Final

from kubecel.errors import CelRuntimeError, quoted
from kubecel.types import QUANTITY, Type
from kubecel.values import MAX_INT, MIN_INT, OpaqueValue

_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_FORM: Final = re.compile(
    r"(?P<sign>[+-]?)0*(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*))?"
    r"(?P<suffix>[KMGTPE]i|[numkMGTPE]?|[eE](?P<exponent>[+-]?[0-9]{1,9}))",
    re.ASCII,
)
_MAX_LENGTH: Final = 128
_NANO: Final = -9
_INT64_DIGITS: Final = 18
_MAX_EXPONENT: Final = 1000


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


def parse(text: str) -> Quantity:
    """Parse a quantity.

    Raises:
        CelRuntimeError: the text is not a quantity.
    """
    match = _FORM.fullmatch(text) if 0 < len(text) <= _MAX_LENGTH else None
    if match is None:
        raise CelRuntimeError(
            f"{quoted(text)} is not a quantity: write a number with an optional suffix: 500m, 2, 1Gi, 1e3"
        )
    whole, part, suffix = match["whole"], match["part"] or "", match["suffix"]
    sign = -1 if match["sign"] == "-" else 1
    if suffix in _BINARY:
        return _binary(sign, whole, part, _BINARY[suffix])
    exponent = int(match["exponent"]) if match["exponent"] else _DECIMAL[suffix]
    if abs(exponent) > _MAX_EXPONENT:
        raise CelRuntimeError(f"{quoted(text)} is not a quantity: its exponent is out of range")
    return _decimal(sign, whole, part, exponent)


def _decimal(sign: int, whole: str, part: str, exponent: int) -> Quantity:
    digits = int(whole + part or "0")
    scale = exponent - len(part)
    if len(whole or "0") + len(part) <= _INT64_DIGITS and scale >= _NANO:
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


def of_int(value: int) -> Quantity:
    """A whole number as a quantity."""
    return Quantity(value, 0, False)
