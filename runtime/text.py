"""Escapes untrusted text for one line of a log.

Readers split lines differently: `str.splitlines` and some log shippers split at U+0085, U+2028 and U+2029, terminals
interpret DEL and C1 controls, and bidirectional controls change the displayed order. None of these is printable
(`str.isprintable`: not in Unicode's categories "other" and "separator", except the space).
"""

import json


def escaped(text: str) -> str:
    r"""The text with `\uXXXX` for every character that is not printable, as in JSON; escaped text is not changed."""
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
