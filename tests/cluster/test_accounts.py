"""What each ServiceAccount of the chart may write, with its token on a real API server."""

import dataclasses
import ssl
from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest

from tests.cluster.api import Api, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.helm import Helm
from tests.cluster.processes import eventually
from tests.deploy import webhook_requests as webhook
from tests.deploy.account_requests import DEAD_OWNER, DRIVER, DRIVER_REQUESTS, NODE, OTHER_NODE, Request
from tests.deploy.charts import AUDIT, NAMESPACE, render

VALUES: Final[dict[str, Any]] = {
    **AUDIT,
    # No pod of the webhook runs: nothing may wait for it.
    "admission": {
        "claims": {"failurePolicy": "Ignore", "timeoutSeconds": 1},
        "conversion": {"failurePolicy": "Ignore", "timeoutSeconds": 1},
        "workloads": {"failurePolicy": "Ignore", "timeoutSeconds": 1},
    },
    "policies": {"packs": ["privileged"], "claimTemplates": ["xl-trn2"]},
    "prune": {"enabled": True},
    "map": {"enabled": True},
}
ALL: Final = (
    *DRIVER_REQUESTS,
    *webhook.SECRET_REQUESTS,
    *webhook.KEPT_REQUESTS,
    *webhook.LEASE_REQUESTS,
    *webhook.TEMPLATE_REQUESTS,
    *webhook.EVENT_REQUESTS,
    *webhook.AUDIT_REQUESTS,
    *webhook.TEST_REQUESTS,
    *webhook.configuration_requests(render(VALUES)),
)
PODS: Final = {
    DRIVER: "driver-0",
    webhook.WEBHOOK: webhook.REPLICA,
    webhook.PRUNE: "prune-0",
    webhook.AUDIT: "audit-0",
    webhook.MAP: "map-0",
    webhook.TEST: "test-0",
}
"""The pods that the tokens are bound to."""
MERGE: Final = {"content-type": "application/merge-patch+json"}


@dataclasses.dataclass(frozen=True, slots=True)
class Client:
    """The HTTP API with one token."""

    http: httpx.Client

    @classmethod
    def of(cls, plane: ControlPlane, token: str) -> "Client":
        context = ssl.create_default_context(cafile=str(plane.authority.files.certificate))
        headers = {"authorization": f"Bearer {token}"}
        return cls(httpx.Client(base_url=plane.server, verify=context, headers=headers, timeout=30, trust_env=False))

    def send(self, request: Request) -> httpx.Response:
        headers = MERGE if request.verb == "PATCH" else {}
        params = {"dryRun": "All"} if request.dry_run else {}
        to = path(
            request.resource, request.old if request.verb != "POST" else request.body, whole=request.verb == "POST"
        )
        body = request.body if request.verb == "PATCH" else request.new
        return self.http.request(request.verb, to, headers=headers, params=params, json=body)


def path(resource: str, obj: Object | None, *, whole: bool = False) -> str:
    """URL of an object, or of its collection."""
    group, version, plural = resource.split("/")
    metadata = (obj or {})["metadata"]
    space = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
    root = f"/apis/{group}/{version}" if group else f"/api/{version}"
    return f"{root}{space}/{plural}" + ("" if whole else f"/{metadata['name']}")


