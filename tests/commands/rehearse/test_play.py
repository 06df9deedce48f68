"""The play of a migration: what is drained, what is created again as what, where it runs, what waits and why."""

from typing import Any, Final

import orjson
import pytest

from commands.rehearse.gather import NoSuchTypeError
from commands.rehearse.model import Cost, Maker, WaitCause
from commands.rehearse.reads import reduced
from commands.rehearse.rehearsing import RehearsalChoice, UnknownGroupError
from commands.rehearse.render import summary, wait_text
from commands.rehearse.render import waits as waiting
from conversion.claims.containers import basic_requests
from tests.support.emulated import EmulatedCluster
from tests.support.rehearsing import Object, after, budget, driver_nodes, gathered, node, of_namespace, pods, rehearsal

B = RehearsalChoice(order=("b", "a"))


def test_a_drained_pod_is_converted_and_waits_for_the_driver_on_its_own_group() -> None:
    found = rehearsal(node("n1"), *pods("serve", "n1", "n1"))
    [step] = found.best.steps
    assert (step.group, step.converts, step.waves) == ("eks.amazonaws.com/nodegroup=a", ("team-a",), 1)
    assert [(each.to, each.paused, each.converted) for each in step.moves] == [("n1", True, True)] * 2
    assert (step.paused, step.waiting, step.back) == (2, (), "")
    assert not found.well


def test_pods_stay_unconverted_on_other_nodes_of_the_plugin_while_these_have_place() -> None:
    found = rehearsal(node("n1", "a"), node("n2", "b"), *pods("serve", "n1"), choice=RehearsalChoice(order=("a", "b")))
    first, second = found.best.steps
    assert (first.converts, [(each.to, each.paused, each.converted) for each in first.moves]) == (
        (),
        [("n2", False, False)],
    )
    assert (second.converts, [(each.to, each.paused, each.converted) for each in second.moves]) == (
        ("team-a",),
        [("n1", False, True)],
    )
    assert found.well


def test_free_devices_of_the_driver_take_pods_before_the_plugin_does() -> None:
    found = rehearsal(node("n1", "a"), node("n2", "b"), *driver_nodes("d"), *pods("serve", "n1"), choice=B)
    assert after(found) == {"team-a/serve-0": "d"}


def test_the_figures_count_devices_of_plugin_driver_and_waiting_pods() -> None:
    found = rehearsal(node("n1", "a"), *pods("serve", "n1"), *pods("odd", "n1", count=6, namespace="team-b"))
    assert (found.start.plugin, found.start.plugin_used, found.start.driver) == (16, 10, 0)
    last = found.best.steps[-1].figures
    assert (last.plugin, last.plugin_used, last.driver, last.driver_used, last.waiting) == (0, 0, 16, 4, 6)


# --- why pods wait ----------------------------------------------------------------------------------------------


CAUSES: dict[str, Any] = {
    "NEU105: Instance type trn1.32xlarge does not support requests for device: 6.": (
        [node("n1"), *pods("odd", "n1", count=6)],
        "denied",
    ),
    "no node with the device plugin that it may run on is left": (
        [node("n1"), *pods("kept", "n1", annotations={"neuron.aws.com/convert": "off"})],
        "no plugin node left",
    ),
    "the ResourceQuota of team-a allows no 4 more devices": (
        [
            node("n1"),
            *pods("serve", "n1"),
            of_namespace("ResourceQuota", "q", hard={"neuron.aws.com.deviceclass.resource.k8s.io/devices": "3"}),
        ],
        "quota",
    ),
    "NEU205": (
        [
            node("n1"),
            of_namespace("LimitRange", "l", limits=[{"type": "Container", "min": {"aws.amazon.com/neuron": "1"}}]),
            *pods("serve", "n1"),
        ],
        "denied",
    ),
    "what n1 publishes is not known: its type new9.48xlarge is not in the catalogue": (
        [node("n1", kind="new9.48xlarge"), *pods("serve", "n1")],
        "cannot know",
    ),
    "it does not tolerate the taint only:NoSchedule of n1": (
        [
            node("n1", taints=[{"key": "only", "effect": "NoSchedule"}]),
            *pods("serve", "n1"),
        ],
        "taint",
    ),
    "no Neuron node meets its node selection: disk in (ssd)": (
        [node("n1"), *pods("serve", "n1", nodeSelector={"disk": "ssd"})],
        "node selection",
    ),
}


