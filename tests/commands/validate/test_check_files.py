import asyncio
from typing import Any, ClassVar

import pytest

from commands.objects.manifests import FileStore, manifests_of
from tests.commands.rewrite.test_convert_files import named, text
from tests.conversion.test_convert_pods import decide as converted
from tests.support.converting import source
from tests.support.manifests import container, pod
from tests.support.trainium import trainium
from tests.support.validating_files import validate_sources

OLD: dict[str, Any] = {
    "apiVersion": "resource.k8s.io/v1beta1",
    "kind": "ResourceClaim",
    "metadata": {"name": "c"},
    "spec": {"devices": {"requests": [{"name": "a", "deviceClassName": "gpu.example.com"}]}},
}
WORKFLOW: dict[str, Any] = {
    "apiVersion": "argoproj.io/v1alpha1",
    "kind": "Workflow",
    "metadata": {"name": "w"},
    "spec": {"templates": [{"name": "t", "container": {"resources": {"limits": {"aws.amazon.com/neuron": 7}}}}]},
}


def found(
    *objects: Any,
    served: tuple[str, ...] | None = None,
    rules: str | None = None,
    namespace: str = "default",
    **options: Any,
) -> list[str]:
    """Findings as `severity code path: message`."""
    sources = [source("m.yaml", text(*objects))]
    report = validate_sources(sources, trainium(**options), namespace=namespace, served=served, rules=rules)
    return [
        f"{each.finding.severity} {each.finding.code} {each.finding.path}: {each.finding.message}"
        for each in report.located
    ]


class TestVersions:
    def test_an_older_api_version_is_a_warning_without_a_cluster(self) -> None:
        assert found(OLD) == [
            "warning NEU720 apiVersion: resource.k8s.io/v1beta1 is not served by default: a cluster that serves only"
            " resource.k8s.io/v1 refuses this object."
        ]

    def test_an_api_version_that_the_cluster_does_not_serve_is_an_error(self) -> None:
        assert found(OLD, served=("v1", "v1beta2")) == [
            "error NEU720 apiVersion: the cluster does not serve resource.k8s.io/v1beta1, only resource.k8s.io/v1,"
            " v1beta2."
        ]

    def test_an_older_api_version_that_the_cluster_serves_has_no_finding(self) -> None:
        assert found(OLD, served=("v1", "v1beta1")) == []

    def test_the_current_api_version_has_no_finding(self) -> None:
        assert found({**OLD, "apiVersion": "resource.k8s.io/v1beta2"}) != []
        request = {"name": "a", "exactly": {"deviceClassName": "gpu.example.com"}}
        assert found({**OLD, "apiVersion": "resource.k8s.io/v1", "spec": {"devices": {"requests": [request]}}}) == []

    @pytest.mark.parametrize(
        ("version", "rules", "said"),
        [
            ("v1", None, []),
            ("v1beta2", None, []),
            ("v1", "v1", []),
            ("v1beta2", "v1beta2", []),
            ("v1alpha9", "v1", []),
            ("v1", "", ["error NEU720 apiVersion: the cluster serves no DeviceTaintRules."]),
            (
                "v1",
                "v1beta2",
                [
                    "error NEU720 apiVersion: the cluster serves DeviceTaintRules as resource.k8s.io/v1beta2, not as"
                    " v1.",
                ],
            ),
            (
                "v1alpha3",
                "v1",
                [
                    "warning NEU720 apiVersion: resource.k8s.io/v1alpha3 is not served by default: the cluster prefers"
                    " v1."
                ],
            ),
        ],
        ids=["no cluster", "beta", "served", "served beta", "unknown", "none served", "too new", "older"],
    )
    def test_the_version_of_a_taint_rule_is_compared_with_the_clusters(
        self, version: str, rules: str | None, said: list[str]
    ) -> None:
        rule = {
            "apiVersion": f"resource.k8s.io/{version}",
            "kind": "DeviceTaintRule",
            "metadata": {"name": "r"},
            "spec": {
                "deviceSelector": {"driver": "neuron.aws.com", "pool": "a"},
                "taint": {"key": "example.com/x", "effect": "NoSchedule"},
            },
        }
        assert found(rule, rules=rules) == said


