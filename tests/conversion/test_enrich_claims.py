"""Claims and templates with class and count only get what a pod of that count gets, where somebody asks for it."""

import asyncio
import copy
import json
from typing import Any

import hypothesis
import jsonpatch
import pytest
from hypothesis import strategies as st
from msgspec import Raw, structs

from conversion.facts import NamespaceFacts
from conversion.patches.decision import Decision, Outcome
from neuron import names
from policies.files.loader import load
from policies.judging.rules import PolicySet
from tests.conversion.test_convert_pods import converted
from tests.conversion.test_convert_pods import decide as decide_pod
from tests.support.clusters import FakeCluster, mutator
from tests.support.manifests import container, pod
from tests.support.neuron_policies import neuron_policy
from tests.support.validation import decide as validated
from tests.support.validation import flattened, review
from webhook.reviews import mutate

ASKED = {names.ANNOTATION_ENRICH: "true"}
GROUP4 = "resource.aws.com/devicegroup4_id"
TRN2 = ("trn2",)


def defaulted_request(name: str, count: int | None = None, **fields: Any) -> dict[str, Any]:
    """As the API server sends it: with defaults."""
    exactly = {"deviceClassName": names.DEVICE_CLASS, "allocationMode": "ExactCount", "count": count or 1, **fields}
    return {"name": name, "exactly": exactly}


def claim_object(
    *requests: dict[str, Any], kind: str = "ResourceClaimTemplate", annotations: Any = ASKED, **devices: Any
) -> dict[str, Any]:
    spec: dict[str, Any] = {"devices": {"requests": list(requests), **devices}}
    metadata: dict[str, Any] = {"name": "t", "namespace": "team-a"}
    if annotations is not None:
        metadata["annotations"] = annotations
    whole = {"spec": spec} if kind == "ResourceClaimTemplate" else spec
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": whole}


def decision_on(
    item: Any,
    operation: str = "CREATE",
    old: Any = None,
    *,
    cluster: FakeCluster | None = None,
    policies: PolicySet = PolicySet(),
    families: tuple[str, ...] = TRN2,
    **options: Any,
) -> Decision:
    found = mutator(cluster, policies=policies, families=families, **options)
    return asyncio.run(found.review(review(item, operation, old)))


def enriched(item: Any, **options: Any) -> Any:
    decision = decision_on(item, **options)
    assert decision.outcome is Outcome.ENRICHED, decision
    return jsonpatch.apply_patch(item, list(decision.patch))


def devices_in(item: Any) -> Any:
    spec = item["spec"]
    return spec.get("spec", spec)["devices"]


# --- what is added ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
@pytest.mark.parametrize(
    ("count", "families", "annotations"),
    [
        pytest.param(1, TRN2, {}, id="one"),
        pytest.param(4, TRN2, {}, id="group"),
        pytest.param(8, ("trn1", "trn2"), {}, id="several types"),
        pytest.param(4, TRN2, {names.ANNOTATION_LNC: "1"}, id="LNC"),
        pytest.param(3, ("inf2",), {}, id="windows"),
        pytest.param(4, ("inf2", "trn2"), {}, id="windows and groups"),
        pytest.param(4, TRN2, {names.ANNOTATION_INSTANCE_TYPE: "trn2.48xlarge"}, id="instance type"),
        pytest.param(16, ("trn2u",), {names.ANNOTATION_ULTRASERVER_MODE: "4"}, id="UltraServer"),
    ],
)
def test_a_claim_gets_what_a_pod_of_that_count_gets(
    kind: str, count: int, families: tuple[str, ...], annotations: Any
) -> None:
    found = devices_in(
        enriched(
            claim_object(defaulted_request("n0", count), kind=kind, annotations=ASKED | annotations), families=families
        )
    )
    legacy = pod(container(neuron=str(count)), annotations=annotations)
    [template] = decide_pod(legacy, families=families).templates
    assert found == template.spec["spec"]["devices"]  # type: ignore[index]


