"""A pod that only dynamic pools can take is left as it is, unless an admin says that these serve claims."""

import itertools
from typing import Any

import jsonpatch
import pytest

from conversion.asks.conversion_context import ConversionOptions, conversion_context
from conversion.asks.steering import Mode, Steering
from conversion.claims.pools import NO_SUPPLY, StaticNode, Supply
from conversion.decide import decide_pod
from conversion.facts import NO_FACTS, NamespaceFacts
from conversion.findings.pod_findings import unread
from conversion.objects import pods
from conversion.patches.decision import Decision, Outcome
from neuron.api.node_pools import LabelRule, Pool, read_pool
from neuron.hardware.instances import Catalogue, Observation
from tests.support.clusters import FakeCluster

FIX = (
    "Run it on a managed or self-managed node group, or in a NodePool with replicas. If Karpenter makes nodes for pods"
    ' with Neuron claims, set --karpenter-serves-claims, or neuron.aws.com/karpenter-serves-claims: "true" on the'
    " Namespace."
)
SERVES = NamespaceFacts(annotations=(("neuron.aws.com/karpenter-serves-claims", "true"),))
TYPE = "node.kubernetes.io/instance-type"
BY_NAME = {"nodeSelector": {"karpenter.sh/nodepool": "neuron"}}
BY_LABEL = {"nodeSelector": {"team/accelerator": "neuron"}}
TRN1 = {"nodeSelector": {TYPE: "trn1.32xlarge"}}


def pool(name: str = "neuron", *types: str, replicas: int | None = None, **more: Any) -> Pool:
    template = {
        "metadata": {"labels": {"team/accelerator": "neuron"}},
        "spec": {"requirements": [within(TYPE, *(types or ("trn1.32xlarge",)))], **more},
    }
    found = read_pool("NodePool", {"metadata": {"name": name}, "spec": {"template": template, "replicas": replicas}})
    assert found is not None
    return found


AUTO = {"nodeClassRef": {"group": "eks.amazonaws.com", "kind": "NodeClass", "name": "default"}}


def static(name: str, **labels: str) -> StaticNode:
    return StaticNode(name, tuple(sorted({TYPE: name, **labels}.items())))


