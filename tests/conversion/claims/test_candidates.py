import time
from typing import Any

import pytest

from conversion.claims.candidates import NodeSelection, find, is_sagemaker, pins_types
from conversion.claims.families import UNKNOWN, Families
from neuron.hardware.instances import DEFAULT_FAMILIES, Catalogue, Observation
from tests.support.timing import assert_below

TYPE = "node.kubernetes.io/instance-type"
CATALOGUE = Catalogue()


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


def term(*expressions: dict[str, Any]) -> dict[str, Any]:
    return {"matchExpressions": list(expressions)}


SEEN = Families(seen=DEFAULT_FAMILIES)


def found(selection: NodeSelection, families: Families = SEEN) -> list[str]:
    candidates = find(CATALOGUE, selection, families)
    assert not candidates.errors
    return [entry.name for entry in candidates.types]


def test_all_released_types_are_candidates_without_any_knowledge() -> None:
    candidates = find(CATALOGUE, NodeSelection(), UNKNOWN)
    assert candidates.types == tuple(entry for entry in CATALOGUE if entry.released)
    assert {entry.family for entry in candidates.types} == set(CATALOGUE.families())
    assert (candidates.known, candidates.all_known_types) == (False, True)


def test_a_hint_narrows_the_candidates_and_is_reported() -> None:
    candidates = find(CATALOGUE, NodeSelection(node_selector={"instanceType": "inferentia-inf2"}), UNKNOWN)
    assert {entry.family for entry in candidates.types} == {"inf2"}
    assert (candidates.known, candidates.all_known_types) == (False, False)
    assert [each.code for each in candidates.warnings] == ["NEU217"]


def test_a_type_that_the_pod_names_needs_no_hint() -> None:
    selector = {TYPE: "trn1.32xlarge", "pool": "inferentia-inf2"}
    candidates = find(CATALOGUE, NodeSelection(node_selector=selector), UNKNOWN)
    assert [entry.name for entry in candidates.types] == ["trn1.32xlarge"]
    assert (candidates.known, candidates.warnings) == (True, ())


DEVELOPMENT = "trn3-dev0.48xlarge"


@pytest.mark.parametrize(
    ("selection", "named"),
    [
        (NodeSelection(), False),
        (NodeSelection(node_selector={"karpenter.k8s.aws/instance-size": "48xlarge"}), False),
        (NodeSelection(node_selector={"karpenter.k8s.aws/instance-category": "trn"}), False),
        (NodeSelection(terms=[term(expression(TYPE, "NotIn", "trn1.32xlarge"))]), False),
        (NodeSelection(annotated=(DEVELOPMENT,)), True),
        (NodeSelection(node_selector={TYPE: DEVELOPMENT}), True),
        (NodeSelection(node_selector={"eks.amazonaws.com/instance-family": "trn3-dev0"}), True),
        (NodeSelection(terms=[term(expression(TYPE, "In", "trn1.32xlarge", DEVELOPMENT))]), True),
    ],
)
def test_an_unreleased_type_is_a_candidate_only_if_named_or_observed(selection: NodeSelection, named: bool) -> None:
    assert (DEVELOPMENT in found(selection)) is named
    seen = CATALOGUE.observed({DEVELOPMENT: Observation(16)})
    narrowed = find(seen, selection, Families(seen=("trn3",))).types
    assert DEVELOPMENT in [entry.name for entry in narrowed]


@pytest.mark.parametrize("domain", ["karpenter.k8s.aws", "eks.amazonaws.com"])
@pytest.mark.parametrize(
    ("label", "operator", "value", "expected"),
    [
        ("instance-type", "In", "inf2.24xlarge", ["inf2.24xlarge"]),
        ("instance-family", "In", "trn1n", ["trn1n.32xlarge"]),
        ("instance-accelerator-count", "In", "12", ["inf2.48xlarge"]),
        ("instance-accelerator-name", "In", "trainium", ["trn1.32xlarge", "trn1.2xlarge", "trn1n.32xlarge"]),
    ],
)
def test_labels_of_both_provisioners_are_read(
    domain: str, label: str, operator: str, value: str, expected: list[str]
) -> None:
    types = found(NodeSelection(terms=[term(expression(f"{domain}/{label}", operator, value))]), UNKNOWN)
    assert [name for name in types if not name.startswith("trn3")] == expected


