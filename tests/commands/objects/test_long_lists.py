"""A long List that is read item by item has the result of the same List that is read as one document."""

import io
import json
import tracemalloc
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from commands.objects import documents, long_lists
from commands.objects.documents import Documents, TextBudget, _JsonPlaces, _locate
from commands.objects.long_lists import ListPart, plain
from commands.objects.manifest_files import GivenManifests, Inputs, ManifestSource, read_sources
from commands.rewrite.convert_output import as_json, as_yaml
from runtime.yaml_nodes import compose
from tests.support.converting import convert_sources
from tests.support.trainium import trainium
from tests.support.trees import places
from tests.support.validating_files import validate_sources

WORDS = st.sampled_from(
    ["", "a", "yes", "- a", "{", "]", ",", "x: y", "it's", 'say "no"', "a\nb", "ü", "\U0001f600", "\x7f", "a/b"]
)
VALUES = st.recursive(
    WORDS | st.integers(-(2**62), 2**62) | st.booleans() | st.none() | st.sampled_from([1.5, 1e300]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
COUNTS = st.sampled_from(["1", "4", "7", "16", 4])


def pod_with_counts(name: str, namespace: str, counts: list[Any], value: Any) -> dict[str, Any]:
    containers = [
        {"name": f"c{at}", "image": "x", "resources": {"limits": {"aws.amazon.com/neuron": count}}}
        for at, count in enumerate(counts)
    ]
    metadata = {"name": name, "namespace": namespace, "annotations": {"note": value}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}


PODS = st.builds(
    pod_with_counts, st.sampled_from(["a", "b-1"]), st.sampled_from(["ml", "web"]), st.lists(COUNTS, max_size=2), VALUES
)
OTHERS = st.sampled_from(
    [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": "ml", "annotations": {"neuron.aws.com/convert": "off"}},
        },
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"items": "x"}},
        {"kind": "Pod"},
        {},
    ]
)
LISTS = st.lists(PODS | OTHERS, min_size=1, max_size=4)


class _Dumper(yaml.SafeDumper):
    """Without aliases, which an item cannot have of another one."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


class _Indented(_Dumper):
    """With lists that are indented under their key."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, indentless=False)


def written(value: Any, dumper: type[yaml.SafeDumper] = _Dumper, **options: Any) -> str:
    text: str = yaml.dump(value, Dumper=dumper, **options)
    return text


def as_text(items: list[Any], form: str) -> str:
    whole = {"apiVersion": "v1", "items": items, "kind": "List", "metadata": {"resourceVersion": ""}}
    match form:
        case "one line":
            return json.dumps(whole)
        case "compact":
            return json.dumps(whole, separators=(",", ":"), ensure_ascii=False)
        case "indented":
            return json.dumps(whole, indent=4) + "\n"
        case "tabs":
            return json.dumps(whole, indent="\t", ensure_ascii=False) + "\n\n"
        case "yaml":
            return written(whole, allow_unicode=True)
        case "yaml, started":
            return "---\n" + written(whole, sort_keys=False, width=20)
        case _:
            body = written({"items": items}, _Indented, default_style='"').removeprefix('"items":\n')
            return f"apiVersion: v1\nkind: List\n# the pods\nitems:\n\n  # first\n{body}"


FORMS = ("one line", "compact", "indented", "tabs", "yaml", "yaml, started", "yaml, indented")


def source(text: str, *, split: bool) -> ManifestSource:
    raw = text.encode()
    found = Documents(lambda: io.BytesIO(raw), TextBudget(0))
    if not split:
        found.as_one()
    return ManifestSource("f", found)


@pytest.fixture(autouse=True, scope="module")
def _every_list_is_long() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "LONG", 1)
        patch.setattr(long_lists, "_CHUNK", 7)
        yield


def convert_text(text: str, *, split: bool) -> tuple[object, ...]:
    def run(**options: Any) -> Any:
        return convert_sources([source(text, split=split)], trainium(), strict=True, **options)

    texts, data = run(), run(texts=False)
    shown = "".join(as_yaml(texts.changes, lambda _: None))
    return [str(each) for each in texts.notices], texts.refused, texts.left, shown, "".join(as_json(data.changes))


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=6)
@given(items=LISTS)
def test_conversion_is_that_of_one_document(form: str, items: list[Any]) -> None:
    text = as_text(items, form)
    assert next(iter(source(text, split=True).documents)).part is ListPart.HEAD
    assert convert_text(text, split=True) == convert_text(text, split=False)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=5)
