"""Converted pods in queues of Kueue's own manager: what it charges, what it refuses, and what we say of it."""

import dataclasses
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import kueue
from tests.cluster.api import Api, Object
from tests.cluster.controlplane import Assets, ControlPlane
from tests.cluster.explaining import Explain
from tests.cluster.kueue import GATE, IN_QUEUE, Kueue, charged, waits_for
from tests.cluster.manifests import (
    LNC,
    NEURON,
    ULTRASERVER_MODE,
    claim_template,
    container,
    devices_request,
    pod,
    scheduled_devices,
    wait_scheduled,
    workload,
)
from tests.cluster.nodes import INSTANCE_TYPE, Fleet
from tests.cluster.planes import started
from tests.cluster.processes import eventually
from tests.cluster.services import host_address
from tests.cluster.statuses import status
from tests.cluster.test_kueue import BLOCKS
from tests.cluster.test_report import Command
from tests.cluster.test_types import generated
from tests.cluster.webhooks import Webhook, install_rbac

pytestmark = [
    pytest.mark.skipif(not kueue.FOLDER, reason="NEURON_DRA_KUEUE names no folder with Kueue's manager"),
    pytest.mark.skipif(host_address() is None, reason="this host has no address but loopback"),
    pytest.mark.needs("counters", "shares"),
    pytest.mark.in_order,
]

DEVICES, CORES = (yaml.safe_load(block) for block in BLOCKS)
EVERY_DEVICE = json.loads(json.dumps(CORES))
EVERY_DEVICE["resources"]["deviceClassMappings"][0]["sources"][0]["capacity"]["deviceSelector"] = {
    "cel": {"expression": "true"}
}
UNITS = "neuron.aws.com/neuroncores"
TRN2, TRN2U, INF2 = ({INSTANCE_TYPE: f"{name}.48xlarge"} for name in ("trn2", "trn2u", "inf2"))
WHOLE_NODE = pod("p", container(neuron=16), annotations={ULTRASERVER_MODE: "4"})
_NUMBERS = itertools.count(1)


@dataclasses.dataclass
class Site:
    """A control plane with both webhooks and a node of each type."""

    plane: ControlPlane
    kueue: Kueue
    fleet: Fleet

    @property
    def api(self) -> Api:
        return self.plane.admin

    def namespace(self, **quota: int) -> str:
        """A new namespace with a queue that covers these resources; all of ours, and enough, if none is given."""
        name = f"team-{next(_NUMBERS)}"
        self.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        self.plane.wait_namespace_usable(name)
        kueue.add_queue(self.api, name, **(quota or {NEURON: 1000, UNITS: 1000}))
        return name

    def create(self, made: Object, namespace: str = "") -> str:
        """Create an object in the queue of a namespace; returns that."""
        namespace = namespace or self.namespace()
        metadata = {**made["metadata"], "labels": {**made["metadata"].get("labels", {}), **IN_QUEUE}}
        self.api.create({**made, "metadata": metadata}, namespace)
        return namespace

    def charge(self, made: Object) -> dict[str, int]:
        """What Kueue charges for an object, which gives its devices back."""
        namespace = self.create(made)
        try:
            found = charged(self.api, namespace, made["metadata"]["name"])
            if made["kind"] == "Pod":
                wait_scheduled(self.api, namespace, made["metadata"]["name"])
        finally:
            self.clear(namespace)
        return found

    def refusal(self, made: Object) -> str:
        """Why a pod waits, with its gate."""
        namespace, name = self.create(made), made["metadata"]["name"]
        message = eventually("Kueue to say why", lambda: waits_for(self.api, namespace, name))
        assert self.gated(namespace, name)
        self.clear(namespace)
        return message

    def gated(self, namespace: str, name: str) -> bool:
        found = self.api.get("Pod", name, namespace)["spec"]
        return GATE in [gate["name"] for gate in found.get("schedulingGates", [])]

    def clear(self, namespace: str) -> None:
        for kind in ("Deployment", "StatefulSet", "Job", "ReplicaSet"):
            self.api.delete_all(kind, namespace)
        self.api.delete_all("Pod", namespace, force=True)
        self.api.delete_all("ResourceClaim", namespace)


