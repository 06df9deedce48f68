"""Objects that expressions make for patches."""

from typing import Any

import pytest

from kubecel.budget import DEFAULT_LIMITS, Budget
from kubecel.compile import Cel
from kubecel.errors import CelError
from kubecel.types import DYN, JSON_PATCH, OBJECT, Type, list_of
from kubecel.values import ObjectValue
from kubecel_tests.evaluating import frozen_clock

ENGINE = Cel()
POD = {"metadata": {"name": "train"}, "items": ["a", "b"]}


def value(source: str) -> Any:
    program = ENGINE.compile(source, {"object": DYN}, mutates=True)
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
    assert value(source) == expected


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
        value(source)
    assert caught.value.message == message


@pytest.mark.parametrize("source", ["Object{}", "JSONPatch{}", "jsonpatch.escapeKey('a')"])
def test_other_expressions_make_no_objects(source: str) -> None:
    with pytest.raises(CelError, match=r"there is no (type|function)"):
        ENGINE.compile(source, {})


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
        assert (ENGINE.compile(source, {"object": DYN}, result=wanted, mutates=True).result == wanted) is fits
    except CelError:
        assert not fits


def test_an_object_costs_40() -> None:
    budget = Budget(frozen_clock, DEFAULT_LIMITS)
    ENGINE.compile("Object{a: object.metadata.name}", {"object": DYN}, mutates=True).evaluate({"object": POD}, budget)
    assert budget.spent == 43
