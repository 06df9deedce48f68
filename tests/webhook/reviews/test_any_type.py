"""Any JSON type at any field of an object: the review is answered, and its patch applies."""

import asyncio
import copy
import json
from collections.abc import Iterator
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

LWS = {"kind": "LeaderWorkerSet", "group": "leaderworkerset.x-k8s.io"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
RECORD = "neuron.aws.com/converted-from"
FILES = {
    "hints.json": {
        "kind": "SchedulingHintPolicy",
        "spec": {
            "order": 1,
            "tolerations": {"action": "Add", "items": [{"key": "pool", "operator": "Exists"}]},
            "nodeAffinity": {
                "action": "Add",
                "required": [{"key": "pool", "operator": "Exists"}],
                "preferred": [
                    {"weight": 1, "preference": {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}}
                ],
            },
            "labels": {"action": "Replace", "items": {"team": "ml"}},
        },
    },
    "conversion.json": {
        "kind": "ConversionPolicy",
        "spec": {
            "order": 1,
            "match": {"conditions": [{"name": "many", "expression": "neuron.devices > 1"}]},
            "families": ["trn1", "trn2"],
        },
    },
}
POLICIES = load(
    {
        name: json.dumps(
            {"apiVersion": "policy.neuron.aws.com/v1alpha1", "metadata": {"name": name[:4]}, **policy}
        ).encode()
        for name, policy in FILES.items()
    }
)


def rich() -> Any:
    """A pod that has every field that is read."""
    main = container("main", neuroncore="3") | {"env": [{"name": "A", "value": "1"}]}
    main["resources"]["claims"] = [{"name": "net", "request": "r"}]
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}], "matchFields": []}]
    nearby = {"weight": 1, "preference": {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}}
    return pod(
        main,
        container("helper", neuron="1"),
        init=[container("compile", neuron="4"), container("agent", neuron="1", sidecar=True)],
        schedulerName="my-scheduler",
        nodeSelector={"zone": "a"},
        affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}, PREFERRED: [nearby]}},
        tolerations=[{"key": "team", "operator": "Exists", "tolerationSeconds": 5}],
        resourceClaims=[{"name": "net", "resourceClaimTemplateName": "efa"}],
        labels={"app": "x"},
        annotations={"note": "y", "neuron.aws.com/logical-neuron-core": "2"},
    )


def leader_worker_set() -> Any:
    template = {
        "metadata": {"annotations": {"neuron.aws.com/ultraserver-mode": "4"}, "labels": {"a": "b"}},
        "spec": rich()["spec"],
    }
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "vllm", "annotations": {"note": "x"}},
        "spec": {"leaderWorkerTemplate": {"leaderTemplate": template, "workerTemplate": template, "size": 4}},
    }


def reviewed_with(policies: PolicySet, manifest: Any, *args: Any, **fields: Any) -> Decision:
    return asyncio.run(mutator(policies=policies).review(request(manifest, *args, **fields)))


def patched(manifest: Any, decision: Decision) -> Any:
    # A copy through JSON: two changes may have put one list at two places, and a patch of one would change the other.
    return jsonpatch.apply_patch(json.loads(json.dumps(manifest)), copy.deepcopy(list(decision.patch)))


CREATED = patched(rich(), reviewed_with(POLICIES, rich()))


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything in JSON-like data."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def mutated(value: Any, path: tuple[Any, ...], change: Any) -> Any:
    """A copy with a change at one field: another value, no value, or the old value twice."""
    made = copy.copy(value)
    holder = made
    for step in path[:-1]:
        holder[step] = copy.copy(holder[step])
        holder = holder[step]
    if change == "delete":
        del holder[path[-1]]
    elif change == "twice" and isinstance(holder, list):
        holder.append(copy.deepcopy(holder[path[-1]]))
    else:
        holder[path[-1]] = change
    return made


