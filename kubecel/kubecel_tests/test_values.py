"""Values that do not come from a JSON decoder: subclasses, other types, numbers beyond 64 bits."""

import datetime as dt
import math

import pytest

from kubecel.budget import Budget
from kubecel.errors import CelRuntimeError
from kubecel.types import BOOL, DYN, INT, LIST, MAP, NULL, STRING, UINT, Type, Unifier, list_of, map_of
from kubecel.values import BoolKey, Duration, UInt, equal, kind_of
from kubecel_tests.evaluating import frozen_clock, value


class Text(str):
    """A string with an attribute, as some YAML libraries return."""

    __slots__ = ()


class Number(int):
    """The same for numbers."""


class Items(list[object]):
    """The same for lists."""


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (None, NULL),
        (True, BOOL),
        (1, INT),
        (Number(1), INT),
        (UInt(1), UINT),
        ("a", STRING),
        (Text("a"), STRING),
        ([], LIST),
        (Items(), LIST),
        ((), LIST),
        ({}, MAP),
    ],
    ids=repr,
)
def test_subclasses_are_of_the_type_of_their_base(given: object, kind: Type) -> None:
    assert kind_of(given) == kind


@pytest.mark.parametrize(
    "source",
    [
        "t == 'abc' && 'abc' == t && t != 'abd'",
        "t.startsWith('a') && t.size() == 3 && t + 'd' == 'abcd'",
        "n == 1 && n + 1 == 2 && n < 2 && n in [1, 2]",
        "l == [1] && 1 in l && l[0] == 1 && l.map(x, x) == [1]",
        "t in ['abc'] && t in {'abc': 1} && {'abc': 1}[t] == 1",
        "{dyn(n): 'x'}[n] == 'x' && {1: 'x'}[n] == 'x' && n in {1: 'x'}",
        "t < 'b' && t <= 'abc' && [dyn('b'), t].sort() == ['abc', 'b']",
    ],
)
def test_subclasses_behave_like_their_base(source: str) -> None:
    assert value(source, t=Text("abc"), n=Number(1), l=Items([1])) is True


def test_the_error_names_a_python_type_without_cel_type() -> None:
    with pytest.raises(CelRuntimeError, match="a value of Python type date has no CEL type"):
        value("type(d)", d=dt.date(2026, 1, 1))
    with pytest.raises(CelRuntimeError, match="a value of Python type date has no CEL type"):
        value("d.startsWith('a')", d=dt.date(2026, 1, 1))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("big == 1.0", False),
        ("big > 1.0", True),
        ("1.0 < big", True),
        ("big == big", True),
        ("small == 0.1", False),
        ("n == 9007199254740992.0", True),
    ],
)
def test_numbers_beyond_64_bits_are_compared(source: str, expected: bool) -> None:
    assert value(source, big=10**400, small=-(10**400), n=2**53 + 1) is expected


def test_numbers_beyond_64_bits_are_not_computed_with() -> None:
    with pytest.raises(CelRuntimeError, match="integer overflow in '\\+'"):
        value("big + 1", big=10**400)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (True, 1, False),
        ([True], [1], False),
        ({"a": True}, {"a": 1}, False),
        (1, 1.0, True),
        ({"a": [1]}, {"a": [1.0]}, True),
        (UInt(1), 1, True),
        (math.nan, math.nan, False),
        ([math.nan], [math.nan], False),
        ((1, 2), [1, 2], True),
        ("1", 1, False),
        (None, 0, False),
        (Duration(1), 1, False),
        ({BoolKey(True): 1}, {1: 1}, False),
        ({BoolKey(True): 1}, {BoolKey(True): 1}, True),
    ],
    ids=repr,
)
def test_equality_is_that_of_cel_not_of_python(first: object, second: object, same: bool) -> None:
    assert equal(Budget(frozen_clock), first, second) is same
    assert equal(Budget(frozen_clock), second, first) is same


def test_membership_in_long_lists_is_charged_and_found() -> None:
    assert value("99 in l && !(100 in l)", l=list(range(100))) is True


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("'%e'.format([1.0 / 0.0])", "     ∞"),
        ("'%e'.format([-1.0 / 0.0])", "    -∞"),
        ("'%e'.format([0.0 / 0.0])", "   NaN"),
        ("'%s'.format([[1.0 / 0.0]])", '["+Inf"]'),
        ("quantity('9' + '9'.replace('9', '9999999999') + 'e400').asApproximateFloat()", math.inf),
        ("quantity('-9' + '9'.replace('9', '9999999999') + 'e400').asApproximateFloat()", -math.inf),
        ("[?dyn(optional.of(1)), ?dyn(optional.of(2))]", [1, 2]),
        ("optional.of(1).optFlatMap(x, null)", None),
        ("1 in dyn([]) || 1 / 0 in [] || dyn(1.0) in [1, 2]", True),
        ("{?'a': dyn(optional.of(2)), ?'b': dyn(optional.none())}", {"a": 2}),
    ],
)
def test_rare_functions_have_the_expected_results(source: str, expected: object) -> None:
    assert value(source) == expected


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("'%.9223372036854775808f'.format([1.5 + double(n)])", "the precision 9223372036854775808… of format does not"),
        ("'%s'.format([deep])", "format does not write values nested deeper than 50 levels"),
    ],
)
def test_formats_are_bounded(source: str, message: str) -> None:
    deep: object = 1
    for _ in range(60):
        deep = [deep]
    with pytest.raises(CelRuntimeError, match=message):
        value(source, deep=deep, n=1)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (INT, INT, INT),
        (INT, STRING, None),
        (INT, DYN, DYN),
        (list_of(INT), list_of(DYN), list_of(DYN)),
        (list_of(DYN), list_of(INT), list_of(DYN)),
        (map_of(STRING, INT), map_of(STRING, DYN), map_of(STRING, DYN)),
        (list_of(INT), list_of(STRING), None),
        (list_of(INT), INT, None),
    ],
    ids=str,
)
def test_two_types_are_joined_to_their_common_type(first: Type, second: Type, expected: Type | None) -> None:
    assert Unifier().join(first, second) == expected


def test_a_record_is_a_map_with_string_keys() -> None:
    record = Type("neuron", (), {"devices": INT})
    assert Unifier().assignable(record, map_of(STRING, DYN))
    assert not Unifier().assignable(record, map_of(INT, DYN))
    assert str(map_of(STRING, list_of(INT))) == "map(string, list(int))"


@pytest.mark.parametrize(
    "expression", ["'a,b'.split(',', 9223372036854775807)", "'a,b'.replace(',', '-', 9223372036854775807)"]
)
def test_a_limit_may_be_as_large_as_an_int_is(expression: str) -> None:
    assert value(expression) in (["a", "b"], "a-b")
