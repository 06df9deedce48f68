"""`'…%s…'.format([…])`.

Source: cel-go ext/formatting.go, the version that Kubernetes enables (strings library 2). It groups digits as in
American English and writes exponents as superscripts.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from kubecel.budget import Budget
from kubecel.checking import method
from kubecel.closures.calls import CLAUSE
from kubecel.errors import CelRuntimeError
from kubecel.library.standard import text_of_double, text_of_duration
from kubecel.library.strings import quote
from kubecel.library.times import text_of_timestamp
from kubecel.types import LIST, STRING, Type
from kubecel.values import (
    Duration,
    Timestamp,
    UInt,
    is_int,
    is_list,
    name_of,
    utf8,
    value_of_key,
)

_DEFAULT_PRECISION: Final = 6
_MAX_PRECISION: Final = 2**63 - 1
_MAX_PRECISION_DIGITS: Final = 19
_MAX_BEFORE_LAST_DIGIT: Final = 10**6
_NO_VERB: Final = "%!(NOVERB)"
"""Go writes this if the precision without its last digit is larger than `_MAX_BEFORE_LAST_DIGIT`."""
_LEAST_DECIMALS: Final = 2**8
_WIDTHS: Final = 2**16
"""golang.org/x/text/number has 8 bits for the lowest number of decimals, 16 (signed) for the highest, 16 for the
width."""
_DECIMALS_OF_A_DOUBLE: Final = 1074
"""The highest number of decimals of a double."""
_SUPERSCRIPT: Final = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_MAX_DEPTH: Final = 50
_WORK_OF_A_VALUE: Final = 20
_SPECIAL: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _wrong(verb: str, value: object) -> CelRuntimeError:
    return CelRuntimeError(f"%{verb} of format does not take a {name_of(value)}")


def _format(budget: Budget, template: str, arguments: Sequence[object]) -> str:
    budget.scan(len(template))
    budget.text(len(template))
    waiting = iter(arguments)
    parts: list[str] = []
    position = length = 0
    for match in CLAUSE.finditer(template):
        literal = "%" if match["literal"] else _clause(budget, match, waiting)
        parts += (template[position : match.start()], literal)
        length += match.start() - position + len(literal)
        budget.text(length, added=len(literal))
        position = match.end()
    parts.append(template[position:])
    return "".join(parts)


def _clause(budget: Budget, match: re.Match[str], waiting: Any) -> str:
    verb = match["verb"]
    if verb not in _VERBS:
        raise CelRuntimeError(f"'{match[0]}' is not a clause of format: write %s, %d, %f, %e, %b, %x, %X or %o")
    try:
        value = next(waiting)
    except StopIteration:
        raise CelRuntimeError("format has more clauses than arguments") from None
    return _VERBS[verb](budget, value, _precision(match["precision"]))


def _precision(digits: str | None) -> int:
    if digits is None:
        return _DEFAULT_PRECISION
    significant = digits.lstrip("0") or "0"
    if len(significant) > _MAX_PRECISION_DIGITS or int(significant) > _MAX_PRECISION:
        raise CelRuntimeError(f"the precision {significant[:_MAX_PRECISION_DIGITS]}… of format does not fit 64 bits")
    return int(significant)


def _text(budget: Budget, value: object, _: int = 0) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        budget.text(len(value))
        return _decoded(value)
    if isinstance(value, Duration):
        return text_of_duration(value)
    if isinstance(value, Timestamp):
        return text_of_timestamp(value)
    if isinstance(value, float):
        return text_of_double(value)
    if isinstance(value, Type):
        return value.name
    return _nested(budget, value, 0)


def _decoded(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise CelRuntimeError("format does not take bytes that are not UTF-8") from None


def _nested(budget: Budget, value: Any, depth: int) -> str:
    """A value inside a list or map: strings in quotes, times as CEL literals."""
    if depth > _MAX_DEPTH:
        raise CelRuntimeError(f"format does not write values nested deeper than {_MAX_DEPTH} levels")
    budget.work(_WORK_OF_A_VALUE)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, str):
        return quote(budget, value)
    if is_list(value):
        return _bracketed(budget, "[]", [_nested(budget, item, depth + 1) for item in value])
    if isinstance(value, Mapping):
        return _map(budget, value, depth)
    return _nested_scalar(budget, value)


def _nested_scalar(budget: Budget, value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6f}" if math.isfinite(value) else f'"{text_of_double(value)}"'
    if isinstance(value, bytes):
        budget.text(len(value))
        return f"b{quote(budget, _decoded(value))}"
    if isinstance(value, Duration):
        return f'duration("{text_of_duration(value)}")'
    if isinstance(value, Timestamp):
        return f'timestamp("{text_of_timestamp(value)}")'
    if isinstance(value, Type):
        return value.name
    raise _wrong("s", value)


def _map(budget: Budget, value: Mapping[object, object], depth: int) -> str:
    entries = [
        (_nested(budget, value_of_key(key), depth + 1), _nested(budget, item, depth + 1)) for key, item in value.items()
    ]
    return _bracketed(budget, "{}", [f"{key}:{item}" for key, item in sorted(entries)])


def _bracketed(budget: Budget, brackets: str, parts: list[str]) -> str:
    budget.text(sum(map(len, parts)) + 2 * len(parts) + 2)
    return f"{brackets[0]}{', '.join(parts)}{brackets[1]}"


def _decimal(_: Budget, value: Any, __: int) -> str:
    if is_int(value) or isinstance(value, UInt):
        return str(int(value))
    raise _wrong("d", value)


def _float(verb: str, value: object) -> float:
    if isinstance(value, float):
        return value
    if isinstance(value, str) and value in _SPECIAL:
        return _SPECIAL[value]
    raise _wrong(verb, value)


def _not_finite(number: float) -> str:
    return "NaN" if math.isnan(number) else "∞" if number > 0 else "-∞"


def _fixed(_budget: Budget, value: object, precision: int) -> str:
    number = _float("f", value)
    if precision // 10 > _MAX_BEFORE_LAST_DIGIT:
        return _NO_VERB
    if not math.isfinite(number):
        return _not_finite(number)
    # Go writes zero without a sign, but a number that is rounded to zero with its sign.
    whole, _, fraction = _grouped(number or 0.0, precision % _WIDTHS).partition(".")
    fraction = fraction.rstrip("0").ljust(precision % _LEAST_DECIMALS, "0")
    return f"{whole}.{fraction}" if fraction else whole


def _grouped(number: float, most: int) -> str:
    """The number with at most `most` decimals; with all its decimals if `most` is negative in signed 16 bits."""
    if most < 2**15:
        return f"{number:,.{min(most, _DECIMALS_OF_A_DOUBLE)}f}"
    return f"{Decimal(repr(number)):,f}"


def _scientific(_: Budget, value: object, precision: int) -> str:
    number = _float("e", value)
    # Kubernetes 1.36 uses the precision as the minimal width.
    if precision // 10 > _MAX_BEFORE_LAST_DIGIT:
        return _NO_VERB
    return _mantissa_and_exponent(number).rjust(precision % _WIDTHS)


def _mantissa_and_exponent(number: float) -> str:
    if not math.isfinite(number):
        return _not_finite(number)
    mantissa, _, exponent = f"{number or 0.0:.{_DEFAULT_PRECISION}e}".partition("e")
    return f"{mantissa}\N{MULTIPLICATION SIGN}10{exponent.removeprefix('+').translate(_SUPERSCRIPT)}"


def _based(verb: str) -> Callable[[Budget, object, int], str]:
    def write(budget: Budget, value: object, _: int) -> str:
        if isinstance(value, bool):
            if verb == "b":
                return "1" if value else "0"
        elif isinstance(value, int):
            return format(int(value), verb)
        elif verb in "xX" and isinstance(value, str | bytes):
            budget.text(2 * len(value))
            digits = (utf8(value) if isinstance(value, str) else value).hex()
            return digits.upper() if verb == "X" else digits
        raise _wrong(verb, value)

    return write


_VERBS: Final[dict[str, Callable[[Budget, object, int], str]]] = {
    "s": _text,
    "d": _decimal,
    "f": _fixed,
    "e": _scientific,
    **{verb: _based(verb) for verb in "bxXo"},
}

OVERLOADS: Final = (method("format", STRING, LIST, result=STRING, call=_format, budgeted=True),)