def test_each_request_keeps_its_name_and_is_connected_by_itself() -> None:
    found = devices_in(enriched(claim_object(defaulted_request("big", 8), defaulted_request("small", 4))))
    assert [(each["name"], each["exactly"]["count"]) for each in found["requests"]] == [("big", 8), ("small", 4)]
    assert [(each["requests"], each["matchAttribute"]) for each in found["constraints"]] == [
        (["big"], "resource.aws.com/devicegroup8_id"),
        (["small"], GROUP4),
    ]


def test_a_whole_node_stays_one_request() -> None:
    [found] = devices_in(enriched(claim_object(defaulted_request("gpus", 16))))["requests"]
    assert (found["name"], found["exactly"]["count"]) == ("gpus", 16)


def test_requests_for_one_device_each_are_one_set() -> None:
    """As KServe writes them."""
    found = devices_in(enriched(claim_object(*(defaulted_request(f"gpu-{number}") for number in range(4)))))
    [constraint] = found["constraints"]
    assert constraint == {"requests": ["gpu-0", "gpu-1", "gpu-2", "gpu-3"], "matchAttribute": GROUP4}
    assert {each["exactly"]["count"] for each in found["requests"]} == {1}


def test_requests_of_other_classes_and_what_is_about_them_stay() -> None:
    other = {"name": "nic", "firstAvailable": [{"name": "a", "deviceClassName": "efa.networking.k8s.aws"}]}
    constraint = {"requests": ["nic"], "matchAttribute": "dra.net/numa"}
    config = {"requests": ["nic"], "opaque": {"driver": "dra.net", "parameters": {}}}
    item = claim_object(other, defaulted_request("gpus", 4), constraints=[constraint], config=[config])
    found = devices_in(enriched(item))
    assert found["requests"][0] == other
    assert found["constraints"] == [constraint, {"requests": ["gpus"], "matchAttribute": GROUP4}]
    assert found["config"] == [config]


def test_tolerations_stay_in_every_alternative() -> None:
    tolerations = [{"operator": "Exists", "effect": "NoSchedule"}]
    [found] = devices_in(
        enriched(claim_object(defaulted_request("gpus", 3, tolerations=tolerations)), families=("inf2",))
    )["requests"]
    assert all(each["tolerations"] == tolerations for each in found["firstAvailable"])


@pytest.mark.parametrize(("version", "flat"), [("v1beta2", False), ("v1beta1", True)])
@pytest.mark.parametrize("count", [3, 4])
def test_a_claim_of_an_older_version_is_enriched_in_its_version(version: str, flat: bool, count: int) -> None:
    families = ("inf2",) if count == 3 else TRN2
    new = claim_object(defaulted_request("gpus", count))
    old = {**copy.deepcopy(new), "apiVersion": f"resource.k8s.io/{version}"}
    if flat:
        old["spec"]["spec"] = flattened(old["spec"]["spec"])
    wanted, found = devices_in(enriched(new, families=families)), devices_in(enriched(old, families=families))
    assert found == (flattened({"devices": wanted})["devices"] if flat else wanted)


def test_the_record_says_what_was_added() -> None:
    item = enriched(claim_object(defaulted_request("gpus", 4), annotations=ASKED | {names.ANNOTATION_LNC: "1"}))
    assert json.loads(item["metadata"]["annotations"][names.ANNOTATION_ENRICHED]) == {
        "requests": {"gpus": ["selectors"]},
        "constraints": [GROUP4],
        "config": ["NeuronConfig"],
    }


def test_an_enriched_claim_has_no_findings() -> None:
    for count, families in ((1, TRN2), (4, TRN2), (3, ("inf2",)), (8, ("trn1", "trn2"))):
        decision = validated(enriched(claim_object(defaulted_request("gpus", count)), families=families))
        assert (decision.errors, decision.warnings) == ((), ()), count


# --- who asks for it ----------------------------------------------------------------------------------------------


def conversion_policy(**spec: Any) -> PolicySet:
    return load({"p.json": neuron_policy("ConversionPolicy", **spec)})


