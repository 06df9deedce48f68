"""What the API server refuses in a policy is refused when the file is loaded, and nothing else."""

from typing import Any

import pytest
import yaml

from tests.policies.policy_files import policy, problems
from tests.support.policy_probes import BINDING, BINDING_PROBES, POLICY, PROBES, generated, with_value


def problems_of(*documents: dict[str, Any]) -> list[str]:
    return problems(yaml.safe_dump_all(documents))


@pytest.mark.parametrize(("path", "value", "accepted"), PROBES.values(), ids=PROBES)
def test_policies(path: str, value: Any, accepted: bool) -> None:
    found = problems_of(with_value(POLICY, path, value))
    assert (not found) is accepted, found


@pytest.mark.parametrize(("path", "value", "accepted"), BINDING_PROBES.values(), ids=BINDING_PROBES)
def test_bindings(path: str, value: Any, accepted: bool) -> None:
    found = [
        each for each in problems_of(with_value(BINDING, path, value), POLICY) if "no file has a policy" not in each
    ]
    assert (not found) is accepted, found


def test_generated_policies_load_or_are_refused_with_a_place() -> None:
    answers = [problems_of(each) for each in generated(150, 1)]
    assert all(line.startswith("0.yaml:") for found in answers for line in found)
    assert 10 < sum(1 for found in answers if found) < 150


SELECTOR = "{matchExpressions: [{key: env, operator: Exists, values: [prod]}]}"


@pytest.mark.parametrize(
    "text",
    [
        policy("validations: [{expression: 'true'}]").replace(
            "resourceRules:", f"namespaceSelector: {SELECTOR}\n    resourceRules:"
        ),
        *(
            "apiVersion: policy.neuron.aws.com/v1alpha1\n"
            f"kind: {kind}\nmetadata: {{name: a}}\nspec:\n  order: 1\n  match: {{{field}: {SELECTOR}}}\n  {setting}\n"
            for kind, setting in (
                ("ConversionPolicy", "mode: 'off'"),
                ("SchedulingHintPolicy", "labels: {action: Add, items: {a: b}}"),
            )
            for field in ("namespaceSelector", "objectSelector")
        ),
    ],
)
def test_selectors_of_all_kinds_are_checked(text: str) -> None:
    (found,) = problems(text)
    assert found.endswith("operator Exists takes no values; with values write In or NotIn.")


# --- params ---------------------------------------------------------------------------------------------------------

PARAMS = "params: {most: 3, teams: {a: 1}, list: [1]}\n"


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("params.mots > 1", "'params' has no field 'mots'. Did you mean 'most'?"),
        ("params['mots'] > 1", "'params' has no field 'mots'. Did you mean 'most'?"),
        ("params.teams.b > 1", "'params.teams' has no field 'b'. Add it to spec.params."),
        ("params.other.b > 1", "'params' has no field 'other'. Add it to spec.params."),
    ],
)
def test_a_field_that_params_do_not_have_is_an_error(expression: str, wrong: str) -> None:
    (found,) = problems(policy(f'{PARAMS}validations: [{{expression: "{expression}"}}]'))
    assert wrong in found


@pytest.mark.parametrize(
    "expression",
    [
        "params.most > 1 && params.teams.a > 0",
        "has(params.none) && params.none > 1",
        "params.?none.orValue(1) > 0",
        "'none' in params && params.none > 1",
        "object.kind in params.teams ? params.teams[object.kind] > 1 : params.list[0] > 0",
    ],
)
def test_fields_that_are_there_or_asked_for_are_no_error(expression: str) -> None:
    assert problems(policy(f'{PARAMS}validations: [{{expression: "{expression}"}}]')) == []


def test_a_forgotten_param_kind_is_said_with_the_kind_of_the_object() -> None:
    ref = {"name": "c", "parameterNotFoundAction": "Deny"}
    parameter = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {}}
    found = problems_of(POLICY, with_value(BINDING, "spec.paramRef", ref), parameter)
    assert [each.partition(": ")[2] for each in found] == [
        "spec.paramRef is set, but policy 'probe' has no spec.paramKind: add paramKind: {apiVersion: v1, kind:"
        " ConfigMap} to its spec."
    ]


# --- authors' traps ---------------------------------------------------------------------------------------------------


def test_a_word_that_yaml_reads_as_a_boolean_is_quoted_and_said_once() -> None:
    text = yaml.safe_dump_all([POLICY, BINDING]).replace(
        "validations:", "validations:\n  - {expression: 'true', message: no}"
    )
    (found,) = problems(text)
    assert found.endswith(
        "spec.validations[0].message is false: this must be text. YAML reads n, no, off and false without quotes as"
        " false: put the word in quotes."
    )


def test_a_variable_that_names_itself_is_told_so() -> None:
    (found,) = problems_of(with_value(POLICY, "spec.variables", [{"name": "a", "expression": "variables.a + 1"}]))
    assert "variables.a has no value here: a variable reads only those that stand before it." in found


def test_a_device_group_that_does_not_divide_a_node_is_refused() -> None:
    entry = {"name": "trn9.48xlarge", "devices": 16, "coresPerDevice": 8, "deviceGroups": [5]}
    catalog = {
        "apiVersion": "policy.neuron.aws.com/v1alpha1",
        "kind": "InstanceTypeCatalog",
        "metadata": {"name": "c"},
        "spec": {"instanceTypes": [entry]},
    }
    (found,) = problems_of(catalog)
    assert "deviceGroups has 5, which does not divide the 16 devices of a node" in found
