"""`neuron-dra status` of a cluster that tells it little, and Events about refusals, on a real control plane."""

from typing import Any

import pytest

from tests.cluster.api import Api
from tests.cluster.controlplane import ControlPlane
from tests.cluster.kubectl import Kubectl
from tests.cluster.manifests import container, pod, workload
from tests.cluster.nodes import INSTANCE_TYPE
from tests.cluster.processes import eventually
from tests.cluster.statuses import status
from tests.cluster.webhooks import Webhook

TRN1 = {INSTANCE_TYPE: "trn1.32xlarge"}
REFUSED = ("-o", "json", "--field-selector", "reason=ConversionRefused")


def test_a_user_without_permissions_gets_the_missing_rules(control_plane: ControlPlane) -> None:
    found = status(control_plane.user_kubeconfig("curious"))
    assert found.code == 2
    # Known faults of the version are notes.
    assert found.of("API server") - {"note"} == {"well"}
    fixes = [line["fix"] for line in found.checks if line["verdict"] == "unknown"]
    assert all(fix.startswith("Add this rule to your Role or ClusterRole: ") for fix in fixes), fixes
    assert 'Add this rule to your Role or ClusterRole: - {apiGroups: [""], resources: [nodes], verbs: [list]}' in fixes
    assert (
        "Add this rule to your Role or ClusterRole: - {apiGroups: [authorization.k8s.io], "
        "resources: [subjectaccessreviews], verbs: [create]}" in fixes
    )


def test_refused_credentials_exit_with_2(control_plane: ControlPlane) -> None:
    found = status(control_plane.token_kubeconfig("stranger", "no-token"))
    assert found.code == 2
    assert "the API server does not accept these credentials: renew them." in found.stderr


# --- Events about refusals ----------------------------------------------------------------------------------------


def refused_events(kubectl: Kubectl) -> list[Any]:
    found: list[Any] = kubectl.get("events.events.k8s.io", *REFUSED[2:])["items"]
    return found


@pytest.mark.usefixtures("webhook")
def test_a_denied_replica_set_has_an_event_with_the_cause(kubectl: Kubectl, api: Api, namespace: str) -> None:
    seven = pod("seven", container(neuron=7), nodeSelector=TRN1)
    api.create(workload("ReplicaSet", "train", seven), namespace)
    (event,) = eventually("the Event", lambda: refused_events(kubectl))
    assert (event["regarding"]["kind"], event["regarding"]["name"]) == ("ReplicaSet", "train")
    assert "does not support requests for device: 7" in event["note"]
    assert event["type"] == "Warning"
    # Where users look.
    assert "ConversionRefused" in kubectl.must("describe", "replicaset", "train").stdout
    assert "NEU105" in kubectl.must("get", "events").stdout


@pytest.mark.usefixtures("webhook")
def test_a_denied_pod_without_a_controller_has_an_event_about_its_namespace(kubectl: Kubectl, namespace: str) -> None:
    assert not kubectl.feed("create", pod("seven", container(neuron=7), nodeSelector=TRN1)).ok
    (event,) = eventually("the Event", lambda: refused_events(kubectl))
    assert (event["regarding"]["kind"], event["regarding"]["name"]) == ("Namespace", namespace)
    assert event["note"].startswith("Pod seven: NEU105: ")


@pytest.mark.usefixtures("webhook")
def test_repetitions_become_a_series(webhook: Webhook, kubectl: Kubectl) -> None:
    for _ in range(3):
        kubectl.feed("create", pod("seven", container(neuron=7), nodeSelector=TRN1))

    def series() -> int:
        return sum(int(event.get("series", {}).get("count", 0)) for event in refused_events(kubectl))

    eventually("a series of three", lambda: series() == 3, timeout=90)


def test_a_dry_run_makes_no_event(webhook: Webhook, kubectl: Kubectl) -> None:
    dry = kubectl.feed("create", pod("dry", container(neuron=7), nodeSelector=TRN1), flags=("--dry-run=server",))
    assert "NEU105" in dry.stderr
    # One that does make an Event: what came before it would be there by then.
    kubectl.feed("create", pod("wet", container(neuron=7), nodeSelector=TRN1))
    found = eventually("the Event", lambda: refused_events(kubectl))
    assert [event["note"].partition(":")[0] for event in found] == ["Pod wet"], webhook.tail()
