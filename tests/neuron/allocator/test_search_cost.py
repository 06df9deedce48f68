"""No converted claim costs the scheduler's allocator more than the bound; the bound is what the allocator does."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from conversion.claims.containers import Ask, Role
from conversion.claims.instance_fit import DeviceConfig, Serving, serve
from conversion.claims.making import Claim, make_claim
from conversion.claims.pieces import divide
from conversion.claims.placement_options import Option, shares_in_one_place
from conversion.claims.planning import plan, plan_split
from neuron.allocator import search
from neuron.allocator.search_cost import ANY, MOST_STEPS, Choice, steps, tries
from neuron.hardware.instances import Catalogue, InstanceType
from tests.support.allocations import claim_of, node_of

RING, CHAIN, GROUPS = "inf2.48xlarge", "inf1.24xlarge", "trn1.32xlarge"


def entry(name: str, *, shares: bool = False, orders: bool | None = None) -> InstanceType:
    found = Catalogue().get(name)
    assert found is not None
    return dataclasses.replace(found, shares_cores=shares, tries_orders=orders)


def asks(counts: Sequence[int]) -> tuple[Ask, ...]:
    return tuple(
        Ask(f"c{index}", Role.APP, f"spec.containers[{index}]", "aws.amazon.com/neuron", count)
        for index, count in enumerate(counts)
    )


def partitions(total: int, most: int, parts: int) -> Iterator[tuple[int, ...]]:
    yield ()
    for count in range(min(total, most), 0, -1) if parts else ():
        for rest in partitions(total - count, count, parts - 1):
            yield (count, *rest)


def requests(
    name: str, counts: Sequence[int], *, shares: bool = False, orders: bool | None = None
) -> list[dict[str, Any]]:
    entries = [entry(name, shares=shares, orders=orders)]
    made = make_claim(asks(counts), entries, DeviceConfig(), "neuron.aws.com", pin_types=False)
    assert isinstance(made, Claim), made
    found: list[dict[str, Any]] = made.template.spec["spec"]["devices"]["requests"]
    return found


def orders(free: int, count: int) -> int:
    """Steps of an allocator that tries `free` devices for a request of `count` in every order."""
    if count == 0:
        return 0
    return sum(1 + orders(free - 1, count - 1) for _ in range(free))


@pytest.mark.parametrize("count", range(1, 8))
def test_a_request_that_lacks_one_device_costs_all_orders(count: int) -> None:
    assert tries(count, orders=True) == 1 + orders(count - 1, count)
    assert tries(count, orders=False) == 2 ** (count - 1)


def test_a_request_after_others_is_tried_for_each_way_to_allocate_them() -> None:
    four = Choice(4, 1)
    assert steps([four], orders=True) == tries(4, orders=True)
    assert steps([four, four], orders=True) > 24 * tries(4, orders=True)
    assert steps([four, four], orders=False) < 24 * tries(4, orders=False)
    # Requests for any device are tried in every order by every version.
    singles = [Choice(1, 1, kind=ANY)] * 9
    assert steps(singles, orders=False) == steps(singles, orders=True) == tries(9, orders=True)


@pytest.mark.parametrize(
    ("name", "parts"), [(RING, 3), (CHAIN, 2), (GROUPS, 4), ("inf2.24xlarge", 6), ("inf1.6xlarge", 4)]
)
@pytest.mark.parametrize("orders", [None, True, False], ids=["unknown", "orders", "sets"])
def test_no_converted_claim_costs_more_than_the_bound(name: str, parts: int, *, orders: bool | None) -> None:
    type_ = entry(name, orders=orders)
    devices = type_.devices or 0
    allowed = set(type_.counts) if type_.line is None else set(range(1, devices + 1))
    pods = {each for each in partitions(devices, devices, parts) if each and allowed.issuperset(each)}
    pods |= {(1,) * count for count in range(2, devices + 1)}
    for counts in pods:
        serving = serve(type_, asks(counts), DeviceConfig())
        assert isinstance(serving, Serving)
        planned = plan([serving], DeviceConfig())
        assert planned.division.steps <= MOST_STEPS, counts
        if orders is False and len(counts) > 1:
            # Several requests for one container make NEU209, unless it has the whole claim.
            assert all(len(parts) == 1 for parts in planned.division.parts.values()), counts


def test_only_a_scheduler_that_tries_orders_gets_divided_claims() -> None:
    for name, counts in ((GROUPS, (8, 1)), (RING, (6, 5)), (CHAIN, (9, 6)), (CHAIN, (8, 8))):
        assert len(requests(name, counts, orders=False)) == len(counts)
        assert len(requests(name, counts, orders=True)) == len(requests(name, counts)) > len(counts)
    # Shares are of 1.36 or later, unless the version says otherwise.
    assert len(requests(RING, (6, 5), shares=True)) == 2
    assert len(requests(RING, (6, 5), shares=True, orders=True)) > 2


@pytest.mark.parametrize(
    ("name", "counts"), [(GROUPS, (16,)), (RING, (9,)), (RING, (12,)), (CHAIN, (15,)), (CHAIN, (16,))]
)
def test_a_large_claim_of_one_container_is_always_divided(name: str, counts: tuple[int, ...]) -> None:
    """The container refers to the claim as a whole. The subsets of one request cost 50 ms on each node."""
    for tries_orders in (True, False):
        made = make_claim(
            asks(counts), [entry(name, orders=tries_orders)], DeviceConfig(), "neuron.aws.com", pin_types=False
        )
        assert isinstance(made, Claim)
        assert len(made.template.spec["spec"]["devices"]["requests"]) > 1
        assert made.uses == ((),)


@pytest.mark.parametrize(
    ("name", "count", "starts"),
    [(RING, 8, 8), (RING, 10, 8), (CHAIN, 9, 8), (CHAIN, 11, 6), (CHAIN, 13, 4), (CHAIN, 14, 3), (CHAIN, 15, 2)],
)
def test_a_large_run_is_its_common_devices_and_the_rest(name: str, count: int, starts: int) -> None:
    line = entry(name).line
    assert line is not None
    (serving,) = [serve(entry(name), asks([count]), DeviceConfig())]
    assert isinstance(serving, Serving)
    planned = plan([serving], DeviceConfig())
    (parts,) = planned.division.parts.values()
    rest = parts[-1]
    core = {device for part in parts[:-1] for device in part[0].options[name].ids}
    windows = [frozenset(core | set(alternative.options[name].ids)) for alternative in rest]
    assert windows == [frozenset(line.window(count, start)) for start in range(starts)]
    assert all(len(part) == 1 for part in parts[:-1])
    assert len(core) == count - starts + 1


@pytest.mark.parametrize("orders", [True, False])
@pytest.mark.parametrize("left_out", range(12))
def test_all_devices_of_a_ring_but_one_are_found_whichever_is_in_use(left_out: int, orders: bool) -> None:
    made = make_claim(asks([11]), [entry(RING, orders=orders)], DeviceConfig(), "neuron.aws.com", pin_types=False)
    assert isinstance(made, Claim)
    assert not made.warnings
    results = node_of(entry(RING), busy={left_out}).allocate(claim_of(made.template.spec))
    assert results is not None
    assert {int(each.device[1:]) for each in results} == set(range(12)) - {left_out}
    assert node_of(entry(RING), busy={left_out, (left_out + 5) % 12}).allocate(claim_of(made.template.spec)) is None


class OrderedSearch(search._Search):
    """The search up to Kubernetes 1.35: every order of the devices of a request."""

    def _some(self, number: int, request: Any, alternative: Any, devices: Any, _: int, left: int) -> bool:
        if left == 0:
            return self._requests(number + 1)
        for each in devices:
            if each.device.name in self._taken or not self._take(request, alternative, each):
                continue
            if self._some(number, request, alternative, devices, 0, left - 1):
                return True
            self._give_back(request, alternative, each.device)
        return False


@pytest.mark.parametrize(("count", "most"), [(7, 28_000), (8, 9_000), (9, 15_000), (10, 35_000)])
def test_a_run_in_two_requests_costs_a_scheduler_that_tries_orders_no_more_than_the_bound(
    count: int, most: int
) -> None:
    """On nodes with two devices in use: with one, it fits."""
    type_ = entry(RING, orders=True)
    serving = serve(type_, asks([count]), DeviceConfig())
    assert isinstance(serving, Serving)
    planned = plan_split([serving], DeviceConfig())
    made = make_claim(asks([count]), [type_], DeviceConfig(), "neuron.aws.com", pin_types=False)
    assert planned is not None
    assert isinstance(made, Claim)
    claim = claim_of(made.template.spec)
    devices = node_of(type_).devices
    costs = []
    for first, second in itertools.product((0, 1), range(2, 12)):
        left = [device for number, device in enumerate(devices) if number not in (first, second)]
        found = OrderedSearch(search.AllocatorNode(left), claim)
        if found.run() is None:
            costs.append(found._steps)
    assert costs
    assert max(costs) <= min(most, planned.division.steps)
    assert planned.division.steps < MOST_STEPS


@pytest.mark.parametrize("counts", [(5, 5), (4, 4, 3), (6, 5)])
def test_runs_one_after_the_other_keep_every_start(counts: tuple[int, ...]) -> None:
    """Each run at every start that leaves place for those before and after it."""
    slack = 12 - sum(counts)
    found = requests(RING, counts)
    alternatives = [len(each["firstAvailable"]) for each in found if "firstAvailable" in each]
    assert alternatives == [slack + 1] * len(counts)


def test_a_group_is_divided_by_positions_under_one_constraint() -> None:
    made = make_claim(asks((8, 8)), [entry(GROUPS)], DeviceConfig(), "neuron.aws.com", pin_types=False)
    assert isinstance(made, Claim)
    devices = made.template.spec["spec"]["devices"]
    names = [each["name"] for each in devices["requests"]]
    first, second = devices["constraints"]
    assert first["requests"] + second["requests"] == names
    assert {each["matchAttribute"] for each in (first, second)} == {"resource.aws.com/devicegroup8_id"}
    assert sum(each["exactly"]["count"] for each in devices["requests"]) == 16
    assert made.uses == (tuple(first["requests"]), tuple(second["requests"]))


@pytest.mark.parametrize("shares", [False, True])
def test_many_single_devices_have_devices_of_their_own(shares: bool) -> None:
    found = requests(CHAIN, (1,) * 16, shares=shares)
    ids = [each["exactly"]["selectors"][0]["cel"]["expression"] for each in found]
    assert len(set(ids)) == 16
    few = requests(CHAIN, (1,) * 4, shares=shares)
    assert len({each["exactly"]["selectors"][0]["cel"]["expression"] for each in few}) == 1


@pytest.mark.parametrize(
    ("name", "count", "common", "steps_"),
    [
        (CHAIN, 9, (3, 4, 5, 6), 16_964),
        (CHAIN, 12, (0, 1, 2, 3), 62_924),
        (CHAIN, 15, (0,), 30),
        (CHAIN, 16, (), 2),
        (RING, 9, (0, 1, 2), 2116),
        (RING, 11, (0,), 22),
    ],
)
@pytest.mark.parametrize("shares", [False, True])
def test_single_devices_are_chosen_from_an_own_one_and_common_ones(
    name: str, count: int, common: tuple[int, ...], steps_: int, shares: bool
) -> None:
    """As many common ones as the search can try in its time, next to the own ones, which are the last of the node."""
    type_ = entry(name, shares=shares)
    serving = serve(type_, asks((1,) * count), DeviceConfig())
    assert isinstance(serving, Serving)
    division = plan([serving], DeviceConfig()).division
    last = (type_.devices or 0) - 1
    assert [part.options[name] for ((part,),) in division.parts.values()] == [
        Option(1, ids=(*common, last - number)) for number in range(count)
    ]
    assert division.steps == steps_


def test_requests_below_the_cost_bound_are_not_divided() -> None:
    (four,) = requests(GROUPS, (4,))
    (eight,) = requests(GROUPS, (8,))
    assert (four["exactly"]["count"], eight["exactly"]["count"]) == (4, 8)


def test_a_division_names_each_device_once() -> None:
    for counts in ((11,), (5, 4, 3), (7, 5), (12,)):
        serving = serve(entry(RING), asks(counts), DeviceConfig())
        assert isinstance(serving, Serving)
        planned = plan([serving], DeviceConfig())
        division = divide(planned.merged, tuple(planned.division.parts))
        for identity, parts in division.parts.items():
            for choice in itertools.product(*parts):
                assert sum(each.count for each in choice) == planned.merged.alternatives[identity][0].count


@pytest.mark.parametrize("count", [65, 10_000, 2**31, 2**63 - 1])
@pytest.mark.parametrize("orders", [True, False], ids=["orders", "sets"])
def test_a_count_of_any_size_is_bounded_at_once(count: int, orders: bool) -> None:
    """The count of a user's request is any int64: it must not set how long the estimate takes."""
    assert tries(count, orders=orders) == tries(64, orders=orders) > MOST_STEPS
    assert steps([Choice(count, 1, kind=ANY), Choice(count, 1)], orders=orders) > MOST_STEPS