@pytest.fixture(scope="module")
def site(assets: Assets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    plane = started(assets, tmp_path_factory.mktemp("kueue-control-plane"))
    manager = Kueue(plane, Path(kueue.FOLDER), host_address() or "")
    webhook = Webhook(plane, install_rbac(plane))
    try:
        manager.install()
        manager.restart(DEVICES)
        webhook.start()
        webhook.install()
        fleet = Fleet(plane.admin, "node")
        for (instance_type,) in (each.values() for each in (TRN2, TRN2U, INF2)):
            publish(fleet, instance_type)
        yield Site(plane, manager, fleet)
    finally:
        webhook.stop()
        manager.stop()
        plane.stop()


def publish(fleet: Fleet, instance_type: str) -> None:
    fields = ("devices", "sharedCounters")
    contents = [{key: each["spec"][key] for key in fields if key in each["spec"]} for each in generated(instance_type)]
    fleet.add_publishing(instance_type, contents)


def using(name: str, template: str = "mine", **entry: str) -> Object:
    """A pod with a claim of its own."""
    claims = [{"name": "x", **(entry or {"resourceClaimTemplateName": template})}]
    return pod(name, container(resources={"claims": [{"name": "x"}]}), resourceClaims=claims)


def controlled(kind: str, count: int, selector: dict[str, str], **spec: Any) -> Object:
    return workload(kind, "w", pod("p", container(neuron=count), nodeSelector=selector), **spec)


# --- devices -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [kueue.MUTATING, "zz-mutating-webhook-configuration"], ids=["before-ours", "after-ours"]
)
def test_pods_are_charged_once_and_wait_for_the_quota(site: Site, name: str, tmp_path: Path) -> None:
    """The API server calls mutating webhooks in the order of the names of their configurations."""
    api = site.api
    found = api.get("MutatingWebhookConfiguration", kueue.MUTATING)
    api.delete("MutatingWebhookConfiguration", kueue.MUTATING)
    api.create({**found, "metadata": {"name": name}})
    namespace = site.namespace(**{NEURON: 8})
    try:
        eventually(
            "Kueue's webhook",
            lambda: api.create(in_queue("x", 1), namespace, dry_run=True).body["spec"].get("schedulingGates"),
        )
        for pod_name, count in (("one", 1), ("four", 4)):
            api.create(in_queue(pod_name, count), namespace)
            assert charged(api, namespace, pod_name) == {NEURON: count}
            assert len(scheduled_devices(api, namespace, pod_name)) == count
        api.create(in_queue("later", 4), namespace)
        why = eventually("Kueue to say why", lambda: waits_for(api, namespace, "later"))
        assert f"insufficient unused quota for {NEURON}" in why
        assert why.endswith(" 1 more needed")
        assert site.gated(namespace, "later")
        diagnosis = Explain(site.plane, namespace, tmp_path).pod("later")["diagnosis"]
        assert (diagnosis["case"], why in diagnosis["evidence"]) == ("gated", True)
        api.delete("Pod", "four", namespace, force=True)
        assert charged(api, namespace, "later") == {NEURON: 4}
        assert len(scheduled_devices(api, namespace, "later")) == 4
    finally:
        api.delete("MutatingWebhookConfiguration", name)
        api.create({**found, "metadata": {"name": kueue.MUTATING}})
        site.clear(namespace)


def in_queue(name: str, count: int) -> Object:
    return pod(name, container(neuron=count), labels=IN_QUEUE, nodeSelector=TRN2)


