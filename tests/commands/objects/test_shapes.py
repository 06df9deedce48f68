"""A recognised document has the same result as a document that is read completely."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commands.objects import shapes, yaml_items
from commands.objects.manifests import manifests
from commands.rewrite.convert_output import as_yaml
from conversion import decide
from tests.support.converting import convert_sources, source
from tests.support.trainium import trainium
from tests.support.validating_files import validate_sources

POD = """\
apiVersion: v1
kind: {kind}
metadata:
  name: {name}
  namespace: {namespace}
  labels:
    app: {label}   # {comment}
    neuron.aws.com/converted: {converted}
  annotations:
    example.com/owner: {label}
    neuron.aws.com/logical-neuron-core: {core}
spec:
  schedulerName: {scheduler}
  containers:
  - name: {container}
    image: {image}
    command: ["sh", {word}]
    env:
    - name: {variable}
      value: {value}
    resources:
      limits:
        aws.amazon.com/neuron: {count}
"""
PLAIN = st.sampled_from(["a", "train-1", "yes", "null", "x:y", "other", "Pod", "y"])
QUOTED = st.sampled_from(['""', '"a"', '"# b"', '"{x"', '"a: b"', '"yes"', '"trn"'])
FIELDS = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["Pod", "PodTemplate", "ConfigMap"]),
        "name": PLAIN,
        "namespace": st.sampled_from(["a", "b", "kube-system"]),
        "label": PLAIN,
        "comment": PLAIN,
        "converted": st.sampled_from(['"true"', '"false"']),
        "scheduler": st.sampled_from(["my-scheduler", "volcano", "default-scheduler"]),
        "container": st.sampled_from(["main", "other"]),
        "image": PLAIN,
        "word": QUOTED,
        "variable": st.sampled_from(["RANK", "NEURON_RT_NUM_CORES"]),
        "value": QUOTED,
        "core": st.sampled_from(['"1"', "'2'", '"3"']),
        "count": st.sampled_from(["4", '"4"', "7", "1"]),
    }
)


def convert_text(text: str, *, recognise: bool) -> tuple[str, list[str], int, int]:
    with pytest.MonkeyPatch.context() as patch:
        if not recognise:
            patch.setattr(yaml_items.Look, "at", lambda _: None)
        done = convert_sources([source("f.yaml", text, kept=0)], trainium(), strict=True)
        printed = "".join(as_yaml(done.changes, lambda _: None))
    return printed, [str(each) for each in done.notices], done.refused, done.left


def validated(text: str, *, recognise: bool) -> list[Any]:
    with pytest.MonkeyPatch.context() as patch:
        if not recognise:
            patch.setattr(yaml_items.Look, "at", lambda _: None)
        return list(validate_sources([source("f.yaml", text, kept=0)], trainium()).located)


@settings(max_examples=60, deadline=None)
@given(st.lists(FIELDS, min_size=2, max_size=6))
def test_recognised_documents_are_converted_as_without_recognition(fields: list[dict[str, str]]) -> None:
    text = "---\n".join(POD.format(**each) for each in fields)
    assert convert_text(text, recognise=True) == convert_text(text, recognise=False)


@settings(max_examples=40, deadline=None)
@given(st.lists(FIELDS, min_size=2, max_size=5))
def test_recognised_documents_have_the_findings_of_full_validation(fields: list[dict[str, str]]) -> None:
    text = "---\n".join(POD.format(**each) for each in fields)
    assert validated(text, recognise=True) == validated(text, recognise=False)


SAME = {
    "kind": "Pod",
    "namespace": "a",
    "comment": "c",
    "converted": '"false"',
    "scheduler": "my-scheduler",
    "container": "main",
    "variable": "RANK",
    "core": '"1"',
    "count": "4",
}


def replicas(count: int) -> str:
    return "---\n".join(
        POD.format(**SAME, name=f"p-{n}", label=f"l{n}", image=f"image:{n}", word=f'"w{n}"', value=f'"{n}"')
        for n in range(count)
    )


def test_replicas_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    real = decide.decide_pod
    monkeypatch.setattr(decide, "decide_pod", lambda *args: calls.append(args) or real(*args))
    printed, *_ = convert_text(replicas(50), recognise=True)
    assert len(calls) == 1
    assert printed.count("resourceClaimTemplateName") == 50
    assert all(f"name: p-{n}\n" in printed and f'"w{n}"' in printed for n in range(50))


def test_the_number_of_recorded_shapes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_items, "_MOST", 2048)
    kept = shapes.Shapes[None]()
    text = "".join(f"---\napiVersion: v1\nkind: Pod\nmetadata: {{name: a{n}b}}\n" for n in range(3000))
    for document in source("f", text, kept=0).documents:
        look = yaml_items.Look.at(document.text)
        assert look is not None
        kept.record(look, document, list(manifests(document)), (), None)
    assert 0 < len(kept._results._results) <= 2048


def test_a_long_document_is_not_compared() -> None:
    assert yaml_items.Look.at("a: " + "b" * 20_000) is None
