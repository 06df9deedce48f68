"""Each kind of the table has an object here whose pods are found, or whose fault is found. A new kind needs a row."""

from collections.abc import Iterator
from typing import Any

import pytest

from conversion.objects.kinds import KINDS, GroupKind, pods_of
from conversion.objects.pod_places import path_text
from neuron import names

Object = dict[str, Any]


def neuron_container(devices: int) -> Object:
    return {"name": "main", "image": "x", "resources": {"limits": {names.RESOURCE_NEURON: devices}}}


def pod_template(devices: int) -> Object:
    return {"spec": {"containers": [neuron_container(devices)]}}


def jobs(*devices: int) -> list[Object]:
    return [{"name": f"j{each}", "template": {"spec": {"template": pod_template(each)}}} for each in devices]


TEMPLATE = {"spec": {"template": pod_template(1)}}
RAY = {
    "headGroupSpec": {"template": pod_template(1)},
    "workerGroupSpecs": [{"template": pod_template(2)}, {"template": pod_template(4)}],
}
ARGO = {
    "templates": [
        {"name": "a", "container": neuron_container(1), "sidecars": [neuron_container(2)]},
        {"name": "b", "containerSet": {"containers": [neuron_container(4)]}},
        {"name": "c", "script": neuron_container(8), "initContainers": [neuron_container(16)]},
    ]
}
SPARK = {
    "driver": {"gpu": {"name": names.RESOURCE_NEURON, "quantity": 1}},
    "executor": {"template": {"spec": {"containers": [neuron_container(2)]}}},
}
KSERVE = {"containers": [neuron_container(1)], "workerSpec": {"containers": [neuron_container(2)]}}
REPLICAS = {"Master": {"template": pod_template(1)}, "Worker": {"template": pod_template(2)}}

PODS: dict[GroupKind, tuple[Object, tuple[int, ...]]] = {
    ("", "Pod"): (pod_template(1), (1,)),
    ("", "PodTemplate"): ({"template": pod_template(1)}, (1,)),
    ("", "ReplicationController"): (TEMPLATE, (1,)),
    **{("apps", kind): (TEMPLATE, (1,)) for kind in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet")},
    ("batch", "Job"): (TEMPLATE, (1,)),
    ("batch", "CronJob"): ({"spec": {"jobTemplate": TEMPLATE}}, (1,)),
    ("jobset.x-k8s.io", "JobSet"): ({"spec": {"replicatedJobs": jobs(1, 2)}}, (1, 2)),
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): (
        {"spec": {"leaderWorkerTemplate": {"leaderTemplate": pod_template(1), "workerTemplate": pod_template(2)}}},
        (1, 2),
    ),
    **{
        ("kubeflow.org", kind): ({"spec": {f"{field}ReplicaSpecs": REPLICAS}}, (1, 2))
        for kind, field in (
            *(("MPIJob", "mpi"), ("PyTorchJob", "pytorch"), ("TFJob", "tf")),
            *(("XGBoostJob", "xgb"), ("PaddleJob", "paddle"), ("JAXJob", "jax")),
        )
    },
    ("kubeflow.org", "Notebook"): (TEMPLATE, (1,)),
    **{
        ("trainer.kubeflow.org", kind): ({"spec": {"template": {"spec": {"replicatedJobs": jobs(1, 2)}}}}, (1, 2))
        for kind in ("TrainingRuntime", "ClusterTrainingRuntime")
    },
    ("ray.io", "RayCluster"): ({"spec": RAY}, (1, 2, 4)),
    ("ray.io", "RayJob"): ({"spec": {"rayClusterSpec": RAY, "submitterPodTemplate": pod_template(8)}}, (1, 2, 4, 8)),
    ("ray.io", "RayService"): ({"spec": {"rayClusterConfig": RAY}}, (1, 2, 4)),
    ("batch.volcano.sh", "Job"): (
        {"spec": {"tasks": [{"template": pod_template(1)}, {"template": pod_template(2)}]}},
        (1, 2),
    ),
    ("argoproj.io", "Rollout"): (TEMPLATE, (1,)),
    **{
        ("sagemaker.amazonaws.com", kind): ({"spec": {"replicaSpecs": [{"template": pod_template(1)}]}}, (1,))
        for kind in ("HyperPodPyTorchJob", "HyperPodPytorchJob")
    },
    **{
        ("argoproj.io", kind): ({"spec": ARGO}, (1, 2, 4, 8, 16))
        for kind in ("Workflow", "WorkflowTemplate", "ClusterWorkflowTemplate")
    },
    ("argoproj.io", "CronWorkflow"): ({"spec": {"workflowSpec": ARGO}}, (1, 2, 4, 8, 16)),
    ("sparkoperator.k8s.io", "SparkApplication"): ({"spec": SPARK}, (1, 2)),
    ("sparkoperator.k8s.io", "ScheduledSparkApplication"): ({"spec": {"template": SPARK}}, (1, 2)),
    ("serving.knative.dev", "Service"): (TEMPLATE, (1,)),
    ("serving.knative.dev", "Configuration"): (TEMPLATE, (1,)),
    ("serving.knative.dev", "Revision"): (pod_template(1), (1,)),
    ("serving.kserve.io", "InferenceService"): (
        {"spec": {"predictor": KSERVE, "transformer": {"containers": [neuron_container(4)]}}},
        (1, 2, 4),
    ),
    **{("serving.kserve.io", kind): ({"spec": KSERVE}, (1, 2)) for kind in ("ServingRuntime", "ClusterServingRuntime")},
    ("trainer.kubeflow.org", "TrainJob"): (
        {"spec": {"trainer": {"resourcesPerNode": {"limits": {names.RESOURCE_NEURON: 1}}}}},
        (1,),
    ),
}
"""The object, and the devices of its containers."""

