"""Limits of ResourceQuotas on devices."""

from typing import Any

import pytest

from cluster.kinds.namespaces import NO_QUOTAS, NamespaceQuotas, QuotaFacts, project_quota

CLASS = "neuron.aws.com.deviceclass.resource.k8s.io/devices"
NEURON = "aws.amazon.com/neuron"
LEGACY = f"requests.{NEURON}"


def quota(hard: dict[str, Any] | None, **spec: Any) -> QuotaFacts | None:
    return project_quota({"metadata": {"name": "q"}, "spec": {"hard": hard, **spec}})


@pytest.mark.parametrize(
    ("hard", "spec", "expected"),
    [
        pytest.param({CLASS: "16", "pods": "5"}, {}, QuotaFacts((), False, ((CLASS, 16),)), id="class"),
        pytest.param({LEGACY: "1k"}, {}, QuotaFacts((NEURON,), False, ((LEGACY, 1000),)), id="legacy"),
        pytest.param({CLASS: 0}, {}, QuotaFacts((), False, ((CLASS, 0),)), id="zero"),
        pytest.param(
            {"requests.deviceclass.resource.kubernetes.io/neuron.aws.com": "2"},
            {},
            QuotaFacts((), False, (("requests.deviceclass.resource.kubernetes.io/neuron.aws.com", 2),)),
            id="extended-resource-of-a-class",
        ),
        pytest.param({LEGACY: "4"}, {"scopes": ["Terminating"]}, QuotaFacts((NEURON,), True, ()), id="scopes"),
        pytest.param(
            {CLASS: "4"}, {"scopeSelector": {"matchExpressions": []}, "scopes": ["BestEffort"]}, None, id="both"
        ),
        pytest.param({LEGACY: "four"}, {}, QuotaFacts((NEURON,), False, ()), id="no-count"),
        pytest.param({"pods": "5", "requests.storage": "1Gi"}, {}, None, id="something-else"),
        pytest.param(
            {"requests.example.com/neuron": "1"},
            {},
            QuotaFacts((), False, (("requests.example.com/neuron", 1),)),
            id="extended-resource",
        ),
        pytest.param(None, {}, None, id="nothing"),
    ],
)
def test_only_quotas_for_devices_are_kept(hard: Any, spec: dict[str, Any], expected: QuotaFacts | None) -> None:
    assert quota(hard, **spec) == expected


def test_the_smallest_amount_of_several_quotas_counts_until_its_quota_is_deleted() -> None:
    quotas = NamespaceQuotas()
    quotas.keep("team", "a", quota({CLASS: "16"}))
    quotas.keep("team", "b", quota({CLASS: "4", LEGACY: "8"}))
    assert dict(quotas.of("team")) == {CLASS: 4, LEGACY: 8}
    quotas.keep("team", "b", None)
    assert dict(quotas.of("team")) == {CLASS: 16}
    quotas.keep("team", "a", quota({"pods": "1"}))
    assert quotas.of("team") is NO_QUOTAS


def test_a_quota_of_legacy_resources_says_which_classes_it_counts_too() -> None:
    quotas = NamespaceQuotas()
    quotas.keep("team", "both", quota({LEGACY: "4", CLASS: "4"}))
    quotas.keep("team", "class", quota({CLASS: "4"}))
    quotas.keep("team", "legacy", quota({LEGACY: "4"}))
    assert [(each.name, each.classes) for each in quotas.legacy("team")] == [
        ("both", ("neuron.aws.com",)),
        ("legacy", ()),
    ]


def test_deleting_an_unknown_quota_is_no_error() -> None:
    quotas = NamespaceQuotas()
    quotas.keep("team", "a", None)
    assert quotas.of("team") is NO_QUOTAS
