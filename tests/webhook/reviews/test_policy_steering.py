"""What policies say where no pod is created: LeaderWorkerSets, pod templates, claims; what a locked one overrules."""

import asyncio
import itertools
import json
from typing import Any

import jsonpatch
import pytest

from cluster.store import Store
from conversion.asks.steering import NO_STEERING
from conversion.facts import NamespaceFacts
from conversion.patches.decision import Decision, Outcome
from kubecel_tests.evaluating import frozen_clock
from policies.applying.steering import SteeringRefusedError, find_steering
from policies.files.loader import load
from policies.judging.evaluate import TakesLongError
from policies.judging.rules import PolicySet
from policies.judging.subjects import of_object
from tests.support.clusters import FakeCluster, mutator, request
from tests.support.manifests import container, pod
from tests.support.neuron_policies import neuron_policy
from tests.support.trainium import trainium
from webhook.reviews.policy_requests import Allowance
from webhook.reviews.policy_steering import PolicySteer
from webhook.reviews.validate import Validator


def policies_of_kinds(**kinds: dict[str, Any]) -> PolicySet:
    """One policy of every kind given, named as its kind."""
    return load({f"{kind}.json": neuron_policy(kind, kind.lower(), **spec) for kind, spec in kinds.items()})


def test_both_kinds_are_found_each_by_its_own_match() -> None:
    found = policies_of_kinds(
        ConversionPolicy={"families": ["trn2"], "unconnected": "Allow"},
        SchedulingHintPolicy={
            "match": {"objectSelector": {"matchLabels": {"app": "x"}}},
            "labels": {"action": "Add", "items": {"team": "ml", "app": "y"}},
        },
    )
    steering, errors = find_steering(found, of_object(pod(labels={"app": "x"})), frozen_clock)
    assert errors == ()
    assert steering.policies == (("families", "conversionpolicy"), ("unconnected", "conversionpolicy"))
    assert (steering.families, steering.unconnected) == (("trn2",), True)
    assert (steering.hints.policy, steering.labels) == ("schedulinghintpolicy", (("team", "ml"),))
    other, _ = find_steering(found, of_object(pod()), frozen_clock)
    assert (other.policy_names, other.hints.policy, other.labels) == (("conversionpolicy",), "", ())
    assert find_steering(policies_of_kinds(), of_object(pod()), frozen_clock) == (NO_STEERING, ())


def in_order(*specs: dict[str, Any]) -> PolicySet:
    """ConversionPolicies p0, p1, … in that order."""
    files = {
        f"{number}.json": neuron_policy("ConversionPolicy", f"p{number}", **{"order": number, **spec})
        for number, spec in enumerate(specs)
    }
    return load(files)


FAILS = {"conditions": [{"name": "a", "expression": "object.metadata.labels.none == 'x'"}]}


@pytest.mark.parametrize(
    ("specs", "expected", "values"),
    [
        pytest.param(
            [{"families": ["trn2"]}, {"logicalNeuronCore": 1}],
            {"families": "p0", "logicalNeuronCore": "p1"},
            {"families": ("trn2",), "lnc": 1, "mode": None},
            id="two policies with other settings are combined",
        ),
        pytest.param(
            [{"families": ["trn2"]}, {"families": ["trn1"], "mode": "shadow"}],
            {"families": "p0", "mode": "p1"},
            {"families": ("trn2",), "mode": "shadow"},
            id="the first policy with a setting decides it",
        ),
        pytest.param(
            [{"families": [], "logicalNeuronCore": None}, {"families": ["trn2"], "logicalNeuronCore": 2}],
            {"families": "p0", "logicalNeuronCore": "p0"},
            {"families": (), "lnc": None},
            id="an empty setting is a setting",
        ),
        pytest.param(
            [
                {"mode": "off"},
                {"mode": "convert", "locked": True, "bindsClaims": True, "families": ["trn2"], "logicalNeuronCore": 2},
            ],
            {"mode": "p0", "families": "p1", "logicalNeuronCore": "p1"},
            {"mode": "off", "locked": False, "binds_claims": False, "lnc_locked": True},
            id="locked and bindsClaims belong to the mode",
        ),
        pytest.param(
            [{"logicalNeuronCore": 1}, {"mode": "convert", "locked": True}],
            {"logicalNeuronCore": "p0", "mode": "p1"},
            {"locked": True, "lnc": 1, "lnc_locked": False},
            id="a locked policy locks its own settings only",
        ),
        pytest.param(
            [{"unconnected": "Deny", "efa": None, "deviceClass": None}, {"unconnected": "Allow", "efa": {}}],
            {"deviceClass": "p0", "unconnected": "p0", "efa": "p0"},
            {"unconnected": False, "efa": None, "device_class": None},
            id="the default, written out, is a setting",
        ),
        pytest.param(
            [{"queued": {"mode": "off"}}, {"mode": "convert", "locked": True}],
            {"mode": "p0"},
            {"mode": None, "locked": False, "queued": False},
            id="queued belongs to the mode",
        ),
        pytest.param(
            [{"families": ["trn2"]}, {"families": ["trn1"], "failurePolicy": "Fail", "match": FAILS}],
            {"families": "p0"},
            {"families": ("trn2",)},
            id="a policy without a further setting is not evaluated",
        ),
    ],
)
def test_each_setting_is_that_of_the_first_policy_that_has_it(
    specs: list[dict[str, Any]], expected: dict[str, str], values: dict[str, Any]
) -> None:
    steering, errors = find_steering(in_order(*specs), of_object(pod()), frozen_clock)
    assert errors == ()
    assert dict(steering.policies) == expected
    assert {name: getattr(steering, name) for name in values} == values


