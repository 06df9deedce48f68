"""The allocator's model, held against what a real 1.36 scheduler was seen to do."""

import pytest

from neuron.allocator.search import (
    AllocatorAlternative,
    AllocatorCapacity,
    AllocatorClaim,
    AllocatorConstraint,
    AllocatorDevice,
    AllocatorNode,
    AllocatorRequest,
    SearchTooLongError,
)
from neuron.api.taints import Taint, TolerationSpec
from neuron.hardware import windows
from neuron.hardware.device_shapes import Value, Version
from neuron.hardware.windows import Line

CORES = "neuroncores"


def devices(count: int, *, cores: int = 0, wraps: bool = True) -> list[AllocatorDevice]:
    line = Line(count, wraps)
    policy = {CORES: AllocatorCapacity(cores, (0, 1, 2, 4)[: cores.bit_length() + 1])} if cores else {}
    return [
        AllocatorDevice(f"d{index}", windows.attributes(line, index), bool(cores), policy) for index in range(count)
    ]


def anything(_: AllocatorDevice) -> bool:
    return True


def exactly(count: int | None, name: str = "r", **fields: object) -> AllocatorRequest:
    return AllocatorRequest(name, (AllocatorAlternative("", anything, count, **fields),))  # type: ignore[arg-type]


def window(size: int, line: Line) -> AllocatorClaim:
    """`size` consecutive devices, as conversion requests them."""
    alternatives, constraints = [], []
    for number, placement in enumerate(windows.placements(line, size)):
        ids = {f"d{index}" for index in placement.ids}
        select = (lambda device, ids=ids: device.name in ids) if ids else anything
        alternatives.append(AllocatorAlternative(f"s{number}", select, size))
        if placement.attribute:
            constraints.append(AllocatorConstraint(placement.attribute, frozenset({f"r/s{number}"})))
    return AllocatorClaim((AllocatorRequest("r", tuple(alternatives)),), tuple(constraints))


def names_of(results: object) -> list[str]:
    return [result.device for result in results or ()]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "sizes",
    [(3, 3, 3, 3), (5, 5), (9, 3), (7, 5), (11,), (2,) * 6],
    ids=lambda sizes: "+".join(map(str, sizes)),
)
def test_twelve_devices_of_a_ring_serve(sizes: tuple[int, ...]) -> None:
    line, node = Line(12, wraps=True), AllocatorNode(devices(12))
    held: set[str] = set()
    for size in sizes:
        results = node.allocate(window(size, line))
        assert results is not None
        ids = [int(name[1:]) for name in names_of(results)]
        assert any(sorted(line.window(size, start)) == sorted(ids) for start in line.starts(size))
        assert held.isdisjoint(names_of(results))
        held.update(names_of(results))


@pytest.mark.parametrize("size", [2, 5])
def test_a_window_is_not_allocated_if_no_neighbours_are_free(size: int) -> None:
    node = AllocatorNode(devices(12))
    for index in range(0, 12, 2):
        wanted = f"d{index}"
        only = AllocatorAlternative("", lambda device, wanted=wanted: device.name == wanted)  # type: ignore[misc]
        assert node.allocate(AllocatorClaim((AllocatorRequest("r", (only,)),)))
    assert node.allocate(window(size, Line(12, wraps=True))) is None


def test_four_shares_fill_a_device_and_the_fifth_takes_the_next() -> None:
    node = AllocatorNode(devices(4, cores=4))
    share = AllocatorClaim((exactly(1, capacity={CORES: 1}),))
    assert [names_of(node.allocate(share)) for _ in range(5)] == [["d0"]] * 4 + [["d1"]]
    assert names_of(node.allocate(AllocatorClaim((exactly(1),)))) == ["d2"]


def test_amounts_are_rounded_up_to_valid_values() -> None:
    results = AllocatorNode(devices(4, cores=4)).allocate(AllocatorClaim((exactly(1, capacity={CORES: 3}),)))
    assert results is not None
    assert results[0].consumed == {CORES: 4}


def test_one_request_for_two_shares_takes_two_devices_and_two_requests_take_one() -> None:
    assert names_of(
        AllocatorNode(devices(4, cores=4)).allocate(AllocatorClaim((exactly(2, capacity={CORES: 1}),)))
    ) == ["d0", "d1"]
    two = AllocatorClaim((exactly(1, "a", capacity={CORES: 1}), exactly(1, "b", capacity={CORES: 1})))
    assert names_of(AllocatorNode(devices(4, cores=4)).allocate(two)) == ["d0", "d0"]


