"""What a node offers: each device has one owner, and without counters an UltraServer node offers one kind of device."""

from pathlib import Path

import pytest

from kubeletplugin.discover.devices import NODE_DEVICE
from kubeletplugin.discover.health import HealthSnapshot, assess
from kubeletplugin.discover.own_node import NodeState, node_state
from kubeletplugin.ports import JsonObject
from kubeletplugin.publish.offer import DEVICE_PLUGIN_TAINT, needs_taints, offer
from kubeletplugin.publish.slices import ClusterFeatures, desired_slices
from kubeletplugin.settings import DriverSettings, Guard
from neuron.hardware.instances import Catalogue
from tests.kubeletplugin.fakes import Node, node_object

WITH, WITHOUT = ClusterFeatures(), ClusterFeatures(counters=False)
LABEL = "neuron.aws.com/ultraserver-publish"


def snapshot(root: Path, instance_type: str) -> HealthSnapshot:
    node = Node(root, instance_type)
    return assess(node.discover(), Catalogue().get(instance_type))


def published(
    found: HealthSnapshot,
    state: NodeState,
    settings: DriverSettings,
    features: ClusterFeatures = WITH,
    *,
    keeps_taints: bool = True,
) -> dict[str, JsonObject]:
    """The devices by name."""
    made, _ = offer(found, state, settings, keeps_taints=keeps_taints)
    slices = desired_slices(state.facts, made, "1.0.0", features)
    return {device["name"]: device for piece in slices for device in piece.content.get("devices", ())}


GUARDS: dict[str, tuple[Guard, str, bool, int, bool]] = {
    # guard, allocatable, whether the cluster keeps taints; devices, whether they are tainted
    "no plugin": (Guard.TAINT, "0", True, 16, False),
    "taint": (Guard.TAINT, "16", True, 16, True),
    "taints are dropped": (Guard.TAINT, "16", False, 0, False),
    "withhold": (Guard.WITHHOLD, "16", True, 0, False),
    "withhold, no plugin": (Guard.WITHHOLD, "0", True, 16, False),
    "off": (Guard.OFF, "16", True, 16, False),
}


@pytest.mark.parametrize("name", GUARDS)
def test_devices_that_a_device_plugin_offers_are_kept_from_new_claims(tmp_path: Path, name: str) -> None:
    guard, allocatable, keeps, count, tainted = GUARDS[name]
    state, settings = (
        node_state(node_object(neuron=allocatable)),
        DriverSettings(node_name="n", device_plugin_guard=guard),
    )
    devices = published(snapshot(tmp_path, "trn2.48xlarge"), state, settings, keeps_taints=keeps)
    assert len(devices) == count
    mark = [{"key": "neuron.aws.com/device-plugin", "value": "active", "effect": "NoSchedule"}]
    assert {name: device.get("taints") for name, device in devices.items()} == dict.fromkeys(
        devices, mark if tainted else None
    )
    assert needs_taints(state, settings) is (guard is Guard.TAINT and allocatable != "0")


def test_a_sick_device_keeps_its_own_taint_beside_the_guards(tmp_path: Path) -> None:
    node = Node(tmp_path, "trn2u.48xlarge")
    (node.device_directory(3) / "stats/hardware/mem_ecc_uncorrected").write_text("1\n")
    found = assess(node.discover(), Catalogue().get("trn2u.48xlarge"))
    devices = published(found, node_state(node_object(neuron="16")), DriverSettings(node_name="n"))
    keys = {name: [taint["key"] for taint in device["taints"]] for name, device in devices.items()}
    both = ["neuron.aws.com/unhealthy", DEVICE_PLUGIN_TAINT.key]
    assert (keys["neuron-device-3"], keys[NODE_DEVICE]) == (both, both)
    assert keys["neuron-device-4"] == [DEVICE_PLUGIN_TAINT.key]


OFFERS: dict[str, tuple[ClusterFeatures, str, dict[str, str], str]] = {
    "counters": (WITH, "devices", {}, "both"),
    "counters, label": (WITH, "devices", {LABEL: "node"}, "both"),
    "devices": (WITHOUT, "devices", {}, "devices"),
    "node": (WITHOUT, "node", {}, "node"),
    "node by label": (WITHOUT, "devices", {LABEL: "node"}, "node"),
    "devices by label": (WITHOUT, "node", {LABEL: "devices"}, "devices"),
    "wrong label": (WITHOUT, "node", {LABEL: "nodes"}, "node"),
}


@pytest.mark.parametrize("name", OFFERS)
def test_an_ultraserver_node_offers_one_kind_without_counters(tmp_path: Path, name: str) -> None:
    features, setting, labels, expected = OFFERS[name]
    state, settings = node_state(node_object(labels)), DriverSettings(node_name="n", ultraserver_publish=setting)
    found = snapshot(tmp_path, "trn2u.48xlarge")
    _, problem = offer(found, state, settings, keeps_taints=True)
    devices = published(found, state, settings, features)
    assert (NODE_DEVICE in devices) is (expected != "devices")
    assert len(devices.keys() - {NODE_DEVICE}) == (0 if expected == "node" else 16)
    counted = expected == "both"
    assert all(("consumesCounters" in device) is counted for device in devices.values())
    wrong = (
        f"the Node's label {LABEL} has the value 'nodes', which is not devices or node: the setting (node) is in force"
    )
    assert problem == (wrong if name == "wrong label" else "")


@pytest.mark.parametrize("label", ["devices", "node"])
def test_nodes_without_ultraserver_offer_devices_with_any_setting(tmp_path: Path, label: str) -> None:
    state, settings = node_state(node_object({LABEL: label})), DriverSettings(node_name="n", ultraserver_publish="node")
    found = snapshot(tmp_path, "trn2.48xlarge")
    assert len(published(found, state, settings, WITHOUT)) == 16