class TestOtherKinds:
    def test_findings_of_pods_of_a_known_kind_have_their_path(self) -> None:
        assert [line.partition(": ")[0] for line in found(WORKFLOW)] == [
            "error NEU105 spec.templates[0].container.resources.limits[aws.amazon.com/neuron]",
        ]

    def test_an_unknown_kind_is_not_refused(self) -> None:
        unknown = {**WORKFLOW, "apiVersion": "example.com/v1", "kind": "Sweep"}
        assert [line.partition(": ")[0] for line in found(unknown)] == [
            "note NEU220 spec.templates[0].container.resources",
            "warning NEU701 spec.templates[0].container",
            "warning NEU105 spec.templates[0].container.resources.limits[aws.amazon.com/neuron]",
        ]

    def test_an_excluded_namespace_is_not_judged(self) -> None:
        assert found(WORKFLOW, excluded_namespaces=frozenset({"default"})) == []

    def test_claims_of_an_excluded_namespace_are_not_judged(self) -> None:
        wrong = {**OLD, "apiVersion": "resource.k8s.io/v9"}
        excluded = frozenset({"default"})
        assert found(wrong, excluded_namespaces=excluded) == []
        of_cluster = {**wrong, "kind": "DeviceClass", "spec": {"selectors": 7}}
        assert found(of_cluster, excluded_namespaces=excluded) == found(of_cluster) != []

    @pytest.mark.parametrize("value", ["off", ["off"], {"a": "b"}])
    def test_settings_of_a_namespace_count_if_they_are_text(self, value: Any) -> None:
        annotations = {"neuron.aws.com/convert": value}
        facts = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "annotations": annotations}}
        said = [line.split()[1] for line in found(facts, WORKFLOW)]
        assert said == ([] if value == "off" else ["NEU905", "NEU105"])

    def test_a_cluster_scoped_kind_has_the_settings_of_no_namespace(self) -> None:
        annotations = {"neuron.aws.com/convert": "off"}
        facts = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "annotations": annotations}}
        shared = {**WORKFLOW, "kind": "ClusterWorkflowTemplate"}
        assert found(facts, shared, excluded_namespaces=frozenset({"default"})) == found(shared) != []

    def test_a_pod_template_that_is_no_object_is_an_error(self) -> None:
        made: dict[str, Any] = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}}
        assert found(made | {"spec": {"template": [pod(container(neuron=1))]}}) == [
            "error NEU114 spec.template: the object contains no readable pod template: Expected `object`, got `array`."
        ]
        assert found(made | {"spec": {"template": [pod(container())]}}) == []

    def test_a_pool_of_a_wrong_form_is_said(self) -> None:
        made: dict[str, Any] = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "a"}}
        assert found(made | {"spec": {"weight": "5"}}) == [
            "warning NEU905 spec.weight: NodePool a cannot be read: Expected `int | null`, got `str`. Pods are decided"
            " without what cannot be read."
        ]
        assert found(made | {"spec": {"weight": 5}}) == []
        assert found(made | {"apiVersion": "example.com/v1", "spec": {"weight": "5"}}) == []

    def test_a_namespace_of_a_wrong_form_is_said_beside_a_misspelt_key(self) -> None:
        annotations = {"neuron.aws.com/convert": False, "neuron.aws.com/convertt": "off"}
        facts = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a", "annotations": annotations}}
        assert [line.split()[1] for line in found(facts)] == ["NEU222", "NEU905"]

    def test_an_object_without_pods_has_no_finding(self) -> None:
        assert found({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}) == []

    def test_the_objects_in_an_app_wrapper_are_judged_once(self) -> None:
        wrapper = {
            "apiVersion": "workload.codeflare.dev/v1beta2",
            "kind": "AppWrapper",
            "metadata": {"name": "w"},
            "spec": {"components": [{"template": named("p", pod(container(neuron=7)))}]},
        }
        assert [line.partition(": ")[0] for line in found(wrapper)] == [
            "error NEU105 spec.containers[0].resources.limits[aws.amazon.com/neuron]"
        ]

    def test_a_misspelt_resource_is_a_warning(self) -> None:
        misspelt = {"name": "m", "resources": {"limits": {"aws.amazon.com/neurons": 4}}}
        assert [line.partition(": ")[0] for line in found(named("p", pod(misspelt)))] == [
            "warning NEU221 spec.containers[0].resources.limits[aws.amazon.com/neurons]"
        ]


class TestNamespaces:
    @pytest.mark.parametrize(("namespace", "codes"), [("default", []), ("team-a", ["error NEU105"])])
    def test_the_namespace_of_the_command_line_decides_which_annotations_apply(
        self, namespace: str, codes: list[str]
    ) -> None:
        off = {"name": "default", "annotations": {"neuron.aws.com/convert": "off"}}
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": off}
        lines = found(space, named("p", pod(container(neuron=7))), namespace=namespace)
        assert [" ".join(line.split(" ")[:2]) for line in lines] == codes


