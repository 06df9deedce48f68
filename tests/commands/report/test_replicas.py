"""The number of pods is a product of the numbers on the way to the pod template."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.report.assess import pods_of
from conversion.objects.kinds import KINDS as KINDS_WITH_PODS

TEMPLATE = {"spec": {"containers": []}}
REPLICATED = [{"replicas": 3, "template": {"spec": {"parallelism": 2, "completions": 8, "template": TEMPLATE}}}]


@pytest.mark.parametrize(
    ("group", "kind", "spec", "path", "pods"),
    [
        ("apps", "Deployment", {"replicas": 5, "template": TEMPLATE}, ("spec", "template"), 5),
        ("apps", "Deployment", {"template": TEMPLATE}, ("spec", "template"), 1),
        ("apps", "StatefulSet", {"replicas": 0, "template": TEMPLATE}, ("spec", "template"), 0),
        ("batch", "Job", {"parallelism": 4, "completions": 2, "template": TEMPLATE}, ("spec", "template"), 2),
        ("batch", "Job", {"completions": 8, "template": TEMPLATE}, ("spec", "template"), 1),
        (
            "batch",
            "CronJob",
            {"jobTemplate": {"spec": {"parallelism": 3, "template": TEMPLATE}}},
            ("spec", "jobTemplate", "spec", "template"),
            3,
        ),
        (
            "batch",
            "CronJob",
            {"suspend": True, "jobTemplate": {"spec": {"template": TEMPLATE}}},
            ("spec", "jobTemplate", "spec", "template"),
            0,
        ),
        (
            "jobset.x-k8s.io",
            "JobSet",
            {"replicatedJobs": REPLICATED},
            ("spec", "replicatedJobs", 0, "template", "spec", "template"),
            6,
        ),
        (
            "leaderworkerset.x-k8s.io",
            "LeaderWorkerSet",
            {"replicas": 2, "leaderWorkerTemplate": {"size": 4, "workerTemplate": TEMPLATE}},
            ("spec", "leaderWorkerTemplate", "workerTemplate"),
            8,
        ),
        (
            "leaderworkerset.x-k8s.io",
            "LeaderWorkerSet",
            {
                "replicas": 2,
                "leaderWorkerTemplate": {"size": 4, "leaderTemplate": TEMPLATE, "workerTemplate": TEMPLATE},
            },
            ("spec", "leaderWorkerTemplate", "leaderTemplate"),
            2,
        ),
        (
            "kubeflow.org",
            "MPIJob",
            {"mpiReplicaSpecs": {"Worker": {"replicas": 4, "template": TEMPLATE}}},
            ("spec", "mpiReplicaSpecs", "Worker", "template"),
            4,
        ),
        (
            "ray.io",
            "RayCluster",
            {"workerGroupSpecs": [{"replicas": 7, "template": TEMPLATE}]},
            ("spec", "workerGroupSpecs", 0, "template"),
            7,
        ),
        ("", "PodTemplate", {}, ("template",), 0),
        ("", "Pod", {}, (), 1),
    ],
)
def test_the_number_of_pods_is_computed_for_each_kind(
    group: str, kind: str, spec: dict[str, Any], path: tuple[str | int, ...], pods: int
) -> None:
    assert pods_of(group, kind, {"spec": spec, "template": TEMPLATE}, path) == pods


def test_a_daemon_set_has_as_many_pods_as_its_status_says() -> None:
    assert pods_of("apps", "DaemonSet", {"spec": {"template": TEMPLATE}}, ("spec", "template")) is None
    item = {"spec": {"template": TEMPLATE}, "status": {"desiredNumberScheduled": 12}}
    assert pods_of("apps", "DaemonSet", item, ("spec", "template")) == 12


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=8,
)
COUNTED = ("replicas", "parallelism", "completions", "size", "suspend")


@given(st.sampled_from(sorted(KINDS_WITH_PODS)), st.dictionaries(st.sampled_from(COUNTED), json_values), json_values)
def test_any_value_of_a_replica_field_gives_a_bounded_number_or_none(
    kind: tuple[str, str], counts: dict[str, Any], other: Any
) -> None:
    template = {**counts, "template": TEMPLATE}
    spec = {**template, "leaderWorkerTemplate": template, "jobTemplate": {"spec": template}, "more": other}
    for path in (("spec", "template"), ("spec", "leaderWorkerTemplate", "template")):
        pods = pods_of(*kind, {"spec": spec, "status": other}, path)
        assert pods is None or 0 <= pods <= 1_000_000
