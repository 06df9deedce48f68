"""Regular expressions: `matches`, `find`, `findAll`, by RE2, which is linear in the text like Go's own.

Linear means text times pattern: where a pattern has too many states, RE2 takes 20 ns for every pair of a byte and an
instruction, in one call. So both are measured before. Compiling a pattern is one call too; what is slow to compile is
refused.

Source: k8s.io/apiserver/pkg/cel/library/regex.go; which matches `findAll` takes: Go's regexp package.
"""

import re
import threading
from typing import Any, Final

from kubecel.budget import Budget
from kubecel.checking.overloads import function, method
from kubecel.errors import CelRuntimeError, CelSizeExceededError, quoted
from kubecel.library import pattern_costs
from kubecel.types import BOOL, INT, STRING, list_of
from kubecel.values import utf8

_CACHED: Final = 128
_MEMORY: Final = 256 * 1024
"""Bytes of one compiled pattern with its states. That allows 4,096 instructions, of which `\\pL` takes 1,200."""
_MAX_LENGTH: Final = 2048
_MAX_CLASSES: Final = 32
_MAX_REPETITIONS: Final = 64
"""RE2 needs 0.1 ms to read a class of Unicode and 0.3 ms to unfold a repetition."""
_MOST_COST: Final = 10_000
"""Estimated microseconds of compiling one pattern."""
_COST_OF_REFUSING: Final = 500
_OUT_OF_MEMORY: Final = "pattern too large"
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

_compiled: Final[dict[str, Any]] = {}
"""Compiled patterns; the oldest goes first."""
_adding: Final = threading.Lock()


def _refused(pattern: str, reason: str) -> CelRuntimeError:
    return CelRuntimeError(f"{quoted(pattern)} is not a regular expression that RE2 takes: {reason}")


def _check_size(pattern: str) -> None:
    """Refuse a pattern that takes long to compile.

    Raises:
        CelRuntimeError: it does.
    """
    if len(pattern) > _MAX_LENGTH:
        raise _refused(pattern, f"it has {len(pattern)} characters, {_MAX_LENGTH} are allowed")
    classes = pattern.count("\\p") + pattern.count("\\P")
    if classes > _MAX_CLASSES:
        raise _refused(pattern, f"it has {classes} Unicode classes, {_MAX_CLASSES} are allowed")
    repeats = pattern.count("{")
    if repeats > _MAX_REPETITIONS:
        raise _refused(pattern, f"it has {repeats} repetitions, {_MAX_REPETITIONS} are allowed")


def _refused_by_go(pattern: str) -> str | None:
    r"""What Go's regexp refuses and RE2 takes: `\C`, names of groups beyond ASCII, and huge numbers of repeats."""
    for token in _TOKEN.finditer(pattern):
        if token["escape"] == "C":
            return r"invalid escape sequence: \C"
        name = token["name"]
        if name is not None and not name.isascii():
            return f"invalid named capture: {quoted(name)[1:-1]}"
        for count in (token["least"], token["most"]):
            # With a leading zero it is plain text to both; RE2 takes numbers of many digits for plain text, too.
            if count and count[0] != "0" and len(count) > _MAX_REPEAT_DIGITS:
                return f"bad repetition: at most {pattern_costs.MOST_REPEATS} repeats"
    return None


def _check_cost(budget: Budget, pattern: str) -> None:
    """Take what compiling a pattern costs, before.

    Raises:
        CelSizeExceededError: it would take too long, or too much memory.
        CelBudgetExceededError: there is no time for it.
    """
    cost, repeats = pattern_costs.estimate(pattern)
    if repeats > pattern_costs.MOST_REPEATS:
        cost = min(cost, _COST_OF_REFUSING)  # RE2 refuses it as soon as it has read it.
    elif cost > _MOST_COST:
        raise _too_large(pattern)
    budget.pattern(cost)


def _too_large(pattern: str) -> CelSizeExceededError:
    return CelSizeExceededError(
        f"the regular expression {quoted(pattern)} is too large to compile here: repeat less in it"
    )


def compile_pattern(budget: Budget, pattern: str) -> Any:
    """A compiled regular expression without groups; what compiling takes is taken from the budget before.

    Raises:
        CelRuntimeError: it is none.
        CelBudgetExceededError: it needs too much time or memory.
    """
    known = _compiled.get(pattern)
    if known is not None:
        return known
    _check_size(pattern)
    refused = _refused_by_go(pattern)
    if refused:
        raise _refused(pattern, refused)
    _check_cost(budget, pattern)
    found = _compile(pattern)
    with _adding:
        if len(_compiled) >= _CACHED:
            del _compiled[next(iter(_compiled))]
        _compiled[pattern] = found
    return found


def _compile(pattern: str) -> Any:
    # Loading RE2 takes 10 ms and 3 MiB: only who uses regular expressions pays.
    import re2  # type: ignore[import-untyped]

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY
    # Nothing here asks for groups, and finding them is slower.
    options.never_capture = True
    try:
        return re2.compile(pattern, options=options)
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else error.args[0]
        if reason.startswith(_OUT_OF_MEMORY):
            raise _too_large(pattern) from None
        raise _refused(pattern, quoted(reason)[1:-1]) from None


def _charge(budget: Budget, text: str, pattern: str) -> None:
    """Take the cost beyond the 1 of every call: cel-go interpreter/runtimecost.go, MatchesString."""
    budget.spend((len(text) // 10 + 1) * max(1, -(-len(pattern) // 4)) - 1)


def _matches(budget: Budget, text: str, pattern: str) -> bool:
    _charge(budget, text, pattern)
    compiled, data = compile_pattern(budget, pattern), utf8(text)
    budget.match(len(data), compiled.programsize)
    return compiled.search(data) is not None


def _find(budget: Budget, text: str, pattern: str) -> str:
    found = _find_all(budget, text, pattern, 1)
    return found[0] if found else ""


def _find_all(budget: Budget, text: str, pattern: str, limit: int = -1) -> list[str]:
    _charge(budget, text, pattern)
    compiled, data = compile_pattern(budget, pattern), utf8(text)
    size = compiled.programsize
    found: list[str] = []
    position, last_end = 0, -1
    while position <= len(data) and (limit < 0 or len(found) < limit):
        budget.match(len(data) - position, size)
        match = compiled.search(data, position)
        if match is None:
            break
        start, end = match.span()
        # Go skips an empty match right after another one.
        if end != position or start != last_end:
            budget.items(len(found) + 1, added=1)
            budget.text(end - start)
            found.append(data[start:end].decode())
        position = end if end != position else _next_character(data, position)
        last_end = end
    return found


def _next_character(data: bytes, position: int) -> int:
    """Where the character after this one starts in UTF-8."""
    position += 1
    while position < len(data) and data[position] & 0xC0 == 0x80:
        position += 1
    return position


_PATTERN: Final = (1, compile_pattern)

OVERLOADS: Final = (
    function("matches", STRING, STRING, result=BOOL, call=_matches, budgeted=True, literal=_PATTERN),
    method("matches", STRING, STRING, result=BOOL, call=_matches, budgeted=True, literal=_PATTERN),
    method("find", STRING, STRING, result=STRING, call=_find, budgeted=True, literal=_PATTERN),
    method("findAll", STRING, STRING, result=list_of(STRING), call=_find_all, budgeted=True, literal=_PATTERN),
    method("findAll", STRING, STRING, INT, result=list_of(STRING), call=_find_all, budgeted=True, literal=_PATTERN),
)