@pytest.mark.parametrize(
    ("label", "operator", "value", "families"),
    [
        ("instance-category", "In", "inf", {"inf1", "inf2"}),
        ("instance-generation", "In", "2", {"inf2", "trn2", "trn2u"}),
        ("instance-generation", "Gt", "1", {"inf2", "trn2", "trn2u", "trn3"}),
        ("instance-generation", "Lt", "2", {"inf1", "trn1", "trn1n"}),
        ("instance-generation", "Gt", "x", None),
        ("instance-family", "Gt", "1", None),
    ],
)
def test_categories_and_generations(label: str, operator: str, value: str, families: set[str] | None) -> None:
    terms = [term(expression(f"karpenter.k8s.aws/{label}", operator, value))]
    candidates = find(CATALOGUE, NodeSelection(terms=terms), UNKNOWN)
    assert {entry.family for entry in candidates.types} == (families or set())
    assert [each.code for each in candidates.errors] == ([] if families else ["NEU110"])


def test_observed_families_are_candidates() -> None:
    assert found(NodeSelection(), Families(seen=("inf2",))) == [
        "inf2.48xlarge",
        "inf2.24xlarge",
        "inf2.8xlarge",
        "inf2.xlarge",
    ]


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (NodeSelection(annotated=("trn2.48xlarge",)), ["trn2.48xlarge"]),
        (NodeSelection(annotated=("trn2.48xlarge", "inf2.48xlarge")), ["trn2.48xlarge", "inf2.48xlarge"]),
        (NodeSelection(node_selector={TYPE: "inf2.48xlarge"}), ["inf2.48xlarge"]),
        (NodeSelection(node_selector={"beta.kubernetes.io/instance-type": "trn1.2xlarge"}), ["trn1.2xlarge"]),
        (NodeSelection(node_selector={TYPE: "ml.trn1.32xlarge"}), ["trn1.32xlarge"]),
        (NodeSelection(node_selector={"karpenter.k8s.aws/instance-family": "trn1n"}), ["trn1n.32xlarge"]),
        (
            NodeSelection(node_selector={"karpenter.k8s.aws/instance-accelerator-name": "inferentia"}),
            ["inf1.24xlarge", "inf1.6xlarge", "inf1.2xlarge", "inf1.xlarge"],
        ),
        (
            NodeSelection(terms=[term(expression(TYPE, "In", "trn1.32xlarge", "m5.large"))]),
            ["trn1.32xlarge"],
        ),
        (
            NodeSelection(
                terms=[term(expression(TYPE, "In", "trn1.32xlarge")), term(expression(TYPE, "In", "inf2.xlarge"))]
            ),
            ["trn1.32xlarge", "inf2.xlarge"],
        ),
        (
            NodeSelection(
                node_selector={"karpenter.k8s.aws/instance-family": "trn2"},
                terms=[term(expression(TYPE, "NotIn", "trn2.3xlarge"), expression("zone", "In", "a"))],
            ),
            ["trn2.48xlarge"],
        ),
        (NodeSelection(terms=[{"matchFields": [expression("metadata.name", "In", "n1")]}]), None),
        (NodeSelection(node_selector={"team": "vision"}), None),
    ],
    ids=[
        "annotation", "annotation-list", "node-selector", "beta-label", "sagemaker", "karpenter-family",
        "karpenter-accelerator", "affinity", "affinity-or", "selector-and-affinity", "match-fields", "other-labels",
    ],
)  # fmt: skip
def test_the_pod_narrows_the_candidates(selection: NodeSelection, expected: list[str] | None) -> None:
    assert found(selection) == (found(NodeSelection()) if expected is None else expected)


def test_a_term_that_matches_nothing_leaves_the_others() -> None:
    terms: list[dict[str, Any]] = [{}, term(expression(TYPE, "In", "trn1.32xlarge"))]
    assert found(NodeSelection(terms=terms)) == ["trn1.32xlarge"]


def test_a_hint_of_node_affinity_narrows_the_candidates() -> None:
    candidates = find(CATALOGUE, NodeSelection(terms=[term(expression("pool", "In", "inf2-spot"))]), UNKNOWN)
    assert {entry.family for entry in candidates.types} == {"inf2"}


def test_excluding_a_type_does_not_add_other_families() -> None:
    types = found(NodeSelection(terms=[term(expression(TYPE, "NotIn", "trn1.32xlarge"))]))
    assert "trn1.32xlarge" not in types
    assert not any(name.startswith("inf") for name in types)


