"""Findings: errors, warnings and notes with code, field path, message, value and fix. `neuron.codes` has the codes."""

import dataclasses
import difflib
import enum
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from neuron.codes import CODES


@dataclasses.dataclass(frozen=True, slots=True)
class FindingBounds:
    """How much findings may say. Texts are in characters; errors and all other findings are counted apart."""

    path: int = 512
    message: int = 5 * 1024  # as for a ValidatingAdmissionPolicy (admissionregistration/v1, `messageExpression`)
    fix: int = 1024
    quoted: int = 100  # of a value in a message, and of `Finding.value`
    collected: int = 256  # findings that are kept for one object; the others are counted
    shown: int = 64  # findings in one answer


BOUNDS: Final = FindingBounds()

_CODE: Final = re.compile(r"(?<![A-Za-z0-9])(NEU[0-9]{3})(?=: )")
_SIMILARITY: Final = 0.7
_MOST_CANDIDATES: Final = 64
"""Known words with which one word is compared: each comparison takes up to 0.2 ms."""


def short(text: str, most: int = BOUNDS.quoted) -> str:
    """The text, or its beginning and an ellipsis: at most `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def quoted(value: object, most: int = BOUNDS.quoted) -> str:
    """A value for a message, at most `most` characters: a text between quotes with escapes, all else as JSON."""
    if isinstance(value, int) and value.bit_length() > 3322:  # of 1000 digits; str() raises for more than 4300
        return "a number of more than 1000 digits"
    if isinstance(value, str | bytes):
        text = ascii(value[: most + 1])  # An escape is longer than its character.
    else:
        try:
            text = json.dumps(value, default=str)
        except (ValueError, RecursionError):  # a key or an item is such a number, or it is nested too deeply
            return "a value that is too large to show"
    return text if len(text) <= most else f"{text[: most - 2]}…{text[-1]}"


class Severity(enum.StrEnum):
    """Effect of a finding on the request."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"
    """Neither refuses nor warns; for reports."""


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One error, warning or note about one field.

    Attributes:
        code: stable code, a key of `neuron.codes.CODES`.
        path: field path as Kubernetes writes it, e.g. `spec.containers[0].resources.limits[aws.amazon.com/neuron]`.
        message: one sentence that stands alone and contains the offending value.
        fix: one sentence that says what to do; empty if the message says it.
        value: the offending value as the user wrote it, for programs.
        severity: error, warning or note.
        misspelt: whether the message suggests a known word.

    Texts are cut to `BOUNDS`, so that findings do not become
    many times as large as the object.
    """

    code: str
    path: str
    message: str
    fix: str = ""
    value: str = ""
    severity: Severity = Severity.ERROR
    misspelt: bool = False

    def __post_init__(self) -> None:
        """Cut texts that are too long."""
        if (
            len(self.path) > BOUNDS.path
            or len(self.message) > BOUNDS.message
            or len(self.fix) > BOUNDS.fix
            or len(self.value) > BOUNDS.quoted
        ):
            object.__setattr__(self, "path", short(self.path, BOUNDS.path))
            object.__setattr__(self, "message", short(self.message, BOUNDS.message))
            object.__setattr__(self, "fix", short(self.fix, BOUNDS.fix))
            object.__setattr__(self, "value", short(self.value))

    def below(self, path: str) -> "Finding":
        """The same about a part of a larger object. `path`: of the part."""
        return dataclasses.replace(self, path=f"{path}.{self.path}" if self.path else path)

    def __str__(self) -> str:
        """Code, message and fix, as kubectl and Events show them."""
        return f"{self.code}: {self.message} {self.fix}".rstrip()


def warning(code: str, path: str, message: str, fix: str = "", value: str = "") -> Finding:
    """A finding that refuses nothing."""
    return Finding(code, path, message, fix, value, Severity.WARNING)


def as_warning(finding: Finding) -> Finding:
    """The finding with severity warning."""
    return dataclasses.replace(finding, severity=Severity.WARNING)


class Findings:
    """Findings about one object, each once and in order. Keeps the first `most` of a kind and counts the others.

    Errors and all others are counted separately, so that many warnings cannot hide an error.
    """

    def __init__(self, found: Iterable[Finding] = (), most: int = BOUNDS.collected) -> None:
        """Keep `most` errors and `most` others."""
        self._most = most
        self._kept: dict[Finding, None] = {}
        self._errors = self._others = 0
        self._beyond: dict[bool, Finding] = {}
        if found != ():
            self.add(found)

    def add(self, found: Iterable[Finding]) -> None:
        """Add findings."""
        for finding in found:
            is_error = finding.severity is Severity.ERROR
            if (self._errors if is_error else self._others) >= self._most:
                self._beyond.setdefault(is_error, finding)
            elif finding in self._kept:
                continue
            else:
                self._kept[finding] = None
            if is_error:
                self._errors += 1
            else:
                self._others += 1

    def add_at(self, found: Iterable[Finding], path: str) -> None:
        """Add findings with another path. Copies only those that are kept."""
        for finding in found:
            if (self._errors if finding.severity is Severity.ERROR else self._others) < self._most:
                self.add([dataclasses.replace(finding, path=path)])
            else:
                self.add([finding])

    def __iter__(self) -> Iterator[Finding]:
        """The kept findings, and one for each kind with more: their number."""
        if not self._beyond:
            return iter(self._kept)
        counts = {True: self._errors, False: self._others}
        more = [_more(first, counts[is_error] - self._most) for is_error, first in self._beyond.items()]
        return iter([*self._kept, *more])

    def __len__(self) -> int:
        """Number of findings that were added."""
        return self._errors + self._others


def for_answer(findings: Iterable[Finding], most: int = BOUNDS.shown) -> tuple[Finding, ...]:
    """At most `most` findings; the last one has the number of those left out."""
    found = tuple(findings)
    return found if len(found) <= most else (*found[: most - 1], _more(found[most - 1], len(found) - most + 1))


def _more(first: Finding, count: int) -> Finding:
    """Replaces findings that are left out, with code and severity of the first of them."""
    message = f"and {count} more finding{'s' if count > 1 else ''} like this; correct those that are shown first."
    return dataclasses.replace(first, path="", message=message, fix="", value=str(count), misspelt=False)


def few(items: Sequence[str], most: int) -> str:
    """The first of these items, and how many more there are, for a message."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question with the closest known word, or an empty text: ` Did you mean 'trn2.48xlarge'?`."""
    return _question(closest_word(word, known))


