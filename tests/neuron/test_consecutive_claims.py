"""Generated claims for rings and chains, on the model of the allocator."""

import dataclasses
import functools
import itertools
import re
from collections.abc import Sequence

import pytest
from hypothesis import Phase, assume, example, given, settings
from hypothesis import strategies as st

from conversion.claims.containers import Ask, Role
from conversion.claims.instance_fit import DeviceConfig
from conversion.claims.making import Claim, Refusal, make_claim
from neuron.allocator.search import AllocatorResult
from neuron.hardware.instances import Catalogue, InstanceType, Topology
from neuron.hardware.windows import Line
from tests.support.allocations import CORES, claim_of, node_of

DEVICE, CORE = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"
WIDE = settings(max_examples=3 * settings.default.max_examples, phases=[Phase.explicit, Phase.generate])
LINES = [entry for entry in Catalogue() if entry.line is not None]
RING = InstanceType("odd.large", "odd", 9, 4, (1,), 1, None, Topology.RING)


def typed(entry: InstanceType, *, shares: bool = False, windows: bool = True) -> InstanceType:
    return dataclasses.replace(entry, shares_cores=shares, windows=windows)


def type_named(name: str, *, shares: bool = False, windows: bool = True) -> InstanceType:
    return typed(next(entry for entry in Catalogue() if entry.name == name), shares=shares, windows=windows)


def claim_for(asks: Sequence[Ask], *candidates: InstanceType) -> Claim | Refusal:
    return make_claim(asks, candidates, DeviceConfig(), "neuron.aws.com", pin_types=False)


def asks_of(*wanted: tuple[str, str, int]) -> list[Ask]:
    """Asks of (role, resource, amount), init containers first."""
    return [
        Ask(f"c{index}", Role(role), f"spec.containers[{index}]", resource if amount else "", amount)
        for index, (role, resource, amount) in enumerate(wanted)
    ]


def results_of(results: Sequence[AllocatorResult], use: Sequence[str]) -> list[AllocatorResult]:
    """What a container gets that refers to these requests; to none: the whole claim."""
    return [result for result in results if not use or result.request.partition("/")[0] in use]


def is_run(ids: Sequence[int], line: Line) -> bool:
    return any(sorted(line.window(len(ids), start)) == sorted(ids) for start in line.starts(len(ids)))


def check_limits(claim: Claim) -> None:
    devices = claim.template.spec["spec"]["devices"]
    requests, constraints = devices["requests"], devices.get("constraints", [])
    assert len(requests) <= 32
    assert len(constraints) <= 32
    known = set()
    for request in requests:
        alternatives = request.get("firstAvailable", ())
        assert len(alternatives) != 1
        assert len(alternatives) <= 8
        assert len({each["name"] for each in alternatives}) == len(alternatives)
        known |= {request["name"], *(f"{request['name']}/{each['name']}" for each in alternatives)}
    for constraint in constraints:
        assert set(constraint["requests"]) <= known
        assert 1 <= len(constraint["requests"]) == len(set(constraint["requests"])) <= 32


def check_devices(claim: Claim, asks: Sequence[Ask], entry: InstanceType, results: Sequence[AllocatorResult]) -> None:
    """Every container has consecutive devices, and as many devices or cores as it requests."""
    line = entry.line
    assert line is not None
    per_device = entry.cores_per_device or 0
    for ask, use in zip(asks, claim.uses, strict=True):
        assert (use is None) == (ask.amount == 0)
        if use is None:
            continue
        mine = results_of(results, use)
        ids = [int(result.device[1:]) for result in mine]
        assert len(set(ids)) == len(ids)
        assert is_run(ids, line), ids
        cores = sum(result.consumed.get(CORES, per_device) for result in mine)
        whole = [result for result in mine if result.consumed.get(CORES, per_device) == per_device]
        if ask.in_cores:
            assert cores >= ask.amount
        else:
            assert len(whole) >= ask.amount
            if ask.role is not Role.INIT:
                assert len(mine) == ask.amount


