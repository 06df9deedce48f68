"""The API server's ValidatingAdmissionPolicies and ours give the same answers to the same requests.

`NEURON_DRA_RECORD=1` writes the answers of the API server to `tests/webhook/reviews/policy_requests.json`.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest

from policies.judging.rules import PolicySet
from tests.cluster.api import Api, Object, warnings_of
from tests.cluster.controlplane import ControlPlane
from tests.cluster.recorder import Recorder
from tests.support.policy_requests import (
    NAMESPACE,
    PARAMETER,
    POLICIES,
    RECORD,
    documents,
    our_warnings,
    ours,
    without_details,
)
from tests.support.subresources import SUBRESOURCES

_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_PATIENCE: Final = 60.0
"""Seconds until the policies are in force."""
_AFTER: Final = 10.0
"""Seconds until all of them are, if one is."""
_MERGE: Final = {"content-type": "application/merge-patch+json"}
_LABEL: Final = {"metadata": {"labels": {"new": "yes"}}}
_DRA: Final = "/apis/resource.k8s.io"
_IN: Final = f"namespaces/{NAMESPACE}"
_CONTAINER: Final = {"name": "main", "image": "pause"}
_EXACT: Final = {"deviceClassName": "neuron.aws.com", "count": 2}


def versioned_claim(version: str, name: str = "new", kind: str = "ResourceClaim") -> Object:
    request = {"name": "r", **_EXACT} if version == "v1beta1" else {"name": "r", "exactly": _EXACT}
    spec: Object = {"devices": {"requests": [request]}}
    spec = {"spec": spec} if kind == "ResourceClaimTemplate" else spec
    return {"apiVersion": f"resource.k8s.io/{version}", "kind": kind, "metadata": {"name": name}, "spec": spec}


def resizable_pod(name: str, **labels: str) -> Object:
    metadata = {"name": name, "labels": labels}
    # With a request, a resize keeps the pod's class of quality of service.
    spec = {
        "containers": [{**_CONTAINER, "resources": {"requests": {"cpu": "1"}}}],
        "schedulerName": "none",
        "terminationGracePeriodSeconds": 0,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def idle_workload(kind: str, name: str) -> Object:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [_CONTAINER]}}
    spec: Object = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    if kind == "StatefulSet":
        spec["serviceName"] = name
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def create(path: str, body: Object) -> tuple[str, str, Object]:
    return "POST", path, {"json": body, "params": {"dryRun": "All"}}


def patch(path: str, body: Object) -> tuple[str, str, Object]:
    return "PATCH", path, {"json": body, "headers": _MERGE, "params": {"dryRun": "All"}}


def delete(path: str) -> tuple[str, str, Object]:
    return "DELETE", path, {"params": {"dryRun": "All"}}


_CORE: Final = f"/api/v1/{_IN}"
_APPS: Final = f"/apis/apps/v1/{_IN}"
_SCALE: Final = {"spec": {"replicas": 0}, "metadata": {"annotations": {"a": "b"}}}
_EPHEMERAL: Final = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "pause"}]}}
_NODE: Final = {"apiVersion": "v1", "kind": "Node", "name": "none"}
REQUESTS: Final[Mapping[str, tuple[str, str, Object]]] = {
    "create-pod": create(f"{_CORE}/pods", resizable_pod("new", new="yes")),
    "create-unnamed-pod": create(f"{_CORE}/pods", {**resizable_pod(""), "metadata": {"generateName": "made-"}}),
    "label-pod": patch(f"{_CORE}/pods/old", _LABEL),
    "delete-pod": delete(f"{_CORE}/pods/old"),
    "pod-status": patch(f"{_CORE}/pods/old/status", {"status": {"message": "x"}}),
    "pod-resize": patch(
        f"{_CORE}/pods/old/resize", {"spec": {"containers": [{**_CONTAINER, "resources": {"requests": {"cpu": "2"}}}]}}
    ),
    "ephemeral-containers": patch(f"{_CORE}/pods/old/ephemeralcontainers", _EPHEMERAL),
    "exec": ("POST", f"{_CORE}/pods/old/exec", {"params": {"command": "sh", "container": "main", "stdout": "true"}}),
    "attach": ("POST", f"{_CORE}/pods/old/attach", {"params": {"stdout": "true"}}),
    "port-forward": ("POST", f"{_CORE}/pods/old/portforward", {}),
    "pod-proxy": ("GET", f"{_CORE}/pods/old/proxy", {}),
    "service-proxy": ("GET", f"{_CORE}/services/old/proxy", {}),
    "evict": create(
        f"{_CORE}/pods/old/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "old"}}
    ),
    "bind": create(
        f"{_CORE}/pods/old/binding",
        {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "old"}, "target": _NODE},
    ),
    "token": create(
        f"{_CORE}/serviceaccounts/default/token",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": ["x"]}},
    ),
    "create-deployment": create(f"{_APPS}/deployments", idle_workload("Deployment", "new")),
    "scale-deployment": patch(f"{_APPS}/deployments/old/scale", _SCALE),
    "deployment-status": patch(f"{_APPS}/deployments/old/status", {"status": {"observedGeneration": 9}}),
    "scale-stateful-set": patch(f"{_APPS}/statefulsets/old/scale", _SCALE),
    "scale-replica-set": patch(f"{_APPS}/replicasets/old/scale", _SCALE),
    "delete-deployment": delete(f"{_APPS}/deployments/old"),
    **{
        f"{verb}-claim-{version}": made
        for version in ("v1", "v1beta1", "v1beta2")
        for verb, made in (
            ("create", create(f"{_DRA}/{version}/{_IN}/resourceclaims", versioned_claim(version))),
            ("label", patch(f"{_DRA}/{version}/{_IN}/resourceclaims/old", _LABEL)),
            ("delete", delete(f"{_DRA}/{version}/{_IN}/resourceclaims/old")),
            ("status", patch(f"{_DRA}/{version}/{_IN}/resourceclaims/old/status", _LABEL)),
            (
                "template",
                create(
                    f"{_DRA}/{version}/{_IN}/resourceclaimtemplates",
                    versioned_claim(version, kind="ResourceClaimTemplate"),
                ),
            ),
            (
                "class",
                create(
                    f"{_DRA}/{version}/deviceclasses",
                    {
                        "apiVersion": f"resource.k8s.io/{version}",
                        "kind": "DeviceClass",
                        "metadata": {"name": "new.example.com"},
                        "spec": {"selectors": [{"cel": {"expression": "true"}}]},
                    },
                ),
            ),
        )
    },
    "label-namespace": patch(f"/api/v1/{_IN}", {"metadata": {"labels": {"new": "yes"}}}),
    "unlabel-namespace": patch(f"/api/v1/{_IN}", {"metadata": {"labels": {"team": None}}}),
    "create-namespace": create(
        "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "policy-requests-new"}}
    ),
    "delete-namespace": delete(f"/api/v1/{_IN}"),
    "namespace-status": patch(f"/api/v1/{_IN}/status", {"metadata": {"labels": {"team": "x"}}}),
    "review-token": create(
        "/apis/authentication.k8s.io/v1/tokenreviews",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "x"}},
    ),
    "review-access": create(
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": "x", "nonResourceAttributes": {"path": "/", "verb": "get"}},
        },
    ),
    "create-event": create(
        f"{_CORE}/events",
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "new"},
            "involvedObject": {"namespace": NAMESPACE, "kind": "Pod", "name": "old"},
        },
    ),
    "create-scaler": create(
        f"/apis/autoscaling/v2/{_IN}/horizontalpodautoscalers",
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "new"},
            "spec": {
                "maxReplicas": 2,
                "scaleTargetRef": {"kind": "Deployment", "name": "old", "apiVersion": "apps/v1"},
            },
        },
    ),
}
_NOT_SENT: Final = ("review-token", "review-access")
"""Requests of which the API server shows policies nothing; a webhook sees them."""


@pytest.fixture(scope="module")
def recorder(lent_control_plane: ControlPlane) -> Iterator[Recorder]:
    """Everything that requests need, and a webhook that records them."""
    api = lent_control_plane.admin
    metadata = {"name": NAMESPACE, "labels": {"team": "ml"}, "annotations": {"owner": "ml"}}
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    lent_control_plane.wait_namespace_usable(NAMESPACE)
    api.request("POST", f"{_CORE}/configmaps", json=PARAMETER)
    api.request("POST", f"{_CORE}/pods", json=resizable_pod("old"))
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "old"}, "spec": {"ports": [{"port": 80}]}}
    api.request("POST", f"{_CORE}/services", json=service)
    for kind in ("Deployment", "StatefulSet", "ReplicaSet"):
        api.request("POST", f"{_APPS}/{kind.lower()}s", json=idle_workload(kind, "old"))
    api.request("POST", f"{_DRA}/v1/{_IN}/resourceclaims", json=versioned_claim("v1", "old"))
    recorder = Recorder(lent_control_plane)
    recorder.start()
    user = api.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", json=_WHO).body["status"][
        "userInfo"
    ]
    api.create(recorder.configuration(user["username"]))
    try:
        for name in POLICIES:
            policy, binding = documents(name)
            api.request("POST", f"{_ADMISSION}/validatingadmissionpolicies", json=policy)
            api.request("POST", f"{_ADMISSION}/validatingadmissionpolicybindings", json=binding)
        yield recorder
    finally:
        for name in POLICIES:
            for plural in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
                api.answer("DELETE", f"{_ADMISSION}/{plural}/requests-{name}")
        api.delete("ValidatingWebhookConfiguration", recorder.configuration("")["metadata"]["name"])
        recorder.stop()


_WHO: Final = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}


@pytest.fixture(scope="module")
def policies() -> PolicySet:
    return ours()


@pytest.fixture(scope="module")
def record() -> Iterator[dict[str, Any]]:
    made: dict[str, Any] = {}
    yield made
    if os.environ.get("NEURON_DRA_RECORD"):
        RECORD.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")


def their_warnings(warnings: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for warning in warnings:
        head, _, message = warning.partition("': ")
        if head.startswith("Validation failed for ValidatingAdmissionPolicy 'requests-"):
            found[head.split("'")[1].removeprefix("requests-")] = without_details(message)
    return dict(sorted(found.items()))


def asked(api: Api, recorder: Recorder, request: tuple[str, str, Object]) -> tuple[Object, dict[str, str]]:
    """The review that the recorder got, and what the API server's policies warn of."""
    method, path, arguments = request
    recorder.reviews.clear()
    response = api.answer(method, path, **arguments)
    assert recorder.reviews, f"{response.status_code}: {response.text[:500]}"
    return recorder.reviews[-1], their_warnings(warnings_of(response))


