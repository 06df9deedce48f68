"""Which nodes could take a pod, and the one reason for each other node."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import pytest

from commands.cluster.reader import Unseen
from commands.explain.explanation import Block, NodeVerdict, grouped
from commands.objects.manifests import Manifest
from conversion.asks.conversion_context import ConversionOptions
from conversion.claims.containers import Ask, Role
from conversion.claims.instance_fit import DeviceConfig
from conversion.claims.interfaces import Interfaces
from conversion.claims.making import Claim, make_claim
from neuron import names
from neuron.allocator.search import AllocatorResult
from neuron.api.taints import Taint
from neuron.hardware.instances import Catalogue
from tests.support.emulated import PLUGIN, SICK, EmulatedCluster
from tests.support.explaining import Object, explained, legacy_pod, live, template_manifest
from tests.support.timing import TIMED, assert_below

ONE = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": names.DEVICE_CLASS}}]}}


def verdicts(
    cluster: EmulatedCluster, found: Object, *objects: Manifest, version: str = "v1.36.3"
) -> dict[str, NodeVerdict]:
    [explanation] = explained(found, cluster=live(cluster, objects, version=version))
    assert explanation.nodes is not None, explanation.notes
    return {each.node: each for each in explanation.nodes}


def claiming(spec: Object, **fields: Any) -> tuple[Object, Manifest]:
    """A pod with a claim of its own, and the claim's template."""
    made = legacy_pod({}, resourceClaims=[{"name": "mine", "resourceClaimTemplateName": "own"}], **fields)
    made["spec"]["containers"][0]["resources"] = {"claims": [{"name": "mine"}]}
    return made, template_manifest("own", spec)


def only(cluster: EmulatedCluster, found: Object, *objects: Manifest, version: str = "v1.36.3") -> NodeVerdict:
    [verdict] = verdicts(cluster, found, *objects, version=version).values()
    return verdict


def test_a_free_node_takes_the_pod_with_connected_devices() -> None:
    cluster = EmulatedCluster()
    cluster.node("a")
    cluster.claim("other", "a", [1])
    verdict = only(cluster, legacy_pod())
    assert verdict.fits
    assert verdict.texts == tuple(f"neuron-device-{index}" for index in (4, 5, 6, 7))


def test_unconnected_free_devices_are_reported_with_the_holders_of_the_others() -> None:
    cluster = EmulatedCluster()
    cluster.node("a")
    for index in (0, 5, 10, 15):
        cluster.claim(f"pod-{index}", "a", [index])
    verdict = only(cluster, legacy_pod())
    assert (verdict.block, verdict.reason) == (Block.NOT_CONNECTED, "12 devices are free, no 4 of them are connected")
    assert verdict.detail == (
        "at most 1 of them connected; held by team-a/pod-0 (1), team-a/pod-5 (1), team-a/pod-10 (1) and 1 more"
    )


def test_devices_in_use_are_reported_with_their_pods() -> None:
    cluster = EmulatedCluster()
    cluster.node("a")
    cluster.claim("big", "a", range(13))
    cluster.claim("left-over", "a", [13], pods=[])
    verdict = only(cluster, legacy_pod())
    assert (verdict.block, verdict.reason) == (Block.HELD, "2 of 16 devices free, the pod needs 4")
    assert verdict.detail == "held by team-a/big (13), claim team-a/left-over (1)"


def test_a_shared_claim_names_one_pod_and_counts_the_others() -> None:
    cluster = EmulatedCluster()
    cluster.node("a")
    cluster.claim("big", "a", range(16), pods=["p-1", "p-2", "p-3"])
    assert only(cluster, legacy_pod()).detail == "held by team-a/p-1 and 2 more (16)"


def test_sick_devices_are_the_reason_if_the_pod_would_fit_without_their_taints() -> None:
    cluster = EmulatedCluster()
    cluster.node("a", taints=dict.fromkeys((0, 4, 8, 12), SICK))
    verdict = only(cluster, legacy_pod())
    assert (verdict.block, verdict.reason) == (Block.TAINTED, "devices that the pod needs are tainted")
    assert verdict.detail.startswith("neuron-device-0 hbm-ecc, neuron-device-4 hbm-ecc")


def test_a_taint_of_another_kind_is_named() -> None:
    cluster = EmulatedCluster()
    cluster.node("a", common_taints=[Taint("maintenance", "tonight", "NoExecute")])
    assert "neuron-device-0 maintenance=tonight:NoExecute" in only(cluster, legacy_pod()).detail


