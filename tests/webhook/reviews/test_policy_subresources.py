"""Rules match the resource of a request, not the kind of its object: for every subresource of Kubernetes."""

from typing import Any

import pytest

from cluster.store import Store
from conversion.objects import wire
from policies.applying.requests import bare_subject, subject_of
from policies.judging import matching
from policies.schema.base import MatchResources
from tests.support.serving import decoded_review
from tests.support.subresources import SUBRESOURCES, Subresource
from tests.webhook.reviews.test_policed import Bench, policy

CUSTOM = Subresource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "scale", ("autoscaling", "v1", "Scale"))


def subresource_review(about: Subresource, **members: Any) -> wire.AdmissionRequest:
    """A request about a subresource, as the API server sends it."""
    group, version, kind = about.kind
    gvk = {"group": group, "version": version, "kind": kind}
    gvr = {"group": about.group, "version": about.version, "resource": about.resource}
    sent = {
        "operation": about.operation,
        "kind": gvk,
        "resource": gvr,
        "subResource": about.name,
        "requestKind": gvk,
        "requestResource": gvr,
        "requestSubResource": about.name,
        "namespace": "team" if about.namespaced else "",
        "name": "x",
        "object": {"apiVersion": f"{group}/{version}".lstrip("/"), "kind": kind, "metadata": {"name": "x"}},
        **members,
    }
    return decoded_review(**sent)


def matched(about: Subresource, **rule: Any) -> bool:
    match = MatchResources.model_validate(
        {
            "resourceRules": [
                {"apiGroups": [about.group], "apiVersions": [about.version], "operations": [about.operation], **rule}
            ]
        }
    )
    sent = subresource_review(about)
    found = matching.matches(match, subject_of(sent, Store()))
    assert matching.could_match(match, bare_subject(sent)) is found
    return found


@pytest.mark.parametrize("about", [*SUBRESOURCES, CUSTOM], ids=str)
def test_a_rule_matches_the_resource_and_its_subresource(about: Subresource) -> None:
    resource, name = about.resource, about.name
    listed = {
        f"{resource}/{name}": True,
        f"{resource}/*": True,
        f"*/{name}": True,
        "*/*": True,
        resource: False,
        "*": False,
        f"{resource}/other": False,
        f"others/{name}": False,
        f"{about.kind[2].lower()}s/{name}": f"{about.kind[2].lower()}s" == resource,
    }
    assert {each: matched(about, resources=[each]) for each in listed} == listed


@pytest.mark.parametrize("about", [*SUBRESOURCES, CUSTOM], ids=str)
def test_a_rule_matches_the_group_version_and_scope_of_the_resource(about: Subresource) -> None:
    both = [f"{about.resource}/{about.name}"]
    group, version, _ = about.kind
    assert matched(about, resources=both, apiGroups=[group], apiVersions=[version]) is (
        (group, version) == (about.group, about.version)
    )
    assert matched(about, resources=both, apiGroups=["*"], apiVersions=["*"])
    assert matched(about, resources=both, scope="Namespaced") is about.namespaced
    assert matched(about, resources=both, scope="Cluster") is not about.namespaced


@pytest.mark.parametrize("about", [*SUBRESOURCES, CUSTOM], ids=str)
def test_expressions_see_kind_and_resource_as_the_api_server_shows_them(about: Subresource) -> None:
    made = subject_of(subresource_review(about), Store()).activation({})["request"]
    assert tuple(made["kind"].values()) == about.kind
    assert tuple(made["resource"].values()) == (about.group, about.version, about.resource)
    assert (made["requestKind"], made["requestResource"]) == (made["kind"], made["resource"])
    assert made["subResource"] == made["requestSubResource"] == about.name


@pytest.mark.parametrize("resource", ["deployments/scale", "*/scale"])
def test_a_policy_on_the_scale_of_deployments_denies(resource: str) -> None:
    text = policy("validations: [{expression: object.spec.replicas < 3, message: at most two}]")
    rule = '{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}'
    assert rule in text
    text = text.replace(
        rule, f'{{apiGroups: [apps], apiVersions: [v1], operations: [UPDATE], resources: ["{resource}"]}}'
    )
    bench = Bench(text)
    (about,) = (each for each in SUBRESOURCES if (each.resource, each.name) == ("deployments", "scale"))
    scale = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "x"}, "spec": {"replicas": 5}}
    decision = bench.reviewed(subresource_review(about, object=scale))
    assert (decision.allowed, "at most two" in decision.errors[0].message) == (False, True)
    scale["spec"] = {"replicas": 2}
    assert bench.reviewed(subresource_review(about, object=scale)).allowed


@pytest.mark.parametrize(
    ("group", "resource"),
    [
        ("authentication.k8s.io", "tokenreviews"),
        ("authorization.k8s.io", "subjectaccessreviews"),
        ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
    ],
)
def test_resources_that_the_api_server_shows_to_no_policy_match_no_rule(group: str, resource: str) -> None:
    about = Subresource(group, "v1", resource, "", (group, "v1", "Any"), "CREATE", namespaced=False)
    assert not matched(about, apiGroups=["*"], apiVersions=["*"], resources=["*/*"])


def test_an_object_without_metadata_has_no_labels_to_select() -> None:
    selector = {"objectSelector": {"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}}
    match = MatchResources.model_validate(selector)
    (about,) = (each for each in SUBRESOURCES if each.name == "exec")
    options = {"apiVersion": "v1", "kind": "PodExecOptions", "command": ["sh"]}
    assert not matching.matches(match, subject_of(subresource_review(about, object=options), Store()))
    assert matching.matches(match, subject_of(subresource_review(about), Store()))
