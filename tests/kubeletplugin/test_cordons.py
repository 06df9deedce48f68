"""Devices that the Node's annotation cordons are tainted, or not published where the cluster keeps no taints."""

from pathlib import Path

import pytest

from kubeletplugin.discover.devices import NODE_DEVICE
from kubeletplugin.discover.health import assess
from kubeletplugin.discover.own_node import node_state
from kubeletplugin.ports import JsonObject
from kubeletplugin.publish.offer import needs_taints, offer
from kubeletplugin.publish.slices import ClusterFeatures, desired_slices
from kubeletplugin.settings import DriverSettings
from neuron.hardware.instances import Catalogue
from tests.kubeletplugin.fakes import FakeApi, FakeClock, Node, node_object
from tests.kubeletplugin.publish.test_publisher import publishing

TAINT = {"key": "neuron.aws.com/cordoned", "value": "admin", "effect": "NoSchedule"}
HELD = {"key": "neuron.aws.com/held", "value": "kept", "effect": "NoSchedule"}


def cordoned(value: str) -> JsonObject:
    """The Node with the annotation."""
    node = node_object()
    node["metadata"]["annotations"] = {"neuron.aws.com/cordoned": value}
    return node


def offered(
    root: Path, instance_type: str, value: str, *held: int, keeps_taints: bool = True
) -> tuple[dict[str, JsonObject], str]:
    """The published devices by name, and the problem that is reported to the administrator."""
    found = assess(Node(root, instance_type).discover(), Catalogue().get(instance_type))
    state, features = node_state(cordoned(value)), ClusterFeatures()
    made, problem = offer(found, state, DriverSettings(node_name="n"), keeps_taints=keeps_taints, held=held)
    slices = desired_slices(state.facts, made, "1.0.0", features)
    return {each["name"]: each for piece in slices for each in piece.content.get("devices", ())}, problem


def tainted(devices: dict[str, JsonObject]) -> set[str]:
    return {name for name, device in devices.items() if TAINT in device.get("taints", ())}


@pytest.mark.parametrize("instance_type", ["trn2.48xlarge", "trn2u.48xlarge", "inf2.48xlarge"])
def test_a_cordoned_device_is_tainted_and_with_it_the_whole_node(tmp_path: Path, instance_type: str) -> None:
    devices, problem = offered(tmp_path, instance_type, "neuron-device-3,neuron-device-5")
    assert tainted(devices) == {"neuron-device-3", "neuron-device-5"} | ({NODE_DEVICE} & devices.keys())
    assert problem == ""


@pytest.mark.parametrize("instance_type", ["trn2.48xlarge", "trn2u.48xlarge"])
def test_a_cordoned_node_has_no_device_for_new_claims(tmp_path: Path, instance_type: str) -> None:
    devices, _ = offered(tmp_path, instance_type, "*")
    assert tainted(devices) == devices.keys() != set()
    left, _ = offered(tmp_path / "x", instance_type, "*", keeps_taints=False)
    assert left == {}


def test_the_whole_node_alone_can_be_cordoned(tmp_path: Path) -> None:
    assert tainted(offered(tmp_path, "trn2u.48xlarge", NODE_DEVICE)[0]) == {NODE_DEVICE}
    left, _ = offered(tmp_path / "x", "trn2u.48xlarge", NODE_DEVICE, keeps_taints=False)
    assert left.keys() == {f"neuron-device-{number}" for number in range(16)}


@pytest.mark.parametrize("instance_type", ["trn2.48xlarge", "trn2u.48xlarge"])
def test_a_cordoned_device_is_not_published_without_taints(tmp_path: Path, instance_type: str) -> None:
    devices, _ = offered(tmp_path, instance_type, "neuron-device-3", 4, keeps_taints=False)
    assert devices.keys() == {f"neuron-device-{number}" for number in range(16) if number not in (3, 4)}
    assert not any("taints" in device for device in devices.values())


def test_a_device_can_be_held_and_cordoned(tmp_path: Path) -> None:
    devices, _ = offered(tmp_path, "trn2.48xlarge", "neuron-device-3", 3)
    assert devices["neuron-device-3"]["taints"] == [HELD, TAINT]


def test_unknown_names_in_a_cordon_are_reported_and_the_others_apply(tmp_path: Path) -> None:
    devices, problem = offered(tmp_path, "trn2.48xlarge", "neuron-device-16,neuron-device-3,neron-device-1")
    assert tainted(devices) == {"neuron-device-3"}
    assert problem == (
        "the Node's annotation neuron.aws.com/cordoned names 'neron-device-1', 'neuron-device-16', which the node does "
        "not have: the other devices that it names are cordoned"
    )


def test_only_a_cordon_asks_whether_the_cluster_keeps_taints() -> None:
    assert needs_taints(node_state(cordoned("neuron-device-1")), DriverSettings(node_name="n"))
    assert not needs_taints(node_state(node_object()), DriverSettings(node_name="n"))


@pytest.mark.parametrize("taints", [True, False])
async def test_slices_follow_the_annotation(
    node: Node, api: FakeApi, clock: FakeClock, caplog: pytest.LogCaptureFixture, *, taints: bool
) -> None:
    api.taints = taints

    async with publishing(node, api, clock) as at:
        await at.until(lambda: bool(api.stored))
        await at.settled()
        api.change_node(cordoned("neuron-device-4"))
        await at.until(lambda: len(at.writes()) == 2)
        [body] = api.stored.values()
        names = [device["name"] for device in body["spec"]["devices"]]
        assert ("neuron-device-4" in names) is taints
        assert at.taints() == ({"neuron-device-4": [TAINT]} if taints else {})
        api.change_node(node_object())
        await at.until(lambda: len(at.writes()) == 3)
        assert at.taints() == {}
        [body] = api.stored.values()
        assert len(body["spec"]["devices"]) == 16
    reasons = [getattr(record, "reason", "") for record in caplog.records]
    told = [reason for reason in reasons if reason.startswith("devices are cordoned, and the API server")]
    assert len(told) == (not taints)
