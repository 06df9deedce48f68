"""JSON in the layout of a file: as `json.dumps` writes it."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.objects.text_edits import JsonLayout
from runtime.yaml_nodes import escape_unprintable

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(VALUES, st.sampled_from([1, 2, 4, 7, "\t", "  \t", None]), st.booleans())
def test_a_value_is_written_as_by_the_standard_library(value: object, indent: int | str | None, escapes: bool) -> None:
    expected = escape_unprintable(json.dumps(value, indent=indent, ensure_ascii=escapes))
    assert JsonLayout(indent, escapes).text(value) == expected


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False)))
def test_numbers_keep_their_value(value: list[float]) -> None:
    assert json.loads(JsonLayout(2, escapes=False).text(value)) == value


@pytest.mark.parametrize(
    "value",
    [
        {"big": 2**70, "text": "a\n    b"},
        {"e7": "e7", "hash": "a\\e5", "e-5": ["3e5", {"x": {}}, []]},
        {"\x7f": "\x00\x1f\u2028ä\U0001f600"},
        [[[[[[[[[[[[1]]]]]]]]]]]],
        {"nested": json.loads("[" * 300 + "]" * 300)},
        {"pi": math.pi},
    ],
)
@pytest.mark.parametrize("escapes", [True, False])
def test_values_that_are_written_in_two_ways(value: object, escapes: bool) -> None:
    expected = escape_unprintable(json.dumps(value, indent=4, ensure_ascii=escapes))
    assert JsonLayout(4, escapes).text(value) == expected