def namespace(value: str) -> FakeCluster:
    return FakeCluster(namespaces={"team-a": NamespaceFacts(annotations=((names.ANNOTATION_ENRICH, value),))})


@pytest.mark.parametrize(
    ("own", "of_namespace", "by_policy", "outcome"),
    [
        pytest.param(None, None, False, "unchanged", id="no-annotation"),
        pytest.param("true", None, False, "enriched", id="annotation"),
        pytest.param(None, "true", False, "enriched", id="namespace"),
        pytest.param(None, None, True, "enriched", id="policy"),
        pytest.param("false", "true", True, "unchanged", id="annotation against both"),
        pytest.param(None, "false", True, "unchanged", id="namespace against policy"),
    ],
)
def test_the_first_that_is_set_counts(own: str | None, of_namespace: str | None, by_policy: bool, outcome: str) -> None:
    item = claim_object(
        defaulted_request("gpus", 4), annotations=None if own is None else {names.ANNOTATION_ENRICH: own}
    )
    cluster = None if of_namespace is None else namespace(of_namespace)
    policies = conversion_policy(enrichesClaims=True) if by_policy else PolicySet()
    assert decision_on(item, cluster=cluster, policies=policies).outcome == outcome


@pytest.mark.parametrize("where", ["claim", "namespace"])
def test_another_value_of_the_annotation_is_a_warning(where: str) -> None:
    item = claim_object(
        defaulted_request("gpus", 4), annotations={names.ANNOTATION_ENRICH: "yes"} if where == "claim" else None
    )
    [finding] = decision_on(item, cluster=None if where == "claim" else namespace("yes")).warnings
    owner = "annotation" if where == "claim" else "Namespace annotation"
    assert str(finding) == f"NEU109: {owner} neuron.aws.com/enrich-claims is 'yes'. Allowed: true, false."


def test_a_policy_matches_a_claim_as_a_pod_with_its_labels_and_count() -> None:
    match = {
        "objectSelector": {"matchLabels": {"team": "ml"}},
        "conditions": [{"name": "large", "expression": "neuron.devices >= 4"}],
    }
    policies = conversion_policy(enrichesClaims=True, match=match, families=["trn1"])
    item = claim_object(*(defaulted_request(f"gpu-{number}") for number in range(4)), annotations=None)
    assert decision_on(item, policies=policies).outcome == "unchanged"
    item["metadata"]["labels"] = {"team": "ml"}
    found = devices_in(enriched(item, policies=policies))
    assert "trn1" in json.dumps(found)
    assert (
        decision_on({**item, "spec": claim_object(defaulted_request("one"))["spec"]}, policies=policies).outcome
        == "unchanged"
    )


def test_shadow_mode_reports_and_changes_nothing() -> None:
    decision = decision_on(claim_object(defaulted_request("gpus", 4)), mode="shadow")
    assert (decision.outcome, decision.patch) == (Outcome.SHADOWED, ())
    assert str(decision.warnings[0]) == (
        "NEU240: shadow mode: this ResourceClaimTemplate would be enriched: gpus: 4 devices (selectors, constraints)."
    )


def test_mode_off_changes_nothing() -> None:
    item = claim_object(defaulted_request("gpus", 4), annotations=ASKED | {names.ANNOTATION_CONVERT: "off"})
    assert decision_on(item).reason == "mode-off-by-pod"


# --- what is left alone -------------------------------------------------------------------------------------------

MATCH = {"requests": ["gpus"], "matchAttribute": GROUP4}


