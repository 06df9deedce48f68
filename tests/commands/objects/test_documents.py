import io
import tracemalloc
from pathlib import Path

import pytest

from commands.objects.documents import Documents, ManifestError, TextBudget
from commands.objects.manifest_files import GivenManifests, read_sources
from tests.commands.objects.test_shapes import replicas
from tests.support.converting import source


def test_a_small_file_is_read_and_parsed_once() -> None:
    opened = []
    documents = Documents(lambda: opened.append(1) or io.BytesIO(b"a: 1\n---\nb: 2\n"), TextBudget(100))
    first = list(documents)
    assert [id(each) for each in documents] == [id(each) for each in first]
    assert opened == [1]


def test_a_file_beyond_the_budget_is_read_again() -> None:
    documents = Documents(lambda: io.BytesIO(b"a: 1\n---\nb: 2\n"), TextBudget(10))
    assert [each.data for each in documents] == [each.data for each in documents] == [{"a": 1}, {"b": 2}]


def test_memory_is_bounded_by_the_largest_document(tmp_path: Path) -> None:
    path = tmp_path / "many.yaml"
    path.write_text(replicas(5_000))
    tracemalloc.start()
    inputs = read_sources([str(path)], "default")
    assert sum(1 for each in inputs.sources[0].documents if each.text) == 5_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert path.stat().st_size > 1_500_000
    assert peak < 6_000_000


def test_an_error_in_a_document_leaves_only_that_document_out() -> None:
    space = "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n"
    taken: list[object] = []
    inputs = read_sources(
        [GivenManifests("bad", f"{space}---\na: [\n".encode()), GivenManifests("good", space.encode())],
        "x",
        taken.append,
    )
    bad, good = inputs.sources
    assert [each.data is None for each in bad.documents] == [False, True]
    assert [each.left_out for each in good.documents] == [False]
    assert [str(each) for each in inputs.faults] == [
        "bad:6:1: did not find expected node content while parsing a flow node."
    ]
    assert len(taken) == 2


def test_a_document_that_is_left_out_stays_so_when_a_large_file_is_read_again() -> None:
    space = "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n"
    long = f"apiVersion: v1\nkind: Secret\ndata: {{a: {'x' * 1_100_000}}}\n"
    inputs = read_sources([GivenManifests("large", f"{long}---\na: [\n---\n{space}".encode())], "x")
    [source] = inputs.sources
    assert [document.data is None for document in source.documents] == [False, True, False]
    assert [document.text for document in source.documents][1] == "---\na: [\n"


def test_a_file_of_which_no_document_can_be_read_is_no_source() -> None:
    inputs = read_sources([GivenManifests("bad", b"a: [\n---\n- b\n")], "x")
    assert inputs.sources == []
    assert len(inputs.faults) == 2


def test_an_error_has_its_place_in_the_file_also_in_json() -> None:
    with pytest.raises(ManifestError) as caught:
        [each.data for each in source("f", '{"a": 1}\n{"a": ' + "[" * 200 + "]" * 200 + "}").documents]
    assert (caught.value.line, caught.value.column) == (2, 206)


def test_a_key_that_stands_twice_has_its_places_in_the_file() -> None:
    *_, last = source("f", '{"a": 1}\n{"b": [{"a": 1,\n"a": 2}]}').documents
    assert last.data == {"b": [{"a": 2}]}
    (key,) = last.repeated
    assert (key.path, key.key, key.lines, key.ignored, key.value) == (("b", 0), "a", (2, 3), 1, 2)