def test_a_toleration_of_the_claim_counts() -> None:
    cluster = EmulatedCluster()
    cluster.node("a", common_taints=[SICK])
    request = {"name": "r", "exactly": {"deviceClassName": names.DEVICE_CLASS, "tolerations": [{"operator": "Exists"}]}}
    found, own = claiming({"devices": {"requests": [request]}})
    assert only(cluster, found, own).fits


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        pytest.param(
            {"common_taints": [PLUGIN], "allocatable": {names.RESOURCE_NEURON: "16"}},
            "the device plugin still owns its devices: the driver holds them back (taint)",
            id="tainted",
        ),
        pytest.param(
            {"driver": False, "allocatable": {names.RESOURCE_NEURON: "16"}},
            "the device plugin still owns its devices, and the driver does not run",
            id="no driver",
        ),
    ],
)
def test_devices_of_a_device_plugin_are_reported(node: dict[str, Any], reason: str) -> None:
    cluster = EmulatedCluster()
    cluster.node("a", **node)
    verdict = only(cluster, legacy_pod())
    assert (verdict.block, verdict.reason) == (Block.PLUGIN, reason)


def test_a_driver_that_withholds_its_devices_for_the_plugin_is_reported() -> None:
    cluster = EmulatedCluster()
    cluster.node("a", allocatable={names.RESOURCE_NEURON: "16"})
    cluster.slices[0]["spec"]["devices"] = []
    verdict = only(cluster, legacy_pod())
    assert verdict.reason == "the device plugin still owns its devices, and the driver withholds them"


@pytest.mark.parametrize(
    ("empty", "reason"),
    [
        (False, "the driver publishes nothing: it does not run there, or has no devices"),
        (True, "the driver runs and publishes no device"),
    ],
)
def test_a_node_without_published_devices_is_reported(empty: bool, reason: str) -> None:
    cluster = EmulatedCluster()
    cluster.node("a", driver=empty)
    for each in cluster.slices:
        each["spec"]["devices"] = []
    verdict = only(cluster, legacy_pod())
    assert (verdict.block, verdict.reason) == (Block.NO_DRIVER, reason)


def test_an_incomplete_pool_is_reported() -> None:
    cluster = EmulatedCluster()
    cluster.node("a")
    cluster.slices[0]["spec"]["pool"]["resourceSliceCount"] = 3
    verdict = only(cluster, legacy_pod())
    assert (verdict.block, verdict.detail) == (Block.INCOMPLETE, "1 of 3 ResourceSlices")


def test_only_the_newest_generation_of_a_pool_counts() -> None:
    cluster = EmulatedCluster()
    cluster.node("a")
    old = {**cluster.slices[0], "metadata": {"name": "old"}}
    cluster.slices[0] = {**cluster.slices[0], "spec": {**cluster.slices[0]["spec"], "devices": []}}
    cluster.slices[0]["spec"]["pool"] = {**cluster.slices[0]["spec"]["pool"], "generation": 2}
    cluster.slices.append(old)
    assert only(cluster, legacy_pod()).block is Block.NO_DRIVER


def test_closed_nodes_are_reported() -> None:
    cluster = EmulatedCluster()
    cluster.node("cordoned", unschedulable=True)
    cluster.node("lost", ready=False)
    cluster.node("team", labels={"team": "b"})
    cluster.nodes[-1]["spec"]["taints"] = [{"key": "team", "value": "b", "effect": "NoSchedule"}]
    found = {name: (each.block, each.reason) for name, each in verdicts(cluster, legacy_pod()).items()}
    assert found == {
        "cordoned": (Block.CORDONED, "cordoned"),
        "lost": (Block.NOT_READY, "the node is not ready: its kubelet does not answer"),
        "team": (Block.NODE_TAINT, "the pod does not tolerate the node's taint team=b:NoSchedule"),
    }


def test_the_node_selection_of_the_pod_is_reported() -> None:
    cluster = EmulatedCluster()
    cluster.node("a", labels={"disk": "hdd"})
    verdict = only(cluster, legacy_pod(nodeSelector={"disk": "ssd"}))
    assert (verdict.block, verdict.reason) == (Block.SELECTION, "the pod's node selection: disk in (ssd)")


