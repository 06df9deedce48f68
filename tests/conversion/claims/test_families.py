"""Which families a pod may run on, from what is known."""

import itertools

import pytest

from conversion.claims.families import UNKNOWN, Families, FamilyHint, choose_families, find_hint, named_families
from neuron.hardware.instances import Catalogue

ALL = Catalogue().families()
TRAINIUM = frozenset({"trn1", "trn1n", "trn2", "trn2u", "trn3"})
INFERENTIA = frozenset({"inf1", "inf2"})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("inferentia-inf2", {"inf2"}),
        ("amd-neuron-inf2", {"inf2"}),
        ("amd-neuron-trn1", {"trn1"}),
        ("trn1-32xl-ng1", {"trn1"}),
        ("Trn1n_pool", {"trn1n"}),
        ("ml.inf2.xlarge", {"inf2"}),
        ("inferentia2", {"inf2"}),
        ("inferentia", INFERENTIA),
        ("inf", INFERENTIA),
        ("trainium", TRAINIUM),
        ("trainium2", {"trn2", "trn2u"}),
        ("trainium-inferentia", {*TRAINIUM, *INFERENTIA}),
        ("inf1-inf2", INFERENTIA),
        ("inf9", set()),
        ("information", set()),
        ("trn12", set()),
        ("neuron", set()),
        ("", set()),
        ("x" * 63 + "-inf2", set()),
    ],
)
def test_families_are_found_in_words_of_a_value(value: str, expected: set[str]) -> None:
    assert named_families(value, ALL) == expected


def required(*values: str, key: str = "pool", operator: str = "In") -> dict[str, object]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("selector", "terms", "expected"),
    [
        ({"instanceType": "inferentia-inf2", "zone": "a"}, None, {"inf2"}),
        ({"zone": "a"}, None, None),
        ({"a": "inferentia", "b": "inf2"}, None, {"inf2"}),
        ({"a": "trn1", "b": "inf2"}, None, {"trn1", "inf2"}),
        ({}, [required("inf2-a", "inf2-b")], {"inf2"}),
        ({}, [required("inf2"), required("trn1")], {"trn1", "inf2"}),
        ({}, [required("inf2"), required("cpu")], None),
        ({}, [required("inf2", "cpu")], None),
        ({}, [required("inf2", operator="NotIn")], None),
        ({}, [required()], None),
        ({}, [required("inf2"), {}], {"inf2"}),
        ({}, [required("inf2"), {"matchFields": [{}]}], None),
        ({"cluster": "trainium-inferentia"}, None, None),
    ],
)
def test_a_node_selection_names_families(
    selector: dict[str, str], terms: list[dict[str, object]] | None, expected: set[str] | None
) -> None:
    hint = find_hint(selector, terms, ALL)
    assert (None if hint is None else set(hint.families)) == expected


def test_a_family_hint_has_its_path() -> None:
    selector = find_hint({"zone": "a", "instanceType": "inferentia-inf2"}, None, ALL)
    assert selector is not None
    assert selector.path == "spec.nodeSelector[instanceType]"
    assert selector.text == "nodeSelector instanceType=inferentia-inf2"
    affinity = find_hint({}, [required("inf2"), required("trn1")], ALL)
    assert affinity is not None
    assert affinity.path.endswith("nodeSelectorTerms[0]")
    assert affinity.text == "node affinity pool=inf2"


def hint_to(*families: str) -> FamilyHint:
    return FamilyHint(frozenset(families), "spec.nodeSelector[pool]", "nodeSelector pool=x")


def test_all_families_are_candidates_without_any_knowledge() -> None:
    choice = choose_families(UNKNOWN, None, ALL)
    assert (choice.families, choice.known, choice.everything, choice.warnings) == (ALL, False, True, ())


@pytest.mark.parametrize(
    ("families", "hint", "expected", "known", "warns"),
    [
        (Families(("trn2",), ("trn1",), ("inf1",)), None, ("trn2",), True, False),
        (Families((), ("trn1",), ("inf1",)), None, ("trn1",), True, False),
        (Families((), (), ("inf1",)), None, ("inf1",), True, False),
        (Families((), (), ("inf9", "inf1")), None, ("inf1",), True, False),
        (UNKNOWN, hint_to("inf2"), ("inf2",), False, True),
        (Families(seen=("trn1", "inf2")), hint_to("inf2"), ("inf2",), False, True),
        (Families(seen=("inf2",)), hint_to("inf2"), ("inf2",), True, False),
        (Families(seen=("trn1",)), hint_to("inf2"), ("trn1", "inf2"), False, True),
        (Families(declared=("trn1",)), hint_to("inf2"), ("inf2",), False, True),
        (Families(declared=("trn1", "inf2")), hint_to("inf2"), ("inf2",), False, True),
        (Families(("trn1", "inf2")), hint_to("inf2"), ("inf2",), False, True),
        (Families(("trn1",), ("inf2",)), hint_to("inf2"), ("trn1",), True, True),
    ],
    ids=[
        "policy", "seen", "declared", "declared-unknown", "hint-alone", "hint-among-seen", "hint-is-all-that-was-seen",
        "hint-not-seen", "hint-before-setting", "hint-among-declared", "hint-within-policy", "policy-against-hint",
    ],
)  # fmt: skip
def test_policy_nodes_setting_and_hint_decide_the_families(
    families: Families, hint: FamilyHint | None, expected: tuple[str, ...], known: bool, warns: bool
) -> None:
    choice = choose_families(families, hint, ALL)
    assert (choice.families, choice.known, choice.everything) == (expected, known, False)
    assert [each.code for each in choice.warnings] == ["NEU217"] * warns


def test_choices_stay_within_the_policy_and_a_hint_alone_is_not_certain() -> None:
    groups = [(), ("trn1",), ("inf2",), ("trn1", "inf2")]
    for allowed, seen, declared, hinted in itertools.product(groups, repeat=4):
        families = Families(allowed, seen, declared)
        choice = choose_families(families, hint_to(*hinted) if hinted else None, ALL)
        assert choice.families
        assert not allowed or set(choice.families) <= set(allowed)
        assert not choice.known or choice.families == (allowed or seen or declared)


def test_family_warnings_name_the_settings_that_decide() -> None:
    (decides,) = choose_families(UNKNOWN, hint_to("inf2"), ALL).warnings
    assert decides.path == "spec.nodeSelector[pool]"
    assert "nodeSelector pool=x is taken as a hint to inf2: the claim is made for inf2" in decides.message
    for way in ("neuron.aws.com/instance-type", "ConversionPolicy", "--families"):
        assert way in decides.fix
    (contradicts,) = choose_families(Families(("trn1",)), hint_to("inf2"), ALL).warnings
    assert contradicts.message == "nodeSelector pool=x looks like inf2, and policy allows only trn1."