@pytest.mark.parametrize(
    "item",
    [
        pytest.param(claim_object(defaulted_request("gpus", 4, selectors=[])), id="selectors"),
        pytest.param(claim_object(defaulted_request("gpus", 4, capacity={})), id="capacity"),
        pytest.param(claim_object(defaulted_request("gpus", 4, allocationMode="All")), id="all devices"),
        pytest.param(claim_object(defaulted_request("gpus", 4), constraints=[MATCH]), id="constraint"),
        pytest.param(
            claim_object(defaulted_request("gpus", 4), constraints=[{"matchAttribute": GROUP4}]), id="constraint on all"
        ),
        pytest.param(
            claim_object(defaulted_request("gpus", 4), config=[{"opaque": {"driver": "x", "parameters": {}}}]),
            id="config",
        ),
        pytest.param(claim_object(defaulted_request("gpus", 4, deviceClassName="gpu.example.com")), id="another class"),
        pytest.param(
            claim_object({"name": "gpus", "firstAvailable": [defaulted_request("a", 4)["exactly"]]}), id="alternatives"
        ),
        pytest.param(
            claim_object(defaulted_request("gpus", 4), {**defaulted_request("b", 4), "later": 1}), id="unknown field"
        ),
        pytest.param(claim_object(defaulted_request("gpus", -4)), id="negative"),
        pytest.param(claim_object(), id="no request"),
        pytest.param({**claim_object(defaulted_request("gpus", 4)), "spec": None}, id="no spec"),
    ],
)
def test_a_claim_that_says_more_is_left_alone(item: Any) -> None:
    decision = decision_on(item)
    assert (decision.outcome, decision.reason, decision.warnings) == (Outcome.UNCHANGED, "not-plain", ())


@pytest.mark.parametrize("owner", ["Pod", "PodGroup"])
def test_claims_that_kubernetes_makes_for_pods_are_left_alone(owner: str) -> None:
    item = claim_object(defaulted_request("gpus", 4), kind="ResourceClaim")
    item["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": owner, "name": "p", "uid": "u"}]
    assert decision_on(item).reason == "not-plain"


def test_our_own_templates_are_left_alone() -> None:
    [template] = decide_pod(pod(container(neuron="1")), families=("inf2",)).templates
    item = {**template.manifest("team-a")}
    item["metadata"] = {**item["metadata"], "annotations": ASKED}  # type: ignore[dict-item]
    assert decision_on(item, families=("inf2",)).reason == "not-plain"


def test_an_enriched_claim_is_not_enriched_again() -> None:
    item = enriched(claim_object(defaulted_request("gpus", 4)))
    assert decision_on(item).reason == "not-plain"


@pytest.mark.parametrize(
    ("requests", "families", "text"),
    [
        (
            [defaulted_request("gpus", 7)],
            ("trn1",),
            "Instance type trn1.32xlarge does not support requests for device: 7.",
        ),
        (
            [defaulted_request("a"), defaulted_request("b"), defaulted_request("c")],
            ("inf2",),
            "3 requests for one device each cannot get these",
        ),
    ],
    ids=["count", "windows one by one"],
)
def test_what_cannot_be_served_stays_and_says_why(requests: Any, families: tuple[str, ...], text: str) -> None:
    decision = decision_on(claim_object(*requests), families=families)
    assert (decision.outcome, decision.patch, decision.errors) == (Outcome.UNCHANGED, (), ())
    [finding] = decision.warnings
    assert finding.code == "NEU241"
    assert finding.path.startswith("spec.spec.devices")
    assert text in finding.message


def test_an_unknown_instance_type_is_named() -> None:
    item = claim_object(
        defaulted_request("gpus", 4), annotations=ASKED | {names.ANNOTATION_INSTANCE_TYPE: "trn9.48xlarge"}
    )
    [finding] = decision_on(item).warnings
    assert (finding.code, "trn9.48xlarge" in finding.message) == ("NEU241", True)


def test_requests_for_one_device_each_are_no_ultraserver_node() -> None:
    annotations = ASKED | {names.ANNOTATION_ULTRASERVER_MODE: "4"}
    item = claim_object(*(defaulted_request(f"gpu-{number}") for number in range(16)), annotations=annotations)
    assert decision_on(item, families=("trn2u",)).reason == "not-enrichable"


@pytest.mark.parametrize("metadata", [{"name": "t", "labels": 5}, {"name": "t", "annotations": ["a"]}])
def test_metadata_of_a_wrong_type_is_left_to_the_api_server(metadata: Any) -> None:
    assert decision_on({**claim_object(defaulted_request("gpus", 4)), "metadata": metadata}).reason == "not-plain"


