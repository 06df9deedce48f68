"""A table of ValidatingAdmissionPolicies and of requests: the API server and we must answer the same.

All policies only warn, so that one request shows the answers of all. `tests/cluster` records what the API server sends
to a webhook and what it warns of; `tests/webhook` compares the record with our evaluation.
"""

import datetime as dt
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cluster.store import Store
from kubecel_tests.evaluating import frozen_clock
from neuron.api.fields import namespace_value
from policies.applying.requests import subject_of, with_whole_namespace
from policies.files.loader import load
from policies.judging.evaluate import evaluate
from policies.judging.rules import PolicySet
from policies.judging.verdicts import Verdict
from webhook.edge import reviews

RECORD: Final = Path(__file__).parents[1] / "webhook" / "reviews" / "policy_requests.json"
NAMESPACE: Final = "policy-requests"
_NOW: Final = dt.datetime(2026, 6, 1, tzinfo=dt.UTC)

SEEN: Final = "request.operation + ' ' + request.kind.group + '/' + request.kind.version + ' ' + request.kind.kind"
_SHOWN: Final = (
    SEEN,
    "request.resource.resource + '.' + request.resource.version + '.' + request.resource.group",
    "request.?subResource.orValue('-')",
    "request.requestKind.version + ' ' + request.requestKind.kind + ' ' + request.requestResource.version",
    "request.?requestSubResource.orValue('-')",
    "request.?namespace.orValue('-')",
    "(object == null ? 'none' : string(dyn(object).apiVersion))",
    "(oldObject == null ? 'none' : string(dyn(oldObject).apiVersion))",
)
SHOWN: Final = " + ' ' + ".join(_SHOWN)


def _policy(
    resources: str = "*/*",
    groups: str = "*",
    versions: str = "*",
    operations: str = "*",
    message: str = SHOWN,
    expression: str = "false",
    match: str = "",
    rest: str = "",
    **rule: str,
) -> dict[str, Any]:
    """The spec of a policy; `match` and `rest` are JSON of more fields."""
    rules = {
        "apiGroups": groups.split(","),
        "apiVersions": versions.split(","),
        "operations": operations.split(","),
        "resources": resources.split(","),
        **rule,
    }
    return {
        "matchConstraints": {"resourceRules": [rules], **json.loads(match or "{}")},
        "validations": [{"expression": expression, "messageExpression": message}],
        **json.loads(rest or "{}"),
    }


def _namespace(expression: str) -> dict[str, Any]:
    """A policy that warns if an expression about the Namespace of a pod holds."""
    return _policy("pods", "", "v1", "CREATE", message="'holds'", expression=f"!({expression})")