def test_a_later_policy_that_fails_closed_refuses_a_pod_that_an_earlier_one_matches() -> None:
    later = {"match": FAILS, "failurePolicy": "Fail", "logicalNeuronCore": 1}
    with pytest.raises(SteeringRefusedError, match="match condition 'a' failed"):
        find_steering(in_order({"families": ["trn2"]}, later), of_object(pod()), frozen_clock)


def test_an_annotation_overrides_the_lnc_of_a_policy_beside_a_locked_one() -> None:
    found = in_order({"logicalNeuronCore": 1}, {"mode": "convert", "locked": True})
    manifest = pod(container(neuron="1"), annotations={"neuron.aws.com/logical-neuron-core": "2"})
    decision = asyncio.run(mutator(policies=found).review(request(manifest)))
    assert [each.code for each in decision.warnings if each.code == "NEU214"] == []
    assert decision.outcome is Outcome.CONVERTED, decision
    assert decision.audit["conversion-policy"] == "p0, p1"
    assert '"logicalNeuronCore": 2' in json.dumps(decision.templates[0].spec)


def test_a_failure_names_its_policy() -> None:
    conditions = {"conditions": [{"name": "a", "expression": "object.metadata.labels.none == 'x'"}]}
    found = policies_of_kinds(
        SchedulingHintPolicy={"match": conditions, "leaderWorkerSet": {"exclusiveTopology": "Off"}},
        ConversionPolicy={"match": conditions, "mode": "off"},
    )
    steering, errors = find_steering(found, of_object(pod()), frozen_clock)
    assert steering == NO_STEERING
    assert [str(error).partition(": ")[0] for error in errors] == ["conversionpolicy", "schedulinghintpolicy"]


def test_a_policy_that_fails_closed_denies_pods_and_ignores_templates() -> None:
    conditions = {"conditions": [{"name": "a", "expression": "object.metadata.labels.none == 'x'"}]}
    found = policies_of_kinds(ConversionPolicy={"match": conditions, "mode": "convert", "locked": True})
    with pytest.raises(SteeringRefusedError, match="match condition 'a' failed: no such key: 'labels'"):
        find_steering(found, of_object(pod()), frozen_clock)
    steer = PolicySteer(found, Store(), lambda: 0.0)
    with pytest.raises(SteeringRefusedError):
        steer(request(pod()))
    assert steer.of_template(pod(), "team-a") == NO_STEERING


def test_a_long_evaluation_on_the_loop_raises_and_is_repeated_in_the_lane() -> None:
    quadratic = "object.spec.containers.all(c, object.spec.containers.all(d, d.name != 'x'))"
    match = {"conditions": [{"name": "a", "expression": quadratic}]}
    found = policies_of_kinds(ConversionPolicy={"match": match, "mode": "off"})
    ticks = itertools.count(0.0, 0.03)
    steer = PolicySteer(found, Store(), lambda: next(ticks))
    sent = request(pod(*[container(f"c{at}") for at in range(200)]))

    async def on_the_loop() -> None:
        with pytest.raises(TakesLongError):
            steer(sent)
        with steer.knowing(sent, NO_STEERING):
            assert steer(sent) is NO_STEERING

    asyncio.run(on_the_loop())
    patient = PolicySteer(found, Store(), lambda: 0.0)
    assert patient(sent).mode == "off", "no loop is running here, as in the lane's thread"