@pytest.mark.parametrize(
    ("made", "devices"),
    [
        (pod("p", container(neuron=16), nodeSelector=TRN2), 16),
        (pod("p", container("a", neuron=4), container("b", neuron=1), nodeSelector=TRN2), 5),
        (pod("p", container(neuron=4), nodeSelector=TRN2, annotations={LNC: "1"}), 4),
        (pod("p", container(neuroncore=8), nodeSelector=TRN2), 2),
        (WHOLE_NODE, 1),
        (controlled("Job", 4, TRN2, completions=2, parallelism=2), 8),
        (controlled("Job", 4, INF2), 4),
        (controlled("StatefulSet", 4, INF2, replicas=2), 8),
    ],
    ids=["all", "two-containers", "lnc", "cores", "whole-node", "job", "job-with-alternatives", "stateful-set"],
)
def test_what_is_charged(site: Site, made: Object, devices: int) -> None:
    assert site.charge(made) == {NEURON: devices}


def test_each_pod_of_a_deployment_is_charged(site: Site) -> None:
    namespace = site.create(controlled("Deployment", 4, TRN2, replicas=2))

    def pods() -> list[str]:
        names = [each["metadata"]["name"] for each in site.api.list("Pod", namespace)]
        return names if len(names) == 2 else []

    for name in eventually("two pods", pods):
        assert charged(site.api, namespace, name) == {NEURON: 4}
        assert len(scheduled_devices(site.api, namespace, name)) == 4
    site.clear(namespace)


def test_the_default_of_a_limit_range_is_charged_beside_the_claim(site: Site) -> None:
    namespace = site.namespace()
    entry = {"type": "Container", "default": {NEURON: "4"}, "defaultRequest": {NEURON: "4"}}
    limits = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "l"}, "spec": {"limits": [entry]}}
    site.api.create(limits, namespace)
    site.create(pod("p", container(neuron=4), nodeSelector=TRN2), namespace)
    assert charged(site.api, namespace, "p") == {NEURON: 8}
    site.create(controlled("Job", 4, TRN2), namespace)
    assert charged(site.api, namespace, "w") == {NEURON: 4}
    site.clear(namespace)


def test_alternatives_are_refused_and_named(site: Site) -> None:
    assert "FirstAvailable device selection is not supported" in site.refusal(pod("p", container(neuron=4)))
    namespace = site.create(controlled("Deployment", 4, INF2, replicas=0))
    [said] = obstacles(site, namespace)
    assert said.startswith(f"Kueue admits no pod in queue '{kueue.QUEUE}' whose claim has alternatives")
    assert obstacles(site, site.create(controlled("Deployment", 1, INF2, replicas=0))) == []
    assert obstacles(site, site.create(controlled("StatefulSet", 4, INF2, replicas=0))) == []


def test_the_label_of_a_jobs_pod_template_alone_counts_each_pod(site: Site) -> None:
    namespace = site.namespace()
    made = controlled("Job", 4, INF2)
    # Without labels of its own, it would get those of the template.
    made["metadata"]["labels"] = {"team": "a"}
    metadata = made["spec"]["template"]["metadata"]
    metadata["labels"] = {**metadata.get("labels", {}), **IN_QUEUE}
    site.api.create(made, namespace)
    found = eventually("the Job's pod", lambda: site.api.list("Pod", namespace))[0]
    assert found["metadata"]["labels"]["kueue.x-k8s.io/managed"] == "true"
    message = eventually("Kueue to say why", lambda: waits_for(site.api, namespace, found["metadata"]["name"]))
    assert "FirstAvailable device selection is not supported" in message
    [said] = obstacles(site, namespace)
    assert said.startswith(f"Kueue admits no pod in queue '{kueue.QUEUE}' whose claim has alternatives")
    site.clear(namespace)


def obstacles(site: Site, namespace: str) -> list[str]:
    """NEU232 of the one workload of a namespace."""
    (made,) = Command(site.plane.admin_kubeconfig).json("-n", namespace)["workloads"]
    return [each["message"] for each in made["obstacles"] if each["code"] == "NEU232"]


def test_a_claim_by_name_is_refused(site: Site) -> None:
    made = using("p", resourceClaimName="mine")
    assert site.refusal(made) == "KueueDRAIntegration feature does not support use of resource claims"


