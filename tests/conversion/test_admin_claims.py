"""Claims with `adminAccess` ask for no cores where devices are shared: then they see devices that are used up, too."""

import asyncio
import copy
from typing import Any

import hypothesis
import jsonpatch
import pytest
from hypothesis import strategies as st

from conversion.facts import NamespaceFacts
from conversion.patches.decision import Decision, Outcome
from neuron import names
from neuron.hardware.instances import Observation
from tests.support.clusters import FakeCluster, mutator
from tests.support.validation import review

SHARED = {"inf2.48xlarge": Observation(12, shares_cores=True, counts_cores=True)}
COUNTED = {"trn2.48xlarge": Observation(16, counts_cores=True)}
UNCOUNTED = {"trn2.48xlarge": Observation(16)}
NO_CORES = {"neuroncores": "0"}
ENRICH, CONVERT = names.ANNOTATION_ENRICH, names.ANNOTATION_CONVERT


def admin_request(**fields: Any) -> dict[str, Any]:
    return {"deviceClassName": names.DEVICE_CLASS, "allocationMode": "All", "adminAccess": True, **fields}


def claim_object(
    *requests: dict[str, Any],
    kind: str = "ResourceClaimTemplate",
    version: str = "v1",
    annotations: dict[str, str] | None = None,
) -> dict[str, Any]:
    def written(index: int, fields: dict[str, Any]) -> dict[str, Any]:
        return {"name": f"r{index}", **(fields if version == "v1beta1" else {"exactly": fields})}

    spec = {"devices": {"requests": [written(index, each) for index, each in enumerate(requests)]}}
    metadata = {"name": "t", **({"annotations": annotations} if annotations is not None else {})}
    whole = {"spec": spec} if kind == "ResourceClaimTemplate" else spec
    return {"apiVersion": f"resource.k8s.io/{version}", "kind": kind, "metadata": metadata, "spec": whole}


def decide_claim(
    item: Any,
    operation: str = "CREATE",
    old: Any = None,
    seen: dict[str, Observation] | None = None,
    facts: NamespaceFacts | None = None,
    **options: Any,
) -> Decision:
    cluster = FakeCluster(seen=SHARED | COUNTED if seen is None else seen)
    if facts is not None:
        cluster.namespaces["team-a"] = facts
    return asyncio.run(mutator(cluster, **options).review(review(item, operation, old)))


def enriched(item: Any) -> Any:
    decision = decide_claim(item)
    assert decision.outcome is Outcome.ENRICHED, decision
    return jsonpatch.apply_patch(item, copy.deepcopy(list(decision.patch)))


def fields(item: Any) -> list[dict[str, Any]]:
    spec = item["spec"].get("spec", item["spec"])
    found = [each.get("exactly", each) for each in spec["devices"]["requests"]]
    return [{key: value for key, value in each.items() if key != "name"} for each in found]


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
@pytest.mark.parametrize("extra", [{}, {"allocationMode": "ExactCount", "count": 2}], ids=["All", "two"])
def test_a_request_with_admin_access_asks_for_no_cores(version: str, kind: str, extra: dict[str, Any]) -> None:
    item = claim_object(
        admin_request(**extra), admin_request(deviceClassName="other.example.com"), kind=kind, version=version
    )
    found = fields(enriched(item))
    assert found == [
        admin_request(**extra, capacity={"requests": NO_CORES}),
        admin_request(deviceClassName="other.example.com"),
    ]


@pytest.mark.parametrize(
    ("capacity", "after"),
    [
        (None, NO_CORES),
        ({}, NO_CORES),
        ({"requests": None}, NO_CORES),
        ({"requests": {}}, NO_CORES),
        ({"requests": {"memory": "1Gi"}}, {"memory": "1Gi", **NO_CORES}),
    ],
    ids=str,
)
def test_other_capacities_stay(capacity: Any, after: dict[str, str]) -> None:
    assert fields(enriched(claim_object(admin_request(capacity=capacity)))) == [
        admin_request(capacity={"requests": after})
    ]


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (claim_object(admin_request(capacity={"requests": {"neuroncores": "1"}})), "not-plain"),
        (claim_object(admin_request(capacity={"requests": {"neuron.aws.com/neuroncores": "0"}})), "not-plain"),
        (claim_object(admin_request(adminAccess="true")), "not-plain"),
        (claim_object(admin_request(deviceClassName="other.example.com")), "not-plain"),
        (claim_object(admin_request(), annotations={ENRICH: "false"}), "not-enriched"),
        (claim_object(admin_request(), annotations={CONVERT: "off"}), "mode-off-by-"),
    ],
    ids=["own cores", "qualified", "a word", "other class", "enrich-claims false", "off"],
)
def test_others_stay_as_they_are(item: dict[str, Any], reason: str) -> None:
    decision = decide_claim(item)
    assert (decision.patch, decision.errors) == ((), ())
    assert decision.reason.startswith(reason)


@pytest.mark.parametrize(
    "seen",
    [{}, COUNTED, SHARED | UNCOUNTED, {"inf2.48xlarge": Observation(12, shares_cores=True)}],
    ids=["nothing is known", "nothing is shared", "a driver without capacities", "shared without capacities"],
)
def test_where_a_device_may_not_serve_it_nothing_is_added(seen: dict[str, Observation]) -> None:
    assert decide_claim(claim_object(admin_request()), seen=seen).reason == "no-shares"


def test_a_namespace_may_opt_out_and_shadow_mode_only_says_it() -> None:
    facts = NamespaceFacts(annotations=((ENRICH, "false"),))
    assert decide_claim(claim_object(admin_request()), facts=facts).reason == "not-enriched"
    decision = decide_claim(claim_object(admin_request()), mode="shadow")
    assert (decision.outcome, decision.patch) == (Outcome.SHADOWED, ())
    assert [each.message for each in decision.warnings] == [
        "shadow mode: this ResourceClaimTemplate would be enriched: adminAccess with neuroncores 0."
    ]


def test_the_manifest_can_be_applied_again() -> None:
    item = claim_object(admin_request(), annotations={"team": "a"})
    after = enriched(item)
    again = decide_claim(item, "UPDATE", after)
    assert jsonpatch.apply_patch(item, copy.deepcopy(list(again.patch))) == after
    changed = claim_object(admin_request(), admin_request(), annotations={"team": "a"})
    assert decide_claim(changed, "UPDATE", after).patch == (), "the API server says that the spec is immutable"
    assert decide_claim(item, "UPDATE", item).patch == ()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["", "0", "neuroncores"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["requests", "neuroncores"]), inner),
    max_leaves=5,
)


@hypothesis.given(JSON, JSON, JSON)
def test_any_type_of_any_field_is_answered(capacity: Any, access: Any, annotations: Any) -> None:
    item = claim_object(admin_request(capacity=capacity, adminAccess=access))
    item["metadata"]["annotations"] = annotations
    decision = decide_claim(item)
    if decision.patch and (capacity is None or isinstance(capacity, dict)):
        found = jsonpatch.apply_patch(item, copy.deepcopy(list(decision.patch)))
        assert fields(found)[0]["capacity"]["requests"]["neuroncores"] == "0"
