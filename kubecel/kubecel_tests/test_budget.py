"""Expressions that are too large, too deep, too long or too slow are stopped; loops in common are charged to each."""

import time

import pytest

from kubecel.budget import Budget, Limits
from kubecel.compile import Cel, Program
from kubecel.errors import CelBudgetExceededError, CelCompileError, CelRuntimeError, CelSyntaxError
from kubecel.types import DYN
from kubecel_tests.evaluating import ENGINE, compiled, frozen_clock, limited
from kubecel_tests.timing import assert_below

HUNDRED = list(range(100))


def test_an_expression_has_a_size_limit() -> None:
    with pytest.raises(CelSyntaxError, match="the expression has 10241 bytes, 10240 are allowed"):
        ENGINE.compile("'" + "a" * 10239 + "'", {})
    ENGINE.compile("'" + "a" * 10238 + "'", {})


def test_the_expression_size_is_counted_in_utf_8_bytes() -> None:
    with pytest.raises(CelSyntaxError, match="has 12 bytes, 10 are allowed"):
        Cel(Limits(expression_bytes=10)).compile("'ééééé'", {})


@pytest.mark.parametrize(
    "source",
    [
        "-(" * 500 + "1" + ")" * 500,
        "[" * 500 + "]" * 500,
        "a" + ".b" * 500,
        "1" + " + 1" * 500,
        "a" + "[a" * 400 + "]" * 400,
    ],
    ids=["signs", "lists", "fields", "sums", "indices"],
)
def test_an_expression_has_a_depth_limit(source: str) -> None:
    with pytest.raises(CelSyntaxError, match=r"the expression is nested \d+ levels deep, 100 are allowed"):
        ENGINE.compile(source, {"a": DYN})


def test_parentheses_and_chains_of_logic_are_not_depth() -> None:
    assert compiled("(" * 3000 + "true" + ")" * 3000).evaluate({}, Budget(frozen_clock)) is True
    assert compiled(" || ".join(["false"] * 1000)).evaluate({}, Budget(frozen_clock)) is False


def test_the_deepest_expression_that_is_allowed_is_evaluated() -> None:
    source = "a" + ".map(x, x)" * 99
    assert compiled(source, {"a": None}).evaluate({"a": [1]}, Budget(frozen_clock)) == [1]


def test_an_almost_full_stack_is_an_error_of_the_expression() -> None:
    program = compiled("-" * 99 + "a", {"a": None})
    assert program.evaluate({"a": 1}, Budget(frozen_clock)) == -1

    def descend() -> None:
        try:
            descend()
        except RecursionError:
            program.evaluate({"a": 1}, Budget(frozen_clock))

    with pytest.raises(CelBudgetExceededError, match="evaluation is nested too deeply"):
        descend()


def test_loops_in_loops_have_a_limit() -> None:
    source = "true"
    for depth in range(7):
        source = f"l.all(x{depth}, {source})"
    with pytest.raises(CelSyntaxError, match="loops are nested more than 6 deep: split the expression"):
        ENGINE.compile(source, {"l": DYN})


def test_each_loop_round_counts_the_steps_that_it_computes() -> None:
    limits = Limits(steps=1000)
    assert limited("l.all(x, x >= 0)", limits, l=HUNDRED) is True
    with pytest.raises(CelBudgetExceededError, match="evaluation needs more than 1000 steps: loop over less"):
        limited("l.all(x, l.all(y, x + y >= 0))", limits, l=HUNDRED)


def test_logical_operators_do_not_hide_an_exceeded_budget() -> None:
    limits = Limits(steps=1000)
    with pytest.raises(CelBudgetExceededError):
        limited("l.all(x, l.all(y, x + y >= 0)) || true", limits, l=HUNDRED)
    with pytest.raises(CelBudgetExceededError):
        limited("l.exists(z, l.all(x, l.all(y, x + y >= 0)) || true)", limits, l=HUNDRED)


