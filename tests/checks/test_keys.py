import json
from typing import Any

import pytest

from checks.words import SETTINGS, misspelt_keys, misspelt_keys_in, misspelt_keys_of_namespace, unread_keys
from neuron import names

LNC = names.ANNOTATION_LNC


@pytest.mark.parametrize(
    ("key", "close"),
    [
        pytest.param("neuron.aws.com/logical-neuroncore", LNC, id="word"),
        pytest.param("neuron.aws.com/logicalNeuronCore", LNC, id="camel-case"),
        pytest.param("neuron.aws.com/logical_neuron_core", LNC, id="underscores"),
        pytest.param("neuron.aws.com/lnc", LNC, id="short"),
        pytest.param("neuron.aws.com/l-n.c_2", LNC, id="short-with-other-characters"),
        pytest.param("neuron.aws.com/converts", names.ANNOTATION_CONVERT, id="letter"),
        pytest.param("neuron.aws.com/instancetype", names.ANNOTATION_INSTANCE_TYPE, id="dash"),
        pytest.param("neuron.aws.com/ultraserver-modes", names.ANNOTATION_ULTRASERVER_MODE, id="plural"),
        *(pytest.param(key, None, id=f"known {key}") for key in SETTINGS),
        pytest.param("neuron.aws.com/converted-from", None, id="record"),
        pytest.param("neuron.aws.com/workload-id", None, id="key-of-another-tool"),
        pytest.param("example.com/logical-neuroncore", None, id="other-domain"),
        pytest.param("neuron.aws.com/" + "x" * 10_000, None, id="long"),
        pytest.param("neuron.aws.com/\u00e9", None, id="unicode"),
    ],
)
def test_a_key_close_to_an_annotation_is_reported(key: str, close: str | None) -> None:
    expected = [] if close is None else [f"annotation '{key}' is not read. Did you mean {close}?"]
    metadata = {"annotations": {key: "1"}}
    for found in (misspelt_keys(metadata), misspelt_keys_in(json.dumps({"metadata": metadata}).encode())):
        findings = list(found)
        assert [each.message for each in findings] == expected
        assert all(each.code == "NEU222" and each.path == f"metadata.annotations[{key}]" for each in findings)


def test_a_label_with_the_key_of_an_annotation_is_reported() -> None:
    (found,) = misspelt_keys({"labels": {"neuron.aws.com/instance-types": "trn2.48xlarge"}})
    assert found.path == "metadata.labels[neuron.aws.com/instance-types]"
    assert found.message == (
        "label 'neuron.aws.com/instance-types' is not read. Did you mean neuron.aws.com/instance-type as an annotation?"
    )


@pytest.mark.parametrize("key", SETTINGS)
def test_a_setting_that_is_written_as_a_label_is_reported(key: str) -> None:
    """`kubectl label ns x neuron.aws.com/convert=off` looks like the opt-out and is none."""
    metadata = {"labels": {key: "off", names.LABEL_CONVERTED: "true"}}
    said = f"label '{key}' is not read. Did you mean {key} as an annotation?"
    assert [each.message for each in misspelt_keys(metadata)] == [said]
    assert [each.message for each in misspelt_keys_in(json.dumps({"metadata": metadata}).encode())] == [said]
    (found,) = misspelt_keys_of_namespace(unread_keys(metadata))
    assert found.message == f"Namespace {said}"


@pytest.mark.parametrize("field", ["labels", "annotations"])
@pytest.mark.parametrize("key", SETTINGS)
def test_a_setting_below_the_other_domain_of_aws_is_reported(key: str, field: str) -> None:
    written = key.replace("aws.com", "amazonaws.com")
    metadata = {field: {written: "off", "neuron.amazonaws.com/present": "true"}}
    verb = "" if field == "annotations" else " as an annotation"
    said = f"{field[:-1]} '{written}' is not read. Did you mean {key}{verb}?"
    assert [each.message for each in misspelt_keys(metadata)] == [said]
    assert [each.message for each in misspelt_keys_in(json.dumps({"metadata": metadata}).encode())] == [said]


def test_a_namespace_annotation_is_reported_at_its_namespace() -> None:
    metadata = {"annotations": {LNC: "1", "neuron.aws.com/convrt": "true"}}
    (found,) = misspelt_keys_of_namespace(unread_keys(metadata))
    assert (found.code, found.path) == ("NEU222", "metadata.namespace")
    assert str(found) == (
        "NEU222: Namespace annotation 'neuron.aws.com/convrt' is not read. Did you mean neuron.aws.com/convert? "
        "Correct the key, or remove it."
    )
    assert found.value == "neuron.aws.com/convrt"


@pytest.mark.parametrize("metadata", [None, 1, [], "text", {"annotations": 3, "labels": ["neuron.aws.com/lnc"]}])
def test_metadata_of_any_type_is_read(metadata: Any) -> None:
    assert list(misspelt_keys(metadata)) == []
    assert list(misspelt_keys_in(json.dumps({"metadata": metadata, "x": {"neuron.aws.com/lnc": 1}}).encode())) == []


def test_few_keys_of_a_large_object_are_compared() -> None:
    keys = {f"neuron.aws.com/lnc{number}": "" for number in range(100)}
    assert len(list(misspelt_keys({"annotations": {**keys, "neuron.aws.com/lnc": "1"}}))) <= 16