@given(items=LISTS)
def test_findings_and_their_lines_are_those_of_one_document(form: str, items: list[Any]) -> None:
    text = as_text(items, form)
    split, whole = (validate_sources([source(text, split=each)], trainium()) for each in (True, False))
    assert split == whole


@given(items=LISTS, form=st.sampled_from(FORMS))
@settings(max_examples=30)
def test_the_parts_are_the_file(items: list[Any], form: str) -> None:
    text = as_text(items, form)
    assert "".join(each.text + each.after for each in source(text, split=True).documents) == text


def test_the_items_of_both_kinds_of_file_are_found() -> None:
    items = [pod_with_counts(f"p{at}", "ml", ["4"], "- a\n- b") for at in range(3)]
    for form in FORMS:
        found = [each for each in source(as_text(items, form), split=True).documents if each.part is ListPart.ITEM]
        assert [each.data for each in found] == items, form
        assert [each.place for each in found] == [("items", 0), ("items", 1), ("items", 2)]


POD = "- {apiVersion: v1, kind: Pod}\n"
NOT_SPLIT = {
    "no list": "a: 1\n",
    "another kind": f"apiVersion: v1\nkind: Foo\nitems:\n{POD}",
    "a typed list": f"apiVersion: v1\nkind: PodList\nitems:\n{POD}",
    "two documents": f"kind: List\nitems:\n{POD}---\na: 1\n",
    "items in flow style": "kind: List\nitems: [{kind: Pod}]\n",
    "items twice": f"kind: List\nitems:\n{POD}items: []\n",
    "a tagged list": f"kind: List\nitems: !!seq\n{POD}",
    "directives": f"%YAML 1.1\n---\nkind: List\nitems:\n{POD}",
    "less indented items": "kind: List\nitems:\n  - {kind: Pod}\n - {kind: Pod}\n",
    "no UTF-8": "kind: List\nitems:\n- {kind: \udcff}\n",
    "JSON: two objects": '{"kind": "List", "items": [{}]}\n{}',
    "JSON: a typed list": '{"kind": "PodList", "items": [{}]}',
    "JSON: items twice": '{"kind": "List", "items": [{}], "items": []}',
    "JSON: a key around the items twice": '{"kind": "List", "items": [{}], "metadata": {"a": 1, "a": 2}}',
    "JSON: an item is no object": '{"kind": "List", "items": [1]}',
    "JSON: a comma too many": '{"kind": "List", "items": [{},]}',
    "JSON: NaN": '{"kind": "List", "items": [{"a": NaN}]}',
    "JSON: half of a character": '{"kind": "List", "items": [{"a": "\\ud800"}]}',
    "JSON: cut": '{"kind": "List", "items": [{"a": 1}, {"b"',
    "JSON: a list": "[{}]",
    "nothing": "",
    "JSON: items are no list": '{"kind": "List", "items": {}}',
}


@pytest.mark.parametrize("text", NOT_SPLIT.values(), ids=NOT_SPLIT)
def test_what_leaves_a_doubt_is_not_split(text: str) -> None:
    assert long_lists.recognise(io.BytesIO(text.encode(errors="surrogateescape"))) is None


@pytest.mark.parametrize(
    "items",
    ["- a: [\n- b: 1\n", '- a: "x\n- y"\n', "- a: &x 1\n- b: *x\n", "- {a: 1, a: 2}\n- c\n", "- a: 1\n  - b\n"],
    ids=["an open bracket", "a dash in a quoted text", "an alias of another item", "no object", "no YAML"],
)
def test_an_item_that_cannot_be_read_alone_makes_one_document_of_the_list(items: str) -> None:
    text = f"apiVersion: v1\nkind: List\nitems:\n{items}"
    inputs = read_sources([GivenManifests("f", text.encode())], "x")
    whole = read_whole(text)
    assert inputs.faults == whole.faults
    assert [each.data for source in inputs.sources for each in source.documents] == [
        each.data for source in whole.sources for each in source.documents
    ]


