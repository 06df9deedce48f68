import asyncio
import copy
from typing import Any

import jsonpatch
import pytest

from conversion.claims.templates import API_VERSION, KIND
from conversion.facts import NamespaceFacts
from conversion.patches.decision import Decision
from neuron.api.claim_reader import read_claim
from tests.support.clusters import FakeCluster, mutator, request
from tests.support.manifests import CORE, NEURON, container, pod

AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
        }
    }
}


def create(manifest: Any) -> Any:
    decision = asyncio.run(mutator().review(request(manifest)))
    assert decision.patch
    return jsonpatch.apply_patch(manifest, list(decision.patch))


def update(new: Any, old: Any) -> tuple[Decision, Any]:
    decision = asyncio.run(mutator().review(request(new, "UPDATE", old)))
    return decision, jsonpatch.apply_patch(new, list(decision.patch))


def rich() -> Any:
    """A pod in which conversion touches everything it can."""
    main = container("main", neuroncore="3") | {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}
    main["resources"]["claims"] = [{"name": "net"}]
    return pod(
        main,
        container("helper", neuron="1"),
        init=[container("compile", neuron="4"), container("agent", neuron="1", sidecar=True)],
        schedulerName="my-scheduler",
        affinity=copy.deepcopy(AFFINITY),
        tolerations=[{"key": "team", "operator": "Exists"}],
        resourceClaims=[{"name": "net", "resourceClaimTemplateName": "efa"}],
        labels={"app": "x"},
        annotations={"note": "y"},
    )


def test_replacing_with_the_original_manifest_changes_nothing() -> None:
    stored = create(rich())
    decision, result = update(rich(), stored)
    assert decision.outcome == "restored"
    assert result == stored


def test_replacing_a_bare_pod_changes_nothing() -> None:
    original = pod(container(neuron="4"))
    stored = create(original)
    assert update(original, stored)[1] == stored


def test_a_strategic_merge_of_the_original_changes_nothing() -> None:
    stored = create(rich())
    merged = copy.deepcopy(stored)
    for section in ("containers", "initContainers"):
        for now, then in zip(merged["spec"][section], rich()["spec"][section], strict=True):
            amounts = {key: value for key, value in then["resources"].items() if key != "claims"}
            now["resources"] |= copy.deepcopy(amounts)
    merged["spec"]["schedulerName"] = "my-scheduler"
    merged["spec"]["tolerations"] = rich()["spec"]["tolerations"]
    merged["spec"]["affinity"] = rich()["spec"]["affinity"]
    assert update(merged, stored)[1] == stored


def test_the_generated_claim_is_restored_at_its_place_in_the_list() -> None:
    stored = create(rich())
    stored["spec"]["resourceClaims"].append({"name": "late", "resourceClaimName": "z"})
    stored["spec"]["containers"][0]["resources"]["claims"].append({"name": "late"})
    applied = copy.deepcopy(stored)
    applied["spec"]["resourceClaims"] = [each for each in stored["spec"]["resourceClaims"] if each["name"] != "neuron"]
    resources = applied["spec"]["containers"][0]["resources"]
    resources["claims"] = [{"name": "net"}, {"name": "late"}]
    resources["limits"] = {CORE: "3"}
    assert update(applied, stored)[1] == stored


@pytest.mark.parametrize("environment", [[], [{"name": "A", "value": "1"}]], ids=["empty", "shorter"])
def test_a_shortened_environment_is_left_to_the_api_server_to_refuse(environment: list[Any]) -> None:
    stored = create(rich())
    shortened = rich()
    shortened["spec"]["containers"][0]["env"] = environment
    decision, result = update(shortened, stored)
    assert decision.allowed
    assert result["spec"]["containers"][0]["env"][:-1] == environment


