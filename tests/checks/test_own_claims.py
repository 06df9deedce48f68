"""Claims that conversion generates have no findings, for any type and any number of devices or cores."""

import dataclasses
import itertools
import sys

import pytest
from msgspec import structs

from checks.claims.counts import check_together
from checks.claims.device_index import DeviceIndex
from checks.claims.judging import ClaimContext, judge_claim
from conversion.asks.pod_demand import KnownClaim
from conversion.claims.containers import Ask, Role
from conversion.claims.instance_fit import DeviceConfig
from conversion.claims.making import Claim, make_claim
from conversion.claims.templates import API_VERSION, KIND
from conversion.findings.check_pods import check_pod
from conversion.objects import pods
from neuron import names
from neuron.api.claim_reader import read_claim
from neuron.hardware.device_shapes import catalogue_shapes
from neuron.hardware.instances import Catalogue, InstanceType
from policies.judging.selectors import DeviceSelectors

TYPES = [entry for entry in Catalogue() if entry.devices is not None]


def distinct() -> list[InstanceType]:
    """One type of each kind: the others get the same claims under other names."""
    kinds: dict[InstanceType, InstanceType] = {}
    for entry in TYPES:
        kinds.setdefault(dataclasses.replace(entry, name="", family="", memory_gib=None, accelerator=None), entry)
    return list(kinds.values())


KINDS = distinct()


def without_limit() -> DeviceSelectors:
    """Selectors whose time does not end on a loaded machine."""
    return DeviceSelectors(clock=lambda: 0.0)


CASES = [
    pytest.param(entry, shares, tries_orders, id=f"{entry.name} {'shares' if shares else 'whole'} {version}")
    for entry in KINDS
    for shares, tries_orders, version in ((False, True, "1.35"), (False, False, "1.36"), (True, False, "1.36"))
]


def amounts(most: int) -> list[int]:
    """Small amounts, and of many the eleventh: eleven and the sizes of groups and devices have no common divisor."""
    return [*range(1, min(most, 17) + 1), *range(18, most, 11), *([most] if most > 17 else [])]


@pytest.mark.parametrize(("entry", "shares", "tries_orders"), CASES)
def test_a_generated_claim_has_no_findings(entry: InstanceType, shares: bool, tries_orders: bool) -> None:
    entry = dataclasses.replace(entry, shares_cores=shares, tries_orders=tries_orders)
    catalogue = Catalogue(KINDS).scheduled(tries_orders=tries_orders).extended([entry])
    context = ClaimContext(catalogue, DeviceIndex(catalogue_shapes(catalogue)), without_limit())
    found = {}
    assert entry.devices is not None
    for resource, most in (("neuron", entry.devices), ("neuroncore", entry.devices * (entry.cores(None) or 1))):
        for amount in amounts(most):
            path = f"spec.containers[0].resources.limits[aws.amazon.com/{resource}]"
            ask = Ask("main", Role.APP, path, f"aws.amazon.com/{resource}", amount)
            claim = make_claim([ask], [entry], DeviceConfig(), "neuron.aws.com", pin_types=False)
            if isinstance(claim, Claim):
                found[resource, amount] = findings(claim, structs.replace(context, engine=without_limit()))
    assert {key: codes for key, codes in found.items() if codes} == {}


@pytest.mark.parametrize(("resource", "amount"), [("neuron", 8), ("neuron", 12), ("neuron", 16), ("neuroncore", 64)])
def test_a_claim_for_several_types_has_no_findings(resource: str, amount: int) -> None:
    """A request has an alternative for each type, and only those of one type are allocated together."""
    catalogue = Catalogue().scheduled(tries_orders=False)
    context = ClaimContext(catalogue, DeviceIndex(catalogue_shapes(catalogue)), without_limit())
    several = [
        entry
        for name in ("inf2.48xlarge", "inf2.24xlarge", "inf1.24xlarge", "trn1.32xlarge", "trn2u.48xlarge")
        if (entry := catalogue.get(name)) is not None
    ]
    found = {}
    for entries in itertools.chain.from_iterable(itertools.combinations(several, size) for size in (2, 3, 5)):
        ask = Ask("main", Role.APP, "spec.containers[0]", f"aws.amazon.com/{resource}", amount)
        claim = make_claim([ask], entries, DeviceConfig(), "neuron.aws.com", pin_types=False)
        if isinstance(claim, Claim):
            found[tuple(entry.name for entry in entries)] = findings(
                claim, structs.replace(context, engine=without_limit())
            )
    assert found
    assert {key: codes for key, codes in found.items() if codes} == {}


