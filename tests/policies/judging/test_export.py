"""Policies that the API server would refuse are not exported, and the reason is reported."""

import datetime as dt
import math
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kubecel_tests.evaluating import frozen_clock, value
from policies.judging.evaluate import evaluate
from policies.judging.export import NotExportableError, literal, to_vap
from policies.judging.rules import ValidatingRule
from policies.judging.subjects import of_object
from tests.policies.policy_files import POD, loaded, policy
from tests.policies.test_packs import PACKS


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("validations: [{expression: 'cel.bind(a, 1, a == 1)'}]", "it calls cel.bind"),
        (
            "validations: [{expression: 'true', messageExpression: object.metadata.name}]",
            "messageExpression of validations[0] is of type dyn for the API server, which needs string",
        ),
        (
            "validations: [{expression: object.spec.hostNetwork}]",
            "expression of validations[0] is of type dyn for the API server, which needs bool",
        ),
        (
            "matchConditions: [{name: a, expression: object.spec.hostNetwork}]\nvalidations: [{expression: 'true'}]",
            "match condition 'a' is of type dyn for the API server, which needs bool",
        ),
    ],
)
def test_policies_that_the_api_server_refuses_are_not_exported(spec: str, reason: str) -> None:
    (rule,) = loaded(policy(spec)).validating
    with pytest.raises(NotExportableError) as caught:
        to_vap(rule)
    assert any(reason in each for each in caught.value.reasons)


def test_policies_that_the_api_server_accepts_are_exported() -> None:
    (rule,) = loaded(policy("validations: [{expression: 'true', messageExpression: string(object.kind)}]")).validating
    assert [each["kind"] for each in to_vap(rule)] == [
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ]


# --- params ---------------------------------------------------------------------------------------------------------

CONSTANTS = """
params:
  apps: [train, serve]
  most: 3
  teams: {a: 1}
"""


def outcomes_of(*rules: ValidatingRule) -> list[tuple[str, list[str], tuple[str, ...]]]:
    found = evaluate(rules, of_object(POD), dt.datetime(2026, 6, 1, tzinfo=dt.UTC), frozen_clock)
    return [(each.outcome.value, [v.message for v in each.violations], each.errors) for each in found]


def exported(rule: ValidatingRule) -> tuple[dict[str, Any], ValidatingRule]:
    """The spec as the API server gets it, and the policy that it is."""
    objects = to_vap(rule)
    (read,) = loaded(yaml.safe_dump_all(objects)).validating
    return objects[0]["spec"], read


@pytest.mark.parametrize(
    "spec",
    [
        "validations: [{expression: 'size(params.apps) > params.most', message: few}]",
        "validations: [{expression: \"object.metadata.labels.app in ['x'] + params.apps\"}]",
        "validations: [{expression: 'false', messageExpression: params.apps.join('+') + string(params.teams.a)}]",
        "validations: [{expression: '[1].exists(params, params > 1) || .params.most > 3', message: both}]",
        "validations: [{expression: 'has(params.none) || params.?most.orValue(9) > 3', message: none}]",
        "validations: [{expression: \"params['most'] > 3 || params.teams.exists(t, params.teams[t] > 1)\"}]",
        "variables: [{name: params, expression: params.most}]\nvalidations: [{expression: variables.params > 3}]",
        "matchConditions: [{name: a, expression: params.most == 3}]\nvalidations: [{expression: 'false'}]",
        "matchConditions: [{name: a, expression: params.most == 4}]\nvalidations: [{expression: 'false'}]",
        "auditAnnotations: [{key: k, valueExpression: 'string(params.apps[0])'}]\n"
        "validations: [{expression: params.most > 3}]",
    ],
)
def test_constants_are_written_into_the_policy(spec: str) -> None:
    (rule,) = loaded(policy(CONSTANTS + spec)).validating
    made, read = exported(rule)
    assert "params" not in made
    assert not any(path[0] == "params" for check in read.checks for path in check.program.references)
    assert outcomes_of(read) == outcomes_of(rule)
    again, _ = exported(rule)
    assert again == made


@pytest.mark.parametrize(
    "conditions", ["", "matchConditions: [{name: a, expression: params.most == 3}]\n"], ids=["never", "in-a-condition"]
)
def test_a_policy_whose_validations_do_not_read_its_constants_gets_no_variable(conditions: str) -> None:
    validations = "validations: [{expression: object.metadata.name == 'params'}]"
    (rule,) = loaded(policy(CONSTANTS + conditions + validations)).validating
    made, _ = exported(rule)
    assert "variables" not in made
    assert made["validations"] == [{"expression": "object.metadata.name == 'params'"}]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ('" params.most > 3 "', "failed expression: params.most > 3"),
        ('"params.most >\\n  3"', None),
    ],
    ids=["one-line", "two-lines"],
)
def test_the_default_message_quotes_an_expression_of_one_line_as_its_author_wrote_it(
    expression: str, message: str | None
) -> None:
    (rule,) = loaded(policy(f"{CONSTANTS}validations: [{{expression: {expression}}}]")).validating
    made, _ = exported(rule)
    assert made["validations"][0].get("message") == message


@pytest.mark.parametrize("name", ["host-devices", "privileged"])
def test_packs_that_need_no_counts_are_exported(name: str) -> None:
    (rule,) = (each for each in PACKS if each.name == name)
    _, read = exported(rule)
    assert outcomes_of(read) == outcomes_of(rule)


_SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text()
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)


@given(_VALUES)
def test_a_cel_literal_has_the_value_of_the_constant(given_: object) -> None:
    assert same(value(literal(given_)), given_)


def same(left: object, right: object) -> bool:
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    return type(left) is type(right) and left == right
