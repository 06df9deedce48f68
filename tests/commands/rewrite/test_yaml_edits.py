import random
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.objects.text_edits import TextLayout, apply
from commands.rewrite.yaml_edits import EditError, edit
from runtime.yaml_nodes import compose
from tests.support.yaml_styles import DOCUMENTS, changed, written


def edited(text: str, wanted: Any) -> str:
    root = compose(text)
    assert root is not None
    return apply(text, edit(text, root, wanted))


def value(text: str) -> Any:
    root = compose(text)
    return root and root.value


@given(DOCUMENTS.flatmap(written), st.randoms(use_true_random=False))
def test_an_edited_text_has_the_wanted_values(text: str, chance: random.Random) -> None:
    wanted = changed(value(text), chance)
    try:
        result = edited(text, wanted)
    except EditError as error:
        # The caller writes such a document anew.
        assert re.search("alias|anchor|merge key", str(error))  # noqa: PT017
        return
    assert value(result) == wanted


@given(DOCUMENTS.flatmap(written))
def test_a_text_with_the_wanted_values_is_unchanged(text: str) -> None:
    assert edited(text, value(text)) == text


@given(DOCUMENTS, st.sampled_from([2, 4]), st.sampled_from([0, 2]), st.sampled_from(["\n", "\r\n"]))
def test_a_rewritten_value_is_read_back_unchanged(
    document: dict[str, Any], indent: int, dash: int, newline: str
) -> None:
    assert value(TextLayout(indent, dash, newline).document(document)) == document


CASES = {
    "comments-stay": (
        "# top\na: 1 # one\n# between\nb: 2\nc: 3\n# end\n",
        {"a": 1, "c": 3},
        "# top\na: 1 # one\n# between\nc: 3\n# end\n",
    ),
    "quotes-stay": ("a: 'x'\nb: \"y\"\nc: z\n", {"a": "u", "b": "v", "c": "w"}, "a: 'u'\nb: \"v\"\nc: w\n"),
    "long-lines-stay": (f"a: {'x ' * 200}x\nb: 1\n", {"a": "x " * 200 + "x"}, f"a: {'x ' * 200}x\n"),
    "member-on-the-dash": ("- b: 1\n  c: 2\n", [{"c": 2}], "- c: 2\n"),
    "member-on-the-dash-before-a-comment": ("- b: 1\n  # why\n  c: 2\n", [{"c": 2}], "-\n  # why\n  c: 2\n"),
    "indented-lists": (
        "a:\n  - x\nb: {}\n",
        {"a": ["x", "z"], "b": {"c": ["z"]}},
        "a:\n  - x\n  - z\nb:\n  c:\n    - z\n",
    ),
    "wide-indent": ("a:\n    b: 1\n", {"a": {"b": 1, "c": {"d": 2}}}, "a:\n    b: 1\n    c:\n        d: 2\n"),
    "flow": ("{a: 1, b: [2]}\n", {"a": 1, "b": [2, 3], "c": {"d": "x"}}, "{a: 1, b: [2, 3], c: {d: x}}\n"),
    "flow-loses-its-last": ("a: {b: 1, c: 2}\n", {"a": {"b": 1}}, "a: {b: 1}\n"),
    "flow-keeps-the-text-of-what-stays": (
        "a: {b: 0x1, c: 'x'}\n",
        {"a": {"b": 1, "c": "x", "d": 2}},
        "a: {b: 0x1, c: 'x', d: 2}\n",
    ),
    "flow-loses-its-first": ("a: [1, 2, 3]\n", {"a": [2, 3]}, "a: [2, 3]\n"),
    "null-becomes-block": ("a: # none\nb: ~\n", {"a": {"x": 1}, "b": ["z"]}, "a: # none\n  x: 1\nb:\n- z\n"),
    "block-becomes-empty": ("a:\n  b: 1\nc: 2\n", {"a": {}, "c": 2}, "a: {}\nc: 2\n"),
    "in-front": ("a:\n  spec: 1\n", {"a": {"metadata": {}, "spec": 1}}, "a:\n  metadata: {}\n  spec: 1\n"),
    "in-front-on-the-dash": ("- b: 1\n", [{"a": 0, "b": 1}], "- a: 0\n  b: 1\n"),
    "crlf": ("a:\r\n  b: 1\r\n", {"a": {"b": 1, "c": ["x"]}}, "a:\r\n  b: 1\r\n  c:\r\n  - x\r\n"),
    "no-line-break-at-the-end": ("a: 1", {"a": 1, "b": 2}, "a: 1\nb: 2\n"),
    "cut-off-block-scalar": ("a: |\n  x", {"a": "x", "b": 2}, "a: |-\n  x\nb: 2\n"),
    "strings-that-kubectl-would-not-take-for-strings": (
        "a: 1\n",
        {"a": 1, "y": "no", "b": "0o7", "c": "1e3", "d": "x\x85y"},
        'a: 1\n"y": "no"\nb: "0o7"\nc: "1e3"\nd: "x\\u0085y"\n',
    ),
    "text-of-lines": ("a: 1\n", {"a": 1, "b": "x\n y\n"}, "a: 1\nb: |\n  x\n   y\n"),
    "item-goes": ("- a\n# b\n- b\n- c\n", ["a", "c"], "- a\n# b\n- c\n"),
    "nested-dashes": ("- - 1\n  - 2\n", [[1, 2, 3]], "- - 1\n  - 2\n  - 3\n"),
}


