"""What the real scheduler allocates: the rules of the allocator on which conversion and the driver rely."""

import time

import pytest

from neuron import names
from neuron.allocator.search import AllocatorResult
from neuron.hardware import windows
from neuron.hardware.windows import Line
from tests.cluster.allocating import Allocating, Outcome
from tests.cluster.api import Api, ApiError, Object
from tests.cluster.comparing import SETTLE
from tests.cluster.nodes import Fleet
from tests.support import mixtures, structured
from tests.support.mixtures import CORES, Hardware, request, share

RING = Line(12, wraps=True)
INF2 = Hardware("inf2.48xlarge", RING, 2, shared=True)
INF1 = Hardware("inf1.6xlarge", Line(4, wraps=False), 4, shared=True)
CHAIN = Hardware("inf1.24xlarge", Line(16, wraps=False), 4, shared=True)
ULTRASERVER = Hardware("trn2u.48xlarge", Line(16, wraps=False), 8, whole=True, logical=2)


class OneNode:
    """Claims for one node, one after the other."""

    def __init__(self, allocating: Allocating, hardware: Hardware) -> None:
        self._allocating = allocating
        self._node = allocating.node(hardware.name, mixtures.slices(hardware))
        self._claims: list[str] = []
        time.sleep(SETTLE)

    def outcome(self, spec: Object) -> Outcome:
        """What became of one claim."""
        name = f"claim-{len(self._claims)}"
        self._claims.append(name)
        return self._allocating.allocate({name: (self._node, spec)})[name]

    def allocate(self, *requests: Object, constraints: tuple[Object, ...] = ()) -> list[str]:
        """The devices of one claim, as `request device cores`; empty where it was refused."""
        devices: Object = {"requests": list(requests)}
        if constraints:
            devices["constraints"] = list(constraints)
        return self.spec({"devices": devices})

    def spec(self, spec: Object) -> list[str]:
        """The same for a whole spec."""
        claim = self.outcome(spec).claim
        results = (structured.results_of(claim) if claim else None) or ()
        return [" ".join([each.request, each.device.removeprefix("neuron-device-"), *_cores(each)]) for each in results]


def _cores(result: AllocatorResult) -> list[str]:
    return [str(result.consumed[CORES])] if CORES in result.consumed else []


def ids(results: list[str]) -> list[int]:
    return [int(each.split()[1]) for each in results]


def select(*devices: int) -> str:
    chosen = ", ".join(map(str, devices))
    return f'device.attributes["{names.DRIVER}"].?deviceId.orValue(-1) in [{chosen}]'


@pytest.mark.needs("shares")
def test_all_leaves_out_shared_devices_that_are_used_up(allocating: Allocating) -> None:
    node = OneNode(allocating, INF1)
    assert node.allocate(request("n0", count=2)) == ["n0 0 4", "n0 1 4"]
    assert node.allocate(request("n0", allocationMode="All")) == ["n0 2 4", "n0 3 4"]


@pytest.mark.needs("shares")
def test_all_leaves_out_a_shared_device_that_is_partly_used(allocating: Allocating) -> None:
    node = OneNode(allocating, INF1)
    assert node.allocate(request("n0", capacity=share(1))) == ["n0 0 1"]
    assert ids(node.allocate(request("n0", allocationMode="All"))) == [1, 2, 3]


TYPES = (
    ("inf2.48xlarge", RING, 2),
    ("inf2.24xlarge", Line(6, wraps=False), 2),
    ("inf1.24xlarge", Line(16, wraps=False), 4),
    ("inf1.6xlarge", Line(4, wraps=False), 4),
    ("trn1.32xlarge", Line(16, wraps=False), 2),
    ("trn2.48xlarge", Line(16, wraps=False), 8),
)
"""Types with several devices, and their physical cores."""


