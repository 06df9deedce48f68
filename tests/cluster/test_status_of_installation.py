"""`neuron-dra status` of what the shipped manifests install, first as they are and then broken."""

import base64
import dataclasses
import datetime as dt
import operator
from collections.abc import Iterator

import pytest

from certs import material
from cluster.kinds.replicas import ReplicaStatus, lease_body
from tests.cluster.api import Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.nodes import Fleet
from tests.cluster.processes import eventually
from tests.cluster.statuses import Status, status
from tests.cluster.webhooks import CONFIGURATION_KINDS, MANIFESTS, install_rbac, load

NAMESPACE = "neuron-dra"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"


class Installation:
    """The shipped manifests, applied as they are, on nodes without a kubelet."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.kubectl = plane.kubectl().within(NAMESPACE)

    def apply(self) -> None:
        install_rbac(self.plane)
        now = dt.datetime.now(dt.UTC)
        authority = material.make_authority(NAMESPACE, now=now, lifetime=dt.timedelta(days=30))
        host = f"{NAMESPACE}.{NAMESPACE}.svc"
        leaf = material.issue_serving(authority, host, [host], now=now, lifetime=dt.timedelta(days=20))
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
def installation(lent_control_plane: ControlPlane) -> Iterator[Installation]:
    Fleet(lent_control_plane.admin, "node").add("trn1.32xlarge")
    made = Installation(lent_control_plane)
    made.apply()
    role = lent_control_plane.admin.get("ClusterRole", NAMESPACE)
    yield made
    # The test takes its rules away.
    lent_control_plane.admin.merge("ClusterRole", NAMESPACE, {"rules": role["rules"]})


def test_status_reports_each_fault_of_an_installation(installation: Installation) -> None:
    installation.report()
    api, kubeconfig = installation.plane.admin, installation.plane.admin_kubeconfig

    def reported() -> Status:
        """Without the check that calls the webhook: no process listens here."""
        found = status(kubeconfig)
        return dataclasses.replace(found, checks=[each for each in found.checks if each["check"] != "admission"])

    def well() -> Status:
        found = reported()
        assert not found.texts("wrong"), found
        return found

    found = eventually("an installation that is well", well, timeout=60)
    assert not found.texts("unknown"), found
    assert "Deployment neuron-dra: 2 of 2 available." in found.texts("well")
    assert "Service neuron-dra/neuron-dra: 2 ready endpoints." in found.texts("well")
    assert "system:serviceaccount:neuron-dra:neuron-dra has all permissions that it needs." in found.texts("well")
    assert any(text.startswith("16 devices on 1 node (1 trn1.32xlarge") for text in found.texts("well"))

    entries = api.get("MutatingWebhookConfiguration", NAMESPACE)["webhooks"]
    entry = entries[0]
    assert entry["matchConditions"], entry
    nothing = {**entry, "objectSelector": {"matchLabels": {"no": "pod"}}}
    api.merge("MutatingWebhookConfiguration", NAMESPACE, {"webhooks": [nothing]})
    edited = reported()
    assert edited.code == 1
    assert edited.texts("wrong") == [
        *(
            f"MutatingWebhookConfiguration neuron-dra has no entry {each['name']}."
            for each in sorted(entries[1:], key=operator.itemgetter("name"))
        ),
        'mutate.neuron.aws.com: objectSelector is \'{"matchLabels": {"no": "pod"}}\', in the release empty: what '
        "does not "
        "match is not sent.",
    ]
    api.merge("MutatingWebhookConfiguration", NAMESPACE, {"webhooks": entries})

    api.merge("ClusterRole", NAMESPACE, {"rules": []})
    mutating = api.get("MutatingWebhookConfiguration", NAMESPACE)
    mutating["webhooks"][0]["clientConfig"]["service"]["name"] = "neurondra"
    api.merge("MutatingWebhookConfiguration", NAMESPACE, {"webhooks": mutating["webhooks"]})
    broken = reported()
    assert broken.code == 1
    assert any("calls Service neuron-dra/neurondra" in text for text in broken.texts("wrong"))
    rules = [line["fix"] for line in broken.checks if line["check"] == "permissions"]
    assert (
        "Add this rule to its ClusterRole: - {apiGroups: [resource.k8s.io], resources: [resourceclaimtemplates], "
        "verbs: [get, list, watch, create, patch]}" in rules
    )
