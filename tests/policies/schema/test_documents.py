"""Reading YAML with lines."""

import contextlib
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.schema.documents import DocumentError, read
from tests.support.timing import assert_below


def test_every_value_knows_its_line() -> None:
    text = b"a: 1\nb:\n  - x\n  - c: |\n      one\n      two\n---\n\nd: 2\n"
    first, second = read("f", text)
    assert first.data == {"a": 1, "b": ["x", {"c": "one\ntwo\n"}]}
    assert [first.line(path) for path in ((), ("a",), ("b",), ("b", 1), ("b", 1, "c"))] == [1, 1, 2, 4, 4]
    assert first.text_lines["b", 1, "c"] == 5
    assert second.line(("d",)) == 9


def test_a_missing_field_has_the_line_of_its_parent() -> None:
    (document,) = read("f", b"a:\n  b: 1\n")
    assert document.line(("a", "missing", 3)) == 1
    assert str(document.problem(("a", "b"), "wrong.")) == "f:2: wrong."


def test_scalars_are_those_that_kubectl_reads() -> None:
    (document,) = read("f", b"[010, 1:30, 1.0, yes, 1_000, '1', ~]")
    assert document.data == [8, "1:30", 1, True, 1000, "1", None]


def test_times_stay_text_and_empty_documents_are_left_out() -> None:
    documents = list(read("f", b"---\n# nothing\n---\nday: 2026-12-31\n"))
    assert [document.data for document in documents] == [{"day": "2026-12-31"}]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        pytest.param(b"\xff", 1, "the file is not UTF-8: invalid start byte.", id="encoding"),
        pytest.param(b"a: 1\nb: [", 2, "this is not YAML: did not find expected node content", id="syntax"),
        pytest.param(b"a: \x01", 1, "this is not YAML: ", id="control-character"),
        pytest.param(
            b"a: 1\nb: 2\na: 3", 3, "the key 'a' is there twice: remove one; kubectl uses the last one.", id="twice"
        ),
        pytest.param(b"a: &a {b: 1}\nc:\n  <<: *a", 3, "merge keys (<<) are not supported in", id="merge"),
        pytest.param(b"? [a]\n: 1", 1, "a key must be a string, a number or a boolean.", id="key"),
        pytest.param(b"a: !!binary aGk=", 1, "'aGk=' has the YAML tag '!binary', which", id="tag"),
        pytest.param(b"[" * 150 + b"]" * 150, 1, "values are nested deeper than 100 levels.", id="deep"),
    ],
)
def test_invalid_policy_text_is_refused_with_its_line(text: bytes, line: int, message: str) -> None:
    with pytest.raises(DocumentError) as caught:
        list(read("f", text))
    assert caught.value.line == line
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    "part",
    ["[", "{a: ", "- ", "? ", "[[{b: ", "&x [", "!!seq [", "[? ", "- - ? "],
    ids=["flow", "map", "block", *"345678"],
)
@pytest.mark.parametrize("times", [300, 30_000, 200_000])
def test_deep_nesting_is_refused_before_any_recursion(part: str, times: int) -> None:
    """The composer of libyaml's binding recurses in C: 30,000 brackets ended the process with SIGSEGV."""
    text = (part * times).encode()[: 1 << 20]
    started = time.monotonic()
    with pytest.raises(DocumentError) as caught:
        list(read("f", text))
    assert caught.value.line == 1
    assert_below(time.monotonic() - started, 2)


def test_deep_nesting_does_not_crash_the_process() -> None:
    """In a process of its own, because the old one would have ended with it."""
    code = (
        "from policies.schema.documents import *\n"
        "try: list(read('f', b'[' * 30000))\n"
        "except DocumentError as e: print(e)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "values are nested deeper than 100 levels.\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("a: " + "9" * 5000, "is too long for a value of type int.", id="long-number"),
        pytest.param("a: " + "1:" * 5000 + "1", "is too long for a value of type int.", id="base-60"),
        pytest.param("a: !!int x", "cannot be read as a number or another plain type", id="tagged"),
        pytest.param("a: !!float ''", "cannot be read as a number or another plain type", id="tagged-empty"),
        pytest.param("a: !!bool maybe", "cannot be read as a number or another plain type", id="tagged-bool"),
        pytest.param("a: !!timestamp x", "", id="tagged-time"),
        pytest.param("a: &a [*a]", "", id="alias-of-itself"),
        pytest.param("a: *b", "alias *b has no anchor &b before it.", id="alias-of-nothing"),
        pytest.param("[" + "1," * 200_001 + "]", "it has more than 200,000 values, aliases expanded.", id="many"),
    ],
)
def test_an_unreadable_document_raises_only_document_errors(text: str, message: str) -> None:
    with pytest.raises(DocumentError) as caught:
        list(read("f", text.encode()))
    assert message in caught.value.message
    assert len(caught.value.message) < 200


@given(st.text(alphabet="[]{}:,-?&*!|>'\"\n #a1.<%@`~\t", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(DocumentError):
        list(read("f", text.encode()))


def test_aliases_that_multiply_are_refused() -> None:
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 7)]
    with pytest.raises(DocumentError, match="more than 200,000 values"):
        list(read("f", "\n".join(lines).encode()))
