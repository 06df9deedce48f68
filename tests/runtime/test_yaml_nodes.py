from typing import Any

import pytest

from runtime.yaml_nodes import (
    MAX_DEPTH,
    DocumentLimits,
    Mapping_,
    Scalar,
    Sequence_,
    YamlError,
    YamlNode,
    YamlSyntaxError,
    compose,
    compose_all,
)

FAULTS: dict[str, tuple[str, int, str]] = {
    "key-twice": ("a: 1\nb: 2\na: 3\n", 10, "the key 'a' is there twice: remove one; kubectl uses the last one"),
    "key-twice-in-two-spellings": (
        "1: a\n0x1: b\n",
        5,
        "the key '1' is there twice: remove one; kubectl uses the last one",
    ),
    "merge-twice": (
        "a: &a {}\n<<: *a\n<<: *a\n",
        16,
        "the key '<<' is there twice: remove one; kubectl uses the last one",
    ),
    "null-key": ("~: 1\n", 0, "a key must be a string, a number or a boolean"),
    "list-key": ("? [a]\n: 1\n", 2, "a key must be a string, a number or a boolean"),
    "alias-of-list-as-key": ("a: &a [1]\n*a : 1\n", 10, "a key must be a string, a number or a boolean"),
    "unknown-anchor": ("a: *b\n", 3, "alias *b has no anchor &b before it"),
    "endless": ("a: &a\n  b: *a\n", 11, "alias *a is inside its own anchor"),
    "merge-of-a-number": ("<<: 1\n", 4, "a merge key '<<' takes a mapping or a list of mappings"),
    "merge-of-a-list-of-numbers": ("<<: [1]\n", 5, "a merge key '<<' takes a mapping or a list of mappings"),
    "infinity": ("a: .inf\n", 3, ".inf is not a JSON value"),
    "wrong-tag": ("a: !!int x\n", 3, "'x' is no !!int"),
    "second-document": ("a: 1\n---\nb: 2\n", 5, "a second document begins here without a line '---'"),
}
SYNTAX: dict[str, tuple[str, int, str]] = {
    "tab": ("a:\n\tb: 1\n", 3, "found character that cannot start any token while scanning for the next token"),
    "unclosed": ("a: [1\n", 6, "did not find expected ',' or ']' while parsing a flow sequence"),
    "anchor-without-name": (
        "a: & b\n",
        4,
        "did not find expected alphabetic or numeric character while scanning an anchor",
    ),
    "indentation": ("a: 1\n  b: 2\n", 8, "mapping values are not allowed in this context"),
}


@pytest.mark.parametrize(("text", "index", "problem"), FAULTS.values(), ids=FAULTS)
def test_yaml_that_is_no_object_is_refused_with_its_place(text: str, index: int, problem: str) -> None:
    with pytest.raises(YamlError) as caught:
        compose(text)
    assert (caught.value.index, caught.value.problem) == (index, problem)


@pytest.mark.parametrize(("text", "index", "problem"), SYNTAX.values(), ids=SYNTAX)
def test_invalid_yaml_is_refused_with_the_place_of_the_error(text: str, index: int, problem: str) -> None:
    with pytest.raises(YamlSyntaxError) as caught:
        compose(text)
    assert (caught.value.index, caught.value.problem) == (index, problem)


@pytest.mark.parametrize("deep", ["[" * 100_000, "- " * 100_000, '{"a":' * 5_000], ids=["flow", "block", "json"])
def test_deep_nesting_is_refused_before_it_costs_anything(deep: str) -> None:
    with pytest.raises(YamlError, match=f"values are nested deeper than {MAX_DEPTH} levels"):
        compose(deep)


def test_aliases_that_would_be_billions_of_values_are_refused() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
    with pytest.raises(YamlError, match="it has more than 2,000,000 values, aliases expanded"):
        compose(bomb)