@pytest.mark.parametrize(("text", "objects", "cause"), [(text, *row) for text, row in CAUSES.items()], ids=CAUSES)
def test_a_pod_that_does_not_run_has_its_cause(objects: list[Object], cause: str, text: str) -> None:
    [(_, reason)] = rehearsal(*objects).best.steps[-1].waiting
    assert (str(reason.cause), text in reason.text) == (cause, True), reason


def test_devices_that_are_free_and_not_connected_are_told_apart_from_too_few() -> None:
    cluster = EmulatedCluster()
    cluster.node("d", "trn1.32xlarge", labels={"eks.amazonaws.com/nodegroup": "dra"})
    cluster.claim("hold", "d", [0, 4, 8, 12], namespace="x")
    objects = [
        {"apiVersion": "v1", "kind": "Node", **cluster.nodes[0]},
        *({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **each} for each in cluster.slices),
        *({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **each} for each in cluster.claims),
    ]
    scene = gathered(node("n1"), *objects, *pods("four", "n1"), *pods("sixteen", "n1", count=16)).scene()
    four, sixteen = (pod.kind.claims for pod in scene.pods)
    assert four is not None
    assert sixteen is not None
    text = "12 devices of d are free, at most 1 of them connected; it needs 4"
    assert (scene.played.why(four).cause, scene.played.why(four).text) == (WaitCause.RUN, text)
    assert (scene.played.why(sixteen).cause, scene.played.why(sixteen).text) == (
        WaitCause.COUNT,
        "at most 12 devices are free on one node (d); it needs 16",
    )


def test_cpu_and_memory_of_nodes_bound_what_fits() -> None:
    wants = {"resources": {"requests": {"cpu": "100"}}}
    other = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "busy", "namespace": "x", "uid": "busy"},
        "spec": {"nodeName": "d", "containers": [{"name": "c", **wants}]},
        "status": {"phase": "Running"},
    }
    serve = pods("serve", "n1")
    serve[0]["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "100"}
    found = rehearsal(node("n1"), *driver_nodes("d"), other, *serve)
    assert after(found) == {"team-a/serve-0": "n1"}


# --- drains -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "waves"),
    [
        pytest.param({"maxUnavailable": 1}, 4, id="one"),
        pytest.param({"maxUnavailable": 2}, 2, id="two"),
        pytest.param({"maxUnavailable": "50%"}, 2, id="percent"),
        pytest.param({"maxUnavailable": "30%"}, 2, id="percent-is-rounded-up"),
        pytest.param({"minAvailable": 3}, 4, id="min"),
        pytest.param({"minAvailable": "75%"}, 4, id="min-percent"),
        pytest.param({"maxUnavailable": 9}, 1, id="more-than-all"),
        pytest.param({}, 1, id="says-nothing"),
    ],
)
def test_a_budget_bounds_the_waves_of_a_drain(spec: dict[str, Any], waves: int) -> None:
    found = rehearsal(node("n1"), *driver_nodes("d"), *pods("serve", "n1", "n1", "n1", "n1"), budget("serve", **spec))
    [step] = found.best.steps
    assert (step.waves, step.stalled) == (waves, "")
    assert sorted({each.wave for each in step.moves}) == list(range(1, waves + 1))


def test_a_budget_stops_a_drain_when_evicted_pods_find_no_place() -> None:
    found = rehearsal(node("n1"), *pods("serve", "n1", "n1"), budget("serve", maxUnavailable=1))
    [step] = found.best.steps
    assert step.stalled == (
        "PodDisruptionBudget team-a/serve allows no more: pods that were evicted find no place; 1 pod cannot be evicted"
    )
    assert found.best.cost.stalled == 1
    assert found.spares.needed == {"trn1.32xlarge": 1}