def _question(close: str) -> str:
    return f" Did you mean '{short(close)}'?" if close else ""


class Suggestions:
    """Suggestions for the words of one object, as long as few words are compared: each takes up to a millisecond.

    What is left is counted in pairs of letters, 50 nanoseconds each, so that equal objects have equal findings.
    """

    def __init__(self) -> None:
        self._left = 25_000

    def closest_word(self, word: str, known: Collection[str]) -> str:
        """As the function, or an empty text if too many words were compared."""
        if len(known) > _MOST_CANDIDATES:
            # To look at each of them takes time, too, even if none is compared.
            self._left -= len(known) // 32
        if self._left <= 0:
            return ""
        pairs = min(len(known), _MOST_CANDIDATES) * (100 + len(word) * max(map(len, known), default=0))
        if pairs > self._left:
            return ""
        self._left -= pairs
        return closest_word(word, known)

    def did_you_mean(self, word: str, known: Collection[str]) -> str:
        """As the function, or an empty text if too many words were compared."""
        return _question(self.closest_word(word, known))


def closest_word(word: str, known: Iterable[str]) -> str:
    """The closest known word, or an empty text.

    Of more than `_MOST_CANDIDATES` known words it compares those with the longest common prefix.
    """
    # Comparison takes quadratic time, and a text this long is not a misspelt name.
    if not word or len(word) > 128:
        return ""
    candidates = list(known)
    if len(candidates) > _MOST_CANDIDATES:
        candidates.sort(key=lambda each: -_common_start(word, each))
        del candidates[_MOST_CANDIDATES:]
    close = difflib.get_close_matches(word, candidates, n=1, cutoff=_SIMILARITY)
    return close[0] if close else ""


def _common_start(one: str, other: str) -> int:
    """Length of the common prefix of two words."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def known_codes(text: str) -> list[str]:
    """Codes of findings in a text that is not trusted: only those that exist, as findings are printed (`NEU105: `)."""
    return list(dict.fromkeys(code for code in _CODE.findall(text) if code in CODES))


def nearest(count: int, valid: Iterable[int]) -> str:
    """The closest valid counts below and above, such as `4 or 8`."""
    counts = sorted(set(valid))
    below = [str(each) for each in counts if each < count][-1:]
    above = [str(each) for each in counts if each > count][:1]
    return " or ".join(below + above)
