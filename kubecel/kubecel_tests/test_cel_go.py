"""Results of cel-go 0.26 (Kubernetes 1.36, Go 1.26) that differ from those of Python's functions.

Every answer here was taken from cel-go with the environment of the Kubernetes API server.
"""

import contextlib
import math
import time

import pytest

from kubecel.errors import CelCompileError, CelRuntimeError, CelSyntaxError, CelTypeError
from kubecel.types import DYN
from kubecel_tests.evaluating import ENGINE, value
from kubecel_tests.timing import assert_below

DOUBLES = {
    "0x1p-2": 0.25,
    "0X1P2": 4.0,
    "0x1.8p1": 3.0,
    "0x.8p0": 0.5,
    "0x_1p2": 4.0,
    "0x1_0p0": 16.0,
    "-0x1p-2": -0.25,
    "0x0p99999999": 0.0,
    "0x1p-1080": 0.0,
    "0x1.8p-1074": 1e-323,
    "1_000": 1000.0,
    "1e5_0": 1e50,
    "1_0.5_0e1_0": 1.05e11,
    ".5": 0.5,
    "5.": 5.0,
    "1e-400": 0.0,
    "+Inf": math.inf,
    "-infinity": -math.inf,
    "iNF": math.inf,
}
NO_DOUBLES = [
    *("0x1", "0x1p", "0x1.0", "0x1p1024", "0x1p99999999999", "0x_.8p0", "0x1.8e1", "0b1", "0o7", "1d"),
    *(" 1", "1 ", "", ".", "+", "1e", "1e400", "-1e400", "1__0", "_1", "1_", "1_.5", "1._5", "1e_5", "+nan", "infinit"),
    *("\u0661", "0x" + "1" * 400 + "p0"),
]


@pytest.mark.parametrize(("text", "number"), DOUBLES.items(), ids=str)
def test_double_reads_what_go_reads(text: str, number: float) -> None:
    assert value(f"double('{text}')") == number


@pytest.mark.parametrize("text", NO_DOUBLES, ids=lambda text: repr(text[:20]))
def test_double_refuses_what_go_refuses(text: str) -> None:
    with pytest.raises(CelTypeError, match="is not a double"):
        ENGINE.compile(f"double('{text}')", {})


@pytest.mark.parametrize(
    ("literal", "kind"),
    [
        ("1e400", "a double"),
        ("-1e400", "a double"),
        ("1.8e308", "a double"),
        ("9223372036854775808", "an int"),
        ("-0x8000000000000001", "an int"),
        ("1" * 4400, "an int"),
        ("-" + "1" * 9000, "an int"),
        ("0x" + "f" * 4400, "an int"),
        ("18446744073709551616u", "a uint"),
        ("1" * 4400 + "u", "a uint"),
    ],
    ids=lambda text: text[:24],
)
def test_a_number_out_of_range_is_refused_whatever_its_length(literal: str, kind: str) -> None:
    with pytest.raises(CelSyntaxError, match=f"is out of range for {kind}") as caught:
        ENGINE.compile(literal, {})
    assert len(caught.value.message) < 100


def test_leading_zeros_do_not_make_a_number_too_long() -> None:
    assert value("0" * 5000 + "1") == 1
    assert value("-" + "0" * 5000 + "1") == -1
    assert value("0x" + "0" * 5000 + "ff") == 255
    assert value(f"int('{'0' * 70}1')") == 1
    assert value(f"uint('{'0' * 70}1')") == 1


@pytest.mark.parametrize(
    "pattern",
    [
        r"\C",
        r"a\\\C",
        r"\Qa\E\C",
        r"[\Q]",
        "(?P<\u00e9>a)",
        "(?<\u00e9>a)",
        "a{10000000000}",
        "a{1,99999}",
    ],
    ids=str,
)
def test_patterns_that_only_the_original_re2_takes_are_refused(pattern: str) -> None:
    with pytest.raises(CelCompileError, match="is not a regular expression"):
        ENGINE.compile(f"'abc'.matches({_quoted(pattern)})", {})


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"\QC\C\E", r"C\C"),
        (r"\\C", r"\C"),
        (r"\Qa{5000}", "a{5000}"),
        ("a{00001}", "a{00001}"),
        ("[a{5000}]", "5"),
        (r"[]{99999}]\x{43}", "9C"),
        ("(?<name>a)", "a"),
        (r"\pN\p{Greek}", "1\u03b1"),
    ],
    ids=str,
)
def test_patterns_that_go_accepts_are_accepted(pattern: str, text: str) -> None:
    assert value(f"s.matches({_quoted(pattern)})", s=text) is True