class TestPodGroups:
    """The pods of a file are compared with the PodGroups of all files."""

    @staticmethod
    def group(template: str, name: str = "neuron") -> dict[str, Any]:
        claims = [{"name": name, "resourceClaimTemplateName": template}]
        metadata, version = {"name": "gang", "namespace": "team-a"}, "scheduling.k8s.io/v1alpha2"
        return {"apiVersion": version, "kind": "PodGroup", "metadata": metadata, "spec": {"resourceClaims": claims}}

    @staticmethod
    def member(**spec: Any) -> dict[str, Any]:
        claiming = {"name": "main", "resources": {"claims": [{"name": "neuron"}]}}
        manifest = pod(claiming if spec else container(neuron="4"))
        manifest["spec"] |= {"schedulingGroup": {"podGroupName": "gang"}, **spec}
        return manifest

    def test_a_pod_that_does_not_share_the_claim_of_its_group_gets_a_warning(self) -> None:
        own = {"resourceClaims": [{"name": "neuron", "resourceClaimTemplateName": "small"}]}
        [finding] = found(self.member(**own), self.group("large"))
        assert finding.startswith("warning NEU713 spec.resourceClaims[0]: claim 'neuron' of the pod is ")
        assert found(self.member(**own), self.group("small")) == []

    def test_a_converted_pod_that_shares_the_claim_of_its_group_gets_a_warning(self) -> None:
        made = validate_template(self.member())
        [finding] = found(self.member(), self.group(made))
        assert finding.startswith(
            "warning NEU714 spec: PodGroup gang shares claim 'neuron' of ResourceClaimTemplate neu"
        )
        assert found(self.member(), self.group(made, name="shared")) == []
        assert found(self.member(), self.group("mine")) == []


def validate_template(manifest: dict[str, Any]) -> str:
    """Name of the template that conversion makes for a pod."""
    return converted(manifest).templates[0].name


class TestEnrichedClaims:
    """A claim of a file is checked as it will be stored."""

    @staticmethod
    def template(count: int, **metadata: Any) -> dict[str, Any]:
        requests = [{"name": "gpus", "exactly": {"deviceClassName": "neuron.aws.com", "count": count}}]
        annotations = {"neuron.aws.com/enrich-claims": "true"}
        metadata = {"name": "t", "namespace": "team-a", "annotations": annotations, **metadata}
        spec = {"spec": {"devices": {"requests": requests}}}
        return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": metadata, "spec": spec}

    def test_a_claim_that_will_be_enriched_has_no_findings(self) -> None:
        assert [each.split()[1] for each in found(self.template(4, annotations={}))] == ["NEU524"]
        assert found(self.template(4)) == []

    def test_a_claim_that_cannot_be_enriched_says_why(self) -> None:
        assert "NEU241" in [each.split()[1] for each in found(self.template(7), families=("trn1",))]

    def test_a_pod_is_checked_with_the_enriched_template(self) -> None:
        claims = [{"name": "neuron", "resourceClaimTemplateName": "t"}]
        user = pod({"name": "main", "resources": {"claims": [{"name": "neuron"}]}}, resourceClaims=claims)
        assert found(user, self.template(4)) == []
        assert "NEU524" in {each.split()[1] for each in found(user, self.template(4, uid="u"))}


def test_the_template_of_an_ultraserver_workload_is_not_missing() -> None:
    workload = {
        "apiVersion": "neuron.aws.com/v1beta1",
        "kind": "NeuronUltraServerWorkload",
        "metadata": {"name": "train", "namespace": "team-a"},
        "spec": {"instanceType": "trn3-dev0.48xlarge", "topologySize": 2, "serverCount": 1},
    }
    claims = [{"name": "neuron", "resourceClaimTemplateName": "train"}]
    user = pod({"name": "main", "resources": {"claims": [{"name": "neuron"}]}}, resourceClaims=claims)
    view = FileStore(manifests_of(workload))
    view.over(FileStore())
    assert asyncio.run(view.exist("ResourceClaimTemplate", "team-a", ["train"])) == {"train": True}
    assert found(user, workload) == []


