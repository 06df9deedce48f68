"""The order of migration: ready namespaces first, small ones first; which nodes each step frees."""

from typing import Any

import pytest

from commands.report.model import Devices, MigrationStep
from kubeletplugin.publish.slices import ClusterFeatures
from tests.support.emulated import EmulatedCluster
from tests.support.reports import Object, deployment, obstacles, owned, report, running

TRN1 = {"nodeSelector": {"node.kubernetes.io/instance-type": "trn1.32xlarge"}}
PLUGIN = {"aws.amazon.com/neuron": "16"}


def cluster(*held: range) -> EmulatedCluster:
    """Three nodes of the device plugin, and one of the driver for each range of devices that a claim holds there."""
    made = EmulatedCluster()
    for number in (1, 2, 3):
        made.node(f"node-{number}", "trn1.32xlarge", driver=False, allocatable=PLUGIN)
    for number, devices in enumerate(held):
        made.node(f"driver-{number}", "trn1.32xlarge")
        made.claim(f"holder-{number}", f"driver-{number}", devices)
    return made


def test_small_ready_namespaces_come_first_and_blocked_ones_last() -> None:
    made = report(
        deployment("big", 16, namespace="big", **TRN1),
        deployment("odd", 7, namespace="blocked", **TRN1),
        deployment("one", 1, namespace="blocked", **TRN1),
        deployment("small", 4, namespace="small", **TRN1),
    )
    assert [(step.namespace, step.ready, step.workloads, step.blocked) for step in made.steps] == [
        ("small", True, 1, 0),
        ("big", True, 1, 0),
        ("blocked", False, 1, 1),
    ]
    assert [each.ref.namespace for each in made.workloads] == ["small", "big", "blocked", "blocked"]
    assert [each.blocked for each in made.workloads] == [False, False, True, False]


def test_a_step_has_the_devices_of_the_workloads_that_convert() -> None:
    cores = deployment("serve")
    cores["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] = {"aws.amazon.com/neuroncore": "2"}
    [step] = report(cores, deployment(replicas=2, **TRN1), families=("trn1",)).steps
    assert (step.before, step.after, step.pods) == (Devices(8, 2), Devices(9), 3)
    assert str(step.before) == "8 devices + 2 cores"


def test_namespaces_in_which_nothing_moves_are_left_out() -> None:
    assert report(deployment(annotations={"neuron.aws.com/convert": "off"})).steps == ()


def test_a_node_is_free_when_the_last_workload_on_it_has_moved() -> None:
    a, b = deployment("a", namespace="a", **TRN1), deployment("b", 8, namespace="b", **TRN1)
    pods = [
        owned(running("a-1", "node-1", namespace="a"), a),
        owned(running("b-1", "node-1", namespace="b"), b),
        owned(running("a-2", "node-2", namespace="a"), a),
    ]
    made = report(a, b, *pods, cluster=cluster(range(12)))
    assert [(step.namespace, step.nodes, step.freed, step.free, step.short) for step in made.steps] == [
        ("a", ("node-2",), 16, {"trn1.32xlarge": 4}, 0),
        ("b", ("node-1",), 16, {"trn1.32xlarge": 16}, 0),
    ]
    assert made.neuron_nodes is not None
    assert made.neuron_nodes.idle == ("node-3",)


def test_workloads_that_stay_keep_their_nodes() -> None:
    moving = deployment("a", namespace="a", **TRN1)
    stays = deployment("b", namespace="a", annotations={"neuron.aws.com/convert": "off"})
    pods = [owned(running("a-1", namespace="a"), moving), owned(running("b-1", namespace="a"), stays)]
    [step] = report(moving, stays, *pods, cluster=cluster()).steps
    assert (step.nodes, step.staying) == ((), 1)


def test_devices_that_are_missing_are_counted() -> None:
    made = report(deployment("a", 4, namespace="a", replicas=3, **TRN1), cluster=cluster(range(12)))
    assert [(step.free, step.needs, step.short) for step in made.steps] == [
        ({"trn1.32xlarge": 4}, {"trn1.32xlarge": 12}, 8)
    ]
    assert report(deployment("a", 16, namespace="a", **TRN1)).steps[0].short == 0


def test_a_quota_that_is_too_small_is_named() -> None:
    name = "neuron.aws.com.deviceclass.resource.k8s.io/devices"
    metadata = {"name": "devices", "namespace": "team-a"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": {name: "4"}}}
    [step] = report(quota, deployment(replicas=2, **TRN1)).steps
    assert step.note == f"a ResourceQuota allows 4 of {name}; the workloads need 8"
    quota["spec"]["hard"][name] = "8"
    assert report(quota, deployment(replicas=2, **TRN1)).steps[0].note == ""


# --- instance types -----------------------------------------------------------------------------------------------


def of_type(instance_type: str) -> Object:
    return {"nodeSelector": {"node.kubernetes.io/instance-type": instance_type}}


def nodes(*types: str, **fields: Any) -> EmulatedCluster:
    made = EmulatedCluster()
    for number, instance_type in enumerate(types):
        made.node(f"node-{number}", instance_type, **fields)
    return made


def cron_job(count: int, **fields: Any) -> Object:
    template = deployment(count=count, **fields)["spec"]["template"]
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "nightly", "namespace": "team-a", "uid": "nightly"},
        "spec": {"schedule": "0 1 * * *", "jobTemplate": {"spec": {"parallelism": 2, "template": template}}},
    }


def only_step(*items: Object, cluster: EmulatedCluster, **options: Any) -> MigrationStep:
    [step] = report(*items, cluster=cluster, **options).steps
    return step