def test_evaluation_stops_at_the_deadline() -> None:
    now = iter(range(1000))
    budget = Budget(lambda: next(now) * 0.01, Limits(seconds=0.05))
    with pytest.raises(CelBudgetExceededError, match=r"evaluation takes longer than 0\.05 s: loop over less"):
        compiled("l.all(x, l.all(y, l.all(z, x + y + z >= 0)))", {"l": None}).evaluate({"l": HUNDRED}, budget)


def test_an_endless_expression_stops_in_time_on_the_real_clock() -> None:
    program = compiled("l.all(a, l.all(b, l.all(c, l.all(d, a + b + c + d >= 0))))", {"l": None})
    limits = Limits(steps=10**12, call=10**12, seconds=0.2)
    started = time.monotonic()
    with pytest.raises(CelBudgetExceededError, match=r"longer than 0\.2 s"):
        program.evaluate({"l": HUNDRED}, Budget(time.monotonic, limits))
    assert_below(time.monotonic() - started, 2)


def test_every_evaluation_is_charged_for_its_steps() -> None:
    program = compiled("a + b * 2", {"a": None, "b": None})
    budget = Budget(frozen_clock, Limits(steps=11))
    for _ in range(2):
        assert program.evaluate({"a": 1, "b": 2}, budget) == 5
    with pytest.raises(CelBudgetExceededError, match="evaluation needs more than 11 steps"):
        program.evaluate({"a": 1, "b": 2}, budget)


def test_several_evaluations_share_one_budget() -> None:
    program = compiled("l.all(x, x >= 0)", {"l": None})
    budget = Budget(frozen_clock, Limits(steps=1100))
    program.evaluate({"l": HUNDRED}, budget)
    program.evaluate({"l": HUNDRED}, budget)
    with pytest.raises(CelBudgetExceededError):
        program.evaluate({"l": HUNDRED}, budget)


DOUBLED = "cel.bind(a, s + s, cel.bind(b, a + a, cel.bind(c, b + b, {})))"
GROWING = {
    "sum": DOUBLED.format("c + c"),
    "replace": "s.replace('', s)",
    "join": "s.split('').map(c, s).join(',')",
    "quote": "strings.quote(s + s + s + s + s)",
    "format": "'%s%s%s%s%s%s%s%s'.format([s, s, s, s, s, s, s, s])",
    "hexadecimal": "'%x'.format([s + s + s + s + s])",
    "upper": "(s + s + s + s).upperAscii() + (s + s + s + s + s + s).lowerAscii()",
    "bytes": "bytes(s) + bytes(s) + bytes(s) + bytes(s) + bytes(s) + bytes(s) + bytes(s) + bytes(s)",
}


@pytest.mark.parametrize("source", GROWING.values(), ids=GROWING)
def test_the_length_of_texts_is_bounded(source: str) -> None:
    with pytest.raises(CelBudgetExceededError, match=r"evaluation builds a text of \d+ characters, 700 are allowed"):
        limited(source, Limits(text=700), s="x" * 100)


LONG = {
    "range": "lists.range(1000000000000)",
    "sum": "l + l + l + l + l + l",
    "split": "s.split('')",
    "flatten": "[l, l, l, l, l, l].flatten()",
    "find": "s.findAll('.')",
    "reverse": "lists.range(501).reverse()",
    "sort": "lists.range(501).sort()",
    "slice": "lists.range(501).slice(0, 501)",
}


@pytest.mark.parametrize("source", LONG.values(), ids=LONG)
def test_the_length_of_lists_is_bounded(source: str) -> None:
    with pytest.raises(CelBudgetExceededError, match=r"evaluation builds a list or map of \d+ elements, 500 are"):
        limited(source, Limits(items=500), l=HUNDRED, s="x" * 501)


def test_constants_that_grow_are_stopped_while_they_are_compiled() -> None:
    with pytest.raises((CelCompileError, CelBudgetExceededError)):
        ENGINE.compile("lists.range(1000000000000)", {})


def test_a_hostile_pattern_takes_linear_time() -> None:
    program = compiled("s.matches('^(a+)+$')", {"s": None})
    started = time.monotonic()
    assert program.evaluate({"s": "a" * 100_000 + "b"}, Budget(frozen_clock)) is False
    assert_below(time.monotonic() - started, 1)


