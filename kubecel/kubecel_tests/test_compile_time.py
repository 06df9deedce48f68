"""Compiling an expression has a time limit, and the cost of a pattern is estimated before RE2 compiles it."""

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable

import pytest

from kubecel.budget import DEFAULT_LIMITS, SELECTOR_LIMITS, Budget, Deadline
from kubecel.compile import Cel
from kubecel.devices import compile_selector
from kubecel.errors import (
    CelBudgetExceededError,
    CelCompileError,
    CelCostExceededError,
    CelError,
    CelRuntimeError,
    CelSizeExceededError,
    CelTimeExceededError,
)
from kubecel.library import regexes
from kubecel.library.regexes import compile_pattern
from kubecel_tests.evaluating import frozen_clock, limited, value
from kubecel_tests.timing import assert_below

LONG = 10 * 1024
PATIENT = dataclasses.replace(SELECTOR_LIMITS, seconds=60)
"""No time-out on a busy machine, where another limit is the subject."""
ALLOWED = 0.75
"""CPU seconds of this thread; the measured work needs a tenth of it."""


def filled(part: Callable[[int], str], joint: str = "||") -> str:
    """As many different parts as fit into a selector."""
    source = part(0)
    for number in itertools.count(1):
        longer = f"{source}{joint}{part(number)}"
        if len(longer) > LONG:
            return source
        source = longer
    raise AssertionError


PATTERNS = [
    "[^a%d]{9,999}",
    ".{1000}%d",
    ".{9,999}%d",
    r"\\pL{999}%d",
    r"\\PN{9,99}%d",
    r"\\pL{3}%d",
    r"(\\pL?){3}%d",
    r"\\w{999}%d",
    "[^%d]{999}",
    "(?i)k{999}%d",
    "(.?){999}%d",
    "a{999}%d",
    "(.*){999}%d",
    "(.|%d){999}",
    "((.{5}){5}){5}%d",
    "(.{0,99}){99}%d",
    r"(\\b.){900}%d",
    r"[\\pL\\pN]{2}%d",
    "[é-я%d]{500}",
]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("call", ["'a'.matches('%s')", "device.driver.matches('%s')", "'a'.find('%s') == ''"])
def test_compiling_a_selector_with_many_slow_patterns_ends_in_time(pattern: str, call: str) -> None:
    source = filled(lambda number: call % (pattern.replace("%d", str(number))))
    started, failed = time.thread_time(), None
    try:
        compile_selector(Cel(SELECTOR_LIMITS), source)
    except CelError as error:
        failed = error
    assert_below(time.thread_time() - started, ALLOWED)
    assert failed is not None


def test_a_pattern_that_is_too_slow_only_here_is_not_an_error_of_the_selector() -> None:
    with pytest.raises(
        CelBudgetExceededError, match="compiling the regular expressions takes longer than 50 ms"
    ) as caught:
        compile_selector(Cel(PATIENT), filled(lambda number: f"'a'.matches('[^a{number}]{{9,999}}')"))
    assert not isinstance(caught.value, CelTimeExceededError)
    with pytest.raises(CelSizeExceededError, match="is too large to compile here: repeat less in it"):
        compile_selector(Cel(PATIENT), r"device.driver.matches('(\\pL.){999}')")


def test_no_pattern_is_compiled_after_a_constant_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    source = "lists.range(10001).size() > 0 || " + filled(lambda number: f"device.driver.matches('never{number}')")
    monkeypatch.setattr("kubecel.library.regexes._compile", compiled.append)
    with pytest.raises(CelSizeExceededError):
        compile_selector(Cel(PATIENT), source[: source.rindex("||")][:9000].rpartition("||")[0])
    assert compiled == []


@pytest.mark.parametrize(
    "pattern",
    [
        "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
        r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
        "^.{1,253}$",
        r"^[^/]{1,253}/[^/]{1,63}$",
        r"^(([0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])\.){3}[0-9]+$",
        r"^[\pL\pN _.-]{1,3}$",
        "(?i)^trn[12]n?[.][0-9]{1,2}xlarge$",
        "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
        "(a?){900}x$",
    ],
)
def test_usual_patterns_are_compiled(pattern: str) -> None:
    assert compile_pattern(Budget(frozen_clock, SELECTOR_LIMITS), pattern).programsize > 0


