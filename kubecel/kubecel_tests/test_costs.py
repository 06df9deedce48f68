"""Costs are equal to those of the API server, and every function and macro charges the budget."""

from typing import Any

import pytest

from kubecel.budget import DEFAULT_LIMITS, MATCH_CONDITION_LIMITS, POLICY_LIMITS, SELECTOR_LIMITS, Budget, Limits
from kubecel.closures import comprehensions
from kubecel.compile import LIBRARY, Cel
from kubecel.errors import CelBudgetExceededError
from kubecel.syntax.nodes import Macro
from kubecel.types import DYN, Type
from kubecel_tests.cost_figures import CEL_GO, KUBERNETES
from kubecel_tests.evaluating import ENGINE, compiled, frozen_clock

FIGURES: tuple[tuple[str, dict[str, Any], int], ...] = (*CEL_GO, *((source, {}, cost) for source, cost in KUBERNETES))


def cost_of(source: str, variables: dict[str, Any]) -> int:
    budget = Budget(frozen_clock)
    compiled(source, variables).evaluate(variables, budget)
    return budget.spent


def test_the_costs_are_those_of_kubernetes() -> None:
    spent = {source: (cost_of(source, variables), cost) for source, variables, cost in FIGURES}
    assert {source: each for source, each in spent.items() if each[0] != each[1]} == {}
    assert len(FIGURES) > 250


MACROS = [
    ("[3, 1, 2].sortBy(x, x)", {}, 71),
    ("cel.bind(x, [1], x)", {}, 1),
    ("optional.of(1).optMap(x, x + 1)", {}, 7),
    ("optional.of([1]).optFlatMap(x, x[?0])", {}, 6),
    ("optional.none().optMap(x, x)", {}, 1 + 1 + 1),
    ("a.?b.orValue(c)", {"a": {"b": 1}, "c": 1}, 2),
    ("a.?b.orValue(c)", {"a": {}, "c": 1}, 2),
    ("a.?b.or(a.?c)", {"a": {}}, 2),
    ("-a", {"a": 1}, 2),
    ("a.b[a.c]", {"a": {"b": [1], "c": 0}}, 4),
    ("{'k': a}.k", {"a": 1}, 30 + 1 + 2),
    ("lists.range(5)", {}, 16),
    ("lists.range(5).reverse()", {}, 32),
    ("lists.range(5).slice(1, 3)", {}, 16 + 13),
    ("lists.range(5).distinct()", {}, 16 + 61),
    ("lists.range(5).sort()", {}, 16 + 61),
    ("['a', 'b'].sort()", {}, 19),
    ("[[1], [2]].flatten()", {}, 13),
    ("'%s %s'.format(['a', 'b'])", {}, 1),
    ("a < b", {"a": "x" * 100, "b": "x" * 200}, 3),
    ("a == b", {"a": "x" * 100, "b": "x" * 200}, 2 + 10),
    ("a == b", {"a": [1] * 100, "b": [1] * 100}, 2 + 10),
    ("a + b", {"a": "x" * 100, "b": "x" * 100}, 3),
    ("a in b", {"a": 1, "b": list(range(100, 200))}, 3),
    ("a in b", {"a": "k", "b": {"k": 1}}, 3),
    ("'a' in ['b', 'c']", {}, 0),
]


@pytest.mark.parametrize(("source", "variables", "cost"), MACROS, ids=[macro[0] for macro in MACROS])
def test_costs_without_a_test_of_cel_go_follow_its_code(source: str, variables: dict[str, Any], cost: int) -> None:
    assert cost_of(source, variables) == cost


def test_only_the_branch_that_is_taken_is_charged() -> None:
    source = "a ? b.c.d : size(b) > 0"
    assert cost_of(source, {"a": True, "b": {"c": {"d": 1}}}) == 1 + 2
    assert cost_of(source, {"a": False, "b": {"c": {"d": 1}}}) == 1 + 3


def test_constants_are_charged_at_run_time_for_their_computation() -> None:
    assert cost_of("'x' + 'y' == 'xy'", {}) == 2
    assert cost_of("a.all(x, 'abc'.contains('b'))", {"a": [1, 2]}) == 1 + 2 * (3 + 1) + 1


# --- every function -------------------------------------------------------------------------------------------

