"""What policies say where no pod is created: LeaderWorkerSets, pod templates, claims; what a locked one overrules."""

import asyncio
import itertools
import json
import time
from typing import Any

import pytest

from policies.files.loader import load
from policies.judging.evaluate import TakesLongError
from policies.judging.policy_set import PolicySet
from policies.judging.subjects import of_object
from tests.support.clusters import FakeCluster, mutator, request
from tests.support.manifests import container, pod
from tests.support.trainium import trainium
from webhook.decisions.decision import Decision
from webhook.decisions.ports import NamespaceFacts
from webhook.decisions.steering import NO_STEERING
from webhook.reviews.policy_allowance import Allowance
from webhook.reviews.policy_steering import PolicySteer, SteeringRefusedError, find_steering
from webhook.reviews.validate import Validator
from webhook.server.standalone import StandaloneCluster


def policies(**kinds: dict[str, Any]) -> PolicySet:
    """One policy of every kind given, named as its kind."""
    return load(
        {
            f"{kind}.json": json.dumps(
                {
                    "apiVersion": "policy.neuron.aws.com/v1alpha1",
                    "kind": kind,
                    "metadata": {"name": kind.lower()},
                    "spec": {"order": 1, **spec},
                }
            ).encode()
            for kind, spec in kinds.items()
        }
    )


def test_both_kinds_are_found_each_by_its_own_match() -> None:
    found = policies(
        ConversionPolicy={"families": ["trn2"], "unconnected": "Allow"},
        SchedulingHintPolicy={
            "match": {"objectSelector": {"matchLabels": {"app": "x"}}},
            "labels": {"action": "Add", "items": {"team": "ml", "app": "y"}},
        },
    )
    steering, errors = find_steering(found, of_object(pod(labels={"app": "x"})), time.monotonic)
    assert errors == ()
    assert (steering.policy, steering.families, steering.unconnected) == ("conversionpolicy", ("trn2",), True)
    assert (steering.hints.policy, steering.labels) == ("schedulinghintpolicy", (("team", "ml"),))
    other, _ = find_steering(found, of_object(pod()), time.monotonic)
    assert (other.policy, other.hints.policy, other.labels) == ("conversionpolicy", "", ())
    assert find_steering(policies(), of_object(pod()), time.monotonic) == (NO_STEERING, ())


def test_a_failure_names_its_policy() -> None:
    conditions = {"conditions": [{"name": "a", "expression": "object.metadata.labels.none == 'x'"}]}
    found = policies(
        SchedulingHintPolicy={"match": conditions, "leaderWorkerSet": {"exclusiveTopology": "Off"}},
        ConversionPolicy={"match": conditions, "mode": "off"},
    )
    steering, errors = find_steering(found, of_object(pod()), time.monotonic)
    assert steering == NO_STEERING
    assert [str(error).partition(": ")[0] for error in errors] == ["conversionpolicy", "schedulinghintpolicy"]


def test_a_policy_that_fails_closed_denies_pods_and_ignores_templates() -> None:
    conditions = {"conditions": [{"name": "a", "expression": "object.metadata.labels.none == 'x'"}]}
    found = policies(ConversionPolicy={"match": conditions, "mode": "convert", "locked": True})
    with pytest.raises(SteeringRefusedError, match="match condition 'a' failed: no such key: 'labels'"):
        find_steering(found, of_object(pod()), time.monotonic)
    steer = PolicySteer(found, StandaloneCluster())
    with pytest.raises(SteeringRefusedError):
        steer(request(pod()))
    assert steer.of_template(pod(), "team-a") == NO_STEERING


def test_a_long_evaluation_on_the_loop_raises_and_is_repeated_in_the_lane() -> None:
    quadratic = "object.spec.containers.all(c, object.spec.containers.all(d, d.name != 'x'))"
    match = {"conditions": [{"name": "a", "expression": quadratic}]}
    found = policies(ConversionPolicy={"match": match, "mode": "off"})
    ticks = itertools.count(0.0, 0.03)
    steer = PolicySteer(found, StandaloneCluster(), lambda: next(ticks))
    sent = request(pod(*[container(f"c{at}") for at in range(200)]))

    async def on_the_loop() -> None:
        with pytest.raises(TakesLongError):
            steer(sent)
        with steer.knowing(sent, NO_STEERING):
            assert steer(sent) is NO_STEERING

    asyncio.run(on_the_loop())
    patient = PolicySteer(found, StandaloneCluster(), lambda: 0.0)
    assert patient(sent).mode == "off", "no loop is running here, as in the lane's thread"


