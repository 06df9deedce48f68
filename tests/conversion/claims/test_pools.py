"""Which pools can take a pod: requirements and node selections, label by label."""

from typing import Any

import pytest

from conversion.claims.candidates import NodeSelection
from conversion.claims.containers import Ask, Role
from conversion.claims.pools import NO_POOLS, NOBODY, NeuronPools, PodNeeds, StaticNode, Supply, amounts
from neuron.api.node_pools import Pool, read_pool
from neuron.api.taints import TolerationSpec
from neuron.hardware.instances import Catalogue

TYPE = "node.kubernetes.io/instance-type"
FAMILY = "karpenter.k8s.aws/instance-family"
ZONE = "topology.kubernetes.io/zone"
TOLERATES = (TolerationSpec("aws.amazon.com/neuron"),)


def rule(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def pool(*rules: dict[str, Any], name: str = "p", labels: dict[str, str] | None = None, **spec: Any) -> Pool:
    inner = {"requirements": list(rules), "taints": spec.pop("taints", None)}
    inner["nodeClassRef"] = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "c"}
    body = {"template": {"metadata": {"labels": labels}, "spec": inner}, **spec}
    found = read_pool("NodePool", {"metadata": {"name": name}, "spec": body})
    assert found is not None
    return found


def needs(*rules: dict[str, Any], devices: int = 1, cores: int = 0, **more: Any) -> PodNeeds:
    terms = [{"matchExpressions": list(rules)}] if rules else None
    return PodNeeds(NodeSelection(terms=terms, **more), TOLERATES, devices, cores)


def types(found: Pool, wanted: PodNeeds, **supply: Any) -> list[str]:
    """Names of the types of which the pool would make a node."""
    takers = NeuronPools(Supply((found,), **supply), Catalogue()).takers(wanted)
    return [entry.name for match in takers.dynamic for entry in match.types]


INF2_SMALL = ["inf2.8xlarge", "inf2.xlarge"]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([rule(TYPE, "In", "inf2.xlarge", "inf2.8xlarge", "m5.large")], INF2_SMALL),
        ([rule("beta.kubernetes.io/instance-type", "In", "inf2.xlarge")], ["inf2.xlarge"]),
        (
            [
                rule("karpenter.k8s.aws/instance-family", "In", "inf2"),
                rule(TYPE, "NotIn", "inf2.48xlarge", "inf2.24xlarge"),
            ],
            INF2_SMALL,
        ),
        (
            [rule(FAMILY, "In", "inf1", "inf2"), rule("karpenter.k8s.aws/instance-size", "In", "xlarge")],
            ["inf2.xlarge", "inf1.xlarge"],
        ),
        (
            [
                rule("karpenter.k8s.aws/instance-category", "In", "inf"),
                rule("karpenter.k8s.aws/instance-generation", "Gt", "1"),
                rule("karpenter.k8s.aws/instance-accelerator-count", "Lt", "2"),
            ],
            INF2_SMALL,
        ),
        (
            [rule("karpenter.k8s.aws/instance-accelerator-name", "In", "trainium2")],
            ["trn2.48xlarge", "trn2.3xlarge", "trn2u.48xlarge"],
        ),
        ([rule("karpenter.k8s.aws/instance-accelerator-manufacturer", "In", "nvidia")], []),
        (
            [
                rule("karpenter.k8s.aws/instance-accelerator-manufacturer", "In", "aws"),
                rule(TYPE, "In", "trn1.2xlarge"),
            ],
            ["trn1.2xlarge"],
        ),
        (
            [rule(FAMILY, "In", "trn1"), rule("karpenter.k8s.aws/instance-accelerator-count", "Gte", "16")],
            ["trn1.32xlarge"],
        ),
        (
            [rule(FAMILY, "In", "trn1"), rule("karpenter.k8s.aws/instance-accelerator-count", "Lte", "1")],
            ["trn1.2xlarge"],
        ),
        (
            [rule(FAMILY, "In", "trn1"), rule("karpenter.k8s.aws/instance-accelerator-name", "Exists")],
            ["trn1.32xlarge", "trn1.2xlarge"],
        ),
        ([rule(FAMILY, "In", "trn1"), rule("karpenter.k8s.aws/instance-accelerator-name", "DoesNotExist")], []),
        (
            [rule(FAMILY, "In", "trn1"), rule("karpenter.k8s.aws/instance-gpu-count", "DoesNotExist")],
            ["trn1.32xlarge", "trn1.2xlarge"],
        ),
        ([rule(FAMILY, "In", "trn1"), rule("karpenter.k8s.aws/instance-gpu-count", "Gt", "0")], []),
        (
            [rule(FAMILY, "In", "trn1"), rule("karpenter.k8s.aws/instance-cpu", "Gt", "7")],
            ["trn1.32xlarge", "trn1.2xlarge"],
        ),
        ([rule(FAMILY, "In", "trn1"), rule("kubernetes.io/arch", "In", "arm64")], []),
        ([rule("karpenter.k8s.aws/instance-category", "In", "c", "m", "r")], []),
        ([rule(TYPE, "In", "trn3s.48xlarge")], ["trn3s.48xlarge"]),
        ([rule(TYPE, "In", "ml.trn1.2xlarge")], ["trn1.2xlarge"]),
    ],
    ids=[
        "types",
        "beta",
        "not-in",
        "size",
        "generation",
        "accelerator",
        "nvidia",
        "aws",
        "gte",
        "lte",
        "exists",
        "absent",
        "no-gpu",
        "gpu",
        "cpu",
        "arm",
        "others",
        "not-offered",
        "sagemaker",
    ],
)
def test_requirements_of_a_pool_choose_types(rules: list[dict[str, Any]], expected: list[str]) -> None:
    assert types(pool(*rules), needs()) == expected


