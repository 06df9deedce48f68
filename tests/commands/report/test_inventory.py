"""Owners stand for what they control; pods are counted, and ended ones are left out."""

import json
import tracemalloc
from typing import Any

from commands.objects.manifest_files import GivenManifests
from commands.report.inputs import read_files
from commands.report.inventory import Found, Inventory
from tests.support.reports import deployment, found, owned, pod_spec, report, running

Object = dict[str, Any]


def controlled(kind: str, name: str, owner: Object, api_version: str = "apps/v1", **spec: Any) -> Object:
    template = {"template": {"spec": pod_spec()}}
    item = {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": name, "namespace": "team-a", "uid": f"uid-{name}"},
        "spec": {**template, **spec},
    }
    return owned(item, owner)


def refs(*items: Object) -> list[str]:
    return [str(each.ref) for each in report(*items).workloads]


def test_a_deployment_stands_for_its_replica_sets_and_pods() -> None:
    top = deployment(replicas=2)
    middle = controlled("ReplicaSet", "train-5d8f", top, replicas=2)
    pods = [owned(running(f"train-5d8f-{at}"), middle) for at in range(2)]
    made = report(top, middle, *pods)
    [only] = made.workloads
    assert str(only.ref) == "Deployment team-a/train"
    assert (only.pods, only.now and only.now.plugin) == (2, 2)


def test_the_order_of_the_objects_does_not_matter() -> None:
    top = deployment()
    middle = controlled("ReplicaSet", "train-5d8f", top, replicas=1)
    pod = owned(running("train-5d8f-a"), middle)
    assert refs(pod, middle, top) == refs(top, middle, pod) == ["Deployment team-a/train"]


def test_a_cron_job_stands_for_its_jobs() -> None:
    spec = {"schedule": "@daily", "jobTemplate": {"spec": {"template": {"spec": pod_spec()}}}}
    metadata = {"name": "nightly", "namespace": "team-a", "uid": "uid-nightly"}
    top = {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": metadata, "spec": spec}
    job = controlled("Job", "nightly-1", top, "batch/v1")
    assert refs(job, owned(running("nightly-1-x"), job), top) == ["CronJob team-a/nightly"]


def test_an_owner_of_an_unknown_kind_is_a_workload_with_all_controlled_pods() -> None:
    trainer = {"apiVersion": "acme.example/v1", "kind": "Trainer", "metadata": {"name": "big", "uid": "uid-big"}}
    made = report(owned(running("big-0"), trainer), owned(running("big-1"), trainer))
    [only] = made.workloads
    assert str(only.ref) == "Trainer team-a/big"
    assert only.ref.api_version == "acme.example/v1"
    assert (only.pods, only.before.devices, only.after and only.after.devices) == (2, 8, 8)


def test_pods_whose_replica_set_was_not_read_are_named_by_it() -> None:
    replica_set = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "serve-1", "uid": "uid-serve-1"}}
    assert refs(owned(running("serve-1-a"), replica_set)) == ["ReplicaSet team-a/serve-1"]


def test_an_old_revision_of_a_deployment_that_needs_no_devices_any_more_is_no_workload() -> None:
    other = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "uid": "uid-web"}}
    assert refs(controlled("ReplicaSet", "web-1", other, replicas=0)) == []


def test_a_bare_pod_is_a_workload_and_is_judged_as_if_it_were_created_again() -> None:
    [only] = report(running("alone")).workloads
    assert (str(only.ref), only.fate.value) == ("Pod team-a/alone", "converts")


def test_a_pod_in_a_file_keeps_its_node_name() -> None:
    pod = running("pinned")
    del pod["status"]
    [only] = report(pod).workloads
    assert (only.fate.value, [each.finding.code for each in only.obstacles]) == ("stays", ["NEU201"])


def test_a_mirror_pod_belongs_to_no_workload() -> None:
    pod = running("static")
    pod["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1", "uid": "uid-node-1"}}
    [only] = report(owned(pod, node)).workloads
    assert (str(only.ref), only.fate.value) == ("Pod team-a/static", "stays")


def test_pods_and_jobs_that_ended_are_counted_and_left_out() -> None:
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "done", "namespace": "team-a", "uid": "uid-done"},
        "spec": {"template": {"spec": pod_spec()}},
        "status": {"conditions": [{"type": "Complete", "status": "True"}]},
    }
    made = report(job, running("failed", phase="Failed"), running("ended", phase="Succeeded"))
    assert (made.workloads, made.finished) == ((), 3)


def test_objects_without_neuron_are_ignored() -> None:
    web = deployment("web")
    web["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1"}}
    assert refs(web) == []


def test_an_object_that_cannot_be_read_is_noted_by_name() -> None:
    item = deployment()
    item["metadata"]["labels"] = ["no", "mapping"]
    assert [str(each) for each in report(item).problems] == ["Deployment team-a/train: not readable, and left out."]
    nested = b'{"metadata":{"name":"deep"},"spec":{"aws.amazon.com/neuron":' + b"[" * 100_000 + b"]" * 100_000 + b"}}"
    inventory = Inventory()
    assert inventory.take(Found("apps", "v1", "Deployment", nested)) is None
    assert inventory.unreadable == ["Deployment /deep"]


def test_an_owner_that_owns_itself_ends_the_search() -> None:
    pod = running("loop")
    looped = owned(pod, pod)
    assert refs(looped) == ["Pod team-a/loop"]


def test_nodes_are_known_by_the_workloads_on_them() -> None:
    top = deployment()
    inventory = Inventory()
    middle = controlled("ReplicaSet", "train-5d8f", top, replicas=1)
    for item in (top, middle, owned(running("a", "node-1"), middle), running("b", "node-2")):
        inventory.take(found(item))
    assert inventory.on_nodes() == {
        "node-1": frozenset({"team-a-train"}),
        "node-2": frozenset({"uid-team-a-b"}),
    }


def test_converted_pods_do_not_count_as_pods_of_the_plugin() -> None:
    pod = running("new")
    pod["metadata"]["labels"] = {"neuron.aws.com/converted": "true"}
    inventory = Inventory()
    inventory.take(found(pod))
    now = inventory.pods_of()("uid-team-a-new")
    assert (now.plugin, now.converted, inventory.on_nodes()) == (0, 1, {})


def test_an_object_found_as_json_needs_no_kind() -> None:
    item = deployment()
    del item["kind"], item["apiVersion"]
    root = Inventory().take(Found("apps", "v1", "Deployment", json.dumps(item).encode()))
    assert root is not None
    assert root.found.api_version == "apps/v1"


def test_a_workload_without_metadata_is_one_workload() -> None:
    [only] = report({"apiVersion": "v1", "kind": "Pod", "metadata": None, "spec": pod_spec()}).workloads
    assert (only.ref.kind, only.fate) == ("Pod", "converts")


def test_objects_that_wait_take_less_memory_than_their_text() -> None:
    managed = [{"manager": "kubectl", "fieldsV1": {f"f:{at}": {} for at in range(200)}}]
    pods = [running(f"p-{at}") for at in range(400)]
    for at, each in enumerate(pods):
        each["metadata"] |= {"managedFields": managed, "annotations": {"seed": str(at) * 40}}
    raw = json.dumps({"apiVersion": "v1", "kind": "List", "items": pods}).encode()
    tracemalloc.start()
    inputs = read_files([GivenManifests("pods.json", raw)], lambda: None)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < len(raw) / 2
    assert [json.loads(each.raw) for each in inputs.found] == pods
