"""Names in resource rules with which the rules never match: API groups, versions and resources that no server has."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from neuron.api import resource_versions
from neuron.api.claim_specs import GROUP
from neuron.findings import did_you_mean
from policies.judging.subjects import plural
from policies.schema.constraints import ResourceRule

ANY: Final = "*"
_VERSION: Final = re.compile(r"v[0-9]+((alpha|beta)[0-9]+)?", re.ASCII)
_RESOURCES: Final = {
    "": (
        *("pods", "services", "secrets", "configmaps", "namespaces", "nodes", "events", "endpoints", "serviceaccounts"),
        *("persistentvolumes", "persistentvolumeclaims", "replicationcontrollers", "resourcequotas", "limitranges"),
        *("podtemplates", "bindings", "componentstatuses"),
    ),
    "apps": ("deployments", "daemonsets", "replicasets", "statefulsets", "controllerrevisions"),
    "batch": ("jobs", "cronjobs"),
}
"""All resources of groups of Kubernetes."""
_CLAIMS: Final = ("resourceclaims", "resourceclaimtemplates", "deviceclasses", "resourceslices", "devicetaintrules")
"""Resources of `resource.k8s.io`, to which versions of Kubernetes add others."""
_VERSIONS: Final = {"": ("v1",), "apps": ("v1",), "batch": ("v1",), GROUP: resource_versions.VERSIONS}


def unmatched(rule: ResourceRule) -> Iterator[str]:
    """Why names of a rule match nothing, a sentence each."""
    for group in rule.api_groups:
        yield from filter(None, [group_fault(group)])
    for version in rule.api_versions:
        yield from filter(None, [_version_fault(rule, version)])
    found = [(group, resource) for group in rule.api_groups if not group_fault(group) for resource in rule.resources]
    yield from filter(None, (resource_fault(*each) for each in found))


def notes(policy: str, rules: Iterable[ResourceRule]) -> Iterator[str]:
    """Notes on a policy whose rules match nothing because of their names, each once."""
    found = dict.fromkeys(f"policy '{policy}' never matches there: {why}" for rule in rules for why in unmatched(rule))
    yield from (text if text.endswith("?") else f"{text}." for text in found)


def matches_nothing(rule: ResourceRule, group: str, resource: str) -> bool:
    """Whether a rule never matches a resource of a group because of its names."""
    versions = all(_version_fault(rule, version) for version in rule.api_versions)
    return versions or bool(group_fault(group) or resource_fault(group, resource))


def group_fault(group: str) -> str:
    """Why no server has an API group; empty if one may have it."""
    if group == "core" or _VERSION.fullmatch(group):
        return f"no API group is called '{group}'. Pods and other core resources are of the group \"\""
    name, slash, _ = group.partition("/")
    if slash:
        return f"no API group is called '{group}'. Write '{'' if _VERSION.fullmatch(name) else name}'"
    if group != group.lower():
        return f"no API group is called '{group}': groups are in lower case"
    return ""


def resource_fault(group: str, resource: str) -> str:
    """Why no server has a resource of a group; empty if one may have it."""
    name = resource.partition("/")[0]
    of_group = f" of {group}" if group else ""
    if name != name.lower():
        wanted = plural(name)
        return f"no resource is called '{name}'{of_group}: write its plural name in lower case, '{wanted}'"
    known = _RESOURCES.get(group)
    if name == ANY or name in (known or _CLAIMS):
        return ""
    hint = did_you_mean(name, known or (_CLAIMS if group == GROUP else ()))
    # Sentences end at the caller.
    return f"no resource is called '{name}'{of_group}.{hint}".rstrip(".") if known or hint else ""


def _version_fault(rule: ResourceRule, version: str) -> str:
    """Why no server has an API version in any of the rule's groups; empty if one may have it."""
    if "/" in version:
        return f"no API version is called '{version}'. Write '{version.rpartition('/')[2]}', and the group in apiGroups"
    served = [_VERSIONS.get(group) for group in rule.api_groups]
    known = [each for versions in served if versions is not None for each in versions]
    if version == ANY or None in served or version in known:
        return ""
    groups = ", ".join(repr(group) for group in rule.api_groups)
    return f"no API version is called '{version}' in {groups}. Write {' or '.join(dict.fromkeys(known))}"
