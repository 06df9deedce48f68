"""JSON patches as the API server applies them."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.patching.json_patch import (
    MISSING,
    MOST_COPIED,
    PatchError,
    PatchOperation,
    PatchTestFailedError,
    applied,
    difference,
    same,
)

DATA: dict[str, Any] = {"a": {"b": 1, "x/y": "z"}, "list": [1, 2, 3], "none": None}


def op(name: str, path: str, value: Any = MISSING, source: str = "") -> PatchOperation:
    return PatchOperation(name, path, source, value)


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([op("add", "/a/c", 2)], {**DATA, "a": {"b": 1, "x/y": "z", "c": 2}}),
        ([op("add", "/a/b", 2)], {**DATA, "a": {"b": 2, "x/y": "z"}}),
        ([op("add", "/list/-", 4)], {**DATA, "list": [1, 2, 3, 4]}),
        ([op("add", "/list/0", 0)], {**DATA, "list": [0, 1, 2, 3]}),
        ([op("add", "/list/-1", 9)], {**DATA, "list": [1, 2, 3, 9]}),
        ([op("remove", "/list/-1")], {**DATA, "list": [1, 2]}),
        ([op("replace", "/list/1", "x")], {**DATA, "list": [1, "x", 3]}),
        ([op("replace", "/new", 1)], {**DATA, "new": 1}),
        ([op("remove", "/a/x~1y")], {**DATA, "a": {"b": 1}}),
        ([op("move", "/moved", source="/a/b")], {"a": {"x/y": "z"}, "list": [1, 2, 3], "none": None, "moved": 1}),
        ([op("copy", "/copied", source="/list")], {**DATA, "copied": [1, 2, 3]}),
        ([op("copy", "/copied", source="/nothing")], {**DATA, "copied": None}),
        ([op("test", "/a/b", 1), op("add", "/t", 1)], {**DATA, "t": 1}),
        ([op("test", "/nothing"), op("add", "/t", 1)], {**DATA, "t": 1}),
        ([op("add", "/n")], {**DATA, "n": None}),
    ],
)
def test_a_patch_is_applied(operations: list[PatchOperation], expected: Any) -> None:
    before = copy.deepcopy(DATA)
    assert applied(DATA, operations) == expected
    assert before == DATA, "the object is not changed"


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (op("merge", "/a"), "operation 'merge' is none of add, remove, replace, move, copy, test"),
        (op("add", "/x/y", 1), "there is nothing at '/x', the parent in the path '/x/y'"),
        (op("add", "/none/y", 1), "there is nothing at '/none', the parent in the path '/none/y'"),
        (op("add", "/a/b/c", 1), "there is nothing at '/a/b', the parent in the path '/a/b/c'"),
        (op("remove", "/a/c"), "at '/a/c': there is no key 'c' to remove"),
        (op("remove", "/list/3"), "at '/list/3': the index 3 in '3' is outside of the list of 3"),
        (op("add", "/list/x", 1), "at '/list/x': 'x' in 'x' is no index of a list"),
        (op("replace", "", {}), "the whole object cannot be replaced"),
        (op("remove", ""), "the path must name a field, such as /metadata/labels"),
        (op("add", "a", 1), "the path 'a' must begin with '/'"),
        (op("move", "/m", source="/nothing"), "at '/nothing': there is no key 'nothing' to remove"),
        (op("copy", "/m", source="/x/y"), "there is nothing at '/x' of '/x/y'"),
    ],
)
def test_a_patch_that_cannot_be_applied(operation: PatchOperation, message: str) -> None:
    with pytest.raises(PatchError) as caught:
        applied(DATA, [operation])
    assert str(caught.value) == message


@pytest.mark.parametrize("value", [2, True, "1", None])
def test_a_failed_test_is_no_error_of_its_own(value: Any) -> None:
    with pytest.raises(PatchTestFailedError):
        applied(DATA, [op("test", "/a/b", value)])


def test_copies_of_copies_are_bounded() -> None:
    doubling = [op("copy", f"/a/{at}", source="/a") for at in range(100)]
    with pytest.raises(PatchError, match=f"copy more than {MOST_COPIED} bytes"):
        applied(DATA, doubling)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "a", "/", "~"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "b", "/", "~1", ""]), inner, max_size=4),  # noqa: E501
    max_leaves=12,
)  # fmt: skip
_OBJECTS = st.dictionaries(st.sampled_from(["a", "b", "~/", "list"]), _JSON, max_size=4)


@given(_OBJECTS, _OBJECTS)
def test_the_difference_of_two_objects_makes_one_of_the_other(before: Any, after: Any) -> None:
    texts = json.dumps(before), json.dumps(after)
    patch = difference(before, after)
    made = applied(before, [PatchOperation(each["op"], each["path"], value=each.get("value")) for each in patch])
    assert same(made, after)
    assert (json.dumps(before), json.dumps(after)) == texts
    assert bool(patch) is not same(before, after)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([1, 2, 3], [1, 3], [{"op": "remove", "path": "/l/1"}]),
        ([1, 3], [1, 2, 3], [{"op": "add", "path": "/l/1", "value": 2}]),
        ([1], [1, 2], [{"op": "add", "path": "/l/-", "value": 2}]),
        ([{"n": 1, "x": 1}], [{"n": 1, "x": 2}], [{"op": "replace", "path": "/l/0/x", "value": 2}]),
        ([{"n": 1}], [{"n": 1, "x": 2}, {"n": 2}], [{"op": "add", "path": "/l/0/x", "value": 2}, {"op": "add", "path": "/l/-", "value": {"n": 2}}]),  # noqa: E501
        ([1], [True], [{"op": "replace", "path": "/l/0", "value": True}]),
    ],
)  # fmt: skip
def test_differences_are_small(before: Any, after: Any, expected: Any) -> None:
    assert list(difference({"l": before, "kept": 1}, {"l": after, "kept": 1})) == expected
