"""Existing objects against policies: results in the words of PolicyReports."""

import pytest

from commands.report.model import Audit
from tests.policies.policy_files import policy
from tests.support.reports import deployment, report
from tests.support.validation import TRN2, claim, on, request, template

TRN1 = {"nodeSelector": {"node.kubernetes.io/instance-type": "trn1.32xlarge"}}
FAILS = 'validations: [{expression: "neuron.devices <= 2", message: too many}]\n'
EXCEPTION = """
exceptions:
- name: for-now
  owner: team-a
  reason: they move in June
  expires: "2027-01-01"
  matchConditions: [{name: all, expression: "true"}]
"""


def audited(*policies: str) -> Audit:
    found = report(deployment(**TRN1), policies=policies).audit
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("spec", "result", "action"),
    [
        (FAILS, "fail", "Deny"),
        (FAILS + "validationActions: [Audit]\n", "fail", "Audit"),
        (FAILS + "validationActions: [Warn]\n", "warn", "Warn"),
        ('validations: [{expression: "object.spec.priority > 3"}]\n', "error", "Deny"),
        (FAILS + EXCEPTION, "skip", ""),
    ],
)
def test_a_violation_is_a_result_with_policy_action_and_path(spec: str, result: str, action: str) -> None:
    found = audited(policy(spec + "\nseverity: high", name="few"))
    [violation] = found.violations
    assert (violation.policy, violation.result, violation.action) == ("few", result, action)
    assert (violation.severity, violation.path) == ("high", "spec.template")
    assert str(violation.ref) == "Deployment team-a/train"
    assert found.counts == {("team-a", result): 1}
    assert found.objects == 1


def test_a_pass_is_counted() -> None:
    found = audited(policy('validations: [{expression: "neuron.devices <= 16"}]'))
    assert (found.violations, found.count("pass"), found.objects) == ((), 1, 1)


def test_policies_judge_the_converted_pod() -> None:
    found = audited(policy('validations: [{expression: "size(object.spec.resourceClaims) == 1"}]'))
    assert found.count("pass") == 1


def test_policies_judge_the_workload_itself() -> None:
    about_deployments = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ValidatingPolicy
metadata: {name: owner}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [apps], apiVersions: [v1], operations: [CREATE], resources: [deployments]}
  validations: [{expression: "has(object.metadata.labels)", message: no owner}]
"""
    [violation] = audited(about_deployments).violations
    assert (violation.policy, violation.path, violation.message) == ("owner", "", "no owner")


def test_policies_judge_templates_and_claims() -> None:
    about_templates = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ValidatingPolicy
metadata: {name: few}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [resource.k8s.io], apiVersions: [v1], operations: [CREATE], resources: [resourceclaimtemplates]}
  validations: [{expression: "neuron.devices <= 2", message: too many}]
"""
    made = report(template(claim(request("neurons", 4, on(TRN2)))), policies=[about_templates])
    assert made.audit is not None
    [violation] = made.audit.violations
    assert violation.ref.kind == "ResourceClaimTemplate"
    assert made.denied == 1


def test_excluded_namespaces_are_not_judged() -> None:
    made = report(deployment(namespace="kube-system"), policies=[policy(FAILS)])
    assert made.audit is not None
    assert made.audit.violations == ()


def test_there_is_no_audit_without_policies_for_validation() -> None:
    assert report(deployment()).audit is None


def test_a_policy_that_matches_nothing_judges_no_object() -> None:
    other = policy('matchConditions: [{name: never, expression: "false"}]\n' + FAILS)
    found = audited(other)
    assert (found.objects, found.counts) == (0, {})