def test_a_namespace_without_allowance_is_evaluated_in_the_lane() -> None:
    found = policies(ConversionPolicy={"match": {}, "mode": "off"})
    steer = PolicySteer(found, StandaloneCluster(), allowance=Allowance(lambda: 0.0, most=0.0))
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
    found = policies(SchedulingHintPolicy={"match": match, "leaderWorkerSet": {"exclusiveTopology": "Off"}})
    off = place(found, group="free")
    assert (off.outcome, off.reason, off.patch) == ("unchanged", "topology-off-by-policy", ())
    assert off.audit == {"scheduling-hint-policy": "schedulinghintpolicy"}
    assert place(found).outcome == "hinted"


@pytest.mark.parametrize(("mode", "outcome"), [("off", "unchanged"), ("shadow", "unchanged"), ("convert", "hinted")])
def test_pods_that_a_policy_does_not_convert_need_no_topology(mode: str, outcome: str) -> None:
    assert place(policies(ConversionPolicy={"mode": mode})).outcome == outcome


# --- /validate --------------------------------------------------------------------------------------------------


def judge(found: PolicySet, manifest: dict[str, Any], kind: str, group: str) -> Decision:
    cluster = StandaloneCluster()
    steer = PolicySteer(found, cluster).of_template
    validator = Validator(trainium(), found.catalogue, cluster, steer, policies=found)
    return asyncio.run(validator.review(request(manifest, kind=kind, group=group)))


def deployment(neuron: str, **labels: str) -> dict[str, Any]:
    made = pod(container(neuron=neuron), labels=labels)
    return {"spec": {"template": {"metadata": {"labels": labels}, "spec": made["spec"]}}}


def codes(decision: Decision) -> list[str]:
    return list(dict.fromkeys(finding.code for finding in (*decision.errors, *decision.warnings)))


def test_pods_of_a_workload_are_judged_by_their_policy() -> None:
    match = {"objectSelector": {"matchLabels": {"loose": "yes"}}}
    found = policies(ConversionPolicy={"match": match, "unconnected": "Allow"})
    assert codes(judge(found, deployment("7", loose="yes"), "Deployment", "apps")) == ["NEU215"]
    assert codes(judge(found, deployment("7"), "Deployment", "apps")) == ["NEU701", "NEU105"]
    off = policies(ConversionPolicy={"mode": "off"})
    assert codes(judge(off, deployment("7"), "Deployment", "apps")) == []


def test_the_claim_of_an_unconnected_count_is_not_refused_again() -> None:
    reviewer = mutator(policies=policies(ConversionPolicy={"families": ["trn1"], "unconnected": "Allow"}))
    (template,) = asyncio.run(reviewer.review(request(pod(container(neuron="7"))))).templates
    manifest = template.manifest("team-a")
    strict = judge(policies(), manifest, "ResourceClaimTemplate", "resource.k8s.io")
    assert codes(strict) == ["NEU520"]
    allowed = judge(
        policies(ConversionPolicy={"unconnected": "Allow"}), manifest, "ResourceClaimTemplate", "resource.k8s.io"
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
    reviewer = mutator(cluster, policies=policies(ConversionPolicy={"mode": mode, "locked": True}))
    decision = asyncio.run(reviewer.review(request(pod(container(neuron="4"), annotations=annotations))))
    found = [finding for finding in decision.warnings if finding.code == "NEU214"]
    assert [finding.path for finding in found] == ([] if told is None else [told])
    owner = "the pod's" if own is not None else "the Namespace's"
    assert all(f"is locked to mode {mode}: {owner} annotation" in finding.message for finding in found)


def test_a_policy_that_is_not_locked_overrides_nothing() -> None:
    reviewer = mutator(policies=policies(ConversionPolicy={"mode": "off"}))
    decision = asyncio.run(
        reviewer.review(request(pod(container(neuron="4"), annotations={"neuron.aws.com/convert": "convert"})))
    )
    assert (decision.outcome, decision.warnings) == ("converted", ())
