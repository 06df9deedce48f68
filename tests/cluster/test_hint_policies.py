"""Pods with hints of a SchedulingHintPolicy: applying them again changes nothing, also after policy changes."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.cluster.api import Api, Object
from tests.cluster.kubectl import Kubectl
from tests.cluster.manifests import container, generated_templates, is_converted, pod, workload
from tests.cluster.nodes import INSTANCE_TYPE
from tests.cluster.test_reapply import VERBS, essence, replaceable
from tests.cluster.webhooks import Webhook

POLICIES = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: SchedulingHintPolicy
metadata: {name: added}
spec:
  order: 1
  match: {objectSelector: {matchLabels: {policy: added}}}
  tolerations:
    action: Add
    items:
    - {key: lease, operator: Equal, value: ml, effect: NoSchedule}
    - {key: drain, operator: Exists, effect: NoExecute, tolerationSeconds: 60}
  nodeAffinity:
    action: Add
    required: [{key: pool, operator: In, values: [neuron]}, {key: dedicated, operator: Exists}]
    preferred: [{weight: 5, preference: {matchExpressions: [{key: zone, operator: In, values: [a, b]}]}}]
  schedulerName: {action: Replace, name: team-scheduler}
  priorityClassName: {action: Add, name: training}
  labels: {action: Add, items: {team: ml, kueue.x-k8s.io/queue-name: neuron}}
---
apiVersion: policy.neuron.aws.com/v1alpha1
kind: SchedulingHintPolicy
metadata: {name: replaced}
spec:
  order: 2
  match: {objectSelector: {matchLabels: {policy: replaced}}}
  tolerations: {action: Replace, items: [{key: lease, operator: Exists}]}
  nodeAffinity: {action: Replace, required: [{key: pool, operator: NotIn, values: [spot]}]}
  schedulerName: {action: Off}
  priorityClassName: {action: Replace, name: training}
  labels: {action: Replace, items: {team: ml}}
---
apiVersion: policy.neuron.aws.com/v1alpha1
kind: SchedulingHintPolicy
metadata: {name: bare}
spec:
  order: 3
  match: {objectSelector: {matchLabels: {policy: bare}}}
  tolerations: {action: Off}
  nodeAffinity: {action: Off}
---
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ConversionPolicy
metadata: {name: unconnected}
spec:
  order: 1
  match: {objectSelector: {matchLabels: {policy: unconnected}}}
  families: [trn1]
  unconnected: Allow
"""


def own_hints() -> Object:
    expression = {"key": INSTANCE_TYPE, "operator": "In", "values": ["trn1.32xlarge", "trn2.48xlarge"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    preferred = [{"weight": 1, "preference": {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}}]
    return pod(
        "own-hints",
        labels={"policy": "added", "team": "own"},
        schedulerName="my-scheduler",
        affinity={
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": required,
                "preferredDuringSchedulingIgnoredDuringExecution": preferred,
            }
        },
        tolerations=[{"key": "dedicated", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}],
    )


def manifests() -> list[Object]:
    made = [
        pod("added", labels={"policy": "added"}),
        own_hints(),
        pod("replaced", labels={"policy": "replaced", "app": "x"}, priorityClassName="others"),
        pod("own-class", labels={"policy": "added"}, priorityClassName="others"),
        pod("bare", labels={"policy": "bare"}),
        pod("unconnected", container(neuron=7), labels={"policy": "unconnected"}),
    ]
    return [replaceable(each) for each in made]


_CLASSES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"


@pytest.fixture
def policies(api: Api, tmp_path: Path) -> Iterator[str]:
    """The policies, and their PriorityClasses. The policies' class never preempts: pods have to get that, too."""
    classes = {"training": (1000, "Never"), "others": (5, "PreemptLowerPriority")}
    for name, (value, policy) in classes.items():
        api.request("POST", _CLASSES, json={"metadata": {"name": name}, "value": value, "preemptionPolicy": policy})
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "hints.yaml").write_text(POLICIES)
    yield f"--policies={folder}"
    for name in classes:
        api.request("DELETE", f"{_CLASSES}/{name}")


@pytest.fixture
def with_policies(webhook: Webhook, policies: str) -> Iterator[Webhook]:
    with webhook.running_with(policies):
        yield webhook


TRAINING: Final = ("training", 1000, "Never")
OTHERS: Final = ("others", 5, "PreemptLowerPriority")


def priority(stored_pod: Object) -> tuple[object, ...]:
    """The PriorityClass of a pod, and what Kubernetes computed by it."""
    return tuple(stored_pod["spec"].get(field) for field in ("priorityClassName", "priority", "preemptionPolicy"))


def stored_pods(api: Api, kubectl: Kubectl) -> dict[str, Object]:
    found = {
        each["metadata"]["name"]: api.get("Pod", each["metadata"]["name"], kubectl.namespace) for each in manifests()
    }
    assert all(is_converted(each) for each in found.values())
    return {name: essence(each) for name, each in found.items()}


