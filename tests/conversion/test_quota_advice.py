"""The warning about legacy quotas: which pods get it, and its fix."""

import asyncio
from collections.abc import Mapping

import pytest

from conversion.facts import LegacyQuota, NamespaceFacts
from tests.support.clusters import FakeCluster, mutator, request
from tests.support.manifests import CORE, NEURON, container, pod

CLASS = "neuron.aws.com"
LINE = f"{CLASS}.deviceclass.resource.k8s.io/devices"


def quota_warnings(quota: LegacyQuota, served: Mapping[str, str]) -> list[str]:
    """The NEU204 warnings of converting a pod with one device."""
    cluster = FakeCluster(classes=dict(served), namespaces={"team-a": NamespaceFacts(quotas=(quota,))})
    decision = asyncio.run(mutator(cluster).review(request(pod(container(neuron="1")))))
    assert decision.patch
    return [str(finding) for finding in decision.warnings if finding.code == "NEU204"]


@pytest.mark.parametrize(
    ("quota", "served", "place"),
    [
        pytest.param(LegacyQuota("q", (NEURON,)), {}, "its spec.hard.", id="no-class-serves-the-name"),
        pytest.param(LegacyQuota("q", (NEURON,)), {NEURON: CLASS}, "", id="our-class-serves-the-name"),
        pytest.param(LegacyQuota("q", (NEURON,)), {NEURON: "other"}, "its spec.hard.", id="another-class-does"),
        pytest.param(LegacyQuota("q", (NEURON, CORE)), {NEURON: CLASS}, "its spec.hard.", id="one-name-of-two"),
        pytest.param(LegacyQuota("q", (NEURON,), classes=(CLASS,)), {}, "", id="it-counts-our-class-too"),
        pytest.param(LegacyQuota("q", (NEURON,), classes=("other",)), {}, "its spec.hard.", id="it-counts-another"),
        pytest.param(
            LegacyQuota("q", (NEURON,), scoped=True),
            {NEURON: CLASS},
            "the spec.hard of a quota without scopes: with scopes it counts no claim.",
            id="scopes",
        ),
    ],
)
def test_a_quota_that_does_not_count_claims_is_reported_with_the_key_to_use(
    quota: LegacyQuota, served: Mapping[str, str], place: str
) -> None:
    expected = [f"NEU204: ResourceQuota q no longer counts this pod. Use {LINE} in {place}"] if place else []
    assert quota_warnings(quota, served) == expected