@pytest.mark.parametrize("spec", [{"maxUnavailable": 0}, {"minAvailable": "100%"}, {"maxUnavailable": "0%"}])
def test_a_budget_of_zero_allows_no_eviction(spec: dict[str, Any]) -> None:
    found = rehearsal(node("n1"), *pods("serve", "n1"), budget("serve", **spec))
    assert "allows no eviction; 1 pod cannot be evicted" in found.best.steps[0].stalled
    assert after(found) == {"team-a/serve-0": "n1"}
    assert found.spares.needed is None


def test_a_stalled_group_is_tried_again_after_another_one_has_moved() -> None:
    objects = [node("n1", "a"), node("n2", "b"), *pods("serve", "n1", "n1", count=8), *pods("x", "n2", count=16)]
    found = rehearsal(*objects, budget("serve", maxUnavailable=1), choice=RehearsalChoice(order=("a", "b")))
    assert [(each.group[-1], bool(each.stalled)) for each in found.best.steps] == [
        ("a", True),
        ("b", False),
        ("a", False),
    ]


def test_budgets_select_by_expressions_and_only_in_their_namespace() -> None:
    chosen = budget("serve", maxUnavailable=0)
    chosen["spec"]["selector"] = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["other"]}]}
    elsewhere = budget("serve", "team-b", maxUnavailable=0)
    found = rehearsal(node("n1"), *pods("serve", "n1"), chosen, elsewhere)
    assert found.best.steps[0].stalled == ""


def test_pods_of_a_group_of_a_leader_worker_set_are_created_again_together() -> None:
    labels = {"leaderworkerset.sigs.k8s.io/name": "lws", "leaderworkerset.sigs.k8s.io/group-index": "0"}
    objects = [node("n1", "a"), node("n2", "b"), *driver_nodes("d1", "d2"), *pods("lws", "n1", "n2", labels=labels)]
    first = rehearsal(*objects, choice=RehearsalChoice(order=("a", "b"))).best.steps[0]
    assert len(first.moves) == 2


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
        ("karpenter.sh/do-not-disrupt", "true"),
    ],
)
def test_a_step_waits_for_pods_that_must_not_be_evicted(key: str, value: str) -> None:
    found = rehearsal(node("n1"), *pods("train", "n1", annotations={key: value}))
    assert after(found) == {"team-a/train-0": "ended"}
    assert any("When pods end that must not be evicted: team-a/train-0." in each for each in found.unknown)


def test_a_pod_of_a_job_without_retries_must_not_be_evicted() -> None:
    job: Object = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": "team-a", "uid": "team-a-train"},
        "spec": {"backoffLimit": 0, "template": {"spec": pods("x", "n1")[0]["spec"]}},
    }
    once = rehearsal(node("n1"), job, *pods("train", "n1", kind="Job"))
    assert after(once) == {"team-a/train-0": "ended"}
    job["spec"]["backoffLimit"] = 1
    assert after(rehearsal(node("n1"), job, *pods("train", "n1", kind="Job"))) == {"team-a/train-0": "n1"}


@pytest.mark.parametrize(("kind", "maker"), [("", Maker.NOBODY), ("DaemonSet", Maker.DAEMON_SET)])
def test_pods_that_a_drain_does_not_move_are_moved_by_hand(kind: str, maker: Maker) -> None:
    found = rehearsal(node("n1"), *pods("agent", "n1", kind=kind))
    [step] = found.best.steps
    assert (found.pods[0].maker, step.by_hand, after(found)) == (maker, (0,), {"team-a/agent-0": "n1"})


# --- what-if ----------------------------------------------------------------------------------------------------


def test_a_spare_node_keeps_everything_running() -> None:
    objects = [node("n1"), *pods("serve", "n1", "n1")]
    assert rehearsal(*objects).spares.needed == {"trn1.32xlarge": 1}
    found = rehearsal(*objects, choice=RehearsalChoice(spares={"trn1.32xlarge": 1}))
    assert (found.well, after(found)["team-a/serve-0"]) == (True, "spare-trn1.32xlarge-1")
    assert found.spares.needed == {}


