"""What users write into records, hints and lists takes time in proportion to its size."""

import asyncio
import copy
import json
import time
from typing import Any

import jsonpatch
import pytest

from conversion.patches.decision import MOST_BYTES, Decision, size_of
from tests.support.clusters import mutator, request
from tests.support.manifests import NEURON, container, pod
from tests.support.timing import assert_below
from webhook.edge import reviews

RECORD = "neuron.aws.com/converted-from"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
TYPE = "node.kubernetes.io/instance-type"
SECONDS = 2.0
"""CPU time, asserted by `make timed-test`; each of these took from five seconds to minutes."""


def quick(manifest: Any, *args: Any) -> Decision:
    subject, review = mutator(), request(manifest, *args)
    started = time.process_time()
    decision = asyncio.run(subject.review(review))
    assert_below(time.process_time() - started, SECONDS)
    return decision


def converted_pod(**hints: Any) -> Any:
    manifest = pod(container(neuron="4"))
    made = jsonpatch.apply_patch(manifest, list(asyncio.run(mutator().review(request(manifest))).patch))
    if hints:
        annotations = made["metadata"]["annotations"]
        annotations[RECORD] = json.dumps(json.loads(annotations[RECORD]) | {"hints": hints})
    return made


def tolerations(count: int) -> list[dict[str, Any]]:
    return [{"key": f"k{index}", "operator": "Exists"} for index in range(count)]


def expressions(count: int) -> list[dict[str, Any]]:
    return [{"key": f"k{index}", "operator": "Exists"} for index in range(count)]


def requiring(*terms: Any) -> dict[str, Any]:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}


def preferring(count: int) -> list[dict[str, Any]]:
    return [{"weight": 1, "preference": {"matchExpressions": [each]}} for each in expressions(count)]


class TestUpdate:
    """The record of the old object lists added fields that the new object lacks."""

    @pytest.mark.parametrize("count", [128, 1000, 4500])
    def test_tolerations(self, count: int) -> None:
        old = converted_pod(tolerations=tolerations(count))
        old["spec"]["tolerations"] = tolerations(count)
        new = pod(container(neuron="4"), tolerations=[{"key": f"n{index}"} for index in range(count)])
        assert quick(new, "UPDATE", old).allowed

    def test_tolerations_of_three_bytes(self) -> None:
        old = converted_pod(tolerations=[{}] * 4500)
        old["spec"]["tolerations"] = [{}] * 4500
        assert quick(pod(container(neuron="4"), tolerations=[{}] * 18_000), "UPDATE", old).allowed

    @pytest.mark.parametrize("count", [128, 3000])
    def test_requirements_of_terms(self, count: int) -> None:
        old = converted_pod(nodeAffinity={"required": expressions(count)})
        old["spec"]["affinity"] = requiring(*({"matchExpressions": [each]} for each in expressions(500)))
        new = pod(container(neuron="4"), affinity=requiring(*({"matchFields": [{}]} for _ in range(500))))
        assert quick(new, "UPDATE", old).allowed

    @pytest.mark.parametrize("count", [128, 2500])
    def test_preferences(self, count: int) -> None:
        old = converted_pod(nodeAffinity={"preferred": preferring(count)})
        old["spec"]["affinity"] = {"nodeAffinity": {PREFERRED: preferring(300)}}
        new = pod(container(neuron="4"), affinity={"nodeAffinity": {PREFERRED: preferring(300)[::-1]}})
        assert quick(new, "UPDATE", old).allowed

    def test_containers_of_one_name(self) -> None:
        old = converted_pod()
        old["spec"]["containers"][0]["resources"]["claims"] += [{"name": f"c{index}"} for index in range(20_000)]
        new = pod(*(container(neuron="4") for _ in range(512)))
        decision = quick(new, "UPDATE", old)
        assert (decision.outcome, decision.reason) == ("unchanged", "duplicate-names")

    def test_references(self) -> None:
        old = converted_pod()
        old["spec"]["containers"][0]["resources"]["claims"] *= 20_000
        new = copy.deepcopy(old)
        new["spec"]["containers"][0]["resources"]["claims"] = [{"name": f"c{index}"} for index in range(20_000)]
        assert not quick(new, "UPDATE", old).allowed

    def test_variables(self) -> None:
        many = [{"name": f"V{index}"} for index in range(20_000)]
        manifest = pod(*(container(f"c{index}", neuroncore="1") | {"env": many} for index in range(16)))
        old = jsonpatch.apply_patch(manifest, list(quick(manifest).patch))
        assert quick(manifest, "UPDATE", old).allowed

    def test_a_record_of_443_kilobytes(self) -> None:
        old = converted_pod(tolerations=tolerations(9000))
        decision = quick(pod(container(neuron="4")), "UPDATE", old)
        assert decision.reason == "not-converted"


def test_a_restoring_patch_that_is_too_large_for_an_answer_is_not_made() -> None:
    """The record of the old object is longer than any conversion writes."""
    old = converted_pod(tolerations=tolerations(1000))
    old["spec"]["tolerations"] = tolerations(1000)
    decision = quick(pod(container(neuron="4"), tolerations=[]), "UPDATE", old)
    assert (decision.reason, decision.patch) == ("too-large", ())
    old = converted_pod(tolerations=tolerations(100))
    old["spec"]["tolerations"] = tolerations(100)
    assert len(quick(pod(container(neuron="4"), tolerations=[]), "UPDATE", old).patch) > 100


