"""The chart stores what it renders, and each difference of an entry from it is found."""

import copy
import json
from typing import Any

import pytest

from cluster.kinds.rendered_entries import (
    CONFIG_MAP,
    MUTATING,
    VALIDATING,
    RenderedEntriesError,
    differences,
    read_rendered,
)
from tests.deploy.charts import EVERYTHING, find, render

NOTHING = {"admission": {part: {"enabled": False} for part in ("conversion", "claims", "workloads")}}


@pytest.mark.parametrize(
    ("values", "kinds"),
    [
        pytest.param({}, {MUTATING, VALIDATING}, id="default"),
        pytest.param(EVERYTHING, {MUTATING, VALIDATING}, id="everything"),
        pytest.param({"admission": {"conversion": {"enabled": False}}}, {VALIDATING}, id="no conversion"),
        pytest.param(NOTHING, set(), id="nothing"),
    ],
)
def test_the_chart_stores_the_entries_that_it_renders(values: Any, kinds: set[str]) -> None:
    objects = render(values)
    rendered = read_rendered(find(objects, "ConfigMap", CONFIG_MAP))
    assert {kind for kind, entries in rendered.items() if entries} == kinds
    for kind in kinds:
        entries = find(objects, kind)["webhooks"]
        assert [each["name"] for each in entries] == list(rendered[kind])
        assert all("clientConfig" not in entry for entry in rendered[kind].values())
        assert [list(differences(entry, rendered[kind][entry["name"]])) for entry in entries] == [[] for _ in entries]


def test_rules_that_the_webhook_writes_are_no_difference() -> None:
    objects = render(EVERYTHING)
    name = "followed-policies.validate.neuron.aws.com"
    rendered = read_rendered(find(objects, "ConfigMap", CONFIG_MAP))[VALIDATING][name]
    assert list(differences({**rendered, "rules": [{"apiGroups": ["apps"]}]}, rendered)) == []


RENDERED: dict[str, Any] = {
    "name": "a",
    "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["pods"]}],
    "namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["x", "y"]}]},
    "matchConditions": [{"name": "one", "expression": "true"}, {"name": "two", "expression": "1 == 1"}],
    "sideEffects": "None",
    "timeoutSeconds": 5,
}


def edited(**fields: Any) -> Any:
    return copy.deepcopy(RENDERED) | fields


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(
            edited(
                failurePolicy="Fail",
                matchPolicy="Equivalent",
                objectSelector={},
                reinvocationPolicy="Never",
                rules=[RENDERED["rules"][0] | {"scope": "*"}],
            ),
            id="defaults of the API server",
        ),
        pytest.param(
            edited(
                rules=[RENDERED["rules"][0] | {"operations": ["UPDATE", "CREATE"]}],
                namespaceSelector={"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["y", "x"]}]},
                matchConditions=RENDERED["matchConditions"][::-1],
            ),
            id="another order",
        ),
        pytest.param(edited(clientConfig={"caBundle": "eA=="}), id="CA bundle"),
        pytest.param(edited(objectSelector={"matchLabels": {}, "matchExpressions": []}), id="selector that is empty"),
    ],
)
def test_the_same_behaviour_is_no_difference(entry: Any) -> None:
    assert list(differences(entry, RENDERED)) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param("failurePolicy", "Ignore", id="failurePolicy"),
        pytest.param("matchPolicy", "Exact", id="matchPolicy"),
        pytest.param("timeoutSeconds", 1, id="timeoutSeconds"),
        pytest.param("sideEffects", "Some", id="sideEffects"),
        pytest.param("reinvocationPolicy", "IfNeeded", id="reinvocationPolicy"),
        pytest.param("objectSelector", {"matchLabels": {"a": "b"}}, id="objectSelector"),
        pytest.param("namespaceSelector", {"matchLabels": {"a": "b"}}, id="namespaceSelector"),
        pytest.param("namespaceSelector", {}, id="no namespaceSelector"),
        pytest.param("matchConditions", [], id="no matchConditions"),
        pytest.param(
            "matchConditions",
            [*RENDERED["matchConditions"], {"name": "no", "expression": "false"}],
            id="one matchCondition more",
        ),
        pytest.param(
            "matchConditions",
            [{"name": "one", "expression": "false"}, RENDERED["matchConditions"][1]],
            id="another expression",
        ),
        pytest.param("rules", [], id="no rules"),
        pytest.param("rules", [RENDERED["rules"][0] | {"operations": ["CREATE"]}], id="fewer operations"),
        pytest.param("rules", [RENDERED["rules"][0] | {"scope": "Cluster"}], id="scope"),
    ],
)
def test_a_field_that_differs_is_found_with_both_values(field: str, value: Any) -> None:
    [found] = differences(edited(**{field: value}), RENDERED)
    assert (found.field, found.found or None) == (field, value or None)
    assert found.rendered == RENDERED.get(field) or field not in RENDERED


@pytest.mark.parametrize(
    ("config_map", "message"),
    [
        pytest.param({}, "ConfigMap neuron-dra-rendered has no key mutating.json", id="no data"),
        pytest.param({"data": []}, "ConfigMap neuron-dra-rendered has no key mutating.json", id="data of another type"),
        pytest.param(
            {"data": {"mutating.json": "[]"}}, "ConfigMap neuron-dra-rendered has no key validating.json", id="no key"
        ),
        pytest.param(
            {"data": {"mutating.json": "[{]"}},
            "ConfigMap neuron-dra-rendered, key mutating.json: JSON is malformed: ",
            id="no JSON",
        ),
        pytest.param(
            {"data": {"mutating.json": json.dumps([{}])}},
            "ConfigMap neuron-dra-rendered, key mutating.json: an entry has no name",
            id="no name",
        ),
        pytest.param(
            {"data": {"mutating.json": "[1]"}},
            "ConfigMap neuron-dra-rendered, key mutating.json: Expected `object`, got `int` - at `$[0]`",
            id="no object",
        ),
    ],
)
def test_a_config_map_without_entries_is_refused(config_map: Any, message: str) -> None:
    with pytest.raises(RenderedEntriesError) as error:
        read_rendered(config_map)
    assert str(error.value).startswith(message)
