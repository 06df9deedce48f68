"""NEU232 at admission: once per namespace, for pods whose claim a queue does not count."""

import asyncio
import json
from typing import Any

import jsonpatch
import msgspec
import pytest
from msgspec.structs import replace

from cluster.store import Store
from conversion.objects import pods
from conversion.objects.queues import ALL_KEYS
from conversion.patches.decision import Decision
from neuron.hardware.instances import Catalogue
from policies.files.loader import load
from policies.judging.rules import PolicySet
from tests.support.clusters import first_step, mutator, request, reviewed
from tests.support.manifests import container, pod
from tests.support.neuron_policies import neuron_policy
from tests.support.trainium import trainium
from webhook.reviews.mutate import Mutator, QueueNotices
from webhook.reviews.validate import Validator

LABEL = "kueue.x-k8s.io/queue-name"
QUEUED = pod(container(neuron="4"), labels={LABEL: "training"})
PLAIN = pod(container(neuron="4"))
INF2 = {"node.kubernetes.io/instance-type": "inf2.48xlarge"}


def told(decision: Decision) -> list[str]:
    return [str(each) for each in decision.warnings if each.code == "NEU232"]


def one_policy(kind: str = "ConversionPolicy", **spec: Any) -> PolicySet:
    return load({"p.json": neuron_policy(kind, **spec)})


def owned(version: str, kind: str) -> dict[str, Any]:
    owner = {"apiVersion": version, "kind": kind, "name": "o", "uid": "u", "controller": True}
    return {**QUEUED, "metadata": {**QUEUED["metadata"], "ownerReferences": [owner]}}


def with_queues(notices: QueueNotices, found: PolicySet | None = None) -> Mutator:
    subject = mutator() if found is None else mutator(policies=found)
    subject._queues = notices
    return subject


def test_the_first_converted_pod_of_a_namespace_gets_a_warning() -> None:
    subject = mutator()
    assert told(reviewed(subject, QUEUED)) == [
        "NEU232: Kueue counts aws.amazon.com/neuron in queue 'training', and does not count the claims of converted"
        " pods unless it is set up for them. Kueue's Configuration needs {name: aws.amazon.com/neuron,"
        " deviceClassNames: [neuron.aws.com]} in resources.deviceClassMappings. This is said once for namespace team-a."
    ]
    assert told(reviewed(subject, QUEUED)) == []
    assert len(told(reviewed(subject, QUEUED, namespace="team-b"))) == 1


def test_the_first_pod_whose_claim_has_alternatives_gets_another_warning() -> None:
    subject = mutator()
    consecutive = pod(container(neuron="4"), labels={LABEL: "training"}, nodeSelector=INF2)
    assert len(told(reviewed(subject, QUEUED))) == 1
    [message] = told(reviewed(subject, consecutive))
    assert message.startswith("NEU232: Kueue admits no pod in queue 'training' whose claim has alternatives")
    assert told(reviewed(subject, consecutive)) == []


def test_a_pod_that_is_answered_at_once_is_told_and_only_the_first_one() -> None:
    subject = mutator()
    reviewed(subject, PLAIN)
    answers = [first_step(subject.review(request(QUEUED))) for _ in range(2)]
    assert [len(told(each)) for each in answers if each is not None] == [1, 0]


def test_the_pod_view_decodes_the_keys_of_all_queue_systems() -> None:
    assert {field.encode_name for field in msgspec.structs.fields(pods.Queues)} == ALL_KEYS


def test_an_escaped_queue_name_gets_a_warning() -> None:
    raw = json.dumps(QUEUED).replace("kueue", "\\u006bueue")
    assert len(told(asyncio.run(mutator().review(replace(request(QUEUED), object=msgspec.Raw(raw.encode())))))) == 1


@pytest.mark.parametrize("scheduler", ["volcano", "yunikorn"])
def test_the_scheduler_alone_shows_a_queue(scheduler: str) -> None:
    text = "contains schedulerName default-scheduler"
    queued = {**PLAIN, "spec": {**PLAIN["spec"], "schedulerName": scheduler}, "metadata": {"annotations": {"x": text}}}
    assert len(told(reviewed(mutator(), queued))) == 1


def test_the_cached_decision_stays_without_the_warning() -> None:
    subject = mutator()
    first = reviewed(subject, PLAIN)
    assert len(told(reviewed(subject, QUEUED))) == 1
    assert told(first) == told(reviewed(subject, PLAIN)) == []


