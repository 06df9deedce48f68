import asyncio
from typing import Any

import jsonpatch
import pytest

from conversion.facts import NamespaceFacts
from conversion.patches.decision import Decision
from tests.support.clusters import FakeCluster, mutator, request
from tests.support.manifests import container

TOPOLOGY = "leaderworkerset.sigs.k8s.io/exclusive-topology"
LABEL_4 = "neuron.amazonaws.com/ultraserver-server-id-4"


def pod_template(mode: str | None = None, **spec: Any) -> dict[str, Any]:
    annotations = {"neuron.aws.com/ultraserver-mode": mode} if mode else {}
    return {"metadata": {"annotations": annotations}, "spec": {"containers": [container(neuron="16")], **spec}}


def leader_worker_set(worker: Any, leader: Any = None, **annotations: str) -> dict[str, Any]:
    both = {"workerTemplate": worker} | ({"leaderTemplate": leader} if leader else {})
    metadata: dict[str, Any] = {"name": "vllm"} | ({"annotations": annotations} if annotations else {})
    return {"metadata": metadata, "spec": {"leaderWorkerTemplate": both}}


def place(manifest: Any, cluster: FakeCluster | None = None, **options: Any) -> tuple[Decision, Any]:
    fields = {"kind": "LeaderWorkerSet", "group": "leaderworkerset.x-k8s.io"}
    decision = asyncio.run(mutator(cluster, **options).review(request(manifest, **fields)))
    return decision, jsonpatch.apply_patch(manifest, list(decision.patch))


@pytest.mark.parametrize("mode", ["2", "4"])
def test_the_annotation_on_the_pods_places_the_group(mode: str) -> None:
    decision, result = place(leader_worker_set(pod_template(mode)))
    assert decision.outcome == "hinted"
    assert result["metadata"]["annotations"] == {TOPOLOGY: f"neuron.amazonaws.com/ultraserver-server-id-{mode}"}
    assert result["spec"] == leader_worker_set(pod_template(mode))["spec"]


def test_the_annotation_on_the_namespace_places_the_group() -> None:
    facts = NamespaceFacts((("neuron.aws.com/ultraserver-mode", "4"),))
    _, result = place(leader_worker_set(pod_template()), FakeCluster(namespaces={"team-a": facts}))
    assert result["metadata"]["annotations"] == {TOPOLOGY: LABEL_4}


def test_a_template_that_the_pods_name_places_the_group() -> None:
    cluster = FakeCluster(ultraserver_modes={("team-a", "us"): 4})
    claims = [{"name": "n", "resourceClaimTemplateName": "us"}]
    _, result = place(leader_worker_set(pod_template(resourceClaims=claims), keep="me"), cluster)
    assert result["metadata"]["annotations"] == {"keep": "me", TOPOLOGY: LABEL_4}


@pytest.mark.parametrize(
    ("manifest", "options", "reason"),
    [
        (leader_worker_set(pod_template()), {}, "no-ultraserver"),
        (leader_worker_set(pod_template("1")), {}, "no-ultraserver"),
        (leader_worker_set(pod_template("4")), {"mode": "shadow"}, "no-ultraserver"),
        (leader_worker_set(pod_template("4")), {"mode": "off"}, "no-ultraserver"),
        (leader_worker_set(pod_template("4"), **{TOPOLOGY: LABEL_4}), {}, "already-placed"),
        ({"metadata": {}, "spec": {}}, {}, "no-ultraserver"),
    ],
    ids=["plain", "one-node", "shadow", "off", "placed", "empty"],
)
def test_a_workload_without_ultraserver_settings_is_unchanged(manifest: Any, options: Any, reason: str) -> None:
    decision, result = place(manifest, **options)
    assert decision.reason == reason
    assert result == manifest


@pytest.mark.parametrize(
    ("manifest", "text"),
    [
        (
            leader_worker_set(pod_template("4"), **{TOPOLOGY: "zone"}),
            "NEU212: exclusive-topology is 'zone', and the pods ask for UltraServers of 4 nodes."
            " Use neuron.amazonaws.com/ultraserver-server-id-4.",
        ),
        (
            leader_worker_set(pod_template("4"), pod_template("2")),
            "NEU212: exclusive-topology is None, and the pods ask for UltraServers of 2 and 4 nodes."
            " Use neuron.amazonaws.com/ultraserver-server-id-4.",
        ),
    ],
    ids=["other-topology", "two-modes"],
)
def test_a_topology_that_does_not_match_gets_a_warning(manifest: Any, text: str) -> None:
    decision, _ = place(manifest)
    assert [str(each) for each in decision.warnings] == [text]
    assert decision.patch == ()


def test_an_unreadable_workload_is_refused() -> None:
    decision, _ = place({"metadata": {}, "spec": []})
    assert decision.errors[0].message.startswith("the object is not a readable LeaderWorkerSet: Expected `object`")
