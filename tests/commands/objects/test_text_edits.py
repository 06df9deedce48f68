from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.objects.text_edits import OverlapError, Splice, UnifiedDiff, apply
from tests.support.diffs import NO_NEWLINE, patched


def unified_diff(text: str, splices: Sequence[Splice], path: str) -> str:
    """The diff of a file that is read as a whole."""
    diff = UnifiedDiff(path)
    return "".join([*diff.feed(text, splices), *diff.finish()])


@st.composite
def texts_and_splices(draw: st.DrawFn) -> tuple[str, list[Splice]]:
    text = "".join(draw(st.lists(st.sampled_from(["a\n", "b\n", "\n", "c\r\n", "dd", "\u2028"]), max_size=30)))
    offsets = sorted(draw(st.lists(st.integers(0, len(text)), max_size=6)))
    written = st.sampled_from(["", "x", "x\n", "\ny", "z\nw\n"])
    splices = [Splice(start, end, draw(written)) for start, end in zip(offsets[::2], offsets[1::2], strict=False)]
    return text, splices


@given(texts_and_splices())
def test_a_diff_leads_from_the_old_text_to_the_new(case: tuple[str, list[Splice]]) -> None:
    text, splices = case
    diff = unified_diff(text, splices, "f.yaml")
    assert patched(text, diff) == apply(text, splices)


@given(st.lists(texts_and_splices(), max_size=5))
def test_a_diff_that_is_made_part_by_part_is_that_of_the_whole(cases: list[tuple[str, list[Splice]]]) -> None:
    diff = UnifiedDiff("f.yaml")
    parts = "".join([*(piece for text, splices in cases for piece in diff.feed(text, splices)), *diff.finish()])
    old = "".join(text for text, _ in cases)
    assert patched(old, parts) == "".join(apply(text, splices) for text, splices in cases)


def test_unchanged_parts_between_changes_are_context() -> None:
    diff = UnifiedDiff("f")
    parts = [
        ("a\n", [Splice(0, 1, "A")]),
        *[(f"{n}\n", []) for n in range(8)],
        ("z\n", [Splice(0, 1, "Z")]),
        ("y\n", []),
    ]
    found = "".join([*(piece for text, splices in parts for piece in diff.feed(text, splices)), *diff.finish()])
    assert found.partition("@@")[1:] == (
        "@@",
        " -1,4 +1,4 @@\n-a\n+A\n 0\n 1\n 2\n@@ -7,5 +7,5 @@\n 5\n 6\n 7\n-z\n+Z\n y\n",
    )


def test_unchanged_text_gives_no_diff() -> None:
    assert unified_diff("a\nb\n", [Splice(0, 2, "a\n"), Splice(2, 2, "")], "f.yaml") == ""


def test_a_diff_shows_three_lines_around_a_change_and_joins_hunks_that_would_touch() -> None:
    text = "".join(f"{letter}\n" for letter in "abcdefghijklmnopqrst")
    splices = [Splice(2 * line, 2 * line + 1, new) for line, new in ((0, "A"), (4, "E"), (15, "P"))]
    assert unified_diff(text, splices, "x/f.yaml") == (
        "--- a/x/f.yaml\n+++ b/x/f.yaml\n"
        "@@ -1,8 +1,8 @@\n-a\n+A\n b\n c\n d\n-e\n+E\n f\n g\n h\n"
        "@@ -13,7 +13,7 @@\n m\n n\n o\n-p\n+P\n q\n r\n s\n"
    )


@pytest.mark.parametrize(
    ("text", "splice", "body"),
    [
        ("a", Splice(1, 1, "\n"), f"-a\n{NO_NEWLINE}\n+a\n"),
        ("a\n", Splice(1, 2, ""), f"-a\n+a\n{NO_NEWLINE}\n"),
        ("a\nb", Splice(0, 0, "x\n"), f"+x\n a\n b\n{NO_NEWLINE}\n"),
        ("", Splice(0, 0, "x\n"), "+x\n"),
    ],
    ids=["gains-newline", "loses-newline", "keeps-none", "empty-file"],
)
def test_a_missing_line_break_at_the_end_is_marked(text: str, splice: Splice, body: str) -> None:
    assert unified_diff(text, [splice], "f").split("@@\n")[1] == body


@pytest.mark.parametrize(
    ("path", "header"),
    [
        ("dir/pod.yaml", "--- a/dir/pod.yaml"),
        ("my pod.yaml", "--- a/my pod.yaml\t"),
        ('a"b.yaml', '--- "a/a\\"b.yaml"'),
        ("a\nb.yaml", '--- "a/a\\012b.yaml"'),
        ("caf\udce9.yaml", '--- "a/caf\\351.yaml"'),
    ],
    ids=["plain", "space", "quote", "newline", "not-utf-8"],
)
def test_file_names_are_quoted_as_git_quotes_them(path: str, header: str) -> None:
    assert unified_diff("", [Splice(0, 0, "x\n")], path).split("\n")[0] == header


@pytest.mark.parametrize(
    "splices",
    [[Splice(0, 2, ""), Splice(1, 1, "x")], [Splice(1, 3, "x"), Splice(0, 2, "")]],
    ids=["insertion-inside", "two-replacements"],
)
def test_splices_that_overlap_are_refused(splices: Sequence[Splice]) -> None:
    with pytest.raises(OverlapError, match="splices overlap at offset 1"):
        apply("abcd", splices)


def test_insertions_at_one_place_keep_their_order() -> None:
    assert apply("ad", [Splice(1, 2, "D"), Splice(1, 1, "b"), Splice(1, 1, "c")]) == "abcD"
