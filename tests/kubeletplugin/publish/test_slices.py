"""Devices become ResourceSlices with the driver's attributes, within the API's limits, always the same."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from kubeletplugin.discover.devices import ShareSetting, device_index, shares_cores
from kubeletplugin.discover.health import NodeFacts, instance_type, node_facts
from kubeletplugin.discover.sysfs import NeuronDevice, NodeHardware
from kubeletplugin.publish.slices import ClusterFeatures, NodeDevices, desired_slices, is_slice_name, slice_name
from neuron.api.nodes import read_node
from neuron.api.taints import Taint
from neuron.hardware.instances import TYPES, Catalogue, InstanceType, Topology
from tests.kubeletplugin.fakes import NODE, Node

CATALOGUE = Catalogue()
FACTS = NodeFacts(NODE, "node-uid", None, {1: "nn-1", 2: "nn-2", 3: "nn-3"}, "cr-1")
TAINT = Taint("neuron.aws.com/unhealthy", "hbm-ecc", "NoSchedule")


def contents(
    facts: NodeFacts,
    hardware: NodeHardware,
    instance: InstanceType | None,
    features: ClusterFeatures = ClusterFeatures(),
    **options: Any,
) -> list[dict[str, Any]]:
    found = NodeDevices(hardware, instance, **options)
    return [piece.content for piece in desired_slices(facts, found, "1.2.3", features)]


def publish(root: Path, name: str, facts: NodeFacts = FACTS, **options: Any) -> list[dict[str, Any]]:
    hardware = Node(root, name).discover()
    return contents(facts, hardware, CATALOGUE.get(name), **options)


def many(count: int, **options: Any) -> list[dict[str, Any]]:
    hardware = NodeHardware("trn9.1xlarge", "2.25.4.0", tuple(NeuronDevice(index) for index in range(count)))
    instance = InstanceType("trn9.1xlarge", "trn9", None, None, (), 1, None, Topology.SWITCH)
    return contents(FACTS, hardware, instance, **options)


def test_a_trn2_device_has_every_documented_attribute(tmp_path: Path) -> None:
    [content] = publish(tmp_path, "trn2.48xlarge")
    assert (content["driver"], content["nodeName"]) == ("neuron.aws.com", NODE)
    assert content["devices"][6] == {
        "name": "neuron-device-6",
        "attributes": {
            "deviceId": {"int": 6},
            "instanceType": {"string": "trn2.48xlarge"},
            "neuronDriverVersion": {"string": "2.25.4.0"},
            "draDriverVersion": {"version": "1.2.3"},
            "resourceType": {"string": "neuron_device"},
            "networkNodeLayer1": {"string": "nn-1"},
            "networkNodeLayer2": {"string": "nn-2"},
            "networkNodeLayer3": {"string": "nn-3"},
            "topology_x": {"int": 1},
            "topology_y": {"int": 2},
            "topology4_id": {"int": 1},
            "topology8_id": {"int": 0},
            "resource.aws.com/devicegroup1_id": {"string": "0000:56:00.0"},
            "resource.aws.com/devicegroup4_id": {"string": "671622785349fddf"},
            "resource.aws.com/devicegroup8_id": {"string": "3593812b8066a078"},
            "resource.aws.com/devicegroup16_id": {"string": "821d14afaf11327d"},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:50"},
            "resource.kubernetes.io/numaNode": {"int": 0},
        },
        "capacity": {"memory": {"value": "96Gi"}, "neuroncores": {"value": "8"}},
    }


COMMON = {
    *("deviceId", "instanceType", "neuronDriverVersion", "draDriverVersion", "resourceType"),
    *("networkNodeLayer1", "networkNodeLayer2", "networkNodeLayer3"),
}
TORUS = {"topology_x", "topology_y", "topology4_id", "topology8_id"}
GROUPS = {f"resource.aws.com/devicegroup{size}_id" for size in (1, 4, 8, 16)}
PLACE = {"resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"}
PUBLISHED = {
    "trn1.2xlarge": COMMON,
    "trn1.32xlarge": COMMON | TORUS | GROUPS | PLACE,
    "trn1n.32xlarge": COMMON | TORUS | GROUPS,
    "trn2.3xlarge": COMMON,
    "trn2.48xlarge": COMMON | TORUS | GROUPS | PLACE,
    "trn2u.48xlarge": COMMON | GROUPS | {"capacityBlockId"},
    "trn3.48xlarge": COMMON | GROUPS,
    "inf2.48xlarge": COMMON
    | {f"resource.aws.com/devicegroup{size}_id" for size in (2, 3, 4, 5, 6, 8)}
    | {f"neuron.aws.com/window{window}" for window in ("2_1", "3_1", "3_2", "4_1", "4_2")}
    | {f"neuron.aws.com/window{size}_{shift}" for size in (5, 6) for shift in range(1, 5)},
    "inf2.24xlarge": COMMON
    | {f"resource.aws.com/devicegroup{size}_id" for size in (2, 3, 4, 5)}
    | {f"neuron.aws.com/window{window}" for window in ("2_1", "3_1", "3_2", "4_1", "4_2", "5_1")},
    "inf1.6xlarge": COMMON
    | {f"resource.aws.com/devicegroup{size}_id" for size in (2, 3)}
    | {f"neuron.aws.com/window{window}" for window in ("2_1", "3_1")},
    "inf1.2xlarge": COMMON,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_each_type_publishes_the_attributes_that_it_has(tmp_path: Path, name: str) -> None:
    devices = publish(tmp_path, name)[-1]["devices"]
    assert {attribute for device in devices[:16] for attribute in device["attributes"]} == PUBLISHED[name]
    assert all(len(device["attributes"]) <= 32 for device in devices)


MEMORY = {"inf1": 8, "inf2": 32, "trn1": 32, "trn1n": 32, "trn2": 96, "trn2u": 96, "trn3": 144}


@pytest.mark.parametrize("entry", TYPES, ids=lambda entry: entry.name)
def test_every_device_has_its_documented_memory_and_cores(tmp_path: Path, entry: InstanceType) -> None:
    devices = publish(tmp_path, entry.name)[-1]["devices"]
    one = {"memory": {"value": f"{MEMORY[entry.family]}Gi"}, "neuroncores": {"value": str(entry.cores_per_device)}}
    whole = {"memory": {"value": "1536Gi"}, "neuroncores": {"value": "128"}}
    for device in devices:
        assert device["capacity"] == (whole if device["name"] == "neuron-node" else one)


def test_an_undocumented_type_has_no_capacity() -> None:
    [content] = many(3)
    assert all("capacity" not in device for device in content["devices"])


@pytest.mark.parametrize("entry", TYPES, ids=lambda entry: entry.name)
def test_attributes_and_capacities_are_within_the_limit(tmp_path: Path, entry: InstanceType) -> None:
    for device in publish(tmp_path, entry.name)[-1]["devices"]:
        published = set(device["attributes"]) | set(device["capacity"]) | PLACE
        assert len(published) <= 32, sorted(published)


def test_a_version_with_more_bytes_than_the_api_server_takes_is_left_out(tmp_path: Path) -> None:
    """Bytes that are no text are three each: nothing of the node would be published."""
    node = Node(tmp_path, "trn2.3xlarge")
    (node.sysfs / "module/neuron/version").write_bytes(b"\xff" * 22)
    [content] = contents(FACTS, node.discover(), CATALOGUE.get("trn2.3xlarge"))
    assert "neuronDriverVersion" not in content["devices"][0]["attributes"]


def test_unknown_attributes_are_left_out(tmp_path: Path) -> None:
    facts = NodeFacts(NODE, "node-uid", None, {1: "x" * 65}, None)
    [content] = publish(tmp_path, "trn2.3xlarge", facts)
    assert set(content["devices"][0]["attributes"]) == COMMON - {f"networkNodeLayer{layer}" for layer in (1, 2, 3)}


def test_the_same_node_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (json.dumps(publish(tmp_path / name, "trn2u.48xlarge")) for name in ("a", "b"))
    assert first == second


def test_a_whole_ultraserver_node_and_its_devices_exclude_each_other(tmp_path: Path) -> None:
    counters, content = publish(tmp_path, "trn2u.48xlarge")
    [counter_set] = counters["sharedCounters"]
    assert "devices" not in counters
    assert counter_set["counters"] == {f"neuron-device-{index}": {"value": "1"} for index in range(16)}
    *devices, whole = content["devices"]
    assert [device["name"] for device in devices] == [f"neuron-device-{index}" for index in range(16)]
    for index, device in enumerate(devices):
        [consumption] = device["consumesCounters"]
        assert consumption == {
            "counterSet": counter_set["name"],
            "counters": {f"neuron-device-{index}": {"value": "1"}},
        }
    assert whole["name"] == "neuron-node"
    assert whole["consumesCounters"] == [{"counterSet": counter_set["name"], "counters": counter_set["counters"]}]
    assert whole["attributes"]["resourceType"] == {"string": "neuron_node"}
    assert whole["attributes"]["deviceId"] == {"int": 16}, "past all devices, so that no selector of one matches it"
    assert not GROUPS & set(whole["attributes"])


def test_devices_of_a_kind_cost_the_same_where_slices_name_their_kinds(tmp_path: Path) -> None:
    counters, content = publish(tmp_path, "trn2u.48xlarge", features=ClusterFeatures(partition_types=True))
    [counter_set] = counters["sharedCounters"]
    assert counter_set["counters"] == {"devices": {"value": "16"}}
    assert "partitionTypeAttribute" not in counters, "the API server refuses it without devices that consume counters"
    assert content["partitionTypeAttribute"] == "neuron.aws.com/resourceType"
    costs = {json.dumps([each["attributes"]["resourceType"], each["consumesCounters"]]) for each in content["devices"]}
    assert {cost.count('"1"') + 16 * cost.count('"16"') for cost in costs} == {1, 16}
    assert len(costs) == 2


@pytest.mark.parametrize("instance_type", ["trn2.48xlarge", "inf2.48xlarge"])
def test_slices_without_counters_name_no_kinds(tmp_path: Path, instance_type: str) -> None:
    features = ClusterFeatures(partition_types=True)
    assert not [
        each for each in publish(tmp_path, instance_type, features=features) if "partitionTypeAttribute" in each
    ]


def test_counters_are_in_the_slice_of_their_devices_before_1_35(tmp_path: Path) -> None:
    [content] = publish(tmp_path, "trn2u.48xlarge", features=ClusterFeatures(separate_counters=False))
    assert len(content["sharedCounters"]) == 1
    assert len(content["devices"]) == 17


def test_the_whole_node_is_not_published_without_counters(tmp_path: Path) -> None:
    [content] = publish(tmp_path, "trn2u.48xlarge", features=ClusterFeatures(counters=False))
    assert [device["name"] for device in content["devices"]] == [f"neuron-device-{index}" for index in range(16)]
    assert not any("consumesCounters" in device for device in content["devices"])


@pytest.mark.parametrize(("count", "sizes"), [(1, [1]), (128, [128]), (129, [128, 1]), (300, [128, 128, 44])])
def test_a_slice_holds_128_devices(count: int, sizes: list[int]) -> None:
    assert [len(content["devices"]) for content in many(count)] == sizes


@pytest.mark.parametrize(("count", "sizes"), [(64, [64]), (65, [64, 1]), (128, [64, 64])])
def test_a_slice_with_taints_holds_64_devices(count: int, sizes: list[int]) -> None:
    contents = many(count, taints={"neuron-device-3": TAINT})
    assert [len(content["devices"]) for content in contents] == sizes
    assert contents[0]["devices"][3]["taints"] == [structs.asdict(TAINT)]
    assert sum("taints" in device for content in contents for device in content["devices"]) == 1


def test_vanished_devices_stay_listed_with_their_attributes(tmp_path: Path) -> None:
    hardware = Node(tmp_path).discover()
    fewer = dataclasses.replace(hardware, devices=hardware.devices[:5] + hardware.devices[6:])
    [whole] = desired_slices(FACTS, NodeDevices(hardware, CATALOGUE.get("trn2.48xlarge")), "1.2.3")
    [again] = desired_slices(FACTS, NodeDevices(fewer, CATALOGUE.get("trn2.48xlarge"), [5]), "1.2.3")
    assert again == whole


@pytest.mark.parametrize("instance", [None, CATALOGUE.get("trn2.48xlarge")], ids=["unknown-type", "no-devices"])
def test_a_node_without_devices_publishes_an_empty_slice(instance: InstanceType | None) -> None:
    hardware = NodeHardware(None, None, () if instance else (NeuronDevice(0),))
    [piece] = desired_slices(FACTS, NodeDevices(hardware, instance), "1.2.3")
    assert piece.content == {"driver": "neuron.aws.com", "nodeName": NODE, "devices": []}


def test_slice_names_are_stable_sorted_and_short_enough() -> None:
    assert slice_name("ip-10-0-0-1.ec2.internal", 0) == "ip-10-0-0-1.ec2.internal-neuron.aws.com-000"
    names = [slice_name(NODE, number) for number in range(12)]
    assert names == sorted(names)
    long, other = "n" * 253, "n" * 252 + "m"
    assert len(slice_name(long, 0)) == 253
    assert slice_name(long, 0) != slice_name(other, 0)
    assert all(is_slice_name(node, slice_name(node, 12)) for node in (NODE, long))
    assert not any(is_slice_name(NODE, name) for name in (slice_name(other, 0), slice_name(NODE, 0)[:-1], f"{NODE}-1"))


@pytest.mark.parametrize(
    ("name", "index"),
    [("neuron-device-0", 0), ("neuron-device-15", 15), ("neurondevice7", 7), ("neuron-node", None), ("gpu-0", None)],
)
def test_device_names_in_both_spellings_of_aws_are_understood(name: str, index: int | None) -> None:
    assert device_index(name) == index


def test_node_facts_are_read_from_labels() -> None:
    labels = {
        "node.kubernetes.io/instance-type": "ml.trn2.48xlarge",
        "topology.k8s.aws/network-node-layer-1": "nn-1",
        "topology.k8s.aws/network-node-layer-3": "nn-3",
        "topology.k8s.aws/capacity-block-id": "cr-1",
    }
    facts = node_facts(read_node({"metadata": {"name": NODE, "uid": "u", "labels": labels}}))
    assert facts == NodeFacts(NODE, "u", "trn2.48xlarge", {1: "nn-1", 3: "nn-3"}, "cr-1")
    assert node_facts(read_node({"metadata": {"name": NODE, "uid": "u"}})) == NodeFacts(NODE, "u")


def test_the_kubelets_version_is_that_of_the_node_status() -> None:
    status = {"nodeInfo": {"kubeletVersion": "v1.34.1"}}
    assert node_facts(read_node({"metadata": {"name": NODE, "uid": "u"}, "status": status})).kubelet == "v1.34.1"


def test_the_instance_type_is_that_of_dmi_or_else_of_the_label() -> None:
    labelled = NodeFacts(NODE, "u", "trn1.32xlarge")
    by_dmi = instance_type(NodeHardware("trn2.48xlarge", None), labelled, CATALOGUE)
    by_label = instance_type(NodeHardware(None, None), labelled, CATALOGUE)
    assert (by_dmi and by_dmi.name, by_label and by_label.name) == ("trn2.48xlarge", "trn1.32xlarge")
    assert instance_type(NodeHardware(None, None), None, CATALOGUE) is None


@pytest.mark.parametrize(("devices", "topology"), [(1, Topology.SINGLE), (4, Topology.SWITCH)])
def test_an_unknown_type_publishes_the_values_that_sysfs_shows(devices: int, topology: Topology) -> None:
    hardware = NodeHardware("trn9.4xlarge", None, tuple(NeuronDevice(index) for index in range(devices)))
    found = instance_type(hardware, None, CATALOGUE)
    assert found is not None
    assert (found.name, found.family, found.topology, found.logical_neuron_cores) == (
        "trn9.4xlarge",
        "trn9",
        topology,
        (),
    )


# --- windows and groups -----------------------------------------------------------------------------------------


def expected_values(words: str) -> list[str]:
    """`1 1 -`: window 1 for the first two devices, a value of its own for the third."""
    return [f"device-{index}" if word == "-" else f"window-{word}" for index, word in enumerate(words.split())]


def values(content: dict[str, Any], attribute: str) -> list[str]:
    return [device["attributes"][attribute]["string"] for device in content["devices"]]


@pytest.mark.parametrize(
    ("name", "attribute", "expected"),
    [
        ("inf1.6xlarge", "resource.aws.com/devicegroup3_id", "0 0 0 -"),
        ("inf1.6xlarge", "neuron.aws.com/window3_1", "- 1 1 1"),
        ("inf2.24xlarge", "neuron.aws.com/window2_1", "- 1 1 3 3 -"),
        ("inf2.48xlarge", "neuron.aws.com/window2_1", "11 1 1 3 3 5 5 7 7 9 9 11"),
    ],
)
def test_consecutive_devices_of_a_window_share_a_value(
    tmp_path: Path, name: str, attribute: str, expected: str
) -> None:
    """A chain has no window over its ends, a ring has; a device in no window has a value of its own."""
    [content] = publish(tmp_path, name)
    assert values(content, attribute) == expected_values(expected)


def rewire(hardware: NodeHardware, links: dict[int, set[int] | None]) -> NodeHardware:
    changed = []
    for device in hardware.devices:
        named = links.get(device.index, device.connected)
        changed.append(dataclasses.replace(device, connected=None if named is None else frozenset(named)))
    return dataclasses.replace(hardware, devices=tuple(changed))


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        pytest.param({0: {1, 5}, 5: {4, 0}}, "5 1 1 3 3 5", id="the ends are linked"),
        pytest.param({1: {0}, 2: {3}}, "- - - 3 3 -", id="a link is missing"),
        pytest.param({1: None}, "- 1 1 3 3 -", id="a device does not tell"),
        pytest.param({index: set() for index in range(6)}, "- 1 1 3 3 -", id="no device tells"),
    ],
)
def test_windows_follow_the_links_that_sysfs_names(
    tmp_path: Path, links: dict[int, set[int] | None], expected: str
) -> None:
    hardware = rewire(Node(tmp_path, "inf2.24xlarge").discover(), links)
    [content] = contents(FACTS, hardware, CATALOGUE.get("inf2.24xlarge"))
    assert values(content, "neuron.aws.com/window2_1") == expected_values(expected)


# --- shares -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "cores", "valid"),
    [
        ("inf1.6xlarge", "4", ["0", "1", "2", "4"]),
        ("inf2.48xlarge", "2", ["0", "1", "2"]),
        ("trn2.3xlarge", "8", ["0", "1", "2", "4", "8"]),
    ],
)
def test_shared_devices_have_their_cores_as_capacity(tmp_path: Path, name: str, cores: str, valid: list[str]) -> None:
    [content] = publish(tmp_path, name, shares_cores=True)
    for device in content["devices"]:
        assert device["allowMultipleAllocations"] is True
        assert device["capacity"]["neuroncores"] == {
            "value": cores,
            "requestPolicy": {"default": cores, "validValues": valid},
        }
        assert len(device["attributes"]) + len(device["capacity"]) <= 32


def test_devices_are_not_shared_if_the_cluster_or_settings_forbid_it(tmp_path: Path) -> None:
    for options in ({}, {"shares_cores": True, "features": ClusterFeatures(shares=False)}):
        [content] = publish(tmp_path, "inf1.6xlarge", **options)
        assert not any("allowMultipleAllocations" in device for device in content["devices"])


def test_the_cores_are_those_of_sysfs_or_else_of_the_catalogue(tmp_path: Path) -> None:
    first, second, third, fourth = Node(tmp_path, "inf1.6xlarge").discover().devices
    devices = (
        dataclasses.replace(first, cores=6),
        dataclasses.replace(second, cores=None),
        dataclasses.replace(third, cores=129),
        fourth,
    )
    hardware = NodeHardware("inf1.6xlarge", None, devices)
    known = CATALOGUE.get("inf1.6xlarge")
    assert known is not None
    [content] = contents(FACTS, hardware, known, shares_cores=True)
    six, four, many, _ = content["devices"]
    assert six["capacity"]["neuroncores"]["requestPolicy"] == {"default": "6", "validValues": ["0", "1", "2", "4", "6"]}
    assert four["capacity"]["neuroncores"]["value"] == "4"
    assert "allowMultipleAllocations" not in many, "a request policy has at most 10 values"
    [content] = contents(FACTS, hardware, dataclasses.replace(known, cores_per_device=None), shares_cores=True)
    assert "allowMultipleAllocations" not in content["devices"][1]


def test_the_whole_ultraserver_node_is_not_shared_and_its_devices_can_be(tmp_path: Path) -> None:
    _, content = publish(tmp_path, "trn2u.48xlarge", shares_cores=True)
    *devices, whole = content["devices"]
    assert all(device["allowMultipleAllocations"] and device["consumesCounters"] for device in devices)
    assert "allowMultipleAllocations" not in whole


@pytest.mark.parametrize(
    ("setting", "shared"),
    [
        ("off", set()),
        ("auto", {"inf2.48xlarge", "inf2.24xlarge", "inf1.6xlarge", "inf1.xlarge", "trn1.2xlarge", "trn2.3xlarge"}),
        ("on", {*CATALOGUE.names()}),
    ],
)
def test_the_setting_selects_the_types_that_are_shared(setting: ShareSetting, shared: set[str]) -> None:
    found = {entry.name for entry in CATALOGUE if shares_cores(setting, entry)}
    large = {entry.name for entry in CATALOGUE if entry.family.startswith("trn") and entry.devices != 1}
    assert found >= shared
    assert found & large == (large if setting == "on" else set())
    assert bool(found) is (setting != "off")
    assert shares_cores(setting, None) is (setting == "on")
