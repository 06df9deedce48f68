r"""Regular expressions: `matches`, `find` and `findAll` with RE2, which is linear in the text, like Go's regexp.

The time is text times pattern: for a pattern with many states, RE2 needs 20 ns for each pair of byte and instruction,
in one call. So both sizes are checked before. Compiling is one call into C, too, so a pattern that compiles slowly is
refused: its time is estimated from its text. RE2 unrolls every repetition: `.{9,999}` becomes a thousand times as long
as `.`, and nested repetitions multiply. Measured with RE2 on one core: 7 microseconds for a `.` or `[^a]` (sequences of
bytes of UTF-8), 2,400 for `\pL`, 1 or less for a character of ASCII.

Source: k8s.io/apiserver/pkg/cel/library/regex.go; Go's regexp package for the matches of `findAll`.
"""

import dataclasses
import re
import threading
from typing import Any, Final

from kubecel.budget import Budget
from kubecel.checking import function, method
from kubecel.errors import CelRuntimeError, CelSizeExceededError, quoted
from kubecel.types import BOOL, INT, STRING, list_of
from kubecel.values import utf8

_CACHED: Final = 128
_MEMORY: Final = 256 * 1024
"""Bytes of one compiled pattern with its states: enough for 4,096 instructions. `\\pL` needs 1,200."""
_MAX_LENGTH: Final = 2048
_MAX_CLASSES: Final = 32
_MAX_REPETITIONS: Final = 64
"""RE2 needs 0.1 ms to read a Unicode class and 0.3 ms to unroll a repetition."""
_COST_OF_REFUSING: Final = 500
_OUT_OF_MEMORY: Final = "pattern too large"
_MAX_REPEAT_DIGITS: Final = 4

_TOKEN: Final = re.compile(
    r"""\\Q .*? (?:\\E|\Z)                              # literal text
      | \\(?P<escape>[pPx]\{[^}]*\}|.)                 # \p{Greek}, \x{41}, \d
      | \[\^?\]?(?:\[:[^\]]*:\]|\\.|[^\]\\])*\]        # a class of characters
      | \(\?P?<(?P<name>[^>=!]*)>                       # a named group
      | \{(?P<least>[0-9]+)(?:,(?P<most>[0-9]*))?\}    # a number of repeats
    """,
    re.VERBOSE | re.DOTALL,
)

_compiled: Final[dict[str, object]] = {}
"""Cache of compiled patterns. The oldest is removed first."""
_adding: Final = threading.Lock()


def _refused(pattern: str, reason: str) -> CelRuntimeError:
    return CelRuntimeError(f"{quoted(pattern)} is not a regular expression that RE2 accepts: {reason}")


def _check_size(pattern: str) -> None:
    """Refuse a pattern that is slow to compile.

    Raises:
        CelRuntimeError: it is too long, or has too many classes or repetitions.
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
    r"""Why Go refuses a pattern that RE2 accepts: `\C`, group names beyond ASCII, very high repeats; else None."""
    for token in _TOKEN.finditer(pattern):
        if token["escape"] == "C":
            return r"invalid escape sequence: \C"
        name = token["name"]
        if name is not None and not name.isascii():
            return f"invalid named capture: {quoted(name)[1:-1]}"
        for count in (token["least"], token["most"]):
            # Both read a number with a leading zero as plain text; RE2 also a number with many digits.
            if count and count[0] != "0" and len(count) > _MAX_REPEAT_DIGITS:
                return f"bad repetition: at most {MOST_REPEATS} repeats"
    return None


def _check_cost(budget: Budget, pattern: str) -> None:
    """Charge the compilation of a pattern, before it.

    Raises:
        CelSizeExceededError: it needs too much time or memory.
        CelBudgetExceededError: the time is used up.
    """
    cost, repeats = estimate(pattern)
    if repeats > MOST_REPEATS:
        cost = min(cost, _COST_OF_REFUSING)  # RE2 refuses it after reading it.
    elif cost > 10_000:  # microseconds to compile it, as estimated
        raise _too_large(pattern)
    budget.pattern(cost)


def _too_large(pattern: str) -> CelSizeExceededError:
    return CelSizeExceededError(
        f"the regular expression {quoted(pattern)} is too large to compile here: repeat less in it"
    )


def compile_pattern(budget: Budget, pattern: str) -> Any:
    """Compile a regular expression, without groups, or read it from the cache. Charges the budget before compiling.

    Raises:
        CelRuntimeError: the pattern is not valid.
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


def _compile(pattern: str) -> object:
    # Loading RE2 takes 10 ms and 3 MiB, so it is loaded at the first use.
    import re2  # type: ignore[import-untyped]

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY
    # Groups are not used here, and they make matching slower.
    options.never_capture = True
    try:
        return re2.compile(pattern, options=options)
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else error.args[0]
        if reason.startswith(_OUT_OF_MEMORY):
            raise _too_large(pattern) from None
        raise _refused(pattern, quoted(reason)[1:-1]) from None


