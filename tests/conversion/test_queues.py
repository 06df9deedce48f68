import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversion.claims import containers
from conversion.objects.queues import (
    ALL_KEYS,
    KUEUE_LABEL,
    Queue,
    copied_labels,
    declared,
    is_counted_by_template,
    losing_count,
    owned_by_job,
    queues_of_pod,
    queues_of_workload,
    uncounted,
)
from neuron.findings import Severity
from tests.support import golden

CLASS = "neuron.aws.com"
NEURON = "aws.amazon.com/neuron"
LABELLED: dict[str, Any] = {"metadata": {"labels": {KUEUE_LABEL: "training"}}, "spec": {}}
MAPPING = (
    "Kueue's Configuration needs {name: aws.amazon.com/neuron, deviceClassNames: [neuron.aws.com]} in"
    " resources.deviceClassMappings."
)


class TestPods:
    @pytest.mark.parametrize(
        ("pod", "expected"),
        [
            (LABELLED, Queue("Kueue", "training", f"metadata.labels[{KUEUE_LABEL}]")),
            (
                {"metadata": {"annotations": {"scheduling.volcano.sh/queue-name": "gold"}}},
                Queue("Volcano", "gold", "metadata.annotations[scheduling.volcano.sh/queue-name]"),
            ),
            (
                {"metadata": {"labels": {"volcano.sh/queue-name": "gold"}}},
                Queue("Volcano", "gold", "metadata.labels[volcano.sh/queue-name]"),
            ),
            (
                {"metadata": {"labels": {"yunikorn.apache.org/queue": "root.ml"}}},
                Queue("YuniKorn", "root.ml", "metadata.labels[yunikorn.apache.org/queue]"),
            ),
            ({"spec": {"schedulerName": "volcano"}}, Queue("Volcano", "", "spec.schedulerName")),
            ({"spec": {"schedulerName": "yunikorn"}}, Queue("YuniKorn", "", "spec.schedulerName")),
        ],
    )
    def test_fields_that_show_a_queue(self, pod: dict[str, Any], expected: Queue) -> None:
        assert queues_of_pod(pod) == (expected,)

    @pytest.mark.parametrize(
        "pod",
        [
            {},
            {"spec": {"schedulerName": "default-scheduler"}},
            {"metadata": {"labels": {KUEUE_LABEL: ""}}},
            {"metadata": {"annotations": {KUEUE_LABEL: "training"}}},  # Kueue reads only the label
            {"metadata": {"labels": [KUEUE_LABEL]}, "spec": {"schedulerName": ["volcano"]}},
        ],
    )
    def test_pods_without_queue_fields_have_no_queue(self, pod: dict[str, Any]) -> None:
        assert queues_of_pod(pod) == ()

    def test_one_entry_for_each_system_and_the_named_one_first(self) -> None:
        pod = {
            "metadata": {"labels": {"volcano.sh/queue-name": "gold", KUEUE_LABEL: "training"}},
            "spec": {"schedulerName": "volcano"},
        }
        assert [(each.system, each.name) for each in queues_of_pod(pod)] == [("Kueue", "training"), ("Volcano", "gold")]

    @pytest.mark.parametrize(
        ("version", "kind", "by_template"),
        [
            ("batch/v1", "Job", True),
            ("kubeflow.org/v1", "PyTorchJob", True),
            ("ray.io/v1", "RayCluster", True),
            ("kubeflow.org/v1", "Notebook", False),
            ("apps/v1", "ReplicaSet", False),
            ("apps/v1", "StatefulSet", True),
            ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", True),
            ("batch.volcano.sh/v1alpha1", "Job", False),
            ("v1", "Node", False),
        ],
    )
    def test_pods_that_are_counted_by_the_template_of_their_owner(
        self, version: str, kind: str, *, by_template: bool
    ) -> None:
        owner = {"apiVersion": version, "kind": kind, "controller": True}
        assert owned_by_job([owner]) is by_template
        assert owned_by_job([{**owner, "controller": False}]) is False

    @given(
        st.recursive(
            st.none() | st.text() | st.integers(),
            lambda inner: (
                st.lists(inner) | st.dictionaries(st.sampled_from(["apiVersion", "kind", "controller"]), inner)
            ),
        )
    )
    def test_owners_of_any_type(self, owners: Any) -> None:
        assert owned_by_job(owners) is False

    def test_only_kueue_counts_by_template(self) -> None:
        kueue, volcano = Queue("Kueue"), Queue("Volcano")
        assert losing_count([kueue, volcano], by_template=True) == (volcano,)
        assert losing_count([kueue, volcano], by_template=False) == (kueue, volcano)