def test_a_node_of_another_type_is_reported_with_the_possible_types() -> None:
    cluster = EmulatedCluster()
    cluster.node("a", "inf2.48xlarge")
    cluster.node("b")
    found = legacy_pod(nodeSelector={names.LABEL_INSTANCE_TYPE: "trn2.48xlarge"})
    verdict = verdicts(cluster, found)["a"]
    assert (verdict.block, verdict.reason) == (
        Block.WRONG_TYPE,
        "wrong type: inf2.48xlarge; the pod needs trn2.48xlarge",
    )


def test_a_selector_that_admits_no_device_of_the_node_is_a_wrong_type() -> None:
    cluster = EmulatedCluster()
    cluster.node("a")
    selector = 'device.attributes["neuron.aws.com"].?instanceType.orValue("") == "trn1.32xlarge"'
    request = {
        "name": "r",
        "exactly": {"deviceClassName": names.DEVICE_CLASS, "selectors": [{"cel": {"expression": selector}}]},
    }
    found, own = claiming({"devices": {"requests": [request]}})
    verdict = only(cluster, found, own)
    assert (verdict.block, verdict.reason) == (Block.WRONG_TYPE, "wrong type: request r admits none of its devices")


def test_more_devices_than_the_node_has() -> None:
    cluster = EmulatedCluster()
    cluster.node("a", "inf2.24xlarge")
    found, own = claiming(
        {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": names.DEVICE_CLASS, "count": 8}}]}}
    )
    verdict = only(cluster, found, own)
    assert (verdict.block, verdict.reason) == (Block.TOO_FEW, "it has 6 devices, the pod needs 8")


def test_more_connected_devices_than_the_node_has() -> None:
    cluster = EmulatedCluster()
    cluster.node("a")
    request = {"name": "r", "exactly": {"deviceClassName": names.DEVICE_CLASS, "count": 5}}
    constraint = {"matchAttribute": names.device_group_attribute(4)}
    found, own = claiming({"devices": {"requests": [request], "constraints": [constraint]}})
    verdict = only(cluster, found, own)
    assert (verdict.block, verdict.reason) == (Block.TOO_FEW, "it has no 5 devices that are connected")


def test_a_selector_that_fails_on_a_device_is_reported() -> None:
    cluster = EmulatedCluster()
    cluster.node("a")
    selector = 'device.attributes["neuron.aws.com"].nothing == "x"'
    request = {
        "name": "r",
        "exactly": {"deviceClassName": names.DEVICE_CLASS, "selectors": [{"cel": {"expression": selector}}]},
    }
    found, own = claiming({"devices": {"requests": [request]}})
    verdict = only(cluster, found, own)
    assert verdict.block is Block.SELECTOR_FAILS
    assert "no such key: 'nothing'" in verdict.reason


def test_a_share_beside_a_pod_of_another_logical_core_is_a_conflict() -> None:
    cluster = EmulatedCluster()
    cluster.node("a", "inf2.xlarge")
    claim = cluster.claim("other", "a", [0], cores=1)
    parameters = {"apiVersion": names.CONFIG_API_VERSION, "kind": "NeuronConfig", "logicalNeuronCore": 2}
    entry = {"source": "FromClaim", "requests": [], "opaque": {"driver": names.DRIVER, "parameters": parameters}}
    claim["status"]["allocation"]["devices"]["config"] = [entry]
    verdict = only(cluster, legacy_pod({names.RESOURCE_NEURONCORE: "1"}))
    assert verdict.block is Block.LNC
    assert verdict.detail == "neuron-device-0: team-a/other uses it with logicalNeuronCore 2, the pod needs 1"


def test_a_share_beside_a_pod_of_the_same_logical_core_fits() -> None:
    cluster = EmulatedCluster()
    cluster.node("a", "inf2.xlarge")
    cluster.claim("other", "a", [0], cores=1)
    assert only(cluster, legacy_pod({names.RESOURCE_NEURONCORE: "1"})).texts == (
        "neuron-device-0 (1 of 2 neuroncores)",
    )


def test_an_allocated_claim_keeps_the_pod_on_its_node() -> None:
    cluster = EmulatedCluster()
    for name in ("a", "b"):
        cluster.node(name)
    claim = cluster.claim("shared", "b", range(4))
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}]
    claim["status"]["allocation"]["nodeSelector"] = {"nodeSelectorTerms": terms}
    found = legacy_pod({}, resourceClaims=[{"name": "mine", "resourceClaimName": "shared"}])
    found["spec"]["containers"][0]["resources"] = {"claims": [{"name": "mine"}]}
    seen = verdicts(cluster, found)
    assert (seen["a"].block, seen["b"].fits) == (Block.ELSEWHERE, True)


