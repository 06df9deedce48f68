"""The rules of the entry that follows the policies in force."""

from typing import Any

import pytest

from policies.judging.followed_rules import followed, next_rules
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


def of(*rules: str) -> tuple[list[Rule], str]:
    texts = [
        policy("validations: [{expression: 'true'}]", name=f"p{at}").replace(
            '- {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}', f"- {each}"
        )
        for at, each in enumerate(rules)
    ]
    return followed(loaded(*texts).validating)


def test_the_rules_of_several_policies_are_merged() -> None:
    secrets = '{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [secrets, pods]}'
    maps = '{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}'
    operations = "operations: [CREATE, UPDATE], resources: [deployments, deployments/scale]"
    scale = f"{{apiGroups: [apps], apiVersions: [v1], {operations}}}"
    assert of(secrets, maps, maps, scale) == (
        [rule("configmaps", "secrets"), rule("deployments/scale", group="apps", operations=("CREATE", "UPDATE"))],
        "",
    )


@pytest.mark.parametrize(
    ("wide", "kept"),
    [
        ('{apiGroups: ["*"], apiVersions: [v1], operations: [CREATE], resources: [secrets]}', []),
        ('{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: ["*", "secrets"]}', ["secrets"]),
        ('{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: ["*/status"]}', []),
    ],
    ids=["every group", "every resource", "every status"],
)
def test_no_rule_is_made_for_everything(wide: str, kept: list[str]) -> None:
    rules, problem = of(wide)
    assert [resource for each in rules for resource in each["resources"]] == kept
    assert problem == (
        "policy 'p0' matches every resource or API group: no rule is made for that, because every object would depend"
        " on the webhook. List resources in the policy, or put the rule into the chart's validation.extraRules"
    )


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
