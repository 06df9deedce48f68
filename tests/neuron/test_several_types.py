"""Claims for several instance types: no type gets fewer places than the worst of them in a claim of its own."""

import contextlib
import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conversion.claims import making as claims
from conversion.claims import planning
from conversion.claims.alternatives import Merged, TooMany
from conversion.claims.containers import Ask, Role
from conversion.claims.instance_fit import DeviceConfig, Serving
from conversion.claims.making import Claim, make_claim
from neuron.hardware.instances import Catalogue, InstanceType
from tests.support.allocations import claim_of, node_of

DEVICE, CORE = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"
CATALOGUE = {entry.name: entry for entry in Catalogue()}
NAMES = ("inf2.48xlarge", "inf2.24xlarge", "inf1.24xlarge", "inf1.6xlarge", "trn1.32xlarge", "trn2u.48xlarge")
SETS = [each for size in range(1, len(NAMES) + 1) for each in itertools.combinations(NAMES, size)]


@functools.cache
def typed(name: str, *, shares: bool = False, orders: bool = False, published: bool = True) -> InstanceType:
    """UltraServer nodes have counters, so that their groups are requested by device id, but not up to 1.35."""
    entry = CATALOGUE[name]
    return dataclasses.replace(
        entry,
        shares_cores=shares and not entry.grouped,
        tries_orders=orders,
        windows=published,
        counters=bool(entry.ultraserver_nodes) and not orders,
    )


def claim_for(
    wanted: Sequence[tuple[str, int]], entries: Sequence[InstanceType], *, divides: bool = True
) -> Claim | None:
    asks = [
        Ask(f"c{index}", Role.APP, f"spec.containers[{index}]", resource, amount)
        for index, (resource, amount) in enumerate(wanted)
    ]
    made = make_claim(asks, entries, DeviceConfig(divides=divides), "neuron.aws.com", pin_types=False)
    return made if isinstance(made, Claim) else None


def untried(claim: Claim) -> Mapping[str, set[int]]:
    """First devices of the runs and groups that NEU219 names, by type."""
    found: dict[str, set[int]] = {}
    for each in claim.warnings:
        if each.code == "NEU219":
            starts = each.message.partition("from device ")[2].partition(":")[0]
            found.setdefault(each.value, set()).update(int(number) for number in re.findall(r"[0-9]+", starts))
    return found


def most_lost(claim: Claim | None) -> int:
    return 0 if claim is None else max(map(len, untried(claim).values()), default=0)


def check_sets(wanted: Sequence[tuple[str, int]], **traits: bool) -> None:
    alone = {name: most_lost(claim_for(wanted, [typed(name, **traits)])) for name in NAMES}
    for names in SETS:
        claim = claim_for(wanted, [typed(name, **traits) for name in names])
        assert most_lost(claim) <= max(alone[name] for name in names), names


@pytest.mark.parametrize("count", range(2, 17))
@pytest.mark.parametrize("shares", [False, True], ids=["whole", "shares"])
def test_several_types_lose_no_more_places_than_the_worst_of_them(count: int, shares: bool) -> None:
    check_sets([(DEVICE, count)], shares=shares)


@pytest.mark.parametrize("count", range(2, 17))
def test_a_scheduler_that_tries_orders_costs_no_places_either(count: int) -> None:
    check_sets([(DEVICE, count)], orders=True)


@pytest.mark.parametrize("count", range(2, 17))
@pytest.mark.parametrize("orders", [False, True])
def test_every_run_of_devices_is_tried_whatever_the_types(count: int, orders: bool) -> None:
    for names in SETS:
        claim = claim_for([(DEVICE, count)], [typed(name, orders=orders) for name in names])
        assert claim is None or not untried(claim), names


WAY = "All are tried with the annotation neuron.aws.com/instance-type: {}. "


@pytest.mark.parametrize(
    ("types", "cores", "ways"),
    [
        (("inf2.48xlarge", "inf1.24xlarge"), 9, {"inf2.48xlarge": WAY}),
        (("inf2.48xlarge", "inf1.24xlarge"), 13, {"inf2.48xlarge": WAY, "inf1.24xlarge": WAY}),
    ],
)
def test_the_warning_names_the_type_with_which_all_runs_are_tried(
    types: tuple[str, ...], cores: int, ways: Mapping[str, str]
) -> None:
    claim = claim_for([(CORE, cores)], [typed(name) for name in types])
    assert claim is not None
    assert {each.value: each.fix for each in claim.warnings if each.code == "NEU219"} == {
        name: f"{way.format(name)}`neuron-dra explain` shows which devices are free." for name, way in ways.items()
    }
    for name in ways:
        alone = claim_for([(CORE, cores)], [typed(name)])
        assert not untried(alone or claim)


