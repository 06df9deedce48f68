"""Shares of devices: what a claim consumes of a device, and claims that meet devices which others use in part."""

from typing import Any

import pytest

from checks.claims.judging import ClaimContext
from neuron.api.claim_reader import read_class
from tests.support.validation import (
    INF2,
    TRN1,
    TRN2,
    TRN2U,
    WHOLE_NODE,
    attribute,
    claim,
    codes,
    devices,
    first_available,
    judge,
    lnc,
    on,
    opaque,
    published,
    request,
    world,
)

CORES = "spec.devices.requests[0].exactly.capacity.requests[neuroncores]"
MODE = "spec.devices.requests[0].exactly.allocationMode"
ADMIN = "spec.devices.requests[0].exactly.adminAccess"
SMALL_TRN2 = "trn2.3xlarge"


def shares(*selectors: str, config: Any = (), count: int | None = 1, name: str = "neuroncores", **fields: Any) -> Any:
    """A claim for a share of a device; `of` is the amount."""
    capacity = {"requests": {name: fields.pop("of")}}
    return claim(request("neurons", count, *selectors, capacity=capacity, **fields), config=config)


def inf2_cluster(*, cores: int = 2) -> ClaimContext:
    """A cluster of inf2.48xlarge nodes."""
    return world([published(INF2, 12, cores=cores, capacity={} if cores else {"neuroncores": "2"})])


AWS_DRIVER = world([published(INF2, 12)])

FOUND: dict[str, tuple[Any, ClaimContext | None, str, str, str]] = {
    "a misspelt capacity": (
        shares(on(INF2), of="1", name="neuroncore"), None, "error", CORES.replace("cores]", "core]"),
        "NEU531: no Neuron device has the capacity 'neuroncore'. Did you mean 'neuroncores'? Write neuroncores.",
    ),
    "a capacity with the driver's domain": (
        shares(on(INF2), of="1", name="neuron.aws.com/neuroncores"), None, "error",
        CORES.replace("neuroncores", "neuron.aws.com/neuroncores"),
        "NEU531: no Neuron device has the capacity 'neuron.aws.com/neuroncores'. Did you mean 'neuroncores'? Write"
        " neuroncores.",
    ),
    "an unknown capacity": (
        shares(on(INF2), of="1", name="bandwidth"), None, "warning", CORES.replace("neuroncores", "bandwidth"),
        "NEU531: no known Neuron device has the capacity 'bandwidth'. A device without it is never chosen.",
    ),
    "a driver without capacities": (
        shares(on(INF2), of="1"), AWS_DRIVER, "warning", CORES,
        "NEU531: no device of inf2.48xlarge that the cluster publishes now has the capacity neuroncores. The driver of"
        " this project publishes it; AWS's does not.",
    ),
    "more than a device has": (
        shares(on(INF2), of="3"), None, "error", CORES,
        "NEU532: 3 neuroncores of one device are requested, and inf2.48xlarge has 2. Request 2 or fewer.",
    ),
    "more than any device has": (
        shares(of="1e3"), None, "error", CORES,
        "NEU532: 1000 neuroncores of one device are requested, and trn2u.48xlarge has 128. Request 128 or fewer.",
    ),
    "more memory than a device has": (
        shares(on(INF2), of="33Gi", name="memory"), None, "error", CORES.replace("neuroncores", "memory"),
        "NEU532: 35433480192 memory of one device are requested, and inf2.48xlarge has 34359738368.",
    ),
    "no valid number": (
        shares(on("inf1.6xlarge"), of="3"), None, "warning", CORES,
        "NEU533: 3 cores are requested, and 4 are allocated on inf1.6xlarge. Valid numbers: 1, 2, 4.",
    ),
    "half a core": (
        shares(on(INF2), of="500m"), None, "warning", CORES,
        "NEU533: 0.5 cores are requested, and 1 are allocated on inf2.48xlarge. Valid numbers: 1, 2.",
    ),
    "no cores": (
        shares(on(INF2), of="0"), None, "error", CORES,
        "NEU534: request neurons asks for 0 neuroncores: the driver refuses a share without cores. Request 1 or more; 0"
        " is for adminAccess. Without neuroncores, a request gets whole devices.",
    ),
    "half a logical core": (
        shares(on(SMALL_TRN2), of="1"), None, "error", CORES,
        "NEU535: a share of 1 physical cores is not a whole number of logical cores on trn2.3xlarge: each is 2 physical"
        " ones. Request a multiple of 2, or set logicalNeuronCore: 1.",
    ),
    "half a logical core, by config": (
        shares(on(SMALL_TRN2), of="1", config=[opaque(lnc(2))]), None, "error", CORES,
        "NEU535: a share of 1 physical cores is not a whole number of logical cores on trn2.3xlarge",
    ),
    "half a logical core on some types": (
        shares(f"{attribute('instanceType')} in ['{SMALL_TRN2}', '{INF2}']", of="1"), None, "warning", CORES,
        "NEU535: a share of 1 physical cores is not a whole number of logical cores on trn2.3xlarge",
    ),
    "a share of a type that is not shared": (
        shares(on(TRN1), of="1"), None, "warning", CORES,
        "NEU539: devices of trn1.32xlarge are not shared: 1 cores take a whole device of 2. Kubernetes 1.36 shares"
        " devices of which the driver's setting share_cores allows it.",
    ),
    "a share where the cluster does not share": (
        shares(on(INF2), of="1"), inf2_cluster(cores=0), "warning", CORES,
        "NEU539: devices of inf2.48xlarge are not shared",
    ),
    "All of shared devices": (
        claim(request("neurons", None, on(INF2), mode="All")), inf2_cluster(), "warning", MODE,
        "NEU536: allocationMode All leaves out devices of inf2.48xlarge that are in use, because they are shared."
        " Write allocationMode: ExactCount with count: 12 to get all of them or none, or have sharing switched off for"
        " these nodes (their label neuron.aws.com/share-cores: off).",
    ),
    "adminAccess to shared devices": (
        claim(request("neurons", None, on(INF2), mode="All", adminAccess=True)), inf2_cluster(), "warning", ADMIN,
        "NEU537: adminAccess fails on a shared device of inf2.48xlarge that is used up, unless it consumes nothing. Add"
        ' capacity: {requests: {neuroncores: "0"}}.',
    ),
    "adminAccess that consumes": (
        shares(on(INF2), of="1", adminAccess=True), inf2_cluster(), "warning", ADMIN, "NEU537: adminAccess fails",
    ),
    "adminAccess to shared and other devices": (
        claim(request("neurons", None, mode="All", adminAccess=True)),
        world([published(INF2, 12, cores=2), published(TRN2)]), "warning", ADMIN,
        "NEU537: adminAccess fails on a shared device of inf2.48xlarge that is used up, unless it consumes nothing. Add"
        ' capacity: {requests: {neuroncores: "0"}}; request devices that are not shared in another claim.',
    ),
    "an alternative that no device serves": (
        claim(first_available(
            big=devices(1, on(INF2), capacity={"requests": {"neuroncores": "4"}}), small=devices(1, on(INF2)),
        )),
        None, "warning", "spec.devices.requests[0].firstAvailable[0].capacity.requests[neuroncores]",
        "NEU532: 4 neuroncores of one device are requested, and inf2.48xlarge has 2.",
    ),
}  # fmt: skip

