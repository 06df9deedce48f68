"""Windows: which consecutive devices an attribute or an alternative stands for."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron import names
from neuron.hardware import windows
from neuron.hardware.windows import Line, Placement

LINES = st.builds(Line, st.integers(2, 20), st.booleans())
INF = [
    pytest.param(Line(12, wraps=True), id="inf2.48xlarge"),
    pytest.param(Line(6, wraps=False), id="inf2.24xlarge"),
    pytest.param(Line(4, wraps=False), id="inf1.6xlarge"),
    pytest.param(Line(16, wraps=False), id="inf1.24xlarge"),
]


def sets(line: Line, attribute: str, links: frozenset[tuple[int, int]] | None = None) -> dict[str, list[int]]:
    """Devices by the value of one attribute."""
    found: dict[str, list[int]] = {}
    for device_id in range(line.devices):
        found.setdefault(windows.attributes(line, device_id, links)[attribute], []).append(device_id)
    return found


def is_run(line: Line, ids: list[int]) -> bool:
    return any(sorted(line.window(len(ids), start)) == sorted(ids) for start in line.starts(len(ids)))


@given(LINES)
def test_devices_of_one_value_are_one_window_or_one_device(line: Line) -> None:
    for size, shifts in windows.published_shifts(line).items():
        for shift in shifts:
            for members in sets(line, windows.attribute(size, shift)).values():
                assert len(members) in (1, size)
                assert is_run(line, members)


@given(LINES)
def test_every_device_has_every_window_attribute(line: Line) -> None:
    published = {
        windows.attribute(size, shift) for size, shifts in windows.published_shifts(line).items() for shift in shifts
    }
    assert len(published) <= windows.MOST_ATTRIBUTES
    for device_id in range(line.devices):
        assert set(windows.attributes(line, device_id)) == published


@given(LINES)
def test_names_are_identifiers_that_the_api_takes(line: Line) -> None:
    for name in windows.attributes(line, 0):
        _, _, identifier = name.partition("/")
        assert identifier.isidentifier()
        assert len(identifier) <= 32


@given(LINES, st.data())
def test_alternatives_are_distinct_windows_within_the_limit(line: Line, data: st.DataObject) -> None:
    if line.devices < 3:
        return
    size = data.draw(st.integers(2, line.devices - 1))
    for published in (True, False):
        found = windows.placements(line, size, published)
        assert 1 <= len(found) <= names.MAX_FIRST_AVAILABLE
        assert len(set(found)) == len(found)
        for placement in found:
            assert bool(placement.attribute) != bool(placement.ids)
            if placement.ids:
                assert len(placement.ids) == size
                assert is_run(line, list(placement.ids))
            else:
                assert published
                assert any(len(members) == size for members in sets(line, placement.attribute).values())


@pytest.mark.parametrize("line", INF)
def test_sizes_up_to_four_have_every_window(line: Line) -> None:
    for size in range(2, min(4, line.devices - 1) + 1):
        reachable = set()
        for placement in windows.placements(line, size):
            if placement.ids:
                reachable.add(frozenset(placement.ids))
            else:
                members = sets(line, placement.attribute).values()
                reachable.update(frozenset(each) for each in members if len(each) == size)
        assert reachable == {frozenset(line.window(size, start)) for start in line.starts(size)}


def test_a_chain_has_no_window_over_its_end_and_a_ring_has() -> None:
    def joins_ends(line: Line) -> bool:
        return any(
            {0, line.devices - 1} <= set(members)
            for name in windows.attributes(line, 0)
            for members in sets(line, name).values()
        )

    assert not joins_ends(Line(6, wraps=False))
    assert joins_ends(Line(12, wraps=True))


def test_the_first_shift_has_the_name_of_groups() -> None:
    assert windows.attribute(4, 0) == "resource.aws.com/devicegroup4_id"
    assert windows.attribute(4, 1) == "neuron.aws.com/window4_1"
    assert windows.attribute(5, 0) == "resource.aws.com/devicegroup5_id"


@pytest.mark.parametrize("line", INF)
def test_every_window_can_be_listed_except_more_than_half_of_the_ring(line: Line) -> None:
    for size in range(2, line.devices):
        found = windows.placements(line, size)
        reachable = {frozenset(ids) for placement in found for ids in windows.allowed(line, size, placement)}
        missing = len(line.starts(size)) - len(reachable)
        assert missing == (4 if line.wraps and size > 6 else 0)


@pytest.mark.parametrize("line", INF)
def test_lines_have_the_names_of_the_groups_of_trainium(line: Line) -> None:
    named = {size for size in (4, 8, 16) if size < line.devices}
    assert {names.device_group_attribute(size) for size in named} <= windows.attributes(line, 0).keys()


def test_a_missing_link_excludes_a_window() -> None:
    line = Line(6, wraps=False)
    links = frozenset(itertools.pairwise(range(6))) - {(2, 3)}
    assert sorted(sets(line, windows.attribute(2, 0), links).values()) == [[0, 1], [2], [3], [4, 5]]


def test_alternatives_by_id_begin_at_the_ends() -> None:
    by_id = [each for each in windows.placements(Line(12, wraps=True), 7) if each.ids]
    assert by_id[:2] == [Placement(ids=tuple(range(7))), Placement(ids=tuple(range(5, 12)))]


@pytest.mark.parametrize(("size", "alternatives"), [(3, 3), (4, 6), (5, 7), (6, 7), (8, 8), (11, 8)])
def test_a_size_has_as_many_alternatives_as_the_api_allows(size: int, alternatives: int) -> None:
    assert len(windows.placements(Line(12, wraps=True), size)) == alternatives


@pytest.mark.parametrize(
    ("line", "size", "alternatives"),
    [
        (Line(12, wraps=True), 8, 8),
        (Line(12, wraps=True), 11, 8),
        (Line(16, wraps=False), 9, 8),
        (Line(16, wraps=False), 11, 6),
        (Line(16, wraps=False), 15, 2),
    ],
)
def test_adjacent_windows_have_devices_in_common(line: Line, size: int, alternatives: int) -> None:
    found = list(windows.adjacent(line, size).sets[: names.MAX_FIRST_AVAILABLE])
    assert found == [line.window(size, start) for start in range(alternatives)]
    common = frozenset.intersection(*map(frozenset, found))
    assert len(common) == size - alternatives + 1


def test_a_chain_whose_ends_are_linked_has_a_window_across_them() -> None:
    chain = Line(6, wraps=False)
    name = windows.attribute(2, 1)
    links = frozenset(itertools.pairwise(range(6)))
    assert sorted(sets(chain, name, links).values()) == [[0], [1, 2], [3, 4], [5]]
    for ends in ((5, 0), (0, 5)):
        assert sorted(sets(chain, name, links | {ends}).values()) == [[0, 5], [1, 2], [3, 4]]


@pytest.mark.parametrize("line", INF)
def test_an_alternative_allows_the_windows_of_its_attribute_or_its_ids(line: Line) -> None:
    for size in range(2, line.devices):
        for placement in windows.placements(line, size):
            allowed = windows.allowed(line, size, placement)
            assert all(is_run(line, list(ids)) for ids in allowed)
            if placement.ids:
                assert allowed == (placement.ids,)
            else:
                shared = [ids for ids in sets(line, placement.attribute).values() if len(ids) == size]
                assert sorted(map(sorted, allowed)) == sorted(shared)