FAULTS: dict[GroupKind, tuple[Object, str]] = {
    ("scheduling.k8s.io", "PodGroup"): ({"spec": {"resourceClaims": [{"name": "a"}]}}, "NEU712"),
    ("scheduling.k8s.io", "Workload"): (
        {"spec": {"podGroupTemplates": [{"resourceClaims": [{"name": "a"}]}]}},
        "NEU712",
    ),
    ("neuron.aws.com", "NeuronUltraServerWorkload"): ({"spec": {}}, "NEU715"),
    ("neuron.aws.com", "NeuronUltraServer"): ({"spec": {}}, "NEU715"),
}
"""The object, and the code of its fault."""


def test_every_kind_has_a_row() -> None:
    assert {*PODS, *FAULTS} == set(KINDS)
    assert {key for key, kind in KINDS.items() if kind.check} == set(FAULTS)


def amounts(data: Object, key: GroupKind) -> Iterator[int]:
    for place in pods_of(data, *key):
        spec = place.template["spec"]
        assert isinstance(spec, dict)
        for section in ("containers", "initContainers"):
            for each in spec.get(section) or ():
                yield int(each["resources"]["limits"][names.RESOURCE_NEURON])


@pytest.mark.parametrize("key", PODS, ids="/".join)
def test_the_pods_of_an_object_are_found(key: GroupKind) -> None:
    data, devices = PODS[key]
    assert sorted(amounts(data, key)) == list(devices)


@pytest.mark.parametrize("key", PODS, ids="/".join)
def test_a_pod_is_named_by_its_path(key: GroupKind) -> None:
    data, _ = PODS[key]
    for place in pods_of(data, *key):
        value: Any = data
        for step in place.path:
            value = value[step]
        assert isinstance(value, dict), path_text(place.path)


@pytest.mark.parametrize("key", FAULTS, ids="/".join)
def test_the_fault_of_an_object_is_found(key: GroupKind) -> None:
    data, code = FAULTS[key]
    check = KINDS[key].check
    assert check is not None
    assert code in {each.code for each in check(data)}
