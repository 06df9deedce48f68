"""Reads Kubernetes quantities: counts of devices or cores, and capacities.

Source: `k8s.io/apimachinery/pkg/api/resource.Quantity` (grammar in its type comment).
"""

import functools
import re
from decimal import Decimal
from typing import Final

_SUFFIXES: Final = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal("1e3"),
    "M": Decimal("1e6"),
    "G": Decimal("1e9"),
    "T": Decimal("1e12"),
    "P": Decimal("1e15"),
    "E": Decimal("1e18"),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}
_QUANTITY: Final = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]{1,3}))?",
    re.ASCII,
)
_SPACE: Final = " \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
"""White space around a text that the API server removes (`Quantity.UnmarshalJSON`): what Go counts as such, without the
characters that JSON writes as an escape, such as a tab, which the API server refuses."""
_MAX_LENGTH: Final = 64


class NotAQuantityError(ValueError):
    """The value is not a quantity; the message has the reason."""


class NotACountError(NotAQuantityError):
    """The quantity is not a whole number of devices; the message has the reason."""


def parse_count(value: object) -> int:
    """Read a quantity that counts things.

    Args:
        value: a string such as `"4"`, `" 1e1"` or `"4k"`, or a number. None, JSON's null, is 0, as for the API server.

    Returns:
        The count, zero or more.

    Raises:
        NotACountError: it is not a quantity, negative, not a whole number, or more than 10^9.
    """
    if type(value) is str:
        return _parsed(value)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise NotACountError("is not a quantity")
    return _parsed(str(value))


def count_of(value: object) -> int:
    """A quantity as a count; 0 for what `parse_count` does not read."""
    try:
        return parse_count(value)
    except NotACountError:
        return 0


@functools.lru_cache(maxsize=256)
def _parsed(text: str) -> int:
    try:
        number = parse_amount(text)
    except NotAQuantityError as error:
        raise NotACountError(str(error)) from None
    if number < 0:
        raise NotACountError("is negative")
    if number > 10**9:
        raise NotACountError("is more than any cluster has")
    if number != number.to_integral_value():
        raise NotACountError("is not a whole number")
    return int(number)


def parse_amount(value: object) -> Decimal:
    """Read any quantity, such as the value of a device capacity. None, JSON's null, is 0.

    Raises:
        NotAQuantityError: it is not a quantity.
    """
    if value is None:
        return Decimal(0)
    readable = isinstance(value, int | float | str) and not isinstance(value, bool)
    # No amount has more bits; str() raises for more than 4300 digits.
    text = "" if not readable or (isinstance(value, int) and value.bit_length() > 200) else str(value)
    match = _QUANTITY.fullmatch(text.strip(_SPACE)) if len(text) <= _MAX_LENGTH else None
    if match is None:
        raise NotAQuantityError("is not a quantity")
    scale = Decimal(f"1e{match['exponent']}") if match["exponent"] else _SUFFIXES[match["suffix"] or ""]
    return Decimal(match["number"]) * scale


def amount_of(value: object) -> Decimal:
    """Any quantity; 0 for what `parse_amount` does not read."""
    try:
        return parse_amount(value)
    except NotAQuantityError:
        return Decimal(0)


def canonical(value: object) -> str:
    """The decimal text of a count: `4.0`, `4e0` and `"4"` give `4`. Another value gives `shown(value)`."""
    try:
        return str(parse_count(value))
    except NotACountError:
        return amount_text(value)


def amount_text(value: object) -> str:
    """The value for messages, at most 64 characters."""
    if isinstance(value, str):
        return value[:_MAX_LENGTH]
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return "null" if value is None else str(value)[:_MAX_LENGTH].lower()
