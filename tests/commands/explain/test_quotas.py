"""What claims count in ResourceQuotas."""

from typing import Any

import pytest

from cluster.kinds.namespaces import CLAIM_COUNT, quota_effects
from neuron import names
from neuron.api.claim_reader import claim_spec

DEVICES = f"{names.DEVICE_CLASS}.deviceclass.resource.k8s.io/devices"


def quota(hard: dict[str, str], used: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    status = {"status": {"used": used}} if used is not None else {}
    return {"metadata": {"name": "q"}, "spec": {"hard": hard, **spec}, **status}


def counted_requests(*requests: dict[str, Any]) -> dict[str, Any]:
    return {"devices": {"requests": [{"name": f"n{at}", **each} for at, each in enumerate(requests)]}}


def unnamed(**fields: Any) -> dict[str, Any]:
    return {"exactly": {"deviceClassName": names.DEVICE_CLASS, **fields}}


def texts(hard: dict[str, str], spec: dict[str, Any], used: dict[str, str] | None = None, **more: Any) -> list[str]:
    return [
        str(each)
        for each in quota_effects(
            [quota(hard, used, **more)], [claim_spec(spec)], {"example.com/neuron": names.DEVICE_CLASS}
        )
    ]


def test_devices_of_a_class_are_added_to_the_used_amount() -> None:
    spec = counted_requests(unnamed(count=4), unnamed())
    assert texts({DEVICES: "16"}, spec, {DEVICES: "11"}) == [f"q: {DEVICES}: 11 used and 5 of 16"]
    told = f"q: {DEVICES}: 12 used and 5 of 16, exceeded: the claim cannot be created"
    assert texts({DEVICES: "16"}, spec, {DEVICES: "12"}) == [told]
    assert texts({DEVICES: "16"}, spec) == [f"q: {DEVICES}: 5 of 16"]


def test_the_largest_alternative_counts_for_each_class() -> None:
    other = {"deviceClassName": "other", "name": "b", "count": 9}
    parts = [{"deviceClassName": names.DEVICE_CLASS, "name": "a", "count": 4}, other]
    more = {"deviceClassName": names.DEVICE_CLASS, "name": "c", "count": 8}
    spec = counted_requests({"firstAvailable": [*parts, more]})
    assert texts({DEVICES: "16", "other.deviceclass.resource.k8s.io/devices": "9"}, spec) == [
        f"q: {DEVICES}: 8 of 16",
        "q: other.deviceclass.resource.k8s.io/devices: 9 of 9",
    ]


def test_all_devices_count_as_the_largest_claim() -> None:
    assert texts({DEVICES: "31"}, counted_requests(unnamed(allocationMode="All"))) == [
        f"q: {DEVICES}: 32 of 31, exceeded: the claim cannot be created"
    ]


@pytest.mark.parametrize(
    ("resource", "amount"),
    [
        (CLAIM_COUNT, 1),
        ("requests.example.com/neuron", 4),
        (f"requests.deviceclass.resource.kubernetes.io/{names.DEVICE_CLASS}", 4),
    ],
)
def test_other_quota_keys_that_count_claims_are_evaluated(resource: str, amount: int) -> None:
    assert texts({resource: "100"}, counted_requests(unnamed(count=4))) == [f"q: {resource}: {amount} of 100"]


def test_quotas_that_count_no_claim_are_left_out() -> None:
    spec = counted_requests(unnamed(count=4))
    assert texts({DEVICES: "2"}, spec, scopes=["BestEffort"]) == []
    assert texts({"requests.cpu": "2", DEVICES: "many"}, spec) == []
    assert list(quota_effects([quota({DEVICES: "2"})], [], {})) == []