def _charge(budget: Budget, text: str, pattern: str) -> None:
    """Charge a match, without the 1 of the call: cel-go interpreter/runtimecost.go, MatchesString."""
    budget.spend((len(text) // 10 + 1) * -(-len(pattern) // 4) - 1)


def _matches(budget: Budget, text: str, pattern: str) -> bool:
    _charge(budget, text, pattern)
    return _is_match(budget, text, pattern)


def _is_match(budget: Budget, text: str, pattern: str) -> bool:
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
    """The position of the next character in UTF-8."""
    position += 1
    while position < len(data) and data[position] & 0xC0 == 0x80:
        position += 1
    return position


_PATTERN: Final = (1, compile_pattern)

OVERLOADS: Final = (
    # cel-go charges the lengths of text and pattern for the method only (runtimecost.go, MatchesString).
    function("matches", STRING, STRING, result=BOOL, call=_is_match, budgeted=True, literal=_PATTERN),
    method("matches", STRING, STRING, result=BOOL, call=_matches, budgeted=True, literal=_PATTERN),
    method("find", STRING, STRING, result=STRING, call=_find, budgeted=True, literal=_PATTERN),
    method("findAll", STRING, STRING, result=list_of(STRING), call=_find_all, budgeted=True, literal=_PATTERN),
    method("findAll", STRING, STRING, INT, result=list_of(STRING), call=_find_all, budgeted=True, literal=_PATTERN),
)


_WIDE: Final = 7
"""Cost of a class that contains nearly all characters."""
_UNICODE_CLASS: Final = 2_500
_FURTHER_UNICODE_CLASS: Final = 500
"""Cost of each further Unicode class in the same brackets."""
_OTHER_CHARACTER: Final = 2
_FOLDED: Final = 3
"""Factor if upper and lower case are equal (flag i)."""
MOST_REPEATS: Final = 1000
"""Limit of the product of nested repetitions. RE2 and Go refuse more at once (Go regexp/syntax, maxRepeat)."""

_PART: Final = re.compile(
    r"""\\Q (?P<text>.*?) (?:\\E|\Z)
      | \\[pP](?:\{[^}]*\}|.) (?P<unicode>)
      | \\x\{[^}]*\} | \\[0-9]{1,3} | \\x..
      | \\[WDS] (?P<wide>)
      | \\.
      | \[(?P<class>\^?\]?(?:\[:[^\]]*:\]|\\.|[^\]\\])*)\]
      | (?P<open>\()(?:\?P?<[^>]*>|\?(?P<flags>[a-zA-Z-]*)(?P<alone>\))?:?)?
      | (?P<close>\))
      | \{(?P<least>[0-9]+)(?P<range>,(?P<most>[0-9]*))?\}
      | (?P<any>\.)
      | .
    """,
    re.VERBOSE | re.DOTALL,
)
_UNICODE_IN_CLASS: Final = re.compile(r"\\[pP]")
_NEGATED_IN_CLASS: Final = re.compile(r"\\[WDS]|\[:\^")


@dataclasses.dataclass(slots=True)
class _PatternGroup:
    """The parts of a group that are read so far.

    Attributes:
        cost: cost of all parts except the last.
        last: cost of the last part, to which a repetition belongs.
        repeats: the highest product of nested repetitions.
        last_repeats: the product of the last part.
    """

    cost: int = 1
    last: int = 0
    repeats: int = 1
    last_repeats: int = 1

    def add(self, cost: int, repeats: int = 1) -> None:
        self.cost += self.last
        self.repeats = max(self.repeats, self.last_repeats)
        self.last, self.last_repeats = cost, repeats

    def repeat(self, times: int) -> None:
        # Every round of an optional part needs one more instruction.
        self.last = (self.last + 1) * max(1, times)
        self.last_repeats *= max(1, times)

    def closed(self) -> tuple[int, int]:
        return self.cost + self.last, max(self.repeats, self.last_repeats)


def estimate(pattern: str) -> tuple[int, int]:
    """Estimate the compilation of a pattern, in time linear in its length.

    Returns:
        Microseconds, and the highest product of nested repetitions.
    """
    groups, folded = [_PatternGroup()], 1
    for part in _PART.finditer(pattern):
        if part["open"]:
            if part["flags"] and "i" in part["flags"]:
                folded = _FOLDED
            if not part["alone"]:
                groups.append(_PatternGroup())
        elif part["close"]:
            if len(groups) > 1:
                inner = groups.pop().closed()
                groups[-1].add(*inner)
        elif part["least"]:
            groups[-1].repeat(_times(part["least"], part["most"]))
        else:
            groups[-1].add(_single(part))
    while len(groups) > 1:
        inner = groups.pop().closed()
        groups[-1].add(*inner)
    cost, repeats = groups[0].closed()
    return cost * folded, repeats


def _times(least: str, most: str | None) -> int:
    # RE2 and Go read a number with more digits as plain text, or refuse it.
    return max(int(count) if len(count) <= 4 else MOST_REPEATS + 1 for count in (least, most or "0"))


def _single(part: re.Match[str]) -> int:
    if part["unicode"] is not None:
        return _UNICODE_CLASS
    if part["wide"] is not None or part["any"]:
        return _WIDE
    inside = part["class"]
    if inside is not None:
        return _of_class(inside)
    text = part["text"] if part["text"] is not None else part[0]
    return len(text) if text.isascii() else _OTHER_CHARACTER * len(text)


def _of_class(inside: str) -> int:
    unicode = len(_UNICODE_IN_CLASS.findall(inside))
    cost = 1 + (_UNICODE_CLASS if unicode else 0) + _FURTHER_UNICODE_CLASS * max(0, unicode - 1)
    if inside.startswith("^") or _NEGATED_IN_CLASS.search(inside):
        cost += _WIDE
    if not inside.isascii() or "\\x{" in inside:
        cost += _WIDE * (sum(not each.isascii() for each in inside) + inside.count("\\x{"))
    # Most characters of a class need no instruction: RE2 joins adjacent ranges.
    return cost + len(inside) // 4