_DRA: Final = "resource.k8s.io"
_EXACT: Final = '{"matchPolicy": "Exact"}'
POLICIES: Final[Mapping[str, dict[str, Any]]] = {
    "everything": _policy(),
    "resources": _policy("*", message="'resource'"),
    "pods": _policy("pods", "", message="'pods'"),
    "pods-any": _policy("pods/*", "", message="'pods and more'"),
    "any-scale": _policy("*/scale", message="'scale'"),
    "any-status": _policy("*/status", message="'status'"),
    "deployments-scale": _policy("deployments/scale", "apps", "v1", message="string(object.spec.replicas)"),
    "scale-of-autoscaling": _policy("*/scale", "autoscaling", message="'by kind'"),
    "scales": _policy("scales,scales/*", message="'by kind'"),
    "evictions": _policy("pods/eviction", "", "v1", "CREATE", message="string(object.kind)"),
    "evictions-of-policy": _policy("*/eviction", "policy", message="'by kind'"),
    "tokens": _policy("serviceaccounts/token", "", "v1", message="string(object.kind)"),
    "exec": _policy("pods/exec", "", "v1", "CONNECT", message="string(object.command[0]) + ' in ' + request.name"),
    "namespaced": _policy(scope="Namespaced", message="'namespaced'"),
    "cluster": _policy(scope="Cluster", message="'cluster'"),
    "excluded": _policy(
        match='{"excludeResourceRules": [{"apiGroups": ["*"], "apiVersions": ["v1"], "operations": ["*"], "resources":'
        ' ["pods/*", "resourceclaims"]}]}',
        message="'not excluded'",
    ),
    "excluded-exactly": _policy(
        match='{"matchPolicy": "Exact", "excludeResourceRules": [{"apiGroups": ["*"], "apiVersions": ["v1"],'
        ' "operations": ["*"], "resources": ["resourceclaims"]}]}',
        message="'not excluded'",
    ),
    "without-label": _policy(
        match='{"objectSelector": {"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}}',
        message="'no label'",
    ),
    "with-label": _policy(match='{"objectSelector": {"matchLabels": {"new": "yes"}}}', message="'new label'"),
    "of-team": _policy(match='{"namespaceSelector": {"matchLabels": {"team": "ml"}}}', message="'team'"),
    "condition": _policy(
        message="'condition'",
        rest='{"matchConditions": [{"name": "a", "expression": "request.operation == \'DELETE\' || object != null"}]}',
    ),
    "condition-on-labels": _policy(
        message="'labelled'",
        rest='{"matchConditions": [{"name": "a", "expression": "has(object.metadata.labels.new)"}]}',
    ),
    "params": _policy(
        "pods",
        "",
        "v1",
        message="'at most ' + string(params.data.most)",
        expression="int(params.data.most) > 3",
        rest='{"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}}',
    ),
    **{
        f"claims-{name.lower()}-{version}": _policy(
            "resourceclaims,resourceclaimtemplates,deviceclasses,resourceclaims/status",
            _DRA,
            version,
            match=match,
        )
        for version in ("v1", "v1beta1", "v1beta2")
        for name, match in (("Equivalent", ""), ("Exact", _EXACT))
    },
    "nested": _policy(
        "resourceclaims", _DRA, "v1", "CREATE,UPDATE", "string(object.spec.devices.requests[0].exactly.count)"
    ),
    "flat": _policy(
        "resourceclaims", _DRA, "v1beta1", "CREATE,UPDATE", "string(object.spec.devices.requests[0].count)"
    ),
    "nested-old": _policy(
        "resourceclaims", _DRA, "v1beta2", "UPDATE,DELETE", "string(oldObject.spec.devices.requests[0].exactly.count)"
    ),
    "ns-annotation": _namespace("namespaceObject.metadata.annotations.owner == 'ml'"),
    "ns-no-annotation": _namespace("has(namespaceObject.metadata.annotations.none)"),
    "ns-finalizers": _namespace("has(namespaceObject.metadata.finalizers)"),
    "ns-spec": _namespace("namespaceObject.spec.finalizers == ['kubernetes']"),
    "ns-phase": _namespace("namespaceObject.status.phase == 'Active'"),
    "ns-conditions": _namespace("has(namespaceObject.status.conditions)"),
    "ns-created": _namespace("has(namespaceObject.metadata.creationTimestamp)"),
    "ns-created-text": _namespace("string(namespaceObject.metadata.creationTimestamp).startsWith('20')"),
    "ns-created-time": _namespace("namespaceObject.metadata.creationTimestamp > timestamp('2020-01-01T00:00:00Z')"),
    "ns-uid": _namespace("has(namespaceObject.metadata.UID)"),
    "ns-uid-read": _namespace("namespaceObject.metadata.UID != ''"),
    "ns-deleted": _namespace("has(namespaceObject.metadata.deletionTimestamp)"),
    "ns-version": _namespace("namespaceObject.metadata.resourceVersion != ''"),
    "ns-kind": _namespace("has(dyn(namespaceObject).kind) || has(dyn(namespaceObject).apiVersion)"),
    "ns-fields": _namespace(
        "dyn(namespaceObject).metadata.all(k, k in ['name', 'uid', 'resourceVersion', "
        "'creationTimestamp', 'labels', 'annotations', 'generation'])"
    ),
    "ns-null": _policy(expression="namespaceObject != null", message="'null'"),
    "name": _policy(message="request.name"),
    "options": _policy(message="string(request.options.kind)"),
    "dry-run": _policy(message="string(request.dryRun)"),
    "user": _policy(message="request.userInfo.username + ' ' + string(size(request.userInfo.groups))"),
    "absent": _policy(expression="has(request.subResource) && has(request.namespace)", message="'absent'"),
}
PARAMETER: Final = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "most", "namespace": NAMESPACE},
    "data": {"most": "3"},
}


def documents(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A policy and its binding."""
    api = "admissionregistration.k8s.io/v1"
    about = f"requests-{name}"
    policy = {
        "apiVersion": api,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": about},
        "spec": POLICIES[name],
    }
    spec: dict[str, Any] = {"policyName": about, "validationActions": ["Warn"]}
    if "paramKind" in POLICIES[name]:
        spec["paramRef"] = {"name": "most", "namespace": NAMESPACE, "parameterNotFoundAction": "Deny"}
    binding = {
        "apiVersion": api,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": about},
        "spec": spec,
    }
    return policy, binding


def ours() -> PolicySet:
    """The same policies, loaded as files."""
    files = {
        f"{name}-{at}.yaml": json.dumps(each).encode() for name in POLICIES for at, each in enumerate(documents(name))
    }
    return load({**files, "most.yaml": json.dumps(PARAMETER).encode()})


class _Cluster(Store):
    """A cluster with the Namespace of the requests."""

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        super().__init__()
        self._namespace = namespace

    def namespace_labels(self, name: str) -> Mapping[str, str] | None:
        return self._namespace["metadata"]["labels"] if name == NAMESPACE else None

    def namespace_object(self, name: str) -> Mapping[str, Any] | None:
        return namespace_value(self._namespace) if name == NAMESPACE else super().namespace_object(name)


def without_details(message: str) -> str:
    """A message without the details of a run-time error, which differ between both."""
    errors = r"^(expression '.*' resulted in error|match condition '.*' failed).*"
    return re.sub(errors, "an error", message, flags=re.DOTALL)


def our_warnings(policies: PolicySet, review: Mapping[str, Any], namespace: Mapping[str, Any]) -> dict[str, str]:
    """What our policies say about a review, by name of the policy."""
    view = _Cluster(namespace)
    request = reviews.decode(json.dumps(review).encode())
    subject = with_whole_namespace(subject_of(request, view), view)
    verdicts = evaluate(policies.validating, subject, _NOW, frozen_clock)
    return dict(sorted((each.rule.name.removeprefix("requests-"), _said(each)) for each in verdicts if each.violations))


def _said(verdict: Verdict) -> str:
    return without_details(verdict.violations[0].message)
