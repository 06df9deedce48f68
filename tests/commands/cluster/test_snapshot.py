"""A snapshot of a fake cluster: pages, fields that are left out, pods that are skipped, missing permissions."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import structs

from commands.cluster.reader import ClusterReader, Progress, Unseen
from commands.cluster.snapshot import ClusterSnapshot, read_snapshot
from commands.devices.device_map import build
from neuron.api.nodes import read_node
from runtime.api_server import Resource
from runtime.api_transport import Connection, load_configuration
from tests.support.emulated import EmulatedCluster
from tests.support.fake_api import FakeApi, raw


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi().serve() as served:
        yield served


@pytest.fixture
async def connection(api: FakeApi, tmp_path: Path) -> AsyncIterator[Connection]:
    path = api.kubeconfig(tmp_path)
    connection = await Connection.open(lambda: load_configuration(path))
    yield connection
    await connection.close()


async def read_connection(
    connection: Connection, progress: Progress = lambda *_: None, **options: bool
) -> ClusterSnapshot:
    reader = ClusterReader(connection, page_size=2, sleep=lambda _: asyncio.sleep(0), progress=progress)
    return await read_snapshot(reader, connection.address, **options)


async def test_the_map_of_a_cluster_is_that_of_its_objects(api: FakeApi, connection: Connection) -> None:
    cluster = EmulatedCluster()
    for name in "abc":
        cluster.node(name)
        cluster.claim(f"on-{name}", name, range(4))
    cluster.legacy_pod("old", "a", "1")
    cluster.put_into(api)
    seen = await read_connection(connection)
    assert build(seen) == build(cluster.snapshot())
    assert api.calls("continue", "resourceslices")
    assert api.calls("list", "resourceslices")[0].query["fieldSelector"] == "spec.driver=neuron.aws.com"
    assert (seen.address, len(seen.classes)) == (api.url, 1)  # type: ignore[arg-type]


async def test_pods_without_devices_and_large_fields_are_left_out(api: FakeApi, connection: Connection) -> None:
    cluster = EmulatedCluster()
    cluster.node("a", allocatable={"aws.amazon.com/neuron": "16"})
    cluster.nodes[0]["status"]["images"] = [{"names": ["big"]}]
    cluster.legacy_pod("old", "a", "1")
    cluster.pods[0]["spec"]["volumes"] = [{"name": "v"}]
    cluster.pods[0]["metadata"]["managedFields"] = [{}]
    cluster.pods[0]["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "{}", "a": "b"}
    plain = {"metadata": {"name": "plain", "namespace": "team-a"}, "spec": {"containers": [{"name": "main"}]}}
    tolerant = {**plain, "metadata": {"name": "tolerant", "namespace": "team-a"}}
    tolerant["spec"] = {"containers": [{"name": "main"}], "tolerations": [{"key": "aws.amazon.com/neuron"}]}
    cluster.pods += [plain, tolerant]
    cluster.put_into(api)
    seen = await read_connection(connection)
    assert isinstance(seen.pods, tuple)
    assert isinstance(seen.nodes, tuple)
    [pod] = seen.pods
    assert pod == {
        "metadata": {"name": "old", "namespace": "team-a", "uid": "old-uid", "annotations": {"a": "b"}},
        "spec": {
            "nodeName": "a",
            "containers": [{"name": "main", "resources": {"limits": {"aws.amazon.com/neuron": "1"}}}],
        },
        "status": {"phase": "Running"},
    }
    [node] = seen.nodes
    assert structs.replace(node, version="") == read_node(cluster.nodes[0])


async def test_one_object_that_cannot_be_read_does_not_hide_the_others(api: FakeApi, connection: Connection) -> None:
    deep = b'{"metadata": {"name": "deep"}, "spec": ' + b"[" * 2000 + b"]" * 2000 + b"}"
    good = b'{"metadata": {"name": "good", "namespace": "n"}, "spec": {}}'
    body = b'{"metadata": {}, "items": [' + deep + b', {"spec": {}}, ' + good + b"]}"
    api.fault("list", "resourceclaims", raw(200, body))
    seen = await read_connection(connection)
    assert isinstance(seen.claims, tuple)
    assert "good" in {claim.metadata.name for claim in seen.claims}


async def test_a_missing_permission_names_its_rule(api: FakeApi, connection: Connection) -> None:
    api.forbid("list", "resourceclaims", "resource.k8s.io")
    seen = await read_connection(connection)
    assert seen.claims == Unseen(
        "you are not allowed to list resourceclaims.resource.k8s.io.",
        "- {apiGroups: [resource.k8s.io], resources: [resourceclaims], verbs: [list]}",
    )


async def test_progress_counts_objects(api: FakeApi, connection: Connection) -> None:
    cluster = EmulatedCluster()
    for name in "abc":
        cluster.node(name)
    cluster.put_into(api)
    told: list[tuple[str, int]] = []

    def tell(resource: Resource, count: int) -> None:
        told.append((resource.plural, count))

    await read_connection(connection, progress=tell)
    assert [count for plural, count in told if plural == "nodes"] == [2, 3]


def grouped(cluster: EmulatedCluster) -> None:
    """A claim that is reserved for a PodGroup: pod `a` uses it by status, `b` by name; two others do not."""
    cluster.node("n")
    claim = cluster.claim("shared", "n", range(4), pods=())
    reserved = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "gang", "uid": "gang-uid"}
    claim["status"]["reservedFor"] = [reserved]
    made = {"resourceClaimStatuses": [{"name": "neuron", "resourceClaimName": "shared"}]}
    entry = {"name": "neuron", "resourceClaimTemplateName": "four"}
    direct = {"name": "neuron", "resourceClaimName": "shared"}
    for name, group, claims, status in (
        ("a", "gang", entry, made),
        ("b", "gang", direct, {}),
        ("waits", "gang", entry, {}),
        ("other", "another", direct, {}),
    ):
        metadata = {"name": name, "namespace": "team-a", "uid": f"{name}-uid"}
        spec = {"schedulingGroup": {"podGroupName": group}, "resourceClaims": [claims], "containers": [{"name": "m"}]}
        cluster.pods.append({"metadata": metadata, "spec": spec, "status": status})


@pytest.mark.parametrize("with_pods", [True, False])
async def test_a_claim_of_a_pod_group_has_the_pods_that_use_it(
    api: FakeApi, connection: Connection, with_pods: bool
) -> None:
    cluster = EmulatedCluster()
    grouped(cluster)
    cluster.put_into(api)
    seen = await read_connection(connection, with_pods=with_pods)
    assert isinstance(seen.claims, tuple)
    [claim] = seen.claims
    assert [(each.name, each.uid) for each in claim.pods] == [("a", "a-uid"), ("b", "b-uid")]
    assert [each.name for each in claim.groups] == ["gang"]
    [holding] = build(seen).nodes[0].holdings
    assert (holding.pods, holding.groups) == (("a", "b"), ("gang",))


async def test_pods_are_not_read_for_groups_without_devices(api: FakeApi, connection: Connection) -> None:
    cluster = EmulatedCluster()
    grouped(cluster)
    cluster.claims[0]["status"]["allocation"]["devices"]["results"] = []
    cluster.put_into(api)
    seen = await read_connection(connection, with_pods=False)
    assert seen.pods == ()
    assert not api.calls("list", "pods")