class TestWorkloads:
    @pytest.mark.parametrize(
        ("group", "kind", "found"),
        [
            ("apps", "Deployment", True),
            ("apps", "StatefulSet", True),
            ("leaderworkerset.x-k8s.io", "LeaderWorkerSet", True),
            ("batch", "Job", True),
            ("", "Pod", True),
            ("apps", "DaemonSet", False),
            ("argoproj.io", "Rollout", False),
        ],
    )
    def test_the_label_of_the_workload_itself(self, group: str, kind: str, *, found: bool) -> None:
        expected = (Queue("Kueue", "training", f"metadata.labels[{KUEUE_LABEL}]"),) if found else ()
        assert queues_of_workload(group, kind, LABELLED, []) == expected

    def test_the_label_of_a_pod_template(self) -> None:
        assert queues_of_workload("argoproj.io", "Rollout", {}, [("spec.template", LABELLED)]) == (
            Queue("Kueue", "training", f"spec.template.metadata.labels[{KUEUE_LABEL}]"),
        )

    @pytest.mark.parametrize(
        ("group", "kind"), [("batch", "Job"), ("batch", "CronJob"), ("apps", "StatefulSet"), ("ray.io", "RayCluster")]
    )
    def test_the_label_of_a_pod_template_that_kueue_could_count(self, group: str, kind: str) -> None:
        labels = {"metadata": {"labels": {"team": "a"}}}
        data = {**labels, "spec": {"jobTemplate": labels}}
        found = queues_of_workload(group, kind, data, [("spec.template", LABELLED)])
        assert found == (Queue("Kueue", "training", f"spec.template.metadata.labels[{KUEUE_LABEL}]", only_pods=True),)
        assert losing_count(found, by_template=True) == found
        assert losing_count(found, by_template=True, by_claims=True) == ()

    @pytest.mark.parametrize("kind", ["Job", "CronJob"])
    def test_a_job_without_labels_gets_those_of_its_pod_template(self, kind: str) -> None:
        found = queues_of_workload("batch", kind, {}, [("spec.template", LABELLED)])
        assert losing_count(found, by_template=True) == ()

    def test_the_label_of_a_job_counts_before_that_of_its_template(self) -> None:
        found = queues_of_workload("batch", "Job", LABELLED, [("spec.template", LABELLED)])
        assert found == (Queue("Kueue", "training", f"metadata.labels[{KUEUE_LABEL}]"),)
        assert losing_count(found, by_template=True) == ()

    def test_the_label_of_the_jobs_of_a_cron_job(self) -> None:
        assert queues_of_workload("batch", "CronJob", {"spec": {"jobTemplate": LABELLED}}, []) == (
            Queue("Kueue", "training", f"spec.jobTemplate.metadata.labels[{KUEUE_LABEL}]"),
        )

    @pytest.mark.parametrize(
        ("spec", "expected"),
        [
            ({"schedulerName": "volcano", "queue": "gold"}, [Queue("Volcano", "gold", "spec.schedulerName")]),
            ({}, [Queue("Volcano", "", "spec")]),  # the controller's default
            ({"schedulerName": "default-scheduler"}, []),
            ({"schedulerName": "yunikorn"}, [Queue("YuniKorn", "", "spec.schedulerName")]),
            ({"schedulerName": 1, "queue": 1}, []),
        ],
    )
    def test_a_volcano_job(self, spec: dict[str, Any], expected: list[Queue]) -> None:
        assert list(queues_of_workload("batch.volcano.sh", "Job", {"spec": spec}, [])) == expected

    def test_labels_that_kueue_copies_to_the_pods(self) -> None:
        assert copied_labels("apps", "Deployment", LABELLED) == {KUEUE_LABEL: "training"}
        assert copied_labels("apps", "Deployment", {"metadata": {"labels": {KUEUE_LABEL: 1}}}) == {}
        assert copied_labels("batch", "Job", LABELLED) == copied_labels("apps", "StatefulSet", LABELLED) == {}

    def test_counted_by_template(self) -> None:
        assert is_counted_by_template("jobset.x-k8s.io", "JobSet")
        assert not is_counted_by_template("apps", "Deployment")