def test_an_empty_affinity_term_does_not_hide_the_hint() -> None:
    original = pod(container(neuron="4"), affinity=copy.deepcopy(AFFINITY))
    node = original["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    node["nodeSelectorTerms"].insert(0, {})
    stored = create(original)
    assert update(original, stored)[1] == stored


def test_image_labels_and_annotations_pass_through() -> None:
    stored = create(rich())
    new = rich()
    new["spec"]["containers"][0]["image"] = "registry.example/neuron:2"
    new["metadata"]["labels"]["app"] = "z"
    _, result = update(new, stored)
    assert result["spec"]["containers"][0]["image"] == "registry.example/neuron:2"
    assert result["metadata"]["labels"] == {"app": "z", "neuron.aws.com/converted": "true"}


def test_an_update_without_legacy_resources_is_unchanged() -> None:
    stored = create(rich())
    relabelled = copy.deepcopy(stored)
    relabelled["metadata"]["labels"]["more"] = "labels"
    decision, result = update(relabelled, stored)
    assert (decision.outcome, decision.reason) == ("unchanged", "already-converted")
    assert result == relabelled


def test_the_conversion_label_and_record_are_restored_if_the_claim_stays() -> None:
    stored = create(pod(container(neuron="4")))
    stripped = copy.deepcopy(stored)
    del stripped["metadata"]["labels"]
    del stripped["metadata"]["annotations"]
    decision, result = update(stripped, stored)
    assert decision.reason == "marks-restored"
    assert result == stored


@pytest.mark.parametrize("known", [False, True], ids=["template-unknown", "template-known"])
def test_the_marks_stay_where_the_namespace_has_settings(known: bool) -> None:
    facts = NamespaceFacts(
        (("neuron.aws.com/logical-neuron-core", "1"), ("neuron.aws.com/instance-type", "trn2.48xlarge"))
    )
    cluster = FakeCluster(namespaces={"team-a": facts})
    subject, manifest = mutator(cluster), pod(container(neuron="4"))
    decision = asyncio.run(subject.review(request(manifest)))
    stored = jsonpatch.apply_patch(manifest, list(decision.patch))
    [template] = decision.templates
    if known:
        spec = read_claim(KIND, API_VERSION, template.spec)[0]
        cluster.claim_templates["team-a", template.name] = spec
    stripped = copy.deepcopy(stored)
    del stripped["metadata"]["labels"]
    decision = asyncio.run(subject.review(request(stripped, "UPDATE", stored)))
    assert decision.reason == "marks-restored"
    assert jsonpatch.apply_patch(stripped, list(decision.patch)) == stored


def test_a_changed_record_is_restored() -> None:
    stored = create(pod(container(neuron="4")))
    forged = copy.deepcopy(stored)
    forged["metadata"]["annotations"]["neuron.aws.com/converted-from"] = "{}"
    assert update(forged, stored)[1] == stored


@pytest.mark.parametrize("section", ["containers", "initContainers"])
def test_a_count_taken_away_is_denied(section: str) -> None:
    stored = create(pod(container("a", neuron="4"), init=[container("i", neuron="4")]))
    taken = pod(container("a", neuron="4"), init=[container("i", neuron="4")])
    del taken["spec"][section][0]["resources"]
    decision, _ = update(taken, stored)
    name = taken["spec"][section][0]["name"]
    assert [str(error) for error in decision.errors] == [
        f"NEU115: container {name} now asks for no Neuron devices, but the pod was converted with"
        " aws.amazon.com/neuron: 4, which cannot change. Delete the pod and create it again."
    ]


def test_a_changed_affinity_is_left_to_the_api_server_to_refuse() -> None:
    stored = create(rich())
    changed = rich()
    changed["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] = []
    _, result = update(changed, stored)
    assert result["spec"]["affinity"] == changed["spec"]["affinity"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"limits": {NEURON: "8"}, "requests": {NEURON: "8"}},
            "NEU115: container main now asks for aws.amazon.com/neuron: 8, but the pod was converted with"
            " aws.amazon.com/neuron: 4, which cannot change. Delete the pod and create it again.",
        ),
        (
            {"limits": {CORE: "4"}},
            "NEU115: container main now asks for aws.amazon.com/neuroncore: 4, but the pod was converted with"
            " aws.amazon.com/neuron: 4, which cannot change. Delete the pod and create it again.",
        ),
        (
            {"limits": {NEURON: "0"}},
            "NEU115: container main now asks for no Neuron devices, but the pod was converted with"
            " aws.amazon.com/neuron: 4, which cannot change. Delete the pod and create it again.",
        ),
        (
            {"limits": {NEURON: "4"}, "requests": {NEURON: "8"}},
            "NEU103: container main requests aws.amazon.com/neuron: 8 but its limit is 4."
            " Make them equal, or leave the request out.",
        ),
        (
            {"limits": {NEURON: "four"}},
            "NEU101: container main asks for aws.amazon.com/neuron: 'four', which is not a quantity."
            " Use a whole number such as 4.",
        ),
    ],
    ids=["more", "other-resource", "none", "request-and-limit", "nonsense"],
)  # fmt: skip
def test_a_changed_count_is_denied(change: Any, text: str) -> None:
    stored = create(pod(container(neuron="4")))
    changed = pod(container() | {"resources": change})
    decision, _ = update(changed, stored)
    assert [str(error) for error in decision.errors] == [text]
    field = "requests" if text.startswith("NEU103") else "limits"
    assert decision.errors[0].path.startswith(f"spec.containers[0].resources.{field}")


