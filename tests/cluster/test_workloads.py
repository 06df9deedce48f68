"""Workloads keep their templates as their owners wrote them; the pods that come of them are converted."""

import datetime as dt
from collections.abc import Iterator

import pytest

from tests.cluster.api import Api, Object
from tests.cluster.manifests import (
    ULTRASERVER_MODE,
    claim_template,
    container,
    generated_templates,
    is_converted,
    legacy_names,
    pod,
    scheduled_devices,
    template_of,
    workload,
)
from tests.cluster.nodes import DRIVER, Fleet
from tests.cluster.processes import eventually
from tests.cluster.webhooks import Webhook

pytestmark = pytest.mark.usefixtures("webhook")

TOPOLOGY = "leaderworkerset.sigs.k8s.io/exclusive-topology"


def pods_of(api: Api, namespace: str, app: str, count: int) -> list[Object]:
    """Wait for the pods of a workload."""

    def attempt() -> list[Object]:
        found = api.list("Pod", namespace, labelSelector=f"app={app}")
        assert len(found) == count, f"there are {len(found)}"
        return found

    return eventually(f"{count} pods of {app}", attempt)


def assert_converted(api: Api, namespace: str, pods: list[Object]) -> None:
    taken = []
    for each in pods:
        assert is_converted(each)
        assert legacy_names(each) == []
        taken += scheduled_devices(api, namespace, each["metadata"]["name"])
    assert len(taken) == 4 * len(pods)
    assert len(set(taken)) == len(taken), "two pods share a device"


@pytest.mark.parametrize(
    ("kind", "spec", "count"),
    [
        ("Deployment", {"replicas": 2}, 2),
        ("ReplicaSet", {"replicas": 2}, 2),
        ("StatefulSet", {"replicas": 2, "podManagementPolicy": "Parallel"}, 2),
        ("Job", {"parallelism": 2, "completions": 2}, 2),
        ("DaemonSet", {}, 1),
    ],
    ids=["Deployment", "ReplicaSet", "StatefulSet", "Job", "DaemonSet"],
)
def test_pods_of_a_workload_are_converted_and_its_template_is_not(
    api: Api, namespace: str, fleet: Fleet, kind: str, spec: Object, count: int
) -> None:
    fleet.add("trn2.48xlarge")
    made = api.create(workload(kind, "legacy", pod("x"), **spec), namespace).body
    pods = pods_of(api, namespace, "legacy", count)
    assert_converted(api, namespace, pods)
    stored = api.get(kind, "legacy", namespace)
    assert legacy_names(stored["spec"]["template"])
    assert stored["spec"]["template"] == made["spec"]["template"]
    assert stored["metadata"]["generation"] == made["metadata"]["generation"]
    assert len(generated_templates(api, namespace)) == 1


def test_pods_of_a_cronjob_are_converted(api: Api, namespace: str, fleet: Fleet) -> None:
    fleet.add("trn2.48xlarge")
    job = {"template": template_of(pod("x", restartPolicy="Never"), {"app": "nightly"})}
    spec = {"schedule": "* * * * *", "startingDeadlineSeconds": 600, "jobTemplate": {"spec": job}}
    cron = {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "nightly"}, "spec": spec}
    api.create(cron, namespace)
    # A run that was due two minutes ago and within its deadline starts at once.
    past = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=2)
    status = {"status": {"lastScheduleTime": past.strftime("%Y-%m-%dT%H:%M:%SZ")}}
    api.merge("CronJob", "nightly", status, namespace, subresource="status")
    pods = pods_of(api, namespace, "nightly", 1)
    assert_converted(api, namespace, pods)
    owner = pods[0]["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"].startswith("nightly-")) == ("Job", True)
    assert legacy_names(api.get("Job", owner["name"], namespace)["spec"]["template"])


def test_a_pod_with_a_generated_name_is_converted(api: Api, namespace: str) -> None:
    manifest = pod("x")
    manifest["metadata"] = {"generateName": "worker-"}
    stored = api.create(manifest, namespace).body
    assert stored["metadata"]["name"].startswith("worker-")
    assert is_converted(stored)