@pytest.fixture(scope="module")
def plane(own_control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """With the chart installed, and two nodes."""
    plane = own_control_plane
    plane.admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    plane.wait_namespace_usable(NAMESPACE)
    for name in (NODE, OTHER_NODE):
        plane.admin.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    for plural, kind in (("reports", "Report"),):
        names = {"plural": plural, "singular": kind.lower(), "kind": kind}
        schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        version = {"name": "v1alpha1", "served": True, "storage": True, "schema": schema}
        spec = {"group": "openreports.io", "scope": "Namespaced", "names": names, "versions": [version]}
        metadata = {"name": f"{plural}.openreports.io"}
        body = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
        plane.admin.create({**body, "metadata": metadata, "spec": spec})
    eventually("reports to be served", lambda: plane.admin.healthy("/apis/openreports.io/v1alpha1/reports"))
    helm = Helm(plane, NAMESPACE)
    helm.install(VALUES)
    for hook in render(VALUES):
        if "helm.sh/hook" in hook["metadata"].get("annotations", {}) and hook["kind"] != "Pod":
            plane.admin.create(hook, hook["metadata"].get("namespace", ""))
    yield plane
    helm.uninstall()
    helm.close()


@pytest.fixture(scope="module")
def clients(plane: ControlPlane) -> Iterator[dict[str, Client]]:
    """A client for each account; its token is bound to a pod, as in a running pod."""
    made = {}
    for name, pod_name in PODS.items():
        container = {"name": "a", "image": "a"}
        spec = {
            "serviceAccountName": name,
            "nodeName": NODE,
            "containers": [container],
            "terminationGracePeriodSeconds": 0,
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod_name}, "spec": spec}
        plane.admin.create(pod, NAMESPACE)
        bound = ("--bound-object-kind=Pod", f"--bound-object-name={pod_name}")
        token = plane.kubectl().within(NAMESPACE).must("create", "token", name, "--duration=1h", *bound)
        made[name] = Client.of(plane, token.stdout.strip())
    yield made
    for client in made.values():
        client.http.close()


def api_refusal(plane: ControlPlane, client: Client, request: Request) -> str:
    """The API server's refusal; empty: the request was allowed. Nothing is left of it."""
    admin: Api = plane.admin
    request = dataclasses.replace(request, old=lasting(admin, request.old), body=lasting(admin, request.body))
    put = False
    if request.old is not None and not admin.healthy(path(request.resource, request.old)):
        entries = request.old["metadata"].get("managedFields") or [{"manager": "admin"}]
        params = {"fieldManager": entries[0]["manager"]}
        body = {**request.old, "metadata": {**request.old["metadata"], "managedFields": None}}
        admin.request("POST", path(request.resource, request.old, whole=True), json=body, params=params)
        put = True
    if request.verb == "PUT":
        found = admin.request("GET", path(request.resource, request.old)).body["metadata"]
        # What the object has of the chart stays, as in a program that reads it first.
        body = request.body or {}
        request = dataclasses.replace(request, body={**body, "metadata": found | body["metadata"]})
    answer = client.send(request)
    obj = request.old if request.verb != "POST" else request.body
    if put or (request.verb == "POST" and answer.is_success and not request.dry_run):
        try:
            admin.request("DELETE", path(request.resource, obj))
        except AssertionError:
            assert request.verb == "DELETE"
    assert answer.is_success or answer.status_code in (403, 422), answer.text
    return "" if answer.is_success else str(answer.json()["message"])


def lasting(admin: Api, obj: Object | None) -> Object | None:
    """The object, with the uid of a pod that exists as its owner: the garbage collector leaves it."""
    owners = (obj or {}).get("metadata", {}).get("ownerReferences") or ()
    if obj is None or [each["kind"] for each in owners] != ["Pod"]:
        return obj
    uid = admin.get("Pod", owners[0]["name"], NAMESPACE)["metadata"]["uid"]
    return {**obj, "metadata": {**obj["metadata"], "ownerReferences": [{**owners[0], "uid": uid}]}}


@pytest.fixture(scope="module")
def in_force(plane: ControlPlane, clients: dict[str, Client]) -> None:
    """The API server acts on the policies."""
    for request in ALL:
        if request.said and not request.rbac:
            eventually(
                f"the policy about {request.name}",
                lambda request=request: api_refusal(plane, clients[request.account], request),  # type: ignore[misc]
                timeout=60,
            )


@pytest.mark.usefixtures("in_force")
@pytest.mark.parametrize(
    "request_",
    [
        # `perDeviceNodeSelection` came with shared counters.
        pytest.param(each, marks=pytest.mark.needs("counters")) if "node for each device" in each.name else each
        for each in ALL
    ],
    ids=[f"{each.account}: {each.name}" for each in ALL],
)
def test_a_token_writes_only_what_its_program_writes(
    plane: ControlPlane, clients: dict[str, Client], request_: Request
) -> None:
    said = api_refusal(plane, clients[request_.account], request_)
    if request_.rbac:
        assert "is forbidden: User" in said
    elif request_.said:
        # Kubernetes' own validation comes first.
        assert request_.said in said or "field is immutable" in said
    else:
        assert said == ""