def test_a_namespace_without_allowance_is_evaluated_in_the_lane() -> None:
    found = policies_of_kinds(ConversionPolicy={"match": {}, "mode": "off"})
    steer = PolicySteer(found, Store(), allowance=Allowance(lambda: 0.0, most=0.0))
    sent = request(pod())

    async def on_the_loop() -> None:
        with pytest.raises(TakesLongError):
            steer(sent)

    asyncio.run(on_the_loop())
    assert steer(sent).mode == "off", "no loop is running here, as in the lane's thread"


# --- LeaderWorkerSets -------------------------------------------------------------------------------------------


def leader_worker_set(**labels: str) -> dict[str, Any]:
    worker = pod(container(neuron="16"), annotations={"neuron.aws.com/ultraserver-mode": "4"}, labels=labels)
    template = {"size": 4, "workerTemplate": {"metadata": worker["metadata"], "spec": worker["spec"]}}
    return {"metadata": {"name": "vllm"}, "spec": {"leaderWorkerTemplate": template}}


def place(found: PolicySet, **labels: str) -> Decision:
    sent = request(leader_worker_set(**labels), kind="LeaderWorkerSet", group="leaderworkerset.x-k8s.io")
    return asyncio.run(mutator(policies=found).review(sent))


def test_the_topology_of_a_leader_worker_set_is_switched_off_by_its_pod_template() -> None:
    match = {"objectSelector": {"matchLabels": {"group": "free"}}}
    found = policies_of_kinds(SchedulingHintPolicy={"match": match, "leaderWorkerSet": {"exclusiveTopology": "Off"}})
    off = place(found, group="free")
    assert (off.outcome, off.reason, off.patch) == ("unchanged", "topology-off-by-policy", ())
    assert off.audit == {"scheduling-hint-policy": "schedulinghintpolicy"}
    assert place(found).outcome == "hinted"


@pytest.mark.parametrize(("mode", "outcome"), [("off", "unchanged"), ("shadow", "unchanged"), ("convert", "hinted")])
def test_pods_that_a_policy_does_not_convert_need_no_topology(mode: str, outcome: str) -> None:
    assert place(policies_of_kinds(ConversionPolicy={"mode": mode})).outcome == outcome


# --- /validate --------------------------------------------------------------------------------------------------


def judge(found: PolicySet, manifest: dict[str, Any], kind: str, group: str) -> Decision:
    cluster = Store()
    steer = PolicySteer(found, cluster, lambda: 0.0).of_template
    validator = Validator(trainium(), found.catalogue, cluster, steer, policies=found)
    return asyncio.run(validator.review(request(manifest, kind=kind, group=group)))


def neuron_deployment(neuron: str, **labels: str) -> dict[str, Any]:
    made = pod(container(neuron=neuron), labels=labels)
    return {"spec": {"template": {"metadata": {"labels": labels}, "spec": made["spec"]}}}


def codes(decision: Decision) -> list[str]:
    return list(dict.fromkeys(finding.code for finding in (*decision.errors, *decision.warnings)))


def test_pods_of_a_workload_are_judged_by_their_policy() -> None:
    match = {"objectSelector": {"matchLabels": {"loose": "yes"}}}
    found = policies_of_kinds(ConversionPolicy={"match": match, "unconnected": "Allow"})
    assert codes(judge(found, neuron_deployment("7", loose="yes"), "Deployment", "apps")) == ["NEU215"]
    assert codes(judge(found, neuron_deployment("7"), "Deployment", "apps")) == ["NEU701", "NEU105"]
    off = policies_of_kinds(ConversionPolicy={"mode": "off"})
    assert codes(judge(off, neuron_deployment("7"), "Deployment", "apps")) == []


@pytest.mark.parametrize(
    "condition",
    [
        "object.metadata.ownerReferences[0].kind == 'ReplicaSet'",
        "object.metadata.namespace == 'team-a' && object.metadata.generateName == 'serve-'",
        "object.metadata.labels['kueue.x-k8s.io/queue-name'] == 'q'",
    ],
)
def test_policies_see_the_pods_of_a_workload_as_its_controller_creates_them(condition: str) -> None:
    off = policies_of_kinds(
        ConversionPolicy={"mode": "off", "match": {"conditions": [{"name": "c", "expression": condition}]}}
    )
    metadata = {"name": "serve", "labels": {"kueue.x-k8s.io/queue-name": "q"}}
    item = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, **neuron_deployment("7")}
    assert codes(judge(off, item, "Deployment", "apps")) == []


