"""The commands against a fake API server: writes, refusals and messages."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from commands.cli.cordon import cordoned, plan, uncordoned
from commands.cordon import CannotCordonError, Operator, Target, TargetError
from runtime.api_transport import Connection, load_configuration
from tests.support.emulated import EmulatedCluster
from tests.support.fake_api import FakeApi, answer

TARGET = Target("a", "neuron-device-3")


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi().serve() as served:
        cluster = EmulatedCluster()
        cluster.node("a")
        cluster.claim("train", "a", range(4))
        cluster.put_into(served)
        yield served


@pytest.fixture
async def said() -> list[str]:
    return []


@pytest.fixture
async def operator(api: FakeApi, tmp_path: Path, said: list[str]) -> AsyncIterator[Operator]:
    path = api.kubeconfig(tmp_path)
    connection = await Connection.open(lambda: load_configuration(path))
    yield Operator(connection, connection.address, say=said.append, sleep=lambda _: asyncio.sleep(0))
    await connection.close()


def annotation(api: FakeApi) -> Any:
    return (api.get("nodes", "a")["metadata"].get("annotations") or {}).get("neuron.aws.com/cordoned")


async def test_a_driver_that_does_not_act_is_reported_and_no_pod_is_evicted(api: FakeApi, operator: Operator) -> None:
    scene = await operator.look(TARGET)
    assert (scene.served, scene.open_devices) == (None, ("neuron-device-3",))
    with pytest.raises(CannotCordonError) as error:
        await operator.drain(scene, 10)
    assert str(error.value) == (
        "Node a has the annotation neuron.aws.com/cordoned, and its driver still offers neuron-device-3 after 30 s. "
        "Check the kubelet plugin on the node: it must be of a version that knows the annotation. No pod was evicted."
    )
    assert annotation(api) == "neuron-device-3"
    assert await operator.uncordon(await operator.look(TARGET))
    assert annotation(api) is None
    assert not await operator.uncordon(await operator.look(TARGET))


async def test_rules_that_kubernetes_does_not_act_on_are_removed_again(
    api: FakeApi, operator: Operator, said: list[str]
) -> None:
    api.kinds = [("resource.k8s.io", "v1beta2", "DeviceTaintRule", "devicetaintrules", False)]
    scene = await operator.look(TARGET)
    assert scene.by_rules is not None
    with pytest.raises(CannotCordonError, match="its driver still offers"):
        await operator.cordon(scene)
    assert [
        each.verb for each in api.seen if each.plural == "devicetaintrules" and each.verb in ("create", "delete")
    ] == [
        "create",
        "delete",
    ]
    assert said == [
        "Kubernetes does not act on DeviceTaintRules (feature gate DRADeviceTaintRules), so the rule was removed "
        "again: the driver taints the devices."
    ]
    assert annotation(api) == "neuron-device-3"


async def test_a_rule_that_another_client_deletes_is_told(api: FakeApi, operator: Operator) -> None:
    api.kinds = [("resource.k8s.io", "v1beta2", "DeviceTaintRule", "devicetaintrules", False)]
    scene = await operator.look(TARGET)
    api.fault("get", "devicetaintrules", answer(404, "NotFound", "not found"))
    with pytest.raises(CannotCordonError) as error:
        await operator.cordon(scene)
    assert str(error.value) == (
        "devicetaintrules.resource.k8s.io neuron-cordon-a.neuron-device-3 is gone: another client deleted it. Repeat"
        " the command."
    )


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1alpha3"])
async def test_a_rule_that_kubernetes_acts_on_stays_and_only_our_rules_are_removed(
    api: FakeApi, operator: Operator, version: str
) -> None:
    api.kinds = [("resource.k8s.io", version, "DeviceTaintRule", "devicetaintrules", False)]
    acted = {"conditions": [{"type": "EvictionInProgress", "status": "False"}]}
    written: list[str] = []

    def store(item: dict[str, Any]) -> dict[str, Any]:
        if item["kind"] != "DeviceTaintRule":
            return item
        written.append(item["apiVersion"])
        return {**item, "status": acted}

    api.store = store
    foreign = {
        "metadata": {"name": "mine", "uid": "mine-uid"},
        "spec": {
            "deviceSelector": {"pool": "a"},
            "taint": {"key": "example.com/x", "effect": "NoSchedule"},
        },
    }
    api.put("devicetaintrules", foreign)
    scene = await operator.cordon(await operator.look(TARGET))
    assert "Cordoned neuron-device-3 of a (DeviceTaintRule neuron-cordon-a.neuron-device-3)" in cordoned(scene)
    assert annotation(api) is None
    after = await operator.look(TARGET)
    assert (after.open_devices, len(after.own_rules)) == ((), 1)
    assert written == [f"resource.k8s.io/{version}"]
    done = await operator.uncordon(after)
    words = uncordoned(after, await operator.look(TARGET), done=done)
    assert words == (
        "Uncordoned neuron-device-3 of a.\n"
        "DeviceTaintRule mine taints it, which neuron-dra did not write: kubectl delete devicetaintrule mine\n"
    )


async def test_no_rule_is_written_if_the_scheduler_would_panic(
    api: FakeApi, operator: Operator, said: list[str]
) -> None:
    api.version = "v1.36.2"
    api.kinds = [("resource.k8s.io", "v1beta2", "DeviceTaintRule", "devicetaintrules", False)]
    with pytest.raises(CannotCordonError, match="its driver still offers"):
        await operator.cordon(await operator.look(TARGET))
    assert not [each for each in api.seen if each.plural == "devicetaintrules" and each.verb == "create"]
    assert said == [
        "kube-scheduler v1.36.2 ignores DeviceTaintRules, and panics when a ResourceSlice changes while there are any "
        "(kubernetes/kubernetes#139651); fixed in 1.36.3. `neuron-dra cordon` writes none, and the driver taints the "
        "devices."
    ]


async def test_claims_that_cannot_be_read_stop_the_command(api: FakeApi, operator: Operator) -> None:
    missing = 'resourceclaims.resource.k8s.io is forbidden: User "ops" cannot list resource "resourceclaims"'
    api.fault("list", "resourceclaims", answer(403, "Forbidden", missing), times=9)
    with pytest.raises(CannotCordonError, match=r"list resourceclaims\.resource\.k8s\.io"):
        await operator.look(TARGET)


async def test_a_missing_node_is_reported(operator: Operator) -> None:
    with pytest.raises(TargetError, match=r"Node 'b' does not exist\. `neuron-dra map` shows nodes\."):
        await operator.look(Target("b"))


async def test_a_cordon_of_the_node_leaves_those_of_its_devices(api: FakeApi, operator: Operator) -> None:
    node = api.get("nodes", "a")
    node["metadata"]["annotations"] = {"neuron.aws.com/cordoned": "*,neuron-device-3"}
    api.put("nodes", node)
    scene = await operator.look(Target("a"))
    done = await operator.uncordon(scene)
    words = uncordoned(scene, await operator.look(Target("a")), done=done)
    assert words == (
        "Uncordoned all devices of a.\nneuron-device-3 is still cordoned: neuron-dra uncordon a/neuron-device-3\n"
    )


async def test_a_plan_lists_the_pods_to_evict(api: FakeApi, operator: Operator) -> None:
    scene = await operator.look(TARGET)
    shown = plan(scene, await operator.owners(scene.evicted))
    assert shown.splitlines() == [
        "A drain of neuron-device-3 of a evicts 1 pod:",
        "NAMESPACE  POD    OWNER  CLAIM  DEVICES",
        "team-a     train  -      train  neuron-device-3",
        "The pods are evicted one by one: PodDisruptionBudgets count.",
        "Nothing creates these pods again: team-a/train.",
    ]
    assert plan(await operator.look(Target("a", "neuron-device-9")), {}) == (
        "A drain of neuron-device-9 of a evicts no pod.\n"
    )
