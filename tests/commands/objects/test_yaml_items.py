"""The value of a YAML item comes from an item of the same shape only where the parser would read the same."""

import io
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.objects import documents
from commands.objects.documents import Documents, TextBudget, _locate
from commands.objects.yaml_items import Look, YamlItems
from runtime.yaml_nodes import Mapping_, Sequence_, YamlError, YamlNode, compose
from tests.commands.objects.test_long_lists import written
from tests.support.trees import places

POD = """- apiVersion: v1
  kind: Pod
  metadata:
    name: NAME
    annotations:
      note: "NOTE"  # NAME
      text: |
        name: NAME
  spec:
    containers:
    - name: main
      image: IMAGE
      resources: {limits: {'aws.amazon.com/neuron': 'COUNT'}}
      stdin: false
"""


def item(name: str = "a", note: str = "x", image: str = "r/i:1", count: str = "4") -> str:
    return POD.replace("NAME", name).replace("NOTE", note).replace("IMAGE", image).replace("COUNT", count)


def root_of(text: str) -> YamlNode | None:
    """The node of an item; None if it is not YAML, or a key of it stands twice."""
    try:
        root = compose(text)
    except YamlError:
        return None
    return root.items[0] if isinstance(root, Sequence_) else None


def learned(*texts: str) -> YamlItems:
    items = YamlItems()
    for text in texts:
        root = root_of(text)
        assert isinstance(root, Mapping_)
        items.learn(text, Look.at(text), root)
    return items


def assert_as_parsed(items: YamlItems, text: str) -> None:
    found = items.find(Look.at(text))
    if found is None:
        return
    root = root_of(text)
    assert root is not None
    assert found[1] == root.value
    for path in [*places(root.value), ("spec", "missing"), ("spec", "containers", 7, "name")]:
        line = text.count("\n", 0, _locate(root, path)) - text.count("\n", 0, root.start)
        assert found[0].line_of(found[1], path) == line, path


@pytest.mark.parametrize(
    "changes",
    [{"image": "other/image:2"}, {"note": ""}, {"note": "a: {b}, # - 'c'"}, {"count": "16"}, {"count": ""}],
    ids=str,
)
def test_other_texts_are_read_without_the_parser(changes: dict[str, str]) -> None:
    items, text = learned(item()), item(**changes)
    assert items.find(Look.at(text)) is not None
    assert_as_parsed(items, text)


@pytest.mark.parametrize(
    "text",
    [
        item(name="b"),  # stands in a comment and in a block of text, too
        item(image="yes"),
        item(image="null"),
        item(image="r/i"),
        item(image="1.5"),
        item(image="r/i:1\n        more"),
        item(note='x" y: "z'),
        item(note="\\u0041"),
        item(count="it''s"),
        item().replace("false", "true"),
        item().replace("'aws", '"aws').replace("neuron'", 'neuron"'),
        item().replace("main", "&a main"),
        item().replace("main", "!!str main"),
        item().replace("    - name", "    - image: x\n      name"),
    ],
    ids=map(str, itertools.count()),
)
def test_what_the_parser_reads_otherwise_is_left_to_it(text: str) -> None:
    assert_as_parsed(learned(item()), text)
    root = root_of(text)
    if root is not None:
        items = YamlItems()
        items.learn(text, Look.at(text), root)
        for other in (item(), text.replace("x", "z"), text.replace("4", "8"), text):
            assert_as_parsed(items, other)


TEXTS = st.sampled_from(
    ["a", "b-1", "yes", "null", "x.y/z", "1", "- a", "it's", 'say "x"', "a: b", "#c", "", "ü", "a\nb"]
)
VALUES = st.recursive(
    TEXTS | st.integers(-9, 9) | st.booleans() | st.none() | st.floats(0, 9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def _changed(value: Any, draw: st.DataObject) -> Any:
    if isinstance(value, dict):
        return {key: _changed(each, draw) for key, each in value.items()}
    if isinstance(value, list):
        return [_changed(each, draw) for each in value]
    return draw.draw(TEXTS) if isinstance(value, str) else value


@given(st.data(), st.sampled_from([None, '"', "'"]), st.sampled_from([20, 80]))
def test_values_and_lines_are_those_of_the_parser(data: st.DataObject, style: str | None, width: int) -> None:
    value = {"kind": "Pod", "spec": data.draw(VALUES)}
    texts = [written([each], default_style=style, width=width) for each in (value, _changed(value, data))]
    items = YamlItems()
    for text in texts:
        root = root_of(text)
        if root is not None:
            items.learn(text, Look.at(text), root)
        for each in texts:
            assert_as_parsed(items, each)


def test_the_parser_runs_once_for_each_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    composed = []

    def counted(text: str, **more: Any) -> YamlNode | None:
        composed.append(text)
        return compose(text, **more)

    monkeypatch.setattr(documents, "compose", counted)
    monkeypatch.setattr(documents, "LONG", 1)
    body = "".join(
        item(image=f"r/i:{n}") + item(count=str(n)).replace("main", "other-" * (n % 2) + "x") for n in range(40)
    )
    raw = f"apiVersion: v1\nkind: List\nitems:\n{body}".encode()
    found = Documents(lambda: io.BytesIO(raw), TextBudget(0))
    for _ in range(2):
        lines = [each.line_of(("spec", "containers", 0, "resources")) for each in found if each.data]
        assert lines == list(range(4 + 12, 4 + 80 * 14, 14))
    assert len(composed) == 1
