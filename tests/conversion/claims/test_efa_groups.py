"""EFA interfaces in the claim of Neuron devices."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversion.claims.containers import Ask, Role
from conversion.claims.instance_fit import DeviceConfig
from conversion.claims.interfaces import Interfaces
from conversion.claims.making import Claim, Refusal, make_claim
from neuron.hardware import device_groups
from neuron.hardware.instances import Catalogue
from tests.conversion.claims.test_claims import ask, cores, devices_of, types

CLASS = "efa.networking.k8s.aws"
ANY = ("trn1.32xlarge", "trn1n.32xlarge", "trn2.48xlarge", "trn2.3xlarge", "inf2.48xlarge")


def make(wanted: Ask, count: int, *names: str, **config: Any) -> Claim | Refusal:
    settings = DeviceConfig(efa=Interfaces(wanted.container, count, CLASS), **config)
    return make_claim([wanted], types(*names), settings, "neuron.aws.com", pin_types=False)


def efa_error(wanted: Ask, count: int, *names: str, **config: Any) -> str:
    made = make(wanted, count, *names, **config)
    assert isinstance(made, Refusal), made
    (finding,) = made.findings
    assert (finding.code, finding.path) == ("NEU125", "spec.containers[0].resources.limits[vpc.amazonaws.com/efa]")
    return finding.message + " " + finding.fix


@pytest.mark.parametrize(("size", "on_trn1"), [(1, 1), (4, 2), (8, 4), (16, 8)])
def test_the_group_of_the_devices_ties_as_many_interfaces_as_it_has(size: int, on_trn1: int) -> None:
    for name, most in (("trn1.32xlarge", on_trn1), ("trn1n.32xlarge", size), ("trn2.48xlarge", size)):
        claim = make(ask(size), most, name)
        assert isinstance(claim, Claim)
        assert claim.connected
        body = devices_of(claim)
        efa = [each for each in body["requests"] if each["exactly"]["deviceClassName"] == CLASS]
        neuron = [each for each in body["requests"] if each not in efa]
        assert sum(each["exactly"]["count"] for each in neuron) == size
        assert sum(each["exactly"]["count"] for each in efa) == most
        assert all(each["name"].startswith("efa") for each in efa)
        assert body["constraints"][0] == {
            "requests": [each["name"] for each in (*neuron, *efa)],
            "matchAttribute": f"resource.aws.com/devicegroup{size}_id",
        }
        assert claim.uses == ((),)
        assert f"Request at most {most}." in efa_error(ask(size), most + 1, name)


def requested(size: int, count: int, name: str, *, orders: bool) -> Any:
    entries = Catalogue(types(name)).scheduled(tries_orders=orders)
    settings = DeviceConfig(efa=Interfaces("c0", count, CLASS))
    made = make_claim([ask(size)], list(entries), settings, "neuron.aws.com", pin_types=False)
    assert isinstance(made, Claim)
    assert made.uses == ((),)
    return devices_of(made)


@pytest.mark.parametrize(
    ("size", "count", "name", "orders", "requests"),
    [
        (4, 4, "trn2.48xlarge", True, 2),
        (8, 8, "trn2.48xlarge", True, 16),
        (8, 8, "trn2.48xlarge", False, 2),
        (16, 16, "trn2.48xlarge", True, 32),
        (16, 16, "trn2.48xlarge", False, 32),
        (16, 8, "trn1.32xlarge", True, 17),
        (16, 8, "trn1.32xlarge", False, 2),
    ],
)
def test_a_search_that_would_be_long_is_divided(
    size: int, count: int, name: str, requests: int, *, orders: bool
) -> None:
    assert len(requested(size, count, name, orders=orders)["requests"]) == requests


@pytest.mark.parametrize("name", ["trn1.32xlarge", "trn1n.32xlarge", "trn2.48xlarge", "trn3.48xlarge"])
@pytest.mark.parametrize("size", [8, 16])
def test_a_divided_claim_ties_each_interface_to_the_device_that_it_is_nearest_to(name: str, size: int) -> None:
    for count in range(1, device_groups.interfaces(name, size) + 1):
        body = requested(size, count, name, orders=True)
        group, *pairs = body["constraints"]
        assert group["matchAttribute"] == f"resource.aws.com/devicegroup{size}_id"
        assert group["requests"] == sorted(
            (each["name"] for each in body["requests"]), key=lambda each: each.startswith("efa")
        )
        by_name = {each["name"]: each["exactly"] for each in body["requests"]}
        if not pairs:
            assert by_name["efa"]["count"] == count
            continue
        ids = {each: _ids(exactly) for each, exactly in by_name.items() if each.startswith("n")}
        # The requests have each device of each group once.
        assert sorted(device for found in ids.values() for device in found) == list(range(16))
        nearest = []
        for pair in pairs:
            assert pair["matchAttribute"] == "resource.aws.com/devicegroup1_id"
            device, interface = pair["requests"]
            assert (by_name[device]["count"], by_name[interface]["count"]) == (1, 1)
            nearest.append(device_groups.nearest_efa(name, ids[device][0]))
        # No two devices have the same interface: both could not get it.
        assert len(set(nearest)) == len(pairs) == count


def _ids(exactly: Any) -> list[int]:
    (selector,) = exactly["selectors"]
    found = re.search(r"deviceId in \[([0-9, ]+)\]", selector["cel"]["expression"])
    assert found is not None
    return [int(each) for each in found[1].split(",")]


def test_only_types_on_which_the_interfaces_fit_are_used() -> None:
    claim = make(ask(4), 4, "trn1.32xlarge", "trn2.48xlarge")
    assert isinstance(claim, Claim)
    assert claim.types == ("trn2.48xlarge",)


def test_types_that_need_another_group_are_left_out() -> None:
    claim = make(cores(32), 1, "trn1.32xlarge", "trn2.48xlarge")  # 16 devices of 2 cores, 8 devices of 4
    assert isinstance(claim, Claim)
    assert len(claim.types) == 1
    assert [finding.code for finding in claim.warnings] == ["NEU213"]


def test_too_many_interfaces_name_the_type_that_has_most() -> None:
    assert efa_error(ask(4), 5, "trn1.32xlarge", "trn2.48xlarge") == (
        "container c0 asks for vpc.amazonaws.com/efa: 5 with 4 devices, and a group of 4 devices of trn2.48xlarge has 4"
        " EFA interfaces. Request at most 4."
    )
    assert "one device of trn1.32xlarge has 1 EFA interface. Request at most 1." in efa_error(
        ask(1), 2, "trn1.32xlarge"
    )


def test_types_without_groups_are_refused() -> None:
    for name in ("inf2.48xlarge", "trn2.3xlarge"):
        assert f"{name} has no device groups that tie EFA interfaces" in efa_error(ask(1), 1, name)


def test_unconnected_devices_are_refused() -> None:
    settings = DeviceConfig(efa=Interfaces("c0", 1, CLASS))
    made = make_claim([ask(7)], types("trn2.48xlarge"), settings, "neuron.aws.com", pin_types=False, unconnected=True)
    assert isinstance(made, Refusal)
    assert "7 devices of trn2.48xlarge are no connected group. Request 1, 4, 8, 16 devices." in str(made.findings[0])


def test_ultraservers_are_refused() -> None:
    message = efa_error(ask(16), 16, "trn2u.48xlarge", ultraserver_mode=4)
    assert "a whole UltraServer node has no device group. Drop the annotation, or the EFA limit." in message


@given(st.sampled_from([1, 2, 3, 4, 8, 12, 16]), st.integers(1, 20), st.sets(st.sampled_from(ANY), min_size=1))
def test_a_claim_never_requests_more_interfaces_than_a_group_has(size: int, count: int, names: set[str]) -> None:
    made = make(Ask("c0", Role.APP, "spec.containers[0]", "aws.amazon.com/neuron", size), count, *sorted(names))
    if isinstance(made, Claim):
        assert all(count <= device_groups.interfaces(name, size) for name in made.types)
    else:
        assert all(count > device_groups.interfaces(name, size) for name in names) or size not in (1, 4, 8, 16)