class TestPodsThatExist:
    """`kubectl get pod -o yaml` of a converted pod has the node that the scheduler chose."""

    SCHEDULED: ClassVar[dict[str, Any]] = {"conditions": [{"type": "PodScheduled", "status": "True"}]}

    def dump(self, uid: str = "", status: Any = None) -> dict[str, Any]:
        using = {**container(), "resources": {"claims": [{"name": "neuron"}]}}
        claims = [{"name": "neuron", "resourceClaimTemplateName": "neuron-4-fdc84041cb55"}]
        made = {**pod(using, resourceClaims=claims, nodeName="node-a"), "status": status}
        made["metadata"] = {"name": "p", "namespace": "default", **({"uid": uid} if uid else {})}
        return made

    def codes(self, item: dict[str, Any]) -> set[str]:
        return {each.split()[1] for each in found(item)}

    def test_one_that_was_scheduled_is_right(self) -> None:
        assert "NEU128" not in self.codes(self.dump("f9c1"))
        assert "NEU128" not in self.codes(self.dump(status=self.SCHEDULED))
        both = self.dump("f9c1", self.SCHEDULED)
        assert "NEU128" not in self.codes({"apiVersion": "v1", "kind": "List", "items": [both]})

    @pytest.mark.parametrize(
        "status",
        [None, {}, "x", {"conditions": None}, {"conditions": [1, {"type": "PodScheduled", "status": "False"}]}],
        ids=repr,
    )
    def test_one_that_is_to_be_created_is_not(self, status: Any) -> None:
        assert "NEU128" in self.codes(self.dump(status=status))

    def test_the_status_of_a_pod_template_says_nothing(self) -> None:
        template = self.dump("f9c1", self.SCHEDULED)
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": template}}
        assert "NEU128" in self.codes(job)


class TestVerticalAutoscalers:
    """Kubernetes refuses to resize a pod with a claim in place."""

    DEPLOYMENT: ClassVar[dict[str, Any]] = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "serve"},
        "spec": {"template": pod(container(neuron=4))},
    }

    def scaler(self, mode: str, name: str = "serve") -> dict[str, Any]:
        spec = {"targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}}
        return {
            "apiVersion": "autoscaling.k8s.io/v1",
            "kind": "VerticalPodAutoscaler",
            "metadata": {"name": "sizes"},
            "spec": {**spec, "updatePolicy": {"updateMode": mode}},
        }

    @pytest.mark.parametrize("mode", ["InPlaceOrRecreate", "InPlace"])
    def test_one_that_resizes_in_place_is_a_warning(self, mode: str) -> None:
        (said,) = found(self.DEPLOYMENT, self.scaler(mode))
        assert said.startswith(
            "warning NEU233 spec: VerticalPodAutoscaler sizes resizes pods of Deployment serve in place, which"
        )

    @pytest.mark.parametrize(
        ("owner", "labels"),
        [
            ({"kind": "ReplicaSet", "name": "serve-7d9"}, {"pod-template-hash": "7d9"}),
            ({"kind": "Deployment", "name": "serve"}, {}),
        ],
    )
    def test_the_pods_of_the_workload_are_warned_of(self, owner: dict[str, Any], labels: dict[str, str]) -> None:
        made = pod(container(neuron=4), labels=labels)
        made["metadata"] = {"name": "serve-7d9-x", "labels": labels, "ownerReferences": [owner]}
        said = found({"apiVersion": "v1", "kind": "Pod", **made}, self.scaler("InPlace"))
        assert [each[:14] for each in said] == ["warning NEU233"]

    def test_others_are_not_reported(self) -> None:
        assert found(self.DEPLOYMENT, self.scaler("Recreate"), self.scaler("InPlace", "other")) == []
        plain = {**self.DEPLOYMENT, "spec": {"template": pod(container())}}
        assert found(plain, self.scaler("InPlace")) == []
        assert found(self.DEPLOYMENT, {**self.scaler("InPlace"), "spec": "x"}) == []


class TestArgo:
    """Argo Workflows newer than 4.0 has `resourceClaims` in its templates and in the Workflow."""

    CONTAINER: ClassVar[dict[str, Any]] = {"resources": {"claims": [{"name": "dev"}]}}
    CLAIMS: ClassVar[list[Any]] = [{"name": "dev", "resourceClaimTemplateName": "four"}]

    def workflow(self, template: dict[str, Any], **spec: Any) -> dict[str, Any]:
        made = {"templates": [{"name": "t", "container": self.CONTAINER, **template}], **spec}
        return {**WORKFLOW, "spec": made}

    def test_a_claim_of_the_template_or_the_workflow_is_declared(self) -> None:
        assert found(self.workflow({"resourceClaims": self.CLAIMS})) == []
        assert found(self.workflow({}, resourceClaims=self.CLAIMS)) == []
        assert found(self.workflow({}, templateDefaults={"resourceClaims": self.CLAIMS})) == []
        assert found(self.workflow({"podSpecPatch": "resourceClaims: [{name: dev}]"})) == []

    def test_the_list_of_a_template_replaces_that_of_the_workflow(self) -> None:
        other = [{"name": "other", "resourceClaimTemplateName": "four"}]
        codes = [
            line.split()[1] for line in found(self.workflow({"resourceClaims": other}, resourceClaims=self.CLAIMS))
        ]
        assert codes == ["NEU702", "NEU703"]

    def test_a_claim_that_is_not_declared_is_an_error(self) -> None:
        assert [line.split()[:2] for line in found(self.workflow({}))] == [["error", "NEU703"]]
