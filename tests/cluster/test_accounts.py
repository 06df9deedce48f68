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
from tests.deploy.account_requests import DRIVER, DRIVER_REQUESTS, NODE, OTHER_NODE, Request
from tests.deploy.charts import NAMESPACE

VALUES: Final[dict[str, Any]] = {"admission": {"claims": {"enabled": False}, "conversion": {"failurePolicy": "Ignore"}}}
"""No pod of the webhook runs: nothing may wait for it."""
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
    helm = Helm(plane, NAMESPACE)
    helm.install(VALUES)
    yield plane
    helm.uninstall()
    helm.close()


@pytest.fixture(scope="module")
def clients(plane: ControlPlane) -> dict[str, Client]:
    """A client for each account; its token is bound to a pod, as in a running pod."""
    made = {}
    for name in (DRIVER,):
        container = {"name": "a", "image": "a"}
        spec = {
            "serviceAccountName": name,
            "nodeName": NODE,
            "containers": [container],
            "terminationGracePeriodSeconds": 0,
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{name}-0"}, "spec": spec}
        plane.admin.create(pod, NAMESPACE)
        bound = ("--bound-object-kind=Pod", f"--bound-object-name={name}-0")
        token = plane.kubectl().within(NAMESPACE).must("create", "token", name, "--duration=1h", *bound)
        made[name] = Client.of(plane, token.stdout.strip())
    return made


def told(plane: ControlPlane, client: Client, request: Request) -> str:
    """The API server's refusal; empty: the request was allowed. Nothing is left of it."""
    admin: Api = plane.admin
    put = False
    if request.old is not None:
        where = path(request.resource, request.old)
        if not admin.healthy(where):
            params = {"fieldManager": "neuron-dra"}
            admin.request("POST", path(request.resource, request.old, whole=True), json=request.old, params=params)
            put = True
    if request.verb == "PUT":
        found = admin.request("GET", path(request.resource, request.old)).body["metadata"]
        body = {**(request.body or {}), "metadata": {**(request.body or {})["metadata"]}}
        body["metadata"]["resourceVersion"] = found["resourceVersion"]
        request = dataclasses.replace(request, body=body)
    answer = client.send(request)
    obj = request.old if request.verb != "POST" else request.body
    if put or (request.verb == "POST" and answer.is_success and not request.dry_run):
        try:
            admin.request("DELETE", path(request.resource, obj))
        except AssertionError:
            assert request.verb == "DELETE"
    assert answer.is_success or answer.status_code in (403, 422), answer.text
    return "" if answer.is_success else str(answer.json()["message"])


@pytest.fixture(scope="module")
def in_force(plane: ControlPlane, clients: dict[str, Client]) -> None:
    """The API server acts on the policies."""
    for request in ALL:
        if request.said and not request.rbac:
            eventually(
                f"the policy about {request.name}",
                lambda request=request: told(plane, clients[request.account], request),  # type: ignore[misc]
                timeout=60,
            )


ALL: Final = (*DRIVER_REQUESTS,)


@pytest.mark.usefixtures("in_force")
@pytest.mark.parametrize("request_", ALL, ids=lambda each: f"{each.account}: {each.name}")
def test_a_token_writes_what_its_program_writes_and_nothing_else(
    plane: ControlPlane, clients: dict[str, Client], request_: Request
) -> None:
    said = told(plane, clients[request_.account], request_)
    if request_.rbac:
        assert "is forbidden: User" in said
    elif request_.said:
        assert request_.said in said
    else:
        assert said == ""