class TestFindings:
    @pytest.mark.parametrize(
        ("queue", "text"),
        [
            (
                Queue("Kueue", "training"),
                "NEU232: Kueue counts aws.amazon.com/neuron in queue 'training', and does not count the claims of"
                f" converted pods unless it is set up for them. {MAPPING}",
            ),
            (
                Queue("Volcano"),
                "NEU232: Volcano counts aws.amazon.com/neuron, and does not count the claims of converted pods unless"
                " it is set up for them. Volcano allocates claims from 1.12 on. Where Volcano's capacity plugin counts"
                " claims, give the Queue amounts of deviceclass/neuron.aws.com.",
            ),
            (
                Queue("YuniKorn", "root.ml"),
                "NEU232: YuniKorn counts aws.amazon.com/neuron in queue 'root.ml', and does not count the claims of"
                " converted pods unless it is set up for them. YuniKorn has no setting for claims: bound the namespace"
                " by a ResourceQuota with neuron.aws.com.deviceclass.resource.k8s.io/devices.",
            ),
        ],
    )
    def test_the_setting_of_each_system(self, queue: Queue, text: str) -> None:
        finding = uncounted(queue, CLASS)
        assert (str(finding), finding.severity) == (text, Severity.WARNING)

    def test_kueue_admits_no_alternatives_whatever_its_mapping(self) -> None:
        finding = uncounted(Queue("Kueue", "training"), CLASS, alternatives=True)
        assert finding.message == (
            "Kueue admits no pod in queue 'training' whose claim has alternatives (firstAvailable), as the one of this"
            " pod."
        )
        assert "deviceClassMappings" not in finding.fix
        assert "does not count" in uncounted(Queue("Volcano"), CLASS, alternatives=True).message

    @pytest.mark.parametrize("alternatives", [False, True])
    def test_the_label_belongs_on_the_workload(self, *, alternatives: bool) -> None:
        queue = Queue("Kueue", "training", only_pods=True)
        assert uncounted(queue, CLASS, "This is said once.", alternatives=alternatives).fix == (
            "Set the label kueue.x-k8s.io/queue-name in metadata of the workload: Kueue then counts its pod template,"
            " which keeps its limits. Now it counts each pod. This is said once."
        )

    def test_the_device_class_is_that_of_the_claim(self) -> None:
        assert "deviceClassNames: [ours.example]" in uncounted(Queue("Kueue"), "ours.example").fix

    def test_a_cluster_queue(self) -> None:
        groups = [{"coveredResources": ["cpu"]}, {"coveredResources": ["memory", "aws.amazon.com/neuroncore"]}]
        data = {"metadata": {"name": "research"}, "spec": {"resourceGroups": groups}}
        [finding] = declared("kueue.x-k8s.io", "ClusterQueue", data, CLASS)
        assert finding.path == "spec.resourceGroups[1].coveredResources[1]"
        assert str(finding) == (
            "NEU232: ClusterQueue 'research' counts aws.amazon.com/neuroncore, and the claims of converted pods only by"
            " a mapping. Kueue's Configuration needs {name: aws.amazon.com/neuroncore, deviceClassNames:"
            " [neuron.aws.com]} in resources.deviceClassMappings. Claims count devices, not cores."
        )

    def test_a_volcano_queue(self) -> None:
        spec: dict[str, Any] = {
            "capability": {"aws.amazon.com/neuron": 64, "cpu": 8},
            "guarantee": {"resource": {"aws.amazon.com/neuron": 8}},
        }
        data = {"metadata": {"name": "gold"}, "spec": spec}
        found = list(declared("scheduling.volcano.sh", "Queue", data, CLASS))
        assert [each.path for each in found] == [
            "spec.capability[aws.amazon.com/neuron]",
            "spec.guarantee.resource[aws.amazon.com/neuron]",
        ]
        assert str(found[0]) == (
            "NEU232: Queue 'gold' counts aws.amazon.com/neuron in capability, and not the claims of converted pods."
            " Where Volcano's capacity plugin counts claims, give the Queue amounts of deviceclass/neuron.aws.com."
        )
        spec["capability"]["deviceclass/neuron.aws.com"] = 64
        assert list(declared("scheduling.volcano.sh", "Queue", data, CLASS)) == []

    @pytest.mark.parametrize(
        ("kind", "limits", "path"),
        [
            ("NodePool", {"aws.amazon.com/neuron": 64}, "spec.limits[aws.amazon.com/neuron]"),
            (
                "Provisioner",
                {"resources": {"aws.amazon.com/neuron": 64}},
                "spec.limits.resources[aws.amazon.com/neuron]",
            ),
        ],
    )
    def test_limits_of_karpenter(self, kind: str, limits: dict[str, Any], path: str) -> None:
        data = {"metadata": {"name": "trn"}, "spec": {"limits": limits}}
        [finding] = declared("karpenter.sh", kind, data, CLASS)
        assert finding.path == path
        assert str(finding) == (
            f"NEU232: {kind} 'trn' limits aws.amazon.com/neuron, which nodes of the DRA driver do not offer. Limit cpu"
            " or nodes; Karpenter makes no nodes for pods with Neuron claims."
        )

    def test_objects_that_name_no_legacy_resource(self) -> None:
        assert list(declared("karpenter.sh", "NodePool", {"spec": {"limits": {"cpu": 1}}}, CLASS)) == []
        assert (
            list(declared("example.com", "Queue", {"spec": {"capability": {"aws.amazon.com/neuron": 1}}}, CLASS)) == []
        )

    @given(
        st.sampled_from(
            [("kueue.x-k8s.io", "ClusterQueue"), ("scheduling.volcano.sh", "Queue"), ("karpenter.sh", "NodePool")]
        ),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=4),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(
                        [
                            "spec",
                            "metadata",
                            "name",
                            "resourceGroups",
                            "coveredResources",
                            "capability",
                            "limits",
                            "resource",
                        ]
                    ),
                    inner,
                    max_size=4,
                )
            ),
        ),
    )
    def test_objects_of_any_content(self, kind: tuple[str, str], inner: Any) -> None:
        assert list(declared(*kind, {"metadata": inner, "spec": inner}, CLASS)) == []
        assert set(queues_of_workload(*kind, {"metadata": inner, "spec": inner}, [("", {"spec": inner})])) == set()


