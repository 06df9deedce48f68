"""Merging by the schemas of Kubernetes. `tests/cluster/test_mutating_policies.py` compares with an API server."""

from typing import Any

import pytest

from policies.files.api_types import ApiTypes
from policies.patching.structured_merge import DEDUCED, MergeError, merged

TYPES = ApiTypes()
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "labels": {"a": "1"}, "future": {"kept": True}},
    "spec": {
        "containers": [
            {"name": "x", "image": "i", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
            {"name": "y", "image": "j", "ports": [{"containerPort": 80, "protocol": "TCP"}]},
        ]
    },
}


def containers(*patch: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = merged(TYPES.shape("v1", "Pod"), POD, {"spec": {"containers": list(patch)}})["spec"][
        "containers"
    ]
    return found


def test_maps_and_objects_are_merged_by_key_and_unknown_fields_of_the_object_stay() -> None:
    made = merged(TYPES.shape("v1", "Pod"), POD, {"metadata": {"labels": {"b": "2"}}})
    assert made == {**POD, "metadata": {**POD["metadata"], "labels": {"a": "1", "b": "2"}}}


def test_items_are_merged_by_their_keys_in_the_order_of_the_configuration() -> None:
    made = containers({"name": "y", "image": "k"}, {"name": "new"}, {"name": "x"})
    assert [(each["name"], each.get("image")) for each in made] == [("y", "k"), ("new", None), ("x", "i")]


def test_items_that_the_configuration_does_not_name_keep_their_place() -> None:
    assert [each["name"] for each in containers({"name": "new"}, {"name": "y"})] == ["x", "new", "y"]


def test_a_key_has_the_default_of_its_type() -> None:
    made = containers({"name": "y", "ports": [{"containerPort": 80, "name": "web"}]})
    assert made[1]["ports"] == [{"containerPort": 80, "protocol": "TCP", "name": "web"}]


def test_finalizers_are_a_set() -> None:
    live = {"metadata": {"finalizers": ["a.example.com/x", "b.example.com/x"]}}
    made = merged(TYPES.shape("v1", "Pod"), live, {"metadata": {"finalizers": ["b.example.com/x", "c.example.com/x"]}})
    assert made["metadata"]["finalizers"] == ["a.example.com/x", "b.example.com/x", "c.example.com/x"]


def test_duplicates_in_the_object_are_kept() -> None:
    live = {"spec": {"containers": [{"name": "x", "env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}]}}
    patch = {"spec": {"containers": [{"name": "x", "env": [{"name": "B", "value": "3"}]}]}}
    made = merged(TYPES.shape("v1", "Pod"), live, patch)
    assert [each["value"] for each in made["spec"]["containers"][0]["env"]] == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ({"spec": {"contaners": 1}}, ".spec.contaners: PodSpec has no field 'contaners'. Did you mean 'containers'?"),
        ({"spec": {"priority": "x"}}, ".spec.priority: this must be a number, and is text"),
        ({"spec": {"priority": True}}, ".spec.priority: this must be a number, and is true or false"),
        ({"spec": {"hostNetwork": 1}}, ".spec.hostNetwork: this must be true or false, and is a number"),
        ({"spec": {"containers": {"name": "x"}}}, ".spec.containers: this must be a list, and is an object"),
        ({"spec": []}, ".spec: this must be an object, and is a list"),
        ({"metadata": {"labels": None}}, ".metadata.labels: null cannot be merged: leave the field out"),
        ({"metadata": {"labels": {"a": 1}}}, ".metadata.labels.a: this must be text, and is a number"),
        (
            {"spec": {"containers": [{"name": "a"}, {"name": "a"}]}},
            ".spec.containers[1]: the list has this item twice",
        ),
        (
            {"metadata": {"finalizers": [{"a": "b"}]}},
            ".metadata.finalizers[0]: an item of this list must be a plain value",
        ),
        (
            {"spec": {"tolerations": [{"key": "x"}], "nodeSelector": {"a": "b"}}},
            ".spec.tolerations, .spec.nodeSelector is atomic, and an apply configuration cannot change it, because it "
            "would replace all of it: use a JSONPatch",
        ),
    ],
)
def test_configurations_that_do_not_fit(patch: Any, message: str) -> None:
    with pytest.raises(MergeError) as caught:
        merged(TYPES.shape("v1", "Pod"), POD, patch)
    assert str(caught.value) == message


def test_of_a_kind_without_schema_maps_are_merged_and_lists_are_replaced() -> None:
    assert TYPES.shape("example.com/v1", "Widget") is DEDUCED
    assert merged(DEDUCED, {"spec": {"a": {"b": 1}}}, {"spec": {"a": {"c": 2}}}) == {"spec": {"a": {"b": 1, "c": 2}}}
    assert merged(DEDUCED, {"spec": {"list": [1, 2]}}, {"spec": {"list": [3]}}) == {"spec": {"list": [3]}}