@pytest.mark.parametrize(
    ("selection", "code", "path", "words"),
    [
        (
            NodeSelection(annotated=("m5.large",)), "NEU109", "metadata.annotations[neuron.aws.com/instance-type]",
            ["'m5.large', which is no known Neuron instance type."],
        ),
        (
            NodeSelection(node_selector={TYPE: "m5.large"}), "NEU110", f"spec.nodeSelector[{TYPE}]",
            [f"nodeSelector {TYPE}=m5.large admits no Neuron instance type."],
        ),
        (
            NodeSelection(node_selector={"karpenter.k8s.aws/instance-generation": "12"}), "NEU110",
            "spec.nodeSelector[karpenter.k8s.aws/instance-generation]",
            ["nodeSelector karpenter.k8s.aws/instance-generation=12 admits no Neuron instance type."],
        ),
        (
            NodeSelection(terms=[term(expression(TYPE, "In", "m5.large"))]), "NEU110",
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution",
            ["required node affinity admits no Neuron instance type."],
        ),
        (
            NodeSelection(terms=[{}]), "NEU110",
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution",
            ["required node affinity admits no Neuron instance type."],
        ),
        (
            NodeSelection(annotated=("trn1.32xlarge",), node_selector={TYPE: "trn2.48xlarge"}), "NEU110", "spec",
            [f"{TYPE}=trn2.48xlarge, neuron.aws.com/instance-type=trn1.32xlarge", "leaves none"],
        ),
        (
            NodeSelection(terms=[term(expression(TYPE, "DoesNotExist"))]), "NEU110",
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution",
            ["required node affinity admits no Neuron instance type."],
        ),
        (
            NodeSelection(terms=[term(expression("karpenter.k8s.aws/instance-category", "NotIn", "trn"))]), "NEU110",
            "spec",
            ["(required node affinity) leaves none of", f" in use (families {', '.join(DEFAULT_FAMILIES)})."],
        ),
        (
            NodeSelection(
                annotated=("inf2.xlarge", "inf2.8xlarge"),
                node_selector={**{f"k{number}": "v" for number in range(18)}, TYPE: "trn1.2xlarge"},
            ),
            "NEU110", "spec", ["k15=v, and 3 more, neuron.aws.com/instance-type=inf2.xlarge,inf2.8xlarge) leaves none"],
        ),
    ],
    ids=[
        "annotation-of-another-type", "other-type", "generation", "affinity", "empty-term", "contradiction", "not",
        "family-that-is-not-in-use", "many-labels",
    ],
)  # fmt: skip
def test_a_node_selection_without_candidates_reports_the_part_that_excludes_them(
    selection: NodeSelection, code: str, path: str, words: list[str]
) -> None:
    candidates = find(CATALOGUE, selection, SEEN)
    (finding,) = candidates.errors
    assert candidates.types == ()
    assert (finding.code, finding.path) == (code, path)
    assert all(word in finding.message for word in words)


@pytest.mark.parametrize(
    ("selection", "path", "words"),
    [
        pytest.param(
            NodeSelection(annotated=("trn2.48xlarg",)), "metadata.annotations[neuron.aws.com/instance-type]",
            "trn2.48xlarg is not in the catalogue of instance types: the pod is left as it is."
            " Did you mean 'trn2.48xlarge'?", id="annotation",
        ),
        pytest.param(
            NodeSelection(node_selector={TYPE: "ml.trn9.big"}), f"spec.nodeSelector[{TYPE}]",
            "trn9.big is not in the catalogue of instance types: the pod is left as it is.", id="node-selector",
        ),
        pytest.param(
            NodeSelection(node_selector={"karpenter.k8s.aws/instance-family": "inf3"}),
            "spec.nodeSelector[karpenter.k8s.aws/instance-family]",
            "inf3 is not in the catalogue of instance types: the pod is left as it is.", id="family",
        ),
        pytest.param(
            NodeSelection(terms=[term(expression(TYPE, "In", "m5.large", "inf2.4xlarge"))]),
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution",
            "inf2.4xlarge is not in the catalogue of instance types: the pod is left as it is."
            " Did you mean 'inf2.48xlarge'?", id="affinity",
        ),
    ],
)  # fmt: skip
def test_an_unknown_type_leaves_the_pod_as_it_is(selection: NodeSelection, path: str, words: str) -> None:
    candidates = find(CATALOGUE, selection, SEEN)
    (finding,) = candidates.unknown
    assert (candidates.types, candidates.errors) == ((), ())
    assert (finding.code, finding.path, finding.message) == ("NEU218", path, words)


@pytest.mark.parametrize(
    "selection", [NodeSelection(annotated=("trn1",)), NodeSelection(node_selector={TYPE: "trn1"})], ids=["own", "label"]
)
def test_a_family_where_a_type_is_named_is_said(selection: NodeSelection) -> None:
    (finding,) = find(CATALOGUE, selection, SEEN).unknown
    assert str(finding) == (
        "NEU218: trn1 is not in the catalogue of instance types: the pod is left as it is. trn1 is a family: name its"
        " types, such as trn1.32xlarge."
    )


