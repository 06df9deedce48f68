"""Targets of a cordon, its rules, and the pods that a drain evicts."""

from typing import Any

import pytest

from commands.cordon import (
    NO_EXECUTE,
    NO_SCHEDULE,
    Target,
    TargetError,
    check_target,
    closed_devices,
    cordon_rules,
    cordon_taint,
    cordoned_by,
    parse_target,
    users,
)
from commands.devices.device_map import build
from neuron import names
from neuron.api.slices import read_rule, read_slice, tainted
from neuron.api.stored_claims import read_stored_claim
from neuron.api.taints import Taint
from runtime.api_server import Resource
from tests.support.emulated import EmulatedCluster

RULES = Resource("resource.k8s.io", "v1beta2", "devicetaintrules")
EVICTING = cordon_taint(NO_EXECUTE)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("a", Target("a")),
        ("a/neuron-device-3", Target("a", "neuron-device-3")),
        ("a/3", Target("a", "neuron-device-3")),
        ("a/neuron-node", Target("a", "neuron-node")),
    ],
)
def test_a_target_is_a_node_or_a_device(text: str, target: Target) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize("text", ["", "/3", "a/", "a/b/c"])
def test_an_invalid_target_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(TargetError, match=r"is not NODE or NODE/DEVICE\. Example: trn2-0/neuron-device-3\."):
        parse_target(text)


def test_an_unpublished_node_or_device_is_reported() -> None:
    cluster = EmulatedCluster()
    cluster.node("trn2-0")
    nodes = build(cluster.snapshot()).nodes
    check_target(Target("trn2-0", "neuron-device-15"), nodes)
    said = "Node 'trn2-1' publishes no Neuron devices. Did you mean 'trn2-0'? Nodes that do: trn2-0."
    with pytest.raises(TargetError) as error:
        check_target(Target("trn2-1"), nodes)
    assert str(error.value) == said
    with pytest.raises(TargetError, match=r"publishes no device 'neuron-device-16'\. Did you mean 'neuron-device-6'\?"):
        check_target(Target("trn2-0", "neuron-device-16"), nodes)
    check_target(Target("trn2-1", "neuron-device-3"), nodes, ("neuron-device-3",))


def test_a_device_of_an_ultraserver_closes_the_whole_node_too() -> None:
    made = cordon_rules(Target("u", "neuron-device-3"), "u", "neuron-node", RULES, NO_SCHEDULE)
    assert [each["metadata"]["name"] for each in made] == [
        "neuron-cordon-u.neuron-device-3",
        "neuron-cordon-u.neuron-device-3.neuron-node",
    ]
    assert [each["spec"]["deviceSelector"]["device"] for each in made] == ["neuron-device-3", "neuron-node"]
    assert {cordoned_by(each) for each in made} == {"u/neuron-device-3"}
    [whole] = cordon_rules(Target("u", "neuron-node"), "u", "neuron-node", RULES, NO_SCHEDULE)
    assert whole["spec"]["deviceSelector"]["device"] == "neuron-node"
    [node] = cordon_rules(Target("u"), "u", "neuron-node", RULES, NO_EXECUTE)
    assert node["spec"] == {
        "deviceSelector": {"driver": "neuron.aws.com", "pool": "u"},
        "taint": {"key": "neuron.aws.com/cordoned", "value": "admin", "effect": "NoExecute"},
    }
    assert closed_devices(Target("u"), "neuron-node") == ()


def test_names_of_rules_are_stable_and_short_enough() -> None:
    long = "a" * 250
    found = [
        cordon_rules(Target(long, f"neuron-device-{n}"), long, "", RULES, NO_SCHEDULE)[0]["metadata"]["name"]
        for n in (1, 2, 1)
    ]
    assert found[0] == found[2] != found[1]
    assert {len(each) for each in found} == {253}


def test_only_rules_with_our_label_and_taint_are_recognised() -> None:
    [rule] = cordon_rules(Target("a"), "a", "", RULES, NO_SCHEDULE)
    assert cordoned_by(rule) == "a"
    foreign: dict[str, Any] = {**rule, "metadata": {**rule["metadata"], "labels": {}}}
    other: dict[str, Any] = {**rule, "spec": {"taint": {"key": "example.com/x"}}}
    assert (cordoned_by(foreign), cordoned_by(other)) == ("", "")


def test_a_drain_finds_the_pods_of_the_devices_and_of_the_whole_node() -> None:
    cluster = EmulatedCluster()
    cluster.node("u", "trn2u.48xlarge")
    cluster.claim("three", "u", [2, 3])
    cluster.claim("four", "u", [4])
    cluster.claim("whole", "u", [-1])
    cluster.claim("looks", "u", [3], admin=True)
    cluster.claim("elsewhere", "v", [3])
    closed = closed_devices(Target("u", "neuron-device-3"), names.NODE_DEVICE)
    found = users(map(read_stored_claim, cluster.claims), "u", closed, EVICTING)
    assert [str(each) for each in found] == ["team-a/looks", "team-a/three", "team-a/whole"]
    assert len(users(map(read_stored_claim, cluster.claims), "u", (), EVICTING)) == 4
    assert not any(each.stays for each in found)


@pytest.mark.parametrize(
    ("toleration", "stays"),
    [
        ({"operator": "Exists", "effect": "NoExecute"}, True),
        ({"key": "neuron.aws.com/cordoned", "operator": "Exists", "effect": "NoExecute"}, True),
        (
            {"key": "neuron.aws.com/cordoned", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60},
            False,
        ),
        ({"operator": "Exists"}, False),
        ({"key": "neuron.aws.com/unhealthy", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"operator": "Exists", "effect": "NoSchedule"}, False),
    ],
)
def test_a_pod_whose_claim_tolerates_the_taint_without_limit_stays(toleration: dict[str, Any], *, stays: bool) -> None:
    cluster = EmulatedCluster()
    claim = cluster.claim("agent", "a", [3])
    for result in claim["status"]["allocation"]["devices"]["results"]:
        result["tolerations"] = [toleration]
    [found] = users(map(read_stored_claim, cluster.claims), "a", (), EVICTING)
    assert found.stays is stays


def test_a_rule_taints_the_devices_that_it_selects() -> None:
    [item] = cordon_rules(Target("a", "d3"), "a", "", RULES, NO_SCHEDULE)
    rule = read_rule(item)
    assert rule is not None
    spec: dict[str, Any] = {
        "driver": names.DRIVER,
        "pool": {"name": "a"},
        "devices": [{"name": "d2"}, {"name": "d3", "taints": [{"key": "x"}]}],
    }
    slice_ = read_slice({"spec": spec})
    first, second = tainted(slice_, [rule]).devices
    own = Taint("x", effect="")
    assert (first.taints, second.taints) == ((), (own, Taint.read(item["spec"]["taint"])))
    assert slice_.devices[1].taints == (own,), "the slice itself stays as it is"
    for other in ({**spec, "driver": "gpu.example.com"}, {**spec, "pool": {"name": "b"}}):
        assert tainted(read_slice({"spec": other}), [rule]) == read_slice({"spec": other})


@pytest.mark.parametrize("selector", [None, {"deviceClassName": "x"}, {"selectors": [{"cel": {"expression": "true"}}]}])
def test_rules_without_or_with_unknown_selection_are_not_judged(selector: object) -> None:
    item = {
        "metadata": {"name": "r"},
        "spec": {"deviceSelector": selector, "taint": {"key": "a", "effect": "NoSchedule"}},
    }
    assert read_rule(item) is None
