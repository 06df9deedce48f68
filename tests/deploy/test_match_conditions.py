"""The chart's matchConditions: which objects the API server sends to the webhook."""

import copy
from typing import Any

import helm_python as helm
import pytest

from kubecel.budget import Budget
from kubecel.compile import Cel
from kubecel.types import BOOL, DYN
from kubecel_tests.evaluating import frozen_clock
from tests.deploy.charts import EVERYTHING, Object, find, render


def test_the_classes_of_the_release_are_not_sent() -> None:
    extra = {"a.example.com": {}, "b.example.com": {}}
    for values, names in [
        ({}, "['neuron.aws.com']"),
        ({"deviceClasses": {"extra": extra}}, "['neuron.aws.com', 'a.example.com', 'b.example.com']"),
    ]:
        claims = find(render(values), "ValidatingWebhookConfiguration")["webhooks"][0]
        condition = claims["matchConditions"][-1]
        assert condition["expression"].endswith(f"in {names})")
    none = {"deviceClasses": {"default": {"enabled": False}}}
    claims = find(render(none), "ValidatingWebhookConfiguration")["webhooks"][0]
    assert [each["name"] for each in claims["matchConditions"]] == ["neuron", "changed"]


def conditions(values: Object, kind: str = "ValidatingWebhookConfiguration") -> dict[str, str]:
    """CEL of every matchCondition, by `entry/name`."""
    return {
        f"{entry['name'].partition('.')[0]}/{each['name']}": each["expression"]
        for entry in find(render(values), kind)["webhooks"]
        for each in entry.get("matchConditions", ())
    }


def holds(expression: str, old: Object | None, new: Object) -> bool:
    """What the API server would evaluate a matchCondition to."""
    names = ("object", "oldObject", "request")
    program = Cel().compile(expression, dict.fromkeys(names, DYN), result=BOOL)
    request = {"kind": {"group": "", "kind": "Pod"}, "resource": {"resource": "pods"}}
    values = {"object": new, "oldObject": old, "request": request}
    return bool(program.evaluate(values, Budget(frozen_clock)))


def altered(obj: Object, *path: str, value: Any) -> Object:
    """A copy with one value; None removes it."""
    made = copy.deepcopy(obj)
    parent = made
    for key in path[:-1]:
        parent = parent.setdefault(key, {})
    if value is None:
        parent.pop(path[-1], None)
    else:
        parent[path[-1]] = value
    return made


CONVERTED: Object = {
    "metadata": {
        "labels": {"neuron.aws.com/converted": "true"},
        "annotations": {"neuron.aws.com/converted-from": "{}"},
        "finalizers": ["a.example.com/b"],
    },
    "spec": {"containers": [{"name": "a", "image": "b"}]},
}


@pytest.mark.parametrize(
    ("new", "sent"),
    [
        pytest.param(altered(CONVERTED, "metadata", "finalizers", value=None), False, id="finalizers"),
        pytest.param(altered(CONVERTED, "metadata", "ownerReferences", value=[{"uid": "a"}]), False, id="owners"),
        pytest.param(altered(CONVERTED, "status", value={"phase": "Failed"}), False, id="status"),
        pytest.param(altered(CONVERTED, "metadata", "labels", value=None), True, id="no labels"),
        pytest.param(altered(CONVERTED, "metadata", "labels", "a", value="b"), True, id="label"),
        pytest.param(altered(CONVERTED, "metadata", "annotations", value={}), True, id="no annotations"),
        pytest.param(altered(CONVERTED, "metadata", "annotations", "a", value="b"), True, id="annotation"),
        pytest.param(altered(CONVERTED, "spec", "nodeName", value="n"), True, id="spec"),
        pytest.param(altered(CONVERTED, "template", value={"spec": {}}), True, id="template"),
    ],
)
def test_updates_that_only_controllers_make_are_not_sent(new: Object, sent: bool) -> None:
    both = conditions(EVERYTHING, "MutatingWebhookConfiguration") | conditions(EVERYTHING)
    found = {name: text for name, text in both.items() if name.endswith("/changed")}
    assert sorted(found) == ["claims/changed", "mutate/changed", "pods/changed", "workloads/changed"]
    assert {holds(text, CONVERTED, new) for text in found.values()} == {sent}
    assert {holds(text, None, new) for text in found.values()} == {True}


LEGACY: Object = {
    "metadata": {},
    "spec": {"containers": [{"name": "a", "resources": {"limits": {"aws.amazon.com/neuron": "1"}}}]},
}


@pytest.mark.parametrize(
    ("old", "new", "sent"),
    [
        pytest.param(None, LEGACY, True, id="creation"),
        pytest.param(None, CONVERTED, True, id="creation with the label"),
        pytest.param(None, altered(LEGACY, "spec", value={"containers": []}), False, id="creation without Neuron"),
        pytest.param(LEGACY, altered(LEGACY, "metadata", "annotations", value={"a": "b"}), False, id="not converted"),
        pytest.param(
            LEGACY, altered(LEGACY, "metadata", "labels", value=CONVERTED["metadata"]["labels"]), False, id="forged"
        ),
        pytest.param(CONVERTED, altered(CONVERTED, "metadata", "labels", value=None), True, id="label removed"),
        pytest.param(CONVERTED, altered(LEGACY, "metadata", "labels", "a", value="b"), True, id="applied again"),
    ],
)
def test_updates_of_pods_that_were_not_converted_are_not_sent(old: Object | None, new: Object, sent: bool) -> None:
    expression = conditions({}, "MutatingWebhookConfiguration")["mutate/neuron"]
    assert holds(expression, old, new) is sent