@pytest.mark.parametrize(("name", "line", "cores"), TYPES, ids=[name for name, _, _ in TYPES])
def test_all_is_refused_beside_a_device_in_use_that_is_not_shared(
    allocating: Allocating, name: str, line: Line, cores: int
) -> None:
    node = OneNode(allocating, Hardware(name, line, cores))
    assert ids(node.allocate(request("n0", selector=select(1)))) == [1]
    assert node.allocate(request("n0", allocationMode="All")) == []
    free = request("n0", selector=select(*range(2, line.devices)), allocationMode="All")
    assert ids(node.allocate(free)) == list(range(2, line.devices))


@pytest.mark.needs("shares")
@pytest.mark.parametrize(("name", "line", "cores"), TYPES, ids=[name for name, _, _ in TYPES])
def test_all_selects_the_free_devices_beside_a_shared_device_in_use(
    allocating: Allocating, name: str, line: Line, cores: int
) -> None:
    node = OneNode(allocating, Hardware(name, line, cores, shared=True))
    assert ids(node.allocate(request("n0", selector=select(1)))) == [1]
    free = [device for device in range(line.devices) if device != 1]
    assert ids(node.allocate(request("n0", allocationMode="All"))) == free


@pytest.mark.needs("shares")
def test_admin_access_to_shared_devices_in_use_needs_a_request_for_no_core(allocating: Allocating) -> None:
    node = OneNode(allocating, INF1)
    assert len(node.allocate(request("n0", count=4))) == 4
    assert node.allocate(request("n0", count=4, adminAccess=True)) == []
    looks_on = request("n0", allocationMode="All", adminAccess=True, capacity=share(0))
    assert node.allocate(looks_on) == ["n0 0 0", "n0 1 0", "n0 2 0", "n0 3 0"]
    assert node.allocate(looks_on) == ["n0 0 0", "n0 1 0", "n0 2 0", "n0 3 0"]


@pytest.mark.needs("shares")
def test_admin_access_leaves_the_cores_free(allocating: Allocating) -> None:
    node = OneNode(allocating, INF1)
    assert len(node.allocate(request("n0", count=4, adminAccess=True))) == 4
    assert node.allocate(request("n0", count=4)) == [f"n0 {index} 4" for index in range(4)]


def test_alternatives_by_device_id_follow_those_by_attribute(allocating: Allocating) -> None:
    """Ten of twelve: no published shift covers the window that is left, a device-id selector does."""
    size, start = 10, 2
    placements = windows.placements(RING, size)
    assert any(placement.ids for placement in placements)
    node = OneNode(allocating, INF2)
    taken = sorted(set(range(12)) - set(RING.window(size, start)))
    assert ids(node.allocate(request("n0", count=2, selector=select(*taken)))) == taken
    [*found] = node.spec(mixtures.window(RING, size))
    assert sorted(ids(found)) == sorted(RING.window(size, start))
    assert found[0].startswith("n0/s")


@pytest.mark.needs("shares")
@pytest.mark.parametrize("busy", [(), (0,), (0, 1), (3,), (1,)], ids=str)
def test_nine_cores_are_two_devices_and_a_share_at_an_end(allocating: Allocating, busy: tuple[int, ...]) -> None:
    node = OneNode(allocating, INF1)
    if busy:
        assert ids(node.allocate(request("n0", count=len(busy), selector=select(*busy)))) == list(busy)
    found = node.spec(mixtures.window_and_share(INF1.line, 2, 1))
    free = sorted(set(range(4)) - set(busy))
    runs = [run for run in ((0, 1, 2), (1, 2, 3)) if set(run) <= set(free)]
    if not runs:
        assert found == []
        return
    whole, part = sorted(ids(found)[:2]), ids(found)[2]
    assert tuple(sorted((*whole, part))) in runs
    assert part in (whole[0] - 1, whole[1] + 1), "the share is at an end, not in between"
    assert found[2].endswith(" 1")
    others = 4 * (len(free) - 2) - 1
    assert len([each for each in range(others + 1) if node.allocate(request("n0", capacity=share(1)))]) == others


