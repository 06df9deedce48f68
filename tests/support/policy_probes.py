"""Admission policies and bindings that are valid in all but one thing, with the API server's answer to each.

A table of the rules of Kubernetes' validation, and a generator of others. A test without a cluster compares it with our
loader, and one with a cluster with the API server.
"""

import copy
import random
from collections.abc import Iterator, Mapping
from typing import Any, Final

POLICY: Final[dict[str, Any]] = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicy",
    "metadata": {"name": "probe"},
    "spec": {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
            ]
        },
        "validations": [{"expression": "object.metadata.name != 'x'"}],
    },
}
BINDING: Final[dict[str, Any]] = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicyBinding",
    "metadata": {"name": "probe"},
    "spec": {"policyName": "probe", "validationActions": ["Deny"]},
}

_RULE = "spec.matchConstraints.resourceRules.0"
_SELECTOR = "spec.matchConstraints.objectSelector"
_LONG = "a" * 64


def _nested(depth: int) -> str:
    text = "true"
    for at in range(depth):
        text = f"object.spec.containers.all(c{at}, {text})"
    return text


def _conditions(*names: str) -> list[dict[str, str]]:
    return [{"name": name, "expression": "true"} for name in names]


def _requirement(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, **({"values": list(values)} if values else {})}]}


def _variable(name: str, expression: str = "1") -> list[dict[str, str]]:
    return [{"name": name, "expression": expression}]


