"""The rules of the entry that follows the policies in force."""

from typing import Any

import pytest

from policies.judging.followed_rules import followed, next_rules
from policies.schema.followable import GROUPS
from tests.policies.policy_files import loaded, policy

Rule = dict[str, Any]


def rule(*resources: str, group: str = "", operations: tuple[str, ...] = ("CREATE",), scope: str = "*") -> Rule:
    return {
        "apiGroups": [group],
        "apiVersions": ["v1"],
        "operations": list(operations),
        "resources": list(resources),
        "scope": scope,
    }


def of(*rules: str, groups: tuple[str, ...] = GROUPS) -> tuple[list[Rule], str]:
    texts = [
        policy("validations: [{expression: 'true'}]", name=f"p{at}").replace(
            '- {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}', f"- {each}"
        )
        for at, each in enumerate(rules)
    ]
    return followed(loaded(*texts).validating, groups)


def test_the_rules_of_several_policies_are_merged() -> None:
    spaces = '{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [namespaces, pods]}'
    services = '{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [services]}'
    operations = "operations: [CREATE, UPDATE], resources: [deployments, deployments/scale]"
    scale = f"{{apiGroups: [apps], apiVersions: [v1], {operations}}}"
    assert of(spaces, services, services, scale) == (
        [rule("namespaces", "services"), rule("deployments/scale", group="apps", operations=("CREATE", "UPDATE"))],
        "",
    )


def match(group: str, resources: str, operations: str = "CREATE, UPDATE, DELETE") -> str:
    return f'{{apiGroups: ["{group}"], apiVersions: ["*"], operations: [{operations}], resources: [{resources}]}}'


NEVER = [
    ("", "secrets"),
    ("", "configmaps"),
    ("", "nodes"),
    ("", "nodes/status"),
    ("", "nodes/proxy"),
    ("", "pods/binding"),
    ("", "pods/status"),
    ("", "bindings"),
    ("", "events"),
    ("", "endpoints"),
    ("", "serviceaccounts"),
    ("", "serviceaccounts/token"),
    ("", "namespaces/finalize"),
    ("", "namespaces/status"),
    ("", "'*'"),
    ("", "'pods/*'"),
    ("", "'*/scale'"),
    ("apps", "deployments/status"),
    ("apps", "controllerrevisions"),
    ("resource.k8s.io", "resourceslices"),
    ("resource.k8s.io", "resourceclaims/status"),
    ("resource.k8s.io", "resourceclaims/binding"),
    ("coordination.k8s.io", "leases"),
    ("authentication.k8s.io", "tokenreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"),
    ("certificates.k8s.io", "certificatesigningrequests/approval"),
    ("discovery.k8s.io", "endpointslices"),
    ("events.k8s.io", "events"),
    ("storage.k8s.io", "volumeattachments"),
    ("rbac.authorization.k8s.io", "clusterroles"),
    ("apiregistration.k8s.io", "apiservices"),
    ("apiextensions.k8s.io", "customresourcedefinitions"),
    ("flowcontrol.apiserver.k8s.io", "flowschemas"),
    ("policy", "poddisruptionbudgets"),
    ("jobset.x-k8s.io", "jobsets/status"),
    ("*", "services"),
]


@pytest.mark.parametrize(("group", "resources"), NEVER)
@pytest.mark.parametrize("listed", [False, True], ids=["default groups", "group listed"])
def test_secrets_and_control_plane_resources_are_never_followed(group: str, resources: str, listed: bool) -> None:
    rules, problem = of(match(group, resources), groups=(*GROUPS, group) if listed else GROUPS)
    assert rules == []
    assert problem.startswith("policy 'p0' matches CREATE, UPDATE, DELETE of ")
    assert "validation.extraRules" in problem


@pytest.mark.parametrize(
    ("group", "resources", "kept"),
    [
        ("", "pods", set()),
        ("", "pods/ephemeralcontainers", {"UPDATE", "DELETE", "CREATE"}),
        ("", "pods/exec", {"UPDATE", "DELETE", "CREATE"}),
        ("", "services", {"CREATE", "UPDATE", "DELETE"}),
        ("", "persistentvolumes", {"CREATE"}),
        ("apps", "deployments", {"DELETE"}),
        ("apps", "statefulsets/scale", {"CREATE", "UPDATE", "DELETE"}),
        ("apps", "replicasets", set()),
        ("resource.k8s.io", "resourceclaims", set()),
        ("resource.k8s.io", "deviceclasses", {"DELETE"}),
        ("ray.io", "rayclusters/scale", {"CREATE", "UPDATE", "DELETE"}),
    ],
)
def test_requests_of_users_are_followed(group: str, resources: str, kept: set[str]) -> None:
    rules, _ = of(match(group, resources))
    assert {operation for each in rules for operation in each["operations"]} == kept


def test_left_out_resources_are_reported_with_the_rules_and_the_fix() -> None:
    leases = match("coordination.k8s.io", "leases", "UPDATE")
    widgets = match("example.com", "widgets", "CREATE")
    rules, problem = of(leases, match("", "secrets, services", "CREATE"), widgets)
    assert [each["resources"] for each in rules] == [["services"]]
    assert problem == (
        "policies 'p0', 'p1', 'p2' match UPDATE of leases of coordination.k8s.io, CREATE of secrets, CREATE of "
        "widgets of example.com (group 'example.com' is not in validation.followGroups): no rule is made for that, "
        "because the cluster's own components may depend on it, or the objects hold secrets. List resources of users "
        "in the policy; or, if the webhook must see these requests, add a rule to the chart's validation.extraRules, "
        "or a group to validation.followGroups"
    )
    rules, problem = of(widgets, groups=("example.com",))
    assert (rules[0]["resources"], problem) == (["widgets"], "")


@pytest.mark.parametrize("removable", [True, False])
def test_rules_that_match_the_same_requests_are_not_written(removable: bool) -> None:
    grouped = [rule("secrets", "configmaps", operations=("UPDATE", "CREATE"))]
    apart = [
        rule("configmaps", operations=("CREATE", "UPDATE")),
        rule("secrets"),
        {**rule("secrets", operations=("UPDATE",)), "scope": None},
    ]
    assert next_rules(apart, grouped, removable=removable) is None
    assert next_rules([], [], removable=removable) is None


def test_rules_are_only_added_while_another_replica_may_need_them() -> None:
    current, needed = [rule("secrets")], [rule("configmaps", operations=("CREATE", "DELETE"))]
    both = [*needed, *current]
    assert next_rules(current, needed, removable=False) == both
    assert next_rules(both, needed, removable=False) is None
    assert next_rules(both, needed, removable=True) == needed
    assert next_rules(current, [], removable=True) == []


def test_replicas_with_different_policies_reach_rules_that_neither_changes() -> None:
    ours, theirs = [rule("secrets")], [rule("configmaps", operations=("*",))]
    rules: list[Rule] = []
    writes = 0
    for needed in [ours, theirs] * 5:
        written = next_rules(rules, needed, removable=False)
        if written is not None:
            rules, writes = written, writes + 1
    assert writes == 2
    assert {resource for each in rules for resource in each["resources"]} == {"configmaps", "secrets"}
