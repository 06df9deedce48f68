"""Which kinds are served: one request, the preferred version, and only what can be listed."""

import json
from typing import Any

import pytest

from commands.cluster.reader import served_kinds
from runtime.api_errors import ApiAnswerError
from runtime.api_server import Resource

pytestmark = pytest.mark.anyio


class Server:
    """Answers every request with one document."""

    def __init__(self, document: Any) -> None:
        self.document = document
        self.asked: list[tuple[str, str]] = []

    async def request(self, method: str, path: str, *, accept: str = "", **_: Any) -> bytes:
        self.asked.append((f"{method} {path}", accept))
        return json.dumps(self.document).encode()


def group(name: str, *versions: str, verbs: tuple[str, ...] = ("list",), scope: str = "Namespaced") -> dict[str, Any]:
    resource = {"resource": "jobsets", "responseKind": {"kind": "JobSet"}, "scope": scope, "verbs": list(verbs)}
    found = [{"version": version, "resources": [resource]} for version in versions]
    return {"metadata": {"name": name}, "versions": found}


async def test_the_preferred_version_counts() -> None:
    server = Server({"items": [group("jobset.x-k8s.io", "v1alpha2", "v1alpha1")]})
    found = await served_kinds(server)  # type: ignore[arg-type]
    served = found["jobset.x-k8s.io", "JobSet"]
    assert (served.resource, served.namespaced) == (Resource("jobset.x-k8s.io", "v1alpha2", "jobsets"), True)
    [(asked, accept)] = server.asked
    assert asked == "GET /apis"
    assert accept.startswith("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")


async def test_cluster_scope_and_kinds_that_cannot_be_listed() -> None:
    items = [group("a.example", "v1", scope="Cluster"), group("b.example", "v1", verbs=("create",))]
    found = await served_kinds(Server({"items": items}))  # type: ignore[arg-type]
    assert {kind: served.namespaced for kind, served in found.items()} == {("a.example", "JobSet"): False}


async def test_an_older_server_answers_with_a_plain_list() -> None:
    assert await served_kinds(Server({"kind": "APIGroupList", "groups": []})) == {}  # type: ignore[arg-type]


async def test_an_invalid_discovery_document_is_an_error() -> None:
    with pytest.raises(ApiAnswerError):
        await served_kinds(Server({"items": 7}))  # type: ignore[arg-type]