def test_containers_with_devices_and_shares_get_a_claim_without_constraints() -> None:
    """Seven containers with a device and a core of 24 cores: 14 devices are too many, and every other form is slow."""
    wanted = [
        Ask(f"c{index}", Role.APP, f"spec.containers[{index}]", "aws.amazon.com/neuroncore", 3) for index in range(7)
    ]
    made = make_claim(wanted, [entry(RING, shares=True)], DeviceConfig(), "neuron.aws.com", pin_types=False)
    assert isinstance(made, Claim)
    devices = made.template.spec["spec"]["devices"]
    assert "constraints" not in devices
    found = [[by_name(devices)[name] for name in use or ()] for use in made.uses]
    # The share of a container is on a device beside its own, and two shares are on one device.
    places = [(whole, share) for (whole, _), (share, _) in (sorted(each, key=lambda one: one[1]) for each in found)]
    assert all(abs(whole - share) == 1 for whole, share in places)
    assert len({whole for whole, _ in places}) == 7
    assert sorted(Counter(share for _, share in places).values()) == [1, 2, 2, 2]
    assert {whole for whole, _ in places}.isdisjoint(share for _, share in places)


@pytest.mark.parametrize(
    ("name", "cores", "ids"),
    [
        (RING, (3, 1, 4), [[(0,), (1,)], [(1,)], [(2, 3)]]),
        (RING, (3, 3, 1, 1, 4, 2), [[(0,), (1,)], [(2,), (1,)], [(3,)], [(3,)], [(4, 5)], [(6,)]]),
        (CHAIN, (6, 7, 2, 1, 3), [[(0,), (1,)], [(3, 4)], [(1,)], [(2,)], [(5,)]]),
    ],
    ids=["share-and-run", "shares-of-pairs-on-one-device", "shares-of-a-third"],
)
def test_devices_and_shares_in_one_place(name: str, cores: tuple[int, ...], ids: list[list[tuple[int, ...]]]) -> None:
    """Device ids of each container's devices and share."""
    type_ = entry(name, shares=True)
    wanted = [
        Ask(f"c{index}", Role.APP, f"spec.containers[{index}]", "aws.amazon.com/neuroncore", count)
        for index, count in enumerate(cores)
    ]
    serving = serve(type_, wanted, DeviceConfig())
    assert isinstance(serving, Serving)
    found = shares_in_one_place(type_, serving.layout, serving.connected_sets)
    assert found is not None
    assert found.fixed
    layout = serving.layout
    assert [[found.options[identity][0].ids for identity in use or ()] for use in layout.uses] == ids
    for identity, (option,) in found.options.items():
        expected = (1, layout.shares[identity]) if identity in layout.shares else (layout.counts[identity], 0)
        assert (option.count, option.cores) == expected


def by_name(devices: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Device and cores (0: all) of each request for one device by id."""
    found = {}
    for each in devices["requests"]:
        (selector,) = each["exactly"]["selectors"]
        (_, ids) = selector["cel"]["expression"].split("deviceId in [")
        cores = each["exactly"].get("capacity", {}).get("requests", {}).get("neuron.aws.com/neuroncores", "0")
        found[each["name"]] = (int(ids.partition("]")[0]), int(cores))
    return found
