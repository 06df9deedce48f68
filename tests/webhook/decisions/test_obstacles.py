"""A pod whose nodes Karpenter makes is left as it is, unless a static NodePool or an admin says otherwise."""

from typing import Any

import jsonpatch
import pytest

from cluster.answers import NO_FACTS, NamespaceFacts
from neuron.hardware.instances import Catalogue, Observation
from tests.support.clusters import FakeCluster
from webhook.decisions import pods
from webhook.decisions.conversion_context import ConversionOptions, conversion_context
from webhook.decisions.decide import decide_pod
from webhook.decisions.decision import Decision, Outcome
from webhook.decisions.steering import Mode, Steering

FIX = (
    "Run it on a managed or self-managed node group, or in a NodePool with replicas. If Karpenter makes nodes for pods"
    ' with Neuron claims, set --karpenter-serves-claims, or neuron.aws.com/karpenter-serves-claims: "true" on the'
    " Namespace."
)
SERVES = NamespaceFacts(annotations=(("neuron.aws.com/karpenter-serves-claims", "true"),))
POOL = {"nodeSelector": {"karpenter.sh/nodepool": "neuron"}}
TRN1 = {"nodeSelector": {"node.kubernetes.io/instance-type": "trn1.32xlarge"}}


def cluster(*pools: str, static: tuple[str, ...] = (), name: str = "trn1.32xlarge") -> FakeCluster:
    """A cluster that had nodes of one type in these NodePools."""
    seen = {name: Observation(16, (4, 8, 16), pools=frozenset(pools))} if pools else {}
    return FakeCluster(seen=seen, pools=frozenset(static))


