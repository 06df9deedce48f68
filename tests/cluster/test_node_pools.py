"""Kinds that a cluster need not have: pools of Karpenter, and autoscalers that resize pods.

Each replica has one answer for a pod, whenever it started and whatever nodes it has seen.
"""

import functools
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.cluster.api import Api, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.manifests import container, is_converted, pod
from tests.cluster.nodes import INSTANCE_TYPE
from tests.cluster.processes import eventually
from tests.cluster.webhooks import Webhook, install_rbac

pytestmark = pytest.mark.in_order

POOLS = "/apis/karpenter.sh/v1/nodepools"
CLASSES = "/apis/karpenter.k8s.aws/v1/ec2nodeclasses"
AUTOSCALERS = "/apis/autoscaling.k8s.io/v1/namespaces/default/verticalpodautoscalers"
ZONE = "topology.kubernetes.io/zone"
ROLE = "neuron-dra"


class Said(NamedTuple):
    """What a replica says of a pod."""

    changed: bool
    codes: tuple[str, ...]
    text: str


def definition(group: str, kind: str, plural: str, scope: str = "Cluster") -> Object:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": kind, "plural": plural, "singular": kind.lower()}
    spec = {"group": group, "scope": scope, "names": names, "versions": [version]}
    # Groups of Kubernetes itself need an approval.
    approved = {"api-approved.kubernetes.io": "unapproved, for tests"}
    metadata = {"name": f"{plural}.{group}", "annotations": approved}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": spec,
    }


