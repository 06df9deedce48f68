"""Pods that were converted before an upgrade of the control plane stay converted after it, and after a rollback."""

import asyncio
import copy
from collections.abc import Callable
from typing import Any

import jsonpatch
import pytest

from conversion.claims.templates import Template
from conversion.patches.decision import Decision, Outcome
from tests.support.clusters import FakeCluster, FakeTemplates, mutator, request
from tests.support.manifests import NEURON, container, pod
from webhook.reviews.mutate import Mutator

VERSIONS = ["v1.35.6", "v1.36.2"]
BOTH_WAYS = pytest.mark.parametrize(("before", "after"), [VERSIONS, VERSIONS[::-1]], ids=["upgrade", "rollback"])
ORIGINAL = pod(container("large", neuron="16"))


class Upgraded:
    """A cluster whose control plane changes its version; the webhook's cache has no older template."""

    def __init__(self, before: str) -> None:
        self.cluster = FakeCluster(kubernetes=before)
        self.templates = FakeTemplates()
        self.subject: Mutator = mutator(self.cluster, self.templates)

    def change(self, version: str) -> None:
        self.cluster.kubernetes = version
        self.cluster.version += 1

    def review(self, manifest: Any, *more: Any) -> Decision:
        return asyncio.run(self.subject.review(request(manifest, *more)))

    def stored(self) -> tuple[Any, Template]:
        decision = self.review(ORIGINAL)
        (template,) = decision.templates
        return jsonpatch.apply_patch(copy.deepcopy(ORIGINAL), list(decision.patch)), template


@BOTH_WAYS
def test_a_new_pod_of_a_workload_gets_the_template_of_the_new_version(before: str, after: str) -> None:
    here = Upgraded(before)
    _, old = here.stored()
    here.change(after)
    _, new = here.stored()
    assert old.name != new.name
    assert here.templates.made.keys() == {("team-a", old.name), ("team-a", new.name)}
    here.change(before)
    assert here.stored()[1].name == old.name


def without_marks(manifest: Any) -> Any:
    bare = copy.deepcopy(manifest)
    del bare["metadata"]["labels"], bare["metadata"]["annotations"]
    return bare


def applied_again(manifest: Any) -> Any:
    """What `kubectl apply` of the original makes of the stored pod."""
    merged = copy.deepcopy(manifest)
    merged["spec"]["containers"][0]["resources"]["limits"] = {NEURON: "16"}
    return merged


@BOTH_WAYS
@pytest.mark.parametrize("change", [without_marks, applied_again])
def test_a_stored_pod_is_not_changed(before: str, after: str, change: Callable[[Any], Any]) -> None:
    here = Upgraded(before)
    stored, _ = here.stored()
    here.change(after)
    changed = change(stored)
    decision = here.review(changed, "UPDATE", stored)
    assert not decision.errors
    assert decision.patch
    assert jsonpatch.apply_patch(changed, list(decision.patch)) == stored


@BOTH_WAYS
def test_a_pod_with_an_older_template_that_is_created_again_gets_the_new_one(before: str, after: str) -> None:
    here = Upgraded(before)
    stored, old = here.stored()
    here.change(after)
    decision = here.review(stored)
    (template,) = decision.templates
    assert (decision.outcome, template.name != old.name) == (Outcome.RESTORED, True)
    again = jsonpatch.apply_patch(stored, list(decision.patch))
    assert again["spec"]["resourceClaims"] == [{"name": "neuron", "resourceClaimTemplateName": template.name}]
    assert here.review(again).patch == ()