INF2 = rule(FAMILY, "In", "inf2")


@pytest.mark.parametrize(
    ("of_pool", "of_pod", "fits"),
    [
        ([], [rule("a", "In", "b")], False),
        ([], [rule("a", "Exists")], False),
        ([], [rule("a", "NotIn", "b")], True),
        ([], [rule("a", "DoesNotExist")], True),
        ([rule("a", "In", "b", "c")], [rule("a", "In", "c", "d")], True),
        ([rule("a", "In", "b")], [rule("a", "In", "c")], False),
        ([rule("a", "In", "b")], [rule("a", "NotIn", "b")], False),
        ([rule("a", "In", "b")], [rule("a", "DoesNotExist")], False),
        ([rule("a", "In", "b")], [rule("a", "Exists")], True),
        ([rule("a", "Exists")], [rule("a", "In", "x")], True),
        ([rule("a", "NotIn", "b")], [rule("a", "In", "b")], False),
        ([rule("a", "NotIn", "b")], [rule("a", "In", "c")], True),
        ([rule("a", "NotIn", "b")], [rule("a", "DoesNotExist")], True),
        ([rule("a", "DoesNotExist")], [rule("a", "In", "b")], False),
        ([rule("a", "Gt", "3")], [rule("a", "In", "4")], True),
        ([rule("a", "Gt", "3")], [rule("a", "In", "3")], False),
        ([rule("a", "Gt", "3")], [rule("a", "Lt", "4")], False),
        ([rule("a", "Gt", "3")], [rule("a", "Lt", "5")], True),
        ([rule("a", "Exists"), rule("a", "NotIn", "x")], [rule("a", "In", "x")], False),
        ([], [rule("karpenter.sh/capacity-type", "In", "spot")], True),
        (
            [rule("karpenter.sh/capacity-type", "In", "on-demand")],
            [rule("karpenter.sh/capacity-type", "In", "spot")],
            False,
        ),
        ([], [rule(ZONE, "In", "us-east-1a")], True),
        ([], [rule(ZONE, "DoesNotExist")], False),
        ([rule(ZONE, "In", "us-east-1b")], [rule("failure-domain.beta.kubernetes.io/zone", "In", "us-east-1a")], False),
        ([], [rule("karpenter.sh/nodepool", "In", "p")], True),
        ([], [rule("karpenter.sh/nodepool", "In", "q")], False),
        ([], [rule("karpenter.sh/nodepool", "DoesNotExist")], False),
        ([], [rule("karpenter.k8s.aws/ec2nodeclass", "In", "c")], True),
        ([], [rule("karpenter.k8s.aws/ec2nodeclass", "In", "d")], False),
        ([], [rule("eks.amazonaws.com/compute-type", "NotIn", "auto")], True),
        ([], [rule("eks.amazonaws.com/instance-family", "In", "inf2")], False),
        ([], [rule("eks.amazonaws.com/nodegroup", "Exists")], False),
        ([], [rule("kubernetes.io/hostname", "In", "n1")], False),
        ([], [rule("kubernetes.io/hostname", "NotIn", "n1")], True),
        ([], [rule("karpenter.k8s.aws/instance-size", "In", "medium")], False),
    ],
)
def test_labels_of_pool_and_pod_are_compared(
    of_pool: list[dict[str, Any]], of_pod: list[dict[str, Any]], fits: bool
) -> None:
    assert bool(types(pool(INF2, *of_pool), needs(*of_pod))) is fits


