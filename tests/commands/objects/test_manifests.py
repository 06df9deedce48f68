import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.objects.documents import Document, ManifestError
from commands.objects.manifests import manifests, path_steps
from conversion.objects.kinds import KINDS as KINDS_WITH_PODS
from conversion.objects.pod_places import path_text
from tests.support import converting
from tests.support.yaml_styles import DOCUMENTS, written

POD: dict[str, Any] = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "main"}]}}


def documents(text: str | bytes) -> list[Document]:
    return converting.documents(text)


@given(
    st.sampled_from(["", "\ufeff"]),
    st.lists(
        st.one_of(
            DOCUMENTS.flatmap(written).map(lambda text: text if text.endswith("\n") else f"{text}\n"),
            st.sampled_from(["# only a comment\n", "\n", ""]),
        ),
        max_size=4,
    ),
)
def test_the_documents_of_a_file_join_to_the_same_text(mark: str, texts: list[str]) -> None:
    file = mark + "---\n".join(texts)
    given = converting.source("f", file)
    found = list(given.documents)
    assert given.documents.mark + "".join(document.text for document in found) == file
    assert [document.number for document in found if document.data is not None] == [
        *range(1, sum(document.data is not None for document in found) + 1)
    ]


SPLITS: dict[str, tuple[str, list[tuple[int, int, Any]]]] = {
    "two": ("a: 1\n---\nb: 2\n", [(1, 1, {"a": 1}), (2, 2, {"b": 2})]),
    "comments-first": ("# c\n---\na: 1\n", [(0, 1, None), (1, 2, {"a": 1})]),
    "empty": ("---\n---\n", [(0, 1, None), (0, 2, None)]),
    "end-marker": ("a: 1\n...\n# c\n---\nb: 2\n", [(1, 1, {"a": 1}), (1, 3, None), (2, 4, {"b": 2})]),
    "bare-after-end-marker": ("a: 1\n...\nb: 2\n", [(1, 1, {"a": 1}), (2, 3, {"b": 2})]),
    "directive": ("%YAML 1.1\n---\na: 1\n...\n%YAML 1.1\n---\nb: 2\n", [(1, 1, {"a": 1}), (2, 5, {"b": 2})]),
    "tag-directive": ("%TAG !k! tag:yaml.org,2002:\n---\na: !k!str 1\n", [(1, 1, {"a": "1"})]),
    "content-on-the-line": ("--- {a: 1}\n--- # c\nb: 2\n", [(1, 1, {"a": 1}), (2, 2, {"b": 2})]),
    "crlf": ("a: 1\r\n---\r\nb: 2\r\n", [(1, 1, {"a": 1}), (2, 2, {"b": 2})]),
    "dashes-in-a-block-scalar": ("a: |\n  x\n  ---\n", [(1, 1, {"a": "x\n---\n"})]),
    "json": ('{"a": 1}', [(1, 1, {"a": 1})]),
    "json-in-a-row": ('{"a": 1}\n\n{"b": 2}{"c": 3}\n', [(1, 1, {"a": 1}), (2, 3, {"b": 2}), (3, 3, {"c": 3})]),
    "json-after-yaml": ('a: 1\n---\n{"b": 2}\n', [(1, 1, {"a": 1}), (2, 2, {"b": 2})]),
    "flow-yaml": ("{a: 1}\n---\n{b: 2}\n", [(1, 1, {"a": 1}), (2, 2, {"b": 2})]),
    "json-beyond-yaml": (
        '{"a": "\\ud83d\\ude00", "b": 1e3, "c": "\x7f"}',
        [(1, 1, {"a": "😀", "b": 1000, "c": "\x7f"})],
    ),
    "nothing": ("", []),
}


@pytest.mark.parametrize(("text", "parts"), SPLITS.values(), ids=SPLITS)
def test_files_are_split_as_kubectl_splits_them(text: str, parts: list[tuple[int, int, Any]]) -> None:
    assert [(document.number, document.line, document.data) for document in documents(text)] == parts