@pytest.mark.parametrize("verb", list(VERBS.values()), ids=list(VERBS))
def test_applying_again_changes_nothing_with_the_policy_and_without(
    api: Api, kubectl: Kubectl, webhook: Webhook, policies: str, verb: str
) -> None:
    with webhook.running_with(policies):
        for manifest in manifests():
            first = kubectl.feed("create" if verb == "replace" else verb, manifest)
            assert first.ok, first.stderr
        before = stored_pods(api, kubectl)
        assert before["added"]["spec"]["schedulerName"] == "team-scheduler"
        assert before["added"]["labels"]["team"] == "ml"
        assert before["own-hints"]["labels"]["team"] == "own"
        assert [priority(before[name]) for name in ("added", "replaced", "own-class")] == [TRAINING, TRAINING, OTHERS]
        assert {each["key"] for each in before["added"]["spec"]["tolerations"]} >= {"lease", "drain"}
        for manifest in manifests():
            again = kubectl.feed(verb, manifest)
            assert again.ok, again.stderr
        assert stored_pods(api, kubectl) == before
    for manifest in manifests():
        again = kubectl.feed(verb, manifest)
        assert again.ok, again.stderr
    assert stored_pods(api, kubectl) == before


@pytest.mark.usefixtures("with_policies")
def test_labels_are_restored_or_kept_by_the_action_of_the_policy(api: Api, kubectl: Kubectl) -> None:
    for name in ("added", "replaced"):
        manifest = next(each for each in manifests() if each["metadata"]["name"] == name)
        assert kubectl.feed("apply", manifest).ok
        kubectl.must("label", "pod", name, "team-", "more=labels")
        assert api.get("Pod", name, kubectl.namespace)["metadata"]["labels"]["team"] == "ml"
        kubectl.must("label", "pod", name, "team=own", "--overwrite")
    labels = {name: api.get("Pod", name, kubectl.namespace)["metadata"]["labels"] for name in ("added", "replaced")}
    assert (labels["added"]["team"], labels["replaced"]["team"]) == ("own", "ml")
    assert labels["added"]["more"] == labels["replaced"]["more"] == "labels"


@pytest.mark.parametrize("verb", list(VERBS.values()), ids=list(VERBS))
@pytest.mark.usefixtures("with_policies")
def test_a_label_that_the_policy_replaces_may_stand_in_the_manifest(api: Api, kubectl: Kubectl, verb: str) -> None:
    manifest = replaceable(pod("p", labels={"policy": "replaced", "team": "own"}))
    for each in ("create" if verb == "replace" else verb, verb, verb):
        applied = kubectl.feed(each, manifest)
        assert applied.ok, applied.stderr
        assert api.get("Pod", "p", kubectl.namespace)["metadata"]["labels"]["team"] == "ml"


@pytest.mark.usefixtures("with_policies")
def test_tolerations_can_be_added_and_their_time_changed(api: Api, kubectl: Kubectl) -> None:
    manifest = replaceable(pod("p", labels={"policy": "added"}))
    assert kubectl.feed("create", manifest).ok
    edited = kubectl.get("pod", "p")
    del edited["metadata"]["resourceVersion"]  # the scheduler may write the pod's status at the same time
    for each in edited["spec"]["tolerations"]:
        if each["key"] == "drain":
            each["tolerationSeconds"] = 300
    assert kubectl.feed("replace", edited).ok
    more = copy.deepcopy(manifest)
    more["spec"]["tolerations"] = [{"key": "more", "operator": "Exists"}]
    applied = kubectl.feed("replace", more)
    assert applied.ok, applied.stderr
    found = {each["key"]: each for each in api.get("Pod", "p", kubectl.namespace)["spec"]["tolerations"]}
    assert {"lease", "drain", "more", "aws.amazon.com/neuron"} <= set(found)
    assert found["drain"]["tolerationSeconds"] == 300


@pytest.mark.usefixtures("with_policies")
def test_an_unconnected_count_is_admitted_with_its_template_and_workload(api: Api, kubectl: Kubectl) -> None:
    seven = pod("p", container(neuron=7), labels={"policy": "unconnected"})
    applied = kubectl.feed("create", seven)
    assert applied.ok, applied.stderr
    assert any("NEU215" in warning for warning in applied.warnings), applied.stderr
    (name,) = generated_templates(api, kubectl.namespace)
    devices = api.get("ResourceClaimTemplate", name, kubectl.namespace)["spec"]["spec"]["devices"]
    assert (devices["requests"][0]["exactly"]["count"], "constraints" in devices) == (7, False)
    deployed = kubectl.feed("create", workload("Deployment", "d", seven))
    assert deployed.ok, deployed.stderr
    assert not any("NEU701" in warning for warning in deployed.warnings), deployed.stderr
    refused = kubectl.feed("create", pod("other", container(neuron=7), nodeSelector={INSTANCE_TYPE: "trn1.32xlarge"}))
    assert not refused.ok
    assert "NEU105" in refused.stderr