def test_all_fails_beside_an_allocated_device_but_leaves_out_a_shared_one() -> None:
    for cores, expected in ((0, []), (4, ["d1", "d2", "d3"])):
        node = AllocatorNode(devices(4, cores=cores))
        assert node.allocate(AllocatorClaim((exactly(1),)))
        assert names_of(node.allocate(AllocatorClaim((exactly(None),)))) == expected


def test_admin_access_gets_devices_in_use_and_no_capacity_of_shared_ones() -> None:
    node = AllocatorNode(devices(2))
    assert node.allocate(AllocatorClaim((exactly(2),)))
    assert names_of(node.allocate(AllocatorClaim((exactly(2, admin_access=True),)))) == ["d0", "d1"]
    shared = AllocatorNode(devices(2, cores=4))
    assert shared.allocate(AllocatorClaim((exactly(2),)))
    assert shared.allocate(AllocatorClaim((exactly(2, admin_access=True),))) is None
    nothing = exactly(2, admin_access=True, capacity={CORES: 0})
    assert names_of(shared.allocate(AllocatorClaim((nothing,)))) == ["d0", "d1"]


def test_counters_keep_the_whole_node_and_its_devices_apart() -> None:
    parts = [AllocatorDevice(f"d{index}", {}, counters={f"c{index}": 1}) for index in range(4)]
    whole = AllocatorDevice("node", {}, counters={f"c{index}": 1 for index in range(4)})
    counters = {f"c{index}": 1 for index in range(4)}
    for first, second in (("d2", "node"), ("node", "d2")):
        node = AllocatorNode([*parts, whole], counters)
        one, other = (
            AllocatorClaim(
                (AllocatorRequest("r", (AllocatorAlternative("", lambda device, name=name: device.name == name),)),)
            )  # type: ignore[misc]
            for name in (first, second)
        )
        results = node.allocate(one)
        assert results
        assert node.allocate(other) is None
        node.release(results)
        assert node.allocate(other)


def test_a_tainted_device_needs_a_toleration() -> None:
    node = AllocatorNode([AllocatorDevice("d0", {}, taints=(Taint("sick"),))])
    assert node.allocate(AllocatorClaim((exactly(1),))) is None
    assert node.allocate(AllocatorClaim((exactly(1, tolerations=(TolerationSpec(),)),)))


def test_a_device_without_the_attribute_does_not_match() -> None:
    node = AllocatorNode([AllocatorDevice("d0", {"a": 1}), AllocatorDevice("d1", {}), AllocatorDevice("d2", {"a": 1})])
    assert names_of(node.allocate(AllocatorClaim((exactly(2),), (AllocatorConstraint("a"),)))) == ["d0", "d2"]


@pytest.mark.parametrize(
    ("attributes", "distinct", "expected"),
    [
        ([(1, 2), 2, (2, 3)], False, ["d0", "d1", "d2"]),
        ([(1, 2), (2, 3), (1, 3)], False, []),
        # d1 leaves only 1 in common, so the search goes back and takes d2 and d3.
        ([(1, 2), (1,), (2,), 2], False, ["d0", "d2", "d3"]),
        ([(True,), (1,), 1, 1], False, ["d1", "d2", "d3"]),
        ([("1.0.0",), (Version("1.0.0"),), "1.0.0", "1.0.0"], False, ["d0", "d2", "d3"]),
        ([(1, 2), (2, 3), 3, 4], True, ["d0", "d2", "d3"]),
        ([1, 2, 1], True, []),
        ([True, 1, None, 2], True, ["d0", "d1", "d3"]),
    ],
    ids=["one in common", "pairs only", "backtracking", "bool", "version", "apart", "first and last equal", "missing"],
)
def test_attributes_are_sets_of_typed_values(
    attributes: list[Value | None], distinct: bool, expected: list[str]
) -> None:
    made = [
        AllocatorDevice(f"d{index}", {} if value is None else {"a": value}) for index, value in enumerate(attributes)
    ]
    claim = AllocatorClaim((exactly(3),), (AllocatorConstraint("a", distinct=distinct),))
    assert names_of(AllocatorNode(made).allocate(claim)) == expected