UNREADABLE: dict[str, tuple[bytes, int, int, str]] = {
    "not-utf-8": (b"a: 1\nb: \xff\n", 2, 4, "byte 0xff is not UTF-8"),
    "control-character": (b"a: 1\n---\nb: \x01\n", 3, 4, "the character '\\x01' is not allowed"),
    "no-yaml": (b"a: 1\n---\nb: 2\nc: [\n", 5, 1, "did not find expected node content while parsing a flow node"),
    "template": (
        b"a: 1\n---\nb:\n  {{ toYaml . }}\n",
        4,
        4,
        "a key must be a string, a number or a boolean; render a template first",
    ),
    "list": (b"# c\n- a\n", 2, 1, "the document is a list, not a mapping with apiVersion and kind"),
    "string": (b"a: 1\n---\njust text\n", 3, 1, "the document is a string, not a mapping with apiVersion and kind"),
    "number": (b"1\n", 1, 1, "the document is a number, not a mapping with apiVersion and kind"),
    "boolean": (b"on\n", 1, 1, "the document is a boolean, not a mapping with apiVersion and kind"),
    "json-half-a-character": (b'{"a": "\\ud83d"}', 1, 1, "str is not valid UTF-8: surrogates not allowed"),
    "json-not-a-number": (b'{"a": "\\ud83d\\ude00", "b": NaN}', 1, 1, "NaN is not a JSON value"),
    "json-deep": (b'{"a":' * 201 + b"1" + b"}" * 201, 1, 1001, "values are nested deeper than 200 levels"),
    "json-deep-with-escapes": (
        b'{"e": "\\ud83d\\ude00", "a": ' * 300 + b"1" + b"}" * 300,
        1,
        1,
        "Recursion limit reached",
    ),
    "json-too-deep-for-python": (b'{"a":' * 100_000, 1, 1001, "values are nested deeper than 200 levels"),
}


