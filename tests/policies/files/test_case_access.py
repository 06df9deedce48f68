"""Cases that say what a cluster answers to `authorizer`."""

import pytest

from tests.policies.policy_files import policy, problems

TEMPLATE = (
    "{apiVersion: resource.k8s.io/v1, metadata: {name: xl}, spec: {spec: {devices: {requests:"
    " [{name: r, exactly: {deviceClassName: neuron.aws.com, count: 16}}]}}}}"
)
SPEC = """
validations:
- expression: "authorizer.group('apps').resource('deployments').namespace('lab').check('create').allowed()"
  message: no
tests:
- name: a
  object: {{apiVersion: v1, kind: Pod, metadata: {{name: a}}}}
  {access}
  expect: {expect}
"""


@pytest.mark.parametrize(
    ("access", "expect"),
    [
        ("access: [{verb: create, group: apps, resource: deployments, namespace: lab, allowed: true}]", "Allow"),
        ("access: [{verb: create, allowed: false}]", "Deny"),
        ("access: [{verb: get, allowed: true}, {allowed: false}]", "Deny"),
        ("access: [{serviceAccount: lab/builder, allowed: true}, {allowed: false}]", "Deny"),
    ],
)
def test_answers(access: str, expect: str) -> None:
    assert problems(policy(SPEC.format(access=access, expect=expect).replace("message: no", "message: 'no'"))) == []


@pytest.mark.parametrize(
    ("access", "message"),
    [
        ("", "is not known, because there is no API server to ask here: in a test, give the answer in `access`"),
        (
            "access: [{verb: get, allowed: true}]",
            "the test has no answer for 'create' on 'deployments.apps' (namespace 'lab'): add it to access",
        ),
    ],
)
def test_a_missing_answer(access: str, message: str) -> None:
    (found,) = problems(policy(SPEC.format(access=access, expect="Allow").replace("message: no", "message: 'no'")))
    assert message in found


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        ("ConversionPolicy", "order: 1\n  mode: convert"),
        ("SchedulingHintPolicy", "order: 1\n  tolerations: {action: 'Off'}"),
        ("ClaimTemplate", f"version: 1\n  template: {TEMPLATE}"),
    ],
)
def test_policies_for_conversion_have_no_authorizer(kind: str, setting: str) -> None:
    (found,) = problems(
        f"apiVersion: policy.neuron.aws.com/v1alpha1\nkind: {kind}\nmetadata: {{name: p}}\nspec:\n  {setting}\n"
        "  match: {conditions: [{name: a, expression: \"authorizer.path('/').check('get').allowed()\"}]}\n"
    )
    assert "'authorizer' is not known here: only conditions, variables, validations" in found


def test_messages_have_no_authorizer() -> None:
    message = "messageExpression: \"authorizer.path('/x').check('get').reason()\""
    (found,) = problems(policy(f"validations: [{{expression: 'true', {message}}}]"))
    assert "spec.validations[0].messageExpression" in found
    assert "'authorizer' is not known here" in found
