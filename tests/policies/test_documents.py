"""Reading YAML with lines."""

import pytest

from policies.documents import DocumentError, read


def test_every_value_knows_its_line() -> None:
    text = b"a: 1\nb:\n  - x\n  - c: |\n      one\n      two\n---\n\nd: 2\n"
    first, second = read("f", text)
    assert first.data == {"a": 1, "b": ["x", {"c": "one\ntwo\n"}]}
    assert [first.line(path) for path in ((), ("a",), ("b",), ("b", 1), ("b", 1, "c"))] == [1, 1, 2, 4, 4]
    assert first.text_lines["b", 1, "c"] == 5
    assert second.line(("d",)) == 9


def test_what_is_not_there_has_the_line_of_what_is_around_it() -> None:
    (document,) = read("f", b"a:\n  b: 1\n")
    assert document.line(("a", "missing", 3)) == 1
    assert str(document.problem(("a", "b"), "wrong.")) == "f:2: wrong."


def test_times_stay_text_and_empty_documents_are_left_out() -> None:
    documents = list(read("f", b"---\n# nothing\n---\nday: 2026-12-31\n"))
    assert [document.data for document in documents] == [{"day": "2026-12-31"}]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        pytest.param(b"\xff", 1, "the file is not UTF-8: invalid start byte.", id="encoding"),
        pytest.param(b"a: 1\nb: [", 3, "this is not YAML: did not find expected node content.", id="syntax"),
        pytest.param(b"a: \x01", 1, "this is not YAML: ", id="control-character"),
        pytest.param(b"a: 1\nb: 2\na: 3", 3, "the field 'a' stands here twice.", id="twice"),
        pytest.param(b"a: &a {b: 1}\nc:\n  <<: *a", 3, "merge keys (<<) are not supported in", id="merge"),
        pytest.param(b"? [a]\n: 1", 1, "a field name must be text.", id="key"),
        pytest.param(b"a: !!binary aGk=", 1, "'aGk=' has the tag tag:yaml.org,2002:binary, which", id="tag"),
        pytest.param(b"[" * 150 + b"]" * 150, 1, "values are nested deeper than 100 levels.", id="deep"),
    ],
)
def test_what_is_no_policy_text_is_refused_with_its_line(text: bytes, line: int, message: str) -> None:
    with pytest.raises(DocumentError) as caught:
        list(read("f", text))
    assert caught.value.line == line
    assert caught.value.message.startswith(message)


def test_aliases_that_multiply_are_refused() -> None:
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 7)]
    with pytest.raises(DocumentError, match="more than 200000 values"):
        list(read("f", "\n".join(lines).encode()))
