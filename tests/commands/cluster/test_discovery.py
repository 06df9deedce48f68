"""Which kinds are served: one request, the preferred version, and only what can be listed."""

from typing import Any

import pytest

from commands.cluster.reader import served_kinds
from runtime.api_server import ApiAnswerError, Resource
from tests.support.answers import PreparedAnswers


def api_group(
    name: str, *versions: str, verbs: tuple[str, ...] = ("list",), scope: str = "Namespaced"
) -> dict[str, Any]:
    resource = {"resource": "jobsets", "responseKind": {"kind": "JobSet"}, "scope": scope, "verbs": list(verbs)}
    found = [{"version": version, "resources": [resource]} for version in versions]
    return {"metadata": {"name": name}, "versions": found}


async def test_the_preferred_version_counts() -> None:
    server = PreparedAnswers({"items": [api_group("jobset.x-k8s.io", "v1alpha2", "v1alpha1")]})
    found = await served_kinds(server)  # type: ignore[arg-type]
    served = found["jobset.x-k8s.io", "JobSet"]
    assert (served.resource, served.namespaced) == (Resource("jobset.x-k8s.io", "v1alpha2", "jobsets"), True)
    assert server.asked == [("GET", "/apis")]
    assert server.members[0]["accept"].startswith(
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    )


async def test_cluster_scope_and_kinds_that_cannot_be_listed() -> None:
    items = [api_group("a.example", "v1", scope="Cluster"), api_group("b.example", "v1", verbs=("create",))]
    found = await served_kinds(PreparedAnswers({"items": items}))  # type: ignore[arg-type]
    assert {kind: served.namespaced for kind, served in found.items()} == {("a.example", "JobSet"): False}


async def test_an_older_server_answers_with_a_plain_list() -> None:
    assert await served_kinds(PreparedAnswers({"kind": "APIGroupList", "groups": []})) == {}  # type: ignore[arg-type]


async def test_an_invalid_discovery_document_is_an_error() -> None:
    with pytest.raises(ApiAnswerError):
        await served_kinds(PreparedAnswers({"items": 7}))  # type: ignore[arg-type]
