"""Files with queues: NEU232 in `validate` and `convert`, and the mode of a policy for queued pods."""

import datetime as dt
from typing import Any

import pytest

from commands.objects.file_policies import FilePolicies
from kubecel_tests.evaluating import frozen_clock
from policies.files.loader import load
from tests.commands.rewrite.test_convert_files import text
from tests.support.converting import Conversion, convert_sources, convert_texts, source
from tests.support.manifests import container, pod
from tests.support.trainium import trainium
from tests.support.validating_files import validate_sources

LABEL = "kueue.x-k8s.io/queue-name"
SPEC = pod(container(neuron="4"))["spec"]
QUEUED = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {LABEL: "training"}}, "spec": SPEC}
CLUSTER_QUEUE = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "ClusterQueue",
    "metadata": {"name": "research"},
    "spec": {"resourceGroups": [{"coveredResources": ["aws.amazon.com/neuron"]}]},
}
NODE_POOL = {
    "apiVersion": "karpenter.sh/v1",
    "kind": "NodePool",
    "metadata": {"name": "trn"},
    "spec": {"limits": {"aws.amazon.com/neuron": 64}},
}
VOLCANO_JOB = {
    "apiVersion": "batch.volcano.sh/v1alpha1",
    "kind": "Job",
    "metadata": {"name": "v"},
    "spec": {"schedulerName": "volcano", "queue": "gold", "tasks": [{"template": {"spec": SPEC}}] * 2},
}


def queued_workload(version: str, kind: str) -> dict[str, Any]:
    metadata = {"name": "w", "labels": {LABEL: "training"}}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": {"template": {"spec": SPEC}}}


def validated(*objects: Any, policies: FilePolicies | None = None, **options: Any) -> list[str]:
    report = validate_sources([source("m.yaml", text(*objects))], trainium(**options), policies)
    return [f"{each.line} {each.finding.path}" for each in report.located if each.finding.code == "NEU232"]


def queue_notices(*objects: Any) -> list[str]:
    found = convert_texts(text(*objects)).notices
    return [line for line in found if "NEU232" in line]


def conversion_policies(spec: str) -> FilePolicies:
    policy = (
        f"apiVersion: policy.neuron.aws.com/v1alpha1\nkind: ConversionPolicy\nmetadata: {{name: p}}\nspec: {spec}\n"
    )
    return FilePolicies(load({"p.yaml": policy.encode()}), dt.datetime(2026, 1, 1, tzinfo=dt.UTC), frozen_clock)


class TestValidate:
    def test_a_pod_in_a_queue_of_kueue(self) -> None:
        assert validated(QUEUED) == [f"6 metadata.labels[{LABEL}]"]

    @pytest.mark.parametrize(("version", "kind", "told"), [("apps/v1", "Deployment", True), ("batch/v1", "Job", False)])
    def test_kinds_that_are_counted_by_their_template_get_no_warning(
        self, version: str, kind: str, *, told: bool
    ) -> None:
        assert bool(validated(queued_workload(version, kind))) is told

    def test_a_volcano_job_gets_one_warning(self) -> None:
        assert validated(VOLCANO_JOB) == ["6 spec.schedulerName"]

    def test_objects_that_count_the_legacy_resource_get_a_warning(self) -> None:
        assert validated(CLUSTER_QUEUE) == ["8 spec.resourceGroups[0].coveredResources[0]"]
        assert validated(NODE_POOL) == ["7 spec.limits[aws.amazon.com/neuron]"]

    def test_a_pod_that_an_unknown_kind_holds(self) -> None:
        inner = {"metadata": {"labels": {"volcano.sh/queue-name": "gold"}}, "spec": SPEC}
        sweep = {"apiVersion": "example.com/v1", "kind": "Sweep", "metadata": {"name": "s"}, "spec": {"pod": inner}}
        assert [line.partition(" ")[2] for line in validated(sweep)] == [
            "spec.pod.metadata.labels[volcano.sh/queue-name]"
        ]

    def test_pods_that_are_not_converted(self) -> None:
        assert validated(QUEUED, mode="off") == []

    def test_documents_that_differ_in_the_queue(self) -> None:
        def manifest(name: str, queue: str) -> dict[str, Any]:
            return {**QUEUED, "metadata": {"name": name, "labels": {LABEL: queue}}}

        report = validate_sources(
            [source("m.yaml", text(*(manifest(f"p{each}", f"q{each}") for each in range(4))))],
            trainium(),
        )
        assert [each.finding.value for each in report.located] == ["q0", "q1", "q2", "q3"]


class TestConvert:
    def test_a_job_with_a_rewritten_template_gets_the_queue_warning(self) -> None:
        [line] = queue_notices(queued_workload("batch/v1", "Job"))
        assert line.startswith(f"f0.yaml:6: [document 1, Job w] metadata.labels[{LABEL}]: NEU232: Kueue counts ")
        assert line.endswith("deviceClassNames: [neuron.aws.com]} in resources.deviceClassMappings.")

    def test_a_volcano_job_gets_one_warning(self) -> None:
        [line] = queue_notices(VOLCANO_JOB)
        assert "spec.schedulerName: NEU232: Volcano counts aws.amazon.com/neuron in queue 'gold'" in line

    def test_objects_that_count_the_legacy_resource_get_a_warning(self) -> None:
        assert len(queue_notices(CLUSTER_QUEUE, NODE_POOL)) == 2

    def test_a_refused_pod_gets_no_queue_warning(self) -> None:
        refused = {**QUEUED, "spec": pod(container(neuron="7"))["spec"]}
        assert queue_notices(refused) == []


class TestPolicies:
    def convert(self, found: FilePolicies, *objects: Any) -> Conversion:
        return convert_sources([source("m.yaml", text(*objects))], trainium(), found)

    def test_a_mode_for_queued_pods(self) -> None:
        off = conversion_policies("{order: 1, queued: {mode: off}}")
        plain = {**QUEUED, "metadata": {"name": "q"}}
        conversion = self.convert(off, QUEUED, plain)
        assert [change.rewrites for _, change in conversion.changes] == [False, True]
        assert [str(each).partition(": ")[2] for each in conversion.notices] == [
            "[document 1, Pod p]: not converted: policy 'p' turns it off."
        ]

    def test_kueue_copies_the_label_of_a_deployment_to_its_pods(self) -> None:
        off = conversion_policies("{order: 1, queued: {mode: off}}")
        changes = self.convert(
            off, queued_workload("apps/v1", "Deployment"), queued_workload("batch/v1", "Job")
        ).changes
        assert [change.rewrites for _, change in changes] == [False, True]

    def test_a_policy_that_converts_them_silences_the_warning_if_the_claim_has_no_alternatives(self) -> None:
        found = conversion_policies("{order: 1, queued: {mode: convert}}")
        assert validated(QUEUED, policies=found) == []
        consecutive = {
            **QUEUED,
            "spec": {**SPEC, "nodeSelector": {"node.kubernetes.io/instance-type": "inf2.48xlarge"}},
        }
        assert len(validated(consecutive, policies=found)) == 1
