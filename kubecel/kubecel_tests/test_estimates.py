"""Estimates of selectors are equal to those of the API server; above the limit, the selector is refused.

kubernetes_estimates.json holds what a real one made of every selector of costly_selectors.txt and selectors.txt;
record_estimates.py asked it.
"""

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from kubecel.budget import DEFAULT_LIMITS
from kubecel.checking import UNLIMITED
from kubecel.closures.compiler import Compiler
from kubecel.compile import LIBRARY, estimate, parse
from kubecel.devices import MAX_COST, SELECTOR_VARIABLES, compile_selector, size_of
from kubecel.errors import CelBudgetExceededError, CelCompileError, CelCostExceededError, CelSizeExceededError
from kubecel_tests.evaluating import ENGINE
from kubecel_tests.timing import assert_below

RECORDED: dict[str, Any] = json.loads(
    Path(__file__).with_name("kubernetes_estimates.json").read_text(encoding="utf-8")
)["estimates"]
FIGURES = {selector: cost for selector, cost in RECORDED.items() if isinstance(cost, int)}
REFUSALS = {selector: words for selector, words in RECORDED.items() if isinstance(words, str)}


def estimated(selector: str) -> int:
    tree = parse(selector)
    compiler = Compiler(SELECTOR_VARIABLES, LIBRARY, DEFAULT_LIMITS)
    compiler.compile(tree)
    return estimate(tree, compiler, selector, size_of)


def test_the_recorded_estimates_have_many_sizes() -> None:
    assert len(FIGURES) > 60
    assert {len(str(cost)) for cost in FIGURES.values()} >= {1, 2, 3, 4, 5, 6}
    assert len(REFUSALS) > 4


@pytest.mark.parametrize(("selector", "cost"), FIGURES.items(), ids=str)
def test_the_estimate_is_that_of_the_api_server(selector: str, cost: int) -> None:
    assert estimated(selector) == cost
    compile_selector(ENGINE, selector)


@pytest.mark.parametrize(("selector", "words"), REFUSALS.items(), ids=str)
def test_selectors_too_costly_for_the_api_server_are_refused_with_its_message(selector: str, words: str) -> None:
    said = words.removeprefix("Forbidden: ")
    with pytest.raises(CelCostExceededError, match=said) as caught:
        compile_selector(ENGINE, selector)
    assert f"the estimated cost is {estimated(selector)}, {MAX_COST} is allowed" in caught.value.message


def test_the_size_of_a_variable_that_a_macro_hides_is_not_known() -> None:
    assert estimated("['x'].exists(d, .device.driver.contains(d))") == 25
    assert estimated("['x'].exists(device, .device.driver == 'a')") == 18
    with pytest.raises(CelCostExceededError):
        compile_selector(ENGINE, "['x'].exists(device, .device.driver.contains(device))")


def test_constants_above_our_limit_are_not_reported_as_too_costly() -> None:
    with pytest.raises(CelSizeExceededError, match="a list or map of 200000 elements") as caught:
        compile_selector(ENGINE, "lists.range(200000).size() > 0")
    assert caught.value.source == "lists.range(200000).size() > 0"


CEL_GO = {
    "[1, 2, 3].slice(2, 1).size() > 1": UNLIMITED,
    "device.driver.split(',', -1).all(x, x == 'a')": UNLIMITED,
    "strings.quote(string(dyn(device.driver))).contains('a') && strings.quote('a') == device.driver": 34,
    "cidr('10.0.0.0/8').ip() == ip('10.0.0.0') && ip.isCanonical('::1')": 5,
    "cidr('10.0.0.0/8').containsIP('10.0.0.1')": 6,
    "url('http://a') == url('http://b')": 3,
    "device == device && device.attributes == device.attributes": 10,
    "cel.bind(device, 'a', device == 'b')": 12,
    "has(device.driver)": 1,
    "device.attributes['a'].x.a.b == 1": 5,
    "[1].first().orValue(2) == 1": 13,
    "(true ? ['a'] : [device.driver]).all(x, x == '')": 17,
    "{'a': 1}.transformList(k, v, k)[0] == 'a'": 56,
}
"""Estimates of cel-go that are above the server's limit."""


@pytest.mark.parametrize(("selector", "cost"), CEL_GO.items(), ids=str)
def test_the_estimate_is_that_of_cel_go(selector: str, cost: int) -> None:
    assert estimated(selector) == cost


def test_an_expression_that_a_macro_copies_is_estimated_once() -> None:
    selector = f"optional.of(1){'.optMap(x, x + 1)' * 90}.hasValue()"
    started = time.monotonic()
    assert estimated(selector) == UNLIMITED
    assert_below(time.monotonic() - started, 3)


HOSTILE = {
    "a long chain of logic": " && ".join(["device.driver == ''"] * 400),
    "many loops": " && ".join(["device.attributes.all(a,true)"] * 300),
    "loops in loops": "device.attributes.all(a," * 6 + "a" + "==a" * 3000 + ")" * 6,
    "bindings": "".join(f"cel.bind(v{at},[{f'v{at - 1}' if at else 1}]," for at in range(95)) + "true" + ")" * 95,
    "literals": f"[{','.join(['1'] * 5000)}].all(x, x > 0)",
    "many arguments": f"device.driver.format([{','.join(['device'] * 1400)}]) == ''",
    "indices": "device.attributes" + "['a']" * 95 + " == 1",
}


@pytest.mark.parametrize("selector", HOSTILE.values(), ids=HOSTILE)
def test_estimating_takes_no_longer_than_compiling(selector: str) -> None:
    assert len(selector) <= 10 * 1024
    compile_selector(ENGINE, "true")
    started = time.monotonic()
    with contextlib.suppress(CelCompileError, CelBudgetExceededError):
        compile_selector(ENGINE, selector)
    assert_below(time.monotonic() - started, 5)