def test_devices_of_another_type_are_no_place() -> None:
    job, trn2 = cron_job(1, **of_type("inf2.xlarge")), nodes("trn2.48xlarge", "trn2.48xlarge")
    step = only_step(job, cluster=trn2)
    assert (step.needs, step.free, step.short) == ({"inf2.xlarge": 2}, {"trn2.48xlarge": 32}, 2)
    assert obstacles(job, cluster=trn2) == [("nodes", "NEU904", False)]


def test_each_type_is_counted_by_itself() -> None:
    both = [deployment("a", 4, **of_type("trn1.32xlarge")), deployment("b", 6, **of_type("inf2.48xlarge"))]
    step = only_step(*both, cluster=nodes("trn1.32xlarge", "inf2.48xlarge"), families=("trn1", "inf2"))
    assert step.needs == {"inf2.48xlarge": 6, "trn1.32xlarge": 4}
    assert (step.free, step.short) == ({"inf2.48xlarge": 12, "trn1.32xlarge": 16}, 0)


def test_pods_of_several_types_take_what_is_free() -> None:
    step = only_step(
        deployment("a", 4, replicas=6),
        cluster=nodes("trn1.32xlarge", "trn2.3xlarge", "inf2.24xlarge"),
        families=("trn1",),
    )
    assert (step.needs, step.short) == ({"trn1.32xlarge": 24}, 8)


def test_free_devices_that_are_not_connected_are_no_place() -> None:
    made = nodes("trn1.32xlarge")
    for index in (0, 5, 10, 15):
        made.claim(f"pod-{index}", "node-0", [index])
    step = only_step(deployment("a", 4, **TRN1), cluster=made)
    assert (step.free, step.short) == ({"trn1.32xlarge": 12}, 4)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"unschedulable": True}, id="cordoned"),
        pytest.param({"ready": False}, id="not ready"),
        pytest.param({"driver": False}, id="no driver"),
    ],
)
def test_a_closed_node_has_no_free_devices(fields: Any) -> None:
    step = only_step(deployment("a", 4, **TRN1), cluster=nodes("trn1.32xlarge", **fields))
    assert (step.free, step.short) == ({}, 4)
    assert obstacles(deployment("a", 4, **TRN1), cluster=nodes("trn1.32xlarge", **fields)) == []


@pytest.mark.parametrize(("held", "free"), [((), 16), ((-1,), 0)])
def test_a_node_that_publishes_only_itself_has_all_devices_free_or_none(held: tuple[int, ...], free: int) -> None:
    made = EmulatedCluster()
    made.node("node-0", "trn2u.48xlarge", features=ClusterFeatures(counters=False), whole_node_alone=True)
    if held:
        made.claim("holder", "node-0", held)
    found = report(deployment("a", 16, **of_type("trn2u.48xlarge")), cluster=made, families=("trn2u",))
    assert found.neuron_nodes is not None
    assert (found.neuron_nodes.free, found.steps[0].free) == ({"trn2u.48xlarge": free}, {"trn2u.48xlarge": free})


def test_a_node_that_becomes_free_has_the_devices_of_its_type() -> None:
    a = deployment("a", namespace="a", **TRN1)
    b = deployment("b", 12, namespace="b", **of_type("inf2.48xlarge"))
    plugin = EmulatedCluster()
    plugin.node("node-1", "inf2.48xlarge", driver=False, allocatable={"aws.amazon.com/neuron": "12"})
    plugin.node("node-2", "trn1.32xlarge")
    pods = [owned(running("b-1", "node-1", namespace="b"), b)]
    first, second = report(a, b, *pods, cluster=plugin, families=("trn1", "inf2")).steps
    assert (first.nodes, first.short, second.nodes, second.free, second.short) == (
        (),
        0,
        ("node-1",),
        {"trn1.32xlarge": 12},
        12,
    )
    c = deployment("c", 12, namespace="c", replicas=2, **of_type("inf2.48xlarge"))
    third = report(a, b, c, *pods, cluster=plugin, families=("trn1", "inf2")).steps[2]
    assert (third.namespace, third.free, third.short) == ("c", {"inf2.48xlarge": 12, "trn1.32xlarge": 12}, 12)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param(
            of_type("inf2.xlarge"),
            "the cluster has no node of a type that fits, which are inf2.xlarge; it has trn1.32xlarge.",
            id="type",
        ),
        pytest.param(
            {"nodeSelector": {"disk": "ssd", "node.kubernetes.io/instance-type": "trn1.32xlarge"}},
            "the node selection of the pods leaves out all nodes of trn1.32xlarge, which could serve the claim.",
            id="another label",
        ),
    ],
)
def test_the_obstacle_names_the_types_that_fit_and_those_that_exist(fields: Any, message: str) -> None:
    [found] = report(deployment(count=1, **fields), cluster=nodes("trn1.32xlarge")).workloads
    assert [each.finding.message for each in found.obstacles if each.finding.code == "NEU904"] == [message]


def test_a_cluster_without_neuron_nodes_has_no_place() -> None:
    step = only_step(deployment(count=4, **TRN1), cluster=nodes("m5.large", driver=False))
    assert (step.free, step.short) == ({}, 4)
    [found] = report(deployment(count=4, **TRN1), cluster=nodes("m5.large", driver=False)).workloads
    assert [each.finding.message for each in found.obstacles] == [
        "the cluster has no node of a type that fits, which are trn1.32xlarge; it has no Neuron node."
    ]
