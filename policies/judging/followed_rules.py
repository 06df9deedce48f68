"""Decides the `rules` of the webhook entry that follows the policies in force.

Rules are compared by the requests that they match, so another order or grouping is no difference.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from neuron.findings import few
from policies.judging.coverage import ANY, OPERATIONS, RequestKey, needed_rules, rules_of
from policies.judging.rules import ValidatingRule

Rules = list[dict[str, Any]]

_MOST_NAMED: Final = 8
_Requests = dict[RequestKey, frozenset[str]]
"""Operations by key."""


def followed(policies: Iterable[ValidatingRule]) -> tuple[Rules, str]:
    """The rules that policies need beside those of the shipped entries, and what is left out, in one sentence.

    A rule for every group or every resource is left out: the entry usually has failurePolicy Fail, so Leases, Nodes and
    all else would depend on the webhook. Only an admin can decide that.
    """
    kept: list[dict[str, Any]] = []
    wide: dict[str, None] = {}
    for policy in policies:
        for rule in needed_rules([policy]):
            resources = [each for each in rule["resources"] if each.partition("/")[0] != ANY]
            if ANY in rule["apiGroups"] or len(resources) < len(rule["resources"]):
                wide[f"'{policy.name}'"] = None
            if resources and ANY not in rule["apiGroups"]:
                kept.append({**rule, "resources": resources})
    problem = ""
    if wide:
        many = len(wide) > 1
        problem = (
            f"{'policies' if many else 'policy'} {few(list(wide), _MOST_NAMED)} {'match' if many else 'matches'} every "
            "resource or API group: no rule is made for that, because every object would depend on the webhook. List "
            "resources in the policy, or put the rule into the chart's validation.extraRules"
        )
    return rules_of(_requests(kept)), problem


def next_rules(current: Sequence[Mapping[str, Any]], needed: Rules, *, removable: bool) -> Rules | None:
    """The rules to write; None if the current ones are right.

    Args:
        current: the rules of the entry.
        needed: those that the policies of this replica need.
        removable: whether no replica needs more than `needed`. If not, rules are only added: then replicas with
            different policies do not revert each other's writes.
    """
    has, wants = _requests(current), _requests(needed)
    if not removable:
        wants = {key: has.get(key, frozenset()) | wants.get(key, frozenset()) for key in {**has, **wants}}
    return None if has == wants else rules_of(wants)


def _requests(rules: Iterable[Mapping[str, Any]]) -> _Requests:
    found: dict[RequestKey, set[str]] = {}
    for rule in rules:
        versions, scope = tuple(sorted(rule["apiVersions"])), rule.get("scope") or ANY
        operations = OPERATIONS if ANY in rule["operations"] else rule["operations"]
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault((group, versions, scope, resource), set()).update(operations)
    return {key: frozenset(operations) for key, operations in found.items()}
