"""The rules by which the API server validates admission policies, as one table.

Source: pkg/apis/admissionregistration/validation/validation.go of Kubernetes, with ValidateLabelSelector and
IsQualifiedName of apimachinery. Types and unknown fields are checked before, expressions after. The table is for our
kinds too, which have the same fields. `tests/cluster/test_policy_rules.py` compares it with an API server.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from neuron.findings import short
from policies.schema.documents import Path

Found: TypeAlias = Iterator[tuple[Path, str]]
"""Problems of a value: the path below it, and what is wrong."""

_LABEL_PART: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]", re.ASCII)
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_DNS_LABEL: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_IDENTIFIER: Final = re.compile(r"[_a-zA-Z][_a-zA-Z0-9]*", re.ASCII)
_LINE_BREAK: Final = re.compile(r"[\n\r]")
_LONGEST_PART: Final = 63

RESERVED: Final = frozenset(
    (
        *("true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import"),
        *("let", "loop", "package", "namespace", "return", "var", "void", "while"),
    )
)
"""Words that cannot name a variable (k8s.io/apiserver/pkg/cel/escaping.go)."""


@dataclasses.dataclass(frozen=True, slots=True)
class ApiRule:
    """A rule for the values at some paths.

    Attributes:
        paths: patterns of paths; `*` is each item of a list.
        check: the value, which is never null -> problems.
    """

    paths: tuple[Path, ...]
    check: Callable[[Any], Found]


def problems(data: Mapping[str, object]) -> Found:
    """What the API server would refuse in a policy or binding, with the paths."""
    for rule in RULES:
        for pattern in rule.paths:
            for path, value in _values(data, pattern):
                yield from (((*path, *below), message) for below, message in rule.check(value))
    yield from _audit_keys(data)
    yield from _mutated_operations(data)


# --- names --------------------------------------------------------------------------------------------------


def label_key_fault(key: str) -> str:
    """What is wrong with a label key or another qualified name (IsQualifiedName); empty if nothing is."""
    prefix, slash, name = key.rpartition("/")
    if not _LABEL_PART.fullmatch(name) or len(name) > _LONGEST_PART:
        return (
            "this must be a label key: at most 63 letters, digits, '-', '_' or '.', after an optional DNS name and '/'"
        )
    if slash and not _is_subdomain(prefix):
        return "the prefix before the '/' of a label key must be a DNS name in lower case"
    return ""


def _is_subdomain(text: str) -> bool:
    return bool(_SUBDOMAIN.fullmatch(text)) and len(text) <= 253


def label_value_fault(value: str) -> str:
    """What is wrong with a label value (IsValidLabelValue); empty if nothing is."""
    if value and (not _LABEL_PART.fullmatch(value) or len(value) > _LONGEST_PART):
        return "this must be a label value: at most 63 letters, digits, '-', '_' or '.', none of these at an end"
    return ""


def _path_segment(name: str) -> Found:
    if name in (".", ".."):
        yield (), f"{_shown(name)} cannot be the name of an object"
    for letter in ("/", "%"):
        if letter in name:
            yield (), f"{_shown(name)} cannot be the name of an object: it has '{letter}'"


# --- rows ---------------------------------------------------------------------------------------------------


def _labels(labels: Mapping[str, str]) -> Found:
    for key, value in labels.items():
        if fault := label_key_fault(key):
            yield (key,), f"{_shown(key)}: {fault}"
        if fault := label_value_fault(value):
            yield (key,), f"{_shown(value)}: {fault}"


def _annotations(annotations: Mapping[str, str]) -> Found:
    for key in annotations:
        if fault := label_key_fault(key.lower()):
            yield (key,), f"{_shown(key)}: {fault.replace('label key', 'key of an annotation')}"
    if sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items()) > 256 * 1024:
        yield (), "all annotations together are longer than 256 KiB"


def _finalizer(name: object) -> Found:
    if not isinstance(name, str) or label_key_fault(name):
        yield (), f"{_shown(name)}: a finalizer has the form of a label key"


def _owner(owner: object) -> Found:
    fields = owner if isinstance(owner, Mapping) else {}
    yield from (
        ((name,), "the field is missing") for name in ("apiVersion", "kind", "name", "uid") if not fields.get(name)
    )


def _requirement(requirement: Mapping[str, Any]) -> Found:
    operator, values = requirement.get("operator"), requirement.get("values") or ()
    if operator in ("In", "NotIn") and not values:
        yield ("values",), f"operator {operator} needs values"
    if operator in ("Exists", "DoesNotExist") and values:
        yield ("values",), f"operator {operator} takes no values; with values write In or NotIn"
    if fault := label_key_fault(requirement.get("key") or ""):
        yield ("key",), f"{_shown(requirement.get('key') or '')}: {fault}"
    for at, value in enumerate(values):
        if fault := label_value_fault(value):
            yield ("values", at), f"{_shown(value)}: {fault}"


def _alone(what: str) -> Callable[[Sequence[str]], Found]:
    def check(values: Sequence[str]) -> Found:
        if len(values) > 1 and "*" in values:
            yield (), f"'*' stands for all {what}: remove the others, or the '*'"

    return check


def _resources(resources: Sequence[str]) -> Found:
    whole: set[str] = set()
    everywhere: set[str] = set()
    plain = False
    for at, text in enumerate(resources):
        resource, slash, subresource = text.partition("/")
        if not slash:
            # As in the API server, the last entry without a subresource decides.
            plain = text != "*"
            continue
        if resource in whole:
            yield (at,), f"'{resource}/*' has {_shown(text)} already; remove it"
        if subresource in everywhere:
            yield (at,), f"'*/{subresource}' has {_shown(text)} already; remove it"
        if subresource == "*":
            whole.add(resource)
        if resource == "*":
            everywhere.add(subresource)
    if len(resources) > 1 and "*/*" in resources:
        yield (), "'*/*' stands for all resources and subresources: remove the others, or the '*/*'"
    if "*" in resources and plain:
        yield (), "'*' stands for all resources: remove the others without a subresource, or the '*'"


def _unique(what: str) -> Callable[[Sequence[Any]], Found]:
    def check(values: Sequence[Any]) -> Found:
        for at, value in enumerate(values):
            if value in values[:at]:
                yield (at,), f"{what} {_shown(value)} is there twice; remove one"

    return check


def _unique_names(what: str, field: str) -> Callable[[Sequence[Mapping[str, Any]]], Found]:
    def check(items: Sequence[Mapping[str, Any]]) -> Found:
        seen: set[object] = set()
        for at, item in enumerate(items):
            name = item.get(field)
            if name in seen:
                yield (at, field), f"the {what} {_shown(name)} is declared twice; rename one"
            seen.add(name)

    return check


def _at_most(most: int) -> Callable[[Sequence[object]], Found]:
    def check(items: Sequence[object]) -> Found:
        if len(items) > most:
            yield (), f"there are {len(items)} entries, and {most} are allowed"

    return check


def _condition_name(name: str) -> Found:
    if fault := label_key_fault(name):
        what = fault.replace("a label key", "a name in the form of a label key").replace(
            "of a name in the form of ", ""
        )
        yield (), f"{_shown(name)}: {what}"


def _variable_name(name: str) -> Found:
    if not _IDENTIFIER.fullmatch(name):
        yield (), f"{_shown(name)}: this must be a CEL identifier: letters, digits and '_', and no digit first"
    elif name in RESERVED:
        yield (), f"{_shown(name)}: CEL reserves this word; rename the variable"


def _not_blank(text: str) -> Found:
    if text and not text.strip():
        yield (), "it has only spaces; leave it out, or write a text"


def _message(text: str) -> Found:
    yield from _not_blank(text)
    if _LINE_BREAK.search(text.strip()):
        yield (), "a message has no line breaks; a messageExpression can make one"


def _required_expression(text: str) -> Found:
    if not text.strip():
        yield (), "the expression is empty"


def _audit_expression(text: str) -> Found:
    yield from _required_expression(text)
    if len(text.strip().encode()) > 5 * 1024:
        yield (), "the expression has more than 5120 bytes"


def _param_kind(kind: Mapping[str, str]) -> Found:
    version, name = kind.get("apiVersion") or "", kind.get("kind") or ""
    group, _, rest = version.rpartition("/")
    if version.count("/") > 1:
        yield ("apiVersion",), f"{_shown(version)}: write group/version, such as v1 or example.com/v1"
    elif group and not _is_subdomain(group):
        yield ("apiVersion",), f"{_shown(version)}: the group must be a DNS name in lower case"
    elif not _is_dns_label(rest):
        yield ("apiVersion",), f"{_shown(version)}: the version must be such as v1 or v1beta1"
    if not _is_dns_label(name.lower()):
        yield ("kind",), f"{_shown(name)}: a kind has letters, digits and '-', and a letter first"


def _is_dns_label(text: str) -> bool:
    return bool(_DNS_LABEL.fullmatch(text)) and len(text) <= _LONGEST_PART


def _param_ref(ref: Mapping[str, Any]) -> Found:
    name, selector = ref.get("name") or "", ref.get("selector")
    if name and selector is not None:
        yield ("name",), "set either name or selector"
    if not name and selector is None:
        yield (), "set either name or selector"
    yield from ((("name", *path), message) for path, message in _path_segment(name))


def _actions(actions: Sequence[str]) -> Found:
    if "Deny" in actions and "Warn" in actions:
        yield (), "has Deny and Warn, which repeat each other; keep one"
    if len(set(actions)) < len(actions):
        yield (), f"has an action twice: {', '.join(actions)}"


def _resource_rules(constraints: Mapping[str, object]) -> Found:
    if not constraints.get("resourceRules"):
        yield (), "resourceRules is missing"


def _does_something(spec: Mapping[str, object]) -> Found:
    mutates = "mutations" in spec
    if "matchConstraints" in spec and not mutates and not spec.get("validations") and not spec.get("auditAnnotations"):
        yield (), "it has no validations and no auditAnnotations: the policy would do nothing"


_MATCHES: Final[tuple[Path, ...]] = (("spec", "matchConstraints"), ("spec", "matchResources"))
_RULES: Final = tuple((*match, field, "*") for match in _MATCHES for field in ("resourceRules", "excludeResourceRules"))
_SELECTORS: Final[tuple[Path, ...]] = (
    *((*match, field) for match in (*_MATCHES, ("spec", "match")) for field in ("namespaceSelector", "objectSelector")),
    ("spec", "paramRef", "selector"),
)
_CONDITIONS: Final[tuple[Path, ...]] = (
    ("spec", "matchConditions"),
    ("spec", "match", "conditions"),
    ("spec", "exceptions", "*", "matchConditions"),
)


def _below(paths: Iterable[Path], *steps: str) -> tuple[Path, ...]:
    return tuple((*path, *steps) for path in paths)


RULES: Final = (
    ApiRule((("metadata", "labels"),), _labels),
    ApiRule((("metadata", "annotations"),), _annotations),
    ApiRule((("metadata", "finalizers", "*"),), _finalizer),
    ApiRule((("metadata", "ownerReferences", "*"),), _owner),
    ApiRule((("spec", "matchConstraints"),), _resource_rules),
    ApiRule((("spec",),), _does_something),
    ApiRule(_below(_SELECTORS, "matchLabels"), _labels),
    ApiRule(_below(_SELECTORS, "matchExpressions", "*"), _requirement),
    ApiRule(_below(_RULES, "apiGroups"), _alone("API groups")),
    ApiRule(_below(_RULES, "apiVersions"), _alone("API versions")),
    ApiRule(_below(_RULES, "operations"), _alone("operations")),
    ApiRule(_below(_RULES, "resources"), _resources),
    ApiRule(_below(_RULES, "resourceNames"), _unique("the name")),
    ApiRule(_below(_RULES, "resourceNames", "*"), _path_segment),
    ApiRule(_CONDITIONS, _at_most(64)),
    ApiRule(_CONDITIONS, _unique_names("condition", "name")),
    ApiRule(_below(_CONDITIONS, "*", "name"), _condition_name),
    ApiRule(_below(_CONDITIONS, "*", "expression"), _required_expression),
    ApiRule((("spec", "variables", "*", "name"),), _variable_name),
    ApiRule((("spec", "variables", "*", "expression"),), _required_expression),
    ApiRule((("spec", "validations", "*", "expression"),), _required_expression),
    ApiRule((("spec", "validations", "*", "message"),), _message),
    ApiRule((("spec", "validations", "*", "messageExpression"),), _not_blank),
    ApiRule((("spec", "mutations", "*", "jsonPatch", "expression"),), _required_expression),
    ApiRule((("spec", "mutations", "*", "applyConfiguration", "expression"),), _required_expression),
    ApiRule((("spec", "auditAnnotations"),), _at_most(20)),
    ApiRule((("spec", "auditAnnotations"),), _unique_names("audit annotation", "key")),
    ApiRule((("spec", "auditAnnotations", "*", "valueExpression"),), _audit_expression),
    ApiRule((("spec", "paramKind"),), _param_kind),
    ApiRule((("spec", "paramRef"),), _param_ref),
    ApiRule((("spec", "validationActions"),), _actions),
)
"""Every rule, in the order in which problems are reported."""


def _audit_keys(data: Mapping[str, Any]) -> Found:
    """The key of an audit annotation follows the policy's name and a '/'."""
    name = data["metadata"]["name"]
    for path, key in _values(data, ("spec", "auditAnnotations", "*", "key")):
        if "/" in key or label_key_fault(f"{name}/{key}"):
            yield path, f"{_shown(key)}: a key has at most 63 letters, digits, '-', '_' or '.', none of these at an end"


def _mutated_operations(data: Mapping[str, Any]) -> Found:
    """A deleted object cannot be changed."""
    if not data["kind"].startswith("MutatingAdmissionPolicy"):
        return
    for match in _MATCHES:
        for path, operation in _values(data, (*match, "resourceRules", "*", "operations", "*")):
            if operation == "DELETE":
                yield path, "a mutating policy has no DELETE: a deleted object cannot be changed"


def _values(value: object, pattern: Path) -> Iterator[tuple[Path, Any]]:
    found: list[tuple[Path, object]] = [((), value)]
    for step in pattern:
        below: list[tuple[Path, object]] = []
        for path, parent in found:
            if step == "*" and isinstance(parent, list):
                below += (((*path, at), item) for at, item in enumerate(parent))
            elif isinstance(parent, dict) and step in parent:
                below.append(((*path, step), parent[step]))
        found = below
    return ((path, found_value) for path, found_value in found if found_value is not None)


def _shown(value: object) -> str:
    return repr(short(str(value), 64))
