"""A user's claim with our name, from a template with a name like ours, in a pod with legacy limits."""

import asyncio
import copy
from typing import Any

import jsonpatch
import pytest

from conversion.patches.decision import Decision
from tests.support.clusters import FakeCluster, FakeTemplates, mutator, request
from tests.support.manifests import container, pod

TEMPLATE = "neuron-16-0123456789ab"
CLUSTER = FakeCluster(template_classes={("team-a", TEMPLATE): frozenset({"neuron.aws.com"})})


def decide_and_apply(manifest: Any, *args: Any) -> tuple[Decision, Any]:
    decision = asyncio.run(mutator(CLUSTER, FakeTemplates()).review(request(manifest, *args)))
    assert decision.allowed, decision.errors
    return decision, jsonpatch.apply_patch(manifest, copy.deepcopy(list(decision.patch)))


def using(*claims: str) -> Any:
    made = container(neuron="4")
    if claims:
        made["resources"]["claims"] = [{"name": claim} for claim in claims]
    return made


def manifest(claim: str, *, used: bool) -> Any:
    own = {"name": claim, "resourceClaimTemplateName": TEMPLATE}
    return pod(using(claim) if used else using(), container("other"), resourceClaims=[own])


@pytest.fixture(params=[("neuron", "neuron-dra"), ("neuron-dra", "neuron")], ids=["neuron", "neuron-dra"])
def named(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The name of the user's claim, and the one that is left for ours."""
    names: tuple[str, str] = request.param
    return names


@pytest.mark.parametrize("used", [True, False], ids=["used", "unused"])
def test_the_claim_stays_the_same_through_all_passes(named: tuple[str, str], *, used: bool) -> None:
    original = manifest(named[0], used=used)
    first, stored = decide_and_apply(original)
    assert first.outcome == "converted"
    assert [finding.code for finding in first.warnings] == ["NEU206"]
    assert stored["spec"]["resourceClaims"] == [
        {"name": named[0], "resourceClaimTemplateName": TEMPLATE},
        {"name": named[1], "resourceClaimTemplateName": first.templates[0].name},
    ]
    used_claims = [{"name": named[0]}] if used else []
    assert stored["spec"]["containers"][0]["resources"]["claims"] == [*used_claims, {"name": named[1]}]
    second, again = decide_and_apply(stored)
    assert (second.reason, again) == ("already-converted", stored)
    assert second.templates[0].name == first.templates[0].name
    replaced, result = decide_and_apply(original, "UPDATE", stored)
    assert (replaced.reason, result) == ("reapplied", stored)


def test_applying_again_client_side_changes_nothing(named: tuple[str, str]) -> None:
    original = manifest(named[0], used=True)
    _, stored = decide_and_apply(original)
    applied = copy.deepcopy(stored)
    applied["spec"]["containers"][0]["resources"] |= copy.deepcopy(original["spec"]["containers"][0]["resources"])
    applied["spec"]["resourceClaims"] = copy.deepcopy(original["spec"]["resourceClaims"])
    assert decide_and_apply(applied, "UPDATE", stored)[1] == stored


def test_a_limit_range_default_between_passes_changes_nothing(named: tuple[str, str]) -> None:
    _, stored = decide_and_apply(manifest(named[0], used=True))
    between = copy.deepcopy(stored)
    between["spec"]["containers"][0]["resources"]["limits"] = {"aws.amazon.com/neuron": "1"}
    assert decide_and_apply(between)[1] == stored