def test_spare_nodes_of_each_type_are_counted_apart() -> None:
    objects = [node("n1"), node("i1", "b", "inf2.48xlarge"), *pods("t", "n1", count=16)]
    chosen = {"node.kubernetes.io/instance-type": "inf2.48xlarge"}
    objects += pods("i", "i1", "i1", count=6, namespace="team-b", nodeSelector=chosen)
    assert rehearsal(*objects).spares.needed == {"inf2.48xlarge": 1, "trn1.32xlarge": 1}


def test_only_the_chosen_namespaces_are_converted() -> None:
    objects = [node("n1"), *pods("a", "n1"), *pods("b", "n1", namespace="team-b")]
    found = rehearsal(*objects, converting=frozenset({"team-a"}))
    assert after(found) == {"team-a/a-0": "n1", "team-b/b-0": "no plugin node left"}


def test_a_namespace_that_converts_already_needs_no_step() -> None:
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "team-a", "annotations": {"neuron.aws.com/convert": "convert"}},
    }
    found = rehearsal(node("n1"), namespace, *pods("a", "n1"), converting=frozenset())
    assert (after(found), found.best.steps[0].moves[0].converted) == ({"team-a/a-0": "n1"}, True)


def test_a_type_for_spare_nodes_has_to_exist() -> None:
    with pytest.raises(NoSuchTypeError, match="trn9"):
        rehearsal(node("n1"), *pods("a", "n1"), choice=RehearsalChoice(spares={"trn9.48xlarge": 1}))


# --- order ------------------------------------------------------------------------------------------------------


def test_the_best_order_begins_where_pods_find_place_elsewhere() -> None:
    found = rehearsal(node("n1", "a"), node("n2", "b"), *pods("x", "n1", count=16))
    assert [each[-1] for each in found.best.order] == ["b", "a"]
    [(order, cost)] = found.others
    assert (order[0][-1], cost > found.best.cost, found.all_orders) == ("a", True, True)


def test_a_given_order_is_kept_and_groups_that_it_lacks_come_last() -> None:
    objects = [node("n1", "a"), node("n2", "b"), node("n3", "c"), *pods("x", "n1")]
    found = rehearsal(*objects, choice=RehearsalChoice(order=("c",)))
    assert [each[-1] for each in found.best.order] == ["c", "a", "b"]
    with pytest.raises(UnknownGroupError, match="there is no node group 'z': the groups are eks"):
        rehearsal(*objects, choice=RehearsalChoice(order=("z",)))


def test_nodes_form_groups_by_label_or_by_instance_type() -> None:
    bare = node("n2", kind="inf2.48xlarge")
    del bare["metadata"]["labels"]["eks.amazonaws.com/nodegroup"]
    objects = [node("n1"), bare]
    assert [each.name for each in gathered(*objects).scene().groups] == [
        "eks.amazonaws.com/nodegroup=a",
        "node.kubernetes.io/instance-type=inf2.48xlarge",
    ]
    by_host = gathered(*objects, group_label="kubernetes.io/hostname").scene().groups
    assert [each.name for each in by_host] == ["kubernetes.io/hostname=n1", "kubernetes.io/hostname=n2"]


# --- start ------------------------------------------------------------------------------------------------------


def test_manifests_without_pods_get_pods_that_are_placed() -> None:
    manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "team-a"},
        "spec": {"replicas": 2, "template": {"spec": pods("x", "")[0]["spec"]}},
    }
    found = rehearsal(node("n1"), manifest)
    assert [(str(each), each.node) for each in found.pods] == [("team-a/web-1", "n1"), ("team-a/web-2", "n1")]
    assert any("Where 2 pods of manifests would run" in each for each in found.unknown)


