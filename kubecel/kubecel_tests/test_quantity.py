"""Quantities and semantic versions as values: whatever is written, compared and added stays exact."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubecel.errors import CelRuntimeError
from kubecel.library import kubernetes
from kubecel.library.kubernetes import Quantity
from kubecel.values import MAX_INT

SUFFIXES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    **{suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", 1)},
    **{f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", 1)},
}
NUMBERS = st.from_regex(r"[+-]?[0-9]{1,6}(\.[0-9]{0,3})?", fullmatch=True)


@given(NUMBERS, st.sampled_from(sorted(SUFFIXES)))
def test_a_quantity_is_the_number_times_its_suffix(number: str, suffix: str) -> None:
    exact = Fraction(number.rstrip(".")) * SUFFIXES[suffix]
    parsed = kubernetes.parse_quantity(number + suffix)
    if exact * 10**9 == int(exact * 10**9):
        expected = exact if not suffix.endswith("i") else max(min(exact, Fraction(MAX_INT)), -Fraction(MAX_INT))
        assert parsed.value in {exact, expected}
    else:
        assert abs(parsed.value) >= abs(exact)
        assert abs(parsed.value - exact) < Fraction(1, 10**9)


@given(st.text(max_size=12))
def test_any_text_is_a_quantity_or_an_error(text: str) -> None:
    try:
        parsed = kubernetes.parse_quantity(text)
    except CelRuntimeError as error:
        assert "is not a quantity" in error.message  # noqa: PT017 - both outcomes are fine
    else:
        assert isinstance(parsed, Quantity)


@given(NUMBERS, NUMBERS, st.sampled_from(["", "m", "Ki", "G"]))
def test_sums_are_exact_and_undone_by_differences(first: str, second: str, suffix: str) -> None:
    a, b = kubernetes.parse_quantity(first), kubernetes.parse_quantity(second + suffix)
    assert a.plus(b).value == a.value + b.value
    assert a.plus(b).plus(b.negated()) == a
    assert hash(a.plus(b).plus(b.negated())) == hash(a)


def test_quantities_too_small_are_rounded_away_from_zero() -> None:
    assert kubernetes.parse_quantity("0.1n") == kubernetes.parse_quantity("1n")
    assert kubernetes.parse_quantity("-0.1n") == kubernetes.parse_quantity("-1n")


def test_binary_quantities_stop_at_an_int64() -> None:
    assert kubernetes.parse_quantity("100Ei").value == MAX_INT


@pytest.mark.parametrize("text", ["1e1001", "9" * 129, "1e99999999999"])
def test_numbers_above_the_limits_are_refused(text: str) -> None:
    with pytest.raises(CelRuntimeError, match="is not a quantity"):
        kubernetes.parse_quantity(text)


IDENTIFIERS = st.from_regex(r"[0-9A-Za-z-]{1,4}", fullmatch=True).filter(
    lambda text: not text.isdigit() or text == "0" or not text.startswith("0")
)
VERSIONS = st.builds(
    lambda numbers, pre, build: (
        ".".join(map(str, numbers)) + (f"-{'.'.join(pre)}" if pre else "") + (f"+{'.'.join(build)}" if build else "")
    ),
    st.tuples(*[st.integers(0, 3)] * 3),
    st.lists(IDENTIFIERS, max_size=3),
    st.lists(IDENTIFIERS, max_size=2),
)


@given(VERSIONS, VERSIONS, VERSIONS)
def test_versions_are_totally_ordered(first: str, second: str, third: str) -> None:
    a, b, c = sorted(map(kubernetes.parse_semver, (first, second, third)))
    assert a <= b <= c
    assert a <= c
    assert (a == b) == (not a < b and not b < a)
    assert a != b or hash(a) == hash(b)


@given(VERSIONS)
def test_build_metadata_does_not_change_the_order(version: str) -> None:
    assert kubernetes.parse_semver(version) == kubernetes.parse_semver(version.partition("+")[0])


@given(st.text(alphabet="0123456789.v-+ab ", max_size=14))
def test_normalising_accepts_every_strict_version(text: str) -> None:
    try:
        strict = kubernetes.parse_semver(text)
    except CelRuntimeError:
        return
    assert kubernetes.parse_semver(text, normalize=True) == strict


def test_numeric_pre_releases_are_ordered_before_alphanumeric_ones() -> None:
    ordered = ["1.0.0-1", "1.0.0-2", "1.0.0-10", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-beta", "1.0.0"]
    assert sorted(sorted(ordered), key=kubernetes.parse_semver) == ordered