FINE: dict[str, tuple[Any, ClaimContext | None]] = {
    "a core": (shares(on(INF2), of="1"), None),
    "a core, in a cluster": (shares(on(INF2), of=1), inf2_cluster()),
    "all cores": (shares(on(INF2), of="2"), inf2_cluster()),
    "a logical core": (shares(on(SMALL_TRN2), of="2"), None),
    "a core at logical NeuronCore 1": (shares(on(SMALL_TRN2), of="1", config=[opaque(lnc(1))]), None),
    "a whole device that is not shared": (shares(on(TRN1), of="2"), None),
    "memory": (shares(on(INF2), of="16Gi", name="memory"), None),
    "a core of one device type or another": (
        claim(
            first_available(
                inf1=devices(1, on("inf1.6xlarge"), capacity={"requests": {"neuroncores": "4"}}),
                inf2=devices(1, on(INF2), capacity={"requests": {"neuroncores": "2"}}),
            )
        ),
        None,
    ),
    "All of devices that are not shared": (
        claim(request("neurons", None, on(INF2), mode="All")),
        inf2_cluster(cores=0),
    ),
    "All of nodes with one device": (
        claim(request("neurons", None, on("inf2.xlarge"), mode="All")),
        world([published("inf2.xlarge", 1, cores=2)]),
    ),
    "a monitor": (shares(on(INF2), of="0", count=None, mode="All", adminAccess=True), inf2_cluster()),
    "a monitor of devices that are not shared": (
        claim(request("neurons", None, on(INF2), mode="All", adminAccess=True)),
        inf2_cluster(cores=0),
    ),
    "a whole node": (claim(request("neurons", 1, on(TRN2U), WHOLE_NODE)), None),
}


@pytest.mark.parametrize(("spec", "where", "severity", "path", "said"), FOUND.values(), ids=FOUND)
def test_capacity_requests_that_cannot_work_have_findings(
    spec: Any, where: ClaimContext | None, severity: str, path: str, said: str
) -> None:
    # NEU544 reports every adminAccess.
    [finding] = [each for each in judge(spec, where) if each.code != "NEU544"]
    assert (finding.severity, finding.path) == (severity, path)
    assert str(finding).startswith(said)


@pytest.mark.parametrize(("spec", "where"), FINE.values(), ids=FINE)
def test_valid_capacity_requests_have_no_findings(spec: Any, where: ClaimContext | None) -> None:
    assert [each for each in judge(spec, where) if each.code != "NEU544"] == []


def test_if_no_alternative_works_all_are_errors() -> None:
    four = {"requests": {"neuroncores": "4"}}
    spec = claim(first_available(a=devices(1, on(INF2), capacity=four), b=devices(1, on(TRN1), capacity=four)))
    assert [(each.code, each.severity) for each in judge(spec)] == [("NEU532", "error")] * 2


def test_a_class_with_a_config_sets_the_logical_cores_of_a_share() -> None:
    setting = {"opaque": {"driver": "neuron.aws.com", "parameters": lnc(1)}}
    where = world(classes={"lnc1": read_class("resource.k8s.io/v1", {"config": [setting]})[0]})
    assert judge(shares(on(SMALL_TRN2), of="1", device_class="lnc1"), where) == ()


@pytest.mark.parametrize("amount", ["x", "-1", "", True, [], {}, "1e9999", 10**5000], ids=lambda each: str(type(each)))
def test_an_amount_that_is_no_quantity_is_reported(amount: Any) -> None:
    [finding] = judge(shares(on(INF2), of=amount))
    assert (finding.code, finding.path) == ("NEU502", CORES)
    assert "not a quantity of 0 or more" in finding.message


def test_capacity_of_another_json_type_is_reported() -> None:
    assert codes(judge(claim(request("neurons", 1, on(INF2), capacity={"request": {}})))) == ["NEU501"]
    assert codes(judge(claim(request("neurons", 1, on(INF2), capacity={"requests": []})))) == ["NEU502"]
