"""Node selection and taints, as the scheduler reads them."""

from typing import Any

import pytest

from commands.explain import node_fit
from neuron.api.device_taints import DeviceTaint

NODE: dict[str, Any] = {
    "metadata": {"name": "node-1", "labels": {"disk": "ssd", "cores": "128", "zone": "a"}},
    "spec": {},
}


def requirement(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


@pytest.mark.parametrize(
    ("term", "meets"),
    [
        (requirement("disk", "In", "ssd", "nvme"), True),
        (requirement("disk", "In", "hdd"), False),
        (requirement("other", "In", ""), False),
        (requirement("disk", "NotIn", "hdd"), True),
        (requirement("other", "NotIn", "hdd"), True),
        (requirement("disk", "NotIn", "ssd"), False),
        (requirement("disk", "Exists"), True),
        (requirement("other", "Exists"), False),
        (requirement("disk", "DoesNotExist"), False),
        (requirement("other", "DoesNotExist"), True),
        (requirement("cores", "Gt", "64"), True),
        (requirement("cores", "Gt", "128"), False),
        (requirement("cores", "Lt", "129"), True),
        (requirement("disk", "Gt", "1"), False),
        (requirement("other", "Lt", "1"), False),
        (requirement("cores", "Gt", "many"), False),
        (requirement("disk", "Like", "s"), False),
    ],
)
def test_every_operator(term: dict[str, Any], meets: bool) -> None:
    assert node_fit.unmet_terms([{"matchExpressions": [term]}], NODE) == ([] if meets else [term])


def test_terms_are_alternatives_and_the_closest_is_told() -> None:
    far = {"matchExpressions": [requirement("disk", "In", "hdd"), requirement("zone", "In", "b")]}
    near = {"matchExpressions": [requirement("disk", "In", "ssd"), requirement("zone", "In", "b")]}
    assert node_fit.unmet_terms([far, near], NODE) == [requirement("zone", "In", "b")]
    assert node_fit.unmet_terms([far, {"matchExpressions": [requirement("zone", "In", "a")]}], NODE) == []


def test_an_empty_term_matches_no_node() -> None:
    assert node_fit.unmet_terms([{}], NODE)
    assert node_fit.unmet_terms([], NODE)


def test_fields_are_those_of_the_node() -> None:
    fields = [requirement("metadata.name", "In", "node-1")]
    assert node_fit.unmet_terms([{"matchFields": fields}], NODE) == []
    other = [requirement("metadata.name", "In", "node-2")]
    assert node_fit.unmet_terms([{"matchFields": other}], NODE) == other


def test_node_selector_and_affinity_are_both_required() -> None:
    terms = [{"matchExpressions": [requirement("zone", "In", "b")]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    pod = {"spec": {"nodeSelector": {"disk": "hdd"}, "affinity": affinity}}
    assert [each["key"] for each in node_fit.unmet_selection(pod, NODE)] == ["disk", "zone"]
    assert node_fit.unmet_selection({"spec": {"nodeSelector": {"disk": "ssd"}}}, NODE) == []


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        (None, False),
        ({"operator": "Exists"}, True),
        ({"key": "team", "operator": "Exists"}, True),
        ({"key": "team", "value": "b"}, True),
        ({"key": "team", "operator": "Equal", "value": "c"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "team", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "team", "operator": "Exists", "effect": "NoSchedule"}, True),
    ],
)
def test_tolerations(toleration: dict[str, Any] | None, tolerated: bool) -> None:
    taint = {"key": "team", "value": "b", "effect": "NoSchedule"}
    node = {**NODE, "spec": {"taints": [taint]}}
    pod = {"spec": {"tolerations": [toleration] if toleration else None}}
    assert node_fit.untolerated(pod, node) == ([] if tolerated else [taint])


def test_a_preference_keeps_nothing_away() -> None:
    node = {**NODE, "spec": {"taints": [{"key": "team", "effect": "PreferNoSchedule"}]}}
    assert node_fit.untolerated({"spec": {}}, node) == []


def test_a_cordoned_node_has_the_taint_of_kubernetes() -> None:
    node = {**NODE, "spec": {"unschedulable": True}}
    assert [each["key"] for each in node_fit.untolerated({"spec": {}}, node)] == [node_fit.UNSCHEDULABLE]
    pod = {"spec": {"tolerations": [{"key": node_fit.UNSCHEDULABLE, "operator": "Exists"}]}}
    assert node_fit.untolerated(pod, node) == []


@pytest.mark.parametrize(
    ("term", "text"),
    [
        (requirement("disk", "In", "ssd", "nvme"), "disk in (ssd, nvme)"),
        (requirement("disk", "NotIn", "hdd"), "disk not in (hdd)"),
        (requirement("disk", "Exists"), "disk exists"),
        (requirement("disk", "DoesNotExist"), "disk does not exist"),
        (requirement("cores", "Gt", "64"), "cores Gt 64"),
    ],
)
def test_requirements_in_words(term: dict[str, Any], text: str) -> None:
    assert node_fit.requirement_text(term) == text


def test_taints_in_words() -> None:
    assert node_fit.taint_text(DeviceTaint("a")) == "a:NoSchedule"
    assert node_fit.taint_text(DeviceTaint("a", "b", "NoExecute")) == "a=b:NoExecute"
