"""For any expression and any data, the engine returns a value or raises a `CelError`."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kubecel.budget import Budget, Limits
from kubecel.checking import Overload
from kubecel.compile import LIBRARY, parse
from kubecel.errors import CelCompileError, CelError
from kubecel.library import kubernetes, network
from kubecel.types import INT, STRING
from kubecel.values import (
    MAX_INT,
    MAX_TIMESTAMP,
    MIN_INT,
    MIN_TIMESTAMP,
    NONE,
    Duration,
    Timestamp,
    UInt,
    some,
)
from kubecel_tests.evaluating import compiled, frozen_clock
from kubecel_tests.test_kubernetes_answers import ANSWERS

VALUES: list[Any] = [
    None,
    True,
    *(0, 1, -1, MAX_INT, MIN_INT, 2**80),
    *(0.0, -1.5, float("nan"), float("inf"), 1e308, 5e-324),
    *("", "a", "1", "10.0.0.0/8", "half \ud800 pair", "%s %d %q", "(", "+01:00", "x" * 300),
    *(b"", b"\xff"),
    *([], [1, 2], ["a", None], [[1], [2.0]], [float("nan")], [some(1), NONE]),
    *({}, {"a": 1}, {"a": {"b": []}}),
    *(UInt(0), UInt(2**64 - 1)),
    *(Duration(0), Duration(MAX_INT), Duration(MIN_INT)),
    *(Timestamp(0), Timestamp(MIN_TIMESTAMP), Timestamp(MAX_TIMESTAMP, 1439), Timestamp(MIN_TIMESTAMP, -1440)),
    *(NONE, some(1), some({"a": 1})),
    *(
        kubernetes.parse_quantity("1Gi"),
        kubernetes.parse_quantity("9" * 60 + "E"),
        kubernetes.parse_semver("1.2.3-rc.1"),
    ),
    *(network.parse_ip("::1"), network.parse_cidr("10.0.0.1/8")),
]
METHODS = [(name, overload) for name in LIBRARY.names(method=True) for overload in LIBRARY.find(name, method=True)]
FUNCTIONS = [(name, overload) for name in LIBRARY.names(method=False) for overload in LIBRARY.find(name, method=False)]
CALLS = [*METHODS, *FUNCTIONS]
OPERATORS = ["a == b", "a != b", "a < b", "a >= b", "a in b", "a + b", "a - b", "a * b", "a / b", "a % b", "-a", "!a"]
LOOKUPS = ["a[b]", "a[?b]", "a.a", "a.?a", "has(a.a)", "a ? b : c", "a && b", "a || b", "[?a]", "{a: b}", "{?'k': a}"]
LOOPS = ["a.all(x, x)", "a.exists(x, x == b)", "a.map(x, x)", "a.filter(x, x)", "a.sortBy(x, x)", "a.all(k, v, v)"]
MACROS = ["a.transformMap(k, v, b)", "a.transformMapEntry(k, v, a)", "a.optMap(x, x)", "a.or(b)", "a.orValue(b)"]


def triples(source: str, count: int) -> Iterator[tuple[Any, Any, Any]]:
    """Random values for `a`, `b` and `c`; the same ones for the same source."""
    chance = random.Random(source)  # noqa: S311 - a test
    for _ in range(count):
        a, b, c = chance.choices(VALUES, k=3)
        yield a, b, c


def call(name: str, overload: Overload) -> str:
    arguments = ["a", "b", "c", "a"][: len(overload.parameters)]
    if overload.method:
        return f"{arguments[0]}.{name}({', '.join(arguments[1:])})"
    return f"{name}({', '.join(arguments)})"


def settle(source: str, values: tuple[Any, ...]) -> None:
    variables = dict(zip("abc", values, strict=True))
    limits = Limits(steps=20_000, text=10_000, items=2_000)
    failure: CelError | None = None
    try:
        compiled(source, variables).evaluate(variables, Budget(frozen_clock, limits))
    except CelError as error:
        failure = error
    assert failure is None or (failure.message and failure.source == source)


@pytest.mark.parametrize(("name", "overload"), CALLS, ids=[call(name, overload) for name, overload in CALLS])
def test_functions_take_any_values(name: str, overload: Overload) -> None:
    source = call(name, overload)
    for values in triples(source, 50):
        settle(source, values)


@pytest.mark.parametrize("source", [*OPERATORS, *LOOKUPS, *LOOPS, *MACROS])
def test_operators_and_macros_take_any_values(source: str) -> None:
    for values in triples(source, 500):
        settle(source, values)


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_functions_take_values_of_the_receivers_type(value: object) -> None:
    """Calls every function with every value as its receiver, with arguments of the right types."""
    arguments = {INT: "1", STRING: "'a'"}
    for name, overload in METHODS:
        fitting = ", ".join(arguments.get(parameter, "a") for parameter in overload.parameters[1:])
        settle(f"a.{name}({fitting})", (value, value, value))


HALVES = [
    "'%x'.format([a])",
    "'%s'.format([[a]])",
    "url('/' + a).getEscapedPath()",
    "bytes(a)",
    "a.matches('x')",
    "a.findAll('x')",
    "a.find(a)",
    "timestamp(0).getHours(a)",
    "a.split('').map(c, c.upperAscii()).join('')",
    "{a: 1}[a] == 1 && a in [a] && a == a && a < a + 'b'",
]


@pytest.mark.parametrize("source", HALVES)
def test_half_a_surrogate_pair_is_evaluated_or_refused(source: str) -> None:
    """JSON allows `"\\ud800"`, which UTF-8 does not allow."""
    settle(source, ("half \ud800 pair", None, None))


@given(st.text(alphabet="abx01.?:[](){}'\"\\+-*/%!&|<>=, \n\tr_", max_size=40))
@example("\ud800")
@example("'\ud800'")
@example("//")
@example("\x00")
def test_any_text_is_an_expression_or_refused(source: str) -> None:
    refusal: CelCompileError | None = None
    try:
        tree = parse(source)
    except CelCompileError as error:
        refusal = error
    if refusal is None:
        assert 0 <= tree.start < tree.end <= len(source)
    else:
        assert refusal.message
        assert 0 <= (refusal.offset or 0) <= len(source)
        assert min(refusal.line, refusal.column) >= 1


@given(st.sampled_from(sorted(ANSWERS)), st.integers(0, 200), st.sampled_from(["", "(", "'", ".x", " + ", "[0]", "?"]))
def test_damaged_expressions_are_refused_or_evaluated(source: str, position: int, damage: str) -> None:
    damaged = source[:position] + damage + source[position + 1 :]
    settle(damaged, (1, "a", [1]))