@pytest.mark.parametrize("text", ["", "\n", "# only\n# comments\n", "---\n"])
def test_a_text_without_content_has_no_value(text: str) -> None:
    root = compose(text)
    assert root is None or root.value is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: &x {p: 1, q: 2}\nb:\n  <<: *x\n  q: 3\n", {"a": {"p": 1, "q": 2}, "b": {"q": 3, "p": 1}}),
        ("b: {<<: [{p: 1}, {p: 2, q: 3}]}\n", {"b": {"p": 1, "q": 3}}),
        ("'<<': 1\n", {"<<": 1}),
        ("a: &x\n- &x [1]\nb: *x\n", {"a": [[1]], "b": [1]}),
    ],
    ids=["own-members-win", "the-first-wins", "quoted-is-no-merge", "the-last-anchor-counts"],
)
def test_merges_and_aliases_are_resolved(text: str, value: Any) -> None:
    root = compose(text)
    assert root is not None
    assert root.value == value


@pytest.mark.parametrize(
    ("text", "value", "keys"),
    [
        ("a: 1\nb: 2\na: 3\n", {"a": 3, "b": 2}, ["a"]),
        ("a: {b: 1, b: [2]}\n1: p\n1: q\n", {"a": {"b": [2]}, "1": "q"}, ["b", "1"]),
        ("<<: {p: 1, q: 1}\n<<: {p: 2}\n", {"p": 2, "q": 1}, []),
        ("p: 1\n<<: {p: 2}\n", {"p": 2}, []),
    ],
    ids=["block", "flow-and-numbers", "merge-keys", "a-merge-after-a-member"],
)
def test_the_last_value_of_a_key_counts_where_that_is_wanted(text: str, value: object, keys: list[str]) -> None:
    """As `kubectl annotate --local -f` of kubectl 1.32 prints them."""
    repeated: list[Mapping_] = []
    root = compose(text, repeated=repeated)
    assert root is not None
    assert root.value == value
    assert [each.name for node in repeated for each in node.hidden] == keys


def texts(text: str, node: YamlNode) -> list[str]:
    """The text of every node below one."""
    match node:
        case Mapping_():
            below = [part for entry in node.entries for part in (entry.key, entry.node)]
        case Sequence_():
            below = node.items
        case _:
            below = []
    return [text[node.start : node.end], *(each for child in below for each in texts(text, child))]


def test_nodes_know_where_they_begin_and_end() -> None:
    text = "é: &x # why\n- |+\n  t\n\n- 'q' # c\n\nb: {k: [v] , m}\nc: |\n  y\n\n \nd:\n"
    root = compose(text)
    assert root is not None
    every = texts(text, root)
    assert every[0] == text.rstrip("\n")
    assert every[1:] == [
        *("é", "&x # why\n- |+\n  t\n\n- 'q'", "|+\n  t\n", "'q'"),
        *("b", "{k: [v] , m}", "k", "[v]", "v", "m", ""),
        *("c", "|\n  y", "d", ""),
    ]


def test_scalars_keep_their_quotes() -> None:
    root = compose("- a\n- 'b'\n- \"c\"\n- |\n  d\n")
    assert isinstance(root, Sequence_)
    assert [item.style for item in root.items if isinstance(item, Scalar)] == ["", "'", '"', "|"]


def test_documents_are_read_one_by_one_with_their_own_anchors() -> None:
    assert [root.value for root in compose_all("a: &x 1\n---\n# only a comment\n---\nb: &x 2\nc: *x\n")] == [
        {"a": 1},
        None,
        {"b": 2, "c": 2},
    ]
    with pytest.raises(YamlError, match="has no anchor"):
        list(compose_all("a: &x 1\n---\nb: *x\n"))


@pytest.mark.parametrize(
    ("text", "limits", "problem"),
    [
        ("[[[1]]]", DocumentLimits(depth=2), "values are nested deeper than 2 levels"),
        ("[1, 2, 3]", DocumentLimits(values=2), "it has more than 2 values, aliases expanded"),
        ("{a: &x [1], b: *x}", DocumentLimits(values=4), "it has more than 4 values, aliases expanded"),
    ],
    ids=["depth", "values", "aliases"],
)
def test_limits_are_parameters(text: str, limits: DocumentLimits, problem: str) -> None:
    with pytest.raises(YamlError, match=problem):
        list(compose_all(text, limits))


def test_a_scalar_keeps_its_text_and_tag() -> None:
    (root,) = compose_all("!!str 010")
    assert isinstance(root, Scalar)
    assert (root.value, root.text, root.tag) == ("010", "010", "tag:yaml.org,2002:str")
