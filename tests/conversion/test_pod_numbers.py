"""How many pods each kind of the table makes, and what policies read of their devices."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversion.objects.kinds import KINDS
from conversion.objects.pod_numbers import _NUMBERS, MOST_TEMPLATES
from policies.judging.subjects import of_object
from tests.support.invoking import invoke


def pod_template(devices: int = 16, **spec: Any) -> dict[str, Any]:
    container = {"name": "a", "resources": {"limits": {"aws.amazon.com/neuron": devices}}}
    return {"spec": {"containers": [container], **spec}}


def job(devices: int = 16, **spec: Any) -> dict[str, Any]:
    return {"spec": {**spec, "template": pod_template(devices)}}


def neuron(version: str, kind: str, spec: Any, **more: Any) -> dict[str, Any]:
    data = {"apiVersion": version, "kind": kind, "metadata": {"name": "w"}, "spec": spec, **more}
    found: dict[str, Any] = of_object(data).activation({})["neuron"]
    return found


COUNTED: dict[str, tuple[str, Any, Any]] = {
    "deployment": ("apps/v1 Deployment", {"replicas": 3, "template": pod_template()}, (3, 48, 16)),
    "default-replicas": ("apps/v1 Deployment", {"template": pod_template()}, (1, 16, 16)),
    "scaled-to-zero": ("apps/v1 Deployment", {"replicas": 0, "template": pod_template()}, (0, 0, 16)),
    "stateful-set": ("apps/v1 StatefulSet", {"replicas": 2, "template": pod_template(1)}, (2, 2, 1)),
    "replica-set": ("apps/v1 ReplicaSet", {"replicas": 2, "template": pod_template(4)}, (2, 8, 4)),
    "rc": ("v1 ReplicationController", {"replicas": 2, "template": pod_template(4)}, (2, 8, 4)),
    "rollout": ("argoproj.io/v1alpha1 Rollout", {"replicas": 5, "template": pod_template(1)}, (5, 5, 1)),
    "job": ("batch/v1 Job", {"template": pod_template(4)}, (1, 4, 4)),
    "parallel": ("batch/v1 Job", {"parallelism": 4, "template": pod_template(4)}, (4, 16, 4)),
    "completions": ("batch/v1 Job", {"parallelism": 9, "completions": 2, "template": pod_template(4)}, (2, 8, 4)),
    "cron-job": ("batch/v1 CronJob", {"concurrencyPolicy": "Forbid", "jobTemplate": job(4, parallelism=2)}, (2, 8, 4)),
    "job-set": (
        "jobset.x-k8s.io/v1alpha2 JobSet",
        {
            "replicatedJobs": [
                {"replicas": 2, "template": job(4, parallelism=3, completions=3)},
                {"template": job(1)},
            ]
        },
        (7, 25, 4),
    ),
    "groups-of-workers": (
        "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet",
        {"replicas": 3, "leaderWorkerTemplate": {"size": 4, "workerTemplate": pod_template(2)}},
        (12, 24, 2),
    ),
    "groups-with-leaders": (
        "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet",
        {
            "replicas": 3,
            "leaderWorkerTemplate": {
                "size": 4,
                "leaderTemplate": pod_template(1),
                "workerTemplate": pod_template(2),
            },
        },
        (12, 3 * 1 + 3 * 3 * 2, 2),
    ),
    "elastic": (
        "kubeflow.org/v1 PyTorchJob",
        {
            "elasticPolicy": {"maxReplicas": 8},
            "pytorchReplicaSpecs": {
                "Master": {"template": pod_template(1)},
                "Worker": {"replicas": 2, "template": pod_template(2)},
            },
        },
        (9, 17, 2),
    ),
    "ray": (
        "ray.io/v1 RayCluster",
        {
            "headGroupSpec": {"template": pod_template(1)},
            "workerGroupSpecs": [{"replicas": 2, "numOfHosts": 4, "template": pod_template(2)}],
        },
        (9, 17, 2),
    ),
    "ray-autoscaled": (
        "ray.io/v1 RayCluster",
        {
            "enableInTreeAutoscaling": True,
            "headGroupSpec": {"template": pod_template(0)},
            "workerGroupSpecs": [{"replicas": 1, "maxReplicas": 3, "template": pod_template(2)}],
        },
        (4, 6, 2),
    ),
    "volcano": ("batch.volcano.sh/v1alpha1 Job", {"tasks": [{"replicas": 3, "template": pod_template(2)}]}, (3, 6, 2)),
    "train-job": (
        "trainer.kubeflow.org/v1alpha1 TrainJob",
        {"trainer": {"numNodes": 4, "resourcesPerNode": {"limits": {"aws.amazon.com/neuron": 16}}}},
        (4, 64, 16),
    ),
    "no-workload": ("v1 ConfigMap", None, (0, 0, 0)),
    "autoscaler": ("autoscaling/v2 HorizontalPodAutoscaler", {"maxReplicas": 3}, (0, 0, 0)),
}
"""What makes pods: its pods, their devices, and the most of one pod."""


@pytest.mark.parametrize("name", COUNTED)
def test_counted(name: str) -> None:
    workload, spec, numbers = COUNTED[name]
    found = neuron(*workload.split(), spec)
    assert (found["pods"], found["devices"], found["podDevices"]) == numbers
    assert [found[key] for key in ("devicesKnown", "podDevicesKnown", "podsKnown", "unknown")] == [True, True, True, ""]


NOT_COUNTED: dict[str, tuple[str, Any, Any]] = {
    "daemon": ("apps/v1 DaemonSet", {"template": pod_template()}, "a DaemonSet has a pod on each node"),
    "cron-job": (
        "batch/v1 CronJob",
        {"jobTemplate": job()},
        "with concurrencyPolicy Allow several Jobs can run at once",
    ),
    "text": ("apps/v1 Deployment", {"replicas": "3", "template": pod_template()}, "spec.replicas is not a number"),
    "bool": ("apps/v1 Deployment", {"replicas": True, "template": pod_template()}, "spec.replicas is not a number"),
    "knative": (
        "serving.knative.dev/v1 Service",
        {"template": pod_template()},
        "the object does not say how many pods it makes",
    ),
    "ray-without-maximum": (
        "ray.io/v1 RayCluster",
        {"enableInTreeAutoscaling": True, "workerGroupSpecs": [{"template": pod_template()}]},
        "spec.workerGroupSpecs[0].maxReplicas is not set",
    ),
    "unknown-kind": ("example.com/v1 Widget", {}, "how many pods a 'Widget' makes is not known"),
    "scale": ("autoscaling/v1 Scale", {"replicas": 9}, "how many pods a 'Scale' makes is not known"),
    "no-template": ("argoproj.io/v1alpha1 Rollout", {"workloadRef": {}}, "it has no pod template"),
    "claim": (
        "apps/v1 Deployment",
        {"template": {"spec": {"resourceClaims": [{"name": "a", "resourceClaimTemplateName": "t"}]}}},
        "ResourceClaimTemplate 't' is not known",
    ),
    "shared-claim": (
        "scheduling.k8s.io/v1alpha2 PodGroup",
        {"resourceClaims": [{"name": "a", "resourceClaimTemplateName": "t"}]},
        "ResourceClaimTemplate 't' is not known",
    ),
}
"""What makes pods, and why their number is not known."""


@pytest.mark.parametrize("name", NOT_COUNTED)
def test_what_cannot_be_counted_is_not_known(name: str) -> None:
    workload, spec, why = NOT_COUNTED[name]
    found = neuron(*workload.split(), spec)
    assert found["devicesKnown"] is False
    assert found["unknown"] == why


def test_an_unknown_number_of_pods_without_devices_is_known() -> None:
    found = neuron("apps/v1", "DaemonSet", {"template": pod_template(0)})
    assert (found["devices"], found["devicesKnown"], found["podsKnown"]) == (0, True, False)


def test_a_pod_of_a_daemon_set_is_counted() -> None:
    found = neuron("apps/v1", "DaemonSet", {"template": pod_template(4)})
    assert (found["podDevices"], found["podDevicesKnown"], found["devicesKnown"]) == (4, True, False)


def test_each_template_is_listed() -> None:
    spec = {"replicatedJobs": [{"replicas": 2, "template": job(4)}, {"template": job(1)}]}
    found = neuron("jobset.x-k8s.io/v1alpha2", "JobSet", spec)
    assert found["templates"] == [
        {
            "path": f"spec.replicatedJobs[{at}].template.spec.template",
            "devices": devices,
            "cores": 0,
            "devicesKnown": True,
            "pods": pods,
            "podsKnown": True,
        }
        for at, (devices, pods) in enumerate([(4, 2), (1, 1)])
    ]


def test_a_pod_and_a_claim_have_the_fields_too() -> None:
    pod = neuron("v1", "Pod", pod_template(4)["spec"])
    assert (pod["devices"], pod["podDevices"], pod["pods"], pod["templates"]) == (4, 4, 1, [])
    request = {"name": "r", "exactly": {"deviceClassName": "neuron.aws.com", "count": 4}}
    claim = neuron("resource.k8s.io/v1", "ResourceClaim", {"devices": {"requests": [request]}})
    assert (claim["devices"], claim["podDevices"]) == (4, 4)


def test_only_so_many_templates_are_counted() -> None:
    jobs = [{"name": f"j{at}", "template": job(1)} for at in range(MOST_TEMPLATES + 1)]
    found = neuron("jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": jobs})
    assert found["devices"] == MOST_TEMPLATES
    assert found["unknown"] == f"only {MOST_TEMPLATES} of its {MOST_TEMPLATES + 1} pod templates are counted"


def test_every_counted_kind_is_in_the_table() -> None:
    assert set(_NUMBERS) <= set(KINDS)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.sampled_from(["replicas", "template", "spec", "size", "tasks", "x"]), inner)
    ),
)


@given(spec=ANY, key=st.sampled_from(sorted(KINDS)))
def test_any_object_is_counted_or_not_known(spec: Any, key: tuple[str, str]) -> None:
    group, kind = key
    found = neuron(f"{group}/v1" if group else "v1", kind, spec)
    assert found["devices"] >= 0
    json.dumps(found)


POLICY = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ValidatingPolicy
metadata: {name: few}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [apps], apiVersions: [v1], operations: [CREATE], resources: [deployments]}]
  validations: [{expression: neuron.devicesKnown && neuron.devices <= 4, message: too many}]
  tests:
  - name: sixteen
    object:
      apiVersion: apps/v1
      kind: Deployment
      metadata: {name: d}
      spec: {template: {spec: {containers: [{name: a, resources: {limits: {aws.amazon.com/neuron: 16}}}]}}}
    expect: Deny
  - name: four
    object:
      apiVersion: apps/v1
      kind: Deployment
      metadata: {name: d}
      spec: {template: {spec: {containers: [{name: a, resources: {limits: {aws.amazon.com/neuron: 4}}}]}}}
    expect: Allow
"""


def test_commands_count_workloads(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "few.yaml").write_text(POLICY, encoding="utf-8")
    manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {"template": pod_template()},
    }
    (tmp_path / "d.yaml").write_text(json.dumps(manifest), encoding="utf-8")
    tested = invoke("policy", "test", tmp_path / "policies")
    assert tested.output.endswith("2 cases, 0 failed.\n")
    flags = ["--policies", str(tmp_path / "policies"), "-f", str(tmp_path / "d.yaml")]
    for command in (["policy", "explain"], ["validate"]):
        result = invoke(*command, *flags)
        assert result.exit_code == 1, result.output
        assert "too many" in result.output
