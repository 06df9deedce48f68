"""The engine gives the same results as a Kubernetes API server.

kubernetes_answers.json has the recorded results of every expression of expressions.txt and every device selector of
selectors.txt; record_answers.py wrote it.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kubecel.budget import Budget
from kubecel.compile import LIBRARY
from kubecel.devices import compile_selector
from kubecel.errors import CelCompileError, CelRuntimeError
from kubecel.values import kind_of
from kubecel_tests.evaluating import ENGINE, compiled, frozen_clock

RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("kubernetes_answers.json").read_text(encoding="utf-8"))
ANSWERS: dict[str, dict[str, str]] = RECORDED["answers"]
VARIABLES = {"object": RECORDED["object"], "oldObject": None, "request": {"operation": "CREATE"}}

DIFFERENCES = {
    "[,]": "a single comma is not a list here",
    "{1.0: 'a'}": "only keys that the specification allows are taken",
    "{dyn(1.0): 'a'}": "only keys that the specification allows are taken",
    "{null: 'a'}": "only keys that the specification allows are taken",
    "{{'a': 1}: 2}.size()": "only keys that the specification allows are taken",
    "{[1]: 'a'}": "only keys that the specification allows are taken",
    "{'a': 1, 'a': 2}": "the specification makes a repeated key an error",
    "{dyn(1): 'a', dyn(1u): 'b'}": "the specification makes a repeated key an error",
    "- -9223372036854775808": "fails when it is evaluated, not when it is compiled",
    "[1, 2, 2].existsOne(x, x == 1)": "later versions of Kubernetes have it",
    "cel.bind(a, 1, a + 1)": "only device selectors have it in Kubernetes",
    "[1, 2].includes(1)": "only device selectors have it in Kubernetes 1.36",
    "dyn([dyn(1), dyn('a')]).isSorted()": "a list without order is not sorted",
    "dyn([dyn(1), dyn('a')]).max()": "a list without order has no maximum",
    "timestamp('2020-01-02T03:04:05Z').getHours('+05:60')": "an hour has 60 minutes; later versions agree",
    "semver('18446744073709551615.0.0').major()": "an overflow is an error, not -1",
}
"""Expressions with a different result, and the reason. Most are errors here and have a doubtful value in the server."""


LATER_SELECTORS = {'device.attributes["neuron.aws.com"].names.includes("a")'}
"""Selectors that need the feature gate DRAListTypeAttributes, which is off in 1.36."""


def text_of(value: object) -> str | None:
    """The value as in the server's message; None if `format` cannot write it."""
    (format_text,) = LIBRARY.find("format", method=True)
    try:
        return str(format_text.call(Budget(frozen_clock), "%s", [value]))
    except CelRuntimeError:
        return None


def answer(expression: str) -> dict[str, str | None]:
    """Our result of an expression, in the form of the recorded answers."""
    try:
        program = compiled(expression, VARIABLES)
    except CelCompileError as error:
        return {"refused": str(error)}
    try:
        value = program.evaluate(VARIABLES, Budget(frozen_clock))
    except CelRuntimeError as error:
        return {"error": str(error)}
    return {"type": kind_of(value).name, "value": text_of(value)}


def agrees(ours: dict[str, str | None], theirs: dict[str, str]) -> bool:
    if "refused" in theirs:
        return "refused" in ours
    if "error" in theirs:
        return "error" in ours
    if theirs["value"] == "?":
        return "value" in ours
    return ours == theirs


def test_every_expression_has_the_result_of_the_api_server() -> None:
    """In one test: one for each of 1,600 expressions takes three times as long as the expressions."""
    different = {
        expression: (made, recorded)
        for expression, recorded in ANSWERS.items()
        if not agrees(made := answer(expression), recorded)
    }
    assert {expression: each for expression, each in different.items() if expression not in DIFFERENCES} == {}
    assert DIFFERENCES.keys() - different.keys() == set(), "no longer a difference"


@pytest.mark.parametrize("expression", RECORDED["selectors"], ids=str)
def test_device_selectors_are_refused_where_the_api_server_refuses_them(expression: str) -> None:
    refusal = RECORDED["selectors"][expression]
    if refusal is None or expression in LATER_SELECTORS:
        compile_selector(ENGINE, expression)
        return
    with pytest.raises(CelCompileError):
        compile_selector(ENGINE, expression)


BINARY = re.compile(r"(\d+):(\d+): found no matching overload for '_(?:==|!=|<=?|>=?|\+|-|\*|/|%)_'")
MISTYPED = {
    expression: (int(match[1]), int(match[2]))
    for expression, recorded in ANSWERS.items()
    if (match := BINARY.match(recorded.get("refused", "")))
}


@pytest.mark.parametrize(("expression", "place"), MISTYPED.items(), ids=str)
def test_errors_of_operator_types_have_the_position_of_the_api_server(expression: str, place: tuple[int, int]) -> None:
    with pytest.raises(CelCompileError) as caught:
        compiled(expression, VARIABLES)
    assert (caught.value.line, caught.value.column) == place
