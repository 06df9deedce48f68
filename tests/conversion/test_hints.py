from typing import Any

import jsonpatch
import pytest

from conversion.asks.records import NO_AFFINITY, NOTHING_ADDED, AddedAffinity
from conversion.claims.scheduling import NEURON_TOLERATION, NO_HINTS, missing_tolerations
from conversion.patches import hints

TYPES = ["trn1.32xlarge"]
EXPRESSION = {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": TYPES}
OWN = {**EXPRESSION, "values": [*TYPES, "trn2.48xlarge"]}
ZONE = {"key": "zone", "operator": "In", "values": ["a"]}
FIELD = {"key": "metadata.name", "operator": "In", "values": ["n"]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}


@pytest.mark.parametrize(
    ("affinity", "expected"),
    [
        (None, required({"matchExpressions": [EXPRESSION]})),
        ({}, required({"matchExpressions": [EXPRESSION]})),
        ({"podAffinity": {}}, {"podAffinity": {}} | required({"matchExpressions": [EXPRESSION]})),
        ({"nodeAffinity": {REQUIRED: None}}, required({"matchExpressions": [EXPRESSION]})),
        (required({"matchExpressions": [ZONE]}), required({"matchExpressions": [ZONE, EXPRESSION]})),
        (
            required({"matchExpressions": [ZONE]}, {}, {"matchFields": [FIELD]}),
            required(
                {"matchExpressions": [ZONE, EXPRESSION]}, {}, {"matchFields": [FIELD], "matchExpressions": [EXPRESSION]}
            ),
        ),
        (
            required({"matchExpressions": [EXPRESSION, ZONE]}, {"matchExpressions": [ZONE]}),
            required({"matchExpressions": [EXPRESSION, ZONE]}, {"matchExpressions": [ZONE, EXPRESSION]}),
        ),
        (
            required({"matchExpressions": [EXPRESSION, OWN]}, {"matchExpressions": [ZONE]}),
            required({"matchExpressions": [EXPRESSION, OWN]}, {"matchExpressions": [ZONE, EXPRESSION]}),
        ),
    ],
    ids=["none", "empty", "other", "null", "term", "terms", "had", "had-beside-another"],
)
def test_the_affinity_is_added_to_every_term_that_matches_something(affinity: Any, expected: Any) -> None:
    document = {"spec": {} if affinity is None else {"affinity": affinity}}
    result = jsonpatch.apply_patch(document, hints.node_affinity(affinity, [EXPRESSION]))
    assert result["spec"]["affinity"] == expected
    assert hints.lacks_only_hints(affinity, expected)


def test_a_term_that_lacks_only_the_policys_requirement_does_not_hide_the_hint() -> None:
    affinity: Any = required({"matchExpressions": [EXPRESSION]}, {"matchFields": [FIELD]})
    document = {"spec": {"affinity": affinity}}
    made = jsonpatch.apply_patch(document, hints.node_affinity(affinity, [ZONE, EXPRESSION]))["spec"]["affinity"]
    assert hints.lacks_only_hints(affinity, made, AddedAffinity((ZONE,)))
    assert not hints.lacks_only_hints(affinity, made, NO_AFFINITY)


@pytest.mark.parametrize(("beside", "ours"), [([], True), ([NEURON_TOLERATION], False)], ids=["alone", "both"])
def test_a_toleration_with_seconds_is_the_users_where_ours_is_beside_it(beside: list[Any], ours: bool) -> None:
    timed = {**NEURON_TOLERATION, "tolerationSeconds": 5}
    assert hints.ours([*beside, timed], NOTHING_ADDED)(timed) is ours


@pytest.mark.parametrize(("count", "operations"), [(8, 8), (9, 1), (64, 1)])
def test_many_terms_are_replaced_as_a_whole(count: int, operations: int) -> None:
    """What is in them stays: empty terms, requirements that they have already, and fields of other versions."""
    kept = [{}, {"matchExpressions": [ZONE, EXPRESSION], "new": 1}]
    terms = [*kept, *({"matchFields": [FIELD], "later": {"n": number}} for number in range(count))]
    narrowed = [*kept, *({**term, "matchExpressions": [EXPRESSION]} for term in terms[2:])]
    affinity = required(*terms)
    patch = hints.node_affinity(affinity, [EXPRESSION])
    assert len(patch) == operations
    made = jsonpatch.apply_patch({"spec": {"affinity": affinity}}, patch)["spec"]["affinity"]
    assert made == required(*narrowed)
    assert hints.lacks_only_hints(affinity, made)
    assert hints.node_affinity(made, [EXPRESSION]) == []


@pytest.mark.parametrize(
    ("affinity", "hinted"),
    [
        (None, None),
        (None, required({"matchExpressions": [ZONE]})),
        (None, required({"matchFields": [FIELD]})),
        (required({"matchExpressions": [ZONE]}), required({"matchExpressions": [EXPRESSION]})),
        ({"podAffinity": {}}, required({"matchExpressions": [EXPRESSION]})),
    ],
)
def test_other_affinity_differences_are_not_caused_by_hints(affinity: Any, hinted: Any) -> None:
    assert not hints.lacks_only_hints(affinity, hinted)


@pytest.mark.parametrize(
    ("current", "added"),
    [
        (None, True),
        ([], True),
        ([{"key": "team", "operator": "Exists"}], True),
        ([{"operator": "Exists", "effect": "NoExecute"}], True),
        ([{"operator": "Exists"}], False),
        ([{"key": "aws.amazon.com/neuron", "operator": "Equal", "value": "true", "effect": "NoSchedule"}], False),
    ],
    ids=["none", "empty", "other-key", "other-effect", "everything", "own"],
)
def test_the_toleration_is_added_if_the_pod_does_not_tolerate_the_taint(current: Any, added: bool) -> None:
    assert bool(missing_tolerations(current, NO_HINTS, neuron=True)) == added


def test_preferences_are_added_to_those_of_the_pod() -> None:
    own, added = {"weight": 1, "preference": {}}, {"weight": 2, "preference": {}}
    path = "preferredDuringSchedulingIgnoredDuringExecution"
    manifest = {"spec": {"affinity": {"nodeAffinity": {path: [own]}}}}
    operations = hints.node_affinity(manifest["spec"]["affinity"], [], [added])
    result = jsonpatch.apply_patch(manifest, list(operations))
    assert result["spec"]["affinity"]["nodeAffinity"] == {path: [own, added]}