def supplied_cluster(*supplied: Pool | StaticNode, problem: str = "") -> FakeCluster:
    """A cluster with these pools, and these nodes that no pool made."""
    pools = tuple(each for each in supplied if isinstance(each, Pool))
    nodes = frozenset(each for each in supplied if isinstance(each, StaticNode))
    seen = {each.instance_type: Observation(0, labels=(each.instance_type,)) for each in nodes}
    return FakeCluster(seen=seen, supplied=Supply(pools, nodes=nodes, problem=problem))


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
    "a NodePool that is not known": (BY_NAME, supplied_cluster()),
    "a NodePool": (BY_NAME, supplied_cluster(pool())),
    "a NodePool beside a static one": (BY_NAME, supplied_cluster(pool(), pool("other", replicas=2))),
    "the pool's own label": (BY_LABEL, supplied_cluster(pool())),
    "the pool's own label by affinity": (
        affine([within("team/accelerator", "neuron", "gpu")]),
        supplied_cluster(pool()),
    ),
    "a type": (TRN1, supplied_cluster(pool())),
    "another type of the same pool": (
        {"nodeSelector": {TYPE: "trn1.32xlarge"}},
        supplied_cluster(pool("neuron", "trn1.2xlarge", "trn1.32xlarge")),
    ),
    "no selection": ({}, supplied_cluster(pool())),
    "a static pool of another type": (TRN1, supplied_cluster(pool(), pool("fixed", "trn2.48xlarge", replicas=1))),
    "a static pool without nodes": (BY_LABEL, supplied_cluster(pool(), pool("fixed", replicas=0))),
    "a static pool with a taint": (
        BY_LABEL,
        supplied_cluster(pool(), pool("fixed", replicas=1, taints=[{"key": "a", "effect": "NoSchedule"}])),
    ),
    "a node of another type": (TRN1, supplied_cluster(pool(), static("trn2.48xlarge"))),
    "a node without the label": (BY_LABEL, supplied_cluster(pool(), static("trn1.32xlarge"))),
    "a label of Karpenter's provider": (
        {"nodeSelector": {"karpenter.k8s.aws/instance-family": "trn1"}},
        supplied_cluster(),
    ),
    "a number that only nodes of Karpenter have": (
        affine([{"key": "karpenter.k8s.aws/instance-accelerator-count", "operator": "Gt", "values": ["8"]}]),
        supplied_cluster(),
    ),
    "an old Provisioner": ({"nodeSelector": {"karpenter.sh/provisioner-name": "neuron"}}, supplied_cluster()),
    "EKS Auto Mode": ({"nodeSelector": {"eks.amazonaws.com/compute-type": "auto"}}, supplied_cluster()),
    "a label of EKS Auto Mode": ({"nodeSelector": {"eks.amazonaws.com/instance-family": "trn1"}}, supplied_cluster()),
    "a static pool of EKS Auto Mode": (BY_NAME, supplied_cluster(pool(replicas=2, **AUTO))),
    "each term of affinity": (
        affine([within("karpenter.sh/nodepool", "a")], [{"key": "karpenter.sh/nodepool", "operator": "Exists"}]),
        supplied_cluster(),
    ),
}
CONVERTED: dict[str, tuple[dict[str, Any], FakeCluster]] = {
    "nothing known": (TRN1, supplied_cluster()),
    "a node of its type": (TRN1, supplied_cluster(pool(), static("trn1.32xlarge"))),
    "a node with the label": (
        BY_LABEL,
        supplied_cluster(pool(), static("trn1.32xlarge", **{"team/accelerator": "neuron"})),
    ),
    "a static NodePool of its type": (TRN1, supplied_cluster(pool(), pool("fixed", replicas=1))),
    "a static NodePool that it names": (BY_NAME, supplied_cluster(pool(replicas=3))),
    "a static NodePool without nodes that it names": (BY_NAME, supplied_cluster(pool(replicas=0))),
    "the own label of a static NodePool": (BY_LABEL, supplied_cluster(pool(replicas=3))),
    "one of two NodePools is static": (
        affine([within("karpenter.sh/nodepool", "a", "b")]),
        supplied_cluster(pool("a"), pool("b", replicas=1)),
    ),
    "a static NodePool of its family, which it does not name": (
        {"nodeSelector": {"karpenter.k8s.aws/instance-family": "trn1"}},
        supplied_cluster(pool("fixed", replicas=1)),
    ),
    "a term without Karpenter": (
        affine([within("karpenter.sh/nodepool", "a")], [within("eks.amazonaws.com/nodegroup", "b")]),
        supplied_cluster(),
    ),
    "nodes without Karpenter": (
        affine([{"key": "karpenter.sh/nodepool", "operator": "DoesNotExist"}]),
        supplied_cluster(pool()),
    ),
    "not Auto Mode": (affine([within("eks.amazonaws.com/compute-type", "auto", "hybrid")]), supplied_cluster()),
    "excluding Auto Mode": (
        affine([{"key": "eks.amazonaws.com/compute-type", "operator": "NotIn", "values": ["auto"]}]),
        supplied_cluster(),
    ),
    "a type that no pool has": ({"nodeSelector": {TYPE: "trn2.48xlarge"}}, supplied_cluster(pool())),
    "pools that are not known": (TRN1, supplied_cluster(problem="nodepools.karpenter.sh: forbidden")),
}


@pytest.mark.parametrize(("spec", "view"), LEFT.values(), ids=LEFT)
def test_a_pod_for_whose_claim_no_node_is_made_is_left(spec: dict[str, Any], view: FakeCluster) -> None:
    decision = decide(spec, view)
    assert (decision.outcome, decision.reason, decision.patch) == (Outcome.UNCHANGED, "autoscaled", ())
    finding = decision.warnings[0]
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