def test_an_ultraserver_node_with_a_device_in_use_hides_its_groups_in_schedulers_that_lose_count() -> None:
    cluster = EmulatedCluster()
    cluster.node("a", "trn2u.48xlarge")
    cluster.claim("one", "a", [0])
    request = {"name": "r", "exactly": {"deviceClassName": names.DEVICE_CLASS, "count": 4}}
    constraint = {"matchAttribute": names.device_group_attribute(4)}
    found, own = claiming({"devices": {"requests": [request], "constraints": [constraint]}})
    verdict = only(cluster, found, own, version="v1.36.2")
    assert verdict.block is Block.COUNTERS
    assert "kubernetes/kubernetes#140436" in verdict.reason
    assert only(cluster, found, own, version="v1.36.3").fits


def test_several_claims_of_a_pod_are_allocated_together() -> None:
    cluster = EmulatedCluster()
    cluster.node("a", "inf2.xlarge")
    entries = [{"name": each, "resourceClaimTemplateName": "own"} for each in ("first", "second")]
    found = legacy_pod({}, resourceClaims=entries)
    found["spec"]["containers"][0]["resources"] = {"claims": [{"name": "first"}, {"name": "second"}]}
    verdict = only(cluster, found, template_manifest("own", ONE))
    assert verdict.reason == "it has 1 devices, the pod needs 2"
    cluster.node("b", "inf2.24xlarge")
    assert verdicts(cluster, found, template_manifest("own", ONE))["b"].devices == (
        AllocatorResult("first:r", "neuron-device-0", {names.CAPACITY_CORES: 2, "memory": 0}),
        AllocatorResult("second:r", "neuron-device-1", {names.CAPACITY_CORES: 2, "memory": 0}),
    )


def test_requests_for_other_drivers_are_reported_and_ignored() -> None:
    cluster = EmulatedCluster()
    cluster.node("a")
    expression = 'device.driver == "dra.net"'
    cluster.classes.append({"metadata": {"name": "efa"}, "spec": {"selectors": [{"cel": {"expression": expression}}]}})
    requests = [*ONE["devices"]["requests"], {"name": "net", "exactly": {"deviceClassName": "efa"}}]
    found, own = claiming({"devices": {"requests": requests}})
    [explanation] = explained(found, cluster=live(cluster, [own]))
    assert explanation.nodes is not None
    assert explanation.nodes[0].fits
    assert explanation.notes == ("Not judged: devices of other drivers (net).",)


def test_the_devices_that_a_constraint_ties_to_other_drivers_are_judged() -> None:
    cluster = EmulatedCluster()
    cluster.node("a", "trn2.3xlarge")
    cluster.node("b")
    cluster.classes.append(
        {
            "metadata": {"name": names.EFA_DEVICE_CLASS},
            "spec": {"selectors": [{"cel": {"expression": 'device.driver == "dra.net"'}}]},
        }
    )
    config = DeviceConfig(efa=Interfaces("main", 4, names.EFA_DEVICE_CLASS))
    ask = Ask("main", Role.APP, "spec.containers[0]", names.RESOURCE_NEURON, 4)
    types = [entry for entry in Catalogue() if entry.name == "trn2.48xlarge"]
    claim = make_claim([ask], types, config, names.DEVICE_CLASS, pin_types=False)
    assert isinstance(claim, Claim)
    found, own = claiming(claim.template.spec["spec"])
    [explanation] = explained(found, cluster=live(cluster, [own]))
    assert explanation.nodes is not None
    assert {each.node: each.fits for each in explanation.nodes} == {"a": False, "b": True}
    assert explanation.notes == ("Not judged: devices of other drivers (efa).",)


def test_a_missing_device_class_is_reported() -> None:
    cluster = EmulatedCluster()
    cluster.node("a")
    cluster.classes.clear()
    [explanation] = explained(legacy_pod(), cluster=live(cluster))
    assert explanation.nodes is None
    assert explanation.notes == ("DeviceClass neuron.aws.com does not exist: no node can take the pod.",)


def test_an_unknown_claim_is_reported() -> None:
    cluster = EmulatedCluster()
    cluster.node("a")
    found, _ = claiming(ONE)
    [explanation] = explained(found, cluster=live(cluster))
    assert explanation.notes == ("Nodes are not judged: ResourceClaimTemplate own of claim mine is not known.",)


