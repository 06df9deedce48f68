"""Regular expressions: `matches`, `find`, `findAll`, by RE2, which is linear in the text like Go's own.

Source: k8s.io/apiserver/pkg/cel/library/regex.go; which matches `findAll` takes: Go's regexp package.
"""

import functools
import re
from typing import Any, Final

from policies.engine import Budget, CelRuntimeError
from policies.evaluator.overloads import function, method
from policies.evaluator.types import BOOL, INT, STRING, list_of

_CACHED: Final = 512
_MEMORY: Final = 1 << 20
_QUOTED: Final = 100
_MAX_REPEATS: Final = 1000
_MAX_REPEAT_DIGITS: Final = 4

_TOKEN: Final = re.compile(
    r"""\\Q .*? (?:\\E|\Z)                              # taken literally
      | \\(?P<escape>[pPx]\{[^}]*\}|.)                 # \p{Greek}, \x{41}, \d
      | \[\^?\]?(?:\[:[^\]]*:\]|\\.|[^\]\\])*\]        # a class of characters
      | \(\?P?<(?P<name>[^>=!]*)>                       # a named group
      | \{(?P<least>[0-9]+)(?:,(?P<most>[0-9]*))?\}    # a number of repeats
    """,
    re.VERBOSE | re.DOTALL,
)


@functools.lru_cache(maxsize=_CACHED)
def compile_pattern(pattern: str) -> Any:
    """A compiled regular expression.

    Raises:
        CelRuntimeError: it is none, or needs too much memory.
    """
    refused = _refused_by_go(pattern)
    if refused:
        raise _not_a_pattern(pattern, refused)
    # Loading RE2 takes 10 ms and 3 MiB: only who uses regular expressions pays.
    import re2  # type: ignore[import-untyped]

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY
    try:
        return re2.compile(pattern, options=options)
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0].decode() if isinstance(error.args[0], bytes) else error.args[0]
        raise _not_a_pattern(pattern, reason[:_QUOTED]) from None


def _not_a_pattern(pattern: str, reason: str) -> CelRuntimeError:
    shown = pattern if len(pattern) <= _QUOTED else f"{pattern[:_QUOTED]}…"
    return CelRuntimeError(f"'{shown}' is not a regular expression that RE2 takes: {reason}")


def _refused_by_go(pattern: str) -> str | None:
    r"""What Go's regexp refuses and RE2 takes: `\C`, names of groups beyond ASCII, and huge numbers of repeats."""
    for token in _TOKEN.finditer(pattern):
        if token["escape"] == "C":
            return r"invalid escape sequence: \C"
        name = token["name"]
        if name is not None and not name.isascii():
            return f"invalid named capture: {name[:_QUOTED]}"
        for count in (token["least"], token["most"]):
            # With a leading zero it is plain text to both; RE2 takes numbers of many digits for plain text, too.
            if count and count[0] != "0" and len(count) > _MAX_REPEAT_DIGITS:
                return f"bad repetition: at most {_MAX_REPEATS} repeats"
    return None


def _search(pattern: str, text: str, position: int = 0) -> Any:
    try:
        return compile_pattern(pattern).search(text, position)
    except UnicodeEncodeError:
        raise CelRuntimeError("a string with half a surrogate pair has no UTF-8 bytes") from None


def _matches(budget: Budget, text: str, pattern: str) -> bool:
    budget.read(len(text))
    return _search(pattern, text) is not None


def _find(budget: Budget, text: str, pattern: str) -> str:
    budget.read(len(text))
    match = _search(pattern, text)
    return "" if match is None else str(match.group())


def _find_all(budget: Budget, text: str, pattern: str, limit: int = -1) -> list[str]:
    found: list[str] = []
    position, last_end = 0, -1
    while position <= len(text) and (limit < 0 or len(found) < limit):
        budget.spend(1)
        budget.read(len(text))
        match = _search(pattern, text, position)
        if match is None:
            break
        start, end = match.span()
        # Go skips an empty match right after another one.
        if end != position or start != last_end:
            found.append(match.group())
        position = end if end != position else position + 1
        last_end = end
    budget.items(len(found))
    return found


_PATTERN: Final = (1, compile_pattern)

OVERLOADS: Final = (
    function("matches", STRING, STRING, result=BOOL, call=_matches, budgeted=True, literal=_PATTERN),
    method("matches", STRING, STRING, result=BOOL, call=_matches, budgeted=True, literal=_PATTERN),
    method("find", STRING, STRING, result=STRING, call=_find, budgeted=True, literal=_PATTERN),
    method("findAll", STRING, STRING, result=list_of(STRING), call=_find_all, budgeted=True, literal=_PATTERN),
    method("findAll", STRING, STRING, INT, result=list_of(STRING), call=_find_all, budgeted=True, literal=_PATTERN),
)
