"""Whether the requests of one claim fit an empty node together."""

import pytest

from conversion.claims.fitting import Place, Run, fits, mask


def run_of(*places: tuple[list[int], list[int]], cores: int = 0) -> Run:
    """A request that may have any of these devices, with a request beside it on others."""
    found: tuple[Place, ...] = tuple((mask(whole), mask(beside)) for whole, beside in places)
    return found, cores


@pytest.mark.parametrize(
    ("devices", "runs", "singles", "shares", "fit"),
    [
        pytest.param(2, (), 2, (), True, id="a-device-for-each"),
        pytest.param(2, (), 3, (), False, id="more-than-devices"),
        pytest.param(1, (), 0, (4,), True, id="a-share-of-all-cores"),
        pytest.param(1, (), 0, (2, 2), True, id="shares-fill-a-device"),
        pytest.param(1, (), 0, (2, 2, 1), False, id="one-core-too-many"),
        pytest.param(2, (), 1, (2, 2), True, id="a-device-and-shares"),
        pytest.param(2, (), 1, (2, 2, 1), False, id="a-device-and-a-core-too-many"),
        pytest.param(2, (), 0, (1, 4, 2, 1), True, id="shares-of-several-sizes"),
        pytest.param(
            4,
            (run_of(([0, 1], [])), run_of(([0, 1], []), ([2, 3], []))),
            0,
            (),
            True,
            id="the-second-place",
        ),
        pytest.param(
            4,
            (run_of(([0, 1], [])), run_of(([1, 2], []))),
            0,
            (),
            False,
            id="places-with-a-device-in-common",
        ),
        pytest.param(3, (run_of(([0, 1], [2]), cores=1),), 0, (2, 1), True, id="shares-on-the-device-beside"),
        pytest.param(3, (run_of(([0, 1], [2]), cores=1),), 1, (), False, id="no-whole-device-beside"),
        pytest.param(3, (run_of(([0], [2]), cores=1),), 1, (2,), True, id="a-whole-device-between"),
        pytest.param(3, (run_of(([0, 1], [2])),), 0, (1,), False, id="all-cores-of-the-device-beside"),
    ],
)
def test_requests_fit_if_no_core_is_given_twice(
    devices: int, runs: tuple[Run, ...], singles: int, shares: tuple[int, ...], fit: bool
) -> None:
    assert fits(devices, 4, runs, singles, shares) is fit


def test_large_shares_are_placed_before_small_ones() -> None:
    a_core_of_each = (run_of(([], [0]), cores=1), run_of(([], [1]), cores=1))
    assert fits(3, 8, a_core_of_each, 0, (2, 2, 4, 4, 4, 4))


def test_a_mask_has_a_bit_for_each_device() -> None:
    assert mask([0, 2, 5]) == 0b100101
