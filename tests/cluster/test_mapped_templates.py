"""Templates of operators on a real API server: named, carried by the policy, changed, applied again."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.api import Api, Object
from tests.cluster.kubectl import Kubectl
from tests.cluster.manifests import container, is_converted, pod
from tests.cluster.test_reapply import VERBS, essence, replaceable
from tests.cluster.webhooks import Webhook

POLICIES = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ConversionPolicy
metadata: {name: mapped}
spec:
  order: 1
  match: {objectSelector: {matchLabels: {policy: mapped}}}
  families: [trn2]
  templates:
  - {demand: {devices: 16}, name: xl-trn2}
  - demand: {devices: 8}
    template:
      metadata: {name: eight-trn2, labels: {team: a}}
      spec:
        spec:
          devices:
            requests: [{name: devices, exactly: {deviceClassName: neuron.aws.com, count: 8}}]
            constraints: [{matchAttribute: resource.aws.com/devicegroup8_id}]
"""
LABELS = {"policy": "mapped"}


def group_template(name: str, count: int) -> Object:
    exactly = {"deviceClassName": "neuron.aws.com", "count": count, "allocationMode": "ExactCount"}
    constraint = {"matchAttribute": f"resource.aws.com/devicegroup{count}_id"}
    devices = {"requests": [{"name": "neurons", "exactly": exactly}], "constraints": [constraint]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": devices}},
    }


def whole(name: str = "whole") -> Object:
    return replaceable(pod(name, container(neuron=16), labels=LABELS))


@pytest.fixture
def with_policies(webhook: Webhook, tmp_path: Path) -> Iterator[Webhook]:
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "mapped.yaml").write_text(POLICIES)
    with webhook.running_with(f"--policies={folder}"):
        yield webhook


@pytest.mark.usefixtures("with_policies")
def test_a_pod_is_denied_if_its_template_is_missing_or_differs(kubectl: Kubectl) -> None:
    missing = kubectl.feed("create", whole())
    assert not missing.ok
    assert "NEU120: ResourceClaimTemplate xl-trn2, which policy 'mapped' names for 16 devices, does not exist" in (
        missing.stderr
    )
    assert kubectl.feed("create", group_template("xl-trn2", 8)).ok
    differs = kubectl.feed("create", whole())
    assert not differs.ok
    assert "it gives 8 devices on trn2.48xlarge, where the pod needs 16 devices" in differs.stderr


@pytest.mark.usefixtures("with_policies")
@pytest.mark.parametrize("verb", list(VERBS.values()), ids=list(VERBS))
def test_a_pod_uses_the_template_of_the_operator_and_applying_again_changes_nothing(
    api: Api, kubectl: Kubectl, verb: str
) -> None:
    assert kubectl.feed("create", group_template("xl-trn2", 16)).ok
    first = kubectl.feed("create" if verb == "replace" else verb, whole())
    assert first.ok, first.stderr
    before = api.get("Pod", "whole", kubectl.namespace)
    assert is_converted(before)
    assert before["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == "xl-trn2"
    again = kubectl.feed(verb, whole())
    assert again.ok, again.stderr
    assert essence(api.get("Pod", "whole", kubectl.namespace)) == essence(before)


@pytest.mark.usefixtures("with_policies")
def test_a_template_in_the_policy_is_created(api: Api, kubectl: Kubectl) -> None:
    created = kubectl.feed("create", pod("eight", container(neuron=8), labels=LABELS))
    assert created.ok, created.stderr
    made = api.get("ResourceClaimTemplate", "eight-trn2", kubectl.namespace)
    assert made["metadata"]["labels"] == {"team": "a", "app.kubernetes.io/managed-by": "neuron-dra"}
    assert api.get("Pod", "eight", kubectl.namespace)["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] == (
        "eight-trn2"
    )
