"""Pods that share a decision: those that differ only in the names of containers, or in amounts of other resources."""

import copy
import dataclasses
import json
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversion.patches import convert_pods
from conversion.patches.decision import Decision
from policies.files.loader import load
from policies.judging.rules import PolicySet
from tests.support.any_pods import CONTAINERS, built
from tests.support.clusters import mutator, reviewed
from tests.support.manifests import container, pod
from webhook.reviews import mutate

EFA = load(
    {
        "p.yaml": b"apiVersion: policy.neuron.aws.com/v1alpha1\nkind: ConversionPolicy\nmetadata: {name: fabric}\n"
        b"spec: {order: 10, efa: {}, families: [trn2]}\n"
    }
)
NAMES = st.one_of(
    st.from_regex(r"[a-z0-9]([-a-z0-9]{0,5}[a-z0-9])?", fullmatch=True),
    st.sampled_from(["containers", "efa", "hints", "neuron", "a" * 63, "a" * 64, "", "A", "a.b", "e\u00e9", "1"]),
)
RECORD = "neuron.aws.com/converted-from"


def shown(decision: Decision) -> Any:
    """The decision, with its templates as manifests: two templates of one spec are not the same object."""
    return dataclasses.replace(decision, templates=()), [each.manifest() for each in decision.templates]


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the first container of each pod about which `convert` decided."""
    seen: list[str] = []

    def convert(pod: Any, *args: Any, **fields: Any) -> Decision:
        seen.append(pod.container_names[0])
        return convert_pods.convert(pod, *args, **fields)

    monkeypatch.setattr(mutate, "decide_pod", convert)
    return seen


def with_names(manifest: Any, containers: list[str]) -> Any:
    other = copy.deepcopy(manifest)
    every = [*other["spec"]["containers"], *other["spec"].get("initContainers", ())]
    for made, name in zip(every, containers, strict=False):
        made["name"] = name
    return other


@given(
    st.lists(CONTAINERS, min_size=1, max_size=4),
    st.lists(CONTAINERS, max_size=3),
    st.lists(NAMES, min_size=7, max_size=7),
    st.sampled_from([PolicySet(), EFA]),
    st.sampled_from([None, "4"]),
    st.sampled_from(["convert", "shadow"]),
)
def test_the_cached_decision_equals_that_of_an_empty_cache(
    apps: list[Any], inits: list[Any], containers: list[str], policies: PolicySet, efa: str | None, mode: str
) -> None:
    first = pod(*built(apps, "c"), init=built(inits, "i"))
    if efa:
        first["spec"]["containers"][0].setdefault("resources", {}).setdefault("limits", {})["vpc.amazonaws.com/efa"] = (
            efa
        )
    other = with_names(first, containers)
    subject = mutator(policies=policies, mode=mode)
    reviewed(subject, first)
    assert shown(reviewed(subject, other)) == shown(reviewed(mutator(policies=policies, mode=mode), other))


@pytest.mark.parametrize("annotations", [{}, {"team": "a"}], ids=["no-annotations", "own-annotations"])
def test_a_pod_with_other_names_is_not_decided_again(annotations: dict[str, str], decided: list[str]) -> None:
    subject = mutator()
    first = pod(container("main", neuron="4"), container("proxy"), init=[container("setup", neuron="1")])
    if annotations:
        first["metadata"]["annotations"] = annotations
    reviewed(subject, first)
    other = with_names(first, ["trainer", "envoy", "fetch"])
    decision = reviewed(subject, other)
    assert decided == ["main"]
    assert reviewed(subject, other) is decision
    stored = jsonpatch.apply_patch(other, list(decision.patch))["metadata"]["annotations"]
    assert stored.keys() == {*annotations, RECORD}
    assert json.loads(stored[RECORD]) == {
        "containers": {"trainer": {"aws.amazon.com/neuron": "4"}},
        "initContainers": {"fetch": {"aws.amazon.com/neuron": "1"}},
    }


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (pod(container("a", neuron="4")), pod(container("b", neuron="8"))),
        (pod(container("a", neuroncore="3")), pod(container("b", neuroncore="3"))),
        (pod(container("a", neuron="4")), pod(container("B", neuron="4"))),
        (pod(container("a", neuron="4")), pod(container("b", neuron="4"), annotations={RECORD: "{}"})),
    ],
    ids=["other-demand", "a-finding-names-the-container", "no-label", "earlier-record"],
)
def test_pods_that_differ_in_more_than_names_are_decided_separately(first: Any, other: Any, decided: list[str]) -> None:
    subject = mutator()
    reviewed(subject, first)
    reviewed(subject, other)
    assert len(decided) == 2


def test_a_record_of_the_user_is_read_by_the_names_that_the_pod_has() -> None:
    first = pod(container("a", neuron="4"))
    stored = copy.deepcopy(first)
    for operation in reviewed(mutator(), first).patch:
        if RECORD in str(operation):
            stored["metadata"] |= {"annotations": operation["value"]}
    subject = mutator()
    reviewed(subject, with_names(stored, ["b"]))
    assert reviewed(subject, stored) == reviewed(mutator(), stored)


AMOUNTS = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.sampled_from(["1", "500m", 2, None]),
        "memory": st.sampled_from(["1Gi", "aws.amazon.com/neuron"]),
        "aws.amazon.com/neuron": st.sampled_from(["4", "4.0", 4, 4.0, True, "0", "7", None, "aws"]),
        "aws.amazon.com/neuroncore": st.sampled_from(["8", "2"]),
    },
)
RESOURCES = st.fixed_dictionaries(
    {"limits": AMOUNTS},
    optional={"requests": AMOUNTS, "claims": st.just([]), "limit": st.just({"cpu": "1"})},
)


@given(RESOURCES, RESOURCES)
def test_the_decision_for_other_amounts_equals_that_of_an_empty_cache(
    first: dict[str, Any], other: dict[str, Any]
) -> None:
    subject = mutator()
    reviewed(subject, pod({"name": "main", "resources": first}))
    manifest = pod({"name": "main", "resources": other})
    assert shown(reviewed(subject, manifest)) == shown(reviewed(mutator(), manifest))


def test_a_pod_with_other_cpu_and_memory_is_not_decided_again(decided: list[str]) -> None:
    subject = mutator()
    pods = [container("main", neuron="4"), container("main", neuron="4"), container("main", neuron="8")]
    for number, each in enumerate(pods):
        for amounts in each["resources"].values():
            amounts |= {"cpu": f"{number + 1}", "memory": f"{number + 1}Gi"}
    one, same, more = (reviewed(subject, pod(each)) for each in pods)
    assert same is one
    assert more is not one
    assert decided == ["main", "main"]
