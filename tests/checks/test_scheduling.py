"""Requests that the scheduler refuses although devices are free, or that cost it seconds."""

from typing import Any

import pytest
from msgspec import structs

from checks.claims.judging import ClaimContext
from neuron.hardware.instances import Catalogue
from tests.support.validation import (
    INF2,
    TRN2,
    TRN2U,
    claim,
    codes,
    devices,
    first_available,
    group,
    judge,
    match,
    on,
    published,
    request,
    world,
)

COUNTERS = world([published(TRN2U, counters=True), published(TRN2)])
LATER = structs.replace(world(), catalogue=Catalogue().scheduled(tries_orders=False))
NO_COUNTERS = world([published(TRN2U), published(TRN2)])
COUNT = "spec.devices.requests[0].exactly.count"
FOUR = claim(request("neurons", 4), constraints=[match(group(4))])
IDS = "device.attributes['neuron.aws.com'].?deviceId.orValue(-1) in [{}]"
OURS = ("NEU540", "NEU541", "NEU542")

FOUND: dict[str, tuple[Any, ClaimContext | None, str, str]] = {
    "admin access beside claims": (
        claim(request("neurons", None, on(TRN2U), mode="All", adminAccess=True)), COUNTERS,
        "spec.devices.requests[0].exactly.adminAccess",
        "NEU540: adminAccess waits for devices that no claim holds on trn2u.48xlarge, because they consume shared"
        " counters (kubernetes#140729). Exclude such nodes:"
        ' device.attributes["neuron.aws.com"].instanceType != "trn2u.48xlarge".',
    ),
    "a group beside devices in use": (
        FOUR, COUNTERS, "spec.devices.constraints[0].matchAttribute",
        "NEU541: up to Kubernetes 1.36.2, resource.aws.com/devicegroup4_id is refused on a node of trn2u.48xlarge"
        " if one of its devices is in use, because they consume shared counters (kubernetes#140436). List an"
        f" alternative for each group, with a selector such as: {IDS.format('0, 1, 2, 3')}.",
    ),
    "a whole node": (
        claim(request("neurons", 16, on(TRN2))), None, COUNT,
        "NEU542: one request for 16 devices costs the scheduler seconds on a node of trn2.48xlarge where they are not"
        " all free: it tries them in every order (Kubernetes 1.34 and 1.35). Write requests for 3"
        " devices each: {name: n0, exactly: {deviceClassName: neuron.aws.com, count: 3, selectors: [{cel:"
        f' {{expression: "{IDS.format("0, 1, 2")}"}}}}]}}}}, and so on.',
    ),
    "a whole ring": (
        claim(request("neurons", 12, on(INF2))), None, COUNT,
        "NEU542: one request for 12 devices costs the scheduler seconds on a node of inf2.48xlarge",
    ),
    "a part of a node": (
        claim(request("neurons", 12, on(TRN2))), None, COUNT,
        "NEU542: one request for 12 devices costs the scheduler seconds on a node of trn2.48xlarge",
    ),
    "an alternative": (
        claim(first_available("neurons", large=devices(9, on(INF2)), small=devices(8, on(INF2)))), None,
        "spec.devices.requests[0].firstAvailable[0].count",
        "NEU542: one request for 9 devices costs the scheduler seconds on a node of inf2.48xlarge",
    ),
    "requests together": (
        claim(*(request(f"n{part}", 4, on(TRN2)) for part in range(3))), None, "spec.devices.requests",
        "NEU542: the requests for 4 + 4 + 4 devices together cost the scheduler seconds on a node of trn2.48xlarge"
        " where one of them does not fit: it tries the devices in every order (Kubernetes 1.34 and 1.35), and each"
        " request again for all ways to allocate those before it. Write requests for 3 devices each: ",
    ),
    "requests together on later versions": (
        claim(*(request(f"n{part}", 4, on(TRN2)) for part in range(3))), LATER, "spec.devices.requests",
        "NEU542: the requests for 4 + 4 + 4 devices together cost the scheduler seconds on a node of trn2.48xlarge"
        " where one of them does not fit: it tries the devices in all subsets, and each request",
    ),
    "a part of each of two groups": (
        claim(
            request("a", 8, on(TRN2)), request("b", 8, on(TRN2)),
            constraints=[match(group(8), "a"), match(group(8), "b")],
        ), None, "spec.devices.requests",
        "NEU542: the requests for 8 + 8 devices together cost",
    ),
    "a device by id after others": (
        claim(request("a", 5, on(TRN2)), request("b", 1, IDS.format("3"), on(TRN2))), None, "spec.devices.requests",
        "NEU542: the requests for 5 + 1 devices together cost",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_scheduling_problems_are_warnings(name: str) -> None:
    spec, where, path, text = FOUND[name]
    (finding,) = [each for each in judge(spec, where) if each.code in OURS]
    assert (str(finding.severity), finding.path) == ("warning", path)
    assert str(finding).startswith(text)


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        pytest.param(FOUR, NO_COUNTERS, id="no counters"),
        pytest.param(FOUR, None, id="a catalogue shows no counters"),
        pytest.param(claim(request("neurons", 4, on(TRN2)), constraints=[match(group(4))]), COUNTERS, id="trn2"),
        pytest.param(claim(request("neurons", 1), constraints=[match(group(4))]), COUNTERS, id="one device"),
        pytest.param(
            claim(request("neurons", 4, IDS.format("4, 5, 6, 7"), on(TRN2U)), constraints=[match(group(4))]),
            COUNTERS,
            id="a selector that leaves the group",
        ),
        pytest.param(
            claim(request("neurons", 4, on(TRN2U)), constraints=[match("resource.kubernetes.io/pcieRoot")]),
            COUNTERS,
            id="another attribute",
        ),
        pytest.param(claim(request("neurons", 4, on(TRN2U), adminAccess=True)), NO_COUNTERS, id="admin access"),
        pytest.param(claim(request("neurons", 4, on(TRN2U))), COUNTERS, id="no admin access"),
        pytest.param(claim(request("neurons", 8, on(TRN2))), None, id="few devices"),
        pytest.param(claim(request("neurons", 16, on(TRN2))), LATER, id="a whole node on later versions"),
        pytest.param(claim(request("a", 4, on(TRN2)), request("b", 4, on(TRN2))), None, id="few together"),
        pytest.param(
            claim(
                request("a", 8, on(TRN2)),
                request("b", 8, on(TRN2)),
                constraints=[match(group(8), "a"), match(group(8), "b")],
            ),
            LATER,
            id="two groups on later versions",
        ),
        pytest.param(claim(request("neurons", 17, on(TRN2))), None, id="more than there are"),
        pytest.param(claim(request("neurons", None, on(TRN2), mode="All")), None, id="all"),
        pytest.param(
            claim(request("neurons", None, on("inf1.24xlarge"), mode="All")),
            world([published("inf1.24xlarge")]),
            id="all of devices that are not shared",
        ),
        pytest.param(
            claim(request("neurons", None, on("inf1.24xlarge"), mode="All", adminAccess=True)),
            world([published("inf1.24xlarge", cores=4)]),
            id="all for monitoring",
        ),
    ],
)
def test_valid_claims_have_no_scheduling_warnings(spec: Any, where: ClaimContext | None) -> None:
    assert not set(codes(judge(spec, where))) & set(OURS)


def test_the_advice_for_a_whole_node_is_accepted() -> None:
    parts = [
        request(f"n{part}", min(3, 16 - 3 * part), IDS.format(", ".join(map(str, range(16)[3 * part :][:3]))), on(TRN2))
        for part in range(6)
    ]
    assert codes(judge(claim(*parts))) == []