def test_a_pod_without_a_queue_does_not_use_up_the_notice() -> None:
    subject = mutator()
    assert told(reviewed(subject, PLAIN)) == []
    assert len(told(reviewed(subject, QUEUED))) == 1


@pytest.mark.parametrize(("version", "kind"), [("batch/v1", "Job"), ("kubeflow.org/v1", "PyTorchJob")])
def test_pods_that_kueue_counts_by_their_template_get_no_warning(version: str, kind: str) -> None:
    subject = mutator()
    assert told(reviewed(subject, owned(version, kind))) == []
    assert len(told(reviewed(subject, owned("apps/v1", "ReplicaSet")))) == 1


@pytest.mark.parametrize(
    ("annotations", "alone"),
    [
        pytest.param({}, True, id="the Job has no queue"),
        pytest.param({"kueue.x-k8s.io/pod-suspending-parent": "statefulset"}, False, id="counted by its owner"),
    ],
)
def test_a_pod_of_a_job_that_kueue_gated_by_itself_gets_a_warning(annotations: dict[str, str], *, alone: bool) -> None:
    pod = owned("batch/v1", "Job")
    labels = {**pod["metadata"]["labels"], "kueue.x-k8s.io/managed": "true"}
    pod = {**pod, "metadata": {**pod["metadata"], "labels": labels, "annotations": annotations}}
    found = told(reviewed(mutator(), pod))
    assert len(found) == alone
    assert all("Set the label kueue.x-k8s.io/queue-name in metadata of the workload" in each for each in found)


@pytest.mark.parametrize(("scheduler", "system"), [("volcano", "Volcano"), ("yunikorn", "YuniKorn")])
def test_a_scheduler_that_counts(scheduler: str, system: str) -> None:
    [message] = told(reviewed(mutator(), pod(container(neuron="4"), schedulerName=scheduler)))
    assert message.startswith(f"NEU232: {system} counts aws.amazon.com/neuron, ")


def test_a_volcano_job_gets_a_warning_even_if_kueue_counts_its_template() -> None:
    manifest = owned("batch/v1", "Job")
    manifest = {**manifest, "spec": {**manifest["spec"], "schedulerName": "volcano"}}
    [message] = told(reviewed(mutator(), manifest))
    assert message.startswith("NEU232: Volcano ")


def test_an_escaped_label_is_found() -> None:
    raw = json.dumps(QUEUED).replace("kueue.x-k8s.io/queue-name", "kueue.x-k8s.io\\/queue\\u002dname")
    sent = request(QUEUED)
    sent = replace(sent, object=type(sent.object)(raw.encode()))
    assert len(told(asyncio.run(mutator().review(sent)))) == 1


def test_a_dry_run_gets_the_warning_and_does_not_use_it_up() -> None:
    subject = mutator()
    assert len(told(reviewed(subject, QUEUED, dryRun=True))) == 1
    assert len(told(reviewed(subject, QUEUED))) == 1


def test_a_denied_pod_gets_no_queue_warning() -> None:
    decision = reviewed(mutator(), pod(container(neuron="7"), labels={LABEL: "training"}))
    assert decision.errors
    assert told(decision) == []


@pytest.mark.parametrize("mode", ["off", "shadow"])
def test_a_pod_that_is_not_converted_gets_no_queue_warning(mode: str) -> None:
    assert told(reviewed(mutator(mode=mode), QUEUED)) == []


def test_an_already_converted_pod_gets_no_queue_warning() -> None:
    stored = jsonpatch.apply_patch(QUEUED, list(reviewed(mutator(), QUEUED).patch))
    assert told(reviewed(mutator(), stored)) == []


def test_labels_of_another_type_are_not_an_error() -> None:
    decision = reviewed(mutator(), {**PLAIN, "metadata": {"name": "x", "labels": {LABEL: 7}}})
    assert decision.allowed


def test_the_memory_is_bounded() -> None:
    subject = with_queues(QueueNotices(most=2))
    counts = [len(told(reviewed(subject, QUEUED, namespace=name))) for name in ("a", "b", "c", "a")]
    assert counts == [1, 1, 0, 0]


def test_the_memory_outlives_a_set_of_policies() -> None:
    notices = QueueNotices()
    assert len(told(reviewed(with_queues(notices), QUEUED))) == 1
    assert told(reviewed(with_queues(notices, one_policy()), QUEUED)) == []


