"""SchedulingHintPolicies at work: on CREATE, on a second pass, and when the original manifest is applied again."""

import asyncio
import copy
import json
from typing import Any

import jsonpatch
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from conversion.patches.decision import Decision
from policies.files.loader import load
from policies.judging.rules import PolicySet
from tests.support.clusters import mutator, request
from tests.support.manifests import container, pod
from tests.support.neuron_policies import neuron_policy

RECORD = "neuron.aws.com/converted-from"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
BUILT_IN = {"key": "aws.amazon.com/neuron", "operator": "Exists", "effect": "NoSchedule"}
LEASE = {"key": "lease", "operator": "Equal", "value": "ml", "effect": "NoExecute", "tolerationSeconds": 60}
POOL = {"key": "pool", "operator": "In", "values": ["neuron"]}
ZONE = {"key": "zone", "operator": "In", "values": ["a"]}
NEARBY = {"weight": 5, "preference": {"matchExpressions": [ZONE]}}
EVERYTHING = {
    "tolerations": {"action": "Add", "items": [LEASE]},
    "nodeAffinity": {"action": "Add", "required": [POOL], "preferred": [NEARBY]},
    "schedulerName": {"action": "Replace", "name": "kueue"},
    "labels": {"action": "Add", "items": {"team": "ml", "queue": "neuron"}},
}


def hint_policies(*specs: dict[str, Any]) -> PolicySet:
    """SchedulingHintPolicies in that order."""
    files = {
        f"{order}.json": neuron_policy("SchedulingHintPolicy", f"p{order}", **{"order": order, **spec})
        for order, spec in enumerate(specs)
    }
    return load(files)


def decide_and_apply(found: PolicySet, manifest: Any, old: Any = None, **options: Any) -> tuple[Decision, Any]:
    sent = request(manifest) if old is None else request(manifest, "UPDATE", old)
    decision = asyncio.run(mutator(policies=found, **options).review(sent))
    assert decision.allowed, decision.errors
    return decision, jsonpatch.apply_patch(manifest, copy.deepcopy(list(decision.patch)))


def created(found: PolicySet, manifest: Any, **options: Any) -> Any:
    return decide_and_apply(found, manifest, **options)[1]


def record(stored: Any) -> Any:
    return json.loads(stored["metadata"]["annotations"][RECORD]).get("hints")