@pytest.mark.parametrize("pattern", ["[^b]{9,999}", ".{1000}", r"\pL{3}", "((.{5}){5}){5}", "(?i)k{999}", r"\w{999}"])
def test_the_estimate_of_a_slow_pattern_is_not_far_below_its_true_time(pattern: str) -> None:
    taken = []
    for number in range(5):
        started = time.thread_time()
        compile_pattern(Budget(frozen_clock), f"{pattern}{number}z")
        taken.append(time.thread_time() - started)
    assert_below(min(taken), regexes.estimate(pattern)[0] * 4 / 1_000_000)


@pytest.mark.parametrize(
    ("pattern", "repeats"),
    [
        ("a", 1),
        ("a{3}", 3),
        ("(a{3}b){4}", 12),
        ("(a{3}|b{5}){2}c{9}", 10),
        (r"\Qa{9}\E{2}", 2),
        (r"a\{9}", 1),
        ("((", 1),
    ],
)
def test_repetitions_inside_each_other_multiply(pattern: str, repeats: int) -> None:
    assert regexes.estimate(pattern)[1] == repeats


def test_the_cost_of_a_computed_pattern_is_estimated() -> None:
    with pytest.raises(CelSizeExceededError):
        value("a.matches(b)", a="a", b=r"(\pL.){999}")
    started = time.thread_time()
    with pytest.raises(CelBudgetExceededError, match="compiling the regular expressions"):
        limited("a.exists(x, 'a'.matches('.{9,999}' + string(x)))", DEFAULT_LIMITS, a=list(range(5000)))
    assert_below(time.thread_time() - started, ALLOWED)


def test_a_pattern_that_go_refuses_is_an_error_of_the_selector() -> None:
    with pytest.raises(CelRuntimeError, match="is not a regular expression that RE2 accepts: invalid repetition size"):
        value("a.matches(b)", a="a", b="(.{99}){99}")
    with pytest.raises(CelCompileError, match="is not a regular expression that RE2 accepts"):
        compile_selector(Cel(SELECTOR_LIMITS), "device.driver.matches('(.{99}){99}')")


# --- the clock ----------------------------------------------------------------------------------------------------


class Counting:
    """A clock that counts its reads."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return float(self.looks)


SOURCES = {
    "disjunction": filled(lambda number: f"device.driver == '{number}'"),
    "list": "[" + filled(str, ",").removesuffix(",2267,2268,2269")[:-20].rpartition(",")[0] + "].size() > 0",
    "elements": "[" + filled(lambda _: "[]", ",")[: LONG - 20].rstrip(",[") + "].size() > 0",
    "nots": "!" * 90 + "true",
    "choices": filled(lambda number: f"device.driver == '{number}' ? true", " : ")[: LONG - 10].rpartition(" : ")[0]
    + " : true",
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_every_compile_step_checks_the_deadline(source: str) -> None:
    """The compilation ends at the first check after the deadline."""
    whole = Counting()
    with contextlib.suppress(CelCostExceededError, CelCompileError):
        compile_selector(Cel(SELECTOR_LIMITS), source, Deadline(whole, 1e9))
    assert whole.looks >= 8
    for end in range(2, whole.looks - 1, max(1, whole.looks // 10)):
        clock = Counting()
        with pytest.raises(CelTimeExceededError):
            compile_selector(Cel(SELECTOR_LIMITS), source, Deadline(clock, float(end)))
        assert clock.looks <= end + 4


def test_compiling_ends_at_the_deadline() -> None:
    source = ("[" + filled(lambda _: "1", ",") + "][0] == 1")[-LONG:].replace("1,", "[", 1)
    steps = Counting()
    with contextlib.suppress(CelCompileError):
        compile_selector(Cel(SELECTOR_LIMITS), source, Deadline(steps, 1e9))
    with pytest.raises(CelTimeExceededError, match="reading and checking the expression takes too long"):
        compile_selector(Cel(SELECTOR_LIMITS), source, Deadline(Counting(), steps.looks / 2))
