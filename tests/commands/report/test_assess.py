"""The fate of a workload and its obstacles: the webhook's own decisions, and facts that it does not check."""

from typing import Any

import pytest

from commands.report.model import Devices, Fate
from tests.policies.policy_files import policy
from tests.support.emulated import EmulatedCluster
from tests.support.reports import deployment, obstacles, only_workload, pod_spec, report, running

TRN1 = {"nodeSelector": {"node.kubernetes.io/instance-type": "trn1.32xlarge"}}
CONVERSION_POLICY = """
apiVersion: policy.neuron.aws.com/v1alpha1
kind: ConversionPolicy
metadata: {name: not-here}
spec: {order: 1, mode: "off", match: {namespaces: [team-a]}}
"""


def namespace(name: str = "team-a", **annotations: str) -> dict[str, Any]:
    found = {f"neuron.aws.com/{key}": value for key, value in annotations.items()}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "annotations": found}}


def quota(namespace_name: str = "team-a", **hard: str) -> dict[str, Any]:
    metadata = {"name": "devices", "namespace": namespace_name}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}}


class TestFate:
    def test_a_workload_converts_with_its_template_and_its_devices(self) -> None:
        only = only_workload(deployment(replicas=3, **TRN1))
        assert (only.fate, only.blocked, only.pods) == (Fate.CONVERTS, False, 3)
        assert (only.before, only.after) == (Devices(12), Devices(12))
        assert only.templates[0].startswith("neuron-4-")
        assert [group.path for group in only.groups] == ["spec.template"]

    def test_cores_become_devices(self) -> None:
        spec = pod_spec(3, "neuroncore", **TRN1)
        item = deployment()
        item["spec"]["template"]["spec"] = spec
        only = only_workload(item)
        assert (only.before, only.after) == (Devices(0, 3), Devices(2))
        assert str(only.before) == "3 cores"

    def test_init_containers_hold_their_devices_before_the_others(self) -> None:
        item = deployment(8)
        spec = item["spec"]["template"]["spec"]
        spec["initContainers"] = pod_spec(4)["containers"]
        spec["initContainers"][0]["name"] = "compile"
        assert only_workload(deployment(count=8, initContainers=spec["initContainers"])).before == Devices(8)

    def test_a_count_that_no_type_serves_is_refused(self) -> None:
        item = deployment(count=7, **TRN1)
        only = only_workload(item)
        assert (only.fate, only.after, only.blocked) == (Fate.REFUSED, None, True)
        assert obstacles(item) == [("device counts", "NEU105", True)]
        [obstacle] = only.obstacles
        assert obstacle.finding.path.startswith("spec.template.spec.containers[0].resources.limits")

    def test_shadow_mode_reports_what_conversion_would_do(self) -> None:
        refused = only_workload(namespace(convert="shadow"), deployment(count=7, **TRN1))
        assert (refused.fate, refused.mode, refused.blocked) == (Fate.REFUSED, "shadow (namespace)", True)
        converted = only_workload(namespace(convert="shadow"), deployment(**TRN1))
        assert (converted.fate, converted.obstacles) == (Fate.CONVERTS, ())
        assert converted.templates

    @pytest.mark.parametrize(("locked", "fate"), [("true", Fate.REFUSED), ("false", Fate.STAYS)])
    def test_shadow_mode_of_a_locked_policy_reports_what_it_will_refuse(self, locked: str, fate: Fate) -> None:
        policy = CONVERSION_POLICY.replace('mode: "off"', f"mode: shadow, locked: {locked}")
        unknown = deployment(nodeSelector={"node.kubernetes.io/instance-type": "trn9.48xlarge"})
        assert only_workload(unknown, policies=[policy]).fate is fate

    def test_shadow_mode_with_nodes_looks_for_a_place_of_the_converted_pod(self) -> None:
        made = EmulatedCluster()
        made.node("a", "trn1.32xlarge")
        found = only_workload(namespace(convert="shadow"), deployment(**TRN1), cluster=made)
        assert (found.fate, found.obstacles) == (Fate.CONVERTS, ())

    @pytest.mark.parametrize(
        ("items", "why"),
        [
            (
                [deployment(annotations={"neuron.aws.com/convert": "off"})],
                "annotation neuron.aws.com/convert of the pod",
            ),
            ([namespace(convert="off"), deployment()], "annotation neuron.aws.com/convert of the namespace"),
            ([deployment(namespace="kube-system")], "the namespace is excluded"),
        ],
    )
    def test_a_workload_that_stays_on_the_device_plugin_has_a_reason(
        self, items: list[dict[str, Any]], why: str
    ) -> None:
        only = only_workload(*items)
        assert only.fate is Fate.STAYS
        assert only.why.startswith(why)
        assert (only.after, only.blocked) == (None, False)

    def test_a_policy_can_keep_a_workload_on_the_device_plugin(self) -> None:
        only = only_workload(deployment(), policies=[CONVERSION_POLICY])
        assert (only.fate, only.why, only.mode) == (
            Fate.STAYS,
            "a policy turns conversion off",
            "off (policy not-here)",
        )

    def test_a_workload_whose_pods_all_have_claims_is_converted(self) -> None:
        item = deployment()
        pod = running("train-x")
        pod["metadata"]["labels"] = {"neuron.aws.com/converted": "true"}
        pod["metadata"]["ownerReferences"] = [
            {"apiVersion": "apps/v1", "kind": "Deployment", "name": "train", "uid": "team-a-train", "controller": True}
        ]
        only = only_workload(item, pod)
        assert (only.fate, only.now and only.now.converted) == (Fate.CONVERTED, 1)
        assert report(item, pod).steps == ()

    def test_a_kind_that_cannot_hold_claims_converts_by_its_pods(self) -> None:
        trainer = {"resourcesPerNode": {"limits": {"aws.amazon.com/neuron": "16"}}}
        job = {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": "tune", "namespace": "team-a"},
            "spec": {"trainer": trainer},
        }
        only = only_workload(job)
        assert (str(only.ref), only.fate) == ("TrainJob team-a/tune", Fate.CONVERTS)

    def test_an_unknown_kind_is_named(self) -> None:
        sweep = {
            "apiVersion": "example.com/v1",
            "kind": "Sweep",
            "metadata": {"name": "tune", "namespace": "team-a"},
            "spec": {"worker": {"resourcesPerNode": {"limits": {"aws.amazon.com/neuron": "16"}}}},
        }
        only = only_workload(sweep)
        assert (str(only.ref), only.fate) == ("Sweep team-a/tune", Fate.UNKNOWN)
        assert only.why == "spec.worker.resourcesPerNode: its pods are converted when created"
        sweep["spec"]["worker"]["resourcesPerNode"]["limits"]["aws.amazon.com/neuron"] = "7"
        only = only_workload(sweep)
        assert only.fate is Fate.UNKNOWN
        assert only.why == "spec.worker.resourcesPerNode: its pods are refused when created"
        assert not any(each.blocks for each in only.obstacles)

    def test_an_unreadable_pod_template_blocks(self) -> None:
        item = deployment()
        item["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] = ["aws.amazon.com/neuron"]
        assert obstacles(item) == [("pod spec", "NEU114", True)]


class TestObstacles:
    def test_a_quota_for_the_device_plugin_counts_no_claims(self) -> None:
        items = quota(**{"requests.aws.amazon.com/neuron": "8"}), deployment(**TRN1)
        assert obstacles(*items) == [("quota", "NEU204", False)]

    def test_a_limit_range_refuses_the_converted_pod(self) -> None:
        limits = [{"type": "Container", "max": {"aws.amazon.com/neuron": "4"}}]
        metadata = {"name": "bounds", "namespace": "team-a"}
        limit_range = {"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": {"limits": limits}}
        assert obstacles(limit_range, deployment(**TRN1)) == [("LimitRange", "NEU205", True)]

    def test_pinned_cores_are_an_obstacle(self) -> None:
        item = deployment(**TRN1)
        item["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "NEURON_RT_VISIBLE_CORES", "value": "0-3"}]
        assert obstacles(item) == [("pinned cores", "NEU901", False)]
        [obstacle] = only_workload(item).obstacles
        assert obstacle.finding.path == "spec.template.spec.containers[0].env"
        assert "container main sets NEURON_RT_VISIBLE_CORES" in obstacle.finding.message

    @pytest.mark.parametrize(
        ("change", "system", "queue"),
        [
            ({"labels": {"kueue.x-k8s.io/queue-name": "training"}}, "Kueue", " in queue 'training'"),
            ({"annotations": {"scheduling.volcano.sh/queue-name": "q"}}, "Volcano", " in queue 'q'"),
            ({"annotations": {"yunikorn.apache.org/queue": "root.ml"}}, "YuniKorn", " in queue 'root.ml'"),
            ({"schedulerName": "volcano"}, "Volcano", ""),
            ({"schedulerName": "yunikorn"}, "YuniKorn", ""),
        ],
    )
    def test_queues_that_count_the_legacy_resource_are_an_obstacle(
        self, change: dict[str, Any], system: str, queue: str
    ) -> None:
        found = only_workload(deployment(**TRN1, **change)).obstacles
        [message] = [each.finding.message for each in found if each.finding.code == "NEU232"]
        assert message.startswith(f"{system} counts aws.amazon.com/neuron{queue}, and does not count the claims")

    def test_a_queue_may_be_named_by_the_workload_itself(self) -> None:
        item = deployment(**TRN1)
        item["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "training"}
        assert obstacles(item) == [("queue", "NEU232", False)]

    @pytest.mark.parametrize(("label", "codes"), [("labels", []), ("annotations", ["NEU232"])])
    def test_kueue_still_counts_jobs_by_their_template(self, label: str, codes: list[str]) -> None:
        key = "kueue.x-k8s.io/queue-name" if label == "labels" else "scheduling.volcano.sh/queue-name"
        metadata = {"name": "train", "namespace": "team-a", label: {key: "training"}}
        template = deployment(**TRN1)["spec"]["template"]
        item = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template}}
        assert [each.finding.code for each in only_workload(item).obstacles] == codes

    def test_a_custom_scheduler_is_an_obstacle(self) -> None:
        assert ("schedulerName", "NEU203", False) in obstacles(deployment(schedulerName="ours", **TRN1))

    @pytest.mark.parametrize(
        "spec",
        [
            {"nodeSelector": {"karpenter.sh/nodepool": "neuron"}},
            {"nodeSelector": {"karpenter.k8s.aws/instance-family": "trn1"}},
            {"nodeSelector": {"eks.amazonaws.com/compute-type": "auto"}},
            {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {"matchExpressions": [{"key": "karpenter.sh/nodepool", "operator": "Exists"}]}
                            ]
                        }
                    }
                }
            },
        ],
    )
    def test_karpenter_by_node_selection(self, spec: dict[str, Any]) -> None:
        assert ("Karpenter", "NEU903", True) in obstacles(deployment(**spec))

    def test_excluding_karpenter_nodes_is_no_obstacle(self) -> None:
        expression = {"key": "karpenter.sh/nodepool", "operator": "DoesNotExist"}
        required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
        assert "NEU903" not in {code for _, code, _ in obstacles(deployment(affinity=affinity))}

    def test_a_workload_of_karpenter_stays_on_the_device_plugin(self) -> None:
        only = only_workload(deployment(nodeSelector={"karpenter.sh/nodepool": "neuron"}))
        assert (only.fate, only.why, only.after) == (Fate.STAYS, "no node is made for its claim", None)

    @pytest.mark.parametrize(("spec", "fate"), [({"replicas": 2}, Fate.CONVERTS), ({}, Fate.STAYS)])
    def test_a_static_pool_among_the_files_serves_claims(self, spec: dict[str, Any], fate: Fate) -> None:
        pool = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "neuron"}, "spec": spec}
        assert only_workload(pool, deployment(nodeSelector={"karpenter.sh/nodepool": "neuron"})).fate is fate

    def test_a_missing_node_of_a_suitable_type_is_an_obstacle(self) -> None:
        made = EmulatedCluster()
        made.node("a", "inf2.48xlarge")
        assert obstacles(deployment(), cluster=made, families=("trn1",)) == [("nodes", "NEU904", False)]

    def test_nodes_with_device_plugin_and_driver_are_an_obstacle(self) -> None:
        made = EmulatedCluster()
        made.node("a", "trn1.32xlarge", allocatable={"aws.amazon.com/neuron": "16"})
        assert obstacles(deployment(), cluster=made, families=("trn1",)) == [("nodes", "NEU904", True)]

    def test_a_policy_that_denies_the_pods(self) -> None:
        few = policy('validations: [{expression: "neuron.devices <= 2", message: too many}]')
        only = only_workload(deployment(**TRN1), policies=[few])
        assert (only.fate, only.blocked) == (Fate.REFUSED, True)
        assert [(each.cause.value, each.finding.code) for each in only.obstacles] == [("policy", "NEU801")]
        assert only.obstacles[0].finding.path == "spec.template"

    @pytest.mark.parametrize("mode", ["convert", "shadow"])
    def test_the_size_of_a_leader_worker_set(self, mode: str) -> None:
        annotations = {"neuron.aws.com/ultraserver-mode": "4"}
        selector = {"node.kubernetes.io/instance-type": "trn2u.48xlarge"}
        template = {"metadata": {"annotations": annotations}, "spec": pod_spec(16, nodeSelector=selector)}
        item = {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {"name": "llama", "namespace": "team-a"},
            "spec": {"leaderWorkerTemplate": {"size": 3, "workerTemplate": template}},
        }
        assert obstacles(namespace(convert=mode), item) == [("device settings", "NEU710", False)]
        assert only_workload(namespace(convert=mode), item).after == Devices(48)


def test_equal_pods_of_two_namespaces_are_judged_with_their_own_templates() -> None:
    fields = {**TRN1, "resourceClaims": [{"name": "own", "resourceClaimTemplateName": "own"}]}
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "own", "namespace": "team-b"},
        "spec": {"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "neuron.aws.com"}}]}}},
    }
    found = report(template, *(deployment(namespace=each, **fields) for each in ("team-a", "team-b"))).workloads
    codes = {each.ref.namespace: {obstacle.finding.code for obstacle in each.obstacles} for each in found}
    assert codes == {"team-a": {"NEU702"}, "team-b": {"NEU206", "NEU702"}}


def test_other_resources_change_nothing() -> None:
    plain, rich = deployment(**TRN1), deployment(**TRN1)
    resources = rich["spec"]["template"]["spec"]["containers"][0]["resources"]
    resources["limits"] |= {"memory": "8Gi", "vpc.amazonaws.com/efa": "4"}
    resources["requests"] = {"cpu": "4", "aws.amazon.com/neuron": "4"}
    assert only_workload(rich) == only_workload(plain)
    resources["requests"]["aws.amazon.com/neuron"] = "2"
    assert obstacles(rich) == [("device counts", "NEU103", True)]
