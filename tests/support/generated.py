"""Generated templates as an API server stores them, pods that refer to them, and what serves both in tests."""

import asyncio
import contextlib
import datetime as dt
import itertools
from collections.abc import AsyncIterator, Mapping
from typing import Any

from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from cluster.kinds.claim_templates import TemplateFacts, project_template
from cluster.reflector import Projection, Reflector
from cluster.resources import RESOURCE_CLAIM_TEMPLATES
from conversion.claims.templates import Template
from runtime.api_server import Collection
from runtime.api_transport import Connection
from runtime.watching import Timing
from tests.support.fake_api import FakeApi
from webhook.cluster.templates import KubeTemplates

PLURAL = "resourceclaimtemplates"
GROUP = "resource.k8s.io"
MARK = "neuron.aws.com/prune-after"
NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)

_UIDS = itertools.count(1)


def template(count: int = 4) -> Template:
    exactly = {"deviceClassName": "neuron.aws.com", "count": count}
    return Template.make(str(count), {"spec": {"devices": {"requests": [{"name": "n0", "exactly": exactly}]}}})


def stored(
    count: int = 4,
    namespace: str = "team",
    *,
    age: dt.timedelta = dt.timedelta(days=3),
    manager: str = "neuron-dra",
    mark: str = "",
    **metadata: Any,
) -> dict[str, Any]:
    """A template of ours as kube-apiserver stores it; `metadata` replaces fields, None leaves one out."""
    made = template(count)
    fields: dict[str, Any] = {
        "name": made.name,
        "namespace": namespace,
        "uid": f"uid-{next(_UIDS)}",
        "resourceVersion": "1",
        "creationTimestamp": (NOW - age).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "labels": {"app.kubernetes.io/managed-by": "neuron-dra"},
        "managedFields": [{"manager": manager, "operation": "Update"}],
        **({"annotations": {MARK: mark}} if mark else {}),
        **metadata,
    }
    [request] = made.spec["spec"]["devices"]["requests"]
    defaulted = {**request, "exactly": {**request["exactly"], "allocationMode": "ExactCount"}}
    return {
        "metadata": {key: value for key, value in fields.items() if value is not None},
        "spec": {"metadata": {}, "spec": {"devices": {"requests": [defaulted]}}},
    }


def templates_pod(name: str, *templates: str, namespace: str = "team", phase: str = "Running") -> dict[str, Any]:
    """A pod that refers to templates, and to a claim."""
    claims = [{"name": f"c{n}", "resourceClaimTemplateName": each} for n, each in enumerate(templates)]
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"resourceClaims": [*claims, {"name": "own", "resourceClaimName": "shared"}]},
        "status": {"phase": phase},
    }


def pod_group(name: str, *templates: str, namespace: str = "team") -> dict[str, Any]:
    """A PodGroup whose pods share claims of templates."""
    claims = [{"name": f"c{n}", "resourceClaimTemplateName": each} for n, each in enumerate(templates)]
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"resourceClaims": claims}}


def workload(name: str, *templates: str, namespace: str = "team") -> dict[str, Any]:
    """A Workload with one template of a PodGroup."""
    group = pod_group(name, *templates)["spec"]
    return {"metadata": {"name": name, "namespace": namespace}, "spec": {"podGroupTemplates": [{**group, "name": "w"}]}}


def serve_groups(api: FakeApi, version: str = "v1beta1") -> None:
    """Let the API server serve PodGroups and Workloads."""
    api.kinds += [
        ("scheduling.k8s.io", version, kind, plural, True)
        for kind, plural in (("PodGroup", "podgroups"), ("Workload", "workloads"))
    ]


@contextlib.asynccontextmanager
async def connected(api: FakeApi, **options: Any) -> AsyncIterator[Connection]:
    async def load() -> Configuration:
        return Configuration(host=api.url)

    connection = await Connection.open(load, **options)
    try:
        yield connection
    finally:
        await connection.close()


def access(*denied: str) -> Any:
    """Answers SelfSubjectAccessReviews: everything is allowed but these verbs."""

    async def handle(request: web.Request) -> web.StreamResponse:
        verb = (await request.json())["spec"]["resourceAttributes"]["verb"]
        return web.json_response({"kind": "SelfSubjectAccessReview", "status": {"allowed": verb not in denied}})

    return handle


def forbidden(verb: str, name: str = "x", user: str = "bob") -> str:
    """The message of RBAC about one template."""
    return (
        f'{PLURAL}.{GROUP} "{name}" is forbidden: User "{user}" cannot {verb} resource "{PLURAL}" in API group '
        f'"{GROUP}" in the namespace "team"'
    )


@contextlib.asynccontextmanager
async def opened(
    api: FakeApi, *, watch: bool = True, connection_options: Mapping[str, Any] | None = None, **options: Any
) -> AsyncIterator[KubeTemplates]:
    """A store; without `watch` its cache stays as it was at the start."""
    async with connected(api, **(connection_options or {})) as connection:
        timing = Timing(backoff=0.002)
        cache: Reflector[TemplateFacts] = Reflector(
            connection, Collection(RESOURCE_CLAIM_TEMPLATES), Projection(project_template), timing=timing
        )
        store = KubeTemplates(connection, cache, **{"pause": 0.002, **options})
        task = asyncio.create_task(cache.run())
        try:
            await cache.synced.wait()
            if not watch:
                task.cancel()
            yield store
        finally:
            await store.close()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
