"""Matches requests with the resource rules and selectors of a policy; match conditions in CEL are elsewhere.

The rules are those of `k8s.io/apiserver/pkg/admission/plugin/policy/matching` and `.../webhook/predicates`. They match
the resource as the user sent it; with `matchPolicy: Equivalent` also in the other versions of its API.
"""

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from neuron.api import resource_versions
from neuron.api.claim_specs import GROUP
from neuron.api.fields import mapping
from neuron.findings import did_you_mean
from policies.judging.rules import Binding
from policies.judging.subjects import NAMESPACES, Api, RequestSubject, can_convert, plural
from policies.schema.base import LabelSelector, MatchResources, ResourceRule
from policies.schema.kinds import PodMatch

Labels = Mapping[str, object]


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


def rules_match(match: MatchResources, subject: RequestSubject) -> Api | None:
    """Group and version in which a policy with these rules sees the request; None if the rules do not match.

    Depends only on resource, operation, kind and name.
    """
    group, sent = subject.api[0], subject.sent_api
    if (group, subject.resource) in _NEVER_JUDGED:
        return None
    if match.exclude_resource_rules and _matched(match.exclude_resource_rules, match, subject, sent) is not None:
        return None
    return _matched(match.resource_rules, match, subject, sent) if match.resource_rules else sent


def could_match(match: MatchResources, subject: RequestSubject) -> bool:
    """Whether the resource rules can match this kind of request, for any name of the object."""
    group, sent = subject.api[0], subject.sent_api
    if (group, subject.resource) in _NEVER_JUDGED:
        return False
    return not match.resource_rules or _matched(match.resource_rules, match, subject, sent, named=False) is not None


_AUTHORIZATION: Final = "authorization.k8s.io"
_ADMISSION: Final = "admissionregistration.k8s.io"
_NEVER_JUDGED: Final = frozenset(
    {
        *(("authentication.k8s.io", each) for each in ("selfsubjectreviews", "tokenreviews")),
        *((_AUTHORIZATION, each) for each in ("localsubjectaccessreviews", "selfsubjectaccessreviews")),
        *((_AUTHORIZATION, each) for each in ("selfsubjectrulesreviews", "subjectaccessreviews")),
        *((_ADMISSION, f"validatingadmissionpolic{end}") for end in ("ies", "ybindings")),
        *((_ADMISSION, f"mutatingadmissionpolic{end}") for end in ("ies", "ybindings")),
    }
)
"""Resources that the API server never shows to a ValidatingAdmissionPolicy (kubeapiserver/admission/exclusion, and
apiserver/pkg/admission/plugin/policy/validating)."""
_ONE_VERSION: Final = frozenset(
    {
        *("", "apps", "batch", "policy", "rbac.authorization.k8s.io", "node.k8s.io", "discovery.k8s.io"),
        *("apiextensions.k8s.io", "apiregistration.k8s.io"),
    }
)
"""Groups of Kubernetes with one version of each resource."""
_SAME_STORAGE: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("", "events"): ("events.k8s.io",),
    ("events.k8s.io", "events"): ("",),
}
"""Other groups with the same objects."""


def selectors_match(match: MatchResources, subject: RequestSubject) -> bool:
    """Whether the selectors of namespace and object match."""
    return _namespace_matches(match.namespace_selector, subject) and _object_matches(match.object_selector, subject)


def namespace_matches(match: MatchResources, subject: RequestSubject) -> bool:
    """Whether the namespace selector matches; a Namespace object that is not known counts as a match."""
    if _is_about_namespace(subject) and subject.object is None and subject.old_object is None:
        return True
    return _namespace_matches(match.namespace_selector, subject)


def matches(match: MatchResources | None, subject: RequestSubject) -> bool:
    """Whether rules and selectors match; None matches every request."""
    return match is None or (rules_match(match, subject) is not None and selectors_match(match, subject))


def pod_matches(match: PodMatch, subject: RequestSubject) -> bool:
    """Whether namespaces and selectors match a pod; its conditions in CEL are not evaluated."""
    # A pattern has no other wildcard than `*` (`schema.base.NamePattern`).
    if match.namespaces and not any(fnmatch.fnmatchcase(subject.namespace, each) for each in match.namespaces):
        return False
    return _namespace_matches(match.namespace_selector, subject) and _object_matches(match.object_selector, subject)


def _namespace_matches(selector: LabelSelector | None, subject: RequestSubject) -> bool:
    if selector is None:
        return True
    if _is_about_namespace(subject):
        # A new Namespace is not in a cache yet; for all others the labels that it has count.
        written = subject.operation in ("CREATE", "UPDATE") and not subject.subresource
        data = subject.object if written or subject.old_object is None else subject.old_object
        return selects(selector, labels_of(data))
    # Cluster-scoped objects are never excluded by a namespace selector.
    return not subject.namespace or selects(selector, labels_of(subject.namespace_object))