def test_a_pod_waits_until_a_node_publishes_the_devices(site: Site) -> None:
    trn1 = {INSTANCE_TYPE: "trn1.32xlarge"}
    namespace = site.create(pod("p", container(neuron=4), nodeSelector=trn1, annotations={}))
    selective = claim_template("mine", {"devices": {"requests": [only("trn1.32xlarge")]}})
    site.api.create(selective, namespace)
    site.create(using("q"), namespace)
    eventually("Kueue to say why", lambda: "0 device(s) match" in waits_for(site.api, namespace, "q"))
    assert site.gated(namespace, "q")
    publish(site.fleet, "trn1.32xlarge")
    assert charged(site.api, namespace, "q") == {NEURON: 1}
    wait_scheduled(site.api, namespace, "q")
    site.clear(namespace)


def only(instance_type: str) -> Object:
    attributes = 'device.attributes["neuron.aws.com"]'
    return devices_request("r", selectors=(f'{attributes}.?instanceType.orValue("") == "{instance_type}"',))


def test_a_quota_of_devices_counts_the_claims_of_pods_that_wait(site: Site) -> None:
    namespace = site.namespace(**{NEURON: 0})
    key = "neuron.aws.com.deviceclass.resource.k8s.io/devices"
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {key: "9"}}}
    site.api.create(quota, namespace)
    site.create(pod("p", container(neuron=4), nodeSelector=TRN2), namespace)
    used = eventually("the quota", lambda: site.api.get("ResourceQuota", "q", namespace).get("status", {}).get("used"))
    eventually("the claim", lambda: site.api.get("ResourceQuota", "q", namespace)["status"]["used"][key] == "4")
    assert site.gated(namespace, "p"), used
    site.clear(namespace)


# --- other Configurations ------------------------------------------------------------------------------------------


def kueue_texts(site: Site) -> list[str]:
    """What `status` says of Kueue."""
    return [line["text"] for line in status(site.plane.admin_kubeconfig).checks if line["check"] == "Kueue"]


def test_without_the_mapping_nothing_is_admitted(site: Site) -> None:
    site.kueue.restart({key: DEVICES[key] for key in ("apiVersion", "kind")})
    message = site.refusal(pod("p", container(neuron=1), nodeSelector=TRN2))
    assert "DeviceClass neuron.aws.com is not mapped" in message
    [text] = kueue_texts(site)
    assert text.endswith("has no mapping for neuron.aws.com: it admits no workload with such claims.")


def test_cores_are_charged_by_the_capacity_of_the_devices(site: Site) -> None:
    site.kueue.restart(CORES)
    [text] = kueue_texts(site)
    assert text.endswith(f"counts claims of neuron.aws.com as {UNITS} by capacity.")
    for count, cores in ((1, 8), (4, 32)):
        assert site.charge(pod("p", container(neuron=count), nodeSelector=TRN2)) == {UNITS: cores}
    assert site.charge(controlled("Job", 4, TRN2)) == {NEURON: 4}
    assert "0 device(s) match but 1 requested" in site.refusal(WHOLE_NODE)
    exactly = devices_request("r")["exactly"] | {"capacity": {"requests": {"neuroncores": "1"}}}
    assert own_claim(site, {"name": "r", "exactly": exactly}) == {UNITS: 1}


def own_claim(site: Site, request: Object) -> dict[str, int]:
    """What is charged for a claim of a user."""
    namespace = site.namespace()
    site.api.create(claim_template("mine", {"devices": {"requests": [request]}}), namespace)
    site.create(using("p"), namespace)
    found = charged(site.api, namespace, "p")
    site.clear(namespace)
    return found


def test_a_source_for_every_device_charges_whole_nodes_and_claims_without_selectors(site: Site) -> None:
    site.kueue.restart(EVERY_DEVICE)
    assert site.charge(WHOLE_NODE) == {UNITS: 128}
    assert site.charge(pod("p", container(neuron=1), nodeSelector=TRN2)) == {UNITS: 8}
    assert own_claim(site, devices_request("r")) == {UNITS: 128}
