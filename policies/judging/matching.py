"""Matches requests with the resource rules and selectors of a policy; match conditions in CEL are elsewhere.

The rules are those of `k8s.io/apiserver/pkg/admission/plugin/webhook/predicates`, with one difference: objects are not
converted to other API versions, so a rule matches only the versions that it lists.
"""

from collections.abc import Mapping
from typing import Any

from policies.judging.subjects import Subject
from policies.schema.kinds import LabelSelector, MatchResources, PodMatch, ResourceRule

Labels = Mapping[str, Any]


def selects(selector: LabelSelector, labels: Labels) -> bool:
    """Whether a label selector selects these labels (apimachinery labels.Requirement.Matches)."""
    if any(labels.get(key) != value for key, value in selector.match_labels.items()):
        return False
    for requirement in selector.match_expressions:
        there = requirement.key in labels
        match requirement.operator:
            case "In":
                fits = there and labels[requirement.key] in requirement.values
            case "NotIn":
                fits = not there or labels[requirement.key] not in requirement.values
            case "Exists":
                fits = there
            case "DoesNotExist":
                fits = not there
        if not fits:
            return False
    return True


def labels_of(data: object) -> Labels:
    """`metadata.labels`; empty if there are none."""
    metadata = data.get("metadata") if isinstance(data, dict) else None
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    return labels if isinstance(labels, dict) else {}


def rules_match(match: MatchResources, subject: Subject) -> bool:
    """Whether the resource rules match. Depends only on the kind of request and the object's name."""
    if any(_rule_matches(rule, subject) for rule in match.exclude_resource_rules):
        return False
    return not match.resource_rules or any(_rule_matches(rule, subject) for rule in match.resource_rules)


def could_match(match: MatchResources, subject: Subject) -> bool:
    """Whether the resource rules can match this kind of request, for any name of the object."""
    return not match.resource_rules or any(
        _rule_matches(rule.model_copy(update={"resource_names": ()}), subject) for rule in match.resource_rules
    )


def selectors_match(match: MatchResources, subject: Subject) -> bool:
    """Whether the selectors of namespace and object match."""
    return _namespace_matches(match.namespace_selector, subject) and _object_matches(match.object_selector, subject)


def namespace_matches(match: MatchResources, subject: Subject) -> bool:
    """Whether the namespace selector matches; a Namespace object that is not known counts as a match."""
    if subject.kind == "Namespace" and subject.group == "" and subject.object is None and subject.old_object is None:
        return True
    return _namespace_matches(match.namespace_selector, subject)


def matches(match: MatchResources | None, subject: Subject) -> bool:
    """Whether rules and selectors match; None matches every request."""
    return match is None or (rules_match(match, subject) and selectors_match(match, subject))


def pod_matches(match: PodMatch, subject: Subject) -> bool:
    """Whether namespaces and selectors match a pod; its conditions in CEL are not evaluated."""
    if match.namespaces and not any(_names(pattern, subject.namespace) for pattern in match.namespaces):
        return False
    return _namespace_matches(match.namespace_selector, subject) and _object_matches(match.object_selector, subject)


def _names(pattern: str, namespace: str) -> bool:
    """Whether a pattern, in which `*` stands for any characters, matches a namespace."""
    if "*" not in pattern:
        return pattern == namespace
    first, *middle, last = pattern.split("*")
    if len(namespace) < len(first) + len(last) or not (namespace.startswith(first) and namespace.endswith(last)):
        return False
    at, end = len(first), len(namespace) - len(last)
    for part in middle:
        found = namespace.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def _namespace_matches(selector: LabelSelector | None, subject: Subject) -> bool:
    if selector is None:
        return True
    if subject.kind == "Namespace" and subject.group == "":
        return selects(selector, labels_of(subject.object or subject.old_object))
    # Cluster-scoped objects are never excluded by a namespace selector.
    return not subject.namespace or selects(selector, labels_of(subject.namespace_object))


def _object_matches(selector: LabelSelector | None, subject: Subject) -> bool:
    if selector is None or (not selector.match_labels and not selector.match_expressions):
        return True
    known = [data for data in (subject.object, subject.old_object) if data is not None]
    return any(selects(selector, labels_of(data)) for data in known)


def _rule_matches(rule: ResourceRule, subject: Subject) -> bool:
    if rule.resource_names and subject.name not in rule.resource_names:
        return False
    namespaced = bool(subject.namespace) and subject.kind != "Namespace"
    return (
        rule.scope in ("*", "Namespaced" if namespaced else "Cluster")
        and _listed(rule.operations, subject.operation)
        and _listed(rule.api_groups, subject.group)
        and _listed(rule.api_versions, subject.version)
        and any(_resource_matches(resource, subject) for resource in rule.resources)
    )


def _listed(values: tuple[str, ...], value: str) -> bool:
    return "*" in values or value in values


def _resource_matches(wanted: str, subject: Subject) -> bool:
    resource, _, subresource = wanted.partition("/")
    return resource in ("*", subject.resource) and subresource in ("*", subject.subresource)