def affine(*terms: list[dict[str, Any]]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def within(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": list(values)}


def decide(
    spec: dict[str, Any],
    view: FakeCluster,
    facts: NamespaceFacts = NO_FACTS,
    devices: str = "4",
    steering: Steering | None = None,
    **options: Any,
) -> Decision:
    container = {"name": "main", "image": "a", "resources": {"limits": {"aws.amazon.com/neuron": devices}}}
    pod = pods.view({"metadata": {"name": "p"}, "spec": {"containers": [container], **spec}})
    context = conversion_context(ConversionOptions(**options), Catalogue(), view)
    return decide_pod(pod, facts, context, (), *([] if steering is None else [steering]))


LEFT: dict[str, tuple[dict[str, Any], FakeCluster]] = {
    "a NodePool": (POOL, cluster()),
    "a NodePool with nodes": (POOL, cluster("neuron")),
    "a NodePool beside a static one": (POOL, cluster("neuron", static=("other",))),
    "a label of Karpenter's provider": ({"nodeSelector": {"karpenter.k8s.aws/instance-family": "trn1"}}, cluster()),
    "an old Provisioner": ({"nodeSelector": {"karpenter.sh/provisioner-name": "neuron"}}, cluster()),
    "EKS Auto Mode": ({"nodeSelector": {"eks.amazonaws.com/compute-type": "auto"}}, cluster()),
    "a label of EKS Auto Mode": ({"nodeSelector": {"eks.amazonaws.com/instance-family": "trn1"}}, cluster()),
    "EKS Auto Mode, whose pool is static": (
        {"nodeSelector": {"eks.amazonaws.com/compute-type": "auto", **POOL["nodeSelector"]}},
        cluster(static=("neuron",)),
    ),
    "each term of affinity": (
        affine([within("karpenter.sh/nodepool", "a")], [{"key": "karpenter.sh/nodepool", "operator": "Exists"}]),
        cluster(),
    ),
    "no other nodes of its type": (TRN1, cluster("neuron")),
    "no other nodes in the cluster": ({}, cluster("neuron")),
    "nodes of EKS Auto Mode only": (TRN1, cluster("auto/neuron", static=("neuron",))),
}
CONVERTED: dict[str, tuple[dict[str, Any], FakeCluster]] = {
    "nothing known": (TRN1, cluster()),
    "other nodes of its type": (TRN1, cluster("neuron", "")),
    "a static NodePool of its type": (TRN1, cluster("neuron", "fixed", static=("fixed",))),
    "a static NodePool that it names": (POOL, cluster(static=("neuron",))),
    "one of two NodePools is static": (affine([within("karpenter.sh/nodepool", "a", "b")]), cluster(static=("b",))),
    "a static NodePool of its type, which it does not name": (
        {"nodeSelector": {"karpenter.k8s.aws/instance-family": "trn1"}},
        cluster("fixed", static=("fixed",)),
    ),
    "a term without Karpenter": (
        affine([within("karpenter.sh/nodepool", "a")], [within("eks.amazonaws.com/nodegroup", "b")]),
        cluster(),
    ),
    "nodes without Karpenter": (
        affine([{"key": "karpenter.sh/nodepool", "operator": "DoesNotExist"}]),
        cluster("neuron", ""),
    ),
    "not Auto Mode": (affine([within("eks.amazonaws.com/compute-type", "auto", "hybrid")]), cluster()),
    "excluding Auto Mode": (
        affine([{"key": "eks.amazonaws.com/compute-type", "operator": "NotIn", "values": ["auto"]}]),
        cluster(),
    ),
    "a type of which nodes were never seen": (
        {"nodeSelector": {"node.kubernetes.io/instance-type": "trn2.48xlarge"}},
        cluster("neuron"),
    ),
}


@pytest.mark.parametrize(("spec", "view"), LEFT.values(), ids=LEFT)
def test_a_pod_for_whose_claim_no_node_is_made_is_left(spec: dict[str, Any], view: FakeCluster) -> None:
    decision = decide(spec, view)
    assert (decision.outcome, decision.reason, decision.patch) == (Outcome.UNCHANGED, "autoscaled", ())
    [finding] = decision.warnings
    assert (finding.code, finding.fix, finding.severity.value) == ("NEU903", FIX, "warning")


@pytest.mark.parametrize(("spec", "view"), CONVERTED.values(), ids=CONVERTED)
def test_a_pod_that_other_nodes_may_take_is_converted(spec: dict[str, Any], view: FakeCluster) -> None:
    decision = decide(spec, view)
    assert decision.outcome is Outcome.CONVERTED
    assert "NEU903" not in {each.code for each in decision.warnings}


@pytest.mark.parametrize(("spec", "view"), LEFT.values(), ids=LEFT)
def test_an_admin_can_say_that_karpenter_serves_claims(spec: dict[str, Any], view: FakeCluster) -> None:
    assert decide(spec, view, karpenter_serves_claims=True).outcome is Outcome.CONVERTED
    assert decide(spec, view, SERVES).outcome is Outcome.CONVERTED


def test_another_value_of_the_annotation_changes_nothing() -> None:
    [(key, _)] = SERVES.annotations
    assert decide(POOL, cluster(), NamespaceFacts(annotations=((key, "yes"),))).reason == "autoscaled"


def test_the_messages_name_the_label_or_the_types() -> None:
    [by_label] = decide(POOL, cluster()).warnings
    assert by_label.message == (
        "the pod selects nodes by karpenter.sh/nodepool, which only nodes of Karpenter or EKS Auto Mode have, and"
        " neither makes a node for a pod with a claim: the pod is left as it is."
    )
    [by_type] = decide(TRN1, cluster("neuron")).warnings
    assert by_type.message == (
        "all nodes of trn1.32xlarge are of Karpenter or EKS Auto Mode, and neither makes a node for a pod with a claim:"
        " the pod is left as it is."
    )


def test_a_count_that_conversion_refuses_is_left_too() -> None:
    assert decide(POOL, cluster(), devices="7").reason == "autoscaled"
    assert decide(TRN1, cluster(), devices="7").outcome is Outcome.DENIED


def test_only_the_types_that_can_serve_the_pod_count() -> None:
    seen = {
        "trn1.32xlarge": Observation(16, (4, 8, 16), pools=frozenset({"neuron"})),
        "trn1.2xlarge": Observation(1, pools=frozenset({""})),
    }
    view = FakeCluster(seen=seen)
    assert decide({}, view, devices="4").reason == "autoscaled"
    assert decide({}, view, devices="1").outcome is Outcome.CONVERTED


def test_a_locked_policy_refuses_the_pod() -> None:
    decision = decide(POOL, cluster(), steering=Steering((("mode", "p"),), Mode.CONVERT, locked=True))
    assert (decision.outcome, [each.code for each in decision.errors]) == (Outcome.DENIED, ["NEU903"])


def test_shadow_mode_says_it_too() -> None:
    decision = decide(POOL, cluster(), mode=Mode.SHADOW)
    assert (decision.outcome, [each.code for each in decision.warnings]) == (Outcome.UNCHANGED, ["NEU903"])


def test_a_pod_that_was_converted_keeps_its_claim() -> None:
    container = {"name": "main", "image": "a", "resources": {"limits": {"aws.amazon.com/neuron": "4"}}}
    manifest = {"metadata": {"name": "p"}, "spec": {"containers": [container], **TRN1}}
    context = conversion_context(ConversionOptions(), Catalogue(), cluster())
    first = decide_pod(pods.view(manifest), NO_FACTS, context)
    converted = jsonpatch.apply_patch(manifest, list(first.patch))
    context = conversion_context(ConversionOptions(), Catalogue(), cluster("neuron"))
    assert decide_pod(pods.view(converted), NO_FACTS, context).reason == "already-converted"
