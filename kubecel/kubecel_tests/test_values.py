"""Values that do not come from a JSON decoder: subclasses, other types, large numbers, and objects made for patches."""

import datetime as dt
import math
from typing import Any

import pytest

from kubecel.budget import DEFAULT_LIMITS, Budget
from kubecel.compile import Cel
from kubecel.errors import CelError, CelRuntimeError
from kubecel.types import (
    BOOL,
    DYN,
    INT,
    JSON_PATCH,
    LIST,
    MAP,
    NULL,
    OBJECT,
    STRING,
    UINT,
    Type,
    Unifier,
    list_of,
    map_of,
)
from kubecel.values import BoolKey, Duration, ObjectValue, UInt, equal, kind_of
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


PATCHING = Cel()
POD = {"metadata": {"name": "train"}, "items": ["a", "b"]}


def made(source: str) -> Any:
    program = PATCHING.compile(source, {"object": DYN}, mutates=True)
    return shown(program.evaluate({"object": POD}, Budget(frozen_clock)))


def shown(found: Any) -> Any:
    if isinstance(found, ObjectValue):
        return (found.type.name, {name: shown(each) for name, each in found.fields.items()})
    return [shown(each) for each in found] if isinstance(found, list) else found


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("Object{}", ("Object", {})),
        ("Object{spec: Object.spec{replicas: 3}}", ("Object", {"spec": ("Object.spec", {"replicas": 3})})),
        ("Object{a: 1, b: 'x',}", ("Object", {"a": 1, "b": "x"})),
        ("Object{?a: optional.of(1), ?b: optional.none()}", ("Object", {"a": 1})),
        ("Object.spec{namespace: 'reserved words are fields'}", ("Object.spec", {"namespace": "reserved words are fields"})),  # noqa: E501
        ("Object{a: 1, a: 2}", ("Object", {"a": 2})),
        (".Object{a: 1}", ("Object", {"a": 1})),
        ("object.items.map(i, Object.x{name: i})[1]", ("Object.x", {"name": "b"})),
        ("JSONPatch{op: 'add', path: '/a', value: {'b': dyn(1)}}", ("JSONPatch", {"op": "add", "path": "/a", "value": {"b": 1}})),  # noqa: E501
        ("JSONPatch{op: 'add'}.op + JSONPatch{from: 'x'}.from", "addx"),
        ("[has(JSONPatch{op: 'a'}.op), has(JSONPatch{op: ''}.op), has(JSONPatch{}.op)]", [True, False, False]),
        ("Object{a: 1} == Object{a: 1} && Object{a: 1} != Object{a: 2} && dyn(Object{}) != dyn(Object.x{})", True),
        ("type(Object.spec{}) == type(Object.spec{})", True),
        ("'/metadata/labels/' + jsonpatch.escapeKey('a.b/c~d')", "/metadata/labels/a.b~1c~0d"),
    ],
)  # fmt: skip
def test_objects(source: str, expected: Any) -> None:
    assert made(source) == expected


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("JSONPatch{op: 3}", "field 'op' of JSONPatch is a string, not int"),
        ("JSONPatch{opp: 'a'}", "'JSONPatch' has no field 'opp'. It has op, path, from, value."),
        ("Pod{a: 1}", "there is no type 'Pod' of which an object can be made here: write a map"),
        ("Objects.spec{a: 1}", "there is no type 'Objects.spec' of which an object can be made here: write a map"),
        ("Object{?a: 1}", "'?' requires an optional value, not int"),
        ("[Object{}, Object.spec{}]", "all elements of a literal must have the same type: expected Object, found Object.spec; wrap each in dyn() to mix"),  # noqa: E501
        ("[object.items]{a: 1}", "the name of a type must stand before '{'"),
        ("object.?spec{a: 1}", "the name of a type must stand before '{'"),
        ("Object{in: 1}", "'in' is a reserved word: write ['in']"),
        ("Object{a: 1}.a", "no such key: 'a': a Object has no keys"),
        ("JSONPatch{op: object.items}", "field 'op' of JSONPatch is a string, not list"),
        ("Object{?a: dyn(1)}", "'?' requires an optional value, not int"),
    ],
)  # fmt: skip
def test_errors(source: str, message: str) -> None:
    with pytest.raises(CelError) as caught:
        made(source)
    assert caught.value.message == message


@pytest.mark.parametrize("source", ["Object{}", "JSONPatch{}", "jsonpatch.escapeKey('a')"])
def test_other_expressions_make_no_objects(source: str) -> None:
    with pytest.raises(CelError, match=r"there is no (type|function)"):
        PATCHING.compile(source, {})


@pytest.mark.parametrize(
    ("source", "wanted", "fits"),
    [
        ("true ? [] : [JSONPatch{}]", list_of(JSON_PATCH), True),
        ("[JSONPatch{}].filter(p, p.op == 'add')", list_of(JSON_PATCH), True),
        ("true ? Object{} : Object{a: 1}", OBJECT, True),
        ("Object.spec{}", OBJECT, False),
        ("JSONPatch{}", list_of(JSON_PATCH), False),
    ],
)
def test_the_type_of_an_expression(source: str, wanted: Type, fits: bool) -> None:
    try:
        assert (PATCHING.compile(source, {"object": DYN}, result=wanted, mutates=True).result == wanted) is fits
    except CelError:
        assert not fits


def test_an_object_costs_40() -> None:
    budget = Budget(frozen_clock, DEFAULT_LIMITS)
    PATCHING.compile("Object{a: object.metadata.name}", {"object": DYN}, mutates=True).evaluate({"object": POD}, budget)
    assert budget.spent == 43
