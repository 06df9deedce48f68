"""NodePools, Provisioners, EC2NodeClasses and MachineDeployments as `Pool` and zones."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron import names
from neuron.api.fields import WrongFormError
from neuron.api.node_pools import LabelRule, Pool, read_pool, read_zones
from neuron.api.taints import Taint

TYPE = "node.kubernetes.io/instance-type"
CAPACITY = "capacity.cluster-autoscaler.kubernetes.io"
MOST = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size"


def node_pool(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "neuron"}, "spec": spec}


def group(**annotations: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "md", "annotations": {key.replace("_", "-"): each for key, each in annotations.items()}}
    }


def described(maximum: str = "10", **capacity: str) -> dict[str, Any]:
    return group(**{MOST: maximum, **{f"{CAPACITY}/{key.replace('_', '-')}": each for key, each in capacity.items()}})


def test_a_node_pool() -> None:
    template = {
        "metadata": {"labels": {"team/accelerator": "neuron"}},
        "spec": {
            "requirements": [
                {"key": TYPE, "operator": "In", "values": ["trn1.32xlarge"], "minValues": 1},
                {"key": "karpenter.sh/capacity-type", "operator": "Exists"},
            ],
            "taints": [
                {"key": "aws.amazon.com/neuron", "value": "true", "effect": "NoSchedule"},
                {"key": "soft", "effect": "PreferNoSchedule"},
            ],
            "startupTaints": [{"key": "starting", "effect": "NoSchedule"}],
            "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "large"},
            "expireAfter": "720h",
        },
    }
    limits = {"cpu": "1000", "memory": "1Gi", "nodes": 3, "aws.amazon.com/neuron": "32", "nvidia.com/gpu": 1}
    found = read_pool("NodePool", node_pool(template=template, weight=10, replicas=2, limits=limits))
    assert found == Pool(
        "NodePool",
        "neuron",
        (
            LabelRule("karpenter.k8s.aws/ec2nodeclass", "In", ("large",)),
            LabelRule("karpenter.sh/nodepool", "In", ("neuron",)),
            LabelRule("team/accelerator", "In", ("neuron",)),
            LabelRule(TYPE, "In", ("trn1.32xlarge",)),
            LabelRule("karpenter.sh/capacity-type", "Exists"),
        ),
        (Taint("aws.amazon.com/neuron", "true", "NoSchedule"),),
        (("nodes", 3), ("cpu", 1000), ("memory", 2**30), ("aws.amazon.com/neuron", 32)),
        10,
        2,
        ("karpenter.k8s.aws", "EC2NodeClass", "large"),
    )
    assert (found.dynamic, found.automatic, str(found)) == (False, False, "NodePool neuron")


def test_the_api_version_of_a_node_class_names_its_group() -> None:
    """As `karpenter.sh/v1beta1` writes the reference."""
    reference = {"apiVersion": "karpenter.k8s.aws/v1beta1", "kind": "EC2NodeClass", "name": "a"}
    found = read_pool("NodePool", node_pool(template={"spec": {"nodeClassRef": reference}}))
    assert found is not None
    assert found.node_class == ("karpenter.k8s.aws", "EC2NodeClass", "a")


def test_nodes_of_eks_auto_mode_have_its_label() -> None:
    reference = {"group": "eks.amazonaws.com", "kind": "NodeClass", "name": "default"}
    found = read_pool("NodePool", node_pool(template={"spec": {"nodeClassRef": reference}}))
    assert found is not None
    assert found.automatic
    assert LabelRule(names.LABEL_COMPUTE_TYPE, "In", (names.AUTO_MODE,)) in found.rules


def test_a_provisioner_has_no_template() -> None:
    spec = {
        "labels": {"a": "b"},
        "requirements": [{"key": TYPE, "operator": "NotIn", "values": ["m5.large"]}],
        "taints": [{"key": "k", "effect": "NoExecute"}],
        "limits": {"resources": {"cpu": "1k", "memory": "x"}},
        "providerRef": {"name": "default"},
    }
    found = read_pool("Provisioner", {"metadata": {"name": "old"}, "spec": spec})
    assert found == Pool(
        "Provisioner",
        "old",
        (
            LabelRule("a", "In", ("b",)),
            LabelRule("karpenter.sh/provisioner-name", "In", ("old",)),
            LabelRule(TYPE, "NotIn", ("m5.large",)),
        ),
        (Taint("k", "", "NoExecute"),),
        (("cpu", 1000),),
    )


@pytest.mark.parametrize(
    "spec", [None, {}, {"template": None}, {"template": {"spec": {"requirements": None, "taints": None}}}]
)
def test_an_empty_pool_has_only_its_own_label(spec: Any) -> None:
    own = (LabelRule("karpenter.sh/nodepool", "In", ("p",)),)
    assert read_pool("NodePool", {"metadata": {"name": "p"}, "spec": spec}) == Pool("NodePool", "p", own)


@pytest.mark.parametrize("kind", ["NodePool", "Provisioner", "MachineDeployment"])
def test_one_that_is_being_deleted_makes_no_nodes(kind: str) -> None:
    item = described(labels=f"{TYPE}=trn1.32xlarge") if kind == "MachineDeployment" else node_pool()
    assert read_pool(kind, item) is not None
    item["metadata"]["deletionTimestamp"] = "2026-11-27T00:00:00Z"
    assert read_pool(kind, item) is None


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("1500m", 1), ("0", 0), (0, 0), (-1, -1), ("many", None), (True, None), (["1"], None), ({}, None)],
    ids=repr,
)
def test_a_limit_is_a_whole_number_or_none(limit: Any, expected: int | None) -> None:
    found = read_pool("NodePool", node_pool(limits={"nodes": limit}))
    assert found is not None
    assert dict(found.limits).get("nodes") == expected


class TestNodeGroups:
    """Annotations of a MachineDeployment, which Cluster Autoscaler reads to make the first node."""

    def test_its_annotations_describe_its_nodes(self) -> None:
        item = described(
            labels=f"{TYPE}=trn1.32xlarge, a=,b,=c,d=e=f",
            taints="k=v:NoSchedule, only:NoExecute,soft:PreferNoSchedule,broken,:NoSchedule",
        )
        assert read_pool("MachineDeployment", item) == Pool(
            "MachineDeployment",
            "md",
            (
                LabelRule("a", "In", ("",)),
                LabelRule("d", "In", ("e=f",)),
                LabelRule(TYPE, "In", ("trn1.32xlarge",)),
            ),
            (Taint("k", "v", "NoSchedule"), Taint("only", "", "NoExecute")),
        )

    @pytest.mark.parametrize(("driver", "ours"), [("neuron.aws.com", True), ("gpu.nvidia.com", False)])
    def test_the_autoscaler_can_know_our_driver(self, driver: str, ours: bool) -> None:
        found = read_pool("MachineDeployment", described(labels="a=b", dra_driver=driver))
        assert found is not None
        assert found.serves_claims is ours

    @pytest.mark.parametrize(
        "item",
        [
            {"metadata": {"name": "md"}},
            group(**{f"{CAPACITY}/labels": "a=b"}),
            described("0", labels="a=b"),
            described(" 0 ", labels="a=b"),
            described(),
            described(labels=","),
            described(dra_driver="gpu.nvidia.com"),
        ],
        ids=["nothing", "not scaled", "no nodes", "no nodes, spaces", "not described", "empty", "another driver"],
    )
    def test_a_group_that_is_not_scaled_or_not_described_is_none(self, item: Any) -> None:
        assert read_pool("MachineDeployment", item) is None


class TestZones:
    """Where an EC2NodeClass makes nodes."""

    def test_they_are_those_of_its_subnets(self) -> None:
        subnets = [{"id": f"subnet-{zone}", "zone": zone, "zoneID": "use1-az1"} for zone in ("b", "a", "b", "")]
        assert read_zones({"metadata": {"name": "c"}, "status": {"subnets": subnets}}) == ("a", "b")

    @pytest.mark.parametrize("status", [None, {}, {"subnets": None}, {"subnets": []}, {"subnets": [{"id": "a"}]}])
    def test_without_subnets_they_are_not_known(self, status: Any) -> None:
        assert read_zones({"metadata": {"name": "c"}, "status": status}) == ()


@pytest.mark.parametrize(
    ("kind", "item", "path"),
    [
        ("NodePool", [], "object"),
        ("NodePool", {"spec": {}}, "metadata"),
        ("NodePool", node_pool(replicas="3"), r"\$\.spec\.replicas"),
        ("NodePool", node_pool(limits=[]), r"\$\.spec\.limits"),
        ("NodePool", node_pool(template={"spec": {"requirements": {}}}), r"\$\.spec\.template\.spec\.requirements"),
        ("NodePool", node_pool(template={"spec": {"requirements": [{"operator": "In"}]}}), "key"),
        ("NodePool", node_pool(template={"spec": {"taints": ["a"]}}), r"taints\[0\]"),
        ("NodePool", node_pool(template={"metadata": {"labels": {"a": 1}}}), "labels"),
        ("Provisioner", {"metadata": {"name": "p"}, "spec": {"labels": []}}, r"\$\.spec\.labels"),
        ("MachineDeployment", {"metadata": {"name": "p", "annotations": {"a": 1}}}, "annotations"),
    ],
)
def test_another_form_is_refused_with_its_path(kind: str, item: Any, path: str) -> None:
    with pytest.raises(WrongFormError, match=path):
        read_pool(kind, item)


def test_another_form_of_a_node_class_is_refused() -> None:
    with pytest.raises(WrongFormError, match=r"\$\.status\.subnets"):
        read_zones({"metadata": {"name": "c"}, "status": {"subnets": {}}})


KINDS_OF_POOLS = ("NodePool", "Provisioner", "MachineDeployment")
KEYS = (
    *("metadata", "name", "spec", "status", "annotations", "labels", "template", "requirements", "key", "operator"),
    *(
        "values",
        "taints",
        "effect",
        "limits",
        "resources",
        "nodes",
        "weight",
        "replicas",
        "nodeClassRef",
        "group",
        "kind",
    ),
    *("subnets", "zone", MOST, f"{CAPACITY}/labels", f"{CAPACITY}/taints"),
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["1e99999999", "1Ei"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=20,
)


@given(
    st.sampled_from([*(functools.partial(read_pool, kind) for kind in KINDS_OF_POOLS), read_zones]),
    st.fixed_dictionaries({"metadata": st.just({"name": "p"}) | VALUES, "spec": VALUES, "status": VALUES}) | VALUES,
)
def test_any_value_is_read_or_refused(read: Callable[[object], Pool | tuple[str, ...] | None], item: object) -> None:
    with contextlib.suppress(WrongFormError):
        hash(read(item))