def pruned(review: Object) -> Object:
    for field in ("object", "oldObject"):
        metadata = (review["request"].get(field) or {}).get("metadata") or {}
        metadata.pop("managedFields", None)
    return review


@pytest.mark.parametrize("name", REQUESTS)
def test_the_api_server_and_the_webhook_give_the_same_warnings(
    lent_control_plane: ControlPlane, recorder: Recorder, policies: PolicySet, record: dict[str, Any], name: str
) -> None:
    api = lent_control_plane.admin
    started = time.monotonic()
    while True:
        namespace = api.get("Namespace", NAMESPACE)
        review, theirs = asked(api, recorder, REQUESTS[name])
        found = our_warnings(policies, review, namespace)
        in_force = name in _NOT_SENT or "everything" in theirs
        patience = _AFTER if in_force else _PATIENCE
        if (found == theirs and in_force) or time.monotonic() > started + patience:
            break
        time.sleep(0.5)
    record[name] = {"review": pruned(review), "namespace": namespace, "warned": theirs}
    assert found == theirs
    assert bool(theirs) is (name not in _NOT_SENT)


def test_the_table_of_subresources_is_that_of_the_api_server(lent_control_plane: ControlPlane) -> None:
    api = lent_control_plane.admin
    found = set()
    groups = api.request("GET", "/apis").body["groups"]
    lists = ["/api/v1", *(f"/apis/{each['groupVersion']}" for group in groups for each in group["versions"])]
    for path in lists:
        body = api.request("GET", path).body
        group, _, version = body["groupVersion"].rpartition("/")
        for each in body["resources"]:
            resource, _, name = each["name"].partition("/")
            if name and {"create", "update", "patch"} & set(each["verbs"]):
                kind = (each.get("group", group), each.get("version", version), each["kind"])
                found.add((group, version, resource, name, kind, each["namespaced"]))
    known = {(each.group, each.version, each.resource, each.name, each.kind, each.namespaced) for each in SUBRESOURCES}
    judged = {each for each in found if not each[0].endswith(("x-k8s.io", "admissionregistration.k8s.io"))}
    stable = {each for each in judged if "alpha" not in each[1] and "beta" not in each[1]}
    assert known == stable
