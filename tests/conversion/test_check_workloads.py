"""Workloads get warnings about their future pods at `kubectl apply`."""

from typing import Any

import pytest

from conversion.asks.conversion_context import conversion_context
from conversion.asks.steering import NO_STEERING, Mode, Steering
from conversion.decide import DecisionInputs, DecisionSubject, PodFacts
from conversion.decide import decide as compose
from conversion.facts import NO_FACTS, NamespaceFacts
from conversion.objects import pods
from conversion.objects.kinds import KINDS as KINDS_WITH_PODS
from conversion.objects.pod_places import PodPlace
from neuron import names
from neuron.hardware.instances import Catalogue
from policies.judging.selectors import claim_context
from tests.support.manifests import container, pod
from tests.support.trainium import trainium
from tests.support.validation import (
    TRN2,
    WHOLE_NODE,
    FakeClaims,
    claim,
    decide,
    on,
    opaque,
    request,
    ultraserver,
)

SEVEN = pod(container(neuron="7"))


def holding(group: str, kind: str, steps: tuple[Any, ...], template: dict[str, Any]) -> dict[str, Any]:
    """An object that holds a pod template where `steps` lead; `*` is a list's item, or a member called `Worker`."""
    value: Any = template
    for position in reversed(range(len(steps))):
        step = steps[position]
        if step != "*":
            value = {step: value}
        elif str(steps[position - 1]).endswith("ReplicaSpecs"):
            value = {"Worker": value}
        else:
            value = [value]
    version = f"{group}/v1" if group else "v1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "serve"}, **value}


KINDS = [
    pytest.param(group, kind, steps, id=f"{group}/{kind} {'.'.join(map(str, steps))}")
    for (group, kind), entry in KINDS_WITH_PODS.items()
    for steps in entry.templates
    if kind != "Pod"
]


def deployment_holding(template: dict[str, Any]) -> dict[str, Any]:
    return holding("apps", "Deployment", ("spec", "template"), template)


def warnings(manifest: dict[str, Any], cluster: FakeClaims | None = None, **options: Any) -> list[str]:
    decision = decide(manifest, cluster, options=options)
    assert decision.allowed
    return [str(finding) for finding in decision.warnings]


class TestRefusedPods:
    @pytest.mark.parametrize(("group", "kind", "steps"), KINDS)
    def test_every_workload_kind_gets_a_warning_about_denied_pods(
        self, group: str, kind: str, steps: tuple[Any, ...]
    ) -> None:
        said = warnings(holding(group, kind, steps, SEVEN))
        announced = " ".join(said[:-3]).replace(" NEU701:", "")
        assert announced.startswith(f"NEU701: pods of this {kind} would be refused: ")
        assert announced.endswith("spec.containers[0]")
        assert said[-3:] == [
            "NEU105: Instance type trn1.32xlarge does not support requests for device: 7.",
            "NEU105: Please request a different number of devices. Nearest valid counts: 4 or 8.",
            "NEU105: Instance types that serve 7: inf2.48xlarge, inf1.24xlarge.",
        ]

    def test_warnings_have_paths_into_the_workload(self) -> None:
        job = holding("kubeflow.org", "PyTorchJob", ("spec", "pytorchReplicaSpecs", "*", "template"), SEVEN)
        paths = [finding.path for finding in decide(job).warnings]
        container_path = "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0]"
        assert paths[0] == container_path
        assert paths[1] == f"{container_path}.resources.limits[aws.amazon.com/neuron]"

    def test_every_denied_container_gets_a_warning(self) -> None:
        said = warnings(deployment_holding(pod(container("a", neuron="x"), container("b", neuroncore="1.5"))))
        assert [each.partition(":")[0] for each in said] == ["NEU701", "NEU101", "NEU701", "NEU101"]

    @pytest.mark.parametrize(
        ("template", "code"),
        [
            (pod({"name": "main", "resources": {"claims": [{"name": "neurons"}]}}), "NEU703"),
            (pod(container(neuron="1"), annotations={names.ANNOTATION_LNC: "3"}), "NEU109"),
            (pod(container(neuron="1"), nodeSelector={names.LABEL_INSTANCE_TYPE: "m5.large"}), "NEU110"),
        ],
    )
    def test_every_other_error_of_the_pod_is_a_warning_of_the_workload(
        self, template: dict[str, Any], code: str
    ) -> None:
        said = warnings(deployment_holding(template))
        assert said[0].startswith("NEU701: ")
        assert said[1].startswith(code)