HISTORIES = {
    "none": {},
    "a node of the pool": {"trn1.32xlarge": Observation(16, (4, 8, 16), labels=("trn1.32xlarge",), pooled=True)},
    "a node of another pool": {"inf2.xlarge": Observation(1, labels=("inf2.xlarge",), pooled=True)},
}


@pytest.mark.parametrize("spec", [{}, TRN1, BY_NAME, BY_LABEL], ids=["any", "type", "name", "label"])
@pytest.mark.parametrize("replicas", [None, 0, 2])
@pytest.mark.parametrize("serves", [False, True])
def test_what_a_process_saw_of_pools_changes_nothing(spec: dict[str, Any], replicas: int | None, serves: bool) -> None:
    supplied = supplied_cluster(pool(replicas=replicas)).supplied
    answers = [
        decide(spec, FakeCluster(seen=seen, supplied=supplied), karpenter_serves_claims=serves)
        for seen in HISTORIES.values()
    ]
    for one, other in itertools.pairwise(answers):
        assert (one.outcome, one.patch, one.warnings) == (other.outcome, other.patch, other.warnings)


def test_a_claim_for_a_static_pool_is_for_its_types() -> None:
    decision = decide(BY_NAME, supplied_cluster(pool("neuron", "inf2.xlarge", "inf2.8xlarge", replicas=1)), devices="1")
    (affinity,) = [each["value"] for each in decision.patch if each["path"] == "/spec/affinity"]
    terms = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [{"matchExpressions": [within(TYPE, "inf2.8xlarge", "inf2.xlarge")]}]
    assert decision.warnings == ()


def test_another_value_of_the_annotation_changes_nothing() -> None:
    [(key, _)] = SERVES.annotations
    assert decide(BY_NAME, supplied_cluster(), NamespaceFacts(annotations=((key, "yes"),))).reason == "autoscaled"


GROUP = Pool("MachineDeployment", "md", (LabelRule(TYPE, "In", ("trn1.32xlarge",)),))


@pytest.mark.parametrize(
    ("spec", "view", "message"),
    [
        (
            BY_LABEL,
            supplied_cluster(pool("a"), pool("b")),
            "nodes for the pod come from NodePools a, b only, and Karpenter makes none for a pod with a claim: the pod"
            " is left as it is.",
        ),
        (
            BY_NAME,
            supplied_cluster(pool(replicas=2, **AUTO)),
            "nodes for the pod come from NodePool neuron only, and the driver cannot run on nodes of EKS Auto Mode: the"
            " pod is left as it is.",
        ),
        (
            TRN1,
            supplied_cluster(GROUP),
            "nodes for the pod come from MachineDeployment md only, and Cluster Autoscaler makes none for this claim:"
            " the pod is left as it is.",
        ),
        (
            BY_NAME,
            supplied_cluster(),
            "the pod selects nodes by karpenter.sh/nodepool, which only nodes of Karpenter or EKS Auto Mode have, and"
            " neither makes a node for a pod with a claim: the pod is left as it is.",
        ),
        (
            BY_NAME,
            supplied_cluster(problem="no answer"),
            "the pod selects nodes by karpenter.sh/nodepool, which only nodes of Karpenter or EKS Auto Mode have, and"
            " neither makes a node for a pod with a claim: the pod is left as it is. It is not known whether a static"
            " pool can take it: no answer.",
        ),
    ],
    ids=["pools", "auto-mode", "group", "label", "label-unknown"],
)
def test_the_message_names_the_pool_or_the_label(spec: dict[str, Any], view: FakeCluster, message: str) -> None:
    assert decide(spec, view).warnings[0].message == message


def test_the_pool_with_the_highest_weight_is_named_first() -> None:
    light, heavy = pool("a"), pool("b")
    heavy = Pool(heavy.kind, heavy.name, heavy.rules, weight=10)
    assert "NodePools b, a only" in decide(TRN1, supplied_cluster(light, heavy)).warnings[0].message


