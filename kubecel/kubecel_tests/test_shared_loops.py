"""Loops that several expressions have in common are evaluated once, and charged to each of them."""

import pytest

from kubecel.budget import Budget, Limits
from kubecel.compile import Cel, Program
from kubecel.errors import CelBudgetExceededError, CelRuntimeError
from kubecel.types import DYN
from kubecel_tests.evaluating import frozen_clock

ENGINE = Cel(shared=frozenset({"object", "request"}))
VARIABLES = {"object": DYN, "request": DYN, "params": DYN}
VALUES = {"object": {"kind": "Pod", "items": [1, 2, 3], "names": ["a", "b"]}, "request": {"n": 2}, "params": {"n": 2}}
LOOP = "['Deployment', 'Job'].all(kind, object.kind != kind)"


def compiled(source: str) -> Program:
    return ENGINE.compile(source, VARIABLES)


def evaluated(source: str, results: dict[str, tuple[bool, int]] | None) -> tuple[object, int]:
    budget = Budget(frozen_clock, results=results)
    return compiled(source).evaluate(VALUES, budget), budget.spent


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
    program, results = compiled(LOOP), {LOOP: (True, 50)}
    with pytest.raises(CelBudgetExceededError, match="more than 40 steps"):
        program.evaluate(VALUES, Budget(frozen_clock, Limits(steps=40), results))


def test_no_loop_is_cached_without_shared_variables() -> None:
    results: dict[str, tuple[bool, int]] = {}
    Cel().compile(LOOP, VARIABLES).evaluate(VALUES, Budget(frozen_clock, results=results))
    assert results == {}
