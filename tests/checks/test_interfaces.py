"""EFA interfaces that users tie to Neuron devices in their own claims."""

from typing import Any

import pytest

from neuron import names
from neuron.hardware import device_groups
from tests.support.validation import (
    TRN1,
    TRN2,
    claim,
    codes,
    devices,
    first_available,
    group,
    judge,
    match,
    on,
    request,
    world,
)

CLASS = names.EFA_DEVICE_CLASS
TYPES = ("trn1.32xlarge", "trn1n.32xlarge", "trn2.48xlarge", "trn3.48xlarge")
MATCH = "spec.devices.constraints[0].matchAttribute"


def tied(efa: Any, count: int, size: int, instance_type: str = TRN1, requests: tuple[str, ...] = ()) -> dict[str, Any]:
    """A claim for Neuron devices and what `efa` requests, tied by a group."""
    neurons = request("neurons", count, on(instance_type)) if instance_type else request("neurons", count)
    return claim(neurons, efa, constraints=[match(group(size), *requests)])


def interfaces(count: int | None, device_class: str = CLASS, **fields: Any) -> dict[str, Any]:
    return request("efa", count, device_class=device_class, **fields)


@pytest.mark.parametrize("size", [1, 4, 8, 16])
@pytest.mark.parametrize("instance_type", TYPES)
def test_the_numbers_are_those_of_conversion(instance_type: str, size: int) -> None:
    most = device_groups.interfaces(instance_type, size)
    assert "NEU543" not in codes(judge(tied(interfaces(most), size, size, instance_type)))
    [finding] = [each for each in judge(tied(interfaces(most + 1), size, size, instance_type)) if each.code == "NEU543"]
    assert (finding.path, finding.value, finding.severity) == (MATCH, str(most + 1), "error")


def test_the_message_names_the_interfaces_of_the_group() -> None:
    [finding] = judge(tied(interfaces(4), 4, 4))
    assert str(finding) == (
        "NEU543: 4 EFA interfaces must agree on resource.aws.com/devicegroup4_id with the Neuron devices, and a group"
        " of 4 devices of trn1.32xlarge has 2 EFA interfaces. Request at most 2."
    )


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(tied(interfaces(4), 4, 4, ""), id="another type has enough"),
        pytest.param(tied(interfaces(4), 4, 4, requests=("neurons",)), id="not tied"),
        pytest.param(tied(interfaces(4, "other.example"), 4, 4), id="another class"),
        pytest.param(tied(interfaces(None, mode="All"), 4, 4), id="as many as there are"),
        pytest.param(tied(interfaces(9, adminAccess=True), 4, 4), id="admin access"),
        pytest.param(
            tied(first_available("efa", a=devices(4, device_class=CLASS), b=devices(2, device_class=CLASS)), 4, 4),
            id="an alternative fits",
        ),
        pytest.param(
            tied(first_available("efa", a=devices(4, device_class=CLASS), b=devices(4, device_class="x")), 4, 4),
            id="an alternative of another class",
        ),
        pytest.param(tied(interfaces(4), 3, 4, TRN2), id="a part of the group"),
        pytest.param(claim(request("neurons", 4, on(TRN1)), interfaces(16)), id="no constraint"),
    ],
)
def test_possible_or_unknown_interface_counts_are_no_errors(spec: dict[str, Any]) -> None:
    assert "NEU543" not in codes(judge(spec))


def test_several_requests_count_together() -> None:
    two = request("more", 2, device_class=CLASS)
    spec = claim(request("neurons", 4, on(TRN2)), interfaces(3), two, constraints=[match(group(4))])
    assert "NEU543" in codes(judge(spec))


def test_a_policy_may_name_another_class() -> None:
    spec = tied(interfaces(4, "net.example"), 4, 4)
    assert "NEU543" not in codes(judge(spec))
    assert "NEU543" in codes(judge(spec, world(network_classes=frozenset({"net.example"}))))


def test_too_many_neuron_devices_are_reported_before_interfaces() -> None:
    assert [code for code in codes(judge(tied(interfaces(8), 8, 4))) if code in ("NEU522", "NEU543")] == ["NEU522"]
