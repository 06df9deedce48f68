"""`matchPolicy`: rules match the version that the user sent, and Equivalent ones other versions of the same API."""

import dataclasses
import datetime as dt
from typing import Any

import pytest

from kubecel_tests.evaluating import frozen_clock
from policies.files.loader import load
from policies.judging.evaluate import evaluate
from policies.judging.subjects import RequestSubject, SentAs, of_object
from policies.judging.verdicts import PolicyOutcome, Verdict

NOW = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)
DRA = "resource.k8s.io"
EXACT = {"deviceClassName": "neuron.aws.com", "allocationMode": "ExactCount", "count": 9}
REQUESTS = {
    "v1": [{"name": "r", "exactly": EXACT}],
    "v1beta2": [{"name": "r", "exactly": EXACT}],
    "v1beta1": [{"name": "r", **EXACT}],
}
NESTED = "object.spec.devices.requests.all(r, r.exactly.count <= 4)"
FLAT = "object.spec.devices.requests.all(r, r.count <= 4)"


def versioned_claim(version: str) -> dict[str, Any]:
    spec = {"devices": {"requests": REQUESTS[version]}}
    return {"apiVersion": f"{DRA}/{version}", "kind": "ResourceClaim", "metadata": {"name": "x"}, "spec": spec}


def policy_about_versions(
    expression: str,
    versions: str,
    match_policy: str = "",
    *,
    name: str = "p",
    group: str = DRA,
    resource: str = "resourceclaims",
    more: str = "",
) -> str:
    policy = f"    matchPolicy: {match_policy}\n" if match_policy else ""
    return f"""
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ValidatingPolicy
metadata: {{name: {name}}}
spec:
  matchConstraints:
{policy}    resourceRules:
    - {{apiGroups: ["{group}"], apiVersions: [{versions}], operations: ["*"], resources: ["{resource}"]}}
  validations: [{{expression: "{expression}", message: too many}}]
{more}"""


def verdicts_on(subject: RequestSubject, *texts: str) -> tuple[Verdict, ...]:
    rules = load({f"{at}.yaml": text.encode() for at, text in enumerate(texts)}).validating
    return evaluate(rules, subject, NOW, frozen_clock)


def arriving(subject: RequestSubject, version: str) -> RequestSubject:
    """A request as a webhook gets it whose configuration lists only `version`: the API server has converted it."""
    found = subject.in_api((subject.api[0], version))
    assert found is not None
    return found


@pytest.mark.parametrize("match_policy", ["", "Equivalent"])
@pytest.mark.parametrize("delivered", ["v1", "v1beta1", "v1beta2"])
@pytest.mark.parametrize("sent", ["v1", "v1beta1", "v1beta2"])
@pytest.mark.parametrize("listed", ["v1", "v1beta1", "v1beta2"])
def test_an_equivalent_rule_sees_the_version_that_it_lists(
    listed: str, sent: str, delivered: str, match_policy: str
) -> None:
    subject = arriving(of_object(versioned_claim(sent)), delivered)
    expression = FLAT if listed == "v1beta1" else NESTED
    seen = f"object.apiVersion != '{DRA}/{listed}' || request.kind.version != '{listed}'"
    shown = f"request.resource.version != '{listed}' || request.requestResource.version != '{sent}'"
    texts = (
        policy_about_versions(expression, listed, match_policy),
        policy_about_versions(f"{seen} || {shown}", listed, match_policy, name="q"),
    )
    for verdict in verdicts_on(subject, *texts):
        assert (verdict.outcome, verdict.errors) == (PolicyOutcome.DENY, ())
    assert (
        verdicts_on(subject, policy_about_versions(f"request.requestKind.version == '{sent}'", listed))[0].outcome
        is PolicyOutcome.ALLOW
    )


@pytest.mark.parametrize("delivered", ["v1", "v1beta1", "v1beta2"])
@pytest.mark.parametrize("sent", ["v1", "v1beta1", "v1beta2"])
@pytest.mark.parametrize("listed", ["v1", "v1beta1", "v1beta2"])
def test_an_exact_rule_matches_only_objects_sent_in_a_listed_version(listed: str, sent: str, delivered: str) -> None:
    subject = arriving(of_object(versioned_claim(sent)), delivered)
    expression = FLAT if listed == "v1beta1" else NESTED
    verdicts = verdicts_on(subject, policy_about_versions(expression, listed, "Exact"))
    assert [verdict.outcome for verdict in verdicts] == ([PolicyOutcome.DENY] if listed == sent else [])


def test_a_rule_that_lists_the_sent_version_too_sees_it_unchanged() -> None:
    subject = of_object(versioned_claim("v1beta1"))
    for versions in ("v1, v1beta1", "'*'"):
        (verdict,) = verdicts_on(subject, policy_about_versions(FLAT, versions))
        assert (verdict.outcome, verdict.errors) == (PolicyOutcome.DENY, ())


def test_policies_for_different_versions_see_different_objects_in_one_review() -> None:
    texts = [
        policy_about_versions(NESTED, "v1", name="a"),
        policy_about_versions(FLAT, "v1beta1", name="b"),
        policy_about_versions(NESTED, "v1", name="c"),
    ]
    for version in REQUESTS:
        verdicts = verdicts_on(of_object(versioned_claim(version)), *texts)
        assert [(each.outcome, each.errors) for each in verdicts] == [(PolicyOutcome.DENY, ())] * 3