def test_a_pod_that_keeps_its_limits_runs_where_a_device_plugin_has_room() -> None:
    cluster = EmulatedCluster()
    for name in ("full", "room"):
        cluster.node(name, driver=False, allocatable={names.RESOURCE_NEURON: "16"})
    cluster.node("dra")
    cluster.legacy_pod("holder", "full", "14")
    [explanation] = explained(legacy_pod(), cluster=live(cluster), options=ConversionOptions(mode="shadow"))
    assert explanation.nodes is not None
    found = {each.node: each for each in explanation.nodes}
    assert found["room"].fits
    assert found["full"].reason == "2 of 16 aws.amazon.com/neuron free, the pod needs 4"
    assert (found["dra"].block, found["dra"].reason) == (
        Block.NO_PLUGIN,
        "no device plugin offers aws.amazon.com/neuron there",
    )
    assert explanation.notes[0] == "--mode convert explains what conversion would make of it."


def test_limits_that_a_device_class_serves_are_placed_as_the_claim_of_the_scheduler() -> None:
    cluster = EmulatedCluster()
    cluster.node("dra")
    cluster.claim("other", "dra", [0])
    cluster.node("plugin", driver=False, allocatable={names.RESOURCE_NEURON: "16"})
    cluster.node("full")
    cluster.claim("big", "full", range(16))
    cluster.classes[0]["spec"] = {"extendedResourceName": names.RESOURCE_NEURON}
    [explanation] = explained(legacy_pod(), cluster=live(cluster), options=ConversionOptions(mode="off"))
    assert explanation.nodes is not None
    found = {each.node: each for each in explanation.nodes}
    assert found["dra"].texts == tuple(f"neuron-device-{index}" for index in (1, 2, 3, 4))
    assert found["plugin"].fits
    assert found["full"].block is Block.HELD


def test_many_nodes_are_grouped_by_reason_in_seconds() -> None:
    cluster, fifth = EmulatedCluster(), 200 if TIMED else 20
    for number in range(5 * fifth):
        name = f"node-{number:04}"
        cluster.node(name)
        match number % 5:
            case 0 | 1:
                cluster.claim(f"c{number}", name, range(16))
            case 2:
                for index in (0, 5, 10, 15):
                    cluster.claim(f"c{number}-{index}", name, [index])
            case 3:
                cluster.claim(f"c{number}", name, range(number % 13))
    started = time.monotonic()
    found = verdicts(cluster, legacy_pod())
    assert_below(time.monotonic() - started, 30)
    groups = grouped(found.values())
    assert [(group.block, len(group.nodes)) for group in groups] == [
        (Block.NOT_CONNECTED, fifth),
        (Block.HELD, 2 * fifth),
    ]
    assert sum(each.fits for each in found.values()) == 2 * fifth


# --- CPU and memory -----------------------------------------------------------------------------------------------


def busy(cluster: EmulatedCluster, node: str, cpu: str) -> None:
    spec = {"nodeName": node, "containers": [{"name": "web", "resources": {"requests": {"cpu": cpu}}}]}
    metadata = {"name": f"web-{node}", "namespace": "team-a", "uid": f"web-{node}"}
    cluster.pods.append({"metadata": metadata, "spec": spec, "status": {"phase": "Running"}})


