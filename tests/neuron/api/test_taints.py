"""Taints and tolerations of devices, as `ToleratesTaint` of Kubernetes reads them."""

import pytest

from neuron.api.taints import Taint, TolerationSpec, prevents_allocation

SICK = Taint("neuron.aws.com/unhealthy", "hbm-ecc", "NoSchedule")


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        (TolerationSpec(), True),
        (TolerationSpec(SICK.key, "Exists"), True),
        (TolerationSpec("other", "Exists"), False),
        (TolerationSpec(SICK.key, "Equal", "hbm-ecc"), True),
        (TolerationSpec(SICK.key, "", "hbm-ecc"), True),
        (TolerationSpec(SICK.key, "Equal", "vanished"), False),
        (TolerationSpec(SICK.key, "Exists", effect="NoExecute"), False),
        (TolerationSpec(SICK.key, "Gt", "1"), False),
    ],
)
def test_a_toleration_matches_by_key_value_and_effect(toleration: TolerationSpec, tolerates: bool) -> None:
    assert toleration.tolerates(SICK) is tolerates
    assert prevents_allocation([SICK], [toleration]) is not tolerates


def test_every_taint_needs_a_toleration() -> None:
    other = Taint("other")
    assert prevents_allocation([SICK, other], [TolerationSpec(SICK.key)])
    assert not prevents_allocation([SICK, other], [TolerationSpec(SICK.key), TolerationSpec("other")])


def test_only_known_effects_prevent_allocation() -> None:
    assert not prevents_allocation([Taint("k", effect="None")], [])
    assert prevents_allocation([Taint("k", effect="NoExecute")], [])


def test_entries_of_the_api_are_read() -> None:
    assert Taint.read({"key": "k", "effect": "NoExecute", "timeAdded": "2026"}) == Taint("k", "", "NoExecute")
    entry = {"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}
    assert TolerationSpec.read(entry) == TolerationSpec("k", "Equal", "v", "NoSchedule")
