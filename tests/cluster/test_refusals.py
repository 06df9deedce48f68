"""What can never work is refused where the user sees it, with a sentence that stands alone."""

import pytest

from tests.cluster.api import Api, ApiError, Object
from tests.cluster.kubectl import Kubectl
from tests.cluster.manifests import (
    LNC,
    NEURON,
    NEURONCORE,
    ULTRASERVER_MODE,
    container,
    events,
    generated_templates,
    pod,
    workload,
)
from tests.cluster.nodes import INSTANCE_TYPE
from tests.cluster.processes import eventually
from tests.cluster.webhooks import Webhook

pytestmark = pytest.mark.usefixtures("webhook")

TRN1 = {INSTANCE_TYPE: "trn1.32xlarge"}
SENTENCE = (
    "Instance type trn1.32xlarge does not support requests for device: 7. Please request a different number of devices."
)


def mixed(name: str = "main", **parts: dict[str, str]) -> Object:
    made = container(name)
    made["resources"] = parts
    return made


def test_an_unsupported_count_is_refused_with_the_schedulers_sentence_and_the_nearest_counts(
    api: Api, kubectl: Kubectl, namespace: str
) -> None:
    result = kubectl.feed("create", pod("seven", container(neuron=7), nodeSelector=TRN1))
    assert result.code == 1
    path = f"spec.containers[0].resources.limits[{NEURON}]"
    assert result.stderr.startswith(f'The Pod "seven" is invalid: {path}: NEU105: {SENTENCE}'), result.stderr
    remedy = result.stderr.partition(SENTENCE)[2]
    assert "4" in remedy, remedy
    assert "8" in remedy, remedy
    assert api.find("Pod", "seven", namespace) is None
    assert generated_templates(api, namespace) == []


def test_only_counts_that_no_type_serves_are_denied_if_the_type_is_unknown(webhook: Webhook, kubectl: Kubectl) -> None:
    # Candidates are the instance types that were ever seen: start with none.
    webhook.restart()
    result = kubectl.feed("create", pod("seventeen", container(neuron=17)))
    assert not result.ok
    assert SENTENCE.replace("7", "17") in result.stderr
    result = kubectl.feed("create", pod("seven", container(neuron=7)))
    assert result.ok, result.stderr
    assert any("NEU216" in warning for warning in result.warnings), result.stderr


@pytest.mark.parametrize("kind", ["ReplicaSet", "Job", "StatefulSet"])
def test_the_event_of_a_controller_shows_the_whole_message(api: Api, namespace: str, kind: str) -> None:
    api.create(workload(kind, "seven", pod("seven", container(neuron=7), nodeSelector=TRN1)), namespace)
    messages = eventually("the event", lambda: events(api, namespace, "seven", "FailedCreate"))
    assert f"NEU105: {SENTENCE}" in messages[0]


def test_a_refusal_is_machine_readable(api: Api, namespace: str) -> None:
    with pytest.raises(ApiError) as refused:
        api.create(pod("seven", container(neuron=7), nodeSelector=TRN1), namespace)
    status = refused.value.status
    assert (status["code"], status["reason"]) == (422, "Invalid")
    assert (status["details"]["kind"], status["details"]["name"]) == ("Pod", "seven")
    assert [cause["field"] for cause in status["details"]["causes"]] == [
        f"spec.containers[0].resources.limits[{NEURON}]"
    ]
    assert SENTENCE in status["message"]
    assert SENTENCE in status["details"]["causes"][0]["message"]


def test_all_unsupported_counts_are_reported_together(kubectl: Kubectl) -> None:
    both = pod("both", container("a", neuron=7), container("b", neuron=3), nodeSelector=TRN1)
    result = kubectl.feed("create", both)
    assert "device: 7" in result.stderr
    assert "device: 3" in result.stderr


def test_all_findings_are_reported_together_with_their_paths(kubectl: Kubectl) -> None:
    broken = pod(
        "broken",
        mixed("a", limits={NEURON: "4", "aws.amazon.com/neurondevice": "2"}),
        mixed("b", requests={NEURON: "4"}, limits={NEURON: "8"}),
        annotations={LNC: "3"},
    )
    result = kubectl.feed("create", broken)
    assert not result.ok
    for code, place in (
        ("NEU104", "spec.containers[0].resources"),
        ("NEU103", "spec.containers[1].resources"),
        ("NEU109", f"metadata.annotations[{LNC}]"),
    ):
        lines = [line for line in result.stderr.splitlines() if code in line]
        assert len(lines) == 1, result.stderr
        assert place in lines[0]


@pytest.mark.parametrize(
    ("code", "manifest"),
    [
        ("NEU101", pod("p", mixed(limits={NEURON: "1500m"}, requests={NEURON: "1500m"}))),
        ("NEU102", pod("p", mixed(requests={NEURON: "4"}))),
        ("NEU103", pod("p", mixed(requests={NEURON: "4"}, limits={NEURON: "8"}))),
        ("NEU104", pod("p", mixed(limits={NEURON: "4", NEURONCORE: "9"}))),
        ("NEU106", pod("p", *(container(f"c{index}", neuron=4) for index in range(5)), nodeSelector=TRN1)),
        ("NEU108", pod("p", *(container(f"c{index}", neuron=1) for index in range(33)))),
        ("NEU109", pod("p", annotations={LNC: "3"})),
        ("NEU110", pod("p", nodeSelector={INSTANCE_TYPE: "m5.large"})),
        ("NEU111", pod("p", annotations={LNC: "2"}, nodeSelector=TRN1)),
        ("NEU112", pod("p", annotations={ULTRASERVER_MODE: "4"})),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_kubectl_prints_the_code_of_every_refusal(kubectl: Kubectl, code: str, manifest: Object) -> None:
    result = kubectl.feed("create", manifest)
    assert not result.ok, result.stdout
    assert code in result.stderr
