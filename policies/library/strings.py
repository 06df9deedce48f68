"""Strings. Positions count characters, from 0.

Source: cel-go ext/strings.go, version 2 (the one that Kubernetes enables); `format` is in `formatting`.
"""

import string
from typing import Any, Final

from policies.engine import Budget, CelRuntimeError
from policies.evaluator.overloads import function, method
from policies.evaluator.types import INT, STRING, list_of
from policies.evaluator.values import no_overload

_LOWER: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_UPPER: Final = str.maketrans(string.ascii_lowercase, string.ascii_uppercase)
_WHITESPACE: Final = (
    "\t\n\v\f\r \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
_ESCAPES: Final = str.maketrans(
    {
        "\a": "\\a",
        "\b": "\\b",
        "\f": "\\f",
        "\n": "\\n",
        "\r": "\\r",
        "\t": "\\t",
        "\v": "\\v",
        "\\": "\\\\",
        '"': '\\"',
    }
)


def _out_of_range(index: int, text: str) -> CelRuntimeError:
    return CelRuntimeError(f"index out of range: {index} in a string of {len(text)} characters")


def _char_at(text: str, index: int) -> str:
    if not 0 <= index <= len(text):
        raise _out_of_range(index, text)
    return text[index : index + 1]


def _index_of(text: str, part: str, start: int = 0) -> int:
    if not part:
        return start
    if start < 0:
        raise _out_of_range(start, text)
    return text.find(part, start) if start < len(text) else -1


def _last_index_of(text: str, part: str) -> int:
    return text.rfind(part)


def _last_index_from(text: str, part: str, last: int) -> int:
    if not part:
        return last
    if last < 0:
        raise _out_of_range(last, text)
    return text.rfind(part, 0, last + len(part)) if last < len(text) else -1


def _substring(text: str, start: int) -> str:
    if not 0 <= start <= len(text):
        raise _out_of_range(start, text)
    return text[start:]


def _substring_to(text: str, start: int, end: int) -> str:
    if start > end:
        raise CelRuntimeError(f"a substring cannot start at {start} and end at {end}")
    if not 0 <= start <= len(text):
        raise _out_of_range(start, text)
    if not 0 <= end <= len(text):
        raise _out_of_range(end, text)
    return text[start:end]


def _replace(budget: Budget, text: str, old: str, new: str, limit: int = -1) -> str:
    times = text.count(old) if old else len(text) + 1
    if limit >= 0:
        times = min(times, limit)
    budget.text(len(text) + times * (len(new) - len(old)))
    return text.replace(old, new, times)


def _split(budget: Budget, text: str, separator: str, limit: int = -1) -> list[str]:
    if limit == 0:
        return []
    parts = (text.count(separator) if separator else len(text)) + 1
    budget.items(parts)
    if separator:
        return text.split(separator, min(limit, parts) - 1 if limit > 0 else -1)
    if limit < 0 or limit >= len(text):
        return list(text)
    return [*text[: limit - 1], text[limit - 1 :]]


def _join(budget: Budget, items: list[Any], separator: str = "") -> str:
    for item in items:
        if not isinstance(item, str):
            raise no_overload("join", items, separator)
    budget.text(sum(map(len, items)) + len(separator) * max(0, len(items) - 1))
    return separator.join(items)


def _trim(text: str) -> str:
    return text.strip(_WHITESPACE)


def _lower_ascii(budget: Budget, text: str) -> str:
    budget.text(len(text))
    return text.translate(_LOWER)


def _upper_ascii(budget: Budget, text: str) -> str:
    budget.text(len(text))
    return text.translate(_UPPER)


def quote(budget: Budget, text: str) -> str:
    """The text in double quotes, control characters escaped."""
    budget.text(2 * len(text) + 2)
    return f'"{text.translate(_ESCAPES)}"'


OVERLOADS: Final = (
    method("charAt", STRING, INT, result=STRING, call=_char_at),
    method("indexOf", STRING, STRING, result=INT, call=_index_of),
    method("indexOf", STRING, STRING, INT, result=INT, call=_index_of),
    method("lastIndexOf", STRING, STRING, result=INT, call=_last_index_of),
    method("lastIndexOf", STRING, STRING, INT, result=INT, call=_last_index_from),
    method("substring", STRING, INT, result=STRING, call=_substring),
    method("substring", STRING, INT, INT, result=STRING, call=_substring_to),
    method("replace", STRING, STRING, STRING, result=STRING, call=_replace, budgeted=True),
    method("replace", STRING, STRING, STRING, INT, result=STRING, call=_replace, budgeted=True),
    method("split", STRING, STRING, result=list_of(STRING), call=_split, budgeted=True),
    method("split", STRING, STRING, INT, result=list_of(STRING), call=_split, budgeted=True),
    method("join", list_of(STRING), result=STRING, call=_join, budgeted=True),
    method("join", list_of(STRING), STRING, result=STRING, call=_join, budgeted=True),
    method("trim", STRING, result=STRING, call=_trim),
    method("lowerAscii", STRING, result=STRING, call=_lower_ascii, budgeted=True),
    method("upperAscii", STRING, result=STRING, call=_upper_ascii, budgeted=True),
    function("strings.quote", STRING, result=STRING, call=quote, budgeted=True),
)