def test_an_unknown_type_beside_a_known_one_is_left_out() -> None:
    candidates = find(CATALOGUE, NodeSelection(annotated=("trn2.48xlarge", "trn9.big")), SEEN)
    assert [entry.name for entry in candidates.types] == ["trn2.48xlarge"]
    assert [each.message for each in candidates.warnings] == [
        "trn9.big is not in the catalogue of instance types: the claim is made for the other types."
    ]


def test_each_unknown_type_of_a_selection_is_named_once() -> None:
    names = [f"trn9.{letter}" for letter in "abcdefghijklmnopqrst"]
    terms = [
        term(expression("zone", "In", "trn8.x"), expression(TYPE, "In", "trn9.a", "trn9.a", "trn9.b")),
        term(expression(TYPE, "NotIn", "trn9.z"), expression(TYPE, "In", *names[1:])),
    ]
    candidates = find(CATALOGUE, NodeSelection(terms=terms), SEEN)
    assert [each.value for each in candidates.unknown] == names[:16]
    assert candidates.unknown[0].fix == (
        "Correct the name, or add {name: trn9.a, devices: <number>, coresPerDevice: <number>} to the types of an"
        " InstanceTypeCatalog (docs/policies.md)."
    )


def test_a_selection_pins_types_only_if_every_term_names_a_type() -> None:
    pinned = term(expression(TYPE, "In", "trn1.32xlarge"))
    assert pins_types(NodeSelection(terms=[pinned]))
    assert pins_types(NodeSelection(node_selector={TYPE: "trn1.32xlarge"}))
    assert not pins_types(NodeSelection(terms=[pinned, term(expression("zone", "In", "a"))]))
    assert not pins_types(NodeSelection(annotated=("trn1.32xlarge",)))


def test_hyperpod_labels_are_recognised() -> None:
    assert is_sagemaker(NodeSelection(node_selector={TYPE: "ml.trn1.32xlarge"}))
    assert is_sagemaker(NodeSelection(terms=[term(expression(TYPE, "In", "ml.trn1.32xlarge"))]))
    two = term(expression(TYPE, "In", "ml.trn1.32xlarge"), expression(TYPE, "In", "trn1.32xlarge"))
    assert is_sagemaker(NodeSelection(terms=[two]))
    assert not is_sagemaker(NodeSelection(node_selector={TYPE: "trn1.32xlarge"}))


class Counted(str):
    """A value that counts how often it is read."""

    __slots__ = ()
    reads = 0

    def removeprefix(self, prefix: str, /) -> str:
        Counted.reads += 1
        return super().removeprefix(prefix)

    def __str__(self) -> str:
        return self


@pytest.mark.parametrize("fits", [False, True])
def test_each_value_is_read_once_for_any_number_of_types(fits: bool) -> None:
    Counted.reads = 0
    values = [Counted(f"trn{number}.huge") for number in range(200)]
    terms = [term(expression(TYPE, "In", value)) for value in values]
    if fits:
        terms.append(term(expression(TYPE, "In", "trn2.48xlarge")))
    candidates = find(CATALOGUE, NodeSelection(terms=terms), SEEN)
    assert ([entry.name for entry in candidates.types], bool(candidates.unknown)) == (
        ["trn2.48xlarge"] if fits else [],
        not fits,
    )
    assert Counted.reads <= len(values) + (0 if fits else 64)


def test_labels_that_no_type_determines_are_not_evaluated_per_type() -> None:
    class Values(list[str]):
        def __iter__(self) -> Any:
            raise AssertionError("values of a foreign label are read")

    foreign = {"key": "zone", "operator": "In", "values": Values(["a"])}
    excluded = expression(TYPE, "In", "m5.large")
    candidates = find(CATALOGUE, NodeSelection(terms=[term(foreign, excluded)] * 100), SEEN)
    assert [finding.code for finding in candidates.errors] == ["NEU110"]


def test_a_long_node_selector_without_a_type_is_explained_in_linear_time() -> None:
    selector = {f"k{number}": "v" for number in range(1_000)} | {TYPE: "m5.large"}
    started = time.process_time()
    for _ in range(10):
        candidates = find(CATALOGUE, NodeSelection(node_selector=selector), SEEN)
        assert candidates.errors[0].path == f"spec.nodeSelector[{TYPE}]"
    assert_below(time.process_time() - started, 0.2)


@pytest.mark.parametrize("value", ["${INSTANCE_TYPE}", "{{ .Values.type }}"])
def test_a_placeholder_is_named_as_one(value: str) -> None:
    (finding,) = find(CATALOGUE, NodeSelection(node_selector={TYPE: value}), SEEN).errors
    assert (finding.code, finding.fix) == (
        "NEU110",
        "It looks like a placeholder: fill it in first, for example with envsubst.",
    )
