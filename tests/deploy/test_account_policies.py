"""What the chart's ValidatingAdmissionPolicies let each of our ServiceAccounts write."""

import itertools

import pytest
import yaml

from certs.material import KEYS
from deploy import render as rendering
from policies.judging.followed_rules import followed_operations
from policies.schema.followable import CORE, GROUPS
from tests.deploy import webhook_requests as webhook
from tests.deploy.account_requests import DRIVER, DRIVER_REQUESTS, NODE, Request
from tests.deploy.admission import POD_NAME, POD_NODE, Policies
from tests.deploy.charts import AUDIT, Object, find, flags, pod_specs, render

VALUES: Object = {
    **AUDIT,
    "prune": {"enabled": True},
    "policies": {"packs": ["privileged"], "claimTemplates": ["xl-trn2"]},
}
CONFIGURATIONS = webhook.configuration_requests(render(VALUES))
OTHERS = (
    *webhook.SECRET_REQUESTS,
    *webhook.LEASE_REQUESTS,
    *webhook.KEPT_REQUESTS,
    *webhook.TEMPLATE_REQUESTS,
    *webhook.EVENT_REQUESTS,
    *webhook.AUDIT_REQUESTS,
    *webhook.TEST_REQUESTS,
    *CONFIGURATIONS,
)


@pytest.fixture(scope="module")
def policies() -> Policies:
    return Policies(render(VALUES))


def refusals(policies: Policies, request: Request) -> list[str]:
    group, _, plural = request.resource.split("/")
    extra = {POD_NODE: NODE} if request.account == DRIVER else {POD_NAME: webhook.REPLICA}
    return policies.refusals(
        request.account,
        request.operation,
        f"{group}/{plural}",
        None if request.verb == "DELETE" else request.new,
        request.old,
        extra=extra,
        dry_run=request.dry_run,
    )


def check_refusal(policies: Policies, request: Request) -> None:
    said = refusals(policies, request)
    if request.said:
        assert any(request.said in each for each in said), said
    else:
        assert said == []


@pytest.mark.parametrize("request_", DRIVER_REQUESTS, ids=lambda each: each.name)
def test_the_driver_writes_only_objects_of_its_node(policies: Policies, request_: Request) -> None:
    check_refusal(policies, request_)


def test_a_token_without_a_node_writes_no_slice(policies: Policies) -> None:
    own = DRIVER_REQUESTS[0]
    said = policies.refusals(DRIVER, "CREATE", "resource.k8s.io/resourceslices", own.body)
    assert any("names no node" in each for each in said)


@pytest.mark.parametrize("request_", OTHERS, ids=lambda each: f"{each.account}: {each.resource}: {each.name}")
def test_an_account_writes_only_what_its_program_writes(policies: Policies, request_: Request) -> None:
    check_refusal(policies, request_)


@pytest.mark.parametrize("request_", OTHERS, ids=lambda each: f"{each.account}: {each.resource}: {each.name}")
def test_the_policies_ignore_other_users(policies: Policies, request_: Request) -> None:
    group, _, plural = request_.resource.split("/")
    assert policies.refusals("somebody", request_.operation, f"{group}/{plural}", request_.new, request_.old) == []


def test_the_policies_know_the_keys_of_the_secret() -> None:
    policy = find(render(), "ValidatingAdmissionPolicy", "neuron-dra-secrets")
    [keys] = [each["message"] for each in policy["spec"]["validations"] if "certificates and keys" in each["message"]]
    assert sorted(keys.rpartition("(")[2].rstrip(")").split(", ")) == sorted(KEYS)


WRITES = {"create", "update", "patch", "delete", "deletecollection"}