def _quoted(pattern: str) -> str:
    return f"r'{pattern}'"


FORMATS = {
    "'%.10005f'.format([1.0])": "1." + "0" * 21,
    "'%.256f'.format([1.0])": "1",
    "'%.300f'.format([0.1])": "0.1000000000000000055511151231257827021181583404541015625",
    "'%.40000f'.format([0.1])": "0.1" + "0" * 63,
    "'%.65539f'.format([1234.5])": "1,234.500",
    "'%.1100f'.format([5e-324]).size()": 1076,
    "'%.10000010f'.format([1.0])": "%!(NOVERB)",
    "'%.9223372036854775807e'.format([1.5])": "%!(NOVERB)",
    "'%.999999e'.format([1.5]).size()": 16959,
    "'%.020e'.format([-1.5])": "      -1.500000\u00d710\u2070\u2070",
    "'%.99999s'.format(['a'])": "a",
    "'%.0000000000000000000000000000003f'.format([1.5])": "1.500",
    "'%f'.format([-0.0])": "0.000000",
    "'%.1f'.format([-0.04])": "-0.0",
    "'%e'.format([double('nan')])": "   NaN",
}


@pytest.mark.parametrize(("source", "text"), FORMATS.items(), ids=str)
def test_format_writes_what_kubernetes_writes(source: str, text: object) -> None:
    assert value(source) == text


def test_a_precision_of_any_length_is_read_or_refused() -> None:
    assert value(f"'%.{'0' * 9000}2f'.format([1.0])") == "1.00"
    for digits in ("9223372036854775808", "9" * 100_000):
        with pytest.raises(CelRuntimeError, match=r"the precision 9\d{18}… of format does not fit 64 bits"):
            value("s.format([1.0])", s=f"%.{digits}f")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("duration('0.3333333333333333333h') == duration('20m')", True),
        ("duration('1.0000000019s') == duration('1000000001ns')", True),
        (f"duration('0.{'1' * 100}s') == duration('111111111ns')", True),
        ("string(timestamp('2020-01-02T3:04:05Z'))", "2020-01-02T03:04:05Z"),
    ],
)
def test_times_are_read_as_go_reads_them(source: str, expected: object) -> None:
    assert value(source) == expected


ROOTED = {
    "['c'].exists(y, .y == 'y' && y == 'c')": True,
    "cel.bind(y, 'c', .y)": "y",
    "[[1]].map(y, .y)": ["y"],
    "{'a': 'b'}.exists(k, y, .y == y)": False,
    "['a'].exists(y, [.y].exists(y, y == 'y'))": True,
    "['a'].map(int, type(1) == .y)": [False],
    ".y.size() + .size(.y)": 2,
}
"""Expressions with a variable `y`, whose value is 'y'."""


@pytest.mark.parametrize(("source", "expected"), ROOTED.items(), ids=str)
def test_macros_do_not_hide_a_variable_with_a_leading_dot(source: str, expected: object) -> None:
    assert value(source, y="y") == expected


def test_a_leading_dot_never_means_a_variable_of_a_macro() -> None:
    with pytest.raises(CelTypeError, match=r"there is no variable '\.z'"):
        ENGINE.compile("[1].exists(z, .z == 1)", {"y": DYN})
    with pytest.raises(CelCompileError):
        ENGINE.compile(".cel.bind(a, 1, a)", {})


def test_a_variable_with_a_leading_dot_is_among_the_references() -> None:
    program = ENGINE.compile("[dyn('a')].exists(y, .y.b == y.c)", {"y": DYN})
    assert program.references == {("y", "b")}