@pytest.mark.parametrize("operation", ["UPDATE", "DELETE"])
def test_the_old_object_is_converted_too(operation: str) -> None:
    subject = of_object(versioned_claim("v1beta1"), operation=operation, old_object=versioned_claim("v1beta1"))
    (verdict,) = verdicts_on(
        subject, policy_about_versions("oldObject.spec.devices.requests.all(r, has(r.exactly.count))", "v1")
    )
    assert verdict.outcome is PolicyOutcome.ALLOW


def test_claim_and_template_are_those_of_the_listed_version() -> None:
    (verdict,) = verdicts_on(
        of_object(versioned_claim("v1beta1")),
        policy_about_versions("claim.devices.requests[0].exactly.count == 9", "v1"),
    )
    assert verdict.outcome is PolicyOutcome.ALLOW
    spec = {"spec": {"devices": {"requests": REQUESTS["v1beta1"]}}}
    template = {**versioned_claim("v1beta1"), "kind": "ResourceClaimTemplate", "spec": spec}
    expression = "template.spec.spec.devices.requests[0].exactly.count == 9 && neuron.devices == 9"
    (verdict,) = verdicts_on(
        of_object(template), policy_about_versions(expression, "v1", resource="resourceclaimtemplates")
    )
    assert verdict.outcome is PolicyOutcome.ALLOW


def test_an_excluded_version_excludes_its_equivalents() -> None:
    text = policy_about_versions("false", "'*'")
    excluded = (
        "    excludeResourceRules:\n    - {apiGroups: ['*'], apiVersions: [v1], operations: ['*'], resources: ['*']}\n"
    )
    text = text.replace("    resourceRules:", f"{excluded}    resourceRules:")
    assert verdicts_on(of_object(versioned_claim("v1beta1")), text) == ()
    exact = text.replace("matchConstraints:\n", "matchConstraints:\n    matchPolicy: Exact\n")
    assert len(verdicts_on(of_object(versioned_claim("v1beta1")), exact)) == 1


HPA = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "x"}, "spec": {}}


@pytest.mark.parametrize(("failure", "outcome"), [("Fail", PolicyOutcome.DENY), ("Ignore", PolicyOutcome.ALLOW)])
def test_an_object_that_cannot_be_converted_follows_the_failure_policy(failure: str, outcome: PolicyOutcome) -> None:
    more = (
        f"  failurePolicy: {failure}\n  exceptions:\n"
        "  - {name: all, owner: o, reason: r, expires: 2030-01-01, matchConditions: [{name: a, expression: 'true'}]}\n"
    )
    text = policy_about_versions("true", "v1", group="autoscaling", resource="horizontalpodautoscalers", more=more)
    (verdict,) = verdicts_on(of_object(HPA, resource="horizontalpodautoscalers"), text)
    assert verdict.outcome is outcome
    assert str(verdict.errors[0]) == (
        "not evaluated: its rules list horizontalpodautoscalers of autoscaling/v1, and this object of autoscaling/v2"
        " cannot be converted: add 'v2' to apiVersions, or set matchPolicy: Exact"
    )


def test_an_object_that_the_api_server_converted_is_evaluated() -> None:
    sent = SentAs(
        {"group": "autoscaling", "version": "v1", "kind": "HorizontalPodAutoscaler"},
        {"group": "autoscaling", "version": "v1", "resource": "horizontalpodautoscalers"},
        "",
    )
    subject = dataclasses.replace(of_object(HPA, resource="horizontalpodautoscalers"), sent_as=sent)
    text = policy_about_versions(
        "object.apiVersion == 'autoscaling/v1'", "v2", group="autoscaling", resource="horizontalpodautoscalers"
    )
    (verdict,) = verdicts_on(subject, text)
    assert (verdict.outcome, verdict.errors) == (PolicyOutcome.DENY, ())


@pytest.mark.parametrize(("group", "resource"), [("*", "jobsets"), ("jobset.x-k8s.io", "*"), ("*", "*")])
def test_wildcards_do_not_match_versions_that_may_not_exist(group: str, resource: str) -> None:
    jobset = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "x"}}
    assert verdicts_on(of_object(jobset), policy_about_versions("false", "v1", group=group, resource=resource)) == ()
    assert (
        len(
            verdicts_on(
                of_object(jobset), policy_about_versions("false", "v1", group="jobset.x-k8s.io", resource="jobsets")
            )
        )
        == 1
    )


def test_a_scale_is_the_same_for_every_version_of_its_resource() -> None:
    scale = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "x"}, "spec": {"replicas": 9}}
    subject = of_object(scale, operation="UPDATE", resource="jobsets.v1alpha2.jobset.x-k8s.io/scale")
    text = policy_about_versions("object.spec.replicas < 3", "v1", group="jobset.x-k8s.io", resource="jobsets/scale")
    (verdict,) = verdicts_on(subject, text)
    assert (verdict.outcome, verdict.errors) == (PolicyOutcome.DENY, ())


def test_groups_of_kubernetes_with_one_version_have_no_equivalents() -> None:
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}}
    assert (
        verdicts_on(
            of_object(deployment), policy_about_versions("false", "v1beta1", group="apps", resource="deployments")
        )
        == ()
    )


def test_events_of_both_groups_are_the_same_objects() -> None:
    event = {"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "x"}}
    (verdict,) = verdicts_on(of_object(event), policy_about_versions("true", "v1", group="", resource="events"))
    assert "add 'v1' to apiVersions and 'events.k8s.io' to apiGroups" in str(verdict.errors[0])