def check_claim(claim: Claim, asks: Sequence[Ask], entry: InstanceType, results: Sequence[AllocatorResult]) -> None:
    """The same for a claim for one type, where too many cores are warned of."""
    check_devices(claim, asks, entry, results)
    warned = {finding.path for finding in claim.warnings if finding.code == "NEU202"}
    for ask, use, exact in zip(asks, claim.uses, claim.exact, strict=True):
        if use is not None and ask.in_cores:
            mine = results_of(results, use)
            cores = sum(result.consumed.get(CORES, entry.cores_per_device or 0) for result in mine)
            if claim.uses.count(use) == 1:
                assert (cores > ask.amount) == (ask.resource_path in warned)
                assert exact <= (cores == ask.amount)


ROLES = st.sampled_from(["app", "app", "sidecar", "init"])
ASK = st.tuples(ROLES, st.sampled_from([DEVICE, CORE]), st.integers(0, 14))
PODS = st.lists(ASK, min_size=1, max_size=4).map(lambda asks: sorted(asks, key=lambda each: each[0] == "app"))
ENTRIES = st.builds(typed, st.sampled_from([*LINES, RING]), shares=st.booleans(), windows=st.booleans())


@WIDE
@given(PODS, ENTRIES)
@example(
    [("app", DEVICE, 9), ("app", CORE, 9), ("app", CORE, 9), ("app", CORE, 9)], type_named("inf1.24xlarge", shares=True)
)
@example([("app", DEVICE, 4)] * 3, type_named("inf2.48xlarge", windows=False))
@example([("init", DEVICE, 7), ("app", DEVICE, 4), ("app", DEVICE, 3)], type_named("inf2.48xlarge"))
@example([("init", DEVICE, 7), ("app", DEVICE, 3), ("app", DEVICE, 2), ("app", DEVICE, 2)], type_named("inf2.48xlarge"))
def test_a_claim_fits_an_empty_node_with_consecutive_devices_and_exact_cores(
    pod: list[tuple[str, str, int]], entry: InstanceType
) -> None:
    asks = asks_of(*pod)
    assume(any(ask.amount for ask in asks))
    claim = claim_for(asks, entry)
    if isinstance(claim, Refusal):
        return
    check_limits(claim)
    results = node_of(entry).allocate(claim_of(claim.template.spec))
    assert results is not None
    check_claim(claim, asks, entry, results)


FAMILIES = st.lists(ENTRIES, min_size=2, max_size=4, unique_by=lambda entry: entry.name)


@WIDE
@given(PODS, FAMILIES)
@example(
    [("init", DEVICE, 6), ("sidecar", DEVICE, 4)],
    [type_named("inf2.24xlarge", shares=True), type_named("inf1.24xlarge", shares=True)],
)
def test_a_claim_for_several_types_fits_an_empty_node_of_each(
    pod: list[tuple[str, str, int]], entries: list[InstanceType]
) -> None:
    asks = asks_of(*pod)
    assume(any(ask.amount for ask in asks))
    claim = claim_for(asks, *entries)
    if isinstance(claim, Refusal):
        assert all(isinstance(claim_for(asks, entry), Refusal) for entry in entries)
        return
    check_limits(claim)
    for entry in entries:
        results = node_of(entry).allocate(claim_of(claim.template.spec))
        assert (results is not None) == (entry.name in claim.types)
        if results is not None:
            check_devices(claim, asks, entry, results)


@functools.cache
def claim_of_one(size: int, entry: InstanceType) -> Claim:
    """For one container; there are some 200, each for many examples."""
    claim = claim_for(asks_of(("app", DEVICE, size)), entry)
    assert isinstance(claim, Claim)
    return claim


def left_out(claim: Claim) -> set[int]:
    """First devices of the runs that NEU219 names."""
    texts = [each.message for each in claim.warnings if each.code == "NEU219"]
    starts = [text.partition("from device ")[2].partition(":")[0] for text in texts]
    return {int(number) for text in starts for number in re.findall(r"[0-9]+", text)}


