"""Pauses grow with failures and begin again after a success."""

from runtime.retries import Backoff


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(0.5, 3)
    assert [backoff.failed() for _ in range(5)] == [0.5, 1, 2, 3, 3]
    assert backoff.pause == 3
    backoff.reset()
    assert backoff.failed() == 0.5


def test_pauses_are_spread() -> None:
    assert Backoff(4, 60, lambda bound: bound / 2).failed() == 2


def test_thousands_of_failures_are_no_overflow() -> None:
    backoff = Backoff(1, 30)
    assert [backoff.failed() for _ in range(5000)][-1] == 30