class TestWarnings:
    def test_a_workload_gets_the_warnings_of_its_conversion(self) -> None:
        assert [each[:6] for each in warnings(deployment_holding(pod(container(neuron="1"), schedulerName="own")))] == [
            "NEU203"
        ]

    def test_a_valid_workload_gets_no_warning(self) -> None:
        assert warnings(deployment_holding(pod(container(neuron="4")))) == []

    def test_an_unused_claim_gets_a_warning(self) -> None:
        """As in a published example, whose container never mentions the claim."""
        claims = [{"name": "neurons", "resourceClaimTemplateName": "driver-version-neuron"}]
        said = warnings(deployment_holding(pod(container(), resourceClaims=claims)))
        assert said[0].startswith("NEU702: no container refers to claim 'neurons'")

    def test_a_missing_template_gets_a_warning(self) -> None:
        claims = [{"name": "neurons", "resourceClaimTemplateName": "big"}]
        template = pod({"name": "main", "resources": {"claims": [{"name": "neurons"}]}}, resourceClaims=claims)
        assert [each[:6] for each in warnings(deployment_holding(template), FakeClaims(objects=set()))] == ["NEU705"]

    def test_limits_beside_a_claim_for_neuron_devices_get_one_warning(self) -> None:
        cluster = FakeClaims()
        cluster.add_template("big", claim(request("a", 1, on(TRN2))))
        claims = [{"name": "devices", "resourceClaimTemplateName": "big"}]
        main = {
            **container(neuron="1"),
            "resources": {"limits": {"aws.amazon.com/neuron": "1"}, "claims": [{"name": "devices"}]},
        }
        manifest = deployment_holding(pod(main, resourceClaims=claims))
        assert [each[:6] for each in warnings(manifest, cluster)] == ["NEU206"]
        assert [each[:6] for each in warnings(manifest, cluster, mode="off")] == ["NEU704"]


class TestModes:
    def test_a_workload_gets_no_warning_if_conversion_is_off(self) -> None:
        assert warnings(deployment_holding(SEVEN), mode="off") == []
        assert (
            warnings(deployment_holding(pod(container(neuron="7"), annotations={names.ANNOTATION_CONVERT: "off"})))
            == []
        )

    def test_the_annotation_of_the_namespace_switches_warnings_off(self) -> None:
        facts = NamespaceFacts(annotations=((names.ANNOTATION_CONVERT, "off"),))
        assert warnings(deployment_holding(SEVEN), FakeClaims(namespaces={"team-a": facts})) == []

    def test_shadow_mode_warns_of_future_denials(self) -> None:
        said = warnings(deployment_holding(SEVEN), mode="shadow")
        assert said[0] == "NEU208: shadow mode: this pod would be refused."
        assert said[1].startswith("NEU105: Instance type trn1.32xlarge does not support requests for device: 7.")

    def test_shadow_mode_does_not_warn_of_valid_pods(self) -> None:
        assert warnings(deployment_holding(pod(container(neuron="4"))), mode="shadow") == []


def groups(size: int | None, template: dict[str, Any]) -> dict[str, Any]:
    steps = ("spec", "leaderWorkerTemplate", "workerTemplate")
    manifest = holding("leaderworkerset.x-k8s.io", "LeaderWorkerSet", steps, template)
    if size is not None:
        manifest["spec"]["leaderWorkerTemplate"]["size"] = size
    return manifest


NODE_CLAIM = pod(
    {"name": "main", "resources": {"claims": [{"name": "node"}]}},
    resourceClaims=[{"name": "node", "resourceClaimTemplateName": "us-4"}],
)
NODE_ANNOTATION = pod(container(neuron="16"), annotations={names.ANNOTATION_ULTRASERVER_MODE: "4"})


class TestUltraServers:
    @pytest.mark.parametrize("template", [NODE_CLAIM, NODE_ANNOTATION], ids=["by claim", "by annotation"])
    @pytest.mark.parametrize(
        ("size", "said"),
        [
            (
                2,
                [
                    "NEU710: groups have 2 pods, and UltraServer mode 4 needs 4, one for each node. Set size to 4, or"
                    " the mode to 2."
                ],
            ),
            (3, ["NEU710: groups have 3 pods, and UltraServer mode 4 needs 4, one for each node. Set size to 4."]),
            (
                None,
                [
                    "NEU710: groups have 1 pods, and UltraServer mode 4 needs 4, one for each node. Set size to 4, or"
                    " the mode to 1."
                ],
            ),
            (4, []),
        ],
    )
    def test_a_group_is_the_set_of_nodes(self, template: dict[str, Any], size: int | None, said: list[str]) -> None:
        cluster = FakeClaims()
        cluster.add_template(
            "us-4", claim(request("node", 1, WHOLE_NODE), config=[opaque(ultraserver(4), requests=[])])
        )
        assert warnings(groups(size, template), cluster) == said

    def test_pods_that_a_policy_does_not_convert_need_no_ultraserver(self) -> None:
        cluster, options = FakeClaims(), trainium()
        conversion = conversion_context(options, Catalogue(), cluster)
        inputs = DecisionInputs(NO_FACTS, conversion, claim_context(options, Catalogue(), cluster))

        def modes_with(steering: Steering) -> set[int]:
            facts = PodFacts(PodPlace(("spec", "template"), NODE_ANNOTATION), pods.view(NODE_ANNOTATION), {}, steering)
            decided = compose(DecisionSubject("apps", "Deployment", "team", {}, [facts]), inputs)
            return {mode for part in decided.parts for mode in part.answer.ultraserver_modes}

        assert modes_with(NO_STEERING) == {4}
        assert modes_with(Steering(policies=(("mode", "off"),), mode=Mode.OFF, locked=True)) == set()