def test_pods_with_claims_keep_their_devices_and_are_not_moved() -> None:
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "team-a", "uid": "c"},
        "spec": {
            "devices": {"requests": [{"name": "n0", "exactly": {"deviceClassName": "neuron.aws.com", "count": 1}}]}
        },
        "status": {
            "allocation": {
                "devices": {
                    "results": [{"driver": "neuron.aws.com", "pool": "d", "device": "neuron-device-0", "request": "n0"}]
                }
            },
            "reservedFor": [{"resource": "pods", "name": "old-0", "uid": "team-a-old-0"}],
        },
    }
    [old] = pods("old", "d")
    old["spec"]["containers"][0]["resources"] = {"claims": [{"name": "neuron"}]}
    old["spec"]["resourceClaims"] = [{"name": "neuron", "resourceClaimName": "c"}]
    found = rehearsal(node("n1"), *driver_nodes("d"), claim, old, *pods("new", "n1", count=16))
    assert after(found) == {"team-a/old-0": "d", "team-a/new-0": "n1"}
    assert found.start.driver_used == 1


def test_a_cluster_without_the_plugin_has_nothing_to_migrate() -> None:
    found = rehearsal(*driver_nodes("d"))
    assert (found.groups, found.best.steps, found.well) == ((), (), True)


def test_pods_that_wait_today_do_not_count_against_the_migration() -> None:
    found = rehearsal(node("n1"), *driver_nodes("d"), *pods("big", "", namespace="team-b", count=16), *pods("x", "n1"))
    assert [str(found.pods[number]) for number, *_ in found.today] == ["team-b/big-0"]
    assert found.best.cost == Cost(0, 0, 0, 2)
    assert after(found) == {"team-b/big-0": "n1", "team-a/x-0": "d"}


def test_a_pod_that_waits_is_created_again_when_its_namespace_is_converted() -> None:
    found = rehearsal(node("n1"), *driver_nodes("d"), *pods("big", "", count=16), *pods("x", "n1"))
    [first, second] = found.best.steps[0].moves
    assert (str(found.pods[first.pod]), first.origin, first.to, first.paused) == ("team-a/big-0", "", "d", False)
    assert (str(found.pods[second.pod]), second.to, second.paused) == ("team-a/x-0", "n1", True)


def test_devices_of_the_scheduler_extension_are_shown_where_the_annotation_has_them() -> None:
    placed = pods("x", "n1", annotations={"AWS_NEURON_IDS": "4,5,6,7"})
    found = rehearsal(node("n1"), *placed, *pods("y", "n1"), choice=RehearsalChoice(pictures=True))
    [shot] = found.shots
    assert dict(shot.held) == {
        **dict.fromkeys(range(4), (1,)),
        **dict.fromkeys(range(4, 8), (0,)),
    }
    assert any("Which devices 1 pod of the device plugin has" in each for each in found.unknown)


def test_cores_become_devices_and_the_difference_is_told() -> None:
    cores = node("n1")
    cores["status"]["allocatable"]["aws.amazon.com/neuroncore"] = "32"
    found = rehearsal(cores, *pods("serve", "n1", "n1", count=3, resource="aws.amazon.com/neuroncore"))
    assert [(str(ref), before, now) for ref, before, now in found.sizes] == [
        ("ReplicaSet team-a/serve", "6 cores", "4 devices")
    ]


@pytest.mark.parametrize(("kind", "devices"), [("trn2.48xlarge", "1 device"), ("trn1.32xlarge", "2 devices")])
def test_the_node_that_takes_a_pod_decides_how_many_devices_cores_become(kind: str, devices: str) -> None:
    cores = node("n1")
    cores["status"]["allocatable"]["aws.amazon.com/neuroncore"] = "32"
    serve = pods("serve", "n1", count=4, resource="aws.amazon.com/neuroncore")
    found = rehearsal(cores, *driver_nodes("d", kind=kind), *serve)
    assert after(found) == {"team-a/serve-0": "d"}
    assert [(before, now) for _, before, now in found.sizes] == [("4 cores", devices)]


