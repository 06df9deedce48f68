import contextlib
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron.quantities import NotACountError, NotAQuantityError, parse_amount, parse_count


@pytest.mark.parametrize(
    ("written", "count"),
    [
        ("0", 0), ("4", 4), (4, 4), ("+4", 4), ("4.", 4), ("4.0", 4), (4.0, 4), ("1e1", 10), ("1E1", 10),
        ("40e-1", 4), ("4k", 4000), ("4000m", 4), ("4Ki", 4096), ("0.5k", 500), ("16", 16), ("1G", 10**9),
        ("4 ", 4), (" 4", 4), ("\u20034\xa0", 4), ("4\x85", 4), (None, 0),
    ],
    ids=str,
)  # fmt: skip
def test_whole_numbers_are_read_as_kubernetes_reads_them(written: object, count: int) -> None:
    assert parse_count(written) == count


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("0.5", "is not a whole number"),
        ("500m", "is not a whole number"),
        (0.5, "is not a whole number"),
        ("1n", "is not a whole number"),
        ("1E", "is more than any cluster has"),
        ("1e999", "is more than any cluster has"),
        ("99999999999999999999", "is more than any cluster has"),
        ("-1", "is negative"),
        (-4, "is negative"),
        ("", "is not a quantity"),
        ("four", "is not a quantity"),
        ("4 2", "is not a quantity"),
        (" ", "is not a quantity"),
        ("\x1f4", "is not a quantity"),
        ("4\n", "is not a quantity"),
        ("\t4", "is not a quantity"),
        ("4\u2028", "is not a quantity"),
        ("4kk", "is not a quantity"),
        ("0x4", "is not a quantity"),
        ("٤", "is not a quantity"),
        ("1e9999", "is not a quantity"),
        ("9" * 65, "is not a quantity"),
        (True, "is not a quantity"),
        ({}, "is not a quantity"),
        (float("nan"), "is not a quantity"),
        (float("inf"), "is not a quantity"),
    ],
    ids=repr,
)
def test_invalid_quantities_are_reported_with_the_cause(written: object, reason: str) -> None:
    with pytest.raises(NotACountError, match=f"^{reason}$"):
        parse_count(written)


@given(st.text(max_size=80))
def test_any_text_is_parsed_or_refused(written: str) -> None:
    with contextlib.suppress(NotACountError):
        assert parse_count(written) >= 0


@given(st.integers(0, 900), st.sampled_from([("", 1), ("k", 1000), ("Mi", 2**20), ("m", Decimal("0.001"))]))
def test_a_suffix_multiplies(number: int, suffix: tuple[str, int | Decimal]) -> None:
    exact = number * suffix[1]
    try:
        assert parse_count(f"{number}{suffix[0]}") == exact
    except NotACountError:
        assert exact != int(exact)


@pytest.mark.parametrize(
    ("written", "amount"),
    [
        ("4", 4),
        (4, 4),
        ("16Gi", 16 * 2**30),
        ("500m ", Decimal("0.5")),
        (None, 0),
        ("-1", -1),
        ("1e999", Decimal("1e999")),
    ],
    ids=str,
)
def test_amounts_need_not_be_whole_or_small(written: object, amount: object) -> None:
    assert parse_amount(written) == amount


@pytest.mark.parametrize(
    "written", ["", "x", "1e9999", True, [], float("nan"), 10**5000], ids=lambda each: str(type(each))
)
def test_invalid_amounts_are_refused(written: object) -> None:
    with pytest.raises(NotAQuantityError, match="is not a quantity"):
        parse_amount(written)
