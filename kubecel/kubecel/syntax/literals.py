"""The values of literals.

Source: cel-spec doc/langdef.md (values, escapes).
"""

import math
import re
from typing import Final

from kubecel.errors import CelSyntaxError
from kubecel.values import MAX_INT, MAX_UINT, MIN_INT, UInt

_ESCAPE: Final = re.compile(
    r"""\\(?:([abfnrtv"'\\?`])|[xX]([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2}))"""
)
_SIMPLE: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_MAX_DIGITS: Final = 20
"""Digits of the largest uint64 in decimal."""
_QUOTED: Final = 40
_MAX_CODE_POINT: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)


def value(kind: str, text: str, offset: int) -> object:
    """The value of a token.

    Args:
        kind: the grammar's name of the token.
        offset: its position, for errors.

    Raises:
        CelSyntaxError: it has no value, such as an int that does not fit into 64 bits.
    """
    match kind:
        case "INT_LIT":
            return _integer(text, MIN_INT, MAX_INT, "an int", offset)
        case "UINT_LIT":
            return UInt(_integer(text[:-1], 0, MAX_UINT, "a uint", offset))
        case "FLOAT_LIT":
            return _double(text, offset)
        case "BOOL_LIT":
            return text == "true"
        case "NULL_LIT":
            return None
        case "BYTES_LIT":
            return _bytes(text[1:], offset)
        case _:
            return _string(text, offset)


def _integer(text: str, lowest: int, highest: int, what: str, offset: int) -> int:
    negative = text.startswith("-")
    hexadecimal = text.removeprefix("-").startswith("0x")
    digits = text.removeprefix("-").removeprefix("0x").lstrip("0") or "0"
    # Python raises an error for very long numbers; none of them is in the range.
    size = int(digits, 16 if hexadecimal else 10) if len(digits) <= _MAX_DIGITS else highest + 2
    number = -size if negative else size
    if not lowest <= number <= highest:
        raise CelSyntaxError(f"{_shown(text)} is out of range for {what}", offset)
    return number


def _double(text: str, offset: int) -> float:
    number = float(text)
    if math.isinf(number):
        raise CelSyntaxError(f"{_shown(text)} is out of range for a double", offset)
    return number


def _shown(text: str) -> str:
    return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}…"


def _body(text: str) -> tuple[str, bool]:
    """The text between the quotes, and whether the literal is raw (without escapes)."""
    raw = text[0] in "rR"
    quoted = text[1:] if raw else text
    width = 3 if len(quoted) >= 6 and quoted[:3] in ('"""', "'''") else 1
    return quoted[width:-width].replace("\r\n", "\n").replace("\r", "\n"), raw


def _string(text: str, offset: int) -> str:
    body, raw = _body(text)
    if raw or "\\" not in body:
        return body

    def unescape(match: re.Match[str]) -> str:
        simple, byte, short, long, octal = match.groups()
        if simple:
            return _SIMPLE.get(simple, simple)
        code = int(octal, 8) if octal else int(byte or short or long, 16)
        if code > _MAX_CODE_POINT or code in _SURROGATES:
            raise CelSyntaxError(f"{match[0]} is not a character", offset)
        return chr(code)

    return _ESCAPE.sub(unescape, body)


def _bytes(text: str, offset: int) -> bytes:
    body, raw = _body(text)
    try:
        body.encode()
    except UnicodeEncodeError:
        raise CelSyntaxError("a literal with half a surrogate pair has no UTF-8 bytes", offset) from None
    if raw:
        return body.encode()
    data = bytearray()
    position = 0
    for match in _ESCAPE.finditer(body):
        data += body[position : match.start()].encode()
        simple, byte, short, long, octal = match.groups()
        if short or long:
            raise CelSyntaxError(f"{match[0]} is not allowed in bytes: write \\x", offset)
        data += _SIMPLE.get(simple, simple).encode() if simple else bytes([int(octal, 8) if octal else int(byte, 16)])
        position = match.end()
    return bytes(data + body[position:].encode())