SCALARS = st.sampled_from(
    [None, True, 0, 1, -1, 4.0, 1e300, 2**70, "", "4", "neuron", "neuron-dra", "text", [], {}, [None], [[]], {"a": {}}]
)
ANYTHING = SCALARS | st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["name", "key", "claims", "limits", "spec", "metadata", "labels", "aws.amazon.com/neuron", "values"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
CHANGES = ANYTHING | st.sampled_from(["delete", "twice"])


def changed_parts(value: Any) -> st.SearchStrategy[Any]:
    """Data with one or two of its parts changed."""
    every = list(places(value))

    def apply(first: tuple[Any, ...], change: Any, second: tuple[Any, ...], other: Any) -> Any:
        once = mutated(value, first, change)
        try:
            return mutated(once, second, other)
        except (KeyError, IndexError, TypeError):
            return once

    return st.builds(apply, st.sampled_from(every), CHANGES, st.sampled_from(every), CHANGES)


def holds_for_creation(policies: PolicySet, manifest: Any, **fields: Any) -> None:
    """The review is answered, the patch applies, and a second pass does not change the result."""
    decision = reviewed_with(policies, manifest, **fields)
    result = patched(manifest, decision)
    if not decision.allowed:
        assert all(error.code.startswith("NEU") for error in decision.errors)
        return
    again = reviewed_with(policies, result, **fields)
    assert again.allowed, (decision, again)
    assert patched(result, again) == result


NO_ENTRIES: list[Any] = []
WITHOUT_CLAIMS = mutated(
    mutated(CREATED, ("spec", "containers", 0, "resources", "claims"), NO_ENTRIES),
    ("spec", "initContainers", 0, "resources", "claims"),
    NO_ENTRIES,
)
"""One list at two places."""

BOTH = pytest.mark.parametrize("policies", [PolicySet(), POLICIES], ids=["no-policies", "policies"])
RELAXED = settings(suppress_health_check=[HealthCheck.too_slow])


@BOTH
@RELAXED
@given(manifest=changed_parts(rich()) | changed_parts(CREATED))
@example(manifest=WITHOUT_CLAIMS)
def test_pods_that_are_created(policies: PolicySet, manifest: Any) -> None:
    holds_for_creation(policies, manifest)


@BOTH
@RELAXED
@given(manifest=changed_parts(leader_worker_set()))
@example(manifest=leader_worker_set() | {"spec": 5})
@example(manifest=leader_worker_set() | {"spec": [1]})
@example(manifest=leader_worker_set() | {"spec": {"leaderWorkerTemplate": "x"}})
@example(manifest=leader_worker_set() | {"metadata": None})
def test_leader_worker_sets_that_are_created(policies: PolicySet, manifest: Any) -> None:
    holds_for_creation(policies, manifest, **LWS)


@BOTH
@RELAXED
@given(
    new=changed_parts(rich()) | changed_parts(CREATED) | st.just(rich()), old=changed_parts(CREATED) | st.just(CREATED)
)
def test_pods_that_are_updated(policies: PolicySet, new: Any, old: Any) -> None:
    decision = reviewed_with(policies, new, "UPDATE", old)
    result = patched(new, decision)
    if decision.allowed:
        again = reviewed_with(policies, result, "UPDATE", old)
        assert again.allowed
        assert patched(result, again) == result


RECORDS = changed_parts(json.loads(CREATED["metadata"]["annotations"][RECORD]) | {"claim": "neuron"})


@BOTH
@RELAXED
@given(said=RECORDS, manifest=st.just(CREATED) | changed_parts(CREATED))
def test_forged_records_of_any_type_are_answered(policies: PolicySet, said: Any, manifest: Any) -> None:
    forged = copy.deepcopy(manifest)
    try:
        forged["metadata"]["annotations"][RECORD] = json.dumps(said)
    except (KeyError, TypeError):
        return
    holds_for_creation(policies, forged)
    reviewed_with(policies, rich(), "UPDATE", forged)


@pytest.mark.parametrize("value", [0, 1.5, True, "x", [], [{}], None])
@pytest.mark.parametrize("kind", ["Pod", "LeaderWorkerSet"])
def test_an_object_of_another_json_type_is_answered(kind: str, value: Any) -> None:
    fields = LWS if kind == "LeaderWorkerSet" else {}
    for operation in ("CREATE", "UPDATE"):
        decision = reviewed_with(POLICIES, value, operation, CREATED, **fields)
        assert {error.code for error in decision.errors} <= {"NEU114"}