class TestPolicies:
    def test_a_mode_for_queued_pods_only(self) -> None:
        subject = mutator(policies=one_policy(queued={"mode": "off"}))
        off = reviewed(subject, QUEUED)
        assert (off.reason, off.patch, told(off)) == ("mode-off-by-policy", (), [])
        assert reviewed(subject, PLAIN).patch

    def test_the_mode_replaces_that_of_the_policy(self) -> None:
        subject = mutator(policies=one_policy(mode="off", queued={"mode": "convert"}))
        assert reviewed(subject, QUEUED).patch
        assert reviewed(subject, PLAIN).reason == "mode-off-by-policy"

    def test_a_policy_that_converts_queued_pods_silences_the_warning(self) -> None:
        decision = reviewed(mutator(policies=one_policy(queued={"mode": "convert"})), QUEUED)
        assert decision.patch
        assert told(decision) == []

    def test_it_does_not_silence_the_warning_about_alternatives(self) -> None:
        consecutive = pod(container(neuron="4"), labels={LABEL: "training"}, nodeSelector=INF2)
        [message] = told(reviewed(mutator(policies=one_policy(queued={"mode": "convert"})), consecutive))
        assert message.startswith("NEU232: Kueue admits no pod in queue 'training' whose claim has alternatives")

    def test_an_annotation_overrides_it_unless_the_policy_is_locked(self) -> None:
        annotated = pod(container(neuron="4"), labels={LABEL: "q"}, annotations={"neuron.aws.com/convert": "true"})
        assert reviewed(mutator(policies=one_policy(queued={"mode": "off"})), annotated).patch
        locked = reviewed(mutator(policies=one_policy(mode="convert", locked=True, queued={"mode": "off"})), annotated)
        assert locked.reason == "mode-off-by-policy"
        assert [each.code for each in locked.warnings] == ["NEU214"]

    def test_a_queue_label_that_a_policy_adds(self) -> None:
        found = one_policy("SchedulingHintPolicy", labels={"action": "Add", "items": {LABEL: "neuron"}})
        [message] = told(reviewed(mutator(policies=found), PLAIN))
        assert "in queue 'neuron'" in message

    def test_a_scheduler_that_a_policy_sets(self) -> None:
        found = one_policy("SchedulingHintPolicy", schedulerName={"action": "Replace", "name": "volcano"})
        [message] = told(reviewed(mutator(policies=found), PLAIN))
        assert message.startswith("NEU232: Volcano ")

    def test_the_device_class_of_the_policy_is_named(self) -> None:
        [message] = told(reviewed(mutator(policies=one_policy(deviceClass="ours.example")), QUEUED))
        assert "deviceClassNames: [ours.example]" in message


class TestWorkloads:
    def check(self, manifest: dict[str, Any], group: str) -> list[str]:
        validator = Validator(trainium(), Catalogue(), Store())
        decision = asyncio.run(validator.review(request(manifest, kind=manifest["kind"], group=group)))
        return [str(each).removeprefix("NEU232: ") for each in decision.warnings if each.code == "NEU232"]

    def test_a_deployment_in_a_queue(self) -> None:
        lines = self.check(queued_workload("apps/v1", "Deployment"), "apps")
        assert " ".join(lines).startswith("Kueue counts aws.amazon.com/neuron in queue 'training', and does not")
        assert all(len(line) <= 120 for line in lines)

    def test_a_job_is_counted_by_its_template(self) -> None:
        assert self.check(queued_workload("batch/v1", "Job"), "batch") == []

    def test_a_volcano_job(self) -> None:
        manifest = queued_workload("batch.volcano.sh/v1alpha1", "Job")
        template = manifest["spec"].pop("template")
        manifest["metadata"] = {"name": "w"}
        manifest["spec"] = {"schedulerName": "volcano", "queue": "gold", "tasks": [{"template": template}] * 3}
        lines = self.check(manifest, "batch.volcano.sh")
        assert " ".join(lines).count("Volcano counts aws.amazon.com/neuron in queue 'gold'") == 1

    def test_pods_that_are_not_converted(self) -> None:
        manifest = queued_workload("apps/v1", "Deployment")
        manifest["spec"]["template"]["metadata"] = {"annotations": {"neuron.aws.com/convert": "off"}}
        assert self.check(manifest, "apps") == []


def queued_workload(version: str, kind: str) -> dict[str, Any]:
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": "w", "labels": {LABEL: "training"}},
        "spec": {"template": {"spec": PLAIN["spec"]}},
    }


@pytest.mark.parametrize("key", sorted(ALL_KEYS))
def test_the_pre_filter_passes_every_key(key: str) -> None:
    assert len(told(reviewed(mutator(), pod(container(neuron="4"), annotations={key: "q"}, labels={key: "q"})))) == 1