@pytest.mark.parametrize("uid", ["another", ""])
def test_owners_are_found_by_kind_and_name_where_the_dump_has_another_uid_or_none(uid: str) -> None:
    template = {"spec": pods("web", "")[0]["spec"]}
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "of-another-cluster"}
    above: list[Object] = [
        {
            "apiVersion": "apps/v1",
            "kind": kind,
            "metadata": {
                "name": "web",
                "namespace": "team-a",
                "uid": uid and f"{uid}-{kind}",
                "ownerReferences": owners,
            },
            "spec": {"replicas": 2, "template": template},
        }
        for kind, owners in (("Deployment", []), ("ReplicaSet", [{**owner, "controller": True}]))
    ]
    found = rehearsal(node("n1"), node("n2", "b"), *above, *pods("web", "n1", "n1"))
    assert [(str(each), str(each.kind.workload)) for each in found.pods] == [
        ("team-a/web-0", "Deployment team-a/web"),
        ("team-a/web-1", "Deployment team-a/web"),
    ]
    assert not any("without pods now" in each for each in found.unknown)


def test_a_job_that_fails_when_it_is_evicted_is_known_by_name_where_its_uid_is_another() -> None:
    job: Object = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": "team-a", "uid": "another"},
        "spec": {"backoffLimit": 0, "template": {"spec": pods("train", "")[0]["spec"]}},
    }
    found = rehearsal(node("n1"), job, *pods("train", "n1", kind="Job"))
    assert [each.keeps for each in found.pods] == ["its Job train has backoffLimit 0, and fails when it is evicted"]