class TestCreate:
    """A pod whose author wrote the label and record of a conversion, with added fields."""

    @pytest.mark.parametrize("count", [128, 2500])
    def test_preferences(self, count: int) -> None:
        forged = converted_pod(nodeAffinity={"preferred": preferring(count), "required": expressions(count)})
        forged["spec"]["affinity"] = {"nodeAffinity": {PREFERRED: preferring(300)}}
        assert quick(forged).allowed

    def test_own_claims(self) -> None:
        own = [{"name": f"c{index}", "resourceClaimTemplateName": f"t{index}"} for index in range(10_000)]
        (error,) = quick(pod(container(neuron="4"), resourceClaims=own)).errors
        assert (error.code, error.path) == ("NEU114", "spec.resourceClaims")

    def test_references(self) -> None:
        many = container(neuron="4")
        many["resources"]["claims"] = [{"name": f"c{index}"} for index in range(50_000)]
        assert quick(pod(many)).allowed

    def test_a_long_node_selector_is_quoted_in_part(self) -> None:
        many = {f"k{index}": "v" * 40 for index in range(1000)} | {
            TYPE: "trn1.32xlarge",
            "beta.kubernetes.io/instance-type": "trn2.48xlarge",
        }
        (error,) = quick(pod(container(neuron="4"), nodeSelector=many)).errors
        assert error.code == "NEU110"
        assert "and 986 more" in error.message
        assert len(error.message) < 2000

    def test_terms(self) -> None:
        terms = [{"matchFields": [{}]} for _ in range(64)]
        decision = quick(pod(container(neuron="4"), affinity=requiring(*terms)))
        assert decision.allowed
        assert len(decision.patch) < 16

    @pytest.mark.parametrize("count", [65, 500])
    def test_too_many_terms(self, count: int) -> None:
        terms = [{"matchFields": [{}]} for _ in range(count)]
        (error,) = quick(pod(container(neuron="4"), affinity=requiring(*terms))).errors
        assert str(error) == (
            f"NEU114: the pod has too many node selector terms: {count}, at most 64. Write it with fewer terms."
        )
        assert error.path == f"spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms"

    def test_a_patch_that_is_too_large_for_an_answer_is_not_made(self) -> None:
        terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["x" * 900]}]}] * 64
        (error,) = quick(pod(container(neuron="4"), affinity=requiring(*terms))).errors
        assert error.code == "NEU114"
        assert "the patch that converts it has" in error.message

    def test_the_largest_patch_fits_into_an_answer(self) -> None:
        allowed = 0
        for length in range(0, 900, 50):
            terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["é" * length]}]}] * 64
            manifest = pod(container(neuron="4"), affinity=requiring(*terms))
            decision = quick(manifest)
            allowed += decision.allowed
            assert len(reviews.encode(request(manifest), decision)) < 64 * 1024
        assert 0 < allowed < 18

    def test_more_affinity_terms_than_the_limit_are_denied(self) -> None:
        (error,) = quick(pod(container(neuron="4"), affinity=requiring(*[{}] * 1100))).errors
        assert error.message == ("the pod is too large: spec.affinity has 1103 entries, at most 1024.")

    def test_containers_of_one_name_are_refused_with_the_place(self) -> None:
        (error,) = quick(pod(*(container(neuron="4") for _ in range(512)))).errors
        assert str(error) == (
            "NEU114: two containers of the pod are called 'main'. Give every container a name of its own."
        )
        assert error.path == "spec.containers[1].name"

    def test_long_names_are_cut_in_messages(self) -> None:
        long = "x" * 200_000
        told = [
            *quick(pod(container(long, neuron="7"))).errors,
            *quick(pod(container(long, neuron="many"))).errors,
            *quick(pod(container("a" + long, neuron="4"), container("a" + long))).errors,
            *quick(pod(container(neuron="4"), nodeName=long)).warnings,
            *quick(pod(container(neuron="4"), schedulerName=long)).warnings,
            *quick(pod(container(long[:1000], neuroncore="3"))).warnings,
            *quick(pod(container(neuron="4"), nodeSelector={TYPE: long[:60_000]})).errors,
        ]
        assert len(told) == 8
        assert max(len(str(finding)) for finding in told) < 500
        assert max(len(finding.value) for finding in told) <= 100


def test_a_record_above_the_size_limit_is_not_written() -> None:
    zeros = [container(f"{index:03}" + "x" * 400, neuron="0") for index in range(500)]
    (error,) = quick(pod(container(neuron="4"), *zeros)).errors
    assert error.code == "NEU114"
    assert "the record of its conversion has" in error.message


def test_the_largest_converted_pod_is_recognised_as_converted() -> None:
    manifest = pod(container(neuron="4"), *(container(f"{index:063}", neuron="0") for index in range(150)))
    first = quick(manifest)
    assert size_of(first.patch) > MOST_BYTES * 3 / 4
    made = jsonpatch.apply_patch(manifest, list(first.patch))
    assert quick(made).reason == "already-converted"
    assert NEURON not in json.dumps(made["spec"]["containers"])