UNIFIED = {
    "[] + [1] + [2]": "list(int)",
    "(true ? [] : ['a']) + ['b']": "list(string)",
    "cel.bind(l, [], l + [1] + l)": "list(int)",
    "[].map(x, x + 1)": "list(int)",
    "[].map(x, x == 'a', x + x)": "list(string)",
    "{}.transformMap(k, v, k == 'a' && v == 'b', k + v)": "map(string, string)",
    "[].first().orValue('a')": "string",
    "[optional.none(), optional.of(1)][0].orValue(2)": "int",
    "[[], [1]][0] + [2]": "list(int)",
    "{'a': [], 'b': [1]}": "map(string, list(int))",
    "cel.bind(a, {}, [a['x'] + 1, a['y'] + 2])": "list(int)",
    "[[1], [2]].flatten() + [3]": "list(int)",
    "x[?0].orValue('a')": "string",
    "x.?a.orValue('a')": "dyn",
    "optional.none()": "optional_type(dyn)",
    "[]": "list(dyn)",
    "true ? null : duration('1s')": "null_type",
    "type([]) == type([1])": "bool",
}
"""Expression -> the type that cel-go's checker gives it."""
NEVER_UNIFIED = [
    "[optional.none(), optional.of(1)][0].orValue('a')",
    "(true ? [] : ['a']) + [1]",
    "[] + [1] + ['a']",
    "[[]] + [[1]] + [['a']]",
    "cel.bind(l, [], (l + [1]) == ['a'])",
    "cel.bind(a, {}, string(a['x'] + 1) + (a['y'] + 'z'))",
    "cel.bind(a, optional.none(), [a.orValue(1), a.orValue('b')])",
    "[].all(v, v > 0 && v == 'a')",
    "[].map(x, x + 'a') + [1]",
    "{1: []}[1] + ['a'] + [1]",
    "[[1], [2]].flatten() + ['a']",
    "x[?0].orValue('a') + 1",
    "[[1], [dyn(1)]]",
    "[optional.of(1), optional.of(dyn(1))]",
    "{}.transformMap(k, v, v + 1)['a'] + 'b'",
    "optional.of([]).orValue([1]) + ['a']",
    "[1].indexOf('a')",
    "optional.of([1])['a']",
    "[int].all(t, t == int)",
    "[].exists(t, type(1) == t)",
    "[].map(y, size(y) > 1 || y.startsWith('a'))",
]


@pytest.mark.parametrize(("source", "described"), UNIFIED.items(), ids=str)
def test_an_unknown_type_is_inferred_from_its_use(source: str, described: str) -> None:
    assert str(ENGINE.compile(source, {"x": DYN}).result) == described


@pytest.mark.parametrize("source", NEVER_UNIFIED)
def test_an_expression_without_a_single_type_is_refused(source: str) -> None:
    with pytest.raises(CelTypeError):
        ENGINE.compile(source, {"x": DYN})


def _bindings(values: list[str], body: str) -> str:
    for position in reversed(range(len(values))):
        body = f"cel.bind(v{position}, {values[position]}, {body})"
    return body


HOSTILE_TYPES = {
    "deep types, compared often": _bindings(
        [f"{'[' * 50}{f'v{at - 2}' if at > 1 else 1}{']' * 50}" for at in range(48)],
        " && ".join(["v46 == v47"] * 300),
    ),
    "a chain of variables": _bindings(["[]"], " && ".join(["v0 == []"] * 850)),
    "variables in a list": f"[{', '.join(['[]'] * 2500)}, ['a'], [1]]",
    "variables of many calls": " || ".join(["optional.none() == optional.none()"] * 265) + " || 1",
    "variables in each other": _bindings([f"[v{at - 1}, []]" if at else "[]" for at in range(90)], "v89 == [v89]"),
}


@pytest.mark.parametrize("source", HOSTILE_TYPES.values(), ids=HOSTILE_TYPES)
def test_types_of_a_hostile_expression_are_checked_in_time(source: str) -> None:
    assert len(source) <= 10 * 1024
    ENGINE.compile("[1]", {})
    started = time.thread_time()
    with contextlib.suppress(CelCompileError):
        ENGINE.compile(source, {})
    assert_below(time.thread_time() - started, 5)


@pytest.mark.parametrize("key", ["[x]", "optional.of(x)", "timestamp(x)"])
def test_an_optional_index_that_nothing_has_as_key_fails(key: str) -> None:
    with pytest.raises(CelRuntimeError, match="cannot be the key"):
        value(f"optional.of(dyn('a'))[?dyn({key})]", x=1)


def test_an_infinite_quantity_minus_itself_is_not_a_number() -> None:
    found = value("quantity('1e400').sub(quantity('1e400')).asApproximateFloat()")
    assert isinstance(found, float)
    assert math.isnan(found)
