"""Which nodes are shown; label selectors as kubectl's."""

import click
import pytest

from commands.cli.map import Filter, apply, selector
from commands.devices.device_map import build
from tests.commands.map.clusters import mixed
from tests.support.emulated import EmulatedCluster


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        (Filter(), ["chain", "plugin", "ring", "torus", "us-0", "us-1"]),
        (Filter(names=frozenset({"ring"})), ["ring"]),
        (Filter(instance_type="trn2"), ["plugin", "torus"]),
        (Filter(instance_type="trn2u.48xlarge"), ["us-0", "us-1"]),
        (Filter(namespace="team-b"), ["torus"]),
        (Filter(claim="train"), ["torus"]),
        (Filter(claim="whole"), ["us-1"]),
        (Filter(free=6), ["ring", "us-0"]),
        (Filter(attention=True), ["chain", "ring"]),
        (Filter(labels=selector("node.kubernetes.io/instance-type=inf2.48xlarge")), ["ring"]),
    ],
)
def test_a_filter_selects_nodes(chosen: Filter, names: list[str]) -> None:
    assert [node.name for node in apply(chosen, build(mixed().snapshot())).nodes] == names


def tainted(key: str, effect: str = "NoSchedule") -> EmulatedCluster:
    cluster = EmulatedCluster()
    cluster.node("bare")
    cluster.node("tainted")
    cluster.nodes[-1]["spec"]["taints"] = [{"key": key, "effect": effect}]
    return cluster


@pytest.mark.parametrize(
    ("key", "effect", "tolerated", "offered"),
    [
        ("aws.amazon.com/neuron", "NoSchedule", (), True),
        ("team", "PreferNoSchedule", (), True),
        ("team", "NoSchedule", (), False),
        ("team", "NoExecute", (), False),
        ("team", "NoSchedule", ("team",), True),
        ("team", "NoSchedule", ("other",), False),
        ("karpenter.sh/disrupted", "NoSchedule", (), False),
        ("karpenter.sh/disrupted", "NoSchedule", ("karpenter.sh/disrupted",), False),
        ("ToBeDeletedByClusterAutoscaler", "NoSchedule", (), False),
        ("node.kubernetes.io/disk-pressure", "NoSchedule", (), False),
    ],
)
def test_a_node_with_a_taint_is_free_only_for_pods_that_tolerate_it(
    key: str, effect: str, tolerated: tuple[str, ...], offered: bool
) -> None:
    chosen = Filter(free=16, tolerated=frozenset(tolerated))
    found = [node.name for node in apply(chosen, build(tainted(key, effect).snapshot())).nodes]
    assert found == (["bare", "tainted"] if offered else ["bare"])


@pytest.mark.parametrize("key", ["karpenter.sh/disrupted", "ToBeDeletedByClusterAutoscaler"])
def test_a_node_that_is_about_to_go_takes_no_new_pods(key: str) -> None:
    node = build(tainted(key).snapshot()).node("tainted")
    assert node is not None
    assert node.closed == f"taint {key}"


LABELS = {"a": "b", "zone": "z1", "empty": ""}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", True),
        ("a==b", True),
        ("a=c", False),
        ("a!=b", False),
        ("missing!=b", True),
        ("a", True),
        ("!a", False),
        ("missing", False),
        ("! missing", True),
        ("zone in (z1, z2)", True),
        ("zone in (z2)", False),
        ("zone notin (z2)", True),
        ("missing notin (z2)", True),
        ("missing in (z2)", False),
        ("a=b,zone in (z1,z2),!missing", True),
        ("a=b,zone=z2", False),
        ("empty=", True),
    ],
)
def test_a_selector_has_the_syntax_of_kubectl(text: str, expected: bool) -> None:
    assert selector(text)(LABELS) is expected


@pytest.mark.parametrize("text", ["", "a=b,", "a>1", "a in z1", "in (a)", "a=b c"])
def test_a_selector_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"is not a part of a label selector\. Allowed: key=value"):
        selector(text)