def test_a_pattern_that_needs_too_much_memory_is_refused() -> None:
    with pytest.raises(CelCompileError, match="is not a regular expression that RE2 accepts"):
        ENGINE.compile(r"'a'.matches('((((a{0,100}){0,100}){0,100}){0,100})')", {})


def test_deeply_nested_values_are_not_compared() -> None:
    deep: object = 1
    for _ in range(200):
        deep = [deep]
    with pytest.raises(CelBudgetExceededError, match="values nested deeper than 100 levels are not compared"):
        limited("a == b", Limits(), a=deep, b=[deep])


def test_long_texts_cost_steps() -> None:
    with pytest.raises(CelBudgetExceededError, match="more than 1000 steps"):
        limited("l.all(x, s.matches('b') || true)", Limits(steps=1000), l=HUNDRED, s="a" * 1000)


SHARING = Cel(shared=frozenset({"object", "request"}))
VARIABLES = {"object": DYN, "request": DYN, "params": DYN}
VALUES = {"object": {"kind": "Pod", "items": [1, 2, 3], "names": ["a", "b"]}, "request": {"n": 2}, "params": {"n": 2}}
LOOP = "['Deployment', 'Job'].all(kind, object.kind != kind)"


def compiled_with_shared(source: str) -> Program:
    return SHARING.compile(source, VARIABLES)


def evaluated(source: str, results: dict[str, tuple[bool, int]] | None) -> tuple[object, int]:
    budget = Budget(frozen_clock, results=results)
    return compiled_with_shared(source).evaluate(VALUES, budget), budget.spent


@pytest.mark.parametrize(
    "source",
    [
        LOOP,
        f"object.kind == 'Pod' && {LOOP} && object.items.exists(i, i == request.n)",
        "object.items.exists_one(i, i == 2) ? object.names.all(n, size(n) == 1) : false",
        "object.items.all(i, object.names.exists(n, n == 'a'))",
        "object.items.map(i, i + 1).all(i, i > 1)",
    ],
)
def test_the_second_evaluation_has_the_value_and_the_cost_of_the_first(source: str) -> None:
    results: dict[str, tuple[bool, int]] = {}
    plain = evaluated(source, None)
    assert evaluated(source, results) == plain
    assert results
    assert evaluated(source, results) == plain


def test_another_expression_uses_the_result() -> None:
    results = {LOOP: (False, 0)}
    assert evaluated(f"{LOOP} || object.kind == 'Job'", results)[0] is False


@pytest.mark.parametrize(
    "source",
    [
        "object.items.all(i, i < params.n + 2)",
        "params.n == 2 && [1].all(i, [params.n].exists(p, p == 2))",
        "object.items.filter(i, i > 1).size() == 2",
    ],
)
def test_loops_over_unshared_variables_and_loops_that_build_values_are_not_cached(source: str) -> None:
    results: dict[str, tuple[bool, int]] = {}
    assert evaluated(source, results)[0] is True
    assert results == {}


def test_loops_inside_of_loops_are_remembered_with_the_outer_one_only() -> None:
    results: dict[str, tuple[bool, int]] = {}
    source = "object.items.all(i, object.items.exists(j, j == i))"
    assert evaluated(source, results)[0] is True
    assert list(results) == [source]


def test_an_error_is_not_remembered() -> None:
    results: dict[str, tuple[bool, int]] = {}
    for _ in range(2):
        with pytest.raises(CelRuntimeError, match="no such key: 'nothing'"):
            evaluated("object.items.all(i, object.nothing == i)", results)
    assert results == {}


def test_a_remembered_loop_counts_against_the_budget() -> None:
    program, results = compiled_with_shared(LOOP), {LOOP: (True, 50)}
    with pytest.raises(CelBudgetExceededError, match="more than 40 steps"):
        program.evaluate(VALUES, Budget(frozen_clock, Limits(steps=40), results))


def test_no_loop_is_cached_without_shared_variables() -> None:
    results: dict[str, tuple[bool, int]] = {}
    Cel().compile(LOOP, VARIABLES).evaluate(VALUES, Budget(frozen_clock, results=results))
    assert results == {}
