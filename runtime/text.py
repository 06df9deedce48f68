"""Text of others on one line of ours.

What splits lines differs between readers: `str.splitlines` and some log shippers split at U+0085, U+2028 and U+2029,
terminals act on DEL and C1 controls, and bidirectional controls make a line read as something that it is not. None of
them is printable (`str.isprintable`: Unicode's categories "other" and "separator", but for the space).
"""

import json


def escaped(text: str) -> str:
    r"""The text with `\uXXXX` for whatever is not printable, as JSON spells it; already escaped text stays as it is."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def quoted(text: str) -> str:
    """A JSON string of printable characters."""
    return escaped(json.dumps(text, ensure_ascii=False))


def _escaped(letter: str) -> str:
    if letter.isprintable():
        return letter
    code = ord(letter)
    if code <= 0xFFFF:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
