"""Taints and tolerations of devices, as `ToleratesTaint` of Kubernetes reads them."""

import pytest

from neuron.api.device_taints import DeviceTaint, DeviceToleration, prevents_allocation

SICK = DeviceTaint("neuron.aws.com/unhealthy", "hbm-ecc", "NoSchedule")


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        (DeviceToleration(), True),
        (DeviceToleration(SICK.key, "Exists"), True),
        (DeviceToleration("other", "Exists"), False),
        (DeviceToleration(SICK.key, "Equal", "hbm-ecc"), True),
        (DeviceToleration(SICK.key, "", "hbm-ecc"), True),
        (DeviceToleration(SICK.key, "Equal", "vanished"), False),
        (DeviceToleration(SICK.key, "Exists", effect="NoExecute"), False),
        (DeviceToleration(SICK.key, "Gt", "1"), False),
    ],
)
def test_a_toleration_matches_by_key_value_and_effect(toleration: DeviceToleration, tolerates: bool) -> None:
    assert toleration.tolerates(SICK) is tolerates
    assert prevents_allocation([SICK], [toleration]) is not tolerates


def test_every_taint_needs_a_toleration() -> None:
    other = DeviceTaint("other")
    assert prevents_allocation([SICK, other], [DeviceToleration(SICK.key)])
    assert not prevents_allocation([SICK, other], [DeviceToleration(SICK.key), DeviceToleration("other")])


def test_only_known_effects_prevent_allocation() -> None:
    assert not prevents_allocation([DeviceTaint("k", effect="None")], [])
    assert prevents_allocation([DeviceTaint("k", effect="NoExecute")], [])


def test_entries_of_the_api_are_read() -> None:
    assert DeviceTaint.read({"key": "k", "effect": "NoExecute", "timeAdded": "2026"}) == DeviceTaint(
        "k", "", "NoExecute"
    )
    entry = {"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}
    assert DeviceToleration.read(entry) == DeviceToleration("k", "Equal", "v", "NoSchedule")
