"""A share gets free cores: next to its whole devices, else where the rest stays together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeletplugin.discover.devices import Side, assign_cores, side_of


@pytest.mark.parametrize(
    ("amount", "taken", "expected"),
    [
        (1, (), (0,)),
        (2, (), (0, 1)),
        (8, (), (0, 1, 2, 3, 4, 5, 6, 7)),
        (1, (0,), (1,)),
        (2, (0,), (2, 3)),
        (4, (0,), (4, 5, 6, 7)),
        (1, (0, 1, 4, 5, 6), (7,)),
        (1, (5, 6, 7), (4,)),
        (1, (1, 6, 7), (0,)),
        (2, (0, 3, 4, 7), (1, 2)),
        (4, (0, 7), (1, 2, 3, 4)),
        (2, (1, 3, 5, 7), (0, 2)),
        (3, (), (0, 1, 2)),
        (3, (0, 4), (1, 2, 3)),
        (5, (0, 4, 5), (1, 2, 3, 6, 7)),
        (6, (0, 4, 5), None),
    ],
)
def test_free_cores_stay_together_after_an_allocation(
    amount: int, taken: tuple[int, ...], expected: tuple[int, ...] | None
) -> None:
    """Aligned blocks first, the one in the smallest free block; then consecutive cores; then any."""
    assert assign_cores(8, amount, 1, taken) == expected


@pytest.mark.parametrize(
    ("side", "taken", "expected"),
    [
        (Side.LOW, (), (0, 1)),
        (Side.HIGH, (), (6, 7)),
        (Side.LOW, (0,), (2, 3)),
        (Side.HIGH, (7,), (4, 5)),
    ],
)
def test_a_share_continues_its_whole_devices_if_it_can(
    side: Side, taken: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert assign_cores(8, 2, 1, taken, side) == expected


@pytest.mark.parametrize(
    ("amount", "taken", "side", "expected"),
    [
        (2, (), None, (0, 1)),
        (2, (0, 1), None, (2, 3)),
        (2, (1,), None, (2, 3)),
        (4, (), Side.HIGH, (4, 5, 6, 7)),
        (4, (2,), Side.LOW, (4, 5, 6, 7)),
        (8, (2,), None, None),
    ],
)
def test_logical_cores_are_not_separated(
    amount: int, taken: tuple[int, ...], side: Side | None, expected: tuple[int, ...] | None
) -> None:
    assert assign_cores(8, amount, 2, taken, side) == expected


@pytest.mark.parametrize(
    ("index", "whole", "wraps", "expected"),
    [
        (2, {0, 1}, False, Side.LOW),
        (1, {2, 3}, False, Side.HIGH),
        (3, {0}, True, Side.HIGH),
        (3, {0}, False, None),
        (0, {3}, True, Side.LOW),
        (0, {3}, False, None),
        (1, {3}, True, None),
        (3, {0, 1, 2}, True, Side.LOW),
        (0, set(), True, None),
    ],
)
def test_the_side_is_that_of_the_whole_devices(index: int, whole: set[int], wraps: bool, expected: Side | None) -> None:
    assert side_of(index, whole, 4, wraps) is expected


@given(st.data())
def test_a_share_gets_free_cores_if_there_are_enough(data: st.DataObject) -> None:
    logical = data.draw(st.sampled_from([1, 2]))
    units = data.draw(st.integers(1, 8))
    taken_units = data.draw(st.sets(st.integers(0, units - 1)))
    taken = {core for unit in taken_units for core in range(unit * logical, (unit + 1) * logical)}
    wanted = data.draw(st.integers(1, units))
    found = assign_cores(units * logical, wanted * logical, logical, taken, data.draw(st.sampled_from([None, *Side])))
    assert (found is None) == (wanted > units - len(taken_units))
    if found is not None:
        assert len(set(found)) == len(found) == wanted * logical
        assert not taken & set(found)
        assert found == tuple(sorted(found))
        assert {core // logical * logical for core in found} <= set(found), "no half of a logical core"