def test_the_warning_names_no_type_that_leaves_runs_out_as_well() -> None:
    """Nodes of AWS's driver have no attributes of windows."""
    for types in (("inf2.48xlarge",), ("inf2.48xlarge", "inf1.24xlarge")):
        claim = claim_for([(DEVICE, 8)], [typed(name, published=False) for name in types])
        assert claim is not None
        fixes = {each.fix for each in claim.warnings if each.code == "NEU219"}
        assert fixes == {"`neuron-dra explain` shows which devices are free."}


@pytest.mark.parametrize("count", [7, 8, 9, 10])
@pytest.mark.parametrize("types", [("inf2.48xlarge",), ("inf2.48xlarge", "inf1.24xlarge", "trn1.32xlarge")])
@pytest.mark.parametrize("orders", [False, True])
@given(st.data())
def test_a_run_in_two_requests_is_consecutive_and_found_wherever_it_is_free(
    count: int, types: tuple[str, ...], orders: bool, data: st.DataObject
) -> None:
    entries = [typed(name, orders=orders) for name in types]
    claim = claim_for([(DEVICE, count)], entries)
    assert claim is not None
    assert not claim.warnings
    assert [len(claim.uses), len(claim.template.spec["spec"]["devices"]["requests"])] == [1, 2]
    entry = data.draw(st.sampled_from([each for each in entries if each.line is not None]))
    assert entry.line is not None
    runs = [set(entry.line.window(count, start)) for start in entry.line.starts(count)]
    kept = data.draw(st.sampled_from(runs))
    devices = range(entry.devices or 0)
    busy = data.draw(st.sets(st.sampled_from(devices))) - data.draw(st.sampled_from([kept, set[int]()]))
    results = node_of(entry, busy=busy).allocate(claim_of(claim.template.spec))
    free = [run for run in runs if not run & busy]
    assert (results is None) == (not free)
    assert results is None or {int(each.device[1:]) for each in results} in free


def test_a_share_of_one_device_on_a_type_leaves_one_request_on_a_ring() -> None:
    """Of a catalogue file: 14 cores are seven devices of the ring, and half of a device there."""
    large = dataclasses.replace(CATALOGUE["trn1.2xlarge"], name="trn9.large", cores_per_device=32, shares_cores=True)
    claim = claim_for([(CORE, 14)], [typed("inf2.48xlarge"), large])
    assert claim is not None
    assert [len(claim.uses), len(claim.template.spec["spec"]["devices"]["requests"])] == [1, 1]


@pytest.mark.parametrize("types", [("inf2.48xlarge",), ("inf1.24xlarge",), ("inf2.48xlarge", "inf1.24xlarge")])
@given(st.data())
def test_eight_devices_are_connected_however_the_claim_is_divided(types: tuple[str, ...], data: st.DataObject) -> None:
    entries = [typed(name, orders=True) for name in (*types, "trn1.32xlarge", "trn2u.48xlarge")]
    claim = claim_for([(DEVICE, 8)], entries)
    assert claim is not None
    entry = data.draw(st.sampled_from(entries))
    devices = range(entry.devices or 0)
    busy = data.draw(st.sets(st.sampled_from(devices), max_size=len(devices) - 8))
    results = node_of(entry, busy=busy).allocate(claim_of(claim.template.spec))
    if entry.line is not None:
        sets = {start: set(entry.line.window(8, start)) for start in entry.line.starts(8)}
    else:
        sets = {start: set(range(start, start + 8)) for start in (0, 8)}
    free = {start for start, ids in sets.items() if not ids & busy}
    if results is None:
        assert free <= untried(claim).get(entry.name, set())
    else:
        assert {int(each.device[1:]) for each in results} in [sets[start] for start in free]


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param([(DEVICE, 4), (CORE, 2)], id="four-devices-and-two-cores"),
        pytest.param([(DEVICE, 4), (DEVICE, 1)], id="four-and-one"),
        pytest.param([(DEVICE, 4), (CORE, 1), (CORE, 1)], id="four-and-two-shares"),
        pytest.param([(DEVICE, 8), (DEVICE, 1)], id="eight-and-one"),
    ],
)
@pytest.mark.parametrize("shares", [False, True], ids=["whole", "shares"])
def test_a_second_container_costs_no_places(wanted: list[tuple[str, int]], shares: bool) -> None:
    check_sets(wanted, shares=shares)


