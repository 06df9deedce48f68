"""Foreign text stays on one line and keeps its content."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.text import escaped, printable_json

ANY = st.text(alphabet=st.characters(codec=None, exclude_categories=()), max_size=30)


@given(ANY)
def test_a_quoted_text_is_printable_and_can_be_read_back(text: str) -> None:
    shown = printable_json(text)
    assert shown.isprintable()
    assert len(shown.splitlines()) == 1
    # A lone surrogate before another becomes one letter when JSON is read, as in JavaScript.
    assert json.loads(shown).encode("utf-16", "surrogatepass") == text.encode("utf-16", "surrogatepass")


@given(ANY)
def test_escaped_json_has_the_same_values(text: str) -> None:
    line = json.dumps({"name": text}, ensure_ascii=False)
    shown = escaped(line)
    assert shown.isprintable()
    assert json.loads(shown)["name"].encode("utf-16", "surrogatepass") == text.encode("utf-16", "surrogatepass")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü 日本", "plain ü 日本"),
        ("\u2028\u2029\x85\x7f\x9b", "\\u2028\\u2029\\u0085\\u007f\\u009b"),
        ("a\u202eb\u2066\u200b\ufeff", "a\\u202eb\\u2066\\u200b\\ufeff"),
        ("\U000e0041\ud800\n", "\\udb40\\udc41\\ud800\\u000a"),
        ("no\u00a0break", "no\\u00a0break"),
    ],
)
def test_special_characters_are_escaped(text: str, shown: str) -> None:
    assert escaped(text) == shown