def test_a_count_on_a_container_that_had_none_is_denied() -> None:
    stored = create(pod(container("a", neuron="4"), container("b")))
    decision, _ = update(pod(container("a", neuron="4"), container("b", neuron="1")), stored)
    assert str(decision.errors[0]) == (
        "NEU115: container b now asks for aws.amazon.com/neuron: 1, but the pod was converted with none,"
        " which cannot change. Delete the pod and create it again."
    )


def test_an_equal_count_in_another_notation_is_no_change() -> None:
    stored = create(pod(container(neuron="4")))
    decision, result = update(pod(container(neuron="4000m")), stored)
    assert decision.allowed
    assert result == stored


def test_pods_that_were_never_converted_are_unchanged() -> None:
    legacy = pod(container(neuron="4"))
    decision, _ = update(legacy, legacy)
    assert (decision.outcome, decision.reason) == ("unchanged", "not-converted")


def test_the_label_alone_does_not_make_a_pod_converted() -> None:
    legacy = pod(container(neuron="4"), labels={"neuron.aws.com/converted": "true"})
    decision, _ = update(legacy, legacy)
    assert decision.reason == "not-converted"


def test_what_the_user_takes_away_of_the_users_own_is_not_put_back() -> None:
    stored = create(rich())
    shorter = rich()
    shorter["spec"]["tolerations"] = []
    shorter["spec"]["resourceClaims"] = []
    shorter["spec"]["containers"][0]["resources"]["claims"] = []
    decision, result = update(shorter, stored)
    assert decision.reason == "reapplied"
    assert {"key": "team", "operator": "Exists"} not in result["spec"]["tolerations"]
    assert [each["name"] for each in result["spec"]["resourceClaims"]] == ["neuron"]
    assert [each["name"] for each in result["spec"]["containers"][0]["resources"]["claims"]] == ["neuron"]


def test_an_affinity_that_is_taken_away_is_left_to_the_api_server_to_refuse() -> None:
    stored = create(rich())
    without = rich()
    del without["spec"]["affinity"]
    _, result = update(without, stored)
    assert "affinity" not in result["spec"]


def test_a_variable_comes_back_where_the_container_has_no_others() -> None:
    stored = create(pod(container(neuroncore="3")))
    assert stored["spec"]["containers"][0]["env"]
    assert update(pod(container(neuroncore="3")), stored)[1] == stored


def test_several_references_of_one_container_come_back_in_their_order() -> None:
    original = pod(container("a", neuron="1"), container("b", neuron="4"), init=[container("i", neuron="8")])
    stored = create(original)
    references = [{"name": "neuron", "request": f"n{number}"} for number in (5, 3, 4)]
    stored["spec"]["initContainers"][0]["resources"]["claims"] = [*references, {"name": "mine"}]
    again = copy.deepcopy(original)
    for left in ([], references[1:2]):
        again["spec"]["initContainers"][0]["resources"]["claims"] = [*left, {"name": "mine"}]
        _, result = update(again, stored)
        assert result["spec"]["initContainers"][0]["resources"]["claims"] == [*references, {"name": "mine"}]


def test_all_changed_counts_are_said_with_their_places() -> None:
    stored = create(pod(container("a", neuron="4"), container("b", neuron="1"), init=[container("i", neuron="4")]))
    changed = pod(container("a"), container("b", neuron="2"), init=[container("i")])
    decision, _ = update(changed, stored)
    assert decision.reason == "immutable"
    assert [(error.path, error.value) for error in decision.errors] == [
        ("spec.initContainers[0].resources.limits", "0"),
        ("spec.containers[0].resources.limits", "0"),
        ("spec.containers[1].resources.limits[aws.amazon.com/neuron]", "2"),
    ]


def test_a_changed_request_is_denied_as_a_changed_limit_is() -> None:
    stored = create(pod(container(neuron="4")))
    decision, _ = update(pod(container() | {"resources": {"requests": {NEURON: "4"}}}), stored)
    assert not decision.allowed