@pytest.mark.parametrize(("content", "line", "column", "problem"), UNREADABLE.values(), ids=UNREADABLE)
def test_an_invalid_manifest_is_reported_with_line_and_column(
    content: bytes, line: int, column: int, problem: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        documents(content)
    assert (caught.value.line, caught.value.column, caught.value.problem) == (line, column, problem)


def nested(path: tuple[str | int, ...], template: Any) -> Any:
    """An object that holds a template at a path; `*` is one item or member."""
    if not path:
        return template
    inner = nested(path[1:], template)
    return [inner] if path[0] == "*" else {path[0]: inner}


HOLDING = [key for key, each in KINDS_WITH_PODS.items() if each.templates]


@pytest.mark.parametrize(("group", "kind"), HOLDING, ids=[f"{kind}-{group}" for group, kind in HOLDING])
def test_every_kind_shows_its_pod_templates(group: str, kind: str) -> None:
    for path in KINDS_WITH_PODS[group, kind].templates:
        version = f"{group}/v9" if group else "v1"
        text = json.dumps({"apiVersion": version, "kind": kind, **nested(path, POD)})
        (manifest,) = manifests(documents(text)[0])
        ((found, template),) = manifest.pod_templates()
        assert found == tuple(0 if step == "*" else step for step in path)
        assert template["spec"] == POD["spec"]


@pytest.mark.parametrize(
    ("kind", "spec", "paths"),
    [
        (
            "kubeflow.org/v1 MPIJob",
            {"mpiReplicaSpecs": {"Launcher": {"template": POD}, "Worker": {"template": POD}}},
            ["spec.mpiReplicaSpecs.Launcher.template", "spec.mpiReplicaSpecs.Worker.template"],
        ),
        (
            "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet",
            {"leaderWorkerTemplate": {"leaderTemplate": None, "workerTemplate": POD}},
            ["spec.leaderWorkerTemplate.workerTemplate"],
        ),
        (
            "ray.io/v1 RayJob",
            {
                "rayClusterSpec": {"headGroupSpec": {"template": POD}, "workerGroupSpecs": [{"template": POD}] * 2},
                "submitterPodTemplate": POD,
            },
            [
                "spec.rayClusterSpec.headGroupSpec.template",
                "spec.rayClusterSpec.workerGroupSpecs[0].template",
                "spec.rayClusterSpec.workerGroupSpecs[1].template",
                "spec.submitterPodTemplate",
            ],
        ),
        ("batch.volcano.sh/v1alpha1 Job", {"tasks": [{"template": POD}]}, ["spec.tasks[0].template"]),
        ("example.com/v1 Job", {"template": POD}, []),
        ("apps/v1 Deployment", {"template": "nonsense"}, []),
        ("apps/v1 Deployment", "nonsense", []),
    ],
    ids=["replicas-by-role", "without-a-leader", "ray-groups", "volcano", "other-group", "no-template", "no-spec"],
)
def test_templates_have_the_paths_of_the_object(kind: str, spec: Any, paths: list[str]) -> None:
    version, _, name = kind.partition(" ")
    (manifest,) = manifests(documents(json.dumps({"apiVersion": version, "kind": name, "spec": spec}))[0])
    assert [path_text(path) for path, _ in manifest.pod_templates()] == paths


def test_the_items_of_lists_are_objects_of_their_own() -> None:
    item = {"metadata": {"name": "p", "namespace": "n"}, "spec": {}}
    typed = {"apiVersion": "v1", "kind": "PodList", "items": [item, "nonsense"]}
    plain = {"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Pod", **item}, typed]}
    found = list(manifests(documents(json.dumps(plain))[0]))
    assert [(path_text(manifest.path), str(manifest)) for manifest in found] == [
        ("items[0]", "Pod n/p"),
        ("items[1].items[0]", "Pod n/p"),
    ]
    assert found[1].data["apiVersion"] == "v1"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("kind: Pod\nmetadata: {name: a, namespace: b}", "Pod b/a"),
        ("kind: Pod\nmetadata: {name: a}", "Pod a"),
        ("kind: Pod\nmetadata: {generateName: a-}", "Pod a-*"),
        ("kind: Pod\nmetadata: {name: no, namespace: 1}", "Pod"),
        ("kind: Pod\nmetadata: x", "Pod"),
        ("kind: [Pod]\napiVersion: 1", ""),
    ],
    ids=["namespaced", "plain", "generated", "not-strings", "no-metadata", "no-kind"],
)
def test_objects_are_shown_by_kind_and_name(text: str, shown: str) -> None:
    (manifest,) = manifests(documents(text)[0])
    assert str(manifest) == shown


TEXT = """# head
---
kind: Pod
spec:
  containers:
  - name: main
    resources: &r
      limits:
        aws.amazon.com/neuron: 7
  - name: side
    resources: *r
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("spec.containers[0].resources.limits[aws.amazon.com/neuron]", 9),
        ("spec.containers[1].resources.limits[aws.amazon.com/neuron]", 11),
        ("spec.containers[1]", 10),
        ("spec.containers[7].resources", 5),
        ("metadata.annotations[neuron.aws.com/convert]", 3),
        ("", 3),
    ],
    ids=["exact", "behind-an-alias", "item", "no-such-item", "nothing-of-it", "object"],
)
def test_a_path_has_the_line_of_its_nearest_node(path: str, line: int) -> None:
    document = documents(TEXT)[-1]
    assert document.line_of(path_steps(path)) == line


def test_a_path_in_json_beyond_yaml_has_the_line_of_its_object() -> None:
    document = documents('{}\n{"a": "\\ud83d\\ude00"}\n')[-1]
    assert document.line_of(("a",)) == 2


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("spec.containers[0].resources", ("spec", "containers", "0", "resources")),
        ("limits[aws.amazon.com/neuron]", ("limits", "aws.amazon.com/neuron")),
        ("", ()),
    ],
)
def test_field_paths_become_steps_and_text_again(text: str, steps: tuple[str, ...]) -> None:
    assert path_steps(text) == steps
    assert path_text(steps) == text