@pytest.mark.parametrize(
    ("values", "classes"),
    [
        ({}, "['neuron.aws.com']"),
        ({"admission": {"deviceClasses": ["trainium", "neuron.aws.com"]}}, "['trainium', 'neuron.aws.com']"),
        ({"conversion": {"deviceClass": "trn.example.com"}}, "['neuron.aws.com', 'trn.example.com']"),
        ({"deviceClasses": {"extra": {"own.example.com": {}}}}, "['neuron.aws.com', 'own.example.com']"),
    ],
    ids=["default", "listed", "converted", "made"],
)
def test_values_set_the_classes_with_neuron_devices(values: Object, classes: str) -> None:
    assert conditions(values)["claims/neuron"].count(f" in {classes}") == 2


def test_a_listed_name_cannot_break_out_of_the_expression() -> None:
    with pytest.raises(helm.HelmValuesError, match="/admission/deviceClasses/0"):
        render({"admission": {"deviceClasses": ["x'] || ['"]}})
    with pytest.raises(helm.HelmValuesError, match="/admission/extendedResources/0"):
        render({"admission": {"extendedResources": ["a.b/x'] || ['"]}})


@pytest.mark.parametrize(
    ("values", "every"),
    [
        ({}, False),
        ({"policies": {"packs": ["device-limit"]}}, True),
        ({"policies": {"existingConfigMap": "mine"}}, True),
        ({"policies": {"packs": ["device-limit"]}, "admission": {"workloads": {"scope": "Neuron"}}}, False),
        ({"admission": {"workloads": {"scope": "All"}}}, True),
    ],
    ids=["default", "pack", "config map", "Neuron", "All"],
)
def test_every_pod_with_claims_is_sent_if_there_are_policies(values: Object, every: bool) -> None:
    expression = conditions(values)["pods/claims"]
    assert ("request.kind.kind != 'Pod'" in expression) is every
    assert "name.contains('neuron')" in expression
    assert ("tolerations" in expression) is not every


@pytest.mark.parametrize("scope", ["Neuron", "All"])
def test_pods_with_extended_resources_of_neuron_are_sent(scope: str) -> None:
    values = {
        "admission": {"workloads": {"scope": scope}, "extendedResources": ["example.com/trn"]},
        "deviceClasses": {
            "default": {"extendedResourceName": "example.com/accelerator"},
            "extra": {"mine": {"extendedResourceName": "example.com/mine"}, "none": {}},
        },
    }
    expression = conditions(values)["pods/claims"]
    assert "name.startsWith('deviceclass.resource.kubernetes.io/')" in expression
    assert "name.contains('neuron')" in expression
    assert "name in ['example.com/accelerator', 'example.com/mine', 'example.com/trn']" in expression
    mutating = conditions(values, "MutatingWebhookConfiguration")
    assert not any("deviceclass.resource" in each for each in mutating.values())


TEMPLATES = "kind: ClaimTemplate\nspec: {template: {metadata: {name: l-trn2}}}\n---\nkind: ClaimTemplate\n"


@pytest.mark.parametrize(
    ("values", "sent"),
    [
        pytest.param({}, set(), id="none"),
        pytest.param({"claimTemplates": ["xl-trn2"]}, {"xl-trn2", "annotation"}, id="listed"),
        pytest.param({"files": {"a.yaml": TEMPLATES}}, {"l-trn2", "annotation"}, id="in a file"),
        pytest.param(
            {"files": {"a.yaml": TEMPLATES}, "claimTemplates": ["xl-trn2", "l-trn2"]},
            {"xl-trn2", "l-trn2", "annotation"},
            id="both",
        ),
    ],
)
def test_new_pods_that_name_a_template_are_sent(values: Object, sent: set[str]) -> None:
    expression = conditions({"policies": values}, "MutatingWebhookConfiguration")["mutate/neuron"]
    found = {
        "annotation": {"metadata": {"annotations": {"neuron.aws.com/template": "a"}}, "spec": {}},
        "other annotation": {"metadata": {"annotations": {"a": "b"}}, "spec": {"resourceClaims": []}},
        "claim": {"metadata": {}, "spec": {"resourceClaims": [{"name": "xl-trn2", "resourceClaimName": "xl-trn2"}]}},
    }
    for name in ("xl-trn2", "l-trn2"):
        claims = [{"name": "a", "resourceClaimName": "b"}, {"name": "b", "resourceClaimTemplateName": name}]
        found[name] = {"metadata": {}, "spec": {"resourceClaims": claims}}
    assert {name for name, each in found.items() if holds(expression, None, each)} == sent
    assert not any(holds(expression, each, each) for each in found.values())


def test_rights_are_widened_only_with_such_templates() -> None:
    for values, verbs in (({}, set()), ({"policies": {"claimTemplates": ["a"]}}, {"delete"})):
        rules = find(render(values), "ClusterRole")["rules"]
        allowed = {verb for rule in rules if rule["resources"] == ["resourceclaimtemplates"] for verb in rule["verbs"]}
        assert allowed == {"get", "list", "watch", "create", "patch", *verbs}