def test_the_claim_of_an_unconnected_count_is_not_refused_again() -> None:
    reviewer = mutator(policies=policies_of_kinds(ConversionPolicy={"families": ["trn1"], "unconnected": "Allow"}))
    (template,) = asyncio.run(reviewer.review(request(pod(container(neuron="7"))))).templates
    manifest = template.manifest("team-a")
    strict = judge(policies_of_kinds(), manifest, "ResourceClaimTemplate", "resource.k8s.io")
    assert codes(strict) == ["NEU520"]
    allowed = judge(
        policies_of_kinds(ConversionPolicy={"unconnected": "Allow"}),
        manifest,
        "ResourceClaimTemplate",
        "resource.k8s.io",
    )
    assert allowed.allowed
    assert codes(allowed) == ["NEU525"]


# --- locked policies --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "own", "namespace", "told"),
    [
        pytest.param("convert", "off", None, "metadata.annotations[neuron.aws.com/convert]", id="pod"),
        pytest.param("off", "convert", None, "metadata.annotations[neuron.aws.com/convert]", id="pod-switched-off"),
        pytest.param("shadow", "true", None, "metadata.annotations[neuron.aws.com/convert]", id="shadow"),
        pytest.param("convert", None, "off", "metadata.namespace", id="namespace"),
        pytest.param("convert", "true", None, None, id="agreed"),
        pytest.param("off", None, None, None, id="nothing-overruled"),
    ],
)
def test_a_locked_policy_reports_what_it_overrides(
    mode: str, own: str | None, namespace: str | None, told: str | None
) -> None:
    cluster = FakeCluster()
    if namespace is not None:
        cluster.namespaces["team-a"] = NamespaceFacts((("neuron.aws.com/convert", namespace),))
    annotations = {} if own is None else {"neuron.aws.com/convert": own}
    reviewer = mutator(cluster, policies=policies_of_kinds(ConversionPolicy={"mode": mode, "locked": True}))
    decision = asyncio.run(reviewer.review(request(pod(container(neuron="4"), annotations=annotations))))
    found = [finding for finding in decision.warnings if finding.code == "NEU214"]
    assert [finding.path for finding in found] == ([] if told is None else [told])
    owner = "the pod's" if own is not None else "the Namespace's"
    assert all(f"is locked to mode {mode}: {owner} annotation" in finding.message for finding in found)


def test_a_second_pass_does_not_repeat_what_a_locked_policy_overrides() -> None:
    reviewer = mutator(policies=policies_of_kinds(ConversionPolicy={"mode": "convert", "locked": True}))
    first = pod(container(neuron="4"), annotations={"neuron.aws.com/convert": "off"})
    again = jsonpatch.apply_patch(first, list(asyncio.run(reviewer.review(request(first))).patch))
    decision = asyncio.run(reviewer.review(request(again)))
    assert (decision.reason, decision.warnings) == ("already-converted", ())


@pytest.mark.parametrize(
    ("mode", "locked", "outcome"),
    [
        ("convert", True, "denied"),
        ("convert", False, "unchanged"),
        ("shadow", True, "would-be-denied"),
        ("shadow", False, "unchanged"),
        ("off", True, "unchanged"),
    ],
)
def test_a_locked_policy_refuses_what_others_leave(mode: str, locked: bool, outcome: str) -> None:
    reviewer = mutator(policies=policies_of_kinds(ConversionPolicy={"mode": mode, "locked": locked}))
    manifest = pod(container(neuron="4"), nodeSelector={"node.kubernetes.io/instance-type": "trn9.48xlarge"})
    decision = asyncio.run(reviewer.review(request(manifest)))
    assert (decision.reason if decision.outcome == "shadowed" else decision.outcome) == outcome
    assert decision.allowed is (outcome != "denied")


@pytest.mark.parametrize("locked", [True, False])
def test_a_record_of_the_user_does_not_change_what_a_locked_policy_leaves_to_a_class(locked: bool) -> None:
    rules = policies_of_kinds(ConversionPolicy={"mode": "convert-if-enriched", "locked": locked})
    first = pod(container(neuron="1"))
    stored = jsonpatch.apply_patch(first, list(asyncio.run(mutator().review(request(first))).patch))
    reviewer = mutator(FakeCluster(classes={"aws.amazon.com/neuron": "c"}), policies=rules)
    reason = "served-by-extended-resource-name" if locked else "already-converted"
    assert asyncio.run(reviewer.review(request(stored))).reason == reason


def test_a_policy_that_is_not_locked_overrides_nothing() -> None:
    reviewer = mutator(policies=policies_of_kinds(ConversionPolicy={"mode": "off"}))
    decision = asyncio.run(
        reviewer.review(request(pod(container(neuron="4"), annotations={"neuron.aws.com/convert": "convert"})))
    )
    assert (decision.outcome, decision.warnings) == ("converted", ())