@pytest.mark.needs("shares")
def test_pairs_of_shifts_serve_a_node_until_no_run_is_left(allocating: Allocating) -> None:
    line = CHAIN.line
    spec = mixtures.window_and_share(line, 3, 2)
    node = OneNode(allocating, CHAIN)
    held: set[int] = set()
    while found := node.spec(spec):
        run = sorted(ids(found)[:3])
        part = ids(found)[3]
        assert run == list(range(run[0], run[0] + 3))
        assert part in (run[0] - 1, run[-1] + 1)
        assert held.isdisjoint(run)
        held.update(run)
    assert len(held) >= 9


def test_a_node_is_served_in_requests_of_four(allocating: Allocating) -> None:
    """The split that keeps the search short: the same devices as one request for all of them."""
    node = OneNode(allocating, CHAIN)
    quarters = [request(f"n{part}", count=4, selector=select(*range(4 * part, 4 * part + 4))) for part in range(4)]
    assert ids(node.allocate(*quarters)) == list(range(16))
    assert node.allocate(request("n0", capacity=share(1))) == []


def test_groups_by_device_id_are_served_beside_a_device_in_use_on_an_ultraserver_node(allocating: Allocating) -> None:
    """With `matchAttribute`, Kubernetes 1.36.2 refuses this (kubernetes/kubernetes#140436)."""
    node = OneNode(allocating, ULTRASERVER)
    assert ids(node.allocate(request("n0", selector=select(1)))) == [1]
    groups = [tuple(range(start, start + 4)) for start in range(0, 16, 4)]
    alternatives = [
        {**request(f"s{number}", count=4, selector=select(*group))["exactly"], "name": f"s{number}"}
        for number, group in enumerate(groups)
    ]
    found = [ids(node.allocate({"name": "n0", "firstAvailable": alternatives})) for _ in range(4)]
    assert found == [[4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15], []]


@pytest.mark.needs("counters")
def test_admin_access_to_a_device_that_consumes_counters_needs_it_free(allocating: Allocating) -> None:
    """kubernetes/kubernetes#140729: monitoring of UltraServer nodes works only where nothing else runs."""
    node = OneNode(allocating, ULTRASERVER)
    looks_on = request("n0", adminAccess=True, selector=select(0))
    assert ids(node.allocate(looks_on)) == [0]
    assert ids(node.allocate(request("n0", selector=select(0)))) == [0]
    assert node.allocate(looks_on) == []


def one_shared_device(*valid: str) -> list[Object]:
    policy = {"default": "2", "validValues": list(valid)}
    device: Object = {"name": "neuron-device-0", "allowMultipleAllocations": True}
    device["capacity"] = {CORES: {"value": "2", "requestPolicy": policy}}
    return [{"devices": [device]}]


@pytest.mark.needs("shares")
@pytest.mark.parametrize("valid", [("0", "1", "2"), ("1", "2")], ids=str)
def test_valid_values_may_begin_with_zero(api: Api, fleet: Fleet, valid: tuple[str, ...]) -> None:
    node = fleet.add_publishing("inf2.xlarge", one_shared_device(*valid))
    [stored] = api.list("ResourceSlice", fieldSelector=f"spec.nodeName={node}")
    capacity = stored["spec"]["devices"][0]["capacity"][CORES]
    assert capacity["requestPolicy"]["validValues"] == list(valid)


@pytest.mark.needs("shares")
@pytest.mark.parametrize(("valid", "refused"), [(("2", "1"), "sorted"), (("0", "1"), "default")], ids=str)
def test_valid_values_are_sorted_and_have_the_default(fleet: Fleet, valid: tuple[str, ...], refused: str) -> None:
    with pytest.raises(ApiError, match=refused):
        fleet.add_publishing("inf2.xlarge", one_shared_device(*valid))
