"""ClaimTemplates as files: parameters, versions, names and problems."""

from typing import Any

import pytest

from tests.policies.policy_files import loaded, problems

POLICY = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ClaimTemplate
metadata: {name: POLICY}
spec:
  version: VERSION
  parameters: PARAMETERS
  template:
    apiVersion: RELEASE
    metadata: {name: NAME}
    spec: SPEC
"""
SPEC = "{spec: {devices: {requests: [{name: r, exactly: {deviceClassName: neuron.aws.com, count: COUNT}}]}}}"


def template_policy(
    *,
    name: str = "xl-trn2",
    version: Any = 1,
    parameters: str = "{}",
    count: Any = 16,
    spec: str = SPEC,
    api_version: str = "resource.k8s.io/v1",
    policy: str = "xl",
) -> str:
    values = {
        "VERSION": str(version),
        "PARAMETERS": parameters,
        "RELEASE": api_version,
        "NAME": name,
        "POLICY": policy,
        "SPEC": spec.replace("COUNT", str(count)),
    }
    text = POLICY
    for word, value in values.items():
        text = text.replace(word, value)
    return text


def requests(text: str) -> Any:
    (rule,) = loaded(text).templates
    return rule.template.spec["spec"]["devices"]["requests"]


def test_a_template_has_name_version_and_policy() -> None:
    (rule,) = loaded(template_policy(version=7)).templates
    made = rule.template.manifest("team-a")
    assert made["metadata"] == {
        "name": "xl-trn2",
        "namespace": "team-a",
        "labels": {"app.kubernetes.io/managed-by": "neuron-dra"},
        "annotations": {
            "neuron.aws.com/template-digest": rule.template.digest,
            "neuron.aws.com/template-version": "7",
        },
    }


def test_a_template_of_an_older_api_version_is_made_as_v1() -> None:
    flat = "{spec: {devices: {requests: [{name: r, deviceClassName: neuron.aws.com, count: 4}]}}}"
    found = requests(template_policy(spec=flat, api_version="resource.k8s.io/v1beta1"))
    assert found == [{"name": "r", "exactly": {"deviceClassName": "neuron.aws.com", "count": 4}}]


@pytest.mark.parametrize(
    ("parameters", "count", "made"),
    [
        pytest.param("{size: 8}", "$(size)", 8, id="a number stays a number"),
        pytest.param("{a: 1}", "$(a)", 1, id="one"),
    ],
)
def test_a_parameter_that_is_the_whole_text_keeps_its_type(parameters: str, count: str, made: object) -> None:
    assert requests(template_policy(parameters=parameters, count=count))[0]["exactly"]["count"] == made


def test_parameters_are_read_within_texts() -> None:
    selector = "device.attributes['neuron.aws.com'].instanceType == '$(type)' && '$$(type)' != ''"
    exactly = f'{{deviceClassName: neuron.aws.com, selectors: [{{cel: {{expression: "{selector}"}}}}]}}'
    spec = f"{{spec: {{devices: {{requests: [{{name: r, exactly: {exactly}}}]}}}}}}"
    (request,) = requests(template_policy(parameters="{type: trn2.48xlarge}", spec=spec))
    assert request["exactly"]["selectors"][0]["cel"]["expression"] == (
        "device.attributes['neuron.aws.com'].instanceType == 'trn2.48xlarge' && '$(type)' != ''"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (template_policy(version=0), "spec.version"),
        (template_policy(version="'1'"), "spec.version"),
        (template_policy(parameters="{sise: 8}", count="$(size)"), "spec.parameters has no size. Did you mean 'sise'?"),
        (template_policy(parameters="{}", count="$(size)"), "Write $$(size) for the text itself."),
        (template_policy(parameters="{size: 8}"), "spec.parameters.size is not read: write $(size) in the template"),
        (template_policy(parameters="{a b: 8}"), "spec.parameters"),
        (
            template_policy(count=17),
            "template xl-trn2 has an error at spec.spec.devices.requests[0].exactly.count: NEU521",
        ),
        (template_policy(parameters="{n: many}", count="$(n)"), "template xl-trn2 has an error at"),
        (template_policy(name="neuron-4-fdc84041cb55"), "this has the form of a generated name"),
        (template_policy(spec="[]"), "spec.template.spec"),
        (template_policy(spec="{}"), "template xl-trn2 requests no devices"),
        (template_policy(spec="{spec: null}"), "template xl-trn2 requests no devices"),
        (template_policy(spec="{spec: 5}"), "template xl-trn2"),
        (template_policy(spec="{spec: {devices: {requests: 5}}}"), "NEU502: requests is 5"),
        (
            template_policy(spec="{spec: {devices: {requests: [5]}}}", api_version="resource.k8s.io/v1beta1"),
            "requests[0] is 5",
        ),
        (template_policy() + "---" + template_policy(policy="other"), "template xl-trn2 is already in policy 'xl'"),
        (
            template_policy()
            + """---
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ConversionPolicy
metadata: {name: mapped}
spec:
  order: 1
  templates:
  - demand: {devices: 16}
    template: {metadata: {name: xl-trn2}, spec: """
            + SPEC.replace("COUNT", "16")
            + "}",
            "template xl-trn2 is already in policy 'mapped'",
        ),
    ],
)
def test_a_problem_is_told(text: str, said: str) -> None:
    assert any(said in each for each in problems(text)), problems(text)