def test_labels_of_the_template_count() -> None:
    found = pool(INF2, labels={"pool-kind": "accel"})
    assert types(found, needs(node_selector={"pool-kind": "accel"}))
    assert not types(found, needs(node_selector={"pool-kind": "other"}))


def test_terms_are_alternatives() -> None:
    terms: list[Any] = [{"matchExpressions": [rule(TYPE, "In", name)]} for name in ("inf2.xlarge", "inf2.8xlarge")]
    selection = NodeSelection(terms=[*terms, {}, {"matchFields": [rule("metadata.name", "In", "n")]}])
    assert types(pool(INF2), needs()._replace(selection=selection)) == INF2_SMALL
    nothing = NodeSelection(terms=[{}, {"matchFields": [rule("metadata.name", "In", "n")]}])
    assert not types(pool(INF2), needs()._replace(selection=nothing))


def test_annotated_types_count() -> None:
    assert types(pool(INF2), needs(annotated=("inf2.xlarge", "trn1.2xlarge"))) == ["inf2.xlarge"]


@pytest.mark.parametrize(
    ("devices", "cores", "expected"),
    [
        (1, 0, ["inf2.48xlarge", "inf2.24xlarge", *INF2_SMALL]),
        (2, 0, ["inf2.48xlarge", "inf2.24xlarge"]),
        (12, 0, ["inf2.48xlarge"]),
        (13, 0, []),
        (0, 2, ["inf2.48xlarge", "inf2.24xlarge", *INF2_SMALL]),
        (0, 3, ["inf2.48xlarge", "inf2.24xlarge"]),
        (11, 3, []),
    ],
)
def test_a_type_has_the_devices_of_the_pod(devices: int, cores: int, expected: list[str]) -> None:
    assert types(pool(INF2), needs(devices=devices, cores=cores)) == expected


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"cpu": "1000"}, True),
        ({"cpu": "0"}, False),
        ({"nodes": "0"}, False),
        ({"memory": "0Gi"}, False),
        ({"aws.amazon.com/neuron": "1"}, True),
        ({"aws.amazon.com/neuron": 0}, False),
        ({"aws.amazon.com/neuroncore": "1"}, False),
        ({"cpu": "lots"}, True),
    ],
)
def test_limits_can_forbid_a_node(limits: dict[str, object], expected: bool) -> None:
    assert bool(types(pool(rule(TYPE, "In", "inf2.xlarge"), limits=limits), needs())) is expected