def _is_about_namespace(subject: RequestSubject) -> bool:
    return subject.resource == NAMESPACES and subject.api[0] == ""


def _object_matches(selector: LabelSelector | None, subject: RequestSubject) -> bool:
    if selector is None or (not selector.match_labels and not selector.match_expressions):
        return True
    # An object without metadata, such as PodExecOptions, has no labels that can be selected, not even by their absence.
    known = [data for data in (subject.object, subject.old_object) if isinstance(data, dict) and "metadata" in data]
    return any(selects(selector, labels_of(data)) for data in known)


# --- rules ----------------------------------------------------------------------------------------------------------


def _matched(
    rules: Sequence[ResourceRule], match: MatchResources, subject: RequestSubject, sent: Api, *, named: bool = True
) -> Api | None:
    """Group and version of the first rule that matches; those that the user sent are preferred."""
    if any(_lists(rule, sent) and _fits(rule, subject, named=named) for rule in rules):
        return sent
    if match.match_policy != "Equivalent" or _has_one_version(subject, sent[0]):
        return None
    for rule in rules:
        if _fits(rule, subject, named=named):
            for api in _equivalents(rule, subject, sent[0]):
                if api != sent and _lists(rule, api):
                    return api
    return None


def _has_one_version(subject: RequestSubject, group: str) -> bool:
    """Whether the resource has no other versions than the one in which it was sent and arrives."""
    return subject.sent_as is None and group in _ONE_VERSION and (group, subject.resource) not in _SAME_STORAGE


def _equivalents(rule: ResourceRule, subject: RequestSubject, group: str) -> Iterator[Api]:
    """Other versions of the resource's API, as far as they are known to exist.

    The version that the webhook received and those of claims exist; most groups of Kubernetes have one version.
    For other kinds only the API server knows: if a rule names the resource, its versions are taken as existing.
    """
    yield subject.api
    if group == GROUP:
        known = ((group, version) for version in resource_versions.VERSIONS)
        yield from (api for api in known if can_convert(subject, api))
    names_it = group in rule.api_groups and any(each.partition("/")[0] == subject.resource for each in rule.resources)
    if names_it and group not in _ONE_VERSION:
        yield from ((group, version) for version in rule.api_versions)
    for other in _SAME_STORAGE.get((group, subject.resource), ()):
        if other in rule.api_groups:
            yield other, "v1"


def _fits(rule: ResourceRule, subject: RequestSubject, *, named: bool) -> bool:
    """Whether a rule matches in everything but the API group and version."""
    if named and rule.resource_names and subject.name not in rule.resource_names:
        return False
    namespaced = bool(subject.namespace) and not _is_about_namespace(subject)
    return (
        rule.scope in ("*", "Namespaced" if namespaced else "Cluster")
        and _listed(rule.operations, subject.operation)
        and any(_resource_matches(resource, subject) for resource in rule.resources)
    )


def _lists(rule: ResourceRule, api: Api) -> bool:
    return _listed(rule.api_groups, api[0]) and _listed(rule.api_versions, api[1])


def _listed(values: tuple[str, ...], value: str) -> bool:
    return "*" in values or value in values


def _resource_matches(wanted: str, subject: RequestSubject) -> bool:
    resource, _, subresource = wanted.partition("/")
    return resource in ("*", subject.resource) and subresource in ("*", subject.subresource)


NO_PARAMS: Final = "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction"
_DEFAULT: Final = "default"


def name_of(parameter: Mapping[str, object]) -> str:
    """`metadata.name` of an object."""
    return str(mapping(parameter.get("metadata")).get("name", ""))


def parameters_of(binding: Binding, subject: RequestSubject) -> Iterator[tuple[Mapping[str, object] | None, str]]:
    """The values of `params` with which a policy is evaluated for a binding, each with "" or why there is none."""
    if binding.parameters is None:
        yield None, ""
        return
    ref, objects = binding.parameters.ref, binding.parameters.objects
    wanted, count = ref.namespace or subject.namespace, 0
    for each in objects:
        if (
            _is_in(each, wanted, named=ref.namespace is not None)
            and (ref.name is None or name_of(each) == ref.name)
            and (ref.selector is None or selects(ref.selector, labels_of(each)))
        ):
            count += 1
            yield each, ""
    if not count and ref.parameter_not_found_action == "Deny":
        yield None, NO_PARAMS


def _is_in(parameter: Mapping[str, object], wanted: str, *, named: bool) -> bool:
    """Whether an object is in the namespace of a reference. `named`: whether `paramRef.namespace` is set."""
    namespace = mapping(parameter.get("metadata")).get("namespace")
    if not namespace:
        return wanted == _DEFAULT if named else True
    return bool(namespace == wanted)


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


def names_notes(policy: str, rules: Iterable[ResourceRule]) -> Iterator[str]:
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