def node_pool(name: str, *types: str, labels: dict[str, str], **spec: Any) -> Object:
    template = {
        "metadata": {"labels": labels},
        "spec": {
            "requirements": [{"key": INSTANCE_TYPE, "operator": "In", "values": list(types)}],
            "taints": [{"key": "aws.amazon.com/neuron", "effect": "NoSchedule"}],
            "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "here"},
        },
    }
    spec = {"template": template, **spec}
    return {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": name}, "spec": spec}


def labelled_node(name: str, **labels: str) -> Object:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def wanting(devices: int = 1, **selector: str) -> Object:
    return pod("p", container(neuron=devices), nodeSelector=selector)


def serves(api: Api, path: str) -> bool:
    return api.answer("GET", path).is_success


def say(replica: Webhook, plane: ControlPlane, manifest: Object) -> Said:
    """The answer of one replica, over TLS, to the review that the API server sends for a pod."""
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    resource = {"group": "", "version": "v1", "resource": "pods"}
    request = {"uid": "u", "kind": kind, "resource": resource, "operation": "CREATE", "namespace": "default"}
    request |= {"name": "p", "dryRun": True, "object": manifest, "userInfo": {}}
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    context = ssl.create_default_context(cafile=str(plane.authority.files.certificate))
    url = f"https://127.0.0.1:{replica.port}/mutate"
    response = httpx.post(url, json=review, verify=context, trust_env=False).json()["response"]
    assert response["allowed"], response
    warnings = response.get("warnings") or []
    codes = {each.partition(":")[0].rpartition(" ")[2] for each in warnings}
    return Said("patch" in response, tuple(sorted(codes)), "\n".join(warnings))


@pytest.fixture(scope="module")
def api(lent_control_plane: ControlPlane) -> Api:
    return lent_control_plane.admin


@pytest.fixture(scope="module")
def kubeconfig(lent_control_plane: ControlPlane) -> Path:
    return install_rbac(lent_control_plane)


@pytest.fixture(scope="module")
def pools(api: Api) -> None:
    """The kinds, a dynamic pool and its node class."""
    api.create(definition("karpenter.sh", "NodePool", "nodepools"))
    api.create(definition("karpenter.k8s.aws", "EC2NodeClass", "ec2nodeclasses"))
    api.create(definition("autoscaling.k8s.io", "VerticalPodAutoscaler", "verticalpodautoscalers", "Namespaced"))
    for path in (POOLS, CLASSES, AUTOSCALERS):
        eventually(path, functools.partial(serves, api, path))
    pool = node_pool("neuron", "trn1.32xlarge", "inf2.xlarge", labels={"team/accelerator": "neuron"})
    api.request("POST", POOLS, json=pool)
    subnets = [{"id": "subnet-1", "zone": "us-east-1a"}]
    metadata = {"name": "here"}
    made = {"apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": metadata, "spec": {}}
    api.request("POST", CLASSES, json={**made, "status": {"subnets": subnets}})


@pytest.fixture(scope="module")
def replicas(lent_control_plane: ControlPlane, api: Api, kubeconfig: Path, pools: None) -> Iterator[list[Webhook]]:
    """One replica that started before there was a Node of the pool, and one that started after."""
    made = [Webhook(lent_control_plane, kubeconfig) for _ in range(2)]
    try:
        made[0].start()
        of_pool = {INSTANCE_TYPE: "inf2.xlarge", "karpenter.sh/nodepool": "neuron", "team/accelerator": "neuron"}
        api.create(labelled_node("of-pool", **of_pool))
        made[1].start()
        eventually("the older replica to see the Node", lambda: made[0].cached("nodes") == 1)
        yield made
    finally:
        for each in made:
            each.stop()


LEFT = {
    "the pool's own label": wanting(4, **{"team/accelerator": "neuron"}),
    "its name": wanting(1, **{"karpenter.sh/nodepool": "neuron"}),
    "a type with a node": wanting(1, **{INSTANCE_TYPE: "inf2.xlarge"}),
    "a type without nodes": wanting(8, **{INSTANCE_TYPE: "trn1.32xlarge"}),
    "the zone of its node class": wanting(1, **{ZONE: "us-east-1a"}),
    "nothing": wanting(1),
}


@pytest.mark.parametrize("manifest", LEFT.values(), ids=LEFT)
def test_a_pod_of_a_dynamic_pool_is_left_by_both(
    lent_control_plane: ControlPlane, replicas: list[Webhook], manifest: Object
) -> None:
    older, newer = (say(each, lent_control_plane, manifest) for each in replicas)
    assert older == newer
    assert (older.changed, older.codes) == (False, ("NEU903",))
    assert "nodes for the pod come from NodePool neuron only" in older.text


OTHERS = {
    "a zone without subnets": wanting(1, **{ZONE: "us-east-1b"}),
    "a type that no pool has": wanting(4, **{INSTANCE_TYPE: "trn2.48xlarge"}),
    "a label of nobody": wanting(1, **{"team/accelerator": "gpu"}),
}


@pytest.mark.parametrize("manifest", OTHERS.values(), ids=OTHERS)
def test_what_no_pool_can_take_is_converted_by_both_with_a_warning(
    lent_control_plane: ControlPlane, replicas: list[Webhook], manifest: Object
) -> None:
    older, newer = (say(each, lent_control_plane, manifest) for each in replicas)
    assert older == newer
    assert older.changed
    assert "NEU228" in older.codes


def test_the_answers_stay_when_the_node_goes(
    lent_control_plane: ControlPlane, api: Api, replicas: list[Webhook]
) -> None:
    api.delete("Node", "of-pool")
    eventually("the Node to be gone", lambda: all(each.cached("nodes") == 0 for each in replicas))
    for manifest in LEFT.values():
        assert [say(each, lent_control_plane, manifest).codes for each in replicas] == [("NEU903",)] * 2


def test_a_static_pool_converts(lent_control_plane: ControlPlane, api: Api, replicas: list[Webhook]) -> None:
    fixed = node_pool("fixed", "inf2.xlarge", labels={"team/fixed": "yes"}, replicas=2)
    api.request("POST", POOLS, json=fixed)
    eventually("both to know it", lambda: all(each.cached("nodepools.karpenter.sh") == 2 for each in replicas))
    for manifest in (wanting(1, **{"team/fixed": "yes"}), wanting(1, **{INSTANCE_TYPE: "inf2.xlarge"}), wanting(1)):
        older, newer = (say(each, lent_control_plane, manifest) for each in replicas)
        assert (older, older.changed) == (newer, True)
        assert "NEU903" not in older.codes
    api.request("DELETE", f"{POOLS}/fixed")
    eventually("both to forget it", lambda: all(each.cached("nodepools.karpenter.sh") == 1 for each in replicas))


def test_the_api_server_stores_the_pod_as_it_is(api: Api, replicas: list[Webhook]) -> None:
    for configuration in replicas[0].configurations():
        api.create(configuration)
    manifest = LEFT["the pool's own label"]

    def left() -> bool:
        return any("NEU903" in each for each in api.create(manifest, "default", dry_run=True).warnings)

    eventually("the API server to call the webhook", left)
    stored = api.create(manifest, "default").body
    assert not is_converted(stored)
    assert stored["spec"]["containers"][0]["resources"]["limits"] == {"aws.amazon.com/neuron": "4"}
    api.delete("Pod", "p", "default", force=True)
    replicas[0].uninstall()


def test_an_autoscaler_that_resizes_pods_in_place_is_said(api: Api, replicas: list[Webhook]) -> None:
    named = {"targetRef": {"kind": "Deployment", "name": "serve"}, "updatePolicy": {"updateMode": "InPlaceOrRecreate"}}
    metadata = {"name": "sizes"}
    scaler = {
        "apiVersion": "autoscaling.k8s.io/v1",
        "kind": "VerticalPodAutoscaler",
        "metadata": metadata,
        "spec": named,
    }
    api.request("POST", AUTOSCALERS, json=scaler)
    replica = replicas[0]
    eventually("the replica to know it", lambda: replica.cached("verticalpodautoscalers.autoscaling.k8s.io") == 1)
    installed = [*replica.configurations(), *replica.configurations("validating.yaml")]
    for configuration in installed:
        api.create(configuration)
    converted = pod("p", container(neuron=1), nodeSelector={INSTANCE_TYPE: "trn2.48xlarge"})
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "serve-7d9", "uid": "1", "controller": True}
    made = {**converted, "metadata": {**converted["metadata"], "labels": {"pod-template-hash": "7d9"}}}
    made["metadata"]["ownerReferences"] = [owner]
    template = {"metadata": {"labels": {"app": "serve"}}, "spec": converted["spec"]}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "serve"},
        "spec": {"selector": {"matchLabels": {"app": "serve"}}, "template": template},
    }

    def said(manifest: Object) -> bool:
        warnings = api.create(manifest, "default", dry_run=True).warnings
        return any("NEU233" in each and "VerticalPodAutoscaler sizes" in each for each in warnings)

    eventually("the API server to call the webhook", lambda: said(deployment))
    assert said(made)
    assert not said(converted), "no autoscaler is for the pod alone"
    api.request("DELETE", f"{AUTOSCALERS}/sizes")
    eventually("the warning to go", lambda: not said(deployment))
    for configuration in installed:
        api.delete(configuration["kind"], configuration["metadata"]["name"])


def test_pools_that_may_not_be_listed_are_said(
    lent_control_plane: ControlPlane, api: Api, kubeconfig: Path, replicas: list[Webhook]
) -> None:
    role = api.get("ClusterRole", ROLE)
    kept = [each for each in role["rules"] if "nodepools" not in each.get("resources", ())]
    assert len(kept) < len(role["rules"])
    api.merge("ClusterRole", ROLE, {"rules": kept})
    replica = Webhook(lent_control_plane, kubeconfig)
    try:
        replica.start()
        said = say(replica, lent_control_plane, LEFT["a type without nodes"])
    finally:
        replica.stop()
    assert said.changed
    assert "NEU905" in said.codes
    assert "nodepools" in said.text
