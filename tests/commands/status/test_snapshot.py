"""What `status` keeps of long lists: one page at a time, and of each object the fields that checks read."""

import pytest
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration
from msgspec import structs

from commands.cluster.reader import ClusterReader
from commands.status import snapshot
from commands.status.checks import judge
from commands.status.snapshot import StatusSnapshot, read_status
from runtime.api_transport import Connection
from tests.support.fake_api import FakeApi
from tests.support.installation import NOW, driver_pod, node_object, slice_object, well

NODES = 7


async def allowed(_: web.Request) -> web.Response:
    return web.json_response({"status": {"allowed": True}}, status=201)


@pytest.fixture
async def found() -> StatusSnapshot:
    async with FakeApi().serve() as api:

        async def load() -> Configuration:
            return Configuration(host=api.url)

        api.fault("create", "subjectaccessreviews", allowed, times=1000)
        for number in range(NODES):
            name = f"n{number}"
            made = node_object(name)
            made["metadata"]["annotations"] = {"a": "b" * 100, "neuron.aws.com/cordoned": "neuron-device-1"}
            api.put("nodes", made)
            published = slice_object(name)
            for device in published["spec"]["devices"]:
                device["attributes"]["other"] = {"string": f"{name} {device['name']}"}
                device["capacity"] = {"memory": {"value": "96Gi"}}
            published["metadata"]["annotations"] = {
                "neuron.aws.com/node-checks": '[{"check": "CDI", "result": "wrong", "found": "no folder"}]'
            }
            api.put("resourceslices", published)
            pod = driver_pod(name)
            pod["spec"]["containers"] = [{"name": "driver", "env": [{"name": "A", "value": "b"}]}]
            api.put("pods", pod)
            spec = {"spec": {"devices": {"requests": [{"exactly": {"deviceClassName": "neuron.aws.com"}}]}}}
            api.put("resourceclaimtemplates", {"metadata": {"name": "neuron-4", "namespace": name}, "spec": spec})
            api.put("namespaces", {"metadata": {"name": name, "managedFields": [{"manager": "a"}]}})
        connection = await Connection.open(load)
        try:
            read = await read_status(ClusterReader(connection, page_size=3), api.url, "neuron-dra")
            assert len(api.calls("continue", "nodes")) >= 2, "pages"
            return read
        finally:
            await connection.close()


async def test_lists_are_kept_without_what_no_check_reads(found: StatusSnapshot) -> None:
    assert isinstance(found.resource_slices, tuple)
    assert isinstance(found.nodes, tuple)
    assert isinstance(found.templates, tuple)
    assert len(found.resource_slices) == len(found.nodes) == len(found.templates) == NODES
    devices = [device for each in found.resource_slices for device in each.devices]
    assert len(devices) == 17 * NODES
    assert len({id(device.attributes) for device in devices}) == 2, "single devices, and whole nodes"
    assert not any(device.capacity for device in devices)
    assert {key for node in found.nodes for key in node.annotations} == {"neuron.aws.com/cordoned"}
    assert len({id(each["spec"]) for each in found.templates}) == 1
    assert found.namespaces == tuple({"metadata": {"name": f"n{number}"}} for number in range(NODES))
    assert isinstance(found.driver_pods, tuple)
    assert {tuple(each["spec"]) for each in found.driver_pods} == {("nodeName",)}
    assert found.own_slices == {f"n{number}" for number in range(NODES)}
    assert set(found.node_checks) == found.own_slices


async def test_checks_say_the_same_of_what_is_kept_as_of_whole_objects(found: StatusSnapshot) -> None:
    whole = well(
        nodes=found.nodes,
        resource_slices=tuple(snapshot.read_slice(slice_object(f"n{number}")) for number in range(NODES)),
        own_slices=found.own_slices,
        driver_pods=tuple(driver_pod(f"n{number}") for number in range(NODES)),
        templates=found.templates,
        namespaces=found.namespaces,
    )
    assert isinstance(found.resource_slices, tuple)
    kept = structs.replace(found.resource_slices[0])
    assert kept.node == "n0"
    for check in ("nodes", "conversion"):
        lines = [
            [line for line in judge(each, NOW) if line.check == check and "driver's check" not in line.text]
            for each in (found, whole)
        ]
        assert lines[0] == lines[1]
