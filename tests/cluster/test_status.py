"""`neuron-dra status` and Events about refusals, on a real control plane."""

import base64
import dataclasses
import datetime as dt
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from certs import issue
from tests.cluster.api import Api, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.kubectl import Kubectl
from tests.cluster.manifests import container, pod, workload
from tests.cluster.nodes import INSTANCE_TYPE, Fleet, device_class
from tests.cluster.processes import eventually
from tests.cluster.webhooks import CONFIGURATION_KINDS, MANIFESTS, Webhook, install_rbac, load
from webhook.cluster.replicas import ReplicaStatus, lease_body

TRN1 = {INSTANCE_TYPE: "trn1.32xlarge"}
NAMESPACE = "neuron-dra"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
REFUSED = ("-o", "json", "--field-selector", "reason=ConversionRefused")


@dataclasses.dataclass(frozen=True)
class Status:
    """How the command ended, and what it said."""

    code: int
    checks: list[dict[str, str]]
    stderr: str

    def texts(self, verdict: str) -> list[str]:
        return [line["text"] for line in self.checks if line["verdict"] == verdict]

    def of(self, check: str) -> set[str]:
        """Verdicts of one check."""
        return {line["verdict"] for line in self.checks if line["check"] == check}


def status(kubeconfig: Path, *arguments: str) -> Status:
    binary = Path(sys.executable).parent / "neuron-dra"
    argv = [str(binary), "status", f"--kubeconfig={kubeconfig}", "-o", "json", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    checks = json.loads(done.stdout)["checks"] if done.stdout else []
    return Status(done.returncode, checks, done.stderr)


class Installation:
    """The shipped manifests, applied as they are, on nodes without a kubelet."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.kubectl = plane.kubectl().within(NAMESPACE)

    def apply(self) -> None:
        install_rbac(self.plane)
        now = dt.datetime.now(dt.UTC)
        authority = issue.make_authority(NAMESPACE, now=now, lifetime=dt.timedelta(days=30))
        host = f"{NAMESPACE}.{NAMESPACE}.svc"
        leaf = issue.issue_serving(authority, host, [host], now=now, lifetime=dt.timedelta(days=20))
        data = {"tls.crt": leaf.certificate_pem, "tls.key": leaf.key_pem}
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "neuron-dra-tls"},
            "type": "Opaque",
            "data": {name: base64.b64encode(content).decode() for name, content in data.items()},
        }
        self.kubectl.feed("apply", secret)
        bundle = base64.b64encode(authority.certificate_pem).decode()
        documents = [*load(MANIFESTS / "webhook.yaml"), *load(MANIFESTS / "validating.yaml")]
        for document in documents:
            for entry in document.get("webhooks", ()):
                entry["clientConfig"]["caBundle"] = bundle
        # Configurations last: the webhook's own pods are made before them.
        for document in sorted(documents, key=lambda each: each["kind"] in CONFIGURATION_KINDS):
            if document["kind"] not in (*CONFIGURATION_KINDS, "Secret"):
                assert self.kubectl.feed("apply", document).ok
        self.make_ready()
        for document in documents:
            if document["kind"] in CONFIGURATION_KINDS:
                assert self.kubectl.feed("apply", document).ok

    def make_ready(self) -> None:
        """Say of its pods what a kubelet would; return when the Deployment is available."""

        def attempt() -> bool:
            for number, each in enumerate(self.pods(), start=1):
                assert each["spec"].get("nodeName"), f"{each['metadata']['name']} is not scheduled"
                condition = {"type": "Ready", "status": "True"}
                said = {"phase": "Running", "podIP": f"10.1.0.{number}", "podIPs": [{"ip": f"10.1.0.{number}"}]}
                patch = {"status": {**said, "conditions": [condition]}}
                self.plane.admin.merge("Pod", each["metadata"]["name"], patch, NAMESPACE, "status")
            found = self.plane.admin.get("Deployment", NAMESPACE, NAMESPACE)
            return bool(found.get("status", {}).get("availableReplicas") == 2)

        eventually("the Deployment to be available", attempt, timeout=60)

    def pods(self) -> list[Object]:
        return self.plane.admin.list("Pod", NAMESPACE)

    def report(self) -> None:
        """What each replica would write into its Lease."""
        for each in self.pods():
            said = ReplicaStatus(version="0.1.0", mode="shadow", ready=True)
            body = lease_body(each["metadata"]["name"], said, dt.datetime.now(dt.UTC))
            self.plane.admin.request("POST", LEASES, json=body)


@pytest.fixture
def installation(own_control_plane: ControlPlane) -> Installation:
    """In a cluster of its own: the test breaks it."""
    own_control_plane.admin.create(device_class())
    Fleet(own_control_plane.admin, "node").add("trn1.32xlarge")
    made = Installation(own_control_plane)
    made.apply()
    return made


def test_an_installation_is_well_until_something_is_broken(installation: Installation) -> None:
    installation.report()
    api, kubeconfig = installation.plane.admin, installation.plane.admin_kubeconfig

    def well() -> Status:
        found = status(kubeconfig)
        assert found.code == 0, found
        return found

    found = eventually("an installation that is well", well, timeout=60)
    assert not found.texts("unknown"), found
    assert "Deployment neuron-dra: 2 of 2 available." in found.texts("well")
    assert "Service neuron-dra/neuron-dra: 2 ready endpoints." in found.texts("well")
    assert "system:serviceaccount:neuron-dra:neuron-dra has all permissions that it needs." in found.texts("well")
    assert any(text.startswith("16 devices on 1 node (1 trn1.32xlarge") for text in found.texts("well"))

    api.merge("ClusterRole", NAMESPACE, {"rules": []})
    mutating = api.get("MutatingWebhookConfiguration", NAMESPACE)
    mutating["webhooks"][0]["clientConfig"]["service"]["name"] = "neurondra"
    api.merge("MutatingWebhookConfiguration", NAMESPACE, {"webhooks": mutating["webhooks"]})
    broken = status(kubeconfig)
    assert broken.code == 1
    assert any("calls Service neuron-dra/neurondra" in text for text in broken.texts("wrong"))
    rules = [line["fix"] for line in broken.checks if line["check"] == "permissions"]
    assert (
        "Add this rule to its ClusterRole: - {apiGroups: [resource.k8s.io], resources: [resourceclaimtemplates], "
        "verbs: [get, list, watch, create, patch]}" in rules
    )


def test_who_may_read_nothing_is_told_which_rules_would_help(control_plane: ControlPlane) -> None:
    found = status(control_plane.user_kubeconfig("curious"))
    assert found.code == 2
    assert found.of("API server") == {"well"}
    fixes = [line["fix"] for line in found.checks if line["verdict"] == "unknown"]
    assert all(fix.startswith("Add this rule to your Role or ClusterRole: ") for fix in fixes), fixes
    assert 'Add this rule to your Role or ClusterRole: - {apiGroups: [""], resources: [nodes], verbs: [list]}' in fixes
    assert (
        "Add this rule to your Role or ClusterRole: - {apiGroups: [authorization.k8s.io], "
        "resources: [subjectaccessreviews], verbs: [create]}" in fixes
    )


def test_a_cluster_that_does_not_accept_us_cannot_be_looked_at(control_plane: ControlPlane) -> None:
    found = status(control_plane.token_kubeconfig("stranger", "no-token"))
    assert found.code == 2
    assert "the API server does not accept these credentials." in found.stderr


# --- Events about refusals ----------------------------------------------------------------------------------------


def refused(kubectl: Kubectl) -> list[Any]:
    found: list[Any] = kubectl.get("events.events.k8s.io", *REFUSED[2:])["items"]
    return found


@pytest.mark.usefixtures("webhook")
def test_a_refused_replica_set_has_an_event_that_says_why(kubectl: Kubectl, api: Api, namespace: str) -> None:
    seven = pod("seven", container(neuron=7), nodeSelector=TRN1)
    api.create(workload("ReplicaSet", "train", seven), namespace)
    (event,) = eventually("the Event", lambda: refused(kubectl))
    assert (event["regarding"]["kind"], event["regarding"]["name"]) == ("ReplicaSet", "train")
    assert "does not support requests for device: 7" in event["note"]
    assert event["type"] == "Warning"
    # Where users look.
    assert "ConversionRefused" in kubectl.must("describe", "replicaset", "train").stdout
    assert "NEU105" in kubectl.must("get", "events").stdout


@pytest.mark.usefixtures("webhook")
def test_a_refused_pod_without_a_controller_has_an_event_about_its_namespace(kubectl: Kubectl, namespace: str) -> None:
    assert not kubectl.feed("create", pod("seven", container(neuron=7), nodeSelector=TRN1)).ok
    (event,) = eventually("the Event", lambda: refused(kubectl))
    assert (event["regarding"]["kind"], event["regarding"]["name"]) == ("Namespace", namespace)
    assert event["note"].startswith("Pod seven: NEU105: ")


@pytest.mark.usefixtures("webhook")
def test_repetitions_become_a_series(webhook: Webhook, kubectl: Kubectl) -> None:
    for _ in range(3):
        kubectl.feed("create", pod("seven", container(neuron=7), nodeSelector=TRN1))

    def series() -> int:
        return sum(int(event.get("series", {}).get("count", 0)) for event in refused(kubectl))

    eventually("a series of three", lambda: series() == 3, timeout=90)


def test_a_dry_run_makes_no_event(webhook: Webhook, kubectl: Kubectl) -> None:
    dry = kubectl.feed("create", pod("dry", container(neuron=7), nodeSelector=TRN1), flags=("--dry-run=server",))
    assert "NEU105" in dry.stderr
    # One that does make an Event: what came before it would be there by then.
    kubectl.feed("create", pod("wet", container(neuron=7), nodeSelector=TRN1))
    found = eventually("the Event", lambda: refused(kubectl))
    assert [event["note"].partition(":")[0] for event in found] == ["Pod wet"], webhook.tail()
