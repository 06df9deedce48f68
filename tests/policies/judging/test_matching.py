"""Rules and selectors match as in the API server."""

from typing import Any

import pytest

from policies.judging.matching import matches, pod_matches, selects
from policies.judging.subjects import of_object, plural
from policies.schema.base import LabelSelector, MatchResources
from policies.schema.kinds import PodMatch

RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
LABELS = {"app": "a", "tier": "b"}


def selector(**fields: Any) -> LabelSelector:
    return LabelSelector.model_validate(fields)


@pytest.mark.parametrize(
    ("fields", "selected"),
    [
        pytest.param({}, True, id="empty"),
        pytest.param({"matchLabels": {"app": "a"}}, True, id="label"),
        pytest.param({"matchLabels": {"app": "b"}}, False, id="other-value"),
        pytest.param({"matchLabels": {"none": "b"}}, False, id="no-label"),
        *(
            pytest.param(
                {"matchExpressions": [{"key": key, "operator": operator, "values": values}]},
                selected,
                id=f"{operator}-{key}-{''.join(values)}",
            )
            for key, operator, values, selected in (
                ("app", "In", ["a", "c"], True),
                ("app", "In", ["c"], False),
                ("none", "In", ["c"], False),
                ("app", "NotIn", ["a"], False),
                ("none", "NotIn", ["a"], True),
                ("app", "Exists", [], True),
                ("none", "Exists", [], False),
                ("app", "DoesNotExist", [], False),
                ("none", "DoesNotExist", [], True),
            )
        ),
    ],
)
def test_label_selector(fields: dict[str, Any], *, selected: bool) -> None:
    assert selects(selector(**fields), LABELS) is selected


def data(kind: str = "Pod", version: str = "v1", **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "x", **metadata}}


@pytest.mark.parametrize(
    ("match", "body", "matched"),
    [
        pytest.param({"resourceRules": [RULE]}, data(), True, id="rule"),
        pytest.param({"resourceRules": [{**RULE, "operations": ["UPDATE"]}]}, data(), False, id="operation"),
        pytest.param({"resourceRules": [{**RULE, "operations": ["*"]}]}, data(), True, id="any-operation"),
        pytest.param({"resourceRules": [{**RULE, "apiGroups": ["apps"]}]}, data(), False, id="group"),
        pytest.param({"resourceRules": [{**RULE, "apiGroups": ["*"]}]}, data("Pod", "x/v1"), True, id="any-group"),
        pytest.param({"resourceRules": [{**RULE, "apiVersions": ["v2"]}]}, data(), False, id="version"),
        pytest.param({"resourceRules": [{**RULE, "resources": ["*"]}]}, data(), True, id="any-resource"),
        pytest.param({"resourceRules": [{**RULE, "resources": ["pods/*"]}]}, data(), True, id="any-subresource"),
        pytest.param({"resourceRules": [{**RULE, "resources": ["pods/status"]}]}, data(), False, id="subresource"),
        pytest.param({"resourceRules": [{**RULE, "resources": ["*/*"]}]}, data(), True, id="everything"),
        pytest.param({"resourceRules": [{**RULE, "resourceNames": ["y"]}]}, data(), False, id="name"),
        pytest.param({"resourceRules": [{**RULE, "scope": "Cluster"}]}, data(), False, id="scope"),
        pytest.param({"resourceRules": [{**RULE, "scope": "Namespaced"}]}, data(), True, id="namespaced"),
        pytest.param(
            {"resourceRules": [RULE], "excludeResourceRules": [{**RULE, "resourceNames": ["x"]}]},
            data(),
            False,
            id="excluded",
        ),
        pytest.param({"objectSelector": {"matchLabels": {"a": "b"}}}, data(labels={"a": "b"}), True, id="object"),
        pytest.param({"objectSelector": {"matchLabels": {"a": "b"}}}, data(), False, id="other-object"),
        pytest.param(
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "n"}}},
            data(namespace="n"),
            True,
            id="namespace",
        ),
        pytest.param({"namespaceSelector": {"matchLabels": {"a": "b"}}}, data(), False, id="other-namespace"),
        pytest.param(
            {"namespaceSelector": {"matchLabels": {"a": "b"}}},
            data("DeviceClass", "resource.k8s.io/v1"),
            True,
            id="cluster-scoped",
        ),
        pytest.param(
            {"namespaceSelector": {"matchLabels": {"a": "b"}}},
            data("Namespace", labels={"a": "b"}),
            True,
            id="a-namespace-by-its-own-labels",
        ),
    ],
)
def test_match_resources(match: dict[str, Any], body: dict[str, Any], *, matched: bool) -> None:
    assert matches(MatchResources.model_validate(match), of_object(body)) is matched


def test_an_update_matches_by_its_old_labels_too() -> None:
    match = MatchResources.model_validate({"objectSelector": {"matchLabels": {"a": "b"}}})
    assert matches(match, of_object(data(), operation="UPDATE", old_object=data(labels={"a": "b"})))


@pytest.mark.parametrize(
    ("kind", "resource"),
    [("Pod", "pods"), ("Ingress", "ingresses"), ("NetworkPolicy", "networkpolicies"), ("DeviceClass", "deviceclasses")],
)
def test_the_resource_of_a_kind_is_guessed_as_kubectl_does(kind: str, resource: str) -> None:
    assert plural(kind) == resource


@pytest.mark.parametrize(
    ("pattern", "namespace", "expected"),
    [
        ("team-a", "team-a", True),
        ("team-a", "team-ab", False),
        ("team-*", "team-a", True),
        ("team-*", "team-", True),
        ("team-*", "steam-a", False),
        ("*-prod", "a-prod", True),
        ("a*b*c", "axxbyyc", True),
        ("a*b*c", "axxcyyb", False),
        ("a*a", "a", False),
        ("*", "anything", True),
    ],
)
def test_patterns_of_namespaces(pattern: str, namespace: str, expected: bool) -> None:
    subject = of_object({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": namespace}})
    assert pod_matches(PodMatch.model_validate({"namespaces": [pattern]}), subject) is expected
