"""Decides the `rules` of the webhook entry that follows the policies in force.

`policies.schema.followable` lists what is followed. Rules are compared by the requests that they match,
so another order or grouping is no difference.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from policies.judging.coverage import OPERATIONS, RequestKey, listed, needed_requests, policies_match, rules_of
from policies.judging.matching import ANY
from policies.judging.rules import ValidatingRule
from policies.schema.followable import FOLLOWED, GROUPS, SUBRESOURCES, is_of_kubernetes

Rules = list[dict[str, Any]]

_Requests = dict[RequestKey, frozenset[str]]
"""Operations by key."""


def followed(policies: Iterable[ValidatingRule], groups: Collection[str] = GROUPS) -> tuple[Rules, str]:
    """The rules that policies need beside those of the shipped entries, and what is left out with the fix."""
    kept: dict[RequestKey, set[str]] = {}
    left_out: dict[str, dict[str, None]] = {}
    for policy in policies:
        for (group, versions, scope, resource), operations in sorted(needed_requests([policy]).items()):
            allowed = operations & followed_operations(group, resource) if group in groups else frozenset()
            if allowed:
                kept.setdefault((group, versions, scope, resource), set()).update(allowed)
            if operations - allowed:
                text = _shown(group, resource, operations - allowed)
                if group not in groups and followed_operations(group, resource):
                    text += f" (group '{group}' is not in validation.followGroups)"
                left_out.setdefault(text, {})[f"'{policy.name}'"] = None
    return rules_of(kept), _problem(left_out)


def followed_operations(group: str, resource: str) -> frozenset[str]:
    """The operations on a resource of a listed group that are followed."""
    main, _, subresource = resource.partition("/")
    if ANY in (group, main) or (subresource and subresource not in SUBRESOURCES):
        return frozenset()
    if is_of_kubernetes(group):
        operations = FOLLOWED.get(group, {}).get(main, ())
        return frozenset(OPERATIONS if operations and subresource else operations)
    return frozenset(OPERATIONS)


def _shown(group: str, resource: str, operations: Collection[str]) -> str:
    listed = ", ".join(each for each in OPERATIONS if each in operations)
    what = "every resource" if resource == ANY else resource
    where = " of every API group" if group == ANY else f" of {group}" if group else ""
    return f"{listed} of {what}{where}"


def _problem(left_out: Mapping[str, Iterable[str]]) -> str:
    if not left_out:
        return ""
    names = list(dict.fromkeys(name for policies in left_out.values() for name in policies))
    return (
        f"{policies_match(names)} {listed(list(left_out))}: no rule is made for that, because the"
        " cluster's own components may depend on it, or the objects hold secrets. List resources of users in the"
        " policy; or, if the webhook must see these requests, add a rule to the chart's validation.extraRules, or a"
        " group to validation.followGroups"
    )


def next_rules(current: Sequence[Mapping[str, object]], needed: Rules, *, removable: bool) -> Rules | None:
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
