"""Generated claims for device groups on nodes whose devices consume shared counters (UltraServer nodes)."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conversion.claims.containers import Ask, Role
from conversion.claims.instance_fit import DeviceConfig
from conversion.claims.making import Claim, make_claim
from neuron.allocator.search import AllocatorNode, AllocatorResult
from neuron.hardware.instances import Catalogue, InstanceType, Observation
from neuron.hardware.windows import Line
from tests.support import mixtures, structured
from tests.support.allocations import devices_of
from tests.support.mixtures import Hardware

HARDWARE = Hardware("trn2u.48xlarge", Line(16, wraps=False), 8, whole=True, logical=2)
SEEN = {"trn2u.48xlarge": Observation(16, (4, 8, 16), whole_node=True, counters=True)}
CATALOGUE = Catalogue().observed(SEEN)


def types(*wanted: str, catalogue: Catalogue = CATALOGUE) -> list[InstanceType]:
    return [entry for entry in catalogue if entry.name in wanted]


def claim_for(*counts: int, of: list[InstanceType] | None = None, init: int = 0) -> Claim:
    """The claim of app containers with these counts, after an init container."""
    amounts = [(Role.INIT, init), *((Role.APP, count) for count in counts)]
    asks = [
        Ask(f"c{place}", role, f"spec.containers[{place}]", "aws.amazon.com/neuron", amount)
        for place, (role, amount) in enumerate(amounts)
        if amount
    ]
    candidates = of or types("trn2u.48xlarge")
    claim = make_claim(asks, candidates, DeviceConfig(), "neuron.aws.com", pin_types=False)
    assert isinstance(claim, Claim)
    return claim


def node_with_busy(busy: set[int], *, leaks: bool = True) -> AllocatorNode:
    """A node with what its driver publishes, on Kubernetes 1.36.2; claims hold the busy devices."""
    found = structured.node_of(mixtures.slices(HARDWARE), counters_leak=leaks)
    for index in busy:
        found.take(AllocatorResult("n0", f"neuron-device-{index}"))
    return found


def ids_of(claim: Claim, where: AllocatorNode) -> list[list[int]] | None:
    """Device ids by request; None if the claim does not fit."""
    results = where.allocate(structured.claim_of(claim.template.spec["spec"]))
    if results is None:
        return None
    found: dict[str, list[int]] = {}
    for result in results:
        found.setdefault(result.request.partition("/")[0], []).append(int(result.device.rpartition("-")[2]))
    return list(found.values())


def groups(size: int) -> list[list[int]]:
    return [list(range(start, start + size)) for start in range(0, 16, size)]


@given(st.sampled_from([4, 8]), st.sets(st.integers(0, 15)))
@example(4, {1})
@example(8, {0, 1, 2})
def test_a_group_is_allocated_wherever_one_is_free(size: int, busy: set[int]) -> None:
    free = [group for group in groups(size) if busy.isdisjoint(group)]
    assert ids_of(claim_for(size), node_with_busy(busy)) == (free[:1] or None)


def test_the_scheduler_refuses_the_group_attribute_beside_a_device_in_use() -> None:
    """The reason for the alternatives, in the model and on Kubernetes 1.36.2."""
    by_attribute = claim_for(4, of=types("trn2u.48xlarge", catalogue=Catalogue()))
    assert devices_of(by_attribute)["constraints"]
    assert ids_of(by_attribute, node_with_busy({1})) is None
    assert ids_of(by_attribute, node_with_busy({1}, leaks=False)) == [[4, 5, 6, 7]]


@pytest.mark.parametrize(("counts", "alternatives"), [((4,), [4]), ((8,), [2]), ((8, 4, 1), [2, 4, 0])], ids=str)
def test_each_request_has_an_alternative_for_each_group(counts: tuple[int, ...], alternatives: list[int]) -> None:
    claim = claim_for(*counts)
    assert "constraints" not in devices_of(claim)
    assert [len(each.get("firstAvailable", ())) for each in devices_of(claim)["requests"]] == alternatives
    found = ids_of(claim, node_with_busy(set()))
    assert found is not None
    assert sorted(map(len, found)) == sorted(counts)


def test_a_whole_node_is_divided_as_the_scheduler_searches() -> None:
    """Subsets of a request are few; orders are many."""
    requests = devices_of(claim_for(16))["requests"]
    assert [each["exactly"]["count"] for each in requests] == [4, 4, 4, 4]
    of = types("trn2u.48xlarge", catalogue=CATALOGUE.scheduled(tries_orders=True))
    requests = devices_of(claim_for(16, of=of))["requests"]
    assert [each["exactly"]["count"] for each in requests] == [3, 3, 3, 3, 3, 1]


def test_other_types_keep_the_attribute_in_the_same_claim() -> None:
    claim = claim_for(4, of=types("trn1.32xlarge", "trn2u.48xlarge"))
    (request,) = devices_of(claim)["requests"]
    assert [each["name"] for each in request["firstAvailable"]] == ["trn1", "trn2u", "trn2u-2", "trn2u-3", "trn2u-4"]
    constraint = {"requests": ["n0/trn1"], "matchAttribute": "resource.aws.com/devicegroup4_id"}
    assert devices_of(claim)["constraints"] == [constraint]
    assert ids_of(claim, node_with_busy({1, 5})) == [[8, 9, 10, 11]]


def test_requests_that_an_init_container_uses_together_keep_the_attribute() -> None:
    claim = claim_for(4, init=8)
    assert [each["matchAttribute"] for each in devices_of(claim)["constraints"]] == [
        "resource.aws.com/devicegroup4_id",
        "resource.aws.com/devicegroup8_id",
    ]
    found = ids_of(claim, node_with_busy(set()))
    assert found is not None
    assert sorted(device for each in found for device in each) == list(range(8))


def test_the_group_attribute_is_used_if_there_are_too_many_alternatives() -> None:
    """Three containers and seven types: with some of the groups left out, the claim would not fit an empty node."""
    wanted = ("trn2u.48xlarge", "inf2.48xlarge", "inf2.24xlarge", "inf1.24xlarge", "inf1.6xlarge")
    claim = claim_for(4, 4, 4, of=types(*wanted))
    assert "trn2u.48xlarge" in claim.types
    found = ids_of(claim, node_with_busy(set()))
    assert found is not None
    assert all(each in groups(4) for each in found)