def test_limits_leave_smaller_types() -> None:
    assert types(pool(INF2, limits={"aws.amazon.com/neuron": "6"}), needs()) == ["inf2.24xlarge", *INF2_SMALL]


@pytest.mark.parametrize(
    ("taint", "expected"),
    [
        ({"key": "aws.amazon.com/neuron", "value": "true", "effect": "NoSchedule"}, True),
        ({"key": "team", "value": "a", "effect": "NoSchedule"}, False),
        ({"key": "team", "value": "a", "effect": "NoExecute"}, False),
        ({"key": "team", "value": "a", "effect": "PreferNoSchedule"}, True),
    ],
)
def test_taints_are_tolerated(taint: dict[str, Any], expected: bool) -> None:
    assert bool(types(pool(INF2, taints=[taint]), needs())) is expected


def test_a_node_class_has_zones() -> None:
    wanted = needs(rule(ZONE, "In", "us-east-1c"))
    assert types(pool(INF2), wanted)
    assert types(pool(INF2), wanted, zones=(("c", ("us-east-1c",)), ("d", ())))
    assert not types(pool(INF2), wanted, zones=(("c", ("us-east-1a", "us-east-1b")),))


def test_static_and_idle_pools_are_told_apart() -> None:
    found = [pool(INF2, name="s", replicas=2), pool(INF2, name="i", replicas=0)]
    found += [pool(INF2, name="z", replicas=2, limits={"nodes": "1"}), pool(INF2, name="d")]
    takers = NeuronPools(Supply(tuple(found)), Catalogue()).takers(needs())
    named = [[match.pool.name for match in each] for each in (takers.static, takers.idle, takers.dynamic)]
    assert named == [["s", "z"], ["i"], ["d"]]


@pytest.mark.parametrize(
    ("labels", "wanted", "expected"),
    [
        ({}, needs(), True),
        ({}, needs(node_selector={"a": "b"}), False),
        ({"a": "b"}, needs(node_selector={"a": "b"}), True),
        ({"a": "b"}, needs(rule("a", "NotIn", "b")), False),
        ({}, needs(devices=17), False),
        ({}, needs(annotated=("inf2.xlarge",)), False),
        ({}, needs(node_selector={"kubernetes.io/hostname": "n"}), True),
        ({}, needs()._replace(families=("trn2",)), False),
        (
            {},
            needs()._replace(selection=NodeSelection(terms=[{"matchFields": [rule("metadata.name", "In", "n")]}])),
            True,
        ),
    ],
    ids=["any", "label", "same-label", "not-in", "count", "annotated", "hostname", "family", "field"],
)
def test_nodes_without_a_pool(labels: dict[str, str], wanted: PodNeeds, expected: bool) -> None:
    node = StaticNode("trn1.32xlarge", tuple(sorted({TYPE: "trn1.32xlarge", **labels}.items())))
    found = NeuronPools(Supply(nodes=frozenset({node})), Catalogue())
    assert bool(found.takers(wanted).types) is expected


def test_a_node_of_a_type_that_is_not_in_the_catalogue_may_have_any_count() -> None:
    found = NeuronPools(Supply(nodes=frozenset({StaticNode("trn9.48xlarge")})), Catalogue())
    assert found.takers(needs(devices=64)).types == {"trn9.48xlarge"}


def test_without_pools_and_nodes_nothing_is_known() -> None:
    assert (NO_POOLS.known, NO_POOLS.takers(needs())) == (False, NOBODY)


def test_containers_are_counted_as_the_scheduler_does() -> None:
    def ask(role: Role, amount: int, resource: str = "aws.amazon.com/neuron") -> Ask:
        return Ask("c", role, "spec", resource, amount)

    cores = "aws.amazon.com/neuroncore"
    asks = [ask(Role.SIDECAR, 1), ask(Role.INIT, 8), ask(Role.APP, 4), ask(Role.APP, 2, cores), ask(Role.APP, 1, cores)]
    assert amounts(asks) == (9, 3)
    assert amounts([]) == (0, 0)
