"""The device map of emulated nodes: holders, health, connected sets, what keeps new pods away."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.cluster.reader import Unseen
from commands.devices.device_map import build
from commands.devices.devices import NodeMap, PluginUse, UltraServerPlace
from kubeletplugin.publish.slices import ClusterFeatures
from neuron.api.taints import Taint
from neuron.hardware.instances import Topology
from tests.support.emulated import PLUGIN, SICK, EmulatedCluster

TYPES = ("trn1.32xlarge", "inf2.48xlarge", "inf2.24xlarge", "inf1.24xlarge")


def only(cluster: EmulatedCluster) -> NodeMap:
    [node] = build(cluster.snapshot()).nodes
    return node


def test_a_torus_with_two_claims_has_links_holders_and_free_sets() -> None:
    cluster = EmulatedCluster()
    cluster.node("a")
    cluster.claim("train", "a", range(4))
    cluster.claim("single", "a", [9], namespace="team-b")
    node = only(cluster)
    assert (node.instance_type, node.topology, len(node.devices)) == ("trn2.48xlarge", Topology.TORUS, 16)
    assert [holding.name for holding in node.holdings] == ["team-a/train", "team-b/single"]
    assert node.devices[2].holders[0].pods == ("train",)
    assert [device.index for device in node.free] == [4, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15]
    assert node.largest_free == (4, 5, 6, 7)
    assert len(node.links) == 32
    assert {len(group.members) for group in node.groups} == {4, 8, 16}
    assert node.open


def test_a_sick_device_breaks_its_groups() -> None:
    cluster = EmulatedCluster()
    cluster.node("a", taints={5: SICK})
    node = only(cluster)
    assert node.devices[5].fault == "hbm-ecc"
    assert not node.devices[5].free
    assert node.largest_free == tuple(range(8, 16))


def test_a_taint_that_keeps_nothing_away_leaves_the_device_free() -> None:
    cluster = EmulatedCluster()
    cluster.node("a", taints={5: Taint("neuron.aws.com/unhealthy", "hbm-ecc", "None")})
    node = only(cluster)
    assert (node.devices[5].fault, node.devices[5].free) == ("hbm-ecc", True)
    assert str(node.devices[5].taints[0]) == "neuron.aws.com/unhealthy=hbm-ecc:None"
    assert len(node.largest_free) == 16


def test_the_longest_free_run_of_a_ring_crosses_its_end() -> None:
    cluster = EmulatedCluster()
    cluster.node("a", "inf2.48xlarge")
    cluster.claim("one", "a", [3], cores=2)
    cluster.claim("two", "a", [8], cores=2)
    node = only(cluster)
    assert (0, 11) in node.links
    assert node.largest_free == (0, 1, 2, 9, 10, 11)


def test_a_chain_has_two_ends() -> None:
    cluster = EmulatedCluster()
    cluster.node("a", "inf2.24xlarge")
    cluster.claim("one", "a", [2], cores=2)
    node = only(cluster)
    assert (0, 5) not in node.links
    assert node.largest_free == (3, 4, 5)


def test_a_share_leaves_cores_but_no_whole_device() -> None:
    cluster = EmulatedCluster()
    cluster.node("a", "inf1.6xlarge")
    cluster.claim("one", "a", [1], cores=1)
    cluster.claim("two", "a", [1], cores=2)
    device = only(cluster).devices[1]
    assert (device.free, device.free_cores, device.cores) == (False, 1, 4)
    assert [holding.cores for holding in device.holders] == [1, 2]


def test_admin_access_holds_no_device() -> None:
    cluster = EmulatedCluster()
    cluster.node("a")
    cluster.claim("monitor", "a", range(16), admin=True)
    node = only(cluster)
    assert (len(node.free), node.holdings) == (16, ())
    assert [each.claim for each in node.devices[0].lookers] == ["monitor"]


def test_the_whole_node_and_its_devices_exclude_each_other() -> None:
    cluster = EmulatedCluster()
    cluster.node("whole", "trn2u.48xlarge")
    cluster.node("parts", "trn2u.48xlarge")
    cluster.node("empty", "trn2u.48xlarge")
    cluster.claim("all", "whole", [-1])
    cluster.claim("some", "parts", [0])
    found = build(cluster.snapshot())
    whole, parts, empty = (found.node(name) for name in ("whole", "parts", "empty"))
    assert whole is not None
    assert parts is not None
    assert empty is not None
    assert [holding.name for holding in whole.devices[7].holders] == ["team-a/all"]
    assert whole.devices[7].holders[0].whole_node
    assert (whole.free, whole.largest_free, whole.whole_free) == ((), (), False)
    assert (parts.whole_free, len(parts.free)) == (False, 15)
    assert (empty.whole_free, len(empty.largest_free)) == (True, 16)


def test_a_node_that_publishes_only_itself_shows_its_devices() -> None:
    cluster = EmulatedCluster()
    cluster.node("a", "trn2u.48xlarge", features=ClusterFeatures(counters=False), whole_node_alone=True)
    assert len(only(cluster).largest_free) == 16
    cluster.claim("all", "a", [-1])
    node = only(cluster)
    assert [device.offered for device in node.devices] == [False] * 16
    assert (node.largest_free, node.open) == ((), True)


def test_the_place_in_an_ultraserver_is_read_from_labels() -> None:
    cluster = EmulatedCluster()
    prefix = "neuron.amazonaws.com/ultraserver-"
    cluster.node("a", "trn2u.48xlarge", labels={f"{prefix}server-id-4": "bog7", f"{prefix}node-id-4": "2"})
    assert only(cluster).ultraserver == UltraServerPlace("bog7", 4, 2)


def test_a_device_plugin_beside_the_driver_closes_the_node() -> None:
    cluster = EmulatedCluster()
    cluster.node("a", common_taints=[PLUGIN], allocatable={"aws.amazon.com/neuron": "16"})
    cluster.legacy_pod("old", "a", "4")
    node = only(cluster)
    assert node.plugin == PluginUse(16, 4, ("team-a/old",))
    assert node.closed == "a device plugin offers its devices"
    assert (node.devices[0].with_plugin, node.largest_free) == (True, ())


def test_a_node_with_the_device_plugin_only_is_drawn() -> None:
    cluster = EmulatedCluster()
    cluster.node("a", driver=False, allocatable={"aws.amazon.com/neuron": "16", "aws.amazon.com/neuroncore": "64"})
    cluster.legacy_pod("cores", "a", "2", resource="aws.amazon.com/neuroncore")
    cluster.legacy_pod("done", "a", "2")
    cluster.pods[-1]["status"]["phase"] = "Succeeded"
    node = only(cluster)
    assert (len(node.devices), node.closed) == (16, "device plugin only")
    assert node.plugin == PluginUse(16, 0, ("team-a/cores",))


def test_a_node_without_driver_and_plugin_is_not_drawn() -> None:
    cluster = EmulatedCluster()
    cluster.node("a", driver=False)
    assert build(cluster.snapshot()).nodes == ()


def test_reasons_that_close_a_node_to_new_pods_are_found() -> None:
    cluster = EmulatedCluster()
    cluster.node("cordoned", unschedulable=True)
    cluster.node("not-ready", ready=False)
    cluster.node("partial")
    cluster.slices[-1]["spec"]["pool"]["resourceSliceCount"] = 2
    cluster.node("open", "inf2.xlarge")
    found = build(cluster.snapshot())
    assert {node.name: node.closed for node in found.nodes} == {
        "cordoned": "cordoned",
        "not-ready": "not ready",
        "partial": "incomplete pool: 1 of 2 ResourceSlices",
        "open": "",
    }
    assert found.largest_free is found.node("open")


def test_only_the_newer_generation_of_a_pool_counts() -> None:
    cluster = EmulatedCluster()
    cluster.node("a")
    old = dict(cluster.slices[0])
    cluster.slices[0]["spec"]["pool"] = {"name": "a", "generation": 2, "resourceSliceCount": 1}
    cluster.slices.append({**old, "spec": {**old["spec"], "devices": [], "pool": {"name": "a", "generation": 1}}})
    assert len(only(cluster).devices) == 16


def test_a_claim_for_a_missing_device_is_listed_separately() -> None:
    cluster = EmulatedCluster()
    cluster.claim("lost", "gone", [3])
    [stray] = build(cluster.snapshot()).strays
    assert (stray.holding.name, stray.pool, stray.device) == ("team-a/lost", "gone", "neuron-device-3")


def test_results_of_other_drivers_are_ignored() -> None:
    cluster = EmulatedCluster()
    cluster.node("a")
    cluster.claim("nic", "a", [0])["status"]["allocation"]["devices"]["results"][0]["driver"] = "dra.net"
    assert only(cluster).holdings == ()


@pytest.mark.parametrize(
    ("field", "sentence"),
    [
        ("slices", "You may not. No device can be shown. Add this rule to your Role or ClusterRole: - {}"),
        ("claims", "Devices that claims hold are shown as free."),
        ("nodes", "Cordoned nodes, UltraServers and device plugins are not shown."),
        ("pods", "What pods use through a device plugin is not shown."),
    ],
)
def test_unreadable_objects_are_listed_as_problems(field: str, sentence: str) -> None:
    seen = dataclasses.replace(EmulatedCluster().snapshot(), **{field: Unseen("you may not.", "- {}")})
    [problem] = build(seen).problems
    assert sentence in problem


@given(st.sampled_from(TYPES), st.sets(st.integers(0, 15)))
def test_the_largest_set_is_free_and_connected(instance_type: str, busy: set[int]) -> None:
    cluster = EmulatedCluster()
    cluster.node("a", instance_type)
    cluster.claim("busy", "a", sorted(busy))
    node = only(cluster)
    free = {device.index for device in node.devices} - busy
    assert set(node.largest_free) <= free
    assert bool(node.largest_free) == bool(free)
    reached = set(node.largest_free[:1])
    while more := {b for a, b in [*node.links, *((b, a) for a, b in node.links)] if a in reached} & (
        set(node.largest_free) - reached
    ):
        reached |= more
    assert reached == set(node.largest_free)
    assert not any(len(group.members) > len(node.largest_free) and free >= set(group.members) for group in node.groups)
