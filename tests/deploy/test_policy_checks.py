"""A policy that denies objects which the API server does not send is an error of the chart, with the value to set."""

import re

import helm_python as helm
import pytest
import yaml

from policies.files.loader import load
from policies.judging.coverage import needed_rules, pod_conditions
from tests.deploy.charts import Object, find, render
from tests.policies.test_packs import FOLDER
from tests.policies.test_packs import PACKS as SHIPPED

PACKS = {rule.name: rule for rule in SHIPPED}


def denying(name: str) -> Object:
    """A copy of a pack with another action, also in its cases."""
    text = (FOLDER / f"{name}.yaml").read_text().replace("validationActions: [Audit]", "validationActions: [Deny]")
    text = text.replace("expect: Audit", "expect: Deny")
    return {"policies": {"files": {f"deny-{name}.yaml": text}}}


def needs(name: str) -> Object:
    """What `policy rules -o values` prints."""
    rule = PACKS[name]
    return {
        "extraRules": needed_rules([rule]),
        "podConditions": [each.expression for each in pod_conditions([rule])],
    }


def sent(values: Object) -> str:
    """The condition for pods without claims."""
    entries = find(render(values), "ValidatingWebhookConfiguration")["webhooks"]
    pods = next(each for each in entries if each["name"] == "pods.validate.neuron.aws.com")
    return next(str(each["expression"]) for each in pods["matchConditions"] if each["name"] == "claims")


@pytest.mark.parametrize("name", PACKS)
def test_a_pack_with_deny_renders_only_with_the_values_that_the_command_prints(name: str) -> None:
    """The text that the chart reads, and the analysis of the command, agree about all packs."""
    values, wanted = denying(name), needs(name)
    if wanted["extraRules"]:
        with pytest.raises(
            helm.HelmRenderError, match=rf"policies\.files: the policy {name} in deny-{name}\.yaml denies"
        ):
            render({**values, "validation": {"podConditions": wanted["podConditions"]}})
    if wanted["podConditions"]:
        said = re.escape("Add this condition to validation.podConditions, or change validationActions: ")
        with pytest.raises(helm.HelmRenderError, match=said) as caught:
            render({**values, "validation": {"extraRules": wanted["extraRules"]}})
        assert wanted["podConditions"][0] in str(caught.value)
    written = sent({**values, "validation": wanted})
    for condition in wanted["podConditions"]:
        assert f"|| (request.kind.kind == 'Pod' && ({condition}))" in written


@pytest.mark.parametrize("name", PACKS)
def test_a_copy_with_deny_passes_its_cases(name: str) -> None:
    files = {file: text.encode() for file, text in denying(name)["policies"]["files"].items()}
    assert [rule.name for rule in load(files).validating] == [name]


@pytest.mark.parametrize("name", PACKS)
def test_a_pack_that_audits_renders(name: str) -> None:
    assert render({"policies": {"packs": [name]}})


def test_only_some_packs_need_pods_without_claims() -> None:
    assert [each.policy for each in pod_conditions(PACKS.values())] == ["host-devices", "privileged"]


@pytest.mark.parametrize("scope", ["All", "Neuron"])
def test_conditions_hold_in_every_scope(scope: str) -> None:
    condition = "object.spec.?hostNetwork.orValue(false)\n  || false"
    values = {"admission": {"workloads": {"scope": scope}}, "validation": {"podConditions": [condition]}}
    assert "|| (request.kind.kind == 'Pod' && (object.spec.?hostNetwork.orValue(false) || false))" in sent(values)


POLICY = {
    "apiVersion": "policy.neuron.aws.com/v1alpha1",
    "kind": "ValidatingPolicy",
    "metadata": {"name": "mine"},
    "spec": {
        "matchConstraints": {
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
            ]
        },
        "validations": [{"expression": "object.spec.hostNetwork != true", "message": "no"}],
    },
}


def with_policy(**spec: object) -> Object:
    text = yaml.safe_dump({"kind": "Other"}) + "---\n" + yaml.safe_dump({**POLICY, "spec": {**POLICY["spec"], **spec}})
    return {"policies": {"files": {"mine.yaml": text}}}


def test_a_policy_without_conditions_needs_every_pod() -> None:
    """It is in the second document, and Deny is the default."""
    with pytest.raises(helm.HelmRenderError, match="change validationActions: true"):
        render(with_policy())
    assert render({**with_policy(), "validation": {"podConditions": ["true"]}})
    assert render(with_policy(validationActions=["Warn"]))
    assert render(with_policy(validations=[{"expression": "neuron.devices < 5", "message": "no"}]))
    every = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"], "scope": "*"}
    assert render({**with_policy(), "validation": {"extraRules": [every]}})


def test_several_conditions_of_a_policy_are_one() -> None:
    conditions = [
        {"name": "a", "expression": "object.spec.hostNetwork"},
        {"name": "b", "expression": "namespaceObject.metadata.name != 'x'"},
        {"name": "c", "expression": "object.spec.hostIPC"},
    ]
    values = with_policy(matchConditions=conditions)
    wanted = "(object.spec.hostNetwork) && (object.spec.hostIPC)"
    with pytest.raises(helm.HelmRenderError, match=re.escape(wanted)):
        render(values)
    assert render({**values, "validation": {"podConditions": [wanted]}})
