"""Expressions that several policies have in common are compiled once, and evaluated once for each request."""

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest

from kubecel.budget import POLICY_LIMITS, Budget, Limits
from kubecel_tests.evaluating import frozen_clock
from policies.judging.evaluate import evaluate
from policies.judging.subjects import of_object
from policies.judging.verdicts import Verdict
from tests.policies.policy_files import POD, loaded, policy

NOW = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)
NAMES = "object.spec.containers.map(c, c.name)"
SPEC = """
matchConditions: [{{name: named, expression: "object.metadata.name == 'train'"}}]
variables:
- {{name: images, expression: "object.spec.containers.map(c, c.name)"}}
- {{name: joined, expression: "variables.images.join('{glue}')"}}
validations: [{{expression: "variables.joined == 'x'", messageExpression: variables.joined}}]
"""


def judged_together(*specs: str, limits: Limits = POLICY_LIMITS) -> tuple[Verdict, ...]:
    found = loaded(*(policy(spec, name=f"p{at}") for at, spec in enumerate(specs)))
    return evaluate(found.validating, of_object(POD), NOW, frozen_clock, limits)


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Sources of the programs that are evaluated."""
    from kubecel.compile import Program

    seen: list[str] = []
    plain: Callable[..., Any] = Program.evaluate

    def count(program: Program, variables: Any, budget: Budget) -> Any:
        seen.append(program.source)
        return plain(program, variables, budget)

    monkeypatch.setattr(Program, "evaluate", count)
    return seen


def test_equal_expressions_are_one_program_and_are_evaluated_once(evaluated: list[str]) -> None:
    found = loaded(*(policy(SPEC.format(glue=","), name=f"p{at}") for at in range(3))).validating
    assert len({id(rule.conditions[0].program) for rule in found}) == 1
    assert len({id(rule.variables["joined"]) for rule in found}) == 1
    evaluated.clear()
    verdicts = evaluate(found, of_object(POD), NOW, frozen_clock)
    assert [each.violations[0].message for each in verdicts] == ["main"] * 3
    for source in (
        "object.metadata.name == 'train'",
        "object.spec.containers.map(c, c.name)",
        "variables.joined == 'x'",
    ):
        assert evaluated.count(source) == 1, source


def test_a_variable_of_one_name_with_another_expression_is_another_one() -> None:
    two = "object.spec.containers.map(c, 'other')"
    first, second = judged_together(
        SPEC.format(glue=","), SPEC.format(glue=",").replace("object.spec.containers.map(c, c.name)", two)
    )
    assert (first.violations[0].message, second.violations[0].message) == ("main", "other")


def test_params_are_never_shared() -> None:
    spec = "params: {{most: {most}}}\nvalidations: [{{expression: 'neuron.devices <= params.most'}}]"
    assert [each.outcome.value for each in judged_together(spec.format(most=8), spec.format(most=1))] == [
        "allow",
        "deny",
    ]


def test_an_error_is_shared_and_counts_for_each_policy() -> None:
    spec = "validations: [{{expression: \"object.none == 'a'\", message: {word}}}]"
    first, second = judged_together(spec.format(word="one"), spec.format(word="two"))
    assert first.errors == second.errors
    assert (first.violations[0].failed, second.violations[0].failed) == (True, True)


def test_the_cost_is_charged_to_each_policy() -> None:
    costly = "object.spec.containers.all(c, [1, 2, 3, 4, 5, 6, 7, 8].all(x, x > 0))"
    spec = f'validations: [{{expression: "{costly}"}}, {{expression: "{costly} && true"}}]'
    enough = Limits(steps=100, call=100)
    alone = judged_together(spec, limits=enough)[0]
    assert alone.errors == judged_together(spec, spec, limits=enough)[1].errors
    assert [each.outcome.value for each in judged_together(spec, spec, limits=Limits(steps=30, call=30))] == [
        "deny",
        "deny",
    ]
