"""The VerticalPodAutoscalers of a cluster, and what commands say of pods that they resize."""

from typing import Any

import pytest

from commands.explain.reads import live_manifest
from conversion.findings.pod_findings import workloads_of
from runtime.api_server import Resource
from tests.support.emulated import EmulatedCluster
from tests.support.explaining import explained, legacy_pod, live

SCALER: dict[str, Any] = {
    "metadata": {"name": "sizes", "namespace": "team-a"},
    "spec": {
        "targetRef": {"kind": "Deployment", "name": "serve"},
        "updatePolicy": {"updateMode": "InPlaceOrRecreate"},
    },
}


async def test_explain_warns_of_a_pod_whose_deployment_is_resized() -> None:
    resource = Resource("autoscaling.k8s.io", "v1", "verticalpodautoscalers")
    scaler = live_manifest(SCALER, resource, "VerticalPodAutoscaler")
    cluster = EmulatedCluster()
    cluster.node("a")
    found = legacy_pod(namespace="team-a")
    found["metadata"] |= {
        "labels": {"pod-template-hash": "7d9"},
        "ownerReferences": [{"kind": "ReplicaSet", "name": "serve-7d9", "controller": True}],
    }
    [explanation] = explained(found, cluster=live(cluster, [scaler]))
    [finding] = [each for each in explanation.preview.findings if each.code == "NEU233"]
    assert (finding.path, finding.value) == ("spec", "sizes")
    assert str(finding) == (
        "NEU233: VerticalPodAutoscaler sizes resizes pods of Deployment serve in place, which Kubernetes refuses for "
        "pods with a claim: they are evicted instead, or keep their size. Set updateMode to Initial, Recreate or Off."
    )


def test_the_workloads_of_a_pod() -> None:
    owners = [{"kind": "ReplicaSet", "name": "serve-7d9"}, None, {"kind": "Job", "name": "x"}]
    metadata = {"name": "p", "labels": {"pod-template-hash": "7d9"}, "ownerReferences": owners}
    assert list(workloads_of("Pod", {"metadata": metadata})) == [
        ("Pod", "p"),
        ("ReplicaSet", "serve-7d9"),
        ("Deployment", "serve"),
        ("Job", "x"),
    ]


@pytest.mark.parametrize(
    ("owner", "digest"),
    [("serve-7d9", "6c8"), ("serve-7d9", ""), ("serve-", "")],
    ids=["another-hash", "no-hash", "no-hash-and-dash"],
)
def test_a_replica_set_without_the_hash_of_the_pod_is_of_no_deployment(owner: str, digest: str) -> None:
    owners = [{"kind": "ReplicaSet", "name": owner}]
    metadata = {"name": "p", "labels": {"pod-template-hash": digest}, "ownerReferences": owners}
    assert list(workloads_of("Pod", {"metadata": metadata})) == [("Pod", "p"), ("ReplicaSet", owner)]


def test_another_owner_with_the_hash_in_its_name_is_of_no_deployment() -> None:
    metadata = {"labels": {"pod-template-hash": "7d9"}, "ownerReferences": [{"kind": "Job", "name": "serve-7d9"}]}
    assert list(workloads_of("Pod", {"metadata": metadata})) == [("Pod", ""), ("Job", "serve-7d9")]
