"""What the API server would refuse is not exported, and the reason is said."""

import pytest

from policies.judging.export import NotExportableError, to_vap
from tests.policies.policy_files import loaded, policy


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("validations: [{expression: 'true', message: \"a\\nb\"}]", "message of validations[0] has a line break"),
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
        (
            "variables: [{name: namespace, expression: '1'}]\nvalidations: [{expression: 'true'}]",
            "variable 'namespace' has a reserved name",
        ),
    ],
)
def test_what_the_api_server_refuses_is_not_exported(spec: str, reason: str) -> None:
    (rule,) = loaded(policy(spec)).validating
    with pytest.raises(NotExportableError) as caught:
        to_vap(rule)
    assert any(reason in each for each in caught.value.reasons)


def test_what_it_accepts_is_exported() -> None:
    (rule,) = loaded(policy("validations: [{expression: 'true', messageExpression: string(object.kind)}]")).validating
    assert [each["kind"] for each in to_vap(rule)] == [
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ]
