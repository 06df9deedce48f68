"""The VerticalPodAutoscalers of a cluster, and what commands say of pods that they resize."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from kubernetes.aio.client.configuration import Configuration

from cluster.resources import VERTICAL_POD_AUTOSCALERS
from commands.cluster.listing import Lister, Unseen
from commands.explain.cluster_view import live_manifest
from commands.objects.file_store import FileStore
from commands.objects.vertical_autoscalers import workloads_of
from runtime.api_server import Resource
from runtime.api_transport import Connection
from tests.support.emulated import EmulatedCluster
from tests.support.explaining import explained, live, pod
from tests.support.fake_api import FakeApi, answer

pytestmark = pytest.mark.anyio

SCALER: dict[str, Any] = {
    "metadata": {"name": "sizes", "namespace": "team-a"},
    "spec": {
        "targetRef": {"kind": "Deployment", "name": "serve"},
        "updatePolicy": {"updateMode": "InPlaceOrRecreate"},
    },
}


@pytest.fixture
async def connection() -> AsyncIterator[tuple[FakeApi, Connection]]:
    async with FakeApi().serve() as api:

        async def load() -> Configuration:
            return Configuration(host=api.url)

        opened = await Connection.open(load)
        yield api, opened
        await opened.close()


async def test_those_of_a_cluster_are_read(connection: tuple[FakeApi, Connection]) -> None:
    api, server = connection
    api.put("verticalpodautoscalers", SCALER)
    found = await Lister(server).objects(VERTICAL_POD_AUTOSCALERS, absent=True)
    assert not isinstance(found, Unseen)
    view = FileStore()
    view.take_autoscalers(found)
    assert view.resized.get(("team-a", "Deployment", "serve"), "") == "sizes"


async def test_a_cluster_without_them_has_none(connection: tuple[FakeApi, Connection]) -> None:
    api, server = connection
    api.fault(
        "list", "verticalpodautoscalers", answer(404, "NotFound", "the server could not find the requested resource")
    )
    assert await Lister(server).objects(VERTICAL_POD_AUTOSCALERS, absent=True) == ()


async def test_those_that_may_not_be_read_are_unseen(connection: tuple[FakeApi, Connection]) -> None:
    api, server = connection
    api.fault("list", "verticalpodautoscalers", answer(403, "Forbidden", "forbidden"), times=9)
    assert isinstance(await Lister(server).objects(VERTICAL_POD_AUTOSCALERS, "team-a", absent=True), Unseen)


@pytest.mark.parametrize("form", [{"spec": None}, {"spec": []}, {"spec": {"targetRef": 3}}, {"metadata": None}])
async def test_one_of_another_form_says_nothing(form: dict[str, Any]) -> None:
    view = FileStore()
    view.take_autoscalers([SCALER | form])
    assert view.resized.get(("team-a", "Deployment", "serve"), "") == ""


async def test_explain_warns_of_a_pod_whose_deployment_is_resized() -> None:
    resource = Resource("autoscaling.k8s.io", "v1", "verticalpodautoscalers")
    scaler = live_manifest(SCALER, resource, "VerticalPodAutoscaler")
    cluster = EmulatedCluster()
    cluster.node("a")
    found = pod(namespace="team-a")
    found["metadata"] |= {
        "labels": {"pod-template-hash": "7d9"},
        "ownerReferences": [{"kind": "ReplicaSet", "name": "serve-7d9", "controller": True}],
    }
    [explanation] = explained(found, cluster=live(cluster, [scaler]))
    assert "NEU233" in [each.code for each in explanation.preview.findings]


def test_the_workloads_of_a_pod() -> None:
    owners = [{"kind": "ReplicaSet", "name": "serve-7d9"}, None, {"kind": "Job", "name": "x"}]
    metadata = {"name": "p", "labels": {"pod-template-hash": "7d9"}, "ownerReferences": owners}
    assert list(workloads_of("Pod", {"metadata": metadata})) == [
        ("Pod", "p"),
        ("ReplicaSet", "serve-7d9"),
        ("Deployment", "serve"),
        ("Job", "x"),
    ]