# --- updates ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("families", [TRN2, ("inf2",)], ids=["constraint", "alternatives"])
def test_a_program_that_writes_the_claim_again_keeps_the_stored_spec(families: tuple[str, ...]) -> None:
    plain = claim_object(defaulted_request("gpus", 4))
    stored = enriched(plain, families=families)
    decision = decision_on(plain, "UPDATE", stored, families=TRN2)
    assert (decision.outcome, decision.reason) == (Outcome.ENRICHED, "enriched-before")
    assert jsonpatch.apply_patch(plain, list(decision.patch)) == stored


def test_kubectl_apply_that_leaves_the_added_constraints_keeps_the_stored_spec() -> None:
    plain = claim_object(defaulted_request("gpus", 4))
    stored = enriched(plain)
    applied = copy.deepcopy(stored)
    devices_in(applied)["requests"] = devices_in(plain)["requests"]
    decision = decision_on(applied, "UPDATE", stored)
    assert jsonpatch.apply_patch(applied, list(decision.patch)) == stored


@pytest.mark.parametrize(
    "changed",
    [
        claim_object(defaulted_request("gpus", 8)),
        claim_object(defaulted_request("others", 4)),
        claim_object(defaulted_request("gpus", 4), defaulted_request("more", 4)),
        claim_object(
            defaulted_request("gpus", 4), constraints=[{"requests": ["gpus"], "matchAttribute": "neuron.aws.com/other"}]
        ),
        claim_object(
            defaulted_request("gpus", 4), defaulted_request("nic", 1, deviceClassName="efa.networking.k8s.aws")
        ),
    ],
    ids=["count", "name", "more", "constraint", "another class"],
)
def test_a_changed_claim_is_left_to_the_api_server(changed: Any) -> None:
    stored = enriched(claim_object(defaulted_request("gpus", 4)))
    assert decision_on(changed, "UPDATE", stored).patch == ()


def test_an_update_of_a_claim_that_was_not_enriched_changes_nothing() -> None:
    plain = claim_object(defaulted_request("gpus", 4))
    assert decision_on(plain, "UPDATE", plain).patch == ()


def test_pods_are_converted_as_before() -> None:
    assert converted(pod(container(neuron="4")))["spec"]["resourceClaims"]


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
@pytest.mark.parametrize("mode", ["1", "2", "4"])
@pytest.mark.parametrize("recorded", [True, False], ids=["with the count", "by an earlier version"])
def test_a_claim_with_an_ultraserver_mode_can_be_applied_twice(kind: str, mode: str, recorded: bool) -> None:
    annotations = ASKED | {names.ANNOTATION_ULTRASERVER_MODE: mode, names.ANNOTATION_INSTANCE_TYPE: "trn2u.48xlarge"}
    plain = claim_object(defaulted_request("n", 16), kind=kind, annotations=annotations)
    stored = enriched(plain)
    assert devices_in(stored)["requests"][0]["exactly"]["count"] == 1
    record = json.loads(stored["metadata"]["annotations"][names.ANNOTATION_ENRICHED])
    assert record["counts"] == {"n": 16}
    if not recorded:
        del record["counts"]
        stored["metadata"]["annotations"][names.ANNOTATION_ENRICHED] = json.dumps(record)
    decision = decision_on(plain, "UPDATE", stored)
    assert jsonpatch.apply_patch(plain, list(decision.patch)) == stored
    changed = claim_object(defaulted_request("n", 8), kind=kind, annotations=annotations)
    assert decision_on(changed, "UPDATE", stored).patch == ()


# --- configs of other drivers ---------------------------------------------------------------------------------------


NUMBERS = ["1", "1.0", "1e3", "-0", "0.10", str(2**64), str(-(2**70)), "123456789012345678901234567890.5"]
TEXTS = ['"a"', r'"\u003c"', r'"<"', r'"\/"', r'"\ud83d\ude00"', '"\\u0000"', '"é"']


