"""Values of any type, read as the type that is needed."""

import pytest

from neuron.api.fields import mapping, mappings, sequence, text

ODD = [None, 1, 1.5, True, "x", [1], {"a": 1}, b"x"]


@pytest.mark.parametrize("value", ODD)
def test_a_value_of_another_type_is_absent(value: object) -> None:
    assert mapping(value) == (value if isinstance(value, dict) else {})
    assert sequence(value) == (value if isinstance(value, list) else ())
    assert text(value) == (value if isinstance(value, str) else "")


def test_only_objects_of_a_list_are_read() -> None:
    assert list(mappings(ODD)) == [{"a": 1}]
    assert list(mappings("text")) == list(mappings(None)) == []