def read_whole(text: str) -> Inputs:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "LONG", len(text) + 1)
        return read_sources([GivenManifests("f", text.encode())], "x")


def test_a_key_that_stands_twice_in_an_item_is_reported_with_its_lines() -> None:
    text = '{"kind": "List", "items": [\n{"kind": "Pod",\n"kind": "Job"}]}'
    [_, item, _] = source(text, split=True).documents
    [key] = item.repeated
    assert (key.lines, key.ignored, key.value) == ((2, 3), "Pod", "Job")


@given(VALUES, st.sampled_from([None, 1]), st.booleans())
@settings(max_examples=100)
def test_the_places_of_values_in_json_are_those_of_its_nodes(value: Any, indent: int | None, unique: bool) -> None:
    text = json.dumps({"a": [value, {"b": value}]}, indent=indent, ensure_ascii="\U0001f600" in str(value))
    try:
        root = compose(text)
    except ValueError:
        return
    assert root is not None
    found = _JsonPlaces(text, unique=unique)
    for path in places(json.loads(text)):
        for each in (path, (*path, "none"), (*path, 9), tuple(map(str, path))):
            assert found.offset(each) == _locate(root, each)


def test_a_pod_of_a_list_is_decoded_when_it_is_needed_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    monkeypatch.setattr(documents, "plain", lambda text: (decoded.append(text), plain(text))[1])
    pods = [pod_with_counts(f"p{at}", "ml", ["4"], 1) for at in range(5)]
    others = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ml"}}]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [*pods, *others]})
    [read] = read_sources([GivenManifests("f", text.encode())], "x").sources
    assert [json.loads(each) for each in decoded] == others
    decoded.clear()
    assert [each.data for each in read.documents if each.place] == [*pods, *others]
    assert [json.loads(each) for each in decoded] == [*pods, *others]


def test_a_place_in_json_is_read_no_further_than_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(
        documents, "_decode", lambda text, at: (taken.append(at), json.JSONDecoder().raw_decode(text, at))[1]
    )
    text = json.dumps({"a": {"b": 1, "c": 2}, "d": {"e": 3}})
    found = _JsonPlaces(text, unique=True)
    assert found.offset(("a", "b")) == text.index('"b"')
    assert len(taken) == 2
    assert found.offset(("d", "e")) == text.index('"e"')


def test_the_lines_of_many_findings_in_one_json_document_take_steps_for_each_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = []
    monkeypatch.setattr(
        documents, "_decode", lambda text, at: (taken.append(at), json.JSONDecoder().raw_decode(text, at))[1]
    )
    pods = [pod_with_counts(f"p{at}", "ml", ["7"], "a") for at in range(300)]
    text = json.dumps({"apiVersion": "v1", "kind": "PodList", "items": pods}, indent=1)
    [document] = source(text, split=False).documents
    lines = [
        document.line_of(("items", at, "spec", "containers", 0, "resources", "limits", "aws.amazon.com/neuron"))
        for at in range(300)
    ]
    assert [text.split("\n")[line - 1].strip() for line in lines] == ['"aws.amazon.com/neuron": "7"'] * 300
    assert len(taken) < 300 * 30


@pytest.mark.parametrize("form", ["one line", "indented", "yaml"])
def test_nodes_are_made_only_of_items_that_are_new_and_memory_is_that_of_one_item(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = as_text([pod_with_counts(f"p{at}", "ml", ["4"], "a") for at in range(3_000)], form).encode()
    monkeypatch.setattr(long_lists, "_CHUNK", 1 << 16)
    composed = []
    monkeypatch.setattr(
        documents, "compose", lambda text, **options: (composed.append(text), compose(text, **options))[1]
    )
    tracemalloc.start()
    inputs = read_sources([GivenManifests("f", raw)], "default")
    assert sum(1 for each in inputs.sources[0].documents if each.part is ListPart.ITEM) == 3_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(composed) <= 1
    assert peak < len(raw)
