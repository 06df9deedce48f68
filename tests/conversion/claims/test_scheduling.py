"""What a pod lacks of the hints that a policy gives it."""

from typing import Any

import pytest

from conversion.claims.scheduling import (
    NEURON_TOLERATION,
    NO_HINTS,
    SchedulingHints,
    covers,
    missing_labels,
    missing_tolerations,
    scheduler_for,
    tolerates_neuron,
    with_required,
)

LEASE = {"key": "lease", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}
POOL = {"key": "pool", "operator": "In", "values": ["neuron"]}


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        pytest.param(LEASE, True, id="the-same"),
        pytest.param({"operator": "Exists"}, True, id="everything"),
        pytest.param({"key": "lease", "operator": "Exists"}, True, id="any-value-and-effect"),
        pytest.param({"key": "lease", "value": "ml"}, True, id="equal-is-the-default"),
        pytest.param({"key": "lease", "value": "other"}, False, id="other-value"),
        pytest.param({"key": "other", "operator": "Exists"}, False, id="other-key"),
        pytest.param({"key": "lease", "operator": "Exists", "effect": "NoExecute"}, False, id="other-effect"),
        pytest.param({"key": "lease", "operator": "", "value": "ml"}, True, id="empty-operator"),
        pytest.param({"key": "lease", "operator": "Gt", "value": "ml"}, False, id="other-operator"),
        pytest.param({"key": "lease"}, False, id="no-value"),
    ],
)
def test_one_toleration_covers_another(one: dict[str, Any], expected: bool) -> None:
    assert covers(one, LEASE) is expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        pytest.param({"key": "a", "value": ""}, {"key": "a"}, True, id="no-value-is-an-empty-one"),
        pytest.param({"key": "a"}, {"key": "a", "operator": "Equal"}, True, id="no-operator-is-equal"),
        pytest.param({"key": "a"}, {"key": "a", "operator": ""}, True, id="empty-operator-is-equal"),
        pytest.param({"key": "a"}, {"key": "a", "operator": "Exists"}, False, id="one-value-of-all"),
    ],
)
def test_what_a_toleration_does_not_say_is_its_default(
    one: dict[str, Any], other: dict[str, Any], expected: bool
) -> None:
    assert covers(one, other) is expected


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        pytest.param({"key": "aws.amazon.com/neuron", "operator": "Equal", "value": "x"}, True, id="key"),
        pytest.param({"operator": "Exists"}, True, id="all"),
        pytest.param({"key": "", "operator": "Exists", "effect": "NoSchedule"}, True, id="all-of-the-effect"),
        pytest.param({"operator": "Exists", "effect": "NoExecute"}, False, id="another-effect"),
        pytest.param({"key": "other", "operator": "Exists"}, False, id="another-key"),
        pytest.param({"operator": "Equal"}, False, id="no-key"),
    ],
)
def test_a_toleration_of_the_key_or_of_all_taints_tolerates_neuron(toleration: dict[str, Any], tolerates: bool) -> None:
    assert tolerates_neuron([toleration]) is tolerates


@pytest.mark.parametrize(("seconds", "wanted", "expected"), [(60, 60, True), (60, 61, False), (60, None, False)])
def test_a_toleration_covers_no_longer_than_it_lasts(seconds: int, wanted: int | None, expected: bool) -> None:
    one = {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
    other = {"key": "a", "operator": "Exists", "effect": "NoExecute", "value": ""}
    assert covers(one, other | ({} if wanted is None else {"tolerationSeconds": wanted})) is expected


@pytest.mark.parametrize(
    ("current", "hints", "flag", "expected"),
    [
        pytest.param(None, NO_HINTS, True, [NEURON_TOLERATION], id="by-flag"),
        pytest.param(None, NO_HINTS, False, [], id="off-by-flag"),
        pytest.param(None, SchedulingHints(toleration=True), False, [NEURON_TOLERATION], id="policy-before-flag"),
        pytest.param(None, SchedulingHints(toleration=False), True, [], id="off-by-policy"),
        pytest.param(
            None, SchedulingHints(toleration=True, tolerations=(LEASE,)), True, [NEURON_TOLERATION, LEASE], id="add"
        ),
        pytest.param(None, SchedulingHints(toleration=False, tolerations=(LEASE,)), True, [LEASE], id="replace"),
        pytest.param(
            [{"key": "lease", "operator": "Exists"}],
            SchedulingHints(toleration=False, tolerations=(LEASE,)),
            True,
            [],
            id="tolerated-already",
        ),
    ],
)
def test_tolerations_are_added_where_they_are_missing(
    current: list[dict[str, Any]] | None, hints: SchedulingHints, flag: bool, expected: list[dict[str, Any]]
) -> None:
    missing = missing_tolerations(current, hints, neuron=flag)
    assert missing == expected
    assert missing_tolerations([*(current or ()), *missing], hints, neuron=flag) == []


@pytest.mark.parametrize(
    ("current", "hints", "flag", "expected"),
    [
        ("my-scheduler", NO_HINTS, True, "default-scheduler"),
        ("my-scheduler", NO_HINTS, False, None),
        ("default-scheduler", NO_HINTS, True, None),
        (None, NO_HINTS, True, None),
        ("neuron-scheduler", SchedulingHints(scheduler=False), True, None),
        ("neuron-scheduler", SchedulingHints(scheduler=True, scheduler_name="kueue"), False, "kueue"),
        ("default-scheduler", SchedulingHints(scheduler=True, scheduler_name="kueue"), True, "kueue"),
        (None, SchedulingHints(scheduler=True, scheduler_name="kueue"), True, "kueue"),
        ("volcano", SchedulingHints(scheduler=True, scheduler_name="kueue"), True, None),
        ("kueue", SchedulingHints(scheduler=True, scheduler_name="kueue"), True, None),
    ],
)
def test_a_policys_scheduler_replaces_none_or_a_legacy_scheduler(
    current: str | None, hints: SchedulingHints, flag: bool, expected: str | None
) -> None:
    assert scheduler_for(current, hints, legacy=flag) == expected


@pytest.mark.parametrize(
    ("current", "replaces", "expected"),
    [
        ({}, False, (("a", "1"), ("b", "2"))),
        ({"a": "own"}, False, (("b", "2"),)),
        ({"a": "own"}, True, (("a", "1"), ("b", "2"))),
        ({"a": "1", "b": "2"}, True, ()),
    ],
    ids=["none", "added", "replaced", "there"],
)
def test_labels_are_added_or_replaced(
    current: dict[str, str], replaces: bool, expected: tuple[tuple[str, str], ...]
) -> None:
    hints = SchedulingHints(labels={"b": "2", "a": "1"}, replaces_labels=replaces)
    assert missing_labels(current, hints) == expected


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        (None, [{"matchExpressions": [POOL]}]),
        ([], []),
        ([{}], [{}]),
        ([{"matchFields": [POOL]}], [{"matchFields": [POOL], "matchExpressions": [POOL]}]),
        ([{"matchExpressions": [POOL]}], [{"matchExpressions": [POOL]}]),
    ],
    ids=["none", "matches-nothing", "empty-term", "fields", "there"],
)
def test_required_expressions_of_a_policy_are_added_to_every_term(terms: Any, expected: Any) -> None:
    assert with_required(terms, [POOL]) == expected
    assert with_required(terms, []) == terms