def test_every_right_to_write_has_a_policy() -> None:
    """Reads need none; a write without a policy reaches every field of every object."""
    for values in (VALUES, {**VALUES, "validation": {"followPolicies": True}}, {"certificates": {"mode": "secret"}}):
        objects = render(values)
        covered = {
            (group, resource, operation)
            for each in objects
            if each["kind"] == "ValidatingAdmissionPolicy"
            for rule in each["spec"]["matchConstraints"]["resourceRules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for operation in rule["operations"]
        }
        operations = {"create": "CREATE", "delete": "DELETE", "update": "UPDATE", "patch": "UPDATE"}
        written = {
            (group, resource, operations[verb])
            for each in objects
            if each["kind"] in ("Role", "ClusterRole")
            for rule in each["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in WRITES & set(rule["verbs"])
        }
        assert written
        assert written - covered == set()


def test_no_account_has_a_right_that_gives_further_rights() -> None:
    forbidden = {"impersonate", "bind", "escalate", "approve", "sign", "deletecollection"}
    objects = render({**VALUES, "map": {"enabled": True}, "validation": {"followPolicies": True}})
    for each in objects:
        for rule in each.get("rules", ()) if each["kind"] in ("Role", "ClusterRole") else ():
            assert not forbidden & set(rule["verbs"]), each["metadata"]["name"]
            names = {resource.partition("/")[2] for resource in rule["resources"]}
            assert not names & {"token", "exec", "attach", "portforward", "proxy", "finalizers", "approval", "binding"}
            if "secrets" in rule["resources"]:
                assert rule["resourceNames"] == ["neuron-dra-tls"]
                # With a name, `create` permits a server-side apply of this Secret only.
                assert not {"delete", "update"} & set(rule["verbs"])


def test_the_map_has_the_verb_list_only() -> None:
    role = find(render({"map": {"enabled": True}}), "ClusterRole", webhook.MAP)
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"list"}


# --- rules of the entry for policies ------------------------------------------------------------------------------

FOLLOWING: Object = {
    "policies": {"packs": ["privileged"], "claimTemplates": ["xl-trn2"]},
    "validation": {"followPolicies": True},
}


def with_rules(values: Object, rule: Object) -> list[str]:
    """What the policies say about a write of one rule to the entry that follows policies."""
    objects = render(values)
    old = find(objects, "ValidatingWebhookConfiguration")
    *others, last = old["webhooks"]
    new = {**old, "webhooks": [*others, {**last, "rules": [{"apiVersions": ["v1"], "scope": "*", **rule}]}]}
    resource = "admissionregistration.k8s.io/validatingwebhookconfigurations"
    return Policies(objects).refusals(webhook.WEBHOOK, "UPDATE", resource, new, old)


def test_the_chart_admits_the_rules_that_the_program_makes_and_no_others() -> None:
    """Program and chart decide alike, for every group, resource and operation."""
    groups = ("", "apps", "coordination.k8s.io", "ray.io", "example.com")
    resources = ("pods", "secrets", "leases", "deployments", "*")
    parts = ("", "/status", "/exec", "/*")
    values = {**FOLLOWING, "validation": {"followPolicies": True, "followGroups": list(groups[:-1])}}
    policies = Policies(objects := render(values))
    old = find(objects, "ValidatingWebhookConfiguration")
    *others, last = old["webhooks"]
    differing = []
    for group, resource, part in itertools.product(groups, resources, parts):
        for operation in ("CREATE", "DELETE"):
            rule = {"apiGroups": [group], "resources": [resource + part], "operations": [operation]}
            new = {**old, "webhooks": [*others, {**last, "rules": [{**rule, "apiVersions": ["v1"], "scope": "*"}]}]}
            name = "admissionregistration.k8s.io/validatingwebhookconfigurations"
            admitted = policies.refusals(webhook.WEBHOOK, "UPDATE", name, new, old) == []
            made = group in groups[:-1] and operation in followed_operations(group, resource + part)
            if admitted is not made:
                differing.append((group, resource + part, operation, admitted))
    assert differing == []


def test_rules_are_not_written_where_policies_are_not_followed() -> None:
    rule = {"apiGroups": [""], "resources": ["services"], "operations": ["CREATE"]}
    assert with_rules(FOLLOWING, rule) == []
    wildcard = {**rule, "operations": ["*"]}
    assert any("rules for resources of users only" in each for each in with_rules(FOLLOWING, wildcard))
    unlisted = {**FOLLOWING, "validation": {"followPolicies": True, "followGroups": ["apps"]}}
    assert any("rules for resources of users only" in each for each in with_rules(unlisted, rule))


def test_the_chart_has_the_resources_that_the_program_follows() -> None:
    assert (rendering.CHART / "files" / "followed.json").read_text() == rendering.followed(), "run `make manifests`"
    values = yaml.safe_load((rendering.CHART / "values.yaml").read_text())
    assert values["validation"]["followGroups"] == list(GROUPS)
    given = flags(pod_specs(render(FOLLOWING))["Deployment/neuron-dra"])["--follow-group"]
    assert given == [group or CORE for group in GROUPS]