@pytest.mark.parametrize("annotations", [{}, {"neuron.aws.com/convert": "off"}])
def test_a_node_without_free_cpu_cannot_take_the_pod(annotations: dict[str, str]) -> None:
    cluster = EmulatedCluster()
    plugin = {names.RESOURCE_NEURON: "16"} if annotations else {}
    for name in ("full", "free"):
        cluster.node(name, driver=not annotations, allocatable=plugin)
    busy(cluster, "full", "190")
    found = legacy_pod()
    found["metadata"]["annotations"] = annotations
    found["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "4"}
    by_node = verdicts(cluster, found)
    full = by_node["full"]
    assert by_node["free"].fits
    assert (full.block, full.reason) == (Block.RESOURCES, "not enough cpu free")
    assert full.detail == "2 of 192 cpu free, the pod needs 4"


def test_cpu_is_not_judged_if_pods_cannot_be_listed() -> None:
    cluster = EmulatedCluster()
    cluster.node("a")
    seen = live(cluster)
    blind = dataclasses.replace(seen, snapshot=dataclasses.replace(seen.snapshot, pods=Unseen("no."), loads=None))
    [explanation] = explained(legacy_pod(), cluster=blind)
    told = "Not judged: CPU, memory and the number of pods of nodes, because pods cannot be listed."
    assert told in explanation.notes


@pytest.mark.parametrize(
    ("limits", "instance_type", "free", "expected"),
    [
        pytest.param(
            [{names.RESOURCE_NEURONCORE: "10"}], "inf2.48xlarge", [*range(3), 10, 11], "0-2, 10-11", id="ring"
        ),
        pytest.param(
            [{names.RESOURCE_NEURONCORE: "10"}, {names.RESOURCE_NEURON: "1"}],
            "inf2.48xlarge",
            [*range(3), 6, 10, 11],
            "0-2, 6, 10-11",
            id="two-containers",
        ),
    ],
)
@pytest.mark.parametrize("version", ["v1.36.3", "v1.35.6", "v1.34.9"])
def test_a_free_run_that_the_claim_does_not_try_is_named(
    limits: list[dict[str, str]], instance_type: str, free: Sequence[int], expected: str, version: str
) -> None:
    """Ten cores are five devices of the ring and three of the chain, which need alternatives of their own."""
    cluster = EmulatedCluster()
    cluster.node("a", instance_type)
    cluster.node("chain", "inf1.24xlarge")
    cluster.claim("other", "a", set(range(12)) - set(free), cores=2)
    found = legacy_pod()
    found["spec"]["containers"] = [
        {"name": f"c{number}", "image": "i", "resources": {"limits": each}} for number, each in enumerate(limits)
    ]
    verdict = verdicts(cluster, found, version=version)["a"]
    assert (verdict.block, verdict.reason) == (
        Block.NOT_TRIED,
        f"free: devices {expected}; not tried by the claim",
    )


def test_free_devices_that_are_no_run_are_not_connected() -> None:
    cluster = EmulatedCluster()
    cluster.node("a", "inf2.48xlarge")
    cluster.claim("other", "a", [0, 3, 6, 9], cores=2)
    assert only(cluster, legacy_pod({names.RESOURCE_NEURON: "3"})).block is Block.NOT_CONNECTED


def test_a_claim_of_a_user_with_another_constraint_is_not_said_to_miss_devices() -> None:
    cluster = EmulatedCluster()
    cluster.node("a", "inf2.48xlarge")
    cluster.claim("other", "a", [0, 3, 6, 9], cores=2)
    request = {"name": "r", "exactly": {"deviceClassName": names.DEVICE_CLASS, "count": 2}}
    for attribute in (names.device_group_attribute(2), f"{names.DRIVER}/deviceId"):
        found, own = claiming({"devices": {"requests": [request], "constraints": [{"matchAttribute": attribute}]}})
        verdict = only(cluster, found, own)
        assert verdict.fits or verdict.block in (Block.NOT_CONNECTED, Block.TOO_FEW)


def test_of_one_kind_of_reason_the_nodes_with_the_most_free_devices_come_first() -> None:
    full = [NodeVerdict(f"full-{number}", "t", block=Block.HELD, reason="0 of 16 devices free") for number in range(9)]
    some = NodeVerdict("some", "t", block=Block.HELD, reason="3 of 16 devices free", free=3)
    tainted = NodeVerdict("tainted", "t", block=Block.NODE_TAINT, reason="taint")
    assert [group.nodes[0].node for group in grouped([*full, tainted, some])] == ["some", "full-0", "tainted"]


def test_a_free_run_of_a_claim_that_names_devices_and_fewer_of_another_type() -> None:
    cluster = EmulatedCluster()
    cluster.node("a", "inf2.48xlarge")
    cluster.claim("other", "a", range(3, 10), cores=2)
    own = f'device.attributes["{names.DRIVER}"]'

    def alternative(name: str, instance_type: str, ids: list[int]) -> Object:
        text = f'{own}.instanceType == "{instance_type}" && {own}.deviceId in {ids}'
        selectors = [{"cel": {"expression": text}}]
        return {"name": name, "deviceClassName": names.DEVICE_CLASS, "count": len(ids), "selectors": selectors}

    alternatives = [alternative(f"r{at}", "inf2.48xlarge", [*range(at, at + 5)]) for at in (0, 1, 7)]
    alternatives.append(alternative("c", "inf1.24xlarge", [0, 1, 2]))
    found, template = claiming({"devices": {"requests": [{"name": "n0", "firstAvailable": alternatives}]}})
    verdict = verdicts(cluster, found, template)["a"]
    assert (verdict.block, verdict.reason) == (Block.NOT_TRIED, "free: devices 0-2, 10-11; not tried by the claim")