def test_an_object_of_a_wrong_form_is_said() -> None:
    bad = {"metadata": {"name": "a"}, "spec": {"template": {"spec": {"requirements": {"key": "b"}}}}}
    [finding] = unread("karpenter.sh", "NodePool", bad)
    assert finding.path == "spec.template.spec.requirements"
    assert str(finding) == (
        "NEU905: NodePool a cannot be read: Expected `array | null`, got `object`. Pods are decided without what"
        " cannot be read. kubectl refuses the object: correct the field."
    )
    assert not [*unread("karpenter.sh", "NodePool", {"metadata": {"name": "a"}})]


POOL_OF_SLICE = {"driver": "neuron.aws.com", "pool": {"name": "a", "generation": "1"}}


@pytest.mark.parametrize(
    ("group", "kind", "wrong", "path"),
    [
        ("karpenter.k8s.aws", "EC2NodeClass", {"status": 4}, "status"),
        ("", "Node", {"spec": {"taints": {"key": "a"}}}, "spec.taints"),
        ("", "Namespace", {"metadata": {"name": "a", "labels": ["a"]}}, "metadata.labels"),
        ("", "ResourceQuota", {"spec": {"hard": ["requests.aws.amazon.com/neuron"]}}, "spec.hard"),
        ("", "LimitRange", {"spec": {"limits": {"type": "Container"}}}, "spec.limits"),
        ("resource.k8s.io", "ResourceSlice", {"spec": POOL_OF_SLICE}, "spec.pool.generation"),
    ],
)
def test_objects_on_which_pods_depend_are_said_if_they_have_a_wrong_form(
    group: str, kind: str, wrong: dict[str, Any], path: str
) -> None:
    [finding] = unread(group, kind, {"metadata": {"name": "a"}, **wrong})
    assert (finding.code, finding.path) == ("NEU905", path)
    assert finding.message.startswith(f"{kind} a cannot be read: Expected ")
    assert not [*unread("example.com", kind, {"metadata": {"name": "a"}, **wrong})]


def test_a_setting_of_a_namespace_that_is_no_text_is_said() -> None:
    [finding] = unread("", "Namespace", {"metadata": {"name": "a", "annotations": {"neuron.aws.com/convert": False}}})
    assert finding.fix.startswith("It has to be text: write the value in quotes.")


def test_pools_that_are_not_known_are_said() -> None:
    [finding] = [each for each in decide(TRN1, supplied_cluster(problem="no answer")).warnings if each.code == "NEU905"]
    assert finding.message == (
        "it is not known whether an autoscaler makes the nodes of this pod: no answer. The pod is converted; if only a"
        " dynamic pool can take it, it stays Pending."
    )
    assert "or correct what cannot be read" in finding.fix
    known = supplied_cluster(static("trn1.32xlarge"), problem="no answer")
    assert "NEU905" not in {each.code for each in decide(TRN1, known).warnings}


UNMET: dict[str, tuple[dict[str, Any], str, str]] = {
    "nodeSelector workload=head": ({"nodeSelector": {"workload": "head"}}, "spec.nodeSelector[workload]"),
    "nodeSelector team/accelerator=gpu": (
        {"nodeSelector": {"team/accelerator": "gpu"}},
        "spec.nodeSelector[team/accelerator]",
    ),
    "node affinity workload In head, tail": (
        affine([within("workload", "head", "tail")]),
        "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution",
    ),
    "the node selection of the pod": ({"nodeSelector": {"team/accelerator": "neuron", "a": "b"}}, "spec"),
}


@pytest.mark.parametrize(("what", "spec", "path"), [(what, *row) for what, row in UNMET.items()], ids=UNMET)
def test_a_selection_that_nothing_meets_is_said(spec: dict[str, Any], path: str, what: str) -> None:
    decision = decide(spec, supplied_cluster(pool(), static("trn1.32xlarge", a="b")))
    [finding] = [each for each in decision.warnings if each.code == "NEU228"]
    assert (decision.outcome, finding.path) == (Outcome.CONVERTED, path)
    assert finding.message == f"no Neuron node and no pool that is known meets {what}: the pod waits until one does."