def test_all_devices_that_a_constraint_does_not_allow_end_the_search() -> None:
    node = AllocatorNode([AllocatorDevice("d0", {"a": 1}), AllocatorDevice("d1", {"a": 2})])
    alternatives = (AllocatorAlternative("s0", anything, None), AllocatorAlternative("s1", anything, 1))
    tied = AllocatorConstraint("a")
    assert node.allocate(AllocatorClaim((AllocatorRequest("r", alternatives),), (tied,))) is None
    assert names_of(node.allocate(AllocatorClaim((AllocatorRequest("r", alternatives[1:]),), (tied,)))) == ["d0"]


def test_the_search_ends_at_its_step_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neuron.allocator.search.MOST_STEPS", 5_000)
    node = AllocatorNode(devices(22))
    assert node.allocate(AllocatorClaim((exactly(1),)))
    with pytest.raises(SearchTooLongError, match="given up"):
        node.allocate(AllocatorClaim((exactly(22),)))


def test_released_devices_can_be_allocated_again() -> None:
    node = AllocatorNode(devices(4, cores=4))
    results = node.allocate(AllocatorClaim((exactly(4),)))
    assert results
    assert node.allocate(AllocatorClaim((exactly(1, capacity={CORES: 1}),))) is None
    node.release(results)
    assert node.allocate(AllocatorClaim((exactly(4),)))


def test_a_capacity_with_a_default_is_not_used_up_by_requests_that_do_not_name_it() -> None:
    policy = {CORES: AllocatorCapacity(4, (0, 1, 2, 4), 4), "memory": AllocatorCapacity(8, (), 0)}
    node = AllocatorNode([AllocatorDevice("d0", {}, shared=True, capacity=policy)])
    share = AllocatorClaim((exactly(1, capacity={CORES: 1}),))
    assert [names_of(node.allocate(share)) for _ in range(5)] == [["d0"]] * 4 + [[]]


def test_only_requests_that_name_a_capacity_with_a_default_consume_it() -> None:
    memory = AllocatorCapacity(32, default=0)
    shared = AllocatorDevice("d0", {}, shared=True, capacity={CORES: AllocatorCapacity(2, (0, 1, 2)), "memory": memory})
    node = AllocatorNode([shared])
    for _ in range(2):
        assert node.allocate(AllocatorClaim((exactly(1, capacity={CORES: 1}),))) is not None
    node = AllocatorNode([shared])
    assert node.allocate(AllocatorClaim((exactly(1, capacity={CORES: 1, "memory": 20}),))) is not None
    assert node.allocate(AllocatorClaim((exactly(1, capacity={CORES: 1, "memory": 20}),))) is None
    assert node.allocate(AllocatorClaim((exactly(1, capacity={CORES: 1}),))) is not None


def test_the_shortcut_does_not_change_results_for_schedulers_that_lose_count() -> None:
    """Six shared devices, the first tainted, and a request for all of them or else for the last five.

    The first alternative cannot succeed. A scheduler that loses count keeps the counters of the shared devices that it
    tried there, and has none left for the second alternative.
    """
    cores = {CORES: AllocatorCapacity(2)}
    line = [
        AllocatorDevice(f"d{index}", {}, True, cores, counters={f"set/{index}": 1}, taints=_sick(index))
        for index in range(6)
    ]
    counters = {f"set/{index}": 1 for index in range(6)}
    parts = [("all", 6, range(6)), ("last", 5, range(1, 6))]
    claim = AllocatorClaim((AllocatorRequest("r", tuple(_of(name, count, set(ids)) for name, count, ids in parts)),))
    for leak, found in ((True, []), (False, ["d1", "d2", "d3", "d4", "d5"])):
        for hurry in (True, False):
            node = AllocatorNode(line, counters, counters_leak=leak, hurry=hurry)
            assert names_of(node.allocate(claim)) == found, (leak, hurry)


def _sick(index: int) -> tuple[Taint, ...]:
    return (Taint("sick"),) if index == 0 else ()


def _of(name: str, count: int, ids: set[int]) -> AllocatorAlternative:
    return AllocatorAlternative(name, lambda device: int(device.name[1:]) in ids, count)