ENTRIES = st.lists(
    st.builds(typed, st.sampled_from(NAMES), shares=st.booleans(), orders=st.booleans(), published=st.booleans()),
    min_size=1,
    max_size=4,
    unique_by=lambda entry: entry.name,
)


@given(ENTRIES, st.data())
def test_devices_are_found_wherever_they_are_free_if_no_warning_names_them(
    entries: list[InstanceType], data: st.DataObject
) -> None:
    """Also on nodes of AWS's driver, which have no attributes of windows."""
    count = data.draw(st.integers(2, 16))
    claim = claim_for([(DEVICE, count)], entries)
    if claim is None:
        return
    entry = data.draw(st.sampled_from([each for each in entries if each.name in claim.types]))
    devices = range(entry.devices or 0)
    if entry.line is not None and count < len(devices):
        sets = {start: set(entry.line.window(count, start)) for start in entry.line.starts(count)}
    else:
        sets = {start: set(range(start, start + count)) for start in range(0, len(devices), count)}
    start = data.draw(st.sampled_from(sorted(sets)))
    busy = data.draw(st.sets(st.sampled_from(devices))) - sets[start]
    results = node_of(entry, busy=busy).allocate(claim_of(claim.template.spec))
    if results is not None:
        assert {int(each.device[1:]) for each in results} in [each for each in sets.values() if not each & busy]
    else:
        free = {first for first, ids in sets.items() if not ids & busy}
        assert free <= untried(claim).get(entry.name, set())


@contextlib.contextmanager
def at_most(alternatives: int) -> Iterator[None]:
    """A claim has so many alternatives, and not 8."""
    merge = planning.merge

    def merged(
        servings: Sequence[Serving], order: Sequence[int], most: int = 8, *, tied: bool = False
    ) -> Merged | TooMany | None:
        return merge(servings, order, min(most, alternatives), tied=tied)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "merge", merged)
        forget()
        yield
    forget()


def forget() -> None:
    claims._remembered.cache_clear()
    planning.remembered_plans.cache_clear()


def divisions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (total,)
        return
    for first in range(1, total - parts + 2):
        yield from ((first, *rest) for rest in divisions(total - first, parts - 1))


@pytest.mark.parametrize("cores", [5, 9, 13, 17, 23, 25, 30, 33, 61])
def test_types_with_different_device_counts_divide_the_alternatives_as_well_as_can_be(cores: int) -> None:
    """An alternative has one count. So the 8 are divided between the counts, and within one the aim is reached.

    Types with one count lose no more than the worst of them alone; types with several, no more than with the best
    division of the 8 alternatives. Both in one request: two lose less, where all types can divide theirs.
    """
    lost: dict[tuple[tuple[str, ...], int], int] = {}

    def lost_by(types: tuple[str, ...], most: int) -> int:
        if (types, most) not in lost:
            with at_most(most):
                claim = claim_for([(CORE, cores)], [typed(name) for name in types], divides=False)
            lost[types, most] = 99 if claim is None else most_lost(claim)
        return lost[types, most]

    serving = {name for name in NAMES if claim_for([(CORE, cores)], [typed(name)])}
    for names in SETS:
        served = [name for name in names if name in serving]
        if not served:
            continue
        counts: dict[int, list[str]] = {}
        for name in served:
            counts.setdefault(-(-cores // (CATALOGUE[name].cores(None) or 1)), []).append(name)
        groups = [tuple(each) for each in counts.values()]
        best = min(
            max(lost_by(group, most) for group, most in zip(groups, numbers, strict=True))
            for numbers in divisions(8, len(groups))
        )
        claim = claim_for([(CORE, cores)], [typed(name) for name in names])
        assert claim is not None
        assert set(claim.types) == set(served)
        assert most_lost(claim) <= best, names
        if len(groups) == 1:
            assert best <= max(lost_by((name,), 8) for name in served), names