def test_pods_of_one_workload_are_spread_over_nodes_whatever_else_runs_there() -> None:
    template = {"metadata": {"labels": {"app": "web"}}, "spec": pods("web", "")[0]["spec"]}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    busy = pods("busy", "n2", namespace="x")[0]
    busy["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "16"}}
    for kind, taken in (("Deployment", ["n1", "n2"]), ("Job", ["n1", "n1"])):
        group = "apps/v1" if kind == "Deployment" else "batch/v1"
        made = spec if kind == "Deployment" else {"parallelism": 2, "completions": 2, "template": template}
        web = {"apiVersion": group, "kind": kind, "metadata": {"name": "web", "namespace": "team-a"}, "spec": made}
        scene = gathered(node("n1"), node("n2"), busy, web).scene()
        assert [each.node for each in scene.pods] == taken


@pytest.mark.parametrize(("version", "taken"), [("v1.36.2", "d2"), ("v1.35.6", "d2"), ("v1.34.9", "d1")])
def test_a_node_where_a_claim_gets_an_earlier_alternative_is_preferred_from_kubernetes_1_35(
    version: str, taken: str
) -> None:
    kind = "inf2.48xlarge"
    two = pods("two", "n1", count=2, nodeSelector={"node.kubernetes.io/instance-type": kind})
    one = pods("one", "n1", namespace="x", nodeSelector={"node.kubernetes.io/instance-type": kind}, count=1)
    busy = pods("busy", "d2", namespace="y")[0]
    busy["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "16"}}
    scene = gathered(
        node("n1", kind=kind), *driver_nodes("d1", "d2", kind=kind), *two, *one, busy, version=version
    ).scene()
    wanted, single = (pod.kind.claims for pod in scene.pods)
    assert wanted is not None
    assert single is not None
    played = scene.played.copy()
    d1 = played.nodes["d1"]
    assert d1.model is not None
    # Only devices 1 and 2 are left: they are no pair of the first alternative.
    for number in range(12):
        results = d1.model.allocate(d1.held, single.claim)
        assert results is not None
        d1.add(100 + number, single, results)
    for number in (1, 2):
        d1.remove(100 + number)
    found = played.would_fit(d1, wanted)
    assert found is not None
    assert {each.request for each in found} == {"n0/inf2-2"}
    assert played.place(200, wanted) == taken


_CPU: Final = {"resources": {"requests": {"cpu": "3"}}}


@pytest.mark.parametrize(
    "extra",
    [
        {"containers": [{"name": "a", **_CPU}, {"name": "b", "image": "b", **_CPU}]},
        {"containers": [], "initContainers": [{"name": "a", "restartPolicy": "Always", **_CPU}, {"name": "b", **_CPU}]},
        {"overhead": {"cpu": "1500m"}, "resources": {"limits": {"cpu": "4"}}},
        {"containers": None, "overhead": {"cpu": "2"}},
    ],
    ids=["containers", "init", "pod-level", "no-struct"],
)
def test_what_is_kept_of_pods_without_devices_has_the_same_requests(extra: dict[str, Any]) -> None:
    [other] = pods("other", "n1", resource="memory", count="1Gi")
    other["spec"] |= extra
    kept = orjson.loads(reduced("Pod", orjson.dumps(other)))
    assert basic_requests(kept["spec"]) == basic_requests(other["spec"]) != {}
    assert (kept["spec"]["nodeName"], kept["status"]["phase"]) == ("n1", "Running")
    assert (kept["metadata"] == other["metadata"]) is (extra.get("containers", ()) is None)


def test_pods_with_devices_or_claims_are_kept_as_they_are() -> None:
    [with_devices], [with_claim] = pods("x", "n1"), pods("y", "n1", resource="memory")
    with_claim["status"]["resourceClaimStatuses"] = [{"name": "neuron"}]
    for each in (with_devices, with_claim):
        assert reduced("Pod", orjson.dumps(each)) == orjson.dumps(each)


def test_namespaces_of_which_no_pod_runs_are_converted_too_and_what_runs_at_the_end_is_said() -> None:
    waits = pods("cores", "", "", resource="aws.amazon.com/neurondevice", count=1, namespace="team-b")
    never = pods("lost", "", nodeSelector={"disk": "ssd"}, namespace="team-c")
    found = rehearsal(node("n1"), *pods("serve", "n1"), *waits, *never)
    assert found.best.steps[0].converts == ("team-a", "team-b", "team-c")
    assert after(found)["team-b/cores-0"] == "n1"
    said = "no Neuron node meets its node selection: disk in (ssd)"
    assert [end and end.text for *_, end in found.today] == [None, None, said]
    assert summary(found)[-1] == f"2 of them run at the end; team-c/lost-0: {said}."
    assert summary(rehearsal(node("n1"), *waits))[-1] == "They run at the end."
    alone = summary(rehearsal(node("n1"), *never))
    assert alone[-1] == f"None of them runs at the end; team-c/lost-0: {said}."
    assert "No pod that runs today waits at any time, and none is denied." in alone


def test_a_pod_that_waits_today_and_is_denied_counts_against_the_migration() -> None:
    waits = [*driver_nodes("d"), *pods("x", "n1"), *pods("odd", "", "", count=6, namespace="team-b")]
    found = rehearsal(node("n1", cpu="0"), *waits)
    assert found.best.calm
    assert not found.well
    assert "2 pods that wait today are denied." in summary(found)
    [denied] = waiting(found)
    assert wait_text(denied, found) == "2 pods of ReplicaSet team-b/odd, at the end"
    assert (denied.reason.cause, denied.reason.fix.startswith("Nearest valid counts: 4 or 8.")) == ("denied", True)
    # As in a report, one that still waits is no fault of the migration.
    assert rehearsal(node("n1"), *driver_nodes("d"), *pods("x", "n1"), *pods("y", "", nodeSelector={"a": "b"})).well


def test_manifests_that_cannot_be_read_or_have_claims_of_their_own_are_said() -> None:
    odd, own, other = pods("odd", "", kind=""), pods("own", "", resource="cpu"), pods("other", "", resource="cpu")
    for each, template in ((own, "mine"), (other, "gpu")):
        each[0]["spec"]["resourceClaims"] = [{"name": "it", "resourceClaimTemplateName": template}]
    odd[0]["spec"]["containers"][0]["resources"]["claims"] = [{"name": True}]
    for each in (odd, own, other):
        del each[0]["metadata"]["uid"], each[0]["status"]
    request = {"name": "n", "exactly": {"deviceClassName": "neuron.aws.com", "count": 4}}
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "mine", "namespace": "team-a"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    unknown = rehearsal(node("n1"), template, *odd, *own, *other).unknown
    assert [each for each in unknown if each.startswith("Which devices Pod team-a/own-0 will take: not played are")]
    assert not [each for each in unknown if "other-0" in each]
    [unread] = [each for each in unknown if "not readable" in each]
    assert unread.startswith("What becomes of Pod team-a/odd-0 (the object contains no readable Pod")