@pytest.mark.parametrize(("text", "wanted", "result"), CASES.values(), ids=CASES)
def test_only_differing_lines_are_written(text: str, wanted: Any, result: str) -> None:
    assert edited(text, wanted) == result


SHARED = "a: &x # shared\n  p: 1\n  k: 2\n"
ALIASES = {
    "all-change-alike": (
        f"{SHARED}b: *x # use\n",
        {"a": {"k": 2}, "b": {"k": 2}},
        "a: &x # shared\n  k: 2\nb: *x # use\n",
    ),
    "one-use-changes": (
        f"{SHARED}b: *x # use\nc: *x\n",
        {"a": {"p": 1, "k": 2}, "b": {"p": 2}, "c": {"p": 1, "k": 2}},
        f"{SHARED}b: # use\n  p: 2\nc: *x\n",
    ),
    "only-the-anchor-changes": (
        f"{SHARED}b: *x # use\nc: [1, *x]\n",
        {"a": {"p": 1}, "b": {"p": 1, "k": 2}, "c": [1, {"p": 1, "k": 2}]},
        "a: &x # shared\n  p: 1\nb: # use\n  p: 1\n  k: 2\nc: [1, {p: 1, k: 2}]\n",
    ),
    "an-item-changes": (
        "- &x a\n- *x # second\n- *x\n",
        ["a", "b", "a"],
        "- &x a\n- b # second\n- *x\n",
    ),
    "an-alias-inside-a-changed-object": (
        f"{SHARED}b:\n  c: *x\n  d: 1 # one\n",
        {"a": {"p": 1, "k": 2}, "b": {"c": {"p": 1, "k": 2}, "d": 2}},
        f"{SHARED}b:\n  c: *x\n  d: 2 # one\n",
    ),
    "the-anchor-goes": ("a: &x {p: 1}\nb: *x\n", {"b": {"p": 1}}, "b:\n  p: 1\n"),
    "the-anchor-goes-from-a-list": ("a: [&x 1, 2]\nb: *x # use\n", {"a": [2], "b": 1}, "a: [2]\nb: 1 # use\n"),
    "an-anchor-inside-an-anchor": (
        "a: &x\n  p: &y 1\nb: *x\nc: *y\n",
        {"a": {"p": 2}, "b": {"p": 2}, "c": 1},
        "a: &x\n  p: 2\nb: *x\nc: 1\n",
    ),
    "a-mapping-with-a-merge-key-gets-a-member": (
        f"{SHARED}b:\n  <<: *x # merged\n  k: 3\n",
        {"a": {"p": 1, "k": 2}, "b": {"p": 1, "k": 3, "z": 4}},
        f"{SHARED}b:\n  <<: *x # merged\n  k: 3\n  z: 4\n",
    ),
    "a-merged-member-changes": (
        f"{SHARED}b:\n  <<: *x\n  z: 3\nc:\n  <<: *x\n",
        {"a": {"p": 1, "k": 2}, "b": {"p": 5, "k": 2, "z": 3}, "c": {"p": 1, "k": 2}},
        f"{SHARED}b:\n  p: 5\n  k: 2\n  z: 3\nc:\n  <<: *x\n",
    ),
    "what-is-merged-changes": (
        f"{SHARED}b:\n  <<: [*x]\n  z: 3 # own\n",
        {"a": {"p": 1}, "b": {"p": 1, "k": 2, "z": 3}},
        "a: &x # shared\n  p: 1\nb:\n  p: 1\n  k: 2\n  z: 3 # own\n",
    ),
}


@pytest.mark.parametrize(("text", "wanted", "result"), ALIASES.values(), ids=ALIASES)
def test_an_alias_is_expanded_only_where_its_value_changes(text: str, wanted: Any, result: str) -> None:
    assert edited(text, wanted) == result


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a: &x {p: 1}\nb: {<<: *x, q: 2}\n", {"a": {"p": 2}, "b": {"p": 1, "q": 2}}),
        ("a: &x {p: 1}\nb:\n  <<: *x\n  q: 2\n", {"a": {"p": 1}, "b": {"q": 2}}),
    ],
    ids=["flow", "nothing-left"],
)
def test_a_merge_key_that_cannot_be_replaced_rewrites_the_document(text: str, wanted: Any) -> None:
    with pytest.raises(EditError, match="a merge key cannot be replaced by its members"):
        edited(text, wanted)


def test_anchors_and_aliases_elsewhere_stay() -> None:
    text = "a: &x {p: 1}\nb: *x # use\nc:\n  <<: *x\nd: &unused 1\n"
    wanted = {"a": {"p": 1}, "b": {"p": 1}, "c": {"p": 1}, "d": 2, "e": 3}
    assert edited(text, wanted) == text.replace("d: &unused 1", "d: 2") + "e: 3\n"


@pytest.mark.parametrize(
    ("text", "wanted", "problem"),
    [
        ("a: 1\n", {"b": 2}, "the whole document changes"),
        ("a: |+\n  x\nb: 1\n\n", {"a": "x\n"}, "the edited text has another value"),
    ],
    ids=["nothing-stays", "blank-lines-would-join-a-block-scalar"],
)
def test_values_that_cannot_be_edited_in_place_are_an_error(text: str, wanted: Any, problem: str) -> None:
    with pytest.raises(EditError, match=problem):
        edited(text, wanted)


def test_a_complex_mapping_is_rewritten_in_its_place() -> None:
    assert edited("a:\n  ? b\n  : 1\nc: 2 # two\n", {"a": {"b": 3}, "c": 2}) == "a:\n    b: 3\nc: 2 # two\n"