@WIDE
@given(ENTRIES, st.data())
def test_one_container_fits_wherever_a_run_is_free_that_no_warning_names(
    entry: InstanceType, data: st.DataObject
) -> None:
    line = entry.line
    assert line is not None
    size = data.draw(st.integers(2, line.devices - 1))
    claim = claim_of_one(size, entry)
    busy = data.draw(st.sets(st.integers(0, line.devices - 1)))
    results = node_of(entry, busy=busy).allocate(claim_of(claim.template.spec))
    free = {start for start in line.starts(size) if busy.isdisjoint(line.window(size, start))}
    if results is None:
        assert free <= left_out(claim)
    else:
        check_claim(claim, asks_of(("app", DEVICE, size)), entry, results)


@pytest.mark.parametrize(
    ("name", "complete"),
    [
        pytest.param("inf1.24xlarge", set(range(2, 16)), id="inf1.24xlarge"),
        pytest.param("inf1.6xlarge", {2, 3}, id="inf1.6xlarge"),
        pytest.param("inf2.24xlarge", {2, 3, 4, 5}, id="inf2.24xlarge"),
        pytest.param("inf2.48xlarge", set(range(2, 12)), id="inf2.48xlarge"),
        pytest.param("inf2.48xlarge up to 1.35", set(range(2, 12)), id="inf2.48xlarge-1.35"),
    ],
)
@pytest.mark.parametrize("shares", [False, True])
def test_a_claim_leaves_few_runs_out(name: str, complete: set[int], shares: bool) -> None:
    name, _, orders = name.partition(" ")
    entry = dataclasses.replace(type_named(name, shares=shares), tries_orders=bool(orders))
    line = entry.line
    assert line is not None
    for size in range(2, line.devices):
        missing = left_out(claim_of_one(size, entry))
        assert bool(missing) == (size not in complete)
        if line.wraps:
            # Runs that do not wrap around are all tried.
            assert all(start + size > line.devices for start in missing)


def test_cores_beside_whole_devices_are_given_at_either_end() -> None:
    entry = type_named("inf1.6xlarge", shares=True)
    asks = asks_of(("app", CORE, 9))
    claim = claim_for(asks, entry)
    assert isinstance(claim, Claim)
    assert claim.exact == (True,)
    taken = claim_for(asks_of(("app", CORE, 1)), entry)
    assert isinstance(taken, Claim)
    node = node_of(entry)
    for _ in range(5):  # four on device 0, the fifth on device 1
        assert node.allocate(claim_of(taken.template.spec)) is not None
    results = node.allocate(claim_of(claim.template.spec))
    assert results is not None
    assert [(result.device, result.consumed[CORES]) for result in results] == [("d2", 4), ("d3", 4), ("d1", 1)]
    for _ in range(2):
        assert node.allocate(claim_of(taken.template.spec)) is not None
    assert node.allocate(claim_of(taken.template.spec)) is None


def test_an_ultraserver_is_never_given_as_a_share_of_a_device() -> None:
    entry = dataclasses.replace(type_named("trn2u.48xlarge"), shares_cores=True)
    asks = asks_of(("app", CORE, 1))
    whole = DeviceConfig(ultraserver_mode=4)
    refused = make_claim(asks, [entry], whole, "neuron.aws.com", pin_types=False)
    assert isinstance(refused, Refusal)
    assert [each.code for each in refused.findings] == ["NEU112"]
    assert isinstance(claim_for(asks, entry), Claim)


@pytest.mark.parametrize("size", range(7, 11))
def test_half_of_a_ring_and_the_rest_are_one_run_wherever_one_is_free(size: int) -> None:
    """Of every set of free devices of inf2.48xlarge, of which two such runs always have some in common."""
    entry = dataclasses.replace(type_named("inf2.48xlarge", shares=True), tries_orders=False)
    claim = claim_of_one(size, entry)
    assert len(claim.template.spec["spec"]["devices"]["requests"]) == 2
    for free in itertools.chain(*(itertools.combinations(range(12), number) for number in range(size, 13))):
        results = node_of(entry, busy=set(range(12)) - set(free)).allocate(claim_of(claim.template.spec))
        runs = [run for start in range(12) if (run := {*Line(12, wraps=True).window(size, start)}) <= {*free}]
        assert ({int(each.device[1:]) for each in results} in runs) if results else not runs
