"""The values are those that kubectl 1.36 made of the same texts (`kubectl patch --local -o json`)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.objects.text_edits import flow
from runtime.yaml_nodes import compose, key_text, resolve, resolve_tagged, write_string

PLAIN: dict[str, Any] = {
    "yes": True,
    "on": True,
    "y": True,
    "No": False,
    "OFF": False,
    "n": False,
    "True": True,
    "tRue": "tRue",
    "~": None,
    "Null": None,
    "": None,
    "010": 8,
    "0o10": 8,
    "0O7": 7,
    "0x1F": 31,
    "+0x1": 1,
    "0b11": 3,
    "-0b11": -3,
    "0B1": 1,
    "1_000": 1000,
    "1__0": 10,
    "0x_1": 1,
    "_1": "_1",
    "08": 8,
    "09.5": 9.5,
    "-010": -8,
    "0x": "0x",
    "1e3": 1000,
    "1.0": 1,
    ".5": 0.5,
    "-.5": -0.5,
    "1.": 1,
    "+1": 1,
    "++1": "++1",
    "1_0.5": 10.5,
    ".5_0": ".5_0",
    "0.1e-7": 1e-8,
    "1e1_0": 10**10,
    "1e400": "1e400",
    "12:30": "12:30",
    "2024-01-01": "2024-01-01",
    ".1.2": ".1.2",
    "=": "=",
    "9223372036854775807": 2**63 - 1,
    "18446744073709551615": 2**64 - 1,
    "99999999999999999999": 1e20,
    "1e21": 1e21,
}


@pytest.mark.parametrize(("text", "value"), PLAIN.items(), ids=[text or "empty" for text in PLAIN])
def test_plain_scalars_have_the_type_that_kubectl_gives_them(text: str, value: Any) -> None:
    resolved = resolve(text)
    assert (type(resolved), resolved) == (type(value), value)


@pytest.mark.parametrize("text", [".inf", "-.Inf", "+.INF", ".nan", ".NaN"])
def test_numbers_that_json_lacks_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a JSON value"):
        resolve(text)


@pytest.mark.parametrize(
    ("tag", "text", "value"),
    [
        ("tag:yaml.org,2002:str", "4", "4"),
        ("tag:yaml.org,2002:int", "4", 4),
        ("tag:yaml.org,2002:float", "4", 4),
        ("tag:yaml.org,2002:bool", "on", True),
        ("tag:yaml.org,2002:null", "", None),
        ("tag:yaml.org,2002:binary", "aGVsbG8=", "hello"),
        ("!custom", "4", "4"),
    ],
)
def test_explicit_tags_set_the_type(tag: str, text: str, value: Any) -> None:
    assert resolve_tagged(tag, text) == value


@pytest.mark.parametrize(
    ("tag", "text", "message"),
    [
        ("tag:yaml.org,2002:int", "x", "'x' is no !!int"),
        ("tag:yaml.org,2002:binary", "a", "!!binary 'a' is not base64"),
    ],
    ids=["int", "binary"],
)
def test_a_value_that_its_tag_does_not_allow_is_refused(tag: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve_tagged(tag, text)


@pytest.mark.parametrize(
    ("value", "text"), [("a", "a"), (True, "true"), (False, "false"), (80, "80"), (1.5, "1.5"), (1e30, "1e+30")]
)
def test_keys_become_strings(value: Any, text: str) -> None:
    assert key_text(value) == text


def test_null_is_refused_as_key() -> None:
    with pytest.raises(ValueError, match="a key must be a string, a number or a boolean"):
        key_text(None)


@given(st.text(), st.sampled_from(["", "'", '"']))
def test_a_written_string_is_read_as_that_string(text: str, quote: str) -> None:
    for yaml in (f"a: {write_string(text, quote)}\n", f"{write_string(text, quote)}: 1\n", f"[{flow(text)}, 2]\n"):
        root = compose(yaml)
        assert root is not None
        assert text in (root.value.get("a"), *root.value) if isinstance(root.value, dict) else root.value == [text, 2]
