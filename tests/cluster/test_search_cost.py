"""No converted claim stops the scheduler where it does not fit; run it on each version of Kubernetes."""

import dataclasses
import time

import pytest

from conversion.claims.containers import Ask, Role
from conversion.claims.instance_fit import DeviceConfig
from conversion.claims.making import Claim, make_claim
from neuron import known_faults
from neuron.hardware.instances import Catalogue
from neuron.hardware.windows import Line
from tests.cluster import versions
from tests.cluster.allocating import Allocating, Outcome
from tests.cluster.api import Object
from tests.cluster.comparing import SETTLE
from tests.cluster.controlplane import Assets
from tests.support import mixtures
from tests.support.mixtures import Hardware, request

MOST_SECONDS = 3.0
"""Until a claim is refused, with all that other processes do meanwhile. The allocator's time-out is 10."""
TRN1 = Hardware("trn1.32xlarge", Line(16, wraps=False), 2)
RING = Hardware("inf2.48xlarge", Line(12, wraps=True), 2)
CHAIN = Hardware("inf1.24xlarge", Line(16, wraps=False), 4)

CASES: list[tuple[Hardware, tuple[int, ...], tuple[int, ...]]] = [
    (RING, (11,), (3, 8)),
    (RING, (8,), (5, 11)),
    (RING, (12,), (7,)),
    (RING, (5, 5), (0, 4, 8)),
    (CHAIN, (13,), (6, 9)),
    (CHAIN, (14,), (0, 8)),
    (CHAIN, (15,), (0, 15)),
    (CHAIN, (16,), (15,)),
    (CHAIN, (8,), (7, 8)),
    (CHAIN, (7, 6, 3), (15,)),
    (TRN1, (8,), (7, 15)),
    (TRN1, (16,), (14,)),
    (TRN1, (8, 8), (15,)),
    (TRN1, (4, 4, 4, 4), (15,)),
    (TRN1, (1,) * 16, (3,)),
]


@pytest.fixture
def allocator_tries_orders(assets: Assets) -> bool:
    """Whether the version's allocator tries the devices of a request in every order."""
    return assets.version < (1, 36, 0)


def converted_claim(hardware: Hardware, counts: tuple[int, ...], assets: Assets) -> Object:
    """As on this version: divided up to 1.35."""
    entry = Catalogue().get(hardware.name)
    assert entry is not None
    orders = known_faults.tries_orders(versions.text(assets.version))
    entry = dataclasses.replace(entry, shares_cores=hardware.shared, tries_orders=orders)
    asks = [
        Ask(f"c{number}", Role.APP, f"spec.containers[{number}]", "aws.amazon.com/neuron", count)
        for number, count in enumerate(counts)
    ]
    made = make_claim(asks, [entry], DeviceConfig(), "neuron.aws.com", pin_types=False)
    assert isinstance(made, Claim)
    spec: Object = made.template.spec["spec"]
    return spec


def one(device: int) -> Object:
    selector = f'device.attributes["neuron.aws.com"].?deviceId.orValue(-1) == {device}'
    return {"devices": {"requests": [request("n0", selector=selector)]}}


def time_refusal(
    allocating: Allocating, hardware: Hardware, claim: Object, used: tuple[int, ...]
) -> tuple[float, Outcome]:
    """Seconds until a claim was decided on a node where these devices are in use, and what was decided."""
    node = allocating.node(hardware.name, mixtures.slices(hardware))
    time.sleep(SETTLE)
    held = allocating.allocate({f"used-{device}": (node, one(device)) for device in used})
    assert all(outcome.claim is not None for outcome in held.values())
    start = time.monotonic()
    outcome = allocating.allocate({"converted": (node, claim)})["converted"]
    return time.monotonic() - start, outcome


@pytest.mark.parametrize(
    ("hardware", "counts", "used"),
    CASES,
    ids=[f"{each.name}-{'-'.join(map(str, counts))}" for each, counts, _ in CASES],
)
def test_a_converted_claim_that_does_not_fit_is_refused_at_once(
    allocating: Allocating, assets: Assets, hardware: Hardware, counts: tuple[int, ...], used: tuple[int, ...]
) -> None:
    seconds, outcome = time_refusal(allocating, hardware, converted_claim(hardware, counts, assets), used)
    assert outcome.claim is None
    assert "cannot allocate all claims" in outcome.refusal
    assert seconds < MOST_SECONDS


@pytest.mark.parametrize(
    ("hardware", "counts", "used"),
    [
        (RING, (11,), (2,)),
        (CHAIN, (13,), (1,)),
        (CHAIN, (14,), (0, 15)),
        (CHAIN, (5, 5), (0, 15)),
        (TRN1, (8, 4), (3,)),
    ],
    ids=["ring", "chain", "both ends", "two runs", "groups"],
)
def test_a_converted_claim_finds_the_place_that_is_free(
    allocating: Allocating, assets: Assets, hardware: Hardware, counts: tuple[int, ...], used: tuple[int, ...]
) -> None:
    _, outcome = time_refusal(allocating, hardware, converted_claim(hardware, counts, assets), used)
    assert outcome.claim is not None, outcome.refusal
    results = outcome.claim["status"]["allocation"]["devices"]["results"]
    devices = {int(each["device"].removeprefix("neuron-device-")) for each in results}
    assert len(devices) == sum(counts)
    assert not devices & set(used)


def test_an_undivided_request_times_out_in_schedulers_that_try_orders(
    allocating: Allocating, allocator_tries_orders: bool
) -> None:
    """What conversion does not write, and NEU542 names: 11 devices in one request, of which 10 are free."""
    claim: Object = {"devices": {"requests": [request("n0", count=11)]}}
    seconds, outcome = time_refusal(allocating, RING, claim, (3, 8))
    assert outcome.claim is None
    assert ("timed out" in outcome.refusal) is allocator_tries_orders
    assert (seconds > MOST_SECONDS) is allocator_tries_orders
