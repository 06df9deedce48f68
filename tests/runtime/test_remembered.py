"""What reviews remember has a size in bytes, whatever its entries are."""

from hypothesis import given
from hypothesis import strategies as st

from runtime.remembered import OVERHEAD, Remembered, fingerprint


def test_get_returns_the_stored_value() -> None:
    remembered: Remembered[str, int] = Remembered(100_000)

    remembered.put("a", 1, 10)

    assert remembered.get("a") == 1
    assert remembered.get("b") is None


def test_the_least_recently_used_is_forgotten_first() -> None:
    remembered: Remembered[str, int] = Remembered(10 * (OVERHEAD + 1000))
    for number, key in enumerate("abcdefghij"):
        remembered.put(key, number, 1000)

    assert remembered.get("a") == 0
    remembered.put("k", 10, 1000)

    assert remembered.get("a") == 0
    assert remembered.get("b") is None


def test_an_entry_above_the_size_limit_is_not_kept_and_evicts_no_other() -> None:
    remembered: Remembered[str, int] = Remembered(100_000)
    remembered.put("small", 1, 10)

    remembered.put("large", 2, 50_000)

    assert remembered.get("large") is None
    assert remembered.get("small") == 1


def test_a_replaced_value_counts_once_in_the_size() -> None:
    remembered: Remembered[str, int] = Remembered(100_000)
    remembered.put("a", 1, 5000)

    remembered.put("a", 2, 10)

    assert remembered.get("a") == 2
    assert remembered.size == 10 + OVERHEAD


def test_a_replacement_above_the_size_limit_removes_the_old_value() -> None:
    remembered: Remembered[str, int] = Remembered(100_000)
    remembered.put("a", 1, 10)

    remembered.put("a", 2, 90_000)

    assert remembered.get("a") is None
    assert remembered.size == 0


def test_clear_forgets_everything() -> None:
    remembered: Remembered[str, int] = Remembered(100_000)
    remembered.put("a", 1, 10)

    remembered.clear()

    assert remembered.get("a") is None
    assert (len(remembered), remembered.size) == (0, 0)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 40_000)), max_size=200))
def test_the_size_never_exceeds_the_limit(puts: list[tuple[int, int]]) -> None:
    remembered: Remembered[int, int] = Remembered(64_000)
    kept: dict[int, int] = {}
    for key, size in puts:
        remembered.put(key, size, size)
        kept[key] = size
        assert remembered.size <= 64_000

    held = {key: remembered.get(key) for key in range(31)}
    assert remembered.size == sum(size + OVERHEAD for size in held.values() if size is not None)
    assert all(size is None or size == kept[key] for key, size in held.items())


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_fingerprints_differ_where_parts_differ(one: list[bytes], other: list[bytes]) -> None:
    assert (fingerprint(*one) == fingerprint(*other)) == (one == other)