def test_the_policies_are_type_checked(plane: ControlPlane) -> None:
    kubectl = plane.kubectl()

    def checked() -> list[Object] | None:
        found = kubectl.get("validatingadmissionpolicies")["items"]
        return found if all("typeChecking" in each.get("status", {}) for each in found) else None

    found = eventually("every policy to be type-checked", checked, timeout=60)
    warnings = {each["metadata"]["name"]: each["status"]["typeChecking"].get("expressionWarnings") for each in found}
    assert len(warnings) > 5
    assert not any(warnings.values()), warnings


@pytest.mark.parametrize("kind", ["MutatingWebhook", "ValidatingWebhook"])
def test_requests_about_an_entry_cover_every_field_of_the_api(plane: ControlPlane, kind: str) -> None:
    schemas = plane.admin.request("GET", "/openapi/v3/apis/admissionregistration.k8s.io/v1").body["components"][
        "schemas"
    ]
    [fields] = [each["properties"] for name, each in schemas.items() if name.endswith(f".{kind}")]
    asked = {*webhook.ENTRY_FIELDS, "name", "clientConfig", "rules"}
    assert set(fields) <= asked


def test_the_garbage_collector_cannot_get_a_token_of_another_account(
    plane: ControlPlane, clients: dict[str, Client]
) -> None:
    """The whole attack: an owner that is gone, and a token of the driver under the name of the deleted Secret."""
    client = clients[webhook.WEBHOOK]
    url = f"/api/v1/namespaces/{NAMESPACE}/secrets"
    before = plane.admin.get("Secret", "neuron-dra-tls", NAMESPACE)
    owned = {"metadata": {"ownerReferences": [DEAD_OWNER]}}
    for method, to in (("PATCH", f"{url}/neuron-dra-tls"), ("PATCH", f"{url}/neuron-dra-tls?fieldManager=neuron-dra")):
        assert client.http.request(method, to, json=owned, headers=MERGE).status_code == httpx.codes.FORBIDDEN
    applied = {"content-type": "application/apply-patch+yaml"}
    whole = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "neuron-dra-tls", **owned["metadata"]}}
    forced = f"{url}/neuron-dra-tls?fieldManager=me&force=true"
    assert client.http.patch(forced, json=whole, headers=applied).status_code == httpx.codes.FORBIDDEN
    token = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/service-account-token",
        "metadata": {"name": "neuron-dra-tls", "annotations": {"kubernetes.io/service-account.name": DRIVER}},
    }
    assert client.http.post(url, json=token).status_code == httpx.codes.FORBIDDEN
    # A server-side apply may create the Secret of this name, where it does not exist, as the webhook does; no other.
    plane.admin.delete("Secret", "neuron-dra-tls", NAMESPACE)
    empty = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "neuron-dra-tls"}}
    for body in (token, whole, {**empty, "data": {"ca.crt": "YQ=="}}, {**empty, "immutable": True}):
        answer = client.http.patch(forced, json=body, headers=applied)
        assert "makes its Secret empty" in answer.text, (body, answer.text)
    other = {**empty, "metadata": {"name": "other"}}
    answer = client.http.patch(f"{url}/other?fieldManager=me", json=other, headers=applied)
    assert answer.status_code == httpx.codes.FORBIDDEN
    assert client.http.post(url, json=empty).status_code == httpx.codes.FORBIDDEN
    assert client.http.patch(forced, json=empty, headers=applied).status_code == httpx.codes.CREATED
    before = plane.admin.get("Secret", "neuron-dra-tls", NAMESPACE)
    account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{DRIVER}/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    assert client.http.post(account, json=request).status_code == httpx.codes.FORBIDDEN
    assert plane.admin.get("Secret", "neuron-dra-tls", NAMESPACE)["metadata"] == before["metadata"]
