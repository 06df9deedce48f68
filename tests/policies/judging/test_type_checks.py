"""Fields that Kubernetes' kinds do not have are warned of when a file is loaded, as the API server warns."""

import pytest

from policies.files.api_types import ApiTypes
from policies.judging.rules import PolicySet
from policies.schema.base import MatchResources
from tests.policies.policy_files import loaded, policy

PODS = '{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}'
DEPLOYMENTS = "{apiGroups: [apps], apiVersions: [v1], operations: [CREATE], resources: [deployments]}"


def notes(spec: str, *rules: str) -> tuple[str, ...]:
    text = policy(spec)
    if rules:
        text = text.replace(f"- {PODS}", "\n    ".join(f"- {each}" for each in rules))
    found: PolicySet = loaded(text)
    return found.notes


@pytest.mark.parametrize(
    ("expression", "note"),
    [
        (
            "object.spec.contaners.size() < 3",
            "0.yaml:10: spec.validations[0].expression: 'PodSpec' has no field 'contaners'. Did you mean 'containers'?"
            " (v1 Pod)",
        ),
        (
            "object.spec.containers.all(c, c.imag != '')",
            "0.yaml:10: spec.validations[0].expression: 'Container' has no field 'imag'. Did you mean 'image'?"
            " (v1 Pod)",
        ),
        (
            "!has(oldObject.metdata)",
            "0.yaml:10: spec.validations[0].expression: 'Pod' has no field 'metdata'. Did you mean 'metadata'?"
            " (v1 Pod)",
        ),
        (
            "object.spec.activeDeadlineSeconds > '3'",
            "0.yaml:10: spec.validations[0].expression: '>' does not take (int, string) (v1 Pod)",
        ),
    ],
)
def test_wrong_fields_and_types_are_warned_of(expression: str, note: str) -> None:
    assert notes(f'validations: [{{expression: "{expression}"}}]') == (note,)


@pytest.mark.parametrize(
    "expression",
    [
        "object.metadata.namespace != 'x' && object.metadata.labels.any == 'thing'",
        "object.spec.containers.all(c, has(c.resources.limits) && isQuantity(c.resources.limits.memory))",
        "size(object.spec.containers + object.spec.ephemeralContainers) < 9",
        "object.spec.containers.exists(c, c.?livenessProbe.httpGet.port.orValue(1) == 80)",
        "object.kind == 'Deployment' && object.spec.contaners.size() < 3 || neuron.devices < 2",
    ],
)
def test_right_fields_are_not(expression: str) -> None:
    found = notes(f'validations: [{{expression: "{expression}"}}]')
    assert [each for each in found if "contaners" not in each] == []


def test_variables_have_the_types_of_their_values() -> None:
    spec = "variables: [{name: c, expression: object.spec.containers}]\n"
    (note,) = notes(f"{spec}validations: [{{expression: 'variables.c.all(x, x.imag != \"\")'}}]")
    assert "'Container' has no field 'imag'" in note


def test_each_kind_is_checked() -> None:
    spec = "validations: [{expression: object.spec.containers.size() < 3}]"
    (note,) = notes(spec, PODS, DEPLOYMENTS)
    assert note.endswith("strategy, template. (apps/v1 Deployment)")


@pytest.mark.parametrize(
    "expression",
    ["object.kind == 'Pod' ? object.spec.containers.size() < 3 : true", "object.spec.?containers.orValue([]) == []"],
)
def test_what_one_kind_has_is_right_where_the_kind_is_asked_for(expression: str) -> None:
    assert notes(f'validations: [{{expression: "{expression}"}}]', PODS, DEPLOYMENTS) == ()


def test_a_field_that_no_kind_has_is_wrong_there_too() -> None:
    spec = "validations: [{expression: \"object.kind == 'Pod' ? object.spec.contaners.size() < 3 : true\"}]"
    assert len(notes(spec, PODS, DEPLOYMENTS)) == 2


@pytest.mark.parametrize(
    ("rule", "kinds"),
    [
        (PODS, ["v1 Pod"]),
        (PODS.replace("[pods]", "[pods/exec]"), []),
        (PODS.replace("[v1]", "['*']"), []),
        (PODS.replace('[""]', "['*']"), []),
        (PODS.replace('[""]', "[example.com]"), []),
        (PODS.replace('[""]', '["", apps]').replace("[pods]", "[pods, deployments]"), ["apps/v1 Deployment", "v1 Pod"]),
    ],
)
def test_rules_name_kinds_as_in_the_api_server(rule: str, kinds: list[str]) -> None:
    (found,) = loaded(policy("validations: [{expression: 'true'}]").replace(PODS, rule)).validating
    assert [each.name for each in ApiTypes().matched(found.match)] == kinds


def test_a_type_that_contains_itself_ends() -> None:
    match = MatchResources.model_validate(
        {
            "resourceRules": [
                {
                    "apiGroups": ["apiextensions.k8s.io"],
                    "apiVersions": ["v1"],
                    "operations": ["*"],
                    "resources": ["customresourcedefinitions"],
                }
            ]
        }
    )
    (kind,) = ApiTypes().matched(match)
    assert kind.name == "apiextensions.k8s.io/v1 CustomResourceDefinition"


@pytest.mark.parametrize(
    ("kind", "expression", "found"),
    [
        (
            "{apiVersion: v1, kind: ConfigMap}",
            "params.dtaa.most == '3'",
            ("'ConfigMap' has no field 'dtaa'. Did you mean 'data'? (v1 ConfigMap)",),
        ),
        (
            "{apiVersion: v1, kind: ConfigMap}",
            "params.data.most > 3",
            ("'>' does not take (string, int) (v1 ConfigMap)",),
        ),
        ("{apiVersion: v1, kind: ConfigMap}", "int(params.data.most) > 3 && params.metadata.name != ''", ()),
        (
            "{apiVersion: v1, kind: ConfigMap}",
            "!has(params.limits)",
            (
                "'ConfigMap' has no field 'limits'. It has apiVersion, binaryData, data, immutable, kind, metadata."
                " (v1 ConfigMap)",
            ),
        ),
        ("{apiVersion: example.com/v1, kind: Limits}", "params.dtaa == 3", ()),
        ("{apiVersion: apps/v2, kind: ConfigMap}", "params.dtaa == 3", ()),
    ],
)
@pytest.mark.parametrize("resource", ["pods", "'*'"])
def test_fields_of_parameters(kind: str, expression: str, found: tuple[str, ...], resource: str) -> None:
    made = loaded(f"""
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {{name: p}}
spec:
  paramKind: {kind}
  matchConstraints:
    resourceRules:
    - {{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [{resource}]}}
  validations: [{{expression: "{expression}"}}]
""")
    said = [each.partition(".expression: ")[2] for each in made.notes]
    assert [each for each in said if each] == list(found)
