"""Strings. Positions count characters, from 0.

Source: cel-go ext/strings.go, version 2 (the one that Kubernetes enables); `format` is in `formatting`.
"""

import string
from typing import Any, Final

from kubecel.budget import Budget
from kubecel.checking import function, method
from kubecel.errors import CelRuntimeError
from kubecel.sizes import bytes_of
from kubecel.types import INT, STRING, list_of
from kubecel.values import no_overload

_LOWER: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_UPPER: Final = str.maketrans(string.ascii_lowercase, string.ascii_uppercase)
_WHITESPACE: Final = (
    "\t\n\v\f\r \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
_TRANSLATED_AT_ONCE: Final = 32 * 1024
_SHORT: Final = 64
"""A text up to this length is not charged: the cost of the call limits the number of such texts."""
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


def _index_of(budget: Budget, text: str, part: str, start: int = 0) -> int:
    _charge_search(budget, text, part)
    if not part:
        return start
    if start < 0:
        raise _out_of_range(start, text)
    return text.find(part, start) if start < len(text) else -1


def _charge_search(budget: Budget, text: str, part: str) -> None:
    """Charge a search: a tenth of the text's characters (k8s.io/apiserver cel/library/cost.go)."""
    budget.spend(bytes_of(text) // 10 - 1)
    budget.read(2 * (len(text) + len(part)))


def _last(text: str, part: str) -> int:
    """`text.rfind(part)` in linear time: `rfind` needs text times part, `find` on the reversed texts does not."""
    found = text[::-1].find(part[::-1])
    return -1 if found < 0 else len(text) - found - len(part)


def _last_index_of(budget: Budget, text: str, part: str) -> int:
    _charge_search(budget, text, part)
    return _last(text, part)


def _last_index_from(budget: Budget, text: str, part: str, last: int) -> int:
    _charge_search(budget, text, part)
    if not part:
        return last
    if last < 0:
        raise _out_of_range(last, text)
    return _last(text[: last + len(part)], part) if last < len(text) else -1


def _substring(budget: Budget, text: str, start: int) -> str:
    budget.scan(len(text))
    if not 0 <= start <= len(text):
        raise _out_of_range(start, text)
    budget.text(len(text) - start)
    return text[start:]


def _substring_to(budget: Budget, text: str, start: int, end: int) -> str:
    budget.scan(len(text))
    if start > end:
        raise CelRuntimeError(f"a substring cannot start at {start} and end at {end}")
    if not 0 <= start <= len(text):
        raise _out_of_range(start, text)
    if not 0 <= end <= len(text):
        raise _out_of_range(end, text)
    budget.text(end - start)
    return text[start:end]


def _replace(budget: Budget, text: str, old: str, new: str, limit: int = -1) -> str:
    budget.scan(2 * len(text))
    times = text.count(old) if old else len(text) + 1
    if limit >= 0:
        times = min(times, limit)
    budget.text(len(text) + times * (len(new) - len(old)))
    return text.replace(old, new, times)


def _split(budget: Budget, text: str, separator: str, limit: int = -1) -> list[str]:
    budget.scan(2 * len(text))
    if limit == 0:
        return []
    parts = (text.count(separator) if separator else len(text)) + 1
    if len(text) > _SHORT:
        budget.items(parts)
        budget.text(len(text))
    if separator:
        return text.split(separator, min(limit, parts) - 1 if limit > 0 else -1)
    if limit < 0 or limit >= len(text):
        return list(text)
    return [*text[: limit - 1], text[limit - 1 :]]


def _join(budget: Budget, items: list[Any], separator: str = "") -> str:
    budget.work(len(items))
    for item in items:
        if not isinstance(item, str):
            raise no_overload("join", items, separator)
    length = sum(map(len, items)) + len(separator) * max(0, len(items) - 1)
    budget.scan(2 * length)
    budget.text(length)
    return separator.join(items)


def _trim(budget: Budget, text: str) -> str:
    budget.scan(len(text))
    budget.text(len(text))
    return text.strip(_WHITESPACE)


def _lower_ascii(budget: Budget, text: str) -> str:
    budget.scan(len(text))
    return _translated(budget, text, _LOWER)


def _upper_ascii(budget: Budget, text: str) -> str:
    budget.scan(len(text))
    return _translated(budget, text, _UPPER)


def _translated(budget: Budget, text: str, table: dict[int, Any]) -> str:
    """`text.translate(table)` in several calls: it needs 50 ns for each character if not all are ASCII."""
    if len(text) <= _SHORT:
        return text.translate(table)
    budget.text(len(text))
    if len(text) <= _TRANSLATED_AT_ONCE:
        return text.translate(table)
    parts = []
    for start in range(0, len(text), _TRANSLATED_AT_ONCE):
        budget.work(_TRANSLATED_AT_ONCE // 2)
        parts.append(text[start : start + _TRANSLATED_AT_ONCE].translate(table))
    return "".join(parts)


def _escape_key(budget: Budget, text: str) -> str:
    """A key as a part of a JSON pointer (k8s.io/apiserver/pkg/cel/library/jsonpatch.go)."""
    budget.scan(len(text))
    budget.text(2 * len(text))
    return text.replace("~", "~0").replace("/", "~1")


def quote(budget: Budget, text: str) -> str:
    """The text in double quotes, with escaped control characters."""
    budget.text(2 * len(text) + 2)
    return f'"{_translated(budget, text, _ESCAPES)}"'


def _quote(budget: Budget, text: str) -> str:
    budget.scan(len(text))
    return quote(budget, text)


OF_MUTATIONS: Final = (function("jsonpatch.escapeKey", STRING, result=STRING, call=_escape_key, budgeted=True),)
"""Only expressions that make patches have it."""
OVERLOADS: Final = (
    method("charAt", STRING, INT, result=STRING, call=_char_at),
    method("indexOf", STRING, STRING, result=INT, call=_index_of, budgeted=True),
    method("indexOf", STRING, STRING, INT, result=INT, call=_index_of, budgeted=True),
    method("lastIndexOf", STRING, STRING, result=INT, call=_last_index_of, budgeted=True),
    method("lastIndexOf", STRING, STRING, INT, result=INT, call=_last_index_from, budgeted=True),
    method("substring", STRING, INT, result=STRING, call=_substring, budgeted=True),
    method("substring", STRING, INT, INT, result=STRING, call=_substring_to, budgeted=True),
    method("replace", STRING, STRING, STRING, result=STRING, call=_replace, budgeted=True),
    method("replace", STRING, STRING, STRING, INT, result=STRING, call=_replace, budgeted=True),
    method("split", STRING, STRING, result=list_of(STRING), call=_split, budgeted=True),
    method("split", STRING, STRING, INT, result=list_of(STRING), call=_split, budgeted=True),
    method("join", list_of(STRING), result=STRING, call=_join, budgeted=True),
    method("join", list_of(STRING), STRING, result=STRING, call=_join, budgeted=True),
    method("trim", STRING, result=STRING, call=_trim, budgeted=True),
    method("lowerAscii", STRING, result=STRING, call=_lower_ascii, budgeted=True),
    method("upperAscii", STRING, result=STRING, call=_upper_ascii, budgeted=True),
    function("strings.quote", STRING, result=STRING, call=_quote, budgeted=True),
)