def test_keys_of_all_systems() -> None:
    assert KUEUE_LABEL in ALL_KEYS
    assert len(ALL_KEYS) == 4


CONVERTED = [
    case for case in golden.cases() if json.loads((case / "decision.json").read_text())["outcome"] == "converted"
]


def requests_of(case: Path) -> list[dict[str, Any]]:
    templates = [each["spec"]["spec"] for each in json.loads((case / "templates.json").read_text())]
    return [each for spec in templates for each in spec["devices"]["requests"]]


def asked(case: Path) -> Counter[str]:
    return containers.scheduled(json.loads((case / "review.json").read_text())["request"]["object"]["spec"])


WITHOUT_ALTERNATIVES = [
    case
    for case in CONVERTED
    # Cores are rounded up to devices, and Kueue refuses alternatives.
    if requests_of(case) and all("exactly" in each for each in requests_of(case)) and set(asked(case)) == {NEURON}
]


class TestCharge:
    """What Kueue charges for a converted pod: the requests of its containers, and the devices of its claims.

    Source: `pkg/workload/resources.go` (limits are requests that are missing) and `pkg/dra/claims.go` of Kueue 0.19.2.
    """

    @pytest.mark.parametrize("case", CONVERTED, ids=lambda case: case.name)
    def test_no_container_keeps_the_legacy_resource(self, case: Path) -> None:
        after = json.loads((case / "object.json").read_text())["spec"]
        every = [*after["containers"], *after.get("initContainers", ())]
        amounts = [each.get("resources", {}).get(field, {}) for each in every for field in ("requests", "limits")]
        assert [found for found in amounts if containers.legacy_amounts(found, {})] == []

    @pytest.mark.parametrize("case", WITHOUT_ALTERNATIVES, ids=lambda case: case.name)
    def test_the_claim_is_charged_as_the_limits_were(self, case: Path) -> None:
        charged: Counter[str] = Counter()
        for each in requests_of(case):
            charged[each["exactly"]["deviceClassName"]] += each["exactly"]["count"]
        # The device that stands for a whole UltraServer node is one device.
        assert charged[CLASS] == (1 if case.name == "ultraserver" else asked(case)[NEURON])