def types_of(stored: Any) -> list[str]:
    terms = stored["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    return [each["key"] for term in terms for each in term["matchExpressions"]]


# --- on CREATE --------------------------------------------------------------------------------------------------


def test_a_converted_pod_gets_the_hints_of_the_policy_and_a_record_of_them() -> None:
    decision, stored = decide_and_apply(hint_policies(EVERYTHING), pod(container(neuron="4")))
    assert stored["spec"]["tolerations"] == [BUILT_IN, LEASE]
    assert types_of(stored) == ["pool", "node.kubernetes.io/instance-type"]
    assert stored["spec"]["affinity"]["nodeAffinity"][PREFERRED] == [NEARBY]
    assert stored["spec"]["schedulerName"] == "kueue"
    assert stored["metadata"]["labels"] == {"neuron.aws.com/converted": "true", "queue": "neuron", "team": "ml"}
    assert record(stored) == {
        "tolerations": [LEASE],
        "nodeAffinity": {"required": [POOL], "preferred": [NEARBY]},
        "schedulerName": "kueue",
        "labels": {"team": "ml", "queue": "neuron"},
    }
    assert decision.audit["scheduling-hint-policy"] == "p0"


def test_a_pod_that_is_not_converted_gets_no_hints() -> None:
    for manifest in (pod(container()), pod(container(neuron="4"), annotations={"neuron.aws.com/convert": "off"})):
        decision, result = decide_and_apply(hint_policies(EVERYTHING), manifest)
        assert decision.outcome == "unchanged"
        assert result == manifest


def test_fields_that_the_pod_sets_are_not_overwritten() -> None:
    own = pod(
        container(neuron="4"),
        labels={"team": "own"},
        schedulerName="volcano",
        tolerations=[{"key": "lease", "operator": "Exists"}],
    )
    decision, stored = decide_and_apply(hint_policies(EVERYTHING), own)
    assert stored["metadata"]["labels"]["team"] == "own"
    assert stored["spec"]["schedulerName"] == "volcano"
    assert stored["spec"]["tolerations"] == [{"key": "lease", "operator": "Exists"}, BUILT_IN]
    assert set(record(stored)) == {"nodeAffinity", "labels"}
    assert record(stored)["labels"] == {"queue": "neuron"}
    assert [finding.code for finding in decision.warnings] == ["NEU232"]


@pytest.mark.parametrize(
    ("spec", "options", "tolerations", "scheduler", "keys"),
    [
        pytest.param({}, {}, [BUILT_IN], "default-scheduler", ["node.kubernetes.io/instance-type"], id="no-policy"),
        pytest.param(
            {
                "tolerations": {"action": "Off"},
                "nodeAffinity": {"action": "Off"},
                "schedulerName": {"action": "Off"},
            },
            {},
            None,
            "my-scheduler",
            None,
            id="off",
        ),
        pytest.param(
            {
                "tolerations": {"action": "Add"},
                "nodeAffinity": {"action": "Add"},
                "schedulerName": {"action": "Replace", "name": "default-scheduler"},
            },
            {"hint_toleration": False, "hint_affinity": False, "hint_scheduler": False},
            [BUILT_IN],
            "default-scheduler",
            ["node.kubernetes.io/instance-type"],
            id="on-where-the-flags-say-off",
        ),
        pytest.param(
            {
                "tolerations": {"action": "Replace", "items": [LEASE]},
                "nodeAffinity": {"action": "Replace", "required": [POOL]},
            },
            {},
            [LEASE],
            "default-scheduler",
            ["pool"],
            id="replaced",
        ),
        pytest.param(
            {"labels": {"action": "Add", "items": {"a": "b"}}},
            {"hint_toleration": False, "hint_affinity": False, "hint_scheduler": False},
            None,
            "my-scheduler",
            None,
            id="what-is-not-given-is-the-flags",
        ),
    ],
)
def test_a_policy_overrides_the_flags(
    spec: dict[str, Any], options: dict[str, Any], tolerations: Any, scheduler: str, keys: Any
) -> None:
    found = hint_policies(spec) if spec else PolicySet()
    stored = created(found, pod(container(neuron="4"), schedulerName="my-scheduler"), **options)
    assert stored["spec"].get("tolerations") == tolerations
    assert stored["spec"]["schedulerName"] == scheduler
    assert (types_of(stored) if "affinity" in stored["spec"] else None) == keys


def test_built_in_hints_are_not_recorded() -> None:
    stored = created(hint_policies({"tolerations": {"action": "Add"}}), pod(container(neuron="4")))
    assert record(stored) is None


def test_the_first_match_wins_as_a_whole() -> None:
    first = {"match": {"namespaces": ["team-a"]}, "labels": {"action": "Add", "items": {"a": "1"}}}
    stored = created(hint_policies(first, EVERYTHING), pod(container(neuron="4")))
    assert record(stored) == {"labels": {"a": "1"}}


def test_the_required_affinity_of_a_policy_narrows_the_instance_types() -> None:
    only = {"key": "karpenter.k8s.aws/instance-family", "operator": "In", "values": ["trn2"]}
    found = hint_policies({"nodeAffinity": {"action": "Add", "required": [only]}})
    stored = created(found, pod(container(neuron="4")), karpenter_serves_claims=True)
    assert stored["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] == [
        {
            "matchExpressions": [
                only,
                {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["trn2.48xlarge"]},
            ]
        }
    ]
    assert decide_and_apply(found, stored, karpenter_serves_claims=True)[0].patch == ()


def test_a_pod_that_a_policy_leaves_no_instance_type_is_refused_by_name() -> None:
    only = {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["trn2.48xlarge"]}
    found = hint_policies({"nodeAffinity": {"action": "Replace", "required": [only]}})
    manifest = pod(container(neuron="4"), nodeSelector={"node.kubernetes.io/instance-type": "trn1.32xlarge"})
    decision = asyncio.run(mutator(policies=found).review(request(manifest)))
    assert [str(finding) for finding in decision.errors] == [
        "NEU110: the pod's node selection and the node affinity that policy 'p0' requires"
        " (node.kubernetes.io/instance-type) leave no Neuron instance type."
        " Select an instance type that the policy allows, or ask the cluster's admins."
    ]


def test_replicas_of_different_labels_get_labels_of_their_own() -> None:
    reviewer = mutator(policies=hint_policies(EVERYTHING))
    manifests = [pod(container(neuron="4"), labels=labels) for labels in ({"team": "x"}, {"queue": "y"}, {"team": "x"})]
    results = []
    for manifest in manifests:
        decision = asyncio.run(reviewer.review(request(manifest)))
        results.append(jsonpatch.apply_patch(manifest, list(decision.patch))["metadata"]["labels"])
    mark = {"neuron.aws.com/converted": "true"}
    assert results == [
        {"team": "x", "queue": "neuron"} | mark,
        {"team": "ml", "queue": "y"} | mark,
        {"team": "x", "queue": "neuron"} | mark,
    ]


# --- on a second pass -------------------------------------------------------------------------------------------


def test_a_pod_restored_from_a_backup_keeps_the_record_of_its_hints() -> None:
    stored = created(hint_policies(EVERYTHING), pod(container(neuron="4")))
    again = created(PolicySet(), stored)
    # Every client can restore labels, but no other hint, so re-applying must know who set them.
    assert record(again) == {key: value for key, value in record(stored).items() if key != "labels"}


def test_recorded_hints_that_the_pod_does_not_have_are_dropped() -> None:
    forged = created(PolicySet(), pod(container(neuron="4")))
    asked = json.loads(forged["metadata"]["annotations"][RECORD])
    asked["hints"] = {
        "tolerations": [LEASE],
        "nodeAffinity": {"required": [POOL], "preferred": [NEARBY]},
        "schedulerName": "kueue",
        "labels": {"team": "x"},
        "replacedLabels": {"team": "x"},
    }
    forged["metadata"]["annotations"][RECORD] = json.dumps(asked)
    assert record(created(PolicySet(), forged)) is None


@pytest.mark.parametrize(
    "hints", [5, [], {"tolerations": [5]}, {"labels": {"a": 5}}, {"nodeAffinity": {"required": [1]}}]
)
def test_invalid_recorded_hints_are_ignored(hints: Any) -> None:
    stored = created(PolicySet(), pod(container(neuron="4")))
    forged = copy.deepcopy(stored)
    asked = json.loads(forged["metadata"]["annotations"][RECORD]) | {"hints": hints}
    forged["metadata"]["annotations"][RECORD] = json.dumps(asked)
    assert created(PolicySet(), forged) == stored
    decision, _ = decide_and_apply(PolicySet(), pod(container(neuron="4")), forged)
    assert decision.reason == "reapplied"


# --- on UPDATE: policies have changed, or are gone --------------------------------------------------------------


def test_replacing_with_the_original_manifest_changes_nothing_if_the_policy_is_gone() -> None:
    original = pod(container(neuron="4"), schedulerName="my-scheduler", labels={"app": "x"})
    stored = created(hint_policies(EVERYTHING), original)
    decision, result = decide_and_apply(PolicySet(), original, stored)
    assert decision.reason == "reapplied"
    assert result == stored


def test_replacing_changes_nothing_if_the_policy_has_changed() -> None:
    original = pod(container(neuron="4"))
    stored = created(hint_policies(EVERYTHING), original)
    other = hint_policies({"tolerations": {"action": "Off"}, "labels": {"action": "Replace", "items": {"team": "z"}}})
    assert decide_and_apply(other, original, stored)[1] == stored


def test_a_removed_label_of_the_policy_is_restored() -> None:
    stored = created(hint_policies(EVERYTHING), pod(container(neuron="4")))
    taken = copy.deepcopy(stored)
    del taken["metadata"]["labels"]["team"]
    decision, result = decide_and_apply(hint_policies(EVERYTHING), taken, stored)
    assert decision.reason == "marks-restored"
    assert result == stored
    del taken["metadata"]["labels"]
    assert decide_and_apply(hint_policies(EVERYTHING), taken, stored)[1] == stored


def test_a_label_of_a_record_that_no_policy_sets_can_be_removed() -> None:
    """The author of the pod may have written the record; the author of the update may be an admin."""
    stored = created(hint_policies(EVERYTHING), pod(container(neuron="4")))
    taken = copy.deepcopy(stored)
    del taken["metadata"]["labels"]["team"]
    assert decide_and_apply(PolicySet(), taken, stored)[1] == taken


@pytest.mark.parametrize("mode", ["off", "convert"])
def test_label_and_record_of_a_pod_that_was_not_converted_can_be_removed(mode: str) -> None:
    stored = created(PolicySet(), pod(container(neuron="4")))
    stored["metadata"]["annotations"]["neuron.aws.com/convert"] = mode
    stored["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = "neuron-4-0123456789ab"
    bare = copy.deepcopy(stored)
    del bare["metadata"]["labels"], bare["metadata"]["annotations"][RECORD]
    assert decide_and_apply(PolicySet(), bare, stored)[1] == bare


@pytest.mark.parametrize(("action", "stays"), [("Add", "own"), ("Replace", "ml")])
def test_a_changed_label_stays_unless_the_policy_replaces_labels(action: str, stays: str) -> None:
    found = hint_policies({"labels": {"action": action, "items": {"team": "ml"}}})
    stored = created(found, pod(container(neuron="4")))
    changed = copy.deepcopy(stored)
    changed["metadata"]["labels"] |= {"team": "own", "more": "labels"}
    labels = decide_and_apply(found, changed, stored)[1]["metadata"]["labels"]
    assert labels == {"neuron.aws.com/converted": "true", "team": stays, "more": "labels"}
    # No policy in force sets the label: the record alone does not keep it.
    assert decide_and_apply(PolicySet(), changed, stored)[1] == changed


def test_a_label_that_was_changed_later_belongs_to_the_user() -> None:
    stored = created(hint_policies(EVERYTHING), pod(container(neuron="4")))
    stored["metadata"]["labels"]["team"] = "own"
    new = copy.deepcopy(stored)
    del new["metadata"]["labels"]["team"]
    assert decide_and_apply(PolicySet(), new, stored)[0].reason == "already-converted"


def test_the_users_own_labels_can_be_added_and_removed() -> None:
    stored = created(hint_policies(EVERYTHING), pod(container(neuron="4"), labels={"own": "1"}))
    new = copy.deepcopy(stored)
    new["metadata"]["labels"] = {**new["metadata"]["labels"], "other": "2"}
    del new["metadata"]["labels"]["own"]
    assert decide_and_apply(PolicySet(), new, stored)[1] == new


def test_tolerations_that_are_added_stay() -> None:
    original = pod(container(neuron="4"))
    stored = created(hint_policies(EVERYTHING), original)
    new = copy.deepcopy(original)
    new["spec"]["tolerations"] = [{"key": "more", "operator": "Exists"}]
    result = decide_and_apply(PolicySet(), new, stored)[1]
    assert sorted(each["key"] for each in result["spec"]["tolerations"]) == ["aws.amazon.com/neuron", "lease", "more"]


def test_a_policys_toleration_with_changed_seconds_is_recognised() -> None:
    original = pod(container(neuron="4"))
    stored = created(hint_policies(EVERYTHING), original)
    stored["spec"]["tolerations"][1]["tolerationSeconds"] = 300
    assert decide_and_apply(PolicySet(), original, stored)[1] == stored
    asking = copy.deepcopy(original)
    asking["spec"]["tolerations"] = [LEASE]
    assert decide_and_apply(PolicySet(), asking, stored)[1]["spec"]["tolerations"] == [BUILT_IN, LEASE]


def test_a_changed_affinity_is_left_to_the_api_server_to_refuse() -> None:
    original = pod(container(neuron="4"), nodeSelector={"zone": "a"})
    stored = created(hint_policies(EVERYTHING), original)
    new = copy.deepcopy(original)
    new["spec"]["affinity"] = {"nodeAffinity": {PREFERRED: [NEARBY, NEARBY]}}
    assert decide_and_apply(PolicySet(), new, stored)[1]["spec"]["affinity"] == new["spec"]["affinity"]


def test_a_changed_scheduler_is_left_to_the_api_server_to_refuse() -> None:
    original = pod(container(neuron="4"))
    stored = created(hint_policies(EVERYTHING), original)
    new = original | {"spec": original["spec"] | {"schedulerName": "volcano"}}
    assert decide_and_apply(PolicySet(), new, stored)[1]["spec"]["schedulerName"] == "volcano"


# --- round trips ------------------------------------------------------------------------------------------------

KEYS = st.sampled_from(["lease", "pool", "zone", "aws.amazon.com/neuron", "node.kubernetes.io/instance-type"])
TOLERATIONS = st.builds(
    lambda key, effect, seconds: (
        {"key": key, "operator": "Exists"}
        | ({"effect": effect} if effect else {})
        | ({"tolerationSeconds": seconds} if seconds and effect == "NoExecute" else {})
    ),
    KEYS,
    st.sampled_from(["", "NoSchedule", "NoExecute"]),
    st.sampled_from([0, 5, 60]),
)
REQUIREMENTS = st.builds(
    lambda key, values: {"key": key, "operator": "In", "values": values},
    st.sampled_from(["pool", "zone"]),
    st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=2, unique=True),
) | st.just({"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["trn1.32xlarge", "trn2.48xlarge"]})
PREFERENCES = st.builds(
    lambda weight, each: {"weight": weight, "preference": {"matchExpressions": [each]}},
    st.integers(1, 2),
    REQUIREMENTS,
)
LABELS = st.dictionaries(st.sampled_from(["team", "queue", "app"]), st.sampled_from(["1", "2"]), max_size=3)


def unique(entries: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(entries, max_size=2, unique_by=json.dumps)


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    spec: dict[str, Any] = {"leaderWorkerSet": {"exclusiveTopology": "On"}}
    if draw(st.booleans()):
        items = draw(unique(TOLERATIONS))
        spec["tolerations"] = {"action": draw(st.sampled_from(["Add", "Replace"])) if items else "Off", "items": items}
    if draw(st.booleans()):
        required, preferred = draw(unique(REQUIREMENTS)), draw(unique(PREFERENCES))
        action = draw(st.sampled_from(["Add", "Replace"])) if required or preferred else "Off"
        spec["nodeAffinity"] = {"action": action, "required": required, "preferred": preferred}
    if draw(st.booleans()):
        spec["schedulerName"] = {"action": "Replace", "name": draw(st.sampled_from(["kueue", "default-scheduler"]))}
    if labels := draw(LABELS):
        spec["labels"] = {"action": draw(st.sampled_from(["Add", "Replace"])), "items": labels}
    return spec


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    made = pod(container(neuron="4"))
    if draw(st.booleans()):
        made["metadata"]["labels"] = draw(LABELS)
    if draw(st.booleans()):
        made["spec"]["tolerations"] = draw(st.lists(TOLERATIONS, max_size=2))
    node: dict[str, Any] = {}
    if terms := draw(st.lists(st.lists(REQUIREMENTS, max_size=2), max_size=2)):
        node[REQUIRED] = {"nodeSelectorTerms": [{"matchExpressions": each} if each else {} for each in terms]}
    if preferred := draw(st.lists(PREFERENCES, max_size=2)):
        node[PREFERRED] = preferred
    if node or draw(st.booleans()):
        made["spec"]["affinity"] = draw(st.sampled_from([{"nodeAffinity": node}, {"podAffinity": {}}]))
    made["spec"]["schedulerName"] = draw(st.sampled_from(["default-scheduler", "my-scheduler", "volcano", "kueue"]))
    return made


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(specs(), pods())
@example(EVERYTHING, pod(container(neuron="4")))
def test_applying_again_and_passing_twice_change_nothing(spec: dict[str, Any], original: dict[str, Any]) -> None:
    found = hint_policies(spec)
    first = asyncio.run(mutator(policies=found).review(request(original)))
    if not first.allowed:
        assert first.reason == "no-candidate"
        return
    stored = jsonpatch.apply_patch(original, copy.deepcopy(list(first.patch)))
    assert decide_and_apply(found, stored)[0].patch == ()
    # `kubectl replace`, and `kubectl apply`, which keeps what others added and sets what the manifest has.
    merged = copy.deepcopy(stored)
    merged["spec"]["containers"][0]["resources"] |= original["spec"]["containers"][0]["resources"]
    merged["metadata"]["labels"] |= original["metadata"].get("labels", {})
    for part in ("schedulerName", "tolerations", "affinity"):
        if part in original["spec"]:
            merged["spec"][part] = original["spec"][part]
    for again in (original, merged):
        assert decide_and_apply(PolicySet(), again, stored)[1] == stored
        assert decide_and_apply(found, again, stored)[1] == stored


@settings(max_examples=100, deadline=None)
@given(specs(), pods())
def test_no_field_of_the_original_pod_is_removed(spec: dict[str, Any], original: dict[str, Any]) -> None:
    decision = asyncio.run(mutator(policies=hint_policies(spec)).review(request(original)))
    stored = jsonpatch.apply_patch(original, copy.deepcopy(list(decision.patch)))
    own = original["spec"].get("tolerations", [])
    assert stored["spec"].get("tolerations", [])[: len(own)] == own
    for kind, affinity in (original["spec"].get("affinity") or {}).items():
        assert kind in stored["spec"]["affinity"]
        if kind == "nodeAffinity" and PREFERRED in affinity:
            assert stored["spec"]["affinity"][kind][PREFERRED][: len(affinity[PREFERRED])] == affinity[PREFERRED]
    if spec.get("labels", {}).get("action") != "Replace":
        assert original["metadata"].get("labels", {}).items() <= stored["metadata"].get("labels", {}).items()