@pytest.fixture(scope="module")
def leader_worker_sets(api: Api) -> Iterator[None]:
    """A CustomResourceDefinition with which LeaderWorkerSets can be stored as they are."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    names = {"kind": "LeaderWorkerSet", "plural": "leaderworkersets", "singular": "leaderworkerset"}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    group = "leaderworkerset.x-k8s.io"
    crd: Object = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"leaderworkersets.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test"},
        },
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    }
    api.create(crd)

    def established() -> bool:
        found = api.get("CustomResourceDefinition", crd["metadata"]["name"])
        conditions = found.get("status", {}).get("conditions") or []
        return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)

    eventually("the LeaderWorkerSet API", established)
    eventually("the LeaderWorkerSet endpoint", lambda: api.list("LeaderWorkerSet") == [])
    yield
    api.delete("CustomResourceDefinition", crd["metadata"]["name"])


def leader_worker_set(name: str, worker: Object, annotations: dict[str, str] | None = None) -> Object:
    template = {"workerTemplate": template_of(worker, {"app": name}), "size": 4}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"replicas": 1, "leaderWorkerTemplate": template},
    }


def ultraserver_template(name: str, mode: int) -> Object:
    selector = f'device.attributes["{DRIVER}"].?resourceType.orValue("") == "neuron_node"'
    exactly = {"deviceClassName": DRIVER, "selectors": [{"cel": {"expression": selector}}]}
    parameters = {"apiVersion": "neuron.aws.com/v1", "kind": "UltraServerConfig", "ultraserverMode": mode}
    config = {"requests": ["node"], "opaque": {"driver": DRIVER, "parameters": parameters}}
    return claim_template(name, {"devices": {"requests": [{"name": "node", "exactly": exactly}], "config": [config]}})


@pytest.mark.usefixtures("leader_worker_sets")
class TestLeaderWorkerSets:
    """The one workload whose metadata gets a hint: groups of an UltraServer belong together."""

    @pytest.mark.parametrize("nodes", [2, 4])
    def test_an_ultraserver_annotation_sets_the_exclusive_topology(self, api: Api, namespace: str, nodes: int) -> None:
        worker = pod("x", container(neuron=16), annotations={ULTRASERVER_MODE: str(nodes)})
        stored = api.create(leader_worker_set("us", worker), namespace).body
        label = f"neuron.amazonaws.com/ultraserver-server-id-{nodes}"
        assert stored["metadata"]["annotations"][TOPOLOGY] == label
        assert legacy_names(stored["spec"]["leaderWorkerTemplate"]["workerTemplate"])

    @pytest.mark.parametrize("nodes", [2, 4])
    def test_a_claim_template_with_an_ultraserver_config_sets_the_exclusive_topology(
        self, api: Api, webhook: Webhook, namespace: str, nodes: int
    ) -> None:
        api.create(ultraserver_template("us", nodes), namespace)
        using = container(resources={"claims": [{"name": "us"}]})
        worker = pod("x", using, resourceClaims=[{"name": "us", "resourceClaimTemplateName": "us"}])
        manifest = leader_worker_set("us", worker)
        label = f"neuron.amazonaws.com/ultraserver-server-id-{nodes}"

        def hinted() -> bool:
            seen = webhook.preview(manifest, namespace).body["metadata"].get("annotations", {})
            return bool(seen.get(TOPOLOGY) == label)

        eventually("the webhook to know the template", hinted)
        stored = api.create(manifest, namespace).body
        assert stored["metadata"]["annotations"][TOPOLOGY] == label

    def test_the_users_own_topology_stays_and_a_wrong_one_gets_a_warning(self, api: Api, namespace: str) -> None:
        worker = pod("x", container(neuron=16), annotations={ULTRASERVER_MODE: "4"})
        own = {TOPOLOGY: "neuron.amazonaws.com/ultraserver-server-id-2"}
        answer = api.create(leader_worker_set("us", worker, own), namespace)
        assert answer.body["metadata"]["annotations"] == own
        assert any("NEU212" in warning for warning in answer.warnings), answer.warnings

    def test_other_leader_worker_sets_are_not_changed(self, api: Api, namespace: str) -> None:
        stored = api.create(leader_worker_set("plain", pod("x")), namespace).body
        assert TOPOLOGY not in stored["metadata"].get("annotations", {})
