"""Values of YAML scalars as kubectl reads them, and writing strings that kubectl reads as strings.

kubectl reads YAML with sigs.k8s.io/yaml, which follows go-yaml v2 (`resolve.go`): YAML 1.1 with `yes` and `on`, also
octals as `0o17`, no base 60, and times as strings. YAML libraries of Python follow other rules: kubectl would read a
name that they write as `y` as `true`.
"""

import base64
import binascii
import json
import math
import re
from typing import Final

TAG_PREFIX: Final = "tag:yaml.org,2002:"

_WORDS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
}
_NOT_JSON: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_INTEGER: Final = re.compile(r"([-+]?)(?:0[xX]([0-9a-fA-F]+)|0[oO]?([0-7]+)|0[bB]([01]+)|([1-9][0-9]*|0))", re.ASCII)
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_BASES: Final = (16, 8, 2, 10)
_LONGEST_INTEGER: Final = 400
"""Characters. A longer number exceeds every float, and Python parses it in quadratic time."""
_TYPES: Final = {"int": (int,), "float": (int, float), "bool": (bool,), "null": (type(None),)}

_PLAIN: Final = re.compile(r"[A-Za-z_/][-A-Za-z0-9_./]*", re.ASCII)
_UNPRINTABLE: Final = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


def is_word(text: str) -> bool:
    """Whether a plain scalar is null or a boolean by its word."""
    return text in _WORDS


def resolve(text: str) -> object:
    """The value of a plain scalar.

    Raises:
        ValueError: it is `.inf` or `.nan`, which JSON does not have.
    """
    if text in _WORDS:
        return _WORDS[text]
    if text[0] == ".":
        if _NOT_JSON.fullmatch(text):
            raise ValueError(f"{text} is not a JSON value")
        return _float(text)
    if text[0] not in "+-0123456789":
        return text
    if _NOT_JSON.fullmatch(text):
        raise ValueError(f"{text} is not a JSON value")
    digits = text.replace("_", "")
    integer = _INTEGER.fullmatch(digits)
    if integer and len(digits) <= _LONGEST_INTEGER:
        sign, *forms = integer.groups()
        number = next(int(form, base) for form, base in zip(forms, _BASES, strict=True) if form)
        if number < 1 << (63 if sign else 64):
            return -number if sign == "-" else number
    value = _float(digits)
    return text if value is digits else value


def _float(text: str) -> int | float | str:
    """A number as in JSON: without a fraction it is an integer."""
    if not _FLOAT.fullmatch(text):
        return text
    number = float(text)
    if math.isinf(number):
        return text
    return int(number) if number.is_integer() and abs(number) < 1 << 63 else number


def resolve_tagged(tag: str, text: str) -> object:
    """The value of a scalar with a tag; with a tag that kubectl does not know, a string.

    Raises:
        ValueError: the text is not a value of that tag.
    """
    name = tag.removeprefix(TAG_PREFIX) if tag.startswith(TAG_PREFIX) else ""
    if name == "binary":
        try:
            return base64.b64decode(text, validate=False).decode("utf-8", "replace")
        except binascii.Error as error:
            raise ValueError(f"!!binary {text[:32]!r} is not base64") from error
    if name not in _TYPES:
        return text
    value = resolve(text)
    if isinstance(value, _TYPES[name]):
        return value
    raise ValueError(f"{text[:32]!r} is no !!{name}")


def key_text(value: object) -> str:
    """A mapping key as in JSON.

    Raises:
        ValueError: it is null, a list or a mapping.
    """
    match value:
        case str():
            return value
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case _:
            raise ValueError("a key must be a string, a number or a boolean")


def write_string(text: str, quote: str = "") -> str:
    """A string in YAML, on one line: plain if every reader reads it as a string, else quoted.

    Args:
        quote: preferred quote, `'` or `"`.
    """
    if not quote and _PLAIN.fullmatch(text) and text not in _WORDS:
        return text
    prefers_single = quote == "'" or ('"' in text and quote != '"')
    if prefers_single and "'" not in text and text.isprintable():
        return f"'{text}'"
    return escape_unprintable(json.dumps(text, ensure_ascii=False))


def escape_unprintable(text: str) -> str:
    """Escape the characters that YAML allows only as escapes."""
    if text.isascii() and "\x7f" not in text:
        return text
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def write_scalar(value: object, quote: str = "") -> str:
    """A scalar in YAML, on one line."""
    return write_string(value, quote) if isinstance(value, str) else json.dumps(value)
