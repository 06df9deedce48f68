"""The order of migration: ready namespaces first, small ones first; which nodes each step frees."""

from commands.report.model import Devices, NeuronNodes
from tests.support.reports import deployment, owned, report, running

TRN1 = {"nodeSelector": {"node.kubernetes.io/instance-type": "trn1.32xlarge"}}
NODES = {"node-1": "trn1.32xlarge", "node-2": "trn1.32xlarge", "node-3": "trn1.32xlarge"}


def estate(free: int = 0, driver: tuple[str, ...] = ()) -> NeuronNodes:
    plugin = {name: 16 for name in NODES if name not in driver}
    return NeuronNodes(plugin, dict.fromkeys(driver, 16), free, NODES)


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
    made = report(a, b, *pods, estate=estate(free=4, driver=()))
    assert [(step.namespace, step.nodes, step.freed, step.free) for step in made.steps] == [
        ("a", ("node-2",), 16, 4),
        ("b", ("node-1",), 16, 16),
    ]
    assert made.estate is not None
    assert made.estate.idle == ("node-3",)


def test_workloads_that_stay_keep_their_nodes() -> None:
    moving = deployment("a", namespace="a", **TRN1)
    stays = deployment("b", namespace="a", annotations={"neuron.aws.com/convert": "off"})
    pods = [owned(running("a-1", namespace="a"), moving), owned(running("b-1", namespace="a"), stays)]
    [step] = report(moving, stays, *pods, estate=estate()).steps
    assert (step.nodes, step.staying) == ((), 1)


def test_devices_that_are_missing_are_counted() -> None:
    made = report(deployment("a", 16, namespace="a", **TRN1), estate=estate(free=4))
    assert [(step.free, step.short) for step in made.steps] == [(4, 12)]
    assert report(deployment("a", 16, namespace="a", **TRN1)).steps[0].short == 0


def test_a_quota_that_is_too_small_is_named() -> None:
    name = "neuron.aws.com.deviceclass.resource.k8s.io/devices"
    metadata = {"name": "devices", "namespace": "team-a"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": {name: "4"}}}
    [step] = report(quota, deployment(replicas=2, **TRN1)).steps
    assert step.note == f"a ResourceQuota allows 4 of {name}; the workloads need 8"
    quota["spec"]["hard"][name] = "8"
    assert report(quota, deployment(replicas=2, **TRN1)).steps[0].note == ""