def json_texts(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Lists, and objects that may have a key twice."""
    members = st.lists(st.tuples(st.sampled_from(['"a"', '"b"', r'"\u0061"']), inner), max_size=4)
    return st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        members.map(lambda pairs: "{" + ",".join(f"{key} : {value}" for key, value in pairs) + "}"),
    )


JSON_TEXT = st.recursive(st.sampled_from([*NUMBERS, *TEXTS, "true", "null"]), json_texts, max_leaves=8)


@hypothesis.given(
    parameters=st.lists(JSON_TEXT, min_size=1, max_size=3), mode=st.sampled_from([None, "1"]), lnc=st.booleans()
)
@hypothesis.settings(max_examples=60)
def test_configs_of_other_drivers_stay_as_they_were_sent(parameters: list[str], mode: str | None, lnc: bool) -> None:
    annotations = ASKED | ({names.ANNOTATION_LNC: "1"} if lnc else {})
    if mode is not None:
        annotations |= {names.ANNOTATION_ULTRASERVER_MODE: mode, names.ANNOTATION_INSTANCE_TYPE: "trn2u.48xlarge"}
    foreign = [{"requests": ["g"], "opaque": {"driver": "gpu.example.com", "parameters": f"@{n}@"}} for n in (0, 1, 2)]
    gpu = {"name": "g", "exactly": {"deviceClassName": "gpu.example.com", "count": 1}}
    plain = claim_object(defaulted_request("n", 16), gpu, annotations=annotations, config=foreign[: len(parameters)])
    stored = enriched(plain)
    again = reviewed(plain, "UPDATE", stored, parameters)
    assert again.outcome is Outcome.ENRICHED
    # With the texts in place, every operation is about what is ours.
    assert jsonpatch.apply_patch(plain, list(again.patch)) == stored
    assert "gpu.example.com" not in json.dumps(again.patch)
    assert "@" not in json.dumps(again.patch)


def reviewed(item: Any, operation: str, old: Any, parameters: list[str]) -> Decision:
    """The decision about an update whose foreign configs have these texts, as sent and as stored."""

    def text(value: Any) -> bytes:
        found = json.dumps(value)
        for number, each in enumerate(parameters):
            found = found.replace(f'"@{number}@"', each)
        return found.encode()

    sent = review(item, operation, old)
    sent = structs.replace(sent, object=Raw(text(item)), oldObject=Raw(text(old)))
    return asyncio.run(mutator(families=TRN2).review(sent))


def test_a_changed_config_of_another_driver_is_left_to_the_api_server() -> None:
    foreign = {"requests": ["n"], "opaque": {"driver": "gpu.example.com", "parameters": {"a": 1}}}
    other = {"requests": ["g"], "opaque": {"driver": "gpu.example.com", "parameters": {"a": 1}}}
    gpu = {"name": "g", "exactly": {"deviceClassName": "gpu.example.com", "count": 1}}
    plain = claim_object(defaulted_request("n", 4), gpu, config=[other])
    stored = enriched(plain)
    assert decision_on(claim_object(defaulted_request("n", 4), gpu), "UPDATE", stored).patch == ()
    assert (
        decision_on(claim_object(defaulted_request("n", 4), gpu, config=[other, foreign]), "UPDATE", stored).patch == ()
    )
    assert decision_on(plain, "UPDATE", stored).patch


# --- work -----------------------------------------------------------------------------------------------------------


def test_a_claim_is_decided_once_whatever_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    decided: list[object] = []
    decide_claim = mutate.decide_claim
    monkeypatch.setattr(mutate, "decide_claim", lambda *given: decided.append(given) or decide_claim(*given))
    found = mutator(families=TRN2)
    answers = []
    for number in range(3):
        item = claim_object(*(defaulted_request(f"n{each}", 1) for each in range(4)), defaulted_request("m", 4))
        item["metadata"]["name"] = f"claim-{number}"
        item["metadata"]["annotations"] = ASKED | {"kubectl.kubernetes.io/last-applied-configuration": f"{number}"}
        answers.append(asyncio.run(found.review(review(item))).patch)
    assert len(decided) == 1
    assert answers[0]
    assert answers == [answers[0]] * 3