def test_pools_that_have_the_labels_and_cannot_take_the_pod_are_said() -> None:
    tainted = pool(replicas=1, taints=[{"key": "team", "effect": "NoSchedule"}])
    decision = decide({"nodeSelector": {"team/accelerator": "neuron"}}, supplied_cluster(tainted))
    [finding] = [each for each in decision.warnings if each.code == "NEU228"]
    assert (decision.outcome, finding.path) == (Outcome.CONVERTED, "spec")
    assert finding.message.startswith("only NodePool ")
    assert finding.message.endswith("a limit, or a taint that it does not tolerate. The pod waits.")
    assert "NEU228" not in {each.code for each in decide({}, supplied_cluster(tainted)).warnings}


@pytest.mark.parametrize(
    "view", [supplied_cluster(), supplied_cluster(problem="no answer")], ids=["nothing known", "unknown"]
)
def test_nothing_is_said_of_selections_where_nothing_is_known(view: FakeCluster) -> None:
    assert "NEU228" not in {each.code for each in decide({"nodeSelector": {"workload": "head"}}, view).warnings}


def test_a_count_that_conversion_refuses_is_left_too() -> None:
    assert decide(BY_NAME, supplied_cluster(pool()), devices="7").reason == "autoscaled"
    assert decide(TRN1, supplied_cluster(static("trn1.32xlarge")), devices="7").outcome is Outcome.DENIED


def test_only_the_types_that_can_serve_the_pod_count() -> None:
    view = supplied_cluster(pool(), static("trn1.2xlarge"))
    assert decide({}, view, devices="4").reason == "autoscaled"
    assert decide({}, view, devices="1").outcome is Outcome.CONVERTED


def test_a_selection_that_admits_no_type_is_denied() -> None:
    spec = {"nodeSelector": {TYPE: "m5.large", "karpenter.sh/nodepool": "neuron"}}
    assert decide(spec, supplied_cluster(pool())).outcome is Outcome.DENIED


def test_a_locked_policy_refuses_the_pod() -> None:
    decision = decide(BY_NAME, supplied_cluster(), steering=Steering((("mode", "p"),), Mode.CONVERT, locked=True))
    assert (decision.outcome, [each.code for each in decision.errors]) == (Outcome.DENIED, ["NEU903"])


def test_families_of_a_policy_count() -> None:
    steering = Steering((("families", "p"),), families=("trn2",))
    assert decide({}, supplied_cluster(pool()), steering=steering).outcome is Outcome.CONVERTED


def test_shadow_mode_says_it_too() -> None:
    decision = decide(BY_NAME, supplied_cluster(), mode=Mode.SHADOW)
    assert (decision.outcome, [each.code for each in decision.warnings]) == (Outcome.UNCHANGED, ["NEU903"])


@pytest.mark.parametrize("later", [NO_SUPPLY, supplied_cluster(pool()).supplied], ids=["none", "dynamic"])
def test_a_pod_that_was_converted_keeps_its_claim(later: Supply) -> None:
    container = {"name": "main", "image": "a", "resources": {"limits": {"aws.amazon.com/neuron": "4"}}}
    manifest = {"metadata": {"name": "p"}, "spec": {"containers": [container], **BY_LABEL}}
    context = conversion_context(ConversionOptions(), Catalogue(), supplied_cluster(pool(replicas=1)))
    first = decide_pod(pods.view(manifest), NO_FACTS, context)
    converted = jsonpatch.apply_patch(manifest, list(first.patch))
    context = conversion_context(ConversionOptions(), Catalogue(), FakeCluster(supplied=later))
    assert decide_pod(pods.view(converted), NO_FACTS, context).reason == "already-converted"