PROBES: Final[Mapping[str, tuple[str, Any, bool]]] = {
    # name: (path, value, whether the API server accepts it)
    "groups-mixed": (f"{_RULE}.apiGroups", ["*", ""], False),
    "groups-wildcard": (f"{_RULE}.apiGroups", ["*"], True),
    "groups-empty": (f"{_RULE}.apiGroups", [], False),
    "groups-twice": (f"{_RULE}.apiGroups", ["apps", "apps"], True),
    "groups-odd": (f"{_RULE}.apiGroups", ["Apps/V1"], True),
    "versions-mixed": (f"{_RULE}.apiVersions", ["v1", "*"], False),
    "versions-blank": (f"{_RULE}.apiVersions", [""], False),
    "versions-odd": (f"{_RULE}.apiVersions", ["apps/v1"], True),
    "operations-mixed": (f"{_RULE}.operations", ["*", "CREATE"], False),
    "operations-wildcard": (f"{_RULE}.operations", ["*"], True),
    "operations-unknown": (f"{_RULE}.operations", ["Create"], False),
    "operations-connect": (f"{_RULE}.operations", ["CONNECT", "DELETE"], True),
    "resources-mixed": (f"{_RULE}.resources", ["*", "pods"], False),
    "resources-mixed-first": (f"{_RULE}.resources", ["pods", "*"], True),
    "resources-with-subresources": (f"{_RULE}.resources", ["*", "pods/exec"], True),
    "resources-everything-mixed": (f"{_RULE}.resources", ["*/*", "pods"], False),
    "resources-covered": (f"{_RULE}.resources", ["pods/*", "pods/exec"], False),
    "resources-not-covered-yet": (f"{_RULE}.resources", ["pods/exec", "pods/*"], True),
    "resources-covered-everywhere": (f"{_RULE}.resources", ["*/scale", "deployments/scale"], False),
    "resources-blank": (f"{_RULE}.resources", [""], False),
    "resources-kind": (f"{_RULE}.resources", ["Pod"], True),
    "names": (f"{_RULE}.resourceNames", ["a", "B c"], True),
    "names-twice": (f"{_RULE}.resourceNames", ["a", "a"], False),
    "names-dots": (f"{_RULE}.resourceNames", [".."], False),
    "names-slash": (f"{_RULE}.resourceNames", ["a/b"], False),
    "names-percent": (f"{_RULE}.resourceNames", ["a%b"], False),
    "names-blank": (f"{_RULE}.resourceNames", [""], True),
    "scope": (f"{_RULE}.scope", "Namespaced", True),
    "scope-null": (f"{_RULE}.scope", None, True),
    "scope-unknown": (f"{_RULE}.scope", "namespaced", False),
    "no-rules": ("spec.matchConstraints.resourceRules", [], False),
    "excluded-mixed": (
        "spec.matchConstraints.excludeResourceRules",
        [{"apiGroups": ["*", ""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        False,
    ),
    "match-policy-unknown": ("spec.matchConstraints.matchPolicy", "Same", False),
    "labels": (f"{_SELECTOR}.matchLabels", {"a.b/c": "d_e"}, True),
    "label-key": (f"{_SELECTOR}.matchLabels", {"a b": "c"}, False),
    "label-key-prefix": (f"{_SELECTOR}.matchLabels", {"A.b/c": "d"}, False),
    "label-key-long": (f"{_SELECTOR}.matchLabels", {_LONG: "d"}, False),
    "label-key-two-slashes": (f"{_SELECTOR}.matchLabels", {"a/b/c": "d"}, False),
    "label-value": (f"{_SELECTOR}.matchLabels", {"a": "-b"}, False),
    "label-value-empty": (f"{_SELECTOR}.matchLabels", {"a": ""}, True),
    "exists-with-values": (_SELECTOR, _requirement("env", "Exists", "prod"), False),
    "exists": (_SELECTOR, _requirement("env", "Exists"), True),
    "in-without-values": (_SELECTOR, _requirement("env", "In"), False),
    "not-in": (_SELECTOR, _requirement("env", "NotIn", "a", "b"), True),
    "in-with-a-value-of-no-label": (_SELECTOR, _requirement("env", "In", "a b"), False),
    "requirement-key": (_SELECTOR, _requirement("team name", "Exists"), False),
    "requirement-operator": (_SELECTOR, _requirement("env", "Equals", "a"), False),
    "conditions": ("spec.matchConditions", _conditions("a", "b.c/D_e"), True),
    "conditions-twice": ("spec.matchConditions", _conditions("a", "a"), False),
    "condition-name": ("spec.matchConditions", _conditions("a b"), False),
    "condition-name-empty": ("spec.matchConditions", _conditions(""), False),
    "condition-name-long": ("spec.matchConditions", _conditions(_LONG), False),
    "conditions-64": ("spec.matchConditions", _conditions(*(f"c{at}" for at in range(64))), True),
    "conditions-65": ("spec.matchConditions", _conditions(*(f"c{at}" for at in range(65))), False),
    "condition-blank": ("spec.matchConditions", [{"name": "a", "expression": "  "}], False),
    "condition-reads-variables": ("spec.matchConditions", [{"name": "a", "expression": "variables.a == 1"}], False),
    "condition-dyn": ("spec.matchConditions", [{"name": "a", "expression": "object.spec.hostNetwork"}], False),
    "condition-reads-namespace": (
        "spec.matchConditions",
        [{"name": "a", "expression": "namespaceObject.metadata.name == 'a'"}],
        True,
    ),
    "variable-in": ("spec.variables", _variable("in"), False),
    "variable-namespace": ("spec.variables", _variable("namespace"), False),
    "variable-digit": ("spec.variables", _variable("1a"), False),
    "variable-dash": ("spec.variables", _variable("a-b"), False),
    "variable-long": ("spec.variables", _variable(_LONG), True),
    "variable-blank": ("spec.variables", _variable("a", " "), False),
    "variable-twice": ("spec.variables", _variable("a") + _variable("a", "2"), True),
    "variable-later": ("spec.variables", _variable("a", "variables.b") + _variable("b"), False),
    "variable-itself": ("spec.variables", _variable("a", "variables.a"), False),
    "message-empty": ("spec.validations.0.message", "", True),
    "message-blank": ("spec.validations.0.message", "  ", False),
    "message-null": ("spec.validations.0.message", None, True),
    "message-line-break": ("spec.validations.0.message", "a\nb", False),
    "message-line-break-at-the-end": ("spec.validations.0.message", "a\n", True),
    "message-expression-empty": ("spec.validations.0.messageExpression", "", True),
    "message-expression-blank": ("spec.validations.0.messageExpression", " ", False),
    "message-expression-dyn": ("spec.validations.0.messageExpression", "object.metadata.name", False),
    "reason-unknown": ("spec.validations.0.reason", "Conflict", False),
    "expression-empty": ("spec.validations.0.expression", "", False),
    "expression-blank": ("spec.validations.0.expression", "\n ", False),
    "expression-dyn": ("spec.validations.0.expression", "object.spec.hostNetwork", False),
    "expression-int": ("spec.validations.0.expression", "1", False),
    "expression-20-KiB": ("spec.validations.0.expression", " && ".join(["object.spec.x != 'abc'"] * 820), True),
    "expression-seven-loops": ("spec.validations.0.expression", _nested(7), True),
    "expression-reads-params": ("spec.validations.0.expression", "params.x == 1", False),
    "expression-reads-ours": ("spec.validations.0.expression", "neuron.devices == 1", False),
    "expression-binds": ("spec.validations.0.expression", "cel.bind(a, 1, a == 1)", False),
    "no-validations": ("spec.validations", [], False),
    "validations-null": ("spec.validations", None, False),
    "audit": ("spec.auditAnnotations", [{"key": "a", "valueExpression": "string(object.kind)"}], True),
    "audit-int": ("spec.auditAnnotations", [{"key": "a", "valueExpression": "1"}], False),
    "audit-dyn": ("spec.auditAnnotations", [{"key": "a", "valueExpression": "object.metadata.name"}], False),
    "audit-null": ("spec.auditAnnotations", [{"key": "a", "valueExpression": "null"}], True),
    "audit-key": ("spec.auditAnnotations", [{"key": "a b", "valueExpression": "'a'"}], False),
    "audit-key-slash": ("spec.auditAnnotations", [{"key": "a/b", "valueExpression": "'a'"}], False),
    "audit-twice": ("spec.auditAnnotations", [{"key": "a", "valueExpression": "'a'"}] * 2, False),
    "audit-20": (
        "spec.auditAnnotations",
        [{"key": f"k{at}", "valueExpression": "'a'"} for at in range(20)],
        True,
    ),
    "audit-21": (
        "spec.auditAnnotations",
        [{"key": f"k{at}", "valueExpression": "'a'"} for at in range(21)],
        False,
    ),
    "audit-long": ("spec.auditAnnotations", [{"key": "a", "valueExpression": f"'{'a' * 5200}'"}], False),
    "param-kind": ("spec.paramKind", {"apiVersion": "a.example.com/v1alpha1", "kind": "Limits"}, True),
    "param-kind-version": ("spec.paramKind", {"apiVersion": "v1/", "kind": "Limits"}, False),
    "param-kind-without-group": ("spec.paramKind", {"apiVersion": "/v1", "kind": "Limits"}, True),
    "param-kind-slashes": ("spec.paramKind", {"apiVersion": "a/b/v1", "kind": "Limits"}, False),
    "param-kind-group": ("spec.paramKind", {"apiVersion": "A.b/v1", "kind": "Limits"}, False),
    "param-kind-digit": ("spec.paramKind", {"apiVersion": "v1", "kind": "1Limits"}, False),
    "param-kind-dot": ("spec.paramKind", {"apiVersion": "v1", "kind": "Li.mits"}, False),
    "param-kind-without-version": ("spec.paramKind", {"kind": "Limits"}, False),
    "failure-policy-unknown": ("spec.failurePolicy", "fail", False),
    "unknown-field": ("spec.validation", [], False),
    "metadata-labels": ("metadata.labels", {"a": "b c"}, False),
    "metadata-annotations": ("metadata.annotations", {"A.b/c": "any text"}, True),
    "metadata-annotation-key": ("metadata.annotations", {"a b": "c"}, False),
    "metadata-owner": (
        "metadata.ownerReferences",
        [{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": ""}],
        False,
    ),
    "metadata-owner-with-uid": (
        "metadata.ownerReferences",
        [{"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "1"}],
        True,
    ),
    "metadata-finalizers": ("metadata.finalizers", ["a.b/c", "d e"], False),
    "metadata-namespace": ("metadata.namespace", "x", True),
    "labels-null": ("metadata.labels", None, True),
    "selector-null": ("spec.matchConstraints.namespaceSelector", None, True),
    "metadata-name": ("metadata.name", "Probe", False),
}
BINDING_PROBES: Final[Mapping[str, tuple[str, Any, bool]]] = {
    "actions-empty": ("spec.validationActions", [], False),
    "actions-both": ("spec.validationActions", ["Deny", "Warn"], False),
    "actions-twice": ("spec.validationActions", ["Audit", "Audit"], False),
    "actions-two": ("spec.validationActions", ["Deny", "Audit"], True),
    "actions-unknown": ("spec.validationActions", ["deny"], False),
    "policy-name": ("spec.policyName", "A b", False),
    "match-mixed": (
        "spec.matchResources",
        {"resourceRules": [{"apiGroups": ["*", ""], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]}]},
        False,
    ),
    "match-selector": ("spec.matchResources", {"namespaceSelector": _requirement("env", "In")}, False),
    "ref": ("spec.paramRef", {"name": "a", "parameterNotFoundAction": "Allow"}, True),
    "ref-without-action": ("spec.paramRef", {"name": "a"}, False),
    "ref-both": ("spec.paramRef", {"name": "a", "selector": {}, "parameterNotFoundAction": "Allow"}, False),
    "ref-none": ("spec.paramRef", {"parameterNotFoundAction": "Allow"}, False),
    "ref-blank-name": ("spec.paramRef", {"name": "", "selector": {}, "parameterNotFoundAction": "Allow"}, True),
    "ref-slash": ("spec.paramRef", {"name": "a/b", "parameterNotFoundAction": "Allow"}, False),
    "ref-namespace": ("spec.paramRef", {"name": "a", "namespace": "A b", "parameterNotFoundAction": "Allow"}, True),
    "ref-selector": (
        "spec.paramRef",
        {"selector": _requirement("a", "Exists", "b"), "parameterNotFoundAction": "Allow"},
        False,
    ),
}


def with_value(data: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with one value set; missing parents become mappings."""
    made = copy.deepcopy(dict(data))
    *parents, last = path.split(".")
    at: Any = made
    for step in parents:
        at = at[int(step)] if isinstance(at, list) else at.setdefault(step, {})
    at[last] = value
    return made


def generated(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Random policies: each rule, selector, condition and name is drawn from valid and odd ones."""
    draw = random.Random(seed)  # noqa: S311 - reproducible, not secret
    words = ["a", "B", "a b", "", "a.b", "-a", "a-", "a/b", "a/b/c", "in", "if", "x1", "1x", "ä", _LONG, "*", "*/*"]
    resources = ["pods", "*", "*/*", "pods/*", "pods/exec", "*/scale", "", "deployments/scale"]

    def some(pool: list[str], most: int = 3) -> list[str]:
        return [draw.choice(pool) for _ in range(draw.randint(0, most))]

    for _ in range(count):
        policy = copy.deepcopy(POLICY)
        spec = policy["spec"]
        rule = spec["matchConstraints"]["resourceRules"][0]
        for field, pool in (
            ("apiGroups", ["", "apps", "*"]),
            ("apiVersions", ["v1", "*", ""]),
            ("operations", ["CREATE", "*", "DELETE"]),
            ("resources", resources),
            ("resourceNames", words),
        ):
            if draw.random() < 0.4:
                rule[field] = some(pool)
        if draw.random() < 0.4:
            operator = draw.choice(["In", "NotIn", "Exists", "DoesNotExist"])
            spec["matchConstraints"]["namespaceSelector"] = _requirement(draw.choice(words), operator, *some(words, 1))
        if draw.random() < 0.4:
            spec["matchConditions"] = _conditions(*some(words, 2))
        if draw.random() < 0.4:
            spec["variables"] = [{"name": name, "expression": "1"} for name in some(words, 2)]
        if draw.random() < 0.3:
            spec["auditAnnotations"] = [{"key": key, "valueExpression": "'a'"} for key in some(words, 2)]
        if draw.random() < 0.3:
            spec["paramKind"] = {"apiVersion": draw.choice([*words, "v1", "a.b/v1"]), "kind": draw.choice(words)}
        if draw.random() < 0.3:
            spec["validations"][0]["message"] = draw.choice([*words, " ", "a\nb", "a\n"])
        yield policy