@pytest.mark.parametrize("counts", [(10, 2), (9, 3), (8, 4), (7, 5), (8, 1, 1), (8, 2, 1), (7, 2, 2)], ids=str)
@pytest.mark.parametrize("tries_orders", [True, False], ids=["1.35", "1.36"])
def test_a_claim_for_several_containers_on_a_ring_has_no_findings(counts: tuple[int, ...], tries_orders: bool) -> None:
    catalogue = Catalogue().scheduled(tries_orders=tries_orders)
    entry = catalogue.get("inf2.48xlarge")
    assert entry is not None
    context = ClaimContext(catalogue, DeviceIndex(catalogue_shapes(catalogue)), without_limit())
    asks = [
        Ask(f"c{number}", Role.APP, f"spec.containers[{number}]", "aws.amazon.com/neuron", count)
        for number, count in enumerate(counts)
    ]
    claim = make_claim(asks, [entry], DeviceConfig(), "neuron.aws.com", pin_types=False)
    assert isinstance(claim, Claim)
    assert findings(claim, context) == []


@pytest.mark.parametrize(
    ("requests", "alternatives", "constraints"), [(2, 8, 2), (8, 8, 8), (16, 2, 2), (32, 8, 32), (32, 2, 32)], ids=str
)
def test_the_search_for_what_a_claim_can_get_is_bounded(requests: int, alternatives: int, constraints: int) -> None:
    """Tenants choose the number of alternatives and constraints: each may hold for other requests."""
    catalogue = Catalogue()
    context = ClaimContext(catalogue, DeviceIndex(catalogue_shapes(catalogue)), without_limit())
    devices = {
        "requests": [
            {
                "name": f"r{number}",
                "firstAvailable": [
                    {"name": f"a{each}", "deviceClassName": names.DEVICE_CLASS, "count": 1}
                    for each in range(alternatives)
                ],
            }
            for number in range(requests)
        ],
        "constraints": [
            {
                "requests": [f"r{number}" for number in range(requests) if (number + left_out) % requests],
                "matchAttribute": names.device_group_attribute(4),
            }
            for left_out in range(constraints)
        ],
    }
    spec, wrong = read_claim("ResourceClaim", API_VERSION, {"devices": devices})
    assert not wrong
    judgement = judge_claim(spec, context)
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        found = check_together(spec, judgement.leaves, "spec.containers[0]", context.index, catalogue)
    finally:
        sys.setprofile(before)
    assert [each.code for each in found] == ["NEU709"]
    # Each alternative is compared with each constraint by name, twice; the search itself is bounded.
    assert calls < 30_000 + 4 * requests * alternatives * constraints


def findings(claim: Claim, context: ClaimContext) -> list[str]:
    """Codes of the findings about the template, and about the containers that use its claim."""
    spec, wrong = read_claim(KIND, API_VERSION, claim.template.spec)
    judgement = judge_claim(spec, context)
    uses = [[{"name": "neuron", "request": each} for each in use or ()] or [{"name": "neuron"}] for use in claim.uses]
    pod = pods.view(
        {
            "spec": {
                "containers": [
                    {"name": f"c{number}", "resources": {"claims": entries}} for number, entries in enumerate(uses)
                ],
                "resourceClaims": [{"name": "neuron", "resourceClaimTemplateName": claim.template.name}],
            }
        }
    )
    checked = check_pod(pod, {"neuron": KnownClaim(judgement)}, context)
    return [each.code for each in (*wrong, *judgement.findings, *checked)]