READ_IN_CONSTANT_TIME = {
    "the length of a value is kept with it": "size",
    "the value is given back, or its type": "type dyn bytes first last hasValue value optional.none optional.of "
    "optional.ofNonZeroValue",
    "numbers and times have few digits; longer texts are refused unread": "bool double int uint duration timestamp",
    "of numbers, times and addresses; a text is given back": "string",
    "one character": "charAt",
    "numbers": "sign isInteger asInteger asApproximateFloat add sub isGreaterThan isLessThan compareTo major minor "
    "patch",
    "a question keeps its texts as they are, and names of service accounts have a limit": "path group serviceAccount"
    " resource subresource namespace name",
    "parts of an answer": "allowed reason errored error",
    "an address has at most 16 bytes": "family isUnspecified isLoopback isLinkLocalMulticast isLinkLocalUnicast "
    "isGlobalUnicast ip prefixLength masked",
    "parts of a URL that has been read": "getScheme getHost getHostname getPort",
    "parts of a duration": "getHours getMinutes getSeconds getMilliseconds",
    "a format is a constant, looked up by its name": "format.named format.dns1123Label format.dns1123Subdomain "
    "format.dns1035Label format.qualifiedName format.dns1123LabelPrefix format.dns1123SubdomainPrefix "
    "format.dns1035LabelPrefix format.labelValue format.uri format.uuid format.byte format.date format.datetime",
}
CONSTANT = {name for names in READ_IN_CONSTANT_TIME.values() for name in names.split()}
OVERLOADS = [
    (name, overload)
    for is_method in (False, True)
    for name in LIBRARY.names(method=is_method)
    for overload in LIBRARY.find(name, method=is_method)
]


def test_every_function_charges_by_size_or_is_known_to_take_constant_time() -> None:
    """A new function charges the budget, or is in the list above with a reason."""
    assert [(name, each) for name, each in OVERLOADS if not each.budgeted and name not in CONSTANT] == []
    assert {name for name, _ in OVERLOADS} >= CONSTANT


def test_every_macro_that_loops_has_a_charge() -> None:
    assert set(comprehensions._ROUND) == set(Macro)


# --- limits -----------------------------------------------------------------------------------------------------


def test_the_limits_are_those_of_kubernetes() -> None:
    assert (SELECTOR_LIMITS.steps, SELECTOR_LIMITS.call) == (1_000_000, 1_000_000)
    assert (POLICY_LIMITS.steps, POLICY_LIMITS.call) == (10_000_000, 1_000_000)
    assert (MATCH_CONDITION_LIMITS.steps, MATCH_CONDITION_LIMITS.call) == (2_500_000, 1_000_000)


def test_a_selector_has_a_small_limit_for_built_values() -> None:
    assert (SELECTOR_LIMITS.text, SELECTOR_LIMITS.items) == (64 * 1024, 10_000)
    assert DEFAULT_LIMITS.text == 1024 * 1024


def test_one_expression_may_not_use_the_whole_budget_of_a_policy() -> None:
    limits = Limits(steps=1000, call=300)
    budget = Budget(frozen_clock, limits)
    source, variables = "l.all(x, x >= 0)", {"l": [1] * 50}
    for _ in range(3):
        compiled(source, variables).evaluate(variables, budget)
    with pytest.raises(CelBudgetExceededError, match="more than 300 steps"):
        compiled(source, variables).evaluate({"l": [1] * 100}, Budget(frozen_clock, limits))
    assert budget.spent == 3 * (1 + 50 * 5 + 1)
    with pytest.raises(CelBudgetExceededError, match="more than 1000 steps"):
        compiled(source, variables).evaluate(variables, budget)


def test_the_deadline_stops_a_long_comparison_with_a_low_cost() -> None:
    shared: list[Any] = [0]
    for _ in range(50):
        shared = [shared, shared]
    now = iter(range(10_000))
    budget = Budget(lambda: next(now) * 0.01, Limits(seconds=0.05))
    with pytest.raises(CelBudgetExceededError, match=r"longer than 0\.05 s"):
        compiled("a == b", {"a": 1, "b": 1}).evaluate({"a": shared, "b": [*shared]}, budget)


def test_constants_share_one_budget_while_they_are_compiled() -> None:
    engine = Cel(Limits(steps=10_000, call=10_000))
    one = "size(lists.range(1000)) > 0"
    engine.compile(one, {})
    variables: dict[str, Type] = {"a": DYN}
    with pytest.raises(CelBudgetExceededError):
        engine.compile(" && ".join([one] * 20), variables)
    assert ENGINE.compile(" && ".join([one] * 20), variables)
